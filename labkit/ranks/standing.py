"""Where ranks stand, and what is wrong with their collectives, from their ledgers and the stacks of their threads."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from labkit import lines
from labkit.ranks.ledger import POINT_TO_POINT, START, Call

_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_IN_TRACEBACK = re.compile(r'^( *)File "(.*)", line (\d+)', re.MULTILINE)
# What a rank says whose partner is gone, and what one says that has waited for too long, in gloo's and NCCL's words.
CONSEQUENCE = re.compile(
    r"closed by peer|Connection reset|Broken pipe|Connection refused|remote process exited|failed to recv"
)
TOO_LONG = re.compile(r"[Tt]imed out|Watchdog caught collective operation timeout|Timeout", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Late:
    """A collective that waits: the call of the rank that came first, and the ranks that have not called it."""

    call: Call
    missing: tuple[int, ...]


def waiting(ledgers: Mapping[int, Sequence[Call]], *, timeout_s: float, now_s: float | None = None) -> Late | None:
    """The collective in which a rank has waited for longer than timeout_s for one that did not come; None if none.

    Ranks whose ledger is not given, for they have returned, do not come either.
    """
    now_s = time.monotonic() if now_s is None else now_s
    numbers = {rank: _latest(calls) for rank, calls in ledgers.items()}
    late = []
    for calls in ledgers.values():
        call = next((each for each in reversed(calls) if each.number), None)
        if call is None or now_s - call.started_s <= timeout_s:
            continue
        missing = tuple(rank for rank in call.ranks if numbers.get(rank, {}).get(call.group, 0) < call.number)
        if missing:
            late.append(Late(call=call, missing=missing))
    return min(late, key=lambda each: each.call.started_s, default=None)


def _latest(calls: Sequence[Call]) -> dict[str, int]:
    """The number of the latest collective in each group."""
    return {call.group: call.number for call in calls if call.number}


def stands_at(dump: str) -> str:
    """The innermost line of the learner's own in a thread dump of faulthandler, with its text; and what it calls."""
    found = [match.groups() for match in map(_FRAME.match, _main_thread(dump).splitlines()) if match]
    frames = list(takewhile(lambda frame: frame[0] != START, found))
    if not frames:
        return "somewhere that it did not say"
    own = next(((file, int(line)) for file, line, _ in frames if not lines.is_foreign(file)), None)
    if own is None:
        file, line, name = frames[0]
        return f"{name} ({lines.place(file, int(line))})"
    return at(*own)


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


def came_late(late: Late, seconds: float) -> str:
    """The sentence about a collective that waited in vain."""
    who = _ranks(late.missing)
    return f"{named(late.call)} waited for {who}, for longer than {seconds:g} s."


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
