"""Which rank failed first, and what to say of it and of the others."""

import signal
import time
from collections.abc import Callable

from labkit.ranks import ledger, standing
from labkit.ranks.errors import RankError
from labkit.ranks.rank import Rank

_GRACE_S = 0.3  # so long the others may take to fail too: the first to be heard is not always the first to fail
_STACKS_S = 1.0
_LOOK_S = 0.5

Listen = Callable[[list[Rank], float], None]


def failure(ranks: list[Rank], timeout_s: float, *, listen: Listen) -> RankError | None:
    """What is wrong with the ranks by now; None where nothing is."""
    if not any(_failed(rank) for rank in ranks):
        return _standstill(ranks, timeout_s, listen)
    until_s = time.monotonic() + _GRACE_S
    while time.monotonic() < until_s and any(rank.said is None for rank in ranks):
        listen(ranks, _GRACE_S / 4)
    first = _first(ranks)
    kind, _, *rest = first.said
    if _is_of_the_backend(first) and (error := disagreement(ranks, listen=listen)) is not None:
        return error
    where = _standing(ranks, listen)
    if kind == "raised" and rest[2] and standing.TOO_LONG.search(rest[0]):
        text = f"rank {first.number} waited for another rank, for longer than {timeout_s:g} s.\n{_listed(where)}"
        return RankError(text, kind="waited", standing=where)
    text = "\n".join([_headline(first, kind, rest), *_others(where, first)])
    return RankError(text, kind=kind, rank=first.number, standing=where)


def disagreement(ranks: list[Rank], *, listen: Listen | None = None) -> RankError | None:
    """What is wrong where ranks called different collectives, even if the backend went on; None otherwise."""
    apart = ledger.differing({rank.number: ledger.read(rank.calls) for rank in ranks})
    if apart is None:
        return None
    where = _standing(ranks, listen) if listen else {}
    return RankError(standing.calls_apart(apart), kind="differed", standing=where)


def where_all_stand(ranks: list[Rank], *, listen: Listen) -> str:
    """A line for each rank: where it stands."""
    return _listed(_standing(ranks, listen))


def _standstill(ranks: list[Rank], timeout_s: float, listen: Listen) -> RankError | None:
    """What is wrong where a rank has been in a collective for too long."""
    now_s = time.monotonic()
    last = [ledger.last(rank.calls) for rank in ranks if rank.said is None]
    if not any(call and call.number and now_s - call.started_s > timeout_s for call in last):
        return None
    if now_s - ranks[0].looked_s < _LOOK_S:  # a rank that has called and gone on is looked at again and again
        return None
    ranks[0].looked_s = now_s
    if (error := disagreement(ranks, listen=listen)) is not None:
        return error
    found = standing.late({rank.number: ledger.read(rank.calls) for rank in ranks}, timeout_s=timeout_s, now_s=now_s)
    if not found:
        return None
    where = _standing(ranks, listen)
    held = [each for each in found if ranks[each.rank].on_gpu or _waits(ranks[each.rank])]
    if not held:
        return None
    text = f"{standing.came_late(held[0], timeout_s)}\n{_listed(where)}"
    missing = held[0].missing
    return RankError(text, kind="waited", rank=missing[0] if len(missing) == 1 else None, standing=where)


def _waits(rank: Rank) -> bool:
    """Whether a rank that was asked for its stacks stands where it waits."""
    return rank.said is None and standing.is_waiting(rank.written_stacks())


def _failed(rank: Rank) -> bool:
    """Whether a rank has ended otherwise than by returning."""
    return rank.said is not None and not rank.returned


def _first(ranks: list[Rank]) -> Rank:
    """The rank that failed first: before those that only lost their connection to it."""

    def order(rank: Rank) -> tuple[bool, float]:
        kind, when, *rest = rank.said
        return kind == "raised" and rest[2] and bool(standing.CONSEQUENCE.search(rest[0])), when

    return min((rank for rank in ranks if _failed(rank)), key=order)


def _is_of_the_backend(rank: Rank) -> bool:
    """Whether a rank failed in a way that its messages with others may explain."""
    kind, _, *rest = rank.said
    if kind == "killed":
        return rest[0] in (signal.SIGABRT, signal.SIGSEGV)
    return kind == "raised" and rest[2]


def _headline(rank: Rank, kind: str, rest: list) -> str:
    """What happened to the rank that failed first."""
    who = f"rank {rank.number} of {rank.world_size}"
    if kind == "raised":
        return f"{who} raised {rest[0]}\n\n{standing.traceback_of(rest[1])}"
    if kind == "exited":
        return f"{who} left with exit code {rest[0]} before it returned."
    if kind == "killed":
        name = signal.Signals(rest[0]).name if rest[0] in signal.valid_signals() else f"signal {rest[0]}"
        why = " If nobody did so by hand, the machine ran out of memory." if name == "SIGKILL" else ""
        return f"{who} was killed by {name} before it returned.{why}"
    return f"{who} returned a {rest[0]} that cannot be sent back: {rest[1]}"


def _others(where: dict[int, str], first: Rank) -> list[str]:
    """Where the other ranks were."""
    others = {number: text for number, text in where.items() if number != first.number}
    return ["", "Meanwhile", _listed(others)] if others else []


def _listed(where: dict[int, str]) -> str:
    """A line a rank."""
    return "\n".join(f"    rank {number} {text}" for number, text in where.items())


def _standing(ranks: list[Rank], listen: Listen) -> dict[int, str]:
    """Where each rank stands, from its last word or from its stacks."""
    for _ in ranks:
        listen(ranks, 0.01)  # words that have come and were not taken yet
    before = {rank.number: rank.ask_for_stacks() for rank in ranks}
    until_s, sizes = time.monotonic() + _STACKS_S, {}
    while time.monotonic() < until_s:
        time.sleep(0.02)
        listen(ranks, 0.0)
        written, sizes = sizes, {rank.number: rank.stacks_size() for rank in ranks if _is_asked(rank, before)}
        if written == sizes and all(size > before[number] for number, size in sizes.items()):  # and all is written
            break
    return {rank.number: _where(rank, before[rank.number]) for rank in ranks}


def _is_asked(rank: Rank, before: dict[int, int | None]) -> bool:
    """Whether a rank that lives was asked for its stacks."""
    return before[rank.number] is not None and rank.said is None


def _where(rank: Rank, before: int | None) -> str:
    """Where one rank stands."""
    if rank.said is None:
        if before is None:
            return "does not say where it stands" if rank.ready else "was still starting"
        return standing.in_call(ledger.read(rank.calls), rank.written_stacks())
    kind, _, *rest = rank.said
    if kind == "returned":
        return "had returned"
    if kind == "raised":
        call, line, by_backend = ledger.last(rank.calls), rest[0], rest[2]
        if call and by_backend and standing.TOO_LONG.search(line):
            return f"in {standing.named(call)} at {standing.at(call.file, call.line)}"
        lost = by_backend and standing.CONSEQUENCE.search(line)
        return "lost its connection to another rank" if lost else f"raised {line.splitlines()[0]}"
    return {"exited": "had left", "killed": "was killed", "unreturnable": "had returned"}[kind]
