"""Notebooks from lesson sources: a pure function of solutions/*.py, and the comparison of what is on disk with it.

Writing them needs no Jupyter. Outputs come from labkit.execute and are carried over here for as long as the code that
made them is unchanged; a change of prose keeps them.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit import course
from labkit.course import CourseError, Lesson
from labkit.drafts import DRAFT, write_text

_HEADING = re.compile(r"^(#+)\s+(.*)$", re.MULTILINE)
_EXERCISE = re.compile(r"\bExercise (\d+\.\d+)\b")
_MARKER = re.compile(r"^\s*#+\s*(begin|end)\s+solution\b", re.IGNORECASE)
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass(frozen=True, kw_only=True)
class Converted:
    """One cell as a learner sees it and as it is solved; lines holds the source line of each solved line."""

    kind: str
    student: str
    solution: str
    lines: tuple[int, ...]


def convert(lesson: Lesson) -> list[Converted]:
    """The lesson's cells with exercises cut out; a mistake in the source is a CourseError that names its line."""
    try:
        cells = course.split_cells(lesson.text())
    except CourseError as error:
        raise CourseError(f"{lesson.source.name}: {error}") from error
    exercise, level, known, converted = None, 0, {}, []
    for cell in cells:
        if cell.kind == "code":
            converted.append(_cut(cell, exercise, lesson.source.name))
            continue
        for marks, text in _HEADING.findall(cell.source):
            number = _EXERCISE.search(text)
            if number and number[1] in known:
                first = known[number[1]]
                where = f"{lesson.source.name}, line {cell.first_line}"
                raise CourseError(f"{where}: exercise {number[1]} is already there, in the cell at line {first}.")
            if number:
                exercise, level = number[1], len(marks)
                known[exercise] = cell.first_line
            elif len(marks) <= level:
                exercise = None
        converted.append(Converted(kind="markdown", student=cell.source, solution=cell.source, lines=()))
    return converted


def _cut(cell: course.Cell, exercise: str | None, name: str) -> Converted:
    """A code cell, its solution regions replaced for the learner by one line that raises."""
    student, solution, lines, opened = [], [], [], None
    for number, line in enumerate(cell.source.split("\n"), start=cell.first_line):
        marker = _MARKER.match(line)
        if marker:
            opened = _region(line, opened, exercise, f"{name}, line {number}")
            if opened:
                student.append(opened + f'raise NotImplementedError("exercise {exercise}")')
            continue
        solution.append(line)
        lines.append(number)
        if not opened:
            student.append(line)
    if opened:
        raise CourseError(f"{name}, cell at line {cell.first_line}: '{_BEGIN}' is never closed by '{_END}'.")
    texts = ("\n".join(part).rstrip() for part in (student, solution))
    return Converted(kind="code", student=next(texts), solution=next(texts), lines=tuple(lines))


def _region(line: str, opened: str | None, exercise: str | None, where: str) -> str | None:
    """The indentation of the region that a marker opens, None where it closes one; a wrong marker is an error."""
    mark, indent = line.strip(), line[: len(line) - len(line.lstrip())]
    if mark not in (_BEGIN, _END):
        raise CourseError(f"{where}: write the marker exactly as '{_BEGIN}' or '{_END}', not {mark!r}.")
    if mark == _END and not opened:
        raise CourseError(f"{where}: '{_END}' without a '{_BEGIN}' before it in the same cell.")
    if mark == _END:
        return None
    if opened:
        raise CourseError(f"{where}: '{_BEGIN}' inside another solution region.")
    if not exercise:
        raise CourseError(f"{where}: a solution region needs a heading 'Exercise 1.2 · Name' above it.")
    if not indent:
        raise CourseError(f"{where}: a solution must lie inside a function, or the learner's notebook stops there.")
    return indent


def exercises(lesson: Lesson) -> list[str]:
    """The numbers of the lesson's exercises, in order."""
    return [number for cell in course.split_cells(lesson.text()) for number in headed(cell)]


def headed(cell: course.Cell | Converted) -> list[str]:
    """The numbers of the exercises whose headings are in a cell."""
    source = cell.source if isinstance(cell, course.Cell) else cell.student
    headings = [text for _, text in _HEADING.findall(source)] if cell.kind == "markdown" else []
    return [match[1] for match in map(_EXERCISE.search, headings) if match]


def digest(value: object) -> str:
    """The SHA-256 of a JSON value, in hexadecimal."""
    told = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()  # a file's name may be no UTF-8


def code_sha256(cells: Sequence[Converted]) -> str:
    """The hash of the solved code alone: outputs belong to it, whatever the prose around it says."""
    return digest([cell.solution for cell in cells if cell.kind == "code"])


def student_notebook(cells: Sequence[Converted]) -> str:
    """The learner's notebook as JSON text: stubs, no outputs."""
    return _render(cells, [cell.student for cell in cells], [], {})


def solution_notebook(cells: Sequence[Converted], outputs: Sequence[list] = (), ran: str | None = None) -> str:
    """The solved notebook as JSON text, with the outputs of each code cell and the hash of the code that made them."""
    made = {"source_sha256": ran, "outputs_sha256": digest(list(outputs))} if ran else {}
    return _render(cells, [cell.solution for cell in cells], outputs if ran else (), made)


def _render(cells: Sequence[Converted], sources: list[str], outputs: Sequence[list], made: dict[str, str]) -> str:
    """A notebook as Jupyter itself would write it: keys sorted, one space of indentation, a newline at the end."""
    seen: Counter[str] = Counter()
    remaining = iter(outputs)
    body, count = [], 0
    for cell, source in zip(cells, sources, strict=True):
        key = digest([cell.kind, cell.student])
        seen[key] += 1
        entry = {"cell_type": cell.kind, "id": digest([key, seen[key]])[:12], "metadata": {}}
        if cell.kind == "code":
            count += 1
            ran = next(remaining, None)
            entry |= {"execution_count": None if ran is None else count, "outputs": ran or []}
        body.append(entry | {"source": source.splitlines(keepends=True)})
    metadata = _METADATA | {"labkit": {"cells_sha256": cells_sha256(body)} | made}
    notebook = {"cells": body, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def cells_sha256(body: Sequence[dict]) -> str:
    """The hash of what the cells hold, outputs left out: it tells a hand edit from an older source."""
    return digest([[cell.get("cell_type"), "".join(cell.get("source", []))] for cell in body])


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A notebook on disk: its text, the outputs of its code cells, and what labkit noted in its metadata."""

    text: str
    outputs: list[list]
    noted: dict[str, str]
    edited: bool


def stored(path: Path) -> Stored | None:
    """The notebook at `path`, None where there is none; one that is no notebook counts as edited."""
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        notebook = json.loads(text)
        noted = notebook["metadata"].get("labkit", {})
        outputs = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        same = noted.get("cells_sha256") == cells_sha256(notebook["cells"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return Stored(text=text, outputs=[], noted={}, edited=True)
    made = digest(outputs) if any(outputs) or "outputs_sha256" in noted else None
    edited = not same or noted.get("outputs_sha256") != made
    return Stored(text=text, outputs=outputs, noted=noted, edited=edited)


def expected(lesson: Lesson) -> dict[Path, str]:
    """What the lesson's two notebooks must hold, the outputs on disk carried over while the code is unchanged."""
    cells, found = convert(lesson), stored(lesson.solution)
    ran = found.noted.get("source_sha256") if found else None
    keep = found and not found.edited and ran == code_sha256(cells)
    solved = solution_notebook(cells, found.outputs, ran) if keep else solution_notebook(cells)
    return {lesson.student: student_notebook(cells), lesson.solution: solved}


def check() -> list[str]:
    """What is wrong with the notebooks on disk, one sentence each, the file named; empty when nothing is."""
    known = course.lessons()
    found = [_compare(lesson, path, text) for lesson in known for path, text in expected(lesson).items()]
    return [line for lines in found for line in lines] + _orphans(known) + _strays()


def _compare(lesson: Lesson, path: Path, text: str) -> list[str]:
    """What is wrong with one notebook of a lesson, the most telling thing first."""
    name, found = name_of(path), stored(path)
    execute = f"run labkit build --execute {lesson.number}"
    if found is None:
        return [f"{name} is missing: run labkit build."]
    if found.edited:
        return [f"{name} was edited by hand: edit {lesson.source.name}, then run labkit build --force."]
    if path == lesson.solution and "source_sha256" not in found.noted:
        return [f"{name} was never executed: {execute}."]
    if path == lesson.solution and found.noted["source_sha256"] != code_sha256(convert(lesson)):
        return [f"{name} has outputs that belong to an older source: {execute}."]
    if found.text != text:
        return [f"{name} is stale, made from an older source or saved by another tool: run labkit build."]
    return []


def _orphans(known: Sequence[Lesson]) -> list[str]:
    """The notebooks that no lesson made."""
    root = course.root()
    made = {path for lesson in known for path in (lesson.student, lesson.solution)}
    found = [path for folder in ("notebooks", "solutions") for path in sorted((root / folder).rglob("*.ipynb"))]
    strays = [path for path in found if path not in made and ".ipynb_checkpoints" not in path.parts]
    return [f"{path.relative_to(root).as_posix()} has no source: delete it or add a lesson." for path in strays]


def _strays() -> list[str]:
    """The sources that no lesson is made from, for their names."""
    rule = "its name must be two digits and a topic in small letters, such as 01_lr_warmup.py"
    return [f"{name_of(path)} is no lesson: {rule}." for path in course.strays()]


def name_of(path: Path) -> str:
    """`notebooks/01_lr_warmup.ipynb`."""
    return f"{path.parent.name}/{path.name}"


def build(known: Sequence[Lesson], *, force: bool = False) -> list[str]:
    """Write the lessons' notebooks and say what happened, a line each; a file edited by hand stops it unless forced."""
    clean()
    wanted = [(lesson, expected(lesson)) for lesson in known]
    if not force:
        refuse_edited([path for _, texts in wanted for path in texts])
    lines = []
    for lesson, texts in wanted:
        lines += [f"wrote {name_of(path)}" for path, text in texts.items() if write(path, text)]
        if '"source_sha256"' not in texts[lesson.solution]:
            lines.append(f"{name_of(lesson.solution)} has no outputs: run labkit build --execute {lesson.number}")
    return lines


def refuse_edited(paths: Sequence[Path]) -> None:
    """A CourseError that names the notebooks someone has worked in, where there are any."""
    edited = [name_of(path) for path in paths if (found := stored(path)) and found.edited]
    if edited:
        raise CourseError(f"Edited by hand: {', '.join(edited)}. Move your work away, or overwrite it with --force.")


def write(path: Path, text: str) -> bool:
    """Put `text` at `path` all at once; returns whether that changed the file."""
    if path.exists() and path.read_bytes() == text.encode():
        return False
    write_text(path, text)
    return True


def clean() -> None:
    """Remove what an interrupted build left behind."""
    for folder in ("notebooks", "solutions"):
        for draft in (course.root() / folder).glob(f"{DRAFT}*"):
            draft.unlink(missing_ok=True)
