"""Exercise 13.3: what the report of a fault tells."""

from collections.abc import Callable, Sequence

import torch

from labkit.aftermath import Left
from labkit.checks.reports import CAUSES, OWN_ERRORS, dice_from, practice
from labkit.checks.shown import Shown, whole
from labkit.checks.waiting import innermost


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
    idle = [rank for rank, left in enumerate(report) if left.stood and not innermost(left.stood)]
    return ("forked", -1) if len(idle) == len(report) else ("skipped", idle[0])


SIGNS = {
    "skipped": "One rank stands outside of any collective when the others run out of time: the launcher ends it (-15).",
    "differed": "Detected mismatch: each rank says what it runs itself, and the odd one out is at fault. The "
    "fingerprint that it gives of another may be garbled.",
    "uneven": "One rank has ended, with 0: it was through with its batches while the others began the next one.",
    "forked": "Either CUDA says so itself, or every rank stands in an operation, none in a collective, and none is "
    "through. (`popen_fork.py` alone proves nothing.)",
    "port": "EADDRINUSE: somebody else has the port. No rank did anything wrong.",
    "killed": "One rank was ended by a signal that is neither its own abort (-6) nor the launcher's (-15). It says "
    "nothing; what the others say is its echo.",
    "raised": "One rank ended with 1 and an error of its own, which is not gloo's: the others' errors are its echo.",
}


def diagnosed(fn: Callable, report: Shown) -> object:
    """How diagnose is used: on the report that a text like `reports.practice('port', seed=3)` stands for."""
    found = fn(report.about)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return found
    return found[0], Shown(whole(found[1]))


def same_diagnosis(got: object, expected: tuple[str, str]) -> str | None:
    """None where cause and rank are right, otherwise how the right ones show."""
    cause, rank = got
    if cause not in CAUSES:
        return f"{cause!r} is none of the seven causes: {', '.join(CAUSES)}."
    if cause != expected[0]:
        return f"This one is `{expected[0]}`. {SIGNS[expected[0]]}"
    if rank == "None":
        return "Where the fault is not one rank's, the rank is -1."
    if rank != expected[1]:
        return f"The cause is right, the rank is not. {SIGNS[expected[0]]}"
    return None


def report_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Ten reports of each cause, in turns, with each kind of own error; two hang above a fork, which is no fault."""
    dice = dice_from(rng)
    wanted = {("raised", i): error.partition("{")[0] for i, error in enumerate(OWN_ERRORS)}
    wanted |= {("skipped", i): "popen_fork.py" for i in range(2)}
    return [
        (_drawn(cause, dice.randrange(100_000), wanted.get((cause, i), "")),) for i in range(10) for cause in CAUSES
    ]


def _drawn(cause: str, seed: int, wanted: str) -> Shown:
    """The first report from `seed` on in which `wanted` is said or stands, told by the call that gives it."""
    while wanted not in "".join(left.said + left.stood for left in practice(cause, seed)):
        seed += 1
    return Shown.of(f"reports.practice({cause!r}, seed={seed})", practice(cause, seed))
