"""Exercise 13.2: the first collective in which flight records part."""

import random
from collections.abc import Callable, Sequence

import torch

from labkit.checks.reports import COLLECTIVES, dice_from
from labkit.checks.shown import Shown, listed, whole

Entry = dict[str, object]


def parted(records: Sequence[Sequence[Entry]]) -> tuple[int, list[int]]:
    """The first collective that not all ranks called alike, and the ranks that are not with the majority."""
    called = [
        {e["collective_seq_id"]: (e["profiling_name"], e["input_sizes"]) for e in record if not e["is_p2p"]}
        for record in records
    ]
    first = max(min(each, default=1) for each in called)
    for number in range(first, max(max(each, default=0) for each in called) + 1):
        at = [each.get(number) for each in called]
        usual = max(at, key=at.count)
        if at.count(usual) < len(at):
            return number, [rank for rank, each in enumerate(at) if each != usual]
    return 0, []


def _parts_by(
    *, wants: str = "first", oldest: bool = False, p2p: bool = False, state: bool = False, nothing: str = "counts"
) -> Callable:
    """`parted` with a mistake: reports others than the minority, begins with the oldest number, counts messages.

    state: it compares that too. nothing: what it makes of ranks that called none, which `counts`, has `no vote` on what
    is usual, or is `skipped`.
    """

    def mistaken(records: Sequence[Sequence[Entry]]) -> tuple[int, list[int]]:
        keys = ("profiling_name", "input_sizes", *(("state",) if state else ()))
        called = [
            {e["collective_seq_id"]: tuple(e[key] for key in keys) for e in record if p2p or not e["is_p2p"]}
            for record in records
        ]
        first = 1 if oldest else max(min(each, default=1) for each in called)
        for number in range(first, max(max(each, default=0) for each in called) + 1):
            at = [each.get(number) for each in called]
            voting = at if nothing == "counts" else [each for each in at if each is not None]
            usual = max(voting, key=voting.count)
            apart = [rank for rank, each in enumerate(at) if each != usual and (nothing != "skipped" or each)]
            if wants == "lengths" and None in at:
                return number, [rank for rank, each in enumerate(at) if each is None]
            if apart and wants != "lengths":
                return number, apart
        return 0, []

    return mistaken


_NOTHING = "To have called nothing counts too: as something else, and in the question what most did."
PARTED_MISTAKES = (
    ("A record holds the latest entries only: what one has forgotten, it may have called.", _parts_by(oldest=True)),
    ("Messages from rank to rank (is_p2p) have no number of their own: leave them out.", _parts_by(p2p=True)),
    ("Compare what was called, name and sizes: `state` says only how far it got.", _parts_by(state=True)),
    (_NOTHING, _parts_by(nothing="no vote")),
    (_NOTHING, _parts_by(nothing="skipped")),
    ("A rank may be as far as the others and have called something else.", _parts_by(wants="lengths")),
)


def _entry(number: int, op: str, sizes: list, state: str = "completed", p2p: bool = False) -> Entry:
    """An entry of a flight record, without the parts that this exercise does not need."""
    return {"collective_seq_id": number, "profiling_name": op, "input_sizes": sizes, "is_p2p": p2p, "state": state}


def _records(dice: random.Random, size: int, n: int, fault: str, *, forgot: bool = False, p2p: bool = False) -> tuple:
    """Records of ranks; `fault` is what one of them does at some number."""
    backend = dice.choice(["nccl", "gloo"])
    plan = [
        (f"{backend}:{dice.choice(list(COLLECTIVES))}", [[dice.randint(1, 9), dice.randint(1, 9)]]) for _ in range(n)
    ]
    odd, at = dice.randrange(size), dice.randint(n // 2 + 1, n)
    records = []
    for rank in range(size):
        mine = list(plan)
        if rank == odd:
            mine = _gone_wrong(mine, at, fault)
        made = [_entry(i, *each) for i, each in enumerate(mine, 1)]
        if made and fault != "none":
            made[-1]["state"] = "scheduled"
        if forgot:
            made = made[dice.randint(0, n // 2) :]
        if p2p:
            made.insert(dice.randint(0, len(made)), _entry(dice.randint(1, n), f"{backend}:send 0->1", [[3]], p2p=True))
        records.append(made)
    return (records,)


def _gone_wrong(plan: list, at: int, fault: str) -> list:
    """What the odd rank calls in place of the plan."""
    op, sizes = plan[at - 1]
    if fault == "skips":
        return [*plan[: at - 1], *plan[at:]] if at < len(plan) and plan[at] != plan[at - 1] else plan[: at - 1]
    if fault == "shape":
        return [*plan[: at - 1], (op, [[sizes[0][0] + 1, sizes[0][1]]]), *plan[at:]]
    if fault == "op":
        return [*plan[: at - 1], (f"{op.split(':')[0]}:reduce", sizes), *plan[at:]]
    return {"stops": plan[: at - 1], "more": [*plan, plan[0]], "never": [], "none": plan}[fault]


def parted_at(fn: Callable, records: Sequence) -> object:
    """How parted is looked at: the number, and the ranks in order."""
    found = fn(records)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return found
    return Shown.of(whole(found[0]), records), Shown(listed(found[1]))


def same_parting(got: tuple, expected: tuple) -> str | None:
    """None where number and ranks are right, otherwise a known mistake, and what the ranks called there."""
    if got == expected:
        return None
    records, number = expected[0].about, expected[0] if expected[0] != "0" else got[0]
    known = [cause for cause, mistaken in PARTED_MISTAKES if parted_at(mistaken, records) == got]
    known += ["The lowest number, of those that no record has forgotten, at which one rank is not like most."]
    return f"{known[0]} At {number}: {_called(records, int(number))}." if number.isdecimal() else known[0]


def _called(records: Sequence[Sequence[Entry]], number: int) -> str:
    """What each rank called at a number: `ranks [0, 2] gloo:all_reduce [[3, 4]]; ranks [1] nothing`."""
    by_call: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        own = [e for e in record if e["collective_seq_id"] == number and not e["is_p2p"]]
        by_call.setdefault(f"{own[0]['profiling_name']} {own[0]['input_sizes']}" if own else "nothing", []).append(rank)
    return "; ".join(f"ranks {ranks} {call}" for call, ranks in by_call.items())


def parted_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Each fault small; records that forgot their beginning; with messages between two; then at random."""
    dice = dice_from(rng)
    faults = ("stops", "shape", "op", "skips", "more", "none")
    cases = [_records(dice, 3, 3, fault) for fault in (*faults, "never")]
    cases += [_records(dice, 4, 12, fault, forgot=True) for fault in faults]
    cases += [_records(dice, 4, 6, fault, p2p=True) for fault in faults]
    return cases + [
        _records(dice, dice.randint(3, 8), 20, dice.choice(faults), forgot=True, p2p=True) for _ in range(20)
    ]
