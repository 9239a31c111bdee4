"""Notebooks made with nbgrader, graded as they are: the instructor's asserts, run in the sandbox beside the answers.

Whoever shares a process with an assert can make it pass, so what is found here is advisory, and marked so wherever it
is told. It is the instructor's text that runs, never the student's copy. What a student reads of a failure comes from
a run in which the hidden tests were not there; the points come from a second one, of which nothing else is told.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit.describe import describe_error
from labkit.grading import credit, notebook, submission
from labkit.grading.assignment import Assignment, SourceCell
from labkit.grading.box import CellOutcome, Limits
from labkit.grading.notebook import Unreadable
from labkit.grading.placed import Piece, Placed, placed
from labkit.grading.source import sha256
from labkit.grading.verdicts import Result
from labkit.grading.wire import WireError, decode, encode

_CREDIT_S = 10.0
_MOST_ENDS = 4  # cells that may end a student's session before no more is tried
_PRINTED = 2000  # characters
_LOST = object()
_PUT = """
def _put(files):
    import pathlib
    for name, data in files.items():
        pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(name).write_bytes(data)
"""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What every verdict depends on, beside the student's notebook; as `labkit.grading.grade.Batch`."""

    assignment: Assignment
    trusted: bool = False
    limits: Limits = Limits()

    @property
    def title(self) -> str:
        """What was handed in, for pages."""
        return self.assignment.name

    def told(self) -> dict:
        """What verdicts depend on, for run.json."""
        return {"lesson": self.assignment.name, "source": self.assignment.sha256, "advisory": True}

    def nothing(self) -> list[dict]:
        """The results of a student who handed in nothing."""
        return [row(one, "missing", submission.NOTHING) for one in self.assignment.graded]

    def judge(self, folder: Path, box: Any) -> dict:
        """One student's results, a dictionary for each graded cell in the instructor's order, and what was noted.

        box: a Box, or what runs cells as one does.
        """
        found, notes = _read(folder, self.assignment)
        if isinstance(found, str):
            return {"results": [row(one, "unreadable", found) for one in self.assignment.graded], "notes": notes}
        if not found.known:
            notes = [f"{submission.STRANGE.format(self.assignment.name)}it is perhaps another notebook."]
        try:
            rows = self._rows(found, box)
        except Exception as error:  # a fault of ours must not cost the batch, nor pass for the student's
            said = f"The grader failed: {describe_error(error)}"
            rows = [row(one, "ungraded", said) for one in self.assignment.graded]
        return {"results": rows, "notes": notes}

    def _rows(self, found: Placed, box: Any) -> list[dict]:
        """The results of a notebook that was read."""
        files, hides = self.assignment.files, any(piece.of and piece.of.hides for piece in found.pieces)
        shown = _run([_without_hidden(piece) for piece in found.pieces], files, box)
        told = _run(found.pieces, files, box) if hides else shown
        return [_verdict(one, found, shown, told) for one in self.assignment.graded]


def row(one: SourceCell, status: str, message: str, **more: object) -> dict:
    """A line of results.jsonl for a graded cell; more: other fields of it."""
    result = Result(exercise=one.grade_id, status=status, points=0, max_points=0, seconds=0.0, message=message)
    numbers = {"points": 0, "max_points": _whole(one.points)}
    is_test = one.kind == "test"
    return asdict(replace(result, inside=is_test)) | numbers | {"advisory": is_test} | more


def _whole(points: float) -> float:
    """Points as they are written: 2 rather than 2.0."""
    return int(points) if points == int(points) else points


def _read(folder: Path, assignment: Assignment) -> tuple[Placed | str, list[str]]:
    """Of a student's notebooks the one of the instructor's name, else the one with most of its cells, and notes.

    Where none can be read, a sentence in its place.
    """
    paths = submission.notebooks(folder)[: submission.MAX_NOTEBOOKS]
    found, faults = [], []
    for path in paths:
        try:
            raw, odd = notebook.parse(notebook.read_bytes(path))
        except Unreadable as fault:
            faults.append(f"{path.name} {fault}")
            continue
        made = placed(raw, assignment)
        found.append((_named(path) == _named(Path(assignment.name)), made.known, path, made, odd))
    if not found:
        return faults[0] if faults else f"{folder.name} holds no notebook that is a plain file.", []
    _, _, path, made, odd = max(found, key=lambda one: one[:2])
    others = ", ".join(each.name for each in paths if each != path)
    notes = [*odd, *made.notes, *([f"{path.name} was graded; also handed in: {others}."] if others else [])]
    return made, notes


def _named(path: Path) -> str:
    """A notebook's name without its ending, as two systems may write it."""
    return unicodedata.normalize("NFC", path.name.removesuffix(".ipynb")).casefold()


def _without_hidden(piece: Piece) -> Piece:
    """A test as students know it; other pieces as they are."""
    return replace(piece, source=piece.of.given) if piece.of and piece.of.hides else piece


@dataclass(frozen=True)
class _Ended:
    """How a piece ended, and of a test the credit that it gave: a number, None for all or nothing, _LOST."""

    outcome: CellOutcome
    credit: object = None


def _run(pieces: Sequence[Piece], files: Mapping[str, bytes], box: Any) -> Mapping[str, _Ended]:
    """How each piece ended, by name. One that ends the session is left out of the next, in which the rest is run."""
    ended: dict[str, _Ended] = {}
    while len(ended) < _MOST_ENDS:
        left = [piece for piece in pieces if piece.name not in ended]
        cells = [(piece.name, _as_run(piece)) for piece in left]
        with box.run([("files", _PUT)] if files else []) as session:
            if files:
                _put(session, files)
            session.run(cells)
            outcomes = session.outcomes[-len(cells) :] if not session.over else []
            if len(outcomes) == len(cells):
                pairs = zip(left, outcomes, strict=True)
                return ended | {each.name: _Ended(out, _credit(session, each, out)) for each, out in pairs}
            last = session.outcomes[-1]
            ended[last.name] = _Ended(last)
    status = next(iter(ended.values())).outcome.status
    lost = CellOutcome(name="", status=status, seconds=0.0)
    return {piece.name: ended.get(piece.name, _Ended(replace(lost, name=piece.name))) for piece in pieces}


def _put(session: Any, files: Mapping[str, bytes]) -> None:
    """Put files into the folder in which cells run. OSError: they are not there afterwards."""
    answer = session.call("_put", encode({"do": "call", "args": [dict(files)]}), _CREDIT_S)
    if answer.status != "ok" or "raised" in decode(answer.payload):
        raise OSError("the files beside the notebook did not reach the sandbox")


def _as_run(piece: Piece) -> str:
    """What is run of a piece: of a test, with its last value kept."""
    return credit.kept(piece.source, _name(piece.of)) if piece.of and piece.of.kind == "test" else piece.source


def _name(one: SourceCell) -> str:
    """The name under which a test's last value is kept."""
    return f"_credit_{one.index}"


def _credit(session: Any, piece: Piece, outcome: CellOutcome) -> object:
    """The credit that a test gave which raised nothing."""
    if outcome.status != "ok" or _as_run(piece) == piece.source:
        return None
    answer = session.call(_name(piece.of), encode({"do": "call", "args": []}), _CREDIT_S)
    if answer.status != "ok":
        return _LOST
    try:
        reply = decode(answer.payload)
    except WireError:
        return _LOST
    return reply.get("value") if isinstance(reply, dict) else _LOST


def _verdict(one: SourceCell, found: Placed, shown: Mapping[str, _Ended], told: Mapping[str, _Ended]) -> dict:
    """The result of one graded cell."""
    if one.kind != "test":
        return _by_hand(one, found)
    name = f"test {one.grade_id}"
    seen, full = shown[name].outcome, told[name]
    more = {"seconds": round(seen.seconds, 3), "printed": seen.output.decode(errors="replace")[:_PRINTED]}
    if seen.status != "ok":
        return row(one, *_failed(one, seen, _before(shown)), **more)
    if full.outcome.status != "ok":
        status = "wrong" if full.outcome.status == "error" else full.outcome.status
        return row(one, status, "The tests that you have pass, and a hidden one does not.", **more)
    if full.credit is _LOST:
        return row(one, "died", "The process ended before it could say what the test gave.", **more)
    points = credit.points(full.credit, one.points)
    if points is None:
        return row(one, "ungraded", f"The test gave {full.credit!r} of {_whole(one.points)} points.", **more)
    status = "ok" if points == one.points else "wrong"
    said = "All tests pass." if status == "ok" else f"Partial credit: {points:g} of {one.points:g} points."
    return row(one, status, said, points=_whole(points), **more)


def _by_hand(one: SourceCell, found: Placed) -> dict:
    """The result of a cell that a person grades, while nobody has."""
    answer = found.answers.get(one.grade_id)
    if one.kind == "manual" and answer is None and found.marked:
        return row(one, "missing", "The cell is not there any more.")
    if one.kind == "manual" and answer and sha256(answer.source) == sha256(one.given):
        return row(one, "not-attempted", "The cell is as it was given out.")
    return row(one, "manual", "A person grades this, and nobody has so far.")


def _failed(one: SourceCell, seen: CellOutcome, before: str) -> tuple[str, str]:
    """Status and message of a test that failed where the student can see it."""
    if seen.error is None or seen.status != "error":
        printed = f"\nprinted  {seen.said}" if seen.said else ""
        return seen.status, f"It ended with: {seen.status}.{printed}{before}"
    if seen.error.type == "NotImplementedError":
        return "not-attempted", "What it tests is not there yet."
    said = f"{seen.error.type}: {seen.error.message[:500]}".removesuffix(": ")
    lines = one.given.split("\n")
    asserted = lines[seen.error.line - 1].strip() if 0 < seen.error.line <= len(lines) else ""
    shown = f"\ntest  {asserted[:200]}" if asserted.startswith("assert") else ""
    return "wrong" if seen.error.type == "AssertionError" else "error", f"{said}{shown}{before}"


def _before(shown: Mapping[str, _Ended]) -> str:
    """The first of the student's own cells that failed, as a labelled line; nothing where none did."""
    for name, ended in shown.items():
        if name.startswith("cell ") and ended.outcome.status != "ok":
            error = ended.outcome.error
            how = f"raised {error.type}: {error.message[:200]}" if error else f"ended with: {ended.outcome.status}"
            return f"\nbefore  {name} {how}"
    return ""
