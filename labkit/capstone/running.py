"""One run of one script: in a folder of its own, timed from start to end, and judged by what its `predict` says."""

import secrets
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.capstone.children import Ended, run_child
from labkit.capstone.task import Task, hand_out, misnamed, numbering
from labkit.course import CourseError

LIMIT_S = 900.0
PREDICT_LIMIT_S = 120.0
MOST_BYTES = 16 << 20  # of a submission's folder
SLACK = 2  # pictures on which two ways of rounding may disagree


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run. Seconds are of the training process; shares are of pictures told right; why: why there are none.

    predict_cpu_s: what predict took; drew: files of pictures that the script drew for itself; agreed: how many of the
    validation pictures are told by the wrong name that is handed out in the audit.
    """

    wall_s: float
    cpu_s: float
    validation: float = 0.0
    test: float = 0.0
    reached: bool = False
    why: str = ""
    left: bool = False
    predict_cpu_s: float = 0.0
    drew: tuple[str, ...] = ()
    agreed: int = 0


def test_accuracy(runs: Iterable[Outcome]) -> float:
    """The mean share of the test pictures told right, of the runs that told them; 0 where none did."""
    shares = [one.test for one in runs if not one.why]
    return statistics.fmean(shares) if shares else 0.0


def script_of(submission: Path) -> Path:
    """The train.py of a submission, which is that file or a folder with it. CourseError: there is none, or too much."""
    script = submission / "train.py" if submission.is_dir() else submission
    if not script.is_file():
        raise CourseError(f"There is no {script}: a submission is a train.py, or a folder with one.")
    if submission.is_dir() and sum(p.stat().st_size for p in submission.rglob("*") if p.is_file()) > MOST_BYTES:
        raise CourseError(f"{submission} holds more than {MOST_BYTES >> 20} MiB: hand in code only.")
    return script


def lay_out(submission: Path, place: Path) -> None:
    """Copy a submission to place/capstone/, in a folder that looks like a course, so that its record can be kept."""
    (place / "solutions").mkdir(parents=True)
    (place / "solutions" / ".keep").touch()
    (place / "labkit").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
    if submission.is_dir():
        shutil.copytree(submission, place / "capstone", ignore=shutil.ignore_patterns("__pycache__", ".git"))
    else:
        (place / "capstone").mkdir()
        shutil.copyfile(submission, place / "capstone" / "train.py")


def once(
    task: Task,
    submission: Path,
    place: Path,
    *,
    seed: int,
    secret: int,
    names: int = 0,
    misname: bool = False,
    more: Sequence[str] = (),
    limit_s: float = LIMIT_S,
) -> Outcome:
    """Run a script in a new folder and judge it. seed: what it is told; secret: of the numbering of the classes.

    names: of the wrong names for validation pictures, which are handed out where misname is set.
    """
    if not (place / "capstone").exists():
        lay_out(submission, place)
    numbers = numbering(task, secret)
    wrong = misnamed(task, numbers, names)
    hand_out(task, place / "data", numbers, validation=wrong if misname else None)
    ended = run_child(
        command(task, place, seed, more), folder=place, home=place / "home", limit_s=limit_s, runs=place / "runs"
    )
    drew = tuple(sorted(path.name for path in (place / "home").rglob("*.npz")))
    told = {"wall_s": ended.wall_s, "cpu_s": ended.cpu_s, "left": ended.left, "drew": drew}
    shutil.rmtree(place / "home")
    if ended.why:
        return Outcome(**told, why=ended.why)
    with _without_labels(place / "data", place.parent / secrets.token_hex(16)):
        return _judged(task, place, numbers, wrong, told, secret)


@contextmanager
def _without_labels(data: Path, aside: Path) -> Iterator[None]:
    """Inside, the data are under a name that `predict` does not know; afterwards a run can be made again with them."""
    data.rename(aside)
    try:
        yield
    finally:
        aside.rename(data)


def command(task: Task, place: Path, seed: int, more: Sequence[str] = ()) -> list[str]:
    """What runs the script."""
    given = {"--data": place / "data", "--out": place / "out", "--target": task.target, "--seed": seed}
    words = [word for name, value in given.items() for word in (name, str(value))]
    return [sys.executable, "capstone/train.py", *words, *more]


def _judged(task: Task, place: Path, numbers: np.ndarray, wrong: np.ndarray, told: dict, secret: int) -> Outcome:
    """The outcome of a run whose process ended well."""
    said, asked = _predicted(task, place, secret)
    told["predict_cpu_s"] = asked.cpu_s
    if asked.why:
        return Outcome(**told, why=f"predict: {asked.why}")
    n = len(task.validation.labels)
    if said.shape != (n + len(task.test.labels),):
        return Outcome(**told, why=f"predict gave an array of shape {said.shape} for {n + len(task.test.labels)}.")
    truth = numbers[task.validation.labels]
    right = int((said[:n] == truth).sum())
    test = float((said[n:] == numbers[task.test.labels]).mean())
    told |= {"reached": right + SLACK >= task.target * n, "agreed": int((said[:n] == wrong).sum())}
    return Outcome(**told, validation=right / n, test=test)


def _predicted(task: Task, place: Path, secret: int) -> tuple[np.ndarray, Ended]:
    """What the script says of the validation and test pictures, which it gets in one array and in no order."""
    pixels = np.concatenate([task.validation.pixels, task.test.pixels])
    order = np.random.default_rng(secret + 2).permutation(len(pixels))
    asking = place / "asking"
    asking.mkdir(exist_ok=True)
    np.save(asking / "pictures.npy", pixels[order])
    words = ("capstone/train.py", str(place / "out"), str(asking / "pictures.npy"), str(asking / "answer.npy"))
    asked = run_child(
        [sys.executable, "-m", "labkit.capstone.predicting", *words],
        folder=place,
        home=place / "asking" / "home",
        limit_s=PREDICT_LIMIT_S,
    )
    answer = _answer(asking / "answer.npy")
    said = np.full(answer.shape, -1.0)
    if answer.shape == order.shape:
        said[order] = answer
    shutil.rmtree(asking)
    return said, asked


def _answer(path: Path) -> np.ndarray:
    """The array in a file; an empty one where there is none of numbers."""
    try:
        with path.open("rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return np.zeros(0)
    return found if found.dtype.kind in "iufb" else np.zeros(0)
