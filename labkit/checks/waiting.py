"""Exercises 13.1 to 13.3: who waits for whom, where records part, and what a report tells."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from labkit.aftermath import Left
from labkit.checks.reports import CAUSES, COLLECTIVES, at_work, dice_from, made_up, scene, stack, within

Entry = dict[str, object]


def who_waits(dumps: Sequence[str]) -> dict[int, list[int]]:
    """For each rank that waits in a collective, the ranks that do not stand in the same one."""
    stands = {}
    for rank, dump in enumerate(dumps):
        for thread in dump.split("(most recent call first):\n")[1:]:
            innermost = thread.splitlines()[0]
            if "distributed_c10d.py" in innermost:
                stands[rank] = innermost.split()[-1]
    others = {rank: [r for r in range(len(dumps)) if stands.get(r) != op] for rank, op in stands.items()}
    return {rank: waited for rank, waited in others.items() if waited}


def _dumps(dice: random.Random, stand: Sequence[str]) -> tuple[list[str]]:
    """Dumps of ranks, each in a collective, at work, `gone`, or in what only looks like a collective (`decoy`)."""
    made = scene(dice)
    decoys = (
        [("utils/comm.py", dice.choice(list(COLLECTIVES)))],
        [("…/pickle.py", "dumps"), *within("all_gather_object")],
    )
    frames = {op: within(op) for op in COLLECTIVES}
    frames |= {"work": at_work(made), "own": decoys[0], "pickling": decoys[1]}
    return ([stack(made, frames[each]) if each != "gone" else "" for each in stand],)


def waited_for(fn: Callable, dumps: Sequence[str]) -> object:
    """How who_waits is looked at: for every rank, in words, whom it waits for."""
    found = fn(dumps)
    if not isinstance(found, Mapping):
        return found
    return {rank: _ranks(found.get(rank, ())) for rank in range(len(dumps))}


def _ranks(ranks: Iterable) -> str:
    """`ranks 0, 2`, in order; `nobody`."""
    numbers = sorted(map(int, ranks))
    return "ranks " + ", ".join(map(str, numbers)) if numbers else "nobody"


def waiting_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One at work; one gone; two collectives; an own function of that name; pickling; all in one; ranks at random."""
    dice = dice_from(rng)
    stands = [
        ["all_reduce", "work"],
        ["barrier", "gone", "barrier"],
        ["all_reduce", "broadcast", "all_reduce"],
        ["all_reduce", "own", "all_reduce"],
        ["pickling", "barrier"],
        ["broadcast"] * 4,
        ["work", "gone", "work"],
    ]
    names = [*COLLECTIVES, "work", "gone", "own", "pickling"]
    for _ in range(20):
        usual, size = dice.choice(list(COLLECTIVES)), dice.randint(3, 8)
        stands.append([usual if dice.random() < 0.7 else dice.choice(names) for _ in range(size)])
    return [_dumps(dice, stand) for stand in stands]


def _waits_by(finds: Callable[[str], str | None], waited: Callable = lambda mine, other: mine != other) -> Callable:
    """`who_waits`, with another way to find a rank's collective, or another idea of whom it waits for."""

    def mistaken(dumps: Sequence[str]) -> dict[int, list[int]]:
        stands = [finds(dump) for dump in dumps]
        found = {
            rank: [r for r, other in enumerate(stands) if r != rank and waited(op, other)]
            for rank, op in enumerate(stands)
            if op
        }
        return {rank: waited for rank, waited in found.items() if waited}

    return mistaken


def _innermost(dump: str, which: slice = slice(None)) -> str | None:
    """The collective in which a thread stands, of those threads alone."""
    threads = dump.split("(most recent call first):\n")[1:]
    lines = [thread.splitlines()[0] for thread in threads[which]]
    return next((line.split()[-1] for line in lines if "distributed_c10d.py" in line), None)


def _anywhere(dump: str) -> str | None:
    """The collective of any frame in torch's file, innermost or not."""
    return next((line.split()[-1] for line in dump.splitlines() if "distributed_c10d.py" in line), None)


def _by_name(dump: str) -> str | None:
    """The collective by the name of the innermost function, whosever it is."""
    lines = [thread.splitlines()[0] for thread in dump.split("(most recent call first):\n")[1:]]
    return next((line.split()[-1] for line in lines if line.split()[-1] in COLLECTIVES), None)


WAITING_MISTAKES = (
    (
        "A dump may hold several threads: look at the innermost line of each.",
        _waits_by(lambda d: _innermost(d, slice(1))),
    ),
    (
        "A rank waits in a collective where the innermost line of a thread, the first, is in torch's file.",
        _waits_by(_anywhere),
    ),
    ("A function of your own may have that name: the file must be torch's.", _waits_by(_by_name)),
    (
        "A rank does not wait for those that stand in the same collective.",
        _waits_by(_innermost, lambda *_: True),
    ),
    ("A rank in another collective does not come either.", _waits_by(_innermost, lambda _, other: other is None)),
)


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


def _parts_by(*, wants: str = "first", oldest: bool = False, p2p: bool = False) -> Callable:
    """`parted` with a mistake: reports others than the minority, begins with the oldest number, counts messages."""

    def mistaken(records: Sequence[Sequence[Entry]]) -> tuple[int, list[int]]:
        called = [
            {e["collective_seq_id"]: (e["profiling_name"], e["input_sizes"]) for e in record if p2p or not e["is_p2p"]}
            for record in records
        ]
        first = 1 if oldest else max(min(each, default=1) for each in called)
        for number in range(first, max(max(each, default=0) for each in called) + 1):
            at = [each.get(number) for each in called]
            usual = max(at, key=at.count)
            apart = [rank for rank, each in enumerate(at) if each != usual]
            if wants == "lengths" and None in at:
                return number, [rank for rank, each in enumerate(at) if each is None]
            if apart and wants != "lengths":
                return number, apart
        return 0, []

    return mistaken


PARTED_MISTAKES = (
    ("A record holds the latest entries only: what one has forgotten, it may have called.", _parts_by(oldest=True)),
    ("Messages from rank to rank (is_p2p) have no number of their own: leave them out.", _parts_by(p2p=True)),
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
    """How parted is looked at: the number, and the ranks in words."""
    found = fn(records)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return found
    return {"collective": str(found[0]), "apart": _ranks(found[1])}


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


def diagnose(report: Sequence[Left]) -> tuple[str, int]:
    """What went wrong, one of CAUSES, and the rank at fault, -1 where it is not one rank's."""
    said = " ".join(left.said for left in report)
    if "EADDRINUSE" in said:
        return "port", -1
    if "forked subprocess" in said:
        return "forked", -1
    if "Detected mismatch" in said:
        mine = [left.said.partition(" is running collective: ")[2].split("TensorDtypes")[0] for left in report]
        usual = max(mine, key=mine.count)
        return "differed", next(rank for rank, each in enumerate(mine) if each != usual)
    for rank, left in enumerate(report):
        if left.ended < 0 and left.ended not in (-6, -15):
            return "killed", rank
        if left.ended == 1 and "gloo/transport" not in left.said:
            return "raised", rank
        if left.ended == 0:
            return "uneven", rank
    idle = [rank for rank, left in enumerate(report) if left.stood and _innermost(left.stood) is None]
    return ("forked", -1) if len(idle) == len(report) else ("skipped", idle[0])


SIGNS = {
    "skipped": "One rank stands outside of any collective when the others run out of time: the launcher ends it (-15).",
    "differed": "Detected mismatch: each rank says what it runs itself, and the odd one out is at fault. What a rank "
    "says of another may be garbled.",
    "uneven": "One rank has ended, with 0: it was through with its batches while the others began the next one.",
    "forked": "Either CUDA says so itself, or every rank stands in an operation, none in a collective, and none is "
    "through. (`popen_fork.py` alone proves nothing.)",
    "port": "EADDRINUSE: somebody else has the port. No rank did anything wrong.",
    "killed": "One rank was ended by a signal that is neither its own abort (-6) nor the launcher's (-15). It says "
    "nothing; what the others say is its echo.",
    "raised": "One rank ended with 1 and an error of its own, which is not gloo's: the others' errors are its echo.",
}


def same_diagnosis(got: object, expected: tuple[str, int]) -> str | None:
    """None where cause and rank are right, otherwise how the right ones show."""
    cause, rank = got
    if cause not in CAUSES:
        return f"{cause!r} is none of the seven causes: {', '.join(CAUSES)}."
    if cause != expected[0]:
        return f"This one is `{expected[0]}`. {SIGNS[expected[0]]}"
    if rank != expected[1]:
        return f"The cause is right, the rank is not. {SIGNS[expected[0]]}"
    return None


def report_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Ten reports of each cause, in turns, the first ones of ranks that were forked: which alone is no fault."""
    dice = dice_from(rng)
    return [(made_up(cause, dice, launcher="fork" * (i < 2))[0],) for i in range(10) for cause in CAUSES]
