"""A class's notebooks of a lesson, made from a seed: answers of every kind, in notebooks edited as learners edit them.

Each student comes with the points that each exercise must get. What an edit does to a notebook never changes them.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import corpus_answers
import nbformat
from corpus_answers import Answer

from labkit import build, checks, course
from labkit.course import Lesson

N_STUDENTS, SEED = 100, 20_26
# Each student's share of right, wrong and untouched exercises; in turn, so that a part of a class has all kinds.
KINDS = ("right", "wrong", "mixed", "mixed", "partial", "untouched", "mixed", "right")


@dataclass(frozen=True)
class HandedIn:
    """A student's notebook. expected: the points of each exercise; made: what it was made of, for a failing test."""

    student: str
    file_name: str
    data: bytes
    expected: dict[str, int]
    made: str

    def write(self, folder: Path) -> None:
        """The student's folder with the notebook in it."""
        place = folder / self.student
        place.mkdir(parents=True)
        (place / self.file_name).write_bytes(self.data)


def handed_in(number: str, n_students: int = N_STUDENTS, seed: int = SEED) -> list[HandedIn]:
    """The class of a lesson, such as "01". With students enough, every answer that is known is given by somebody."""
    lesson, rng = course.find(number), random.Random(f"{number} {seed}")
    points = {each.number: each.points for each in checks.exercises() if int(each.number.split(".")[0]) == int(number)}
    turns = {each: _Turns(corpus_answers.answers(each), rng) for each in points}
    made = []
    for i in range(n_students):
        given = {each: turns[each].take(_share(KINDS[i % len(KINDS)], k, rng)) for k, each in enumerate(points)}
        edit = EDITS[i % len(EDITS)]
        notebook = _Notebook(lesson, {each: answer.source for each, answer in given.items() if answer})
        edit(notebook, rng)
        expected = {each: points[each] if given[each] and given[each].right else 0 for each in points}
        told = {each: answer.what if answer else "untouched" for each, answer in given.items()}
        made.append(HandedIn(f"{number}-{i:03}", *notebook.file(), expected, f"{edit.__name__}: {told}"))
    return made


def _share(kind: str, k: int, rng: random.Random) -> bool | None:
    """Whether the k-th exercise of a student is answered rightly; None: not at all."""
    if kind == "mixed":
        return rng.choice([True, False, False, None])
    if kind == "partial":
        return None if k % 2 else True
    return {"right": True, "wrong": False, "untouched": None}[kind]


class _Turns:
    """Deals the answers to an exercise so that each is given once before one is given twice."""

    def __init__(self, known: tuple[Answer, ...], rng: random.Random) -> None:
        self._known, self._rng = known, rng
        self._left: dict[bool, list[Answer]] = {True: [], False: []}

    def take(self, right: bool | None) -> Answer | None:
        """The next right or wrong answer; none where none is given."""
        if right is None:
            return None
        if not self._left[right]:
            self._left[right] = [each for each in self._known if each.right == right]
            self._rng.shuffle(self._left[right])
        return self._left[right].pop()


class _Notebook:
    """A student's notebook on the way, its cells plain dictionaries; answers: where each exercise's cell is."""

    def __init__(self, lesson: Lesson, answers: dict[str, str]) -> None:
        self.name, self.bytes_of = f"{lesson.name}.ipynb", lambda text: text.encode()
        self.content = json.loads(_released(lesson.number))
        self.cells, self.answers, self.names, self.stubs = self.content["cells"], [], {}, {}
        for cell in self.cells:
            cell["source"] = "".join(cell["source"])
        for each in checks.exercises():
            stub = f'raise NotImplementedError("exercise {each.number}")'
            for cell in self.cells:
                if cell["cell_type"] == "code" and stub in cell["source"] and each.number in answers:
                    self.stubs[id(cell)], cell["source"] = cell["source"], answers[each.number]
                    self.answers.append(cell)
                    self.names[id(cell)] = each.name

    def add(self, source: str, beside: dict, after: int = 1, kind: str = "code") -> None:
        """A cell of the learner's own, after or before (0) another one."""
        extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
        cell = {"cell_type": kind, "metadata": {}, "source": source, "id": f"own{len(self.cells)}", **extra}
        place = next(i for i, each in enumerate(self.cells) if each is beside)
        self.cells.insert(place + after, cell)

    def file(self) -> tuple[str, bytes]:
        """The file's name and bytes."""
        return self.name, self.bytes_of(json.dumps(self.content, indent=1))


@cache
def _released(number: str) -> str:
    return build.student_notebook(build.convert(course.find(number)))


# ---- what learners do to a notebook ---------------------------------------------------------------------------------


def as_it_is(_notebook: _Notebook, _rng: random.Random) -> None:
    """Nothing else."""


def trials(notebook: _Notebook, rng: random.Random) -> None:
    """Cells in which the learner tries things, some of which fail; a note."""
    tries = ("x = 3\nx * 2", "1 / 0", "!nvidia-smi", "%timeit sum(range(3))", "help(sum)", "print(undefined_name)")
    for cell in notebook.answers:
        notebook.add(rng.choice(tries), cell, after=rng.choice((0, 1)))
        notebook.add(f"My notes on {notebook.names[id(cell)]}: *done*?", cell, kind="markdown")
    notebook.add("", notebook.cells[-1])


def prints(notebook: _Notebook, _rng: random.Random) -> None:
    """Prints, a warning, and a bar on stderr, in the answers' cells and in their calls."""
    noise = "import sys, warnings\nprint('working', flush=True)\nwarnings.warn('careful')"
    loud = (
        "import functools as _functools\n"
        "def _loud(fn):\n"
        "    @_functools.wraps(fn)\n"
        "    def told(*args, **kwargs):\n"
        "        print('called with', len(args), file=sys.stderr)\n"
        "        return fn(*args, **kwargs)\n"
        "    return told"
    )
    for cell in notebook.answers:
        name, source = notebook.names[id(cell)], cell["source"]
        wrap = f"\n\n{loud}\n{name} = _loud({name})" if f"def {name}(" in source and "return (" not in source else ""
        cell["source"] = source if "return (" in source else f"{noise}\n\n{source}{wrap}"


def plots(notebook: _Notebook, _rng: random.Random) -> None:
    """A figure after each answer."""
    for cell in notebook.answers:
        notebook.add("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()", cell)


def renamed(notebook: _Notebook, rng: random.Random) -> None:
    """Another file name, as downloads and copies have."""
    notebook.name = rng.choice(("Untitled1.ipynb", "lesson (1) final FINAL.ipynb", "Übung-ann.ipynb", "copy.IPYNB"))


def lost_metadata(notebook: _Notebook, _rng: random.Random) -> None:
    """No metadata and no ids, as other tools leave it."""
    notebook.content |= {"metadata": {}, "nbformat_minor": 4}
    for cell in notebook.cells:
        cell["metadata"] = {}
        cell.pop("id", None)


def outputs(notebook: _Notebook, rng: random.Random) -> None:
    """Run before it was saved: outputs, counts, and times in the metadata."""
    codes = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    for count, cell in enumerate(codes, 1):
        text = "".join(rng.choice("abc \n") for _ in range(200))
        cell |= {"execution_count": count, "outputs": [{"output_type": "stream", "name": "stdout", "text": text}]}
        cell["metadata"]["execution"] = {"iopub.status.idle": "2026-01-01T00:00:00Z"}


def no_checks(notebook: _Notebook, _rng: random.Random) -> None:
    """The course's own checks deleted."""
    notebook.cells[:] = [cell for cell in notebook.cells if not cell["source"].startswith("check(")]


def two_attempts(notebook: _Notebook, _rng: random.Random) -> None:
    """An earlier attempt is left above the answer: the later one counts, as when all are run in order."""
    for cell in notebook.answers:
        if f"my_{notebook.names[id(cell)]}" not in cell["source"] and "return (" not in cell["source"]:
            notebook.add(f"def {notebook.names[id(cell)]}(*anything):\n    return 0", cell, after=0)


def below_the_stub(notebook: _Notebook, _rng: random.Random) -> None:
    """The stub is left, and the answer is in a cell of its own below."""
    for cell in notebook.answers:
        source, cell["source"] = cell["source"], notebook.stubs[id(cell)]
        notebook.add(source, cell)


def from_windows(notebook: _Notebook, _rng: random.Random) -> None:
    """A mark at the front and carriage returns, in the file and in the cells."""
    for cell in notebook.cells:
        cell["source"] = cell["source"].replace("\n", "\r\n")
    notebook.bytes_of = lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()


def old_format(notebook: _Notebook, _rng: random.Random) -> None:
    """Saved by a Jupyter of ten years ago."""
    found = nbformat.convert(nbformat.from_dict(notebook.content), 3)
    notebook.bytes_of = lambda _text: json.dumps(found).encode()


EDITS: tuple[Callable[[_Notebook, random.Random], None], ...] = (
    (as_it_is, trials, prints, renamed, lost_metadata, outputs, plots)
    + (no_checks, two_attempts, below_the_stub, from_windows, old_format, as_it_is)
)
