"""Which cells of a submission are run: the answers, what the learner wrote beside them, and what these need.

Most cells of a lesson are demonstrations, and some take a minute. One that is as it was given out is left out unless it
binds a name that a kept cell needs.
"""

from collections.abc import Sequence
from dataclasses import replace

from labkit.grading.calls import defined_by, without_calls
from labkit.grading.source import names, sha256
from labkit.grading.submission import Cell, Submission


def needed(submission: Submission, numbers: Sequence[str]) -> list[Cell]:
    """The cells to run for these exercises, in the notebook's order, each once.

    Kept: the answers, all that the learner changed or added, and of released cells and other answers those that bind a
    name which a kept cell needs, and so on. In what is kept, the course's own calls (check, claim, ...) are taken out,
    `attempt(f)` becomes `(f)`, and every line stays in its place.
    """
    runnable = [cell for cell in submission.cells if cell.kind != "check"]
    spare = [cell for cell in runnable if not _asked(cell, numbers)]
    own = defined_by([cell.source for cell in runnable if cell.kind != "released"])
    answers = [cell for cell in runnable if cell.kind == "exercise"]
    answering = {name for cell in answers for name in names(cell.source).defines}
    kept: dict[int, Cell] = {}
    more, wanted = [cell for cell in runnable if _asked(cell, numbers)], {"*"}
    while more and answers:
        kept |= {cell.index: _as_run(cell, without_calls(cell.source, own, answering)) for cell in more}
        wanted |= {name for cell in more for name in names(kept[cell.index].source).needs}
        more = [cell for cell in spare if cell.index not in kept and names(cell.source).binds & wanted]
    return [kept[index] for index in sorted(kept)]


def _asked(cell: Cell, numbers: Sequence[str]) -> bool:
    """Whether a cell is kept for itself."""
    return cell.exercise in numbers if cell.kind == "exercise" else cell.kind in ("changed", "added")


def _as_run(cell: Cell, source: str) -> Cell:
    """The cell with the source that is run."""
    return cell if source == cell.source else replace(cell, source=source, sha256=sha256(source))
