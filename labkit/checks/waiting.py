"""Exercise 13.1: who waits for whom, as the stacks of all ranks tell."""

import random
import re
from collections.abc import Callable, Mapping, Sequence

import torch

from labkit.checks.reports import COLLECTIVES, at_work, dice_from, scene, stack, within
from labkit.checks.shown import Shown, listed


def who_waits(dumps: Sequence[str]) -> dict[int, list[int]]:
    """For each rank that waits in a collective, the ranks that do not stand in the same one.

    Helpers in torch's file, whose names begin with an underscore, are no collectives: a rank in one is at work.
    """
    stands = {}
    for rank, dump in enumerate(dumps):
        for thread in dump.split("(most recent call first):\n")[1:]:
            innermost = thread.splitlines()[0]
            if "distributed_c10d.py" in innermost and " in _" not in innermost:
                stands[rank] = innermost.split()[-1]
    others = {rank: [r for r in range(len(dumps)) if stands.get(r) != op] for rank, op in stands.items()}
    return {rank: waited for rank, waited in others.items() if waited}


_TORCH = "…/torch/distributed/distributed_c10d.py"
# What is no wait in a collective, and looks like one: a function of that name elsewhere; torch's own helper at work in
# the same file, alone or with what it calls; other files of torch.
_DECOYS = {
    "own": [("utils/comm.py", "broadcast")],
    "packed": [("dataset.py", "__getstate__"), (_TORCH, "_object_to_tensor"), *within("broadcast_object_list")],
    "packing": [(_TORCH, "_object_to_tensor"), *within("all_gather_object")],
    "loading": [
        ("…/torch/utils/data/dataloader.py", "_try_get_data"),
        ("…/torch/utils/data/dataloader.py", "__next__"),
    ],
    "saving": [("…/torch/distributed/checkpoint/filesystem.py", "write_data")],
}


def _dumps(dice: random.Random, stand: Sequence[str]) -> tuple[list[str]]:
    """Dumps of ranks, each in a collective, at `work`, `gone`, or in what only looks like a collective."""
    made = scene(dice)
    frames = {op: within(op) for op in COLLECTIVES} | _DECOYS | {"work": at_work(made)}
    return ([stack(made, frames[each]) if each != "gone" else "" for each in stand],)


def waited_for(fn: Callable, dumps: Sequence[str]) -> object:
    """How who_waits is looked at: for every rank, the ranks that it waits for, in order."""
    found = fn(dumps)
    if not isinstance(found, Mapping) or not set(found) <= set(range(len(dumps))):
        return found
    return {rank: Shown.of(listed(found.get(rank, ())), dump) for rank, dump in enumerate(dumps)}


def same_waits(got: dict, expected: dict) -> str | None:
    """None where each rank waits for the right ones, otherwise a known mistake, and where ranks stand."""
    wrong = [rank for rank, right in expected.items() if got[rank] != right]
    if not wrong:
        return None
    dumps = [right.about for right in expected.values()]
    known = [cause for cause, mistaken in WAITING_MISTAKES if waited_for(mistaken, dumps) == got]
    misread = next((rank for rank in wrong if "[]" in (got[rank], expected[rank])), wrong[0])
    doubtful = set(re.findall(r"\d+", got[misread])) ^ set(re.findall(r"\d+", expected[misread]))
    ranks = [misread] if "[]" in (got[misread], expected[misread]) else sorted({misread, *map(int, doubtful)})
    places = [f"Rank {rank}: {_places(dumps[rank])}." for rank in ranks[:3] if rank < len(dumps)]
    return " ".join([*known[:1], *places])


def _places(dump: str) -> str:
    """The innermost line of each thread, without the words around it; or that there are none."""
    lines = [thread.splitlines()[0].strip() for thread in dump.split("(most recent call first):\n")[1:]]
    return "; ".join(lines) or "it had ended"


def waiting_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One at work; one gone; two collectives; each decoy; all in one; none; ranks at random."""
    dice = dice_from(rng)
    stands = [
        ["all_reduce", "work"],
        ["barrier", "gone", "barrier"],
        ["all_reduce", "broadcast", "all_reduce"],
        *(["all_reduce", decoy, "all_reduce"] for decoy in _DECOYS),
        ["broadcast"] * 4,
        ["work", "gone", "work"],
    ]
    names = [*COLLECTIVES, "work", "gone", *_DECOYS]
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


def innermost(dump: str, which: slice = slice(None), helpers: bool = False, file: str = "distributed_c10d.py") -> str:
    """The collective in which a thread stands, of those threads alone; nothing where there is none."""
    threads = dump.split("(most recent call first):\n")[1:]
    lines = [thread.splitlines()[0] for thread in threads[which]]
    inside = [line.split()[-1] for line in lines if file in line]
    return next((name for name in inside if helpers or not name.startswith("_")), "")


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
        _waits_by(lambda d: innermost(d, slice(1))),
    ),
    (
        "A helper in torch's file is no collective: its name begins with an underscore, and the rank is at work.",
        _waits_by(lambda d: innermost(d, helpers=True)),
    ),
    (
        "A rank waits in a collective where the innermost line of a thread, the first, is in torch's file.",
        _waits_by(_anywhere),
    ),
    (
        "torch has many files: only a line in distributed_c10d.py is a collective's.",
        _waits_by(lambda d: innermost(d, file="torch/")),
    ),
    ("A function of your own may have that name: the file must be torch's.", _waits_by(_by_name)),
    (
        "A rank does not wait for those that stand in the same collective.",
        _waits_by(innermost, lambda *_: True),
    ),
    ("A rank in another collective does not come either.", _waits_by(innermost, lambda _, other: not other)),
)
