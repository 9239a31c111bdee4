"""The page of similar pairs: who, how much, and their code side by side with the lines marked that both have."""

from collections.abc import Sequence
from pathlib import Path

from labkit import build
from labkit.grading.page import table, text, whole
from labkit.grading.similar import Pair, Part, Work

FILE = "similar.html"
MOST_PAIRS = 100
AID = (
    "A review aid, and no evidence. It compares what students wrote, without names, spaces and comments, and without "
    "the lesson's code and the course's answers. People learn together, and help is not copying: read both, and ask."
)
_STYLE = """<style>
body { max-width: 84em; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24em, 100%), 1fr)); gap: 0 1.2em; }
.two h3 { font-size: 1em; margin: .6em 0 0; }
pre span { display: block; border-left: .25em solid transparent; padding-left: .5em; min-height: 1.45em; }
pre .both { border-color: var(--not); background: color-mix(in srgb, var(--not) 14%, transparent); }
</style>"""


def write(found: Sequence[Pair], title: str, n_students: int, out: Path) -> Path:
    """Write the page into the folder of a graded class; returns its path."""
    path = out / FILE
    build.write(path, page(found, title, n_students))
    return path


def page(found: Sequence[Pair], title: str, n_students: int) -> str:
    """The page as HTML, of the first hundred pairs."""
    shown = found[:MOST_PAIRS]
    said = f"{n_students} students; {count(found)}"
    said += f", of which the first {MOST_PAIRS} are here." if len(found) > MOST_PAIRS else "."
    rows = [
        [f'<a href="#pair{n}">{text(one.one.student)}, {text(one.other.student)}</a>', *numbers(one)]
        for n, one in enumerate(shown)
    ]
    heads = ["pair", "overlap", "shared", "exercises"]
    parts = [_STYLE, f"<h1>{text(title)}: similar code</h1><p><b>{text(AID)}</b></p><p>{text(said)}</p>"]
    parts += [table(heads, rows), *(_pair(one, n) for n, one in enumerate(shown))]
    return whole(f"{title}: similar code", "".join(parts))


def count(found: Sequence[Pair]) -> str:
    """How many pairs there are, in words."""
    return "no pair shares much" if not found else f"{len(found)} pair{'s share' if len(found) > 1 else ' shares'} much"


def numbers(pair: Pair) -> list[str]:
    """Overlap, how many shingles, and in which exercises, as they are shown."""
    return [f"{pair.overlap:.0%}", f"{pair.weight:.0f}", ", ".join(_exercises(pair))]


def _exercises(pair: Pair) -> list[str]:
    """The exercises in which two share anything."""
    found = {part.exercise or "beside" for part in pair.one.parts if any(one.sha in pair.shared for one in part.own)}
    return sorted(found, key=lambda number: (number == "beside", [int(n) for n in number.split(".") if n.isdigit()]))


def _pair(pair: Pair, number: int) -> str:
    """Two students' cells beside each other."""
    names = f"{text(pair.one.student)} and {text(pair.other.student)}: {numbers(pair)[0]}"
    return (
        f'<section id="pair{number}"><h2>{names}</h2><div class="two">{_column(pair.one, pair)}'
        f"{_column(pair.other, pair)}</div></section>"
    )


def _column(work: Work, pair: Pair) -> str:
    """One student's cells in which anything is shared."""
    cells = [_cell(part, pair) for part in work.parts if any(one.sha in pair.shared for one in part.own)]
    return f"<div><h3>{text(work.student)}</h3>{''.join(cells)}</div>"


def _cell(part: Part, pair: Pair) -> str:
    """A cell's lines, those marked that both have."""
    both = {line for one in part.own if one.sha in pair.shared for line in one.lines}
    lines = [
        f"<span{' class=both' if number in both else ''}>{text(line)}</span>"
        for number, line in enumerate(part.source.split("\n"), 1)
    ]
    head = f"Exercise {part.exercise}" if part.exercise else "Beside the exercises"
    return f'<p class="soft">{text(head)}</p><pre>{"".join(lines)}</pre>'
