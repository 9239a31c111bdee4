"""Baseline and submission in turns on this machine: how many times faster, how sure, and what else was seen."""

import hashlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit import course
from labkit.capstone.changes import Changes, changes
from labkit.capstone.recorded import Record, lay_out_recorded, made_again
from labkit.capstone.running import LIMIT_S, Outcome, once, script_of, test_accuracy
from labkit.capstone.task import Task

BASELINE_SHA256 = "2c56c7c464513c230ec230a4ef9a05305ed644699cd5a90c6e268bbfc50ae6a2"  # of datasets/capstone/train.py
_DRAWS = 10_000
_HIDDEN = 1 << 60  # what numbers the classes anew: a script that knew it could undo it
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median over pairs, and the interval of 95 % of bootstrap samples' medians."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What was found of a submission. audit: the run whose validation labels were wrong, class by class."""

    name: str
    target: float
    n_validation: int
    baseline: tuple[Outcome, ...]
    submission: tuple[Outcome, ...]
    audit: Outcome
    record: Record
    changes: Changes
    baseline_is_ours: bool

    @property
    def ratio(self) -> Ratio:
        """How many times longer the baseline takes to the same validation accuracy, by the wall clock.

        A pair whose submission did not reach it counts as 0; one whose baseline did not, not at all.
        """
        return bootstrapped(self._ratios("wall_s"))

    @property
    def cpu_ratio(self) -> Ratio:
        """The same by the processor's time, which other programs on the machine disturb less."""
        return bootstrapped(self._ratios("cpu_s"))

    def _ratios(self, clock: str) -> list[float]:
        pairs = zip(self.baseline, self.submission, strict=True)
        return [getattr(a, clock) / getattr(b, clock) if b.reached else 0.0 for a, b in pairs if a.reached]

    @property
    def test(self) -> tuple[float, float]:
        """Mean test accuracy of baseline and submission; a run that failed has none."""
        return test_accuracy(self.baseline), test_accuracy(self.submission)


def bootstrapped(ratios: Sequence[float]) -> Ratio:
    """The median, and where the middle 95 % of the medians of resampled ratios lie; zeros where there are none.

    With five ratios that is from the least to the greatest, which holds the true median 15 times of 16 (93.75 %).
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if not ratios:
        return Ratio(value=0.0, low=0.0, high=0.0)
    values = np.asarray(ratios)
    drawn = np.random.default_rng(0).integers(len(values), size=(_DRAWS, len(values)))
    low, high = np.percentile(np.median(values[drawn], axis=1), [2.5, 97.5], method="inverted_cdf")
    return Ratio(value=float(np.median(values)), low=float(low), high=float(high))


def baseline_script() -> Path:
    """The slow script of the course."""
    return course.root() / "datasets" / "capstone" / "train.py"


def is_ours(script: Path) -> bool:
    """Whether a baseline is the one that labkit was made with."""
    return hashlib.sha256(script.read_bytes().replace(b"\r\n", b"\n")).hexdigest() == BASELINE_SHA256


def contest(
    task: Task, submission: Path, *, baseline: Path, pairs: int, say: Say = print, limit_s: float = LIMIT_S
) -> Contest:
    """Run both scripts in turns, `pairs` times each, then make one run again, and audit one. Seconds to many minutes.

    Whoever begins changes from pair to pair. ValueError: no pair. CourseError: no script, or too large a folder.
    """
    if pairs < 1:
        raise ValueError(f"{pairs} pairs compare nothing")
    script, hidden = script_of(submission), [secrets.randbelow(_HIDDEN) for _ in range(pairs + 2)]
    found: dict[str, list[Outcome]] = {"baseline": [], "submission": []}
    with tempfile.TemporaryDirectory(prefix="labkit-capstone-") as folder:
        place = Path(folder)
        recordable = lay_out_recorded(submission, place / "submission-0")
        for k in range(pairs):
            for who in ("baseline", "submission")[:: 1 if k % 2 == 0 else -1]:
                code = submission if who == "submission" else baseline
                found[who].append(
                    once(task, code, place / f"{who}-{k}", seed=k, secret=hidden[k], names=hidden[-1], limit_s=limit_s)
                )
                if k or who == "baseline":  # the first of the submission's is made again from its record
                    shutil.rmtree(place / f"{who}-{k}")
                say(f"pair {k + 1}: {who} {told(found[who][-1])}")
        record = made_again(place / "submission-0") if recordable else Record(same=None, said="It needs git.")
        say(record.said)
        last = {"seed": pairs, "secret": hidden[pairs], "names": hidden[-1], "misname": True}
        audit = once(task, submission, place / "audit", **last, limit_s=limit_s)
    return Contest(
        name=submission.name if submission.name != "train.py" else submission.absolute().parent.name,
        target=task.target,
        n_validation=len(task.validation.labels),
        baseline=tuple(found["baseline"]),
        submission=tuple(found["submission"]),
        audit=audit,
        record=record,
        changes=changes(_text(baseline), _text(script)),
        baseline_is_ours=is_ours(baseline),
    )


def _text(script: Path) -> str:
    return script.read_text(encoding="utf-8", errors="replace")


def told(one: Outcome) -> str:
    """A run in a line."""
    if one.why:
        return f"failed after {one.wall_s:.1f} s: {one.why.splitlines()[-1]}"
    said = "" if one.reached else ", which is not enough"
    return f"{one.wall_s:.1f} s ({one.cpu_s:.1f} s of processor), validation {one.validation:.3f}{said}"
