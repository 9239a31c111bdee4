"""How much faster a class is graded than by `nbgrader autograde`: the same notebooks, the same checks, interleaved.

    pip install nbgrader==0.9.6     (in an environment of its own)
    python tests/grading_peers.py --nbgrader PATH/TO/bin/nbgrader [--lesson 01] [--lean]

Each check cell of the lesson is made an autograder cell: its asserts ask `labkit.checker.verdict` for the inputs of
class and for those of another seed, which is what `labkit grade` does. nbgrader runs them in a kernel of this Python.
With --lean the notebooks have nothing but the cells that the answers need, which spares nbgrader the lesson's
demonstrations. Both sides start from nothing in each round and do one student after the other; labkit
has the whole class, nbgrader its first few students, for each takes it as long as the last.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import corpus
import grading_corpus

from labkit import build, checks, course
from labkit.grading import cells, release, submission

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER
ASSERT = """import torch
from labkit.checker import verdict
from labkit.checks import exercises

[_one] = [each for each in exercises() if each.number == "{number}"]
assert verdict({name}, _one).status == "passed"
assert verdict({name}, _one, generator=torch.Generator().manual_seed({seed})).status == "passed"
"""
_GRADED = {"grade": True, "solution": False, "locked": True, "task": False, "schema_version": 3, "cell_type": "code"}


def marked(notebook: dict, numbers: Sequence[str], asserts: bool) -> dict:
    """A notebook whose check cells are nbgrader's; asserts: with the tests in them, as the instructor has them."""
    named = {each.name: each for each in checks.exercises() if each.number in numbers}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        one = named.get(source.removeprefix("check(").rstrip(")\r\n ")) if source.startswith("check(") else None
        if one:
            told = _GRADED | {"points": one.points, "grade_id": f"test-{one.name}"}
            cell["metadata"] = {"nbgrader": told}
            if asserts:
                cell["source"] = ASSERT.format(number=one.number, name=one.name, seed=grading_corpus.SEED)
    return notebook


def only_needed(notebook: dict, read: submission.Submission, numbers: Sequence[str]) -> dict:
    """The notebook without the cells that no answer needs."""
    kept = {cell.index for cell in cells.needed(read, numbers)}
    checked = lambda cell: "".join(cell["source"]).startswith("check(")
    notebook["cells"] = [cell for i, cell in enumerate(notebook["cells"]) if i in kept or checked(cell)]
    return notebook


def course_of(place: Path, lesson: str, args: argparse.Namespace) -> None:
    """An nbgrader course with the first of a class's submissions, and beside it the class as `labkit grade` takes it.

    Only of edits that leave nbgrader its metadata; those that do not cost a student all points there.
    """
    known = course.find(lesson)
    made = release.from_course(known)
    numbers = list(made.exercises)
    class_of = corpus.handed_in(lesson, n_students=4 * args.students)
    plain = [each for each in class_of if each.made.startswith(("as_it_is", "plots", "trials"))][: args.students]
    (place / "source" / known.name).mkdir(parents=True)
    (place / "nbgrader_config.py").write_text(CONFIG)
    for i, each in enumerate(plain):
        each.write(place / "as handed in")
        read = submission.read_folder(place / "as handed in" / each.student, made)
        notebook = marked(json.loads(each.data), numbers, asserts=False)
        notebook = only_needed(notebook, read, numbers) if args.lean else notebook
        for folder in [place / "ours" / each.student, place / "submitted" / each.student / known.name][
            : 1 + (i < args.few)
        ]:
            folder.mkdir(parents=True)
            (folder / f"{known.name}.ipynb").write_text(json.dumps(notebook))
    source = marked(json.loads(build.student_notebook(build.convert(known))), numbers, asserts=True)
    (place / "source" / known.name / f"{known.name}.ipynb").write_text(json.dumps(source))


CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "peers"
c.ExecutePreprocessor.timeout = 600
"""


def prepared(nbgrader: str, place: Path, name: str) -> dict[str, str]:
    """The environment of nbgrader, with a kernel that is this Python; the assignment is in its database."""
    kernel = place / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))
    path = f"{Path(nbgrader).absolute().parent}{os.pathsep}{os.environ['PATH']}"  # of its database's tool
    variables = {**os.environ, "JUPYTER_PATH": str(kernel.parents[1]), "PATH": path}
    timed([nbgrader, "generate_assignment", name], place, variables)
    return variables


def timed(command: list[str], place: Path, variables: dict[str, str]) -> tuple[float, float]:
    """Seconds of a command, by the clock and by the processor; CalledProcessError with what it said where it fails."""
    began_s, used_s = time.monotonic(), processor_s()
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # what it left behind, and had not waited for
    return time.monotonic() - began_s, processor_s() - used_s


def processor_s() -> float:
    """What processes that have ended took of the processors, with all that they had waited for themselves."""
    told = resource.getrusage(resource.RUSAGE_CHILDREN)
    return told.ru_utime + told.ru_stime


def compared(args: argparse.Namespace, place: Path) -> None:
    """Print seconds a student of both, round by round, and their ratios; the processor's are for a busy machine."""
    name, out = course.find(args.lesson).name, place / "out"
    course_of(place, args.lesson, args)
    variables = prepared(args.nbgrader, place, name)
    theirs = [args.nbgrader, "autograde", name, "--force"]
    ours = [sys.executable, "-m", "labkit.cli", "grade", str(place / "ours"), "--lesson", args.lesson]
    ours += ["--jobs", "1", "--out", str(out)]
    ratios = []
    ctypes.CDLL(None).prctl(_ADOPT, 1)  # jobs are forked by a server, which nobody else would wait for
    for _ in range(args.rounds):
        shutil.rmtree(out, ignore_errors=True)
        their_s = [seconds / args.few for seconds in timed(theirs, place, variables)]
        our_s = [seconds / args.students for seconds in timed(ours, place, variables)]
        ratios.append([their / our for their, our in zip(their_s, our_s, strict=True)])
        for what, their, our, ratio in zip(("clock", "processor"), their_s, our_s, ratios[-1], strict=True):
            print(f"  by the {what}: {their:.2f} and {our:.3f} s a student, {ratio:.1f} times", flush=True)
    what = "cells that answers need, and asserts" if args.lean else "whole notebooks"
    clock, processor = (median(column) for column in zip(*ratios, strict=True))
    said = f"{clock:.1f} times by the clock, {processor:.1f} by the processor"
    print(f"lesson {args.lesson}, {what}: {said} (medians of {args.rounds}; one process each)")


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nbgrader", required=True, help="the command, in an environment of its own")
    parser.add_argument("--lesson", choices=("01", "14"), default="01")
    parser.add_argument("--students", type=int, default=100, help="that labkit grades in a round (default: 100)")
    parser.add_argument("--few", type=int, default=6, help="of these, that nbgrader grades in a round (default: 6)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--lean", action="store_true", help="without the cells that answers do not need")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        compared(args, Path(place))


if __name__ == "__main__":
    main()
