"""Where ranks stand, and what is wrong with their collectives, from their ledgers and the stacks of their threads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from labkit import lines
from labkit.ranks.ledger import POINT_TO_POINT, START, Call

_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_IN_TRACEBACK = re.compile(r'^( *)File "(.*)", line (\d+)', re.MULTILINE)
# What a backend says whose partner is gone, and what one says that has waited for too long, in gloo's and NCCL's words.
CONSEQUENCE = re.compile(
    r"closed by peer|Connection reset|Broken pipe|Connection refused|remote process exited|failed to recv"
)
TOO_LONG = re.compile(r"[Tt]imed out|Watchdog caught collective operation timeout|timeout after")
_WAITS = re.compile(r"\bwait\(|\bsynchronize\(|\.(item|cpu|tolist|numpy)\(")


@dataclass(frozen=True, kw_only=True)
class Late:
    """A collective that waits: a rank that called it, its call, and the ranks that have not called it."""

    rank: int
    call: Call
    missing: tuple[int, ...]


def late(ledgers: Mapping[int, Sequence[Call]], *, timeout_s: float, now_s: float) -> list[Late]:
    """The collectives called longer than timeout_s ago that not every rank has called yet, the oldest first."""
    numbers = {rank: _latest(calls) for rank, calls in ledgers.items()}
    found = []
    for rank, calls in ledgers.items():
        call = next((each for each in reversed(calls) if each.number), None)
        if call is None or now_s - call.started_s <= timeout_s:
            continue
        missing = tuple(each for each in call.ranks if numbers.get(each, {}).get(call.group, 0) < call.number)
        if missing:
            found.append(Late(rank=rank, call=call, missing=missing))
    return sorted(found, key=lambda each: each.call.started_s)


def is_waiting(dump: str) -> bool:
    """Whether a dump's main thread stands within torch, or in a line that waits: a call may be over, or not be needed.

    A collective's first rank need not wait for the others: what a broadcast's root has sent is off its hands.
    """
    frames = _frames(dump)
    if not frames:
        return False
    file, line, _ = frames[0]
    return file.startswith(lines.TORCH) or bool(_WAITS.search(lines.source(file, int(line))))


def _latest(calls: Sequence[Call]) -> dict[str, int]:
    """The number of the latest collective in each group."""
    return {call.group: call.number for call in calls if call.number}


def stands_at(dump: str) -> str:
    """The innermost line of the learner's own in a thread dump of faulthandler, with its text; and what it calls."""
    frames = _frames(dump)
    if not frames:
        return "somewhere that it did not say"
    own = next(((file, int(line)) for file, line, _ in frames if not lines.is_foreign(file)), None)
    if own is None:
        file, line, name = frames[0]
        return f"{name} ({lines.place(file, int(line))})"
    return at(*own)


def _frames(dump: str) -> list[tuple[str, str, str]]:
    """File, line and function of the main thread in a dump, innermost first, down to the rank's function."""
    found = [match.groups() for match in map(_FRAME.match, _main_thread(dump).splitlines()) if match]
    return list(takewhile(lambda frame: frame[0] != START, found))


def at(file: str, line: int) -> str:
    """`In[5], line 3: dist.barrier()`; where the line is not known, so much is said."""
    if not file:
        return "a line of torch's own"
    text = lines.source(file, line)
    return lines.place(file, line) + (f": {text}" if text else "")


def _main_thread(dump: str) -> str:
    """What the last dump in a file says of the main thread: the one that took the signal, or the last of a crash."""
    return dump.rpartition("Current thread" if "Current thread" in dump else "Thread 0x")[2]


def traceback_of(text: str) -> str:
    """A rank's traceback with its cells by the names that the notebook gives them."""

    def named(found: re.Match) -> str:
        cell = lines.cell(found[2])
        return f"{found[1]}{cell}, line {found[3]}" if cell else found[0]

    return _IN_TRACEBACK.sub(named, text)


def calls_apart(apart: Mapping[int, Call]) -> str:
    """The sentence about ranks that called different collectives."""
    first = next(iter(apart.values()))
    said = [f"    rank {rank} called {call.what} at {at(call.file, call.line)}" for rank, call in sorted(apart.items())]
    return "\n".join([f"The ranks do not call the same: collective number {first.number} is not one for all.", *said])


def came_late(found: Late, seconds: float) -> str:
    """The sentence about a collective that waited in vain."""
    who = _ranks(found.missing)
    return f"{named(found.call)} waited for {who}, for longer than {seconds:g} s."


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1 and 3`."""
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def named(call: Call) -> str:
    """`all_reduce of float32 [4] (collective 3)`."""
    return call.what if call.op in POINT_TO_POINT else f"{call.what} (collective {call.number})"


def in_call(calls: Sequence[Call], dump: str) -> str:
    """Where a rank stands, with the collective that it called last from that very line, if it did."""
    place, call = stands_at(dump), calls[-1] if calls else None
    if call is not None and call.file and place == at(call.file, call.line):
        return f"in {named(call)} at {place}"
    return f"at {place}"
