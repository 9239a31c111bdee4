"""A student's copy of an nbgrader notebook, with the instructor's tests and locked cells put back where they belong.

A cell is known by its nbgrader id, or by its text where the metadata are lost. Of the student's notebook only what
the student wrote is run; of tests and locked cells the instructor's text is, once each, whatever became of the copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.grading.assignment import Assignment, SourceCell
from labkit.grading.notebook import RawCell
from labkit.grading.source import sha256


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Code to run: a cell of the student's, or one of the instructor's, and then `of` is that one."""

    name: str
    source: str
    of: SourceCell | None = None


@dataclass(frozen=True, kw_only=True)
class Placed:
    """What is run, in order. answers: the student's cell for an id; notes: what was put back.

    known: how many of the instructor's cells are there; marked: whether any was known by its id.
    """

    pieces: tuple[Piece, ...]
    answers: dict[str, RawCell]
    notes: tuple[str, ...]
    known: int
    marked: bool


def placed(raw: Sequence[RawCell], assignment: Assignment) -> Placed:
    """The cells of a student's notebook and the instructor's among them."""
    work = _Work(raw, assignment)
    keyed = [((cell.index, 0, 0), piece) for cell in raw if (piece := work.own(cell))]
    for one in assignment.cells:
        if one.ours:
            piece = Piece(name=f"{one.kind} {one.grade_id}", source=one.source, of=one)
            keyed.append(((work.place(one), 1, one.index), piece))
    pieces = tuple(piece for _, piece in sorted(keyed, key=lambda pair: pair[0]))
    answers = {one.grade_id: work.there[one.index] for one in assignment.graded if one.index in work.there}
    return Placed(pieces=pieces, answers=answers, notes=tuple(work.notes), **work.known())


class _Work:
    """Which of the student's cells is which of the instructor's, and where missing ones go."""

    def __init__(self, raw: Sequence[RawCell], assignment: Assignment) -> None:
        self.notes: list[str] = []
        self._marked = False
        self._cells = assignment.cells
        self._after = max((cell.index for cell in raw), default=-1)
        self._given = {sha256(one.given): one for one in reversed(assignment.cells) if one.given.strip()}
        by_id = {one.grade_id: one for one in assignment.cells if one.grade_id}
        self.of: dict[int, SourceCell] = {}
        self.there: dict[int, RawCell] = {}
        self._places: dict[int, int] = {}
        for cell in raw:
            marked = by_id.get(str(cell.nbgrader.get("grade_id")))
            self._marked = self._marked or marked is not None
            found = marked or self._given.get(sha256(cell.source))
            if found:
                self.of[cell.index] = found
                self._choose(found, cell)
        self._places |= {index: cell.index for index, cell in self.there.items()}

    def known(self) -> dict:
        """How much of the instructor's notebook is in the student's."""
        return {"known": len(self.there), "marked": self._marked}

    def _choose(self, one: SourceCell, cell: RawCell) -> None:
        """Of several copies of a cell take the last, of a test or locked cell rather one that is as given out."""
        before = self.there.get(one.index)
        if before is None or not (one.ours and self._as_given(before) and not self._as_given(cell)):
            self.there[one.index] = cell

    def _as_given(self, cell: RawCell) -> bool:
        """Whether a cell has the text that was handed out."""
        return sha256(cell.source) == sha256(self.of[cell.index].given)

    def own(self, cell: RawCell) -> Piece | None:
        """The student's cell as one to run, None where it is no code or the instructor's is run in its place."""
        one = self.of.get(cell.index)
        retyped = one is not None and one.is_code and cell.kind != "code"
        if one and one.ours:
            is_copy = self.there[one.index] is cell
            if is_copy and not self._as_given(cell):
                self.notes.append(f"Cell {cell.index}, {one.grade_id}, was changed: the instructor's is run.")
            if is_copy or self._as_given(cell):
                return None
        if retyped:
            self.notes.append(f"Cell {cell.index} was code and is {cell.kind or 'nameless'}: it is run as code.")
        if cell.kind != "code" and not retyped or not cell.source.strip():
            return None
        return Piece(name=f"cell {cell.index}", source=cell.source)

    def place(self, one: SourceCell) -> int:
        """The index in the student's notebook after which a cell of the instructor's is run."""
        answers = self._answered(one)
        found = [self._places[each.index] for each in answers if each.index in self._places]
        if one.index in self._places:
            place = max(self._places[one.index], *found, -1)
        else:
            self.notes.append(f"{one.grade_id} was deleted: it is run all the same.")
            place = max(self._before(one), *found, -1)
            if len(found) < len(answers):  # an answer of lost metadata lies somewhere before what comes next
                place = max(place, self._behind(one))
        self._places[one.index] = place
        return place

    def _answered(self, one: SourceCell) -> list[SourceCell]:
        """The answers that a test is there for: those before it and behind the test before, which several may share."""
        found: list[SourceCell] = []
        tested = False
        for each in self._cells[: one.index] if one.kind == "test" else ():
            if each.is_code and each.kind in ("answer", "manual"):
                found, tested = [*([] if tested else found), each], False
            tested = tested or each.kind == "test"
        return found

    def _before(self, one: SourceCell) -> int:
        """The place of the nearest cell before it that is there."""
        return next((self._places[i] for i in range(one.index - 1, -1, -1) if i in self._places), -1)

    def _behind(self, one: SourceCell) -> int:
        """The place just before the nearest cell behind it that is there, else the end."""
        behind = (self._places[i] - 1 for i in range(one.index + 1, len(self._cells)) if i in self._places)
        return next(behind, self._after)
