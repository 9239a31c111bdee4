"""What a student handed in, held against what was given out: which cell is which, whatever happened to the notebook.

A cell is known by its source first, then by what it defines, then by its id: sources survive every tool, ids are lost
by old formats and copied by some editors, and metadata is not looked at. Nothing here runs a learner's code, and no
file makes it raise.
"""

import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit import course
from labkit.course import CourseError
from labkit.grading import notebook
from labkit.grading.calls import ANSWERED, checked, only_calls
from labkit.grading.notebook import RawCell, Unreadable
from labkit.grading.release import Release, ReleasedCell
from labkit.grading.source import names, sha256

MAX_NOTEBOOKS = 20
SEVERAL = "was graded; also handed in:"
NOTHING = "Nothing was handed in."
STRANGE = "No cell of {} is in it: "
LOOKS_LIKE = "it looks like the notebook of "
_EXERCISE = re.compile(r"\bexercise ([0-9]{1,2})\.[0-9]", re.IGNORECASE)
_MOST_NAMED = 10
_COPIES = ".ipynb_checkpoints"


@dataclass(frozen=True)
class Cell:
    """A code cell of a submission, at its index in the file.

    kind: `exercise` (the answer to `exercise`, its stub included), `released` (as given out), `changed`, `added`, or
    `check` (never to be run: the course's calls, prose, a spare copy of a stub). A cell that answers two exercises is
    there twice.
    """

    index: int
    source: str
    cell_id: str
    kind: str
    exercise: str | None
    sha256: str


@dataclass(frozen=True)
class Submission:
    """A notebook as a student handed it in; status: `ok` or `unreadable`, and then `why` is a sentence.

    missing: exercises that no cell answers, their stub gone too; untouched: those whose cell is still the stub.
    other: where no cell of the lesson is in it, a sentence that says so, and which lesson's notebook it looks like.
    """

    student: str
    path: Path
    status: str
    why: str
    cells: tuple[Cell, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    untouched: tuple[str, ...] = ()
    other: str = ""

    def answer(self, number: str) -> Cell | None:
        """The cell that answers an exercise, None where it is missing."""
        return next((cell for cell in self.cells if cell.kind == "exercise" and cell.exercise == number), None)


def read(path: Path, release: Release) -> Submission:
    """A student's notebook; the student is the name of its folder. It never raises for what the file holds."""
    student = unicodedata.normalize("NFC", path.absolute().parent.name)
    try:
        raw, odd = notebook.parse(notebook.read_bytes(path))
    except Unreadable as fault:
        return Submission(student, path, "unreadable", f"{path.name} {fault}", (), (), ())
    found = _Matched(raw, release)
    cells = found.cells()
    missing = tuple(number for number in release.exercises if number not in found.answers)
    other = _other(raw, found, release)
    notes = (*odd, *found.notes, *([other] if other else _strange(raw, found, release)))
    return Submission(student, path, "ok", "", cells, missing, notes, found.untouched(), other)


def read_folder(folder: Path, release: Release) -> Submission:
    """A student's folder: of its notebooks the one that answers most, whatever it is called; a note names the others.

    Of equals the first by name counts, so that the choice depends on nothing but the files.
    """
    paths = notebooks(folder)
    if not paths:
        why = f"{folder.name} holds no notebook that is a plain file."
        return Submission(unicodedata.normalize("NFC", folder.name), folder, "unreadable", why, (), (), ())
    each = [read(path, release) for path in paths[:MAX_NOTEBOOKS]]
    best = max(each, key=lambda one: (one.status == "ok", -len(one.missing) - len(one.untouched), -len(one.missing)))
    others = ", ".join(path.name for path in paths if path != best.path)
    notes = (*best.notes, f"{best.path.name} {SEVERAL} {others}.") if others else best.notes
    return Submission(**vars(best) | {"student": unicodedata.normalize("NFC", folder.name), "notes": notes})


def notebooks(folder: Path) -> list[Path]:
    """The notebooks of a student, by name: those right in the folder, else those anywhere in it; plain files alone."""
    try:
        direct = sorted(path for path in folder.iterdir() if _is_notebook(path))
        return direct or sorted(path for path in folder.rglob("*") if _is_notebook(path))
    except OSError:
        return []


def _is_notebook(path: Path) -> bool:
    """Whether a path is a notebook by its name, and no copy that an editor keeps for itself."""
    named = path.name.lower().endswith(".ipynb") and not path.name.startswith("._")
    return named and _COPIES not in path.parts and stat.S_ISREG(path.lstat().st_mode)


class _Matched:
    """The cells of a notebook, each with what it is of the release."""

    def __init__(self, raw: Sequence[RawCell], release: Release) -> None:
        self.release, self.notes = release, []
        self.sha = {cell.index: sha256(cell.source) for cell in raw}
        self.code = [cell for cell in raw if cell.kind == "code" and cell.source.strip()]
        self.roles = {cell.sha256: cell for cell in reversed(release.cells)}
        self.ids = {cell.cell_id: cell for cell in release.cells if cell.role != "text"}
        self.written = [cell for cell in self.code if self.sha[cell.index] not in self.roles]
        self.names = {cell.index: names(cell.source) for cell in self.written}
        self.own = {name for found in self.names.values() for name in found.defines} & ANSWERED
        self.answers: dict[str, RawCell] = {}
        retyped = [cell for cell in raw if cell.kind != "code" and self.sha[cell.index] not in self.roles]
        for number, wanted in release.exercises.items():
            if found := self._answer(wanted) or self._retyped(wanted, retyped):
                self.answers[number] = found

    def _answer(self, wanted: ReleasedCell) -> RawCell | None:
        """The code cell that answers an exercise: the last to define it in Python, as when all are run in order."""
        mine, asked = lambda cell: bool(cell.cell_id) and cell.cell_id == wanted.cell_id, set(wanted.names)
        defining = self._written(lambda cell: self.names[cell.index].defines & asked)
        running = [cell for cell in defining if self.names[cell.index].parsed]
        binding = self._written(lambda cell: self.names[cell.index].binds & asked)
        stubs = [cell for cell in self.code if self.sha[cell.index] == wanted.sha256]
        own_id = self._written(mine)
        if len(defining) > 1:
            where = ", ".join(str(cell.index) for cell in defining)
            self.notes.append(f"Cells {where} all define {_listed(wanted)}: the last one that is Python counts.")
        if len(stubs) + bool(defining) > 1:
            self.notes.append(f"The stub of exercise {wanted.exercise} is there beside an answer or twice: one counts.")
        for found in (running, defining, binding, stubs[:1]):
            if found:
                return found[-1]
        if own_id and not any(cell in own_id for cell in self.answers.values()):
            there = f"Cell {own_id[-1].index} was exercise {wanted.exercise}"
            self.notes.append(f"{there} and no longer defines {_listed(wanted)}.")
            return own_id[-1]
        return None

    def _written(self, test: Callable[[RawCell], object]) -> list[RawCell]:
        """The cells of the learner's own that pass a test."""
        return [cell for cell in self.written if test(cell)]

    def _retyped(self, wanted: ReleasedCell, cells: Sequence[RawCell]) -> RawCell | None:
        """The cell that answers an exercise and is no code cell any more, which a key pressed by mistake does."""
        for cell in reversed(cells):
            found = names(cell.source) if any(name in cell.source for name in wanted.names) else None
            if found and found.parsed and found.defines & set(wanted.names):
                there = f"Cell {cell.index} answers exercise {wanted.exercise}"
                self.notes.append(f"{there} and is a {cell.kind or 'nameless'} cell: it was run as code.")
                return cell
        return None

    def untouched(self) -> tuple[str, ...]:
        """The exercises whose answer is still the stub."""
        stubs = {number: cell.sha256 for number, cell in self.release.exercises.items()}
        return tuple(number for number in stubs if self._is_stub(number, stubs[number]))

    def _is_stub(self, number: str, stub: str) -> bool:
        """Whether an exercise is there as it was given out."""
        return number in self.answers and self.sha[self.answers[number].index] == stub

    def cells(self) -> tuple[Cell, ...]:
        """Every code cell, in the order of the notebook."""
        answering: dict[int, list[str]] = {}
        for number, cell in self.answers.items():
            answering.setdefault(cell.index, []).append(number)
        there = {cell.index: cell for cell in [*self.code, *self.answers.values()]}
        made = []
        for index, cell in sorted(there.items()):
            kinds = [("exercise", number) for number in answering.get(index, ())] or [self._kind(cell)]
            made += [Cell(index, cell.source, cell.cell_id, kind, number, self.sha[index]) for kind, number in kinds]
        return tuple(made)

    def _kind(self, cell: RawCell) -> tuple[str, str | None]:
        """What a cell is that answers nothing, and the exercise that it checks where it is a check."""
        known = self.roles.get(self.sha[cell.index])
        if known and known.role == "released":
            return "released", None
        if known:
            return "check", known.exercise if known.role == "check" else None
        if only_calls(cell.source, self.own):
            numbers = {name: number for number, one in self.release.exercises.items() for name in one.names}
            return "check", next((numbers[name] for name in sorted(checked(cell.source)) if name in numbers), None)
        return ("changed" if cell.cell_id in self.ids else "added"), None


def _listed(cell: ReleasedCell) -> str:
    """The names that an exercise defines, for a sentence."""
    return " or ".join(cell.names)


def _other(raw: Sequence[RawCell], found: _Matched, release: Release) -> str:
    """What to say of a notebook that has cells and none of the lesson's; nothing of another."""
    known = {cell.sha256 for cell in release.cells}
    if not raw or found.answers or len(known & set(found.sha.values())) > len(known) // 10:
        return ""
    named = Counter(number for cell in raw for number in sorted(set(_EXERCISE.findall(cell.source))))
    looks = "it is perhaps the notebook of another lesson"
    for number, _ in named.most_common(1):
        with suppress(CourseError):
            lesson = course.find(number).name
            looks = f"{LOOKS_LIKE}{lesson}" if lesson != release.lesson else looks
    return f"{STRANGE.format(release.lesson)}{looks}."


def _strange(raw: Sequence[RawCell], found: _Matched, release: Release) -> list[str]:
    """What else a grader wants to know of a notebook."""
    if not raw:
        return ["It holds no cells: it was perhaps handed in before it was saved."]
    notes = _changed_by_hand(found)
    marked = [str(cell.index) for cell in raw if f"\n{cell.source}".find("\n<<<<<<< ") >= 0]
    if marked:
        notes.append(f"Marks of an unresolved merge conflict are in cell {', '.join(marked)}.")
    there = set(found.sha.values()) | {found.ids[cell.cell_id].sha256 for cell in raw if cell.cell_id in found.ids}
    gone = [cell.index for cell in release.cells if cell.role == "released" and cell.sha256 not in there]
    if len(gone) > _MOST_NAMED:
        notes.append(f"{len(gone)} code cells of the lesson are gone.")
    elif gone:
        notes.append(f"Code cells of the lesson that are gone: {', '.join(map(str, gone))}, as counted when given out.")
    return notes


def _changed_by_hand(found: _Matched) -> list[str]:
    """What nobody changes by accident, and what had no effect."""
    notes = []
    for number, cell in found.answers.items():
        points, given = cell.nbgrader.get("points"), found.release.exercises[number].points
        if isinstance(points, (int, float)) and points != given:
            notes.append(f"Its metadata give exercise {number} {points:g} points: the release's {given} count.")
    if "check" in found.own:
        notes.append("It defines check itself, which no verdict depends on.")
    return notes
