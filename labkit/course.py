"""Where the lessons are, and what a lesson's source holds.

A lesson is one Python file, solutions/NN_topic.py: a header of `# key: value` lines, then cells that start with `# %%`.
The splitter is our own thirty lines, not jupytext's, for two reasons: a lesson must run on a machine with torch and no
Jupyter at all, and a traceback must name the line of the source, so a cell has to know where it started.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

_CELL = re.compile(r"^# %%\s*(\[markdown\])?\s*(.*)$")
_NAME = re.compile(r"^(\d\d)_([a-z0-9_]+)$")


class CourseError(Exception):
    """What a user can put right: the command line shows its one sentence, never a traceback."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a lesson's source; first_line is its first source line, counted from 1."""

    kind: str
    source: str
    first_line: int


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson: number `01`, topic `lr_warmup`, and what its header says."""

    number: str
    topic: str
    title: str
    minutes: int
    source: Path
    gains: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`01_lr_warmup`: the stem that source, notebooks and recordings share."""
        return f"{self.number}_{self.topic}"

    @property
    def student(self) -> Path:
        """The notebook that a learner opens."""
        return self.source.parents[1] / "notebooks" / f"{self.name}.ipynb"

    @property
    def solution(self) -> Path:
        """The executed notebook with outputs."""
        return self.source.with_suffix(".ipynb")

    def text(self) -> str:
        """The whole source."""
        return read_source(self.source)


def read_source(path: Path) -> str:
    """The text of a lesson's file, without a byte order mark; a CourseError where it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CourseError(f"{path.name} is not UTF-8 (byte {error.start}): save it in that encoding.") from error


def root() -> Path:
    """The course's folder, the one with solutions/ and labkit/: found upwards from here, else beside this package."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[1]):
        if (folder / "solutions").is_dir() and (folder / "labkit").is_dir():
            return folder
    raise CourseError(f"No course found: neither {here} nor a folder above it holds solutions/ and labkit/.")


def split_cells(text: str) -> list[Cell]:
    """The cells of a py:percent source, in order, markdown without its comment marks; the header is dropped."""
    lines = text.split("\n")  # splitlines() would also end a line at a form feed within a multi-line string
    starts = [i for i, line in enumerate(lines) if _CELL.match(line)]
    return [_cell(lines, start, end) for start, end in zip(starts, [*starts[1:], len(lines)], strict=False)]


def _cell(lines: list[str], start: int, end: int) -> Cell:
    """The cell whose mark stands at index `start`, without the blank lines around it."""
    markdown = bool(_CELL.match(lines[start]).group(1))
    body = lines[start + 1 : end]
    skipped = next((i for i, line in enumerate(body) if line.strip()), len(body))
    body = body[skipped:]
    if markdown:
        stray = next((i for i, line in enumerate(body) if line.strip() and not line.startswith("#")), None)
        if stray is not None:
            raise CourseError(f"Line {start + 2 + skipped + stray}: a markdown cell has a line that is not a comment.")
        body = [re.sub(r"^# ?", "", line).rstrip() for line in body]
    source = "\n".join(body).rstrip()
    return Cell(kind="markdown" if markdown else "code", source=source, first_line=start + 2 + skipped)


def _read(path: Path) -> Lesson:
    """The lesson in `path`, from its name and header."""
    number, topic = _NAME.match(path.stem).groups()
    header: dict[str, str] = {}
    for line in read_source(path).split("\n"):
        match = re.match(r"^# (\w+): (.+)$", line)
        if not match:
            break
        header[match.group(1)] = match.group(2).strip()
    missing = [key for key in ("title", "minutes", "cpu") if key not in header]
    if missing or not header["minutes"].isdecimal():
        wanted = (missing or ["minutes"])[0]
        raise CourseError(f"{path.name}: its header needs a line '# {wanted}: ...' (minutes: a whole number).")
    gains = {tier: header[tier] for tier in ("cpu", "gpu", "gpu2") if tier in header}
    return Lesson(
        number=number, topic=topic, title=header["title"], minutes=int(header["minutes"]), source=path, gains=gains
    )


def lessons() -> list[Lesson]:
    """Every lesson there is, in the order of teaching; a CourseError where two have one number."""
    found = [_read(path) for path in _sources() if _NAME.match(path.stem)]
    for one, other in pairwise(found):
        if one.number == other.number:
            raise CourseError(f"{one.source.name} and {other.source.name} have one number: give one of them another.")
    return found


def strays() -> list[Path]:
    """The Python files in solutions/ that their names keep from being lessons."""
    return [path for path in _sources() if not _NAME.match(path.stem)]


def _sources() -> list[Path]:
    """The Python files in solutions/, by name."""
    return sorted((root() / "solutions").glob("*.py"))


def find(name: str) -> Lesson:
    """The lesson called `1`, `01` or `01_lr_warmup`; an unknown one is a CourseError that lists what exists."""
    known = lessons()
    wanted = name.strip().removesuffix(".py").removesuffix(".ipynb")
    for lesson in known:
        if wanted and wanted.zfill(2) == lesson.number or wanted in (lesson.name, lesson.topic):
            return lesson
    listed = ", ".join(f"{lesson.number} ({lesson.topic})" for lesson in known) or "none yet"
    raise CourseError(f"There is no lesson {name!r}. There are: {listed}.")
