"""What nobody can try without a GPU, in one go: `make gpu-check`, or `python -m labkit.gpu_check` where the course is.

Made for a machine with a GPU and torch and without Jupyter. It runs the tests that need a GPU, then every lesson as a
program, records what each measured under datasets/recorded/, and ends within eight minutes with a table. Without a GPU
it does the same on the CPU, which is how its own path is tested. The exit code is 0 if every test passed, every lesson
came to its end and no claim was refuted.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from labkit import course, hardware, recording, repro
from labkit.program import INTERRUPTED
from labkit.run import run
from labkit.show import lenient_streams, table

LIMIT_S = 480.0  # for all of it
_TESTS_S, _LESSON_S = 120.0, 180.0  # for the tests, and for one lesson: nobody may use up the time of the others
_GRACE_S = 12.0  # what it can take to end a lesson that does not want to end
_MARKED = re.compile(r"^[^#\n]*pytest\.mark\.gpu", re.MULTILINE)
_NEEDED = ("torch", "numpy", "matplotlib", "tqdm", "jaxtyping", "beartype", "cloudpickle", "pytest")
Row = tuple[str, str, str, str]


def main() -> int:
    """Run all of it; returns the exit code."""
    lenient_streams()
    begin = time.perf_counter()
    try:
        course.root()
        record = repro.budget() == "full"
        if record:
            recording.refuse_unrecordable()
        lessons = course.lessons()
    except course.CourseError as error:
        print(error, file=sys.stderr)
        return 2
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        print(f"This needs {', '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    print(f"{hardware.machine().name}, tier {hardware.tier()}, {'recording' if record else 'smoke budget, unrecorded'}")
    with tempfile.TemporaryDirectory() as folder:
        _set_environment(Path(folder))
        rows, codes = [], []
        with contextlib.suppress(KeyboardInterrupt):
            for work in (_tests, *(partial(_lesson, lesson, record) for lesson in lessons)):
                row, code = work(LIMIT_S - _GRACE_S - (time.perf_counter() - begin))
                rows.append(row)
                codes.append(code)
    table(["", "tier", "claims held", "seconds"], rows, caption=f"In {time.perf_counter() - begin:.0f} s:")
    if len(rows) <= len(lessons):
        print("Interrupted: what is not in the table was not run.", file=sys.stderr)
        return 130
    return 1 if any(codes) else 0


def _set_environment(folder: Path) -> None:
    """What tests and lessons inherit: a refuted claim is counted and does not stop its lesson, no bars, nobody's files.

    The cache needs platformdirs to find its place; without it the data are drawn into a folder for this run.
    """
    os.environ |= {"LABKIT_STRICT": "0", "LABKIT_QUIET": "1", "LABKIT_HOME": str(folder / "home")}
    if find_spec("platformdirs") is None:
        os.environ.setdefault("LABKIT_CACHE", str(folder / "cache"))


def _tests(left_s: float) -> tuple[Row, int]:
    """Run the tests that are marked gpu; the files without one are not even imported, for they may need Jupyter."""
    begin = time.perf_counter()
    folder = course.root() / "tests"
    files = sorted(path for path in folder.glob("test_*.py") if _MARKED.search(path.read_text(errors="replace")))
    if not files:
        return ("tests", hardware.tier(), "there are none", "0.0"), 0
    marked = ["-m", "gpu or gpu2", "-W", "default"]  # what another version of torch warns of is no fault of ours
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "jaxtyping", *marked, *map(str, files)]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # nor is what else may be installed there
    code = _code_of(command, alone, min(left_s, _TESTS_S))
    how = {0: "passed", None: "ended at their limit"}.get(code, f"failed: pytest's exit code {code}")
    if code == 0 and hardware.tier() == "cpu":
        how = "skipped: they need a GPU"
    return ("tests", hardware.tier(), how, f"{time.perf_counter() - begin:.1f}"), 1 if code is None else code


def _code_of(command: list[str], env: dict[str, str], limit_s: float) -> int | None:
    """The exit code of a command; None where its time was up, and then whatever it has started is ended too."""
    group = {"start_new_session": True} if os.name != "nt" else {}
    with subprocess.Popen(command, cwd=course.root(), env=env, **group) as running:
        try:
            return running.wait(max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(OSError):
                os.killpg(running.pid, signal.SIGKILL) if group else running.kill()


def _lesson(lesson: course.Lesson, record: bool, left_s: float) -> tuple[Row, int]:
    """Run one lesson, in what is left of the time at most; its row and its exit code."""
    if left_s < 1:
        return (lesson.name, hardware.tier(), "not run: no time was left", "0.0"), 1
    print(f"\n---- {lesson.name}", flush=True)
    outcome = run(lesson, record=record, limit_s=min(left_s, _LESSON_S))
    if outcome.code == INTERRUPTED:
        raise KeyboardInterrupt
    made = outcome.claims
    held = f"{made.get('held', 0)} of {sum(made.values())}"
    more = [f"{made[status]} {status}" for status in ("undecided", "refuted") if made.get(status)]
    figures = outcome.why or ", ".join([held, *more])
    return (lesson.name, hardware.tier(), figures, f"{outcome.seconds:.1f}"), outcome.code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
