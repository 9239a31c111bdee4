"""An instructor's notebook made with nbgrader: which of its cells are tests, which a person grades, what each is worth.

The metadata is that of nbgrader's schema 3; of an older schema, and of none, what is missing is taken as nbgrader takes
it. Source: https://github.com/jupyter/nbgrader, nbgraderformat and the preprocessors of generate_assignment.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from labkit import build
from labkit.course import CourseError
from labkit.grading import notebook
from labkit.grading.notebook import RawCell, Unreadable

_NEWEST = 3
_MOST_FILES, _MOST_BYTES = 500, 16_000_000
_ID = re.compile(r"[a-zA-Z0-9_\-]+")
_AUTOTEST = re.compile(r"^\s*#.*\bAUTOTEST\b", re.MULTILINE)
_HIDDEN, _SOLUTION, _SCHEME = "HIDDEN TESTS", "SOLUTION", "MARK SCHEME"
_STUBS = {"code": "# YOUR CODE HERE\nraise NotImplementedError()", "markdown": "YOUR ANSWER HERE"}


@dataclass(frozen=True, kw_only=True)
class SourceCell:
    """A cell of the instructor's notebook.

    kind: `test` (code that is worth points), `manual` (an answer that a person grades), `task` (text that asks for
    something which a person grades), `answer` (whose points stand at its tests), `locked` (students may not change it)
    or `other`. source: as the instructor has it; given: as nbgrader
    hands it out when nobody has configured it otherwise.
    """

    index: int
    kind: str
    is_code: bool
    grade_id: str
    points: float
    source: str
    given: str

    @property
    def graded(self) -> bool:
        """Whether it is worth points."""
        return self.kind in ("test", "manual", "task")

    @property
    def ours(self) -> bool:
        """Whether the instructor's text is what is run, whatever the student has made of it."""
        return self.is_code and self.kind in ("test", "locked")

    @property
    def hides(self) -> bool:
        """Whether students do not see all of it."""
        return self.kind == "test" and self.given != self.source


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An instructor's notebook; name: of the file without its ending, which is what nbgrader knows a notebook by.

    files: what its cells may read and import, by the way from its folder.
    """

    name: str
    cells: tuple[SourceCell, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def graded(self) -> tuple[SourceCell, ...]:
        """The cells that are worth points, in their order."""
        return tuple(cell for cell in self.cells if cell.graded)

    @property
    def sha256(self) -> str:
        """The hash of all of it, in hexadecimal."""
        files = {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}
        return build.digest([self.name, [asdict(cell) for cell in self.cells], files])


def load(path: Path) -> Assignment:
    """The instructor's notebook at path; where that is nbgrader's source/ASSIGNMENT/, with the files beside it.

    CourseError: it is none, grades nothing, or has wrong metadata; the files are too many.
    """
    try:
        raw, _ = notebook.parse(notebook.read_bytes(path))
    except Unreadable as fault:
        raise CourseError(f"{path.name} {fault}") from None
    cells, known = [], {}
    for cell in raw:
        where = f"{path.name}, cell {cell.index}"
        made = _cell(cell, where)
        if made.grade_id in known:
            raise CourseError(f"{where}: the id {made.grade_id!r} is that of cell {known[made.grade_id]} too.")
        known |= {made.grade_id: cell.index} if made.grade_id else {}
        cells.append(made)
    files = _beside(path.absolute().parent) if path.absolute().parents[1].name == "source" else {}
    found = Assignment(name=path.stem, cells=tuple(cells), files=files)
    if not found.graded:
        raise CourseError(f"{path.name} has no cell that nbgrader would grade: give the instructor's own notebook.")
    return found


def _beside(folder: Path) -> dict[str, bytes]:
    """The plain files of a folder, but for notebooks and what is hidden."""
    found, total = {}, 0
    for each in sorted(folder.rglob("*")):
        way = each.relative_to(folder)
        hidden = any(part.startswith((".", "__")) for part in way.parts)
        if hidden or each.suffix == ".ipynb" or each.is_symlink() or not each.is_file():
            continue
        total += each.stat().st_size
        if total > _MOST_BYTES or len(found) >= _MOST_FILES:
            most = f"{_MOST_FILES} files and {_MOST_BYTES / 1e6:.0f} MB go into the sandbox"
            raise CourseError(f"{folder} holds too much beside the notebook: at most {most}.")
        found[way.as_posix()] = each.read_bytes()
    return found


def _cell(cell: RawCell, where: str) -> SourceCell:
    """One cell. CourseError: nbgrader would refuse it, or it is what only nbgrader can run."""
    marked = {name: cell.nbgrader.get(name) is True for name in ("grade", "solution", "locked", "task")}
    is_code, kind = cell.kind == "code", _kind(**marked)
    _checked(cell, kind, where)
    shown = without(cell.source, _HIDDEN, where)
    if shown != cell.source and kind != "test":
        raise CourseError(f"{where}: hidden tests are in a cell that is no test.")
    if kind == "test" and _AUTOTEST.search(cell.source):
        raise CourseError(f"{where}: nbgrader makes its tests of AUTOTEST lines: give the notebook that it made.")
    return SourceCell(
        index=cell.index,
        kind=kind,
        is_code=is_code,
        grade_id=str(cell.nbgrader["grade_id"]) if kind != "other" else "",
        points=_points(cell.nbgrader, where) if kind in ("test", "manual", "task") else 0.0,
        source=cell.source,
        given=_given(cell, kind, shown, where),
    )


def _kind(*, grade: bool, solution: bool, locked: bool, task: bool) -> str:
    """What nbgrader takes a cell for."""
    if task or grade and solution:
        return "task" if task else "manual"
    return "test" if grade else "answer" if solution else "locked" if locked else "other"


def _checked(cell: RawCell, kind: str, where: str) -> None:
    """CourseError where the metadata are not what nbgrader itself would take."""
    version = cell.nbgrader.get("schema_version", 0)
    if type(version) is not int or not 0 <= version <= _NEWEST:
        raise CourseError(f"{where}: its nbgrader schema is {version!r}, and {_NEWEST} is the newest that is known.")
    grade_id = cell.nbgrader.get("grade_id")
    if kind != "other" and not (isinstance(grade_id, str) and _ID.fullmatch(grade_id)):
        raise CourseError(f"{where}: its nbgrader id is {grade_id!r}: letters, digits, - and _ make one.")
    if kind == "test" and cell.kind != "code":
        raise CourseError(f"{where}: a test has to be code, and this is {cell.kind}.")


def _points(kept: Mapping[str, object], where: str) -> float:
    """What a cell is worth; without a number nothing, as in nbgrader's first schema."""
    said = kept.get("points", 0)
    try:
        points = float(said if said != "" else 0)
    except (TypeError, ValueError):
        points = math.nan
    if not math.isfinite(points):
        raise CourseError(f"{where}: its points are {said!r}, and should be a number.")
    return max(points, 0.0)


def _given(cell: RawCell, kind: str, shown: str, where: str) -> str:
    """The cell as nbgrader hands it out: without hidden tests and schemes, a stub in place of solutions."""
    if cell.nbgrader.get("solution") is not True:
        return without(shown, _SCHEME, where) if kind == "task" else shown
    stub = _STUBS.get(cell.kind, "")
    cut = without(cell.source, _SOLUTION, where, stub)
    return cut if cut != cell.source else stub


def without(source: str, mark: str, where: str, stub: str = "") -> str:
    """The source without the regions between `BEGIN mark` and `END mark`; a stub, indented, stands where each was."""
    kept, opened = [], False
    for line in source.split("\n"):
        if f"BEGIN {mark}" in line:
            if opened:
                raise CourseError(f"{where}: 'BEGIN {mark}' inside such a region.")
            opened = True
            indent = line[: len(line) - len(line.lstrip())]
            kept += [indent + one for one in stub.split("\n")] if stub else []
        elif f"END {mark}" in line:
            opened = False
        elif not opened:
            kept.append(line)
    if opened:
        raise CourseError(f"{where}: 'BEGIN {mark}' is never closed by 'END {mark}'.")
    return "\n".join(kept)
