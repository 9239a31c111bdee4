"""The whole corpus through the grader, in a sandbox: scores, the same bytes each time, killed and resumed, memory.

    python tests/grading_corpus.py            every bar, on both lessons: half an hour on two cores
    python tests/grading_corpus.py --lesson 01 --students 20 --kills 5     a part of it

tests/test_grading_corpus.py does a part of this within `make test`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import corpus
from corpus import HandedIn

from labkit import course
from labkit.grading import grade, release, watch

SEED = 7
KILL_WITHIN_S = 0.5  # after the student whose result was waited for: how long one takes, so that any moment may be met


def class_in(folder: Path, made: Sequence[HandedIn]) -> Path:
    """A folder with these submissions."""
    for each in made:
        each.write(folder)
    return folder


def graded(folder: Path, out: Path, lesson: str, jobs: int = 1) -> list[dict]:
    """The rows of a class."""
    batch = grade.Batch(release=release.from_course(course.find(lesson)), seed=SEED)
    return grade.grade(folder, batch, out, jobs=jobs)


def misjudged(rows: Sequence[dict], made: Sequence[HandedIn]) -> list[str]:
    """A sentence for each score that is not the expected one, and for each that is not there."""
    found = {(row["student"], row["exercise"]): row for row in rows}
    said = []
    for each in made:
        for number, points in each.expected.items():
            row = found.get((each.student, number))
            if row is None or row["points"] != points or row["status"] == "ungraded":
                said.append(f"{each.student} {number}: {points} points expected, found {row}. {each.made}")
    return said


# ---- killed ---------------------------------------------------------------------------------------------------------


class Grader:
    """Starts graders, each a process that has loaded labkit already: a fork of one that waits here."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--wait"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, folder: Path, out: Path, lesson: str, jobs: int) -> int:
        """The process of a grader that has begun with a folder."""
        print(json.dumps([str(folder), str(out), lesson, jobs]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it; graders that run go on."""
        self._process.communicate()


def wait_for_orders() -> None:
    """In a Grader's process: fork a grader for each line of standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        folder, out, lesson, jobs = json.loads(line)
        pid = os.fork()
        if not pid:
            os.close(0)
            graded(Path(folder), Path(out), lesson, jobs)
            os._exit(0)
        print(pid, flush=True)


def kill_and_resume(folder: Path, out: Path, lesson: str, *, kills: int, jobs: int, seed: int = SEED) -> list[int]:
    """Grade a folder with a grader that is killed so often, each going on where the last stopped; then to the end.

    A moment is a number of students done and a time after that, so that moments are spread over the run on any machine:
    the first while boxes start, the last while tables are written. Returns how many students were done at each kill.
    """
    rng, n_students, grader = random.Random(seed), len(list(folder.iterdir())), Grader()
    moments = [0, *sorted(rng.randrange(n_students) for _ in range(kills - 2)), n_students][:kills]
    done = []
    try:
        for moment in moments:
            pid = grader.start(folder, out, lesson, jobs)
            _wait(lambda pid=pid, moment=moment: not watch.family([pid]) or _kept(out) >= moment)
            time.sleep(rng.uniform(0, KILL_WITHIN_S))
            everybody = watch.family([pid])
            if everybody:
                os.kill(pid, signal.SIGKILL)
            _wait(lambda everybody=everybody: not any(watch.family([each]) for each in everybody))
            done.append(_kept(out))
        last = grader.start(folder, out, lesson, jobs)
        _wait(lambda: not watch.family([last]))
    finally:
        grader.close()
    return done


def _kept(out: Path) -> int:
    """How many students' results are there; each must be whole, whenever one looks."""
    return len([json.loads(path.read_text()) for path in (out / "kept").glob("*.json")])


def _wait(until: object, limit_s: float = 600.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not until():
        assert time.monotonic() < ends_s, "a grader takes too long, or what it started has outlived it"
        time.sleep(0.02)


# ---- the whole ------------------------------------------------------------------------------------------------------


_LOOK = """
import os, sys, time
from labkit.grading import watch

whose, peak = int(sys.argv[1]), 0
while os.getppid() == whose:
    peak = max(peak, watch.memory_bytes(set(watch.family([whose])) - {os.getpid()}))
    print(peak, flush=True)
    time.sleep(0.3)
"""


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """What this process and all that it starts hold at most meanwhile, each shared page once; in a list of one."""
    found: list[int] = []
    with tempfile.TemporaryFile("w+") as said:
        looking = subprocess.Popen([sys.executable, "-c", _LOOK, str(os.getpid())], stdout=said)
        try:
            yield found
        finally:
            looking.kill()
            looking.wait()
            said.seek(0)
            found.append(max(map(int, said.read().split()[:-1]), default=0))


def measured(lesson: str, n_students: int, kills: int, place: Path) -> bool:
    """Every bar on one lesson, printed; whether all hold."""
    made = corpus.handed_in(lesson)[:n_students]
    folder, tables, wrong = class_in(place / "in", made), {}, []
    for name, jobs in (("first", 1), ("again", 2), ("once more", 4)):
        began_s, out = time.monotonic(), place / name
        with peak_bytes() as peak:
            rows = graded(folder, out, lesson, jobs)
        seconds = time.monotonic() - began_s
        tables[name] = (out / "grades.csv").read_bytes()
        wrong += misjudged(rows, made)
        print(f"lesson {lesson}, --jobs {jobs}: {len(made)} students in {seconds:.0f} s,", end=" ")
        print(f"{60 * len(made) / seconds:.0f} a minute; at most {peak[0] / 1e9:.2f} GB in all", flush=True)
    done = kill_and_resume(folder, place / "killed", lesson, kills=kills, jobs=2)
    tables["killed"] = (place / "killed" / "grades.csv").read_bytes()
    same = len(set(tables.values())) == 1
    print(f"lesson {lesson}: {len(made) * len(made[0].expected)} scores, thrice; {len(wrong)} not as expected")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"lesson {lesson}: killed {len(done)} times, with {', '.join(map(str, done))} students done; then to the end")
    print(f"lesson {lesson}: grades.csv of these {len(tables)} {'is the same, byte by byte' if same else 'DIFFERS'}")
    return same and not wrong


def main() -> int:
    """What the command line asks for; 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lesson", choices=("01", "14"), help="one lesson alone")
    parser.add_argument("--students", type=int, default=corpus.N_STUDENTS, help="of each lesson (default: all 100)")
    parser.add_argument("--kills", type=int, default=30, help="of the grader, of each lesson (default: 30)")
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.wait:
        wait_for_orders()
        return 0
    held = True
    for lesson in [asked.lesson] if asked.lesson else ["01", "14"]:
        with tempfile.TemporaryDirectory() as place:
            held &= measured(lesson, asked.students, asked.kills, Path(place))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
