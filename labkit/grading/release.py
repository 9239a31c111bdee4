"""What students are given: their notebook, and a signed manifest that later tells what they changed in it.

The signature is an HMAC with a key of the instructor's own: whoever has the manifest can read it, nobody else can make
one that passes. It says nothing about notebooks that come back; their cells are compared with the manifest one by one.
"""

import ast
import hashlib
import hmac
import inspect
import json
import os
import re
import secrets
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit import __version__, build
from labkit.build import Converted
from labkit.course import CourseError, Lesson
from labkit.grading.calls import checked, only_calls
from labkit.grading.source import sha256

_STUB = re.compile(r'raise NotImplementedError\("exercise (\d+\.\d+)"\)')
_FORMAT = 1
_KEY_BYTES = 32
_LEAST = 12  # characters of a line that gives something away where it has no business
_LEAST_WHOLE = 20  # characters of a whole solution; a shorter one is what anybody may write in a lesson


@dataclass(frozen=True, kw_only=True)
class ReleasedCell:
    """A cell as it was given out; role: `exercise`, `check`, `released` (any other code) or `text`.

    names: what an exercise's cell defines; sha256: of the normalised source.
    """

    index: int
    cell_id: str
    role: str
    exercise: str | None
    points: int
    names: tuple[str, ...]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """A lesson as it was given out, by which labkit; signed: whether that comes from a manifest that was verified."""

    lesson: str
    version: str
    cells: tuple[ReleasedCell, ...]
    signed: bool = False

    @property
    def exercises(self) -> dict[str, ReleasedCell]:
        """The cell of each exercise, by number, in the lesson's order."""
        return {cell.exercise: cell for cell in self.cells if cell.role == "exercise"}

    @property
    def sha256(self) -> str:
        """The hash of all that was given out, in hexadecimal."""
        return build.digest([self.lesson, [asdict(cell) for cell in self.cells]])


def from_course(lesson: Lesson) -> Release:
    """The release that the notebook in notebooks/ is: what the lesson's source makes, with no signature."""
    return _release(lesson, build.convert(lesson))


def release(lesson: Lesson, out: Path) -> tuple[Path, Path]:
    """Write the student notebook and its manifest into the folder `out`; returns both paths.

    CourseError: something leaks, a notebook there was worked in, a folder that is a file, a key that cannot be used.
    """
    cells = build.convert(lesson)
    made = _release(lesson, cells)
    text = _notebook(cells, made)
    if found := leaks(lesson, text):
        raise CourseError(f"{lesson.name} is not released: {found[0]}")
    notebook, manifest = out / f"{lesson.name}.ipynb", out / f"{lesson.name}.release.json"
    if out.exists() and not out.is_dir():
        raise CourseError(f"{out} is a file: give --out a folder.")
    if (there := build.stored(notebook)) and there.edited:
        raise CourseError(f"{notebook} was edited by hand: move it away, or give --out another folder.")
    signed = manifest_text(made)
    build.write(notebook, text)
    build.write(manifest, signed)
    return notebook, manifest


def _release(lesson: Lesson, cells: Sequence[Converted]) -> Release:
    """The release that these cells make."""
    ids = [cell["id"] for cell in json.loads(build.student_notebook(cells))["cells"]]
    by_name = {name: number for cell in cells if (number := _exercise(cell)) for name in _asked(cell.student)}
    made = (_cell(index, cell_id, cell, by_name) for index, (cell_id, cell) in enumerate(zip(ids, cells, strict=True)))
    return Release(lesson=lesson.name, version=__version__, cells=tuple(made))


def _exercise(cell: Converted) -> str | None:
    """The number of the exercise that a cell is, by the line that its stub raises."""
    found = _STUB.search(cell.student) if cell.student != cell.solution else None
    return found and found[1]


def _asked(stub: str) -> tuple[str, ...]:
    """What a learner is to write in an exercise's cell: the functions and classes in which its stub raises."""
    defined = [node for node in ast.parse(stub).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return tuple(node.name for node in defined if _STUB.search(ast.unparse(node).replace("'", '"')))


def _cell(index: int, cell_id: str, cell: Converted, by_name: dict[str, str]) -> ReleasedCell:
    """One cell of a release; by_name says which exercise a function is of."""
    number = _exercise(cell)
    role, defined = ("exercise" if number else "released"), ()
    if cell.kind != "code":
        role = "text"
    elif number:
        defined = _asked(cell.student)
    elif only_calls(cell.student):
        role = "check"
        number = next((by_name[name] for name in sorted(checked(cell.student)) if name in by_name), None)
    return ReleasedCell(
        index=index,
        cell_id=cell_id,
        role=role,
        exercise=number,
        points=_points(number, defined) if role == "exercise" else 0,
        names=defined,
        sha256=sha256(cell.student),
    )


def _declared(number: str | None, defined: Sequence[str]) -> object:
    """The course's declaration of an exercise; None where no check knows its number and name."""
    from labkit import checks

    return next((one for one in checks.exercises() if one.number == number and one.name in defined), None)


def _points(number: str, defined: Sequence[str]) -> int:
    """Points of an exercise: those that its check declares, else 1."""
    return getattr(_declared(number, defined), "points", 1)


def _notebook(cells: Sequence[Converted], made: Release) -> str:
    """The student notebook as JSON text; to nbgrader the text of an exercise is a task, which a person grades.

    A test would be wrong there: `check` shows what it finds and raises nothing, so that every answer passed. And of a
    cell that is marked as an answer, nbgrader's generate_assignment takes all code away, the head of the function too.
    Source: nbgrader's cell metadata, schema 3, https://github.com/jupyter/nbgrader, nbgraderformat/v3.json.
    """
    notebook = json.loads(build.student_notebook(cells))
    headed = {number: index for index, cell in enumerate(cells) for number in build.headed(cell)}
    for cell in made.exercises.values():
        task = {"grade": False, "locked": True, "points": cell.points, "solution": False, "task": True}
        task |= {"grade_id": f"exercise-{cell.exercise.replace('.', '-')}", "schema_version": 3}
        notebook["cells"][headed[cell.exercise]]["metadata"]["nbgrader"] = task
    notebook["metadata"]["labkit"] |= {"lesson": made.lesson, "release": made.sha256, "version": made.version}
    return json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def leaks(lesson: Lesson, text: str) -> list[str]:
    """What a notebook gives away, one sentence each: solution text, a check's own code, an attachment, an output."""
    cells, notebook = build.convert(lesson), json.loads(text)
    public = {cell.student for cell in cells}
    secret = {f"exercise {_exercise(cell)}": _removed(cell) for cell in cells if _exercise(cell)}
    secret |= _of_checks(cells)
    found = []
    for index, cell in enumerate(notebook["cells"]):
        found += [f"cell {index} has an attachment."] if cell.get("attachments") else []
        found += [f"cell {index} has outputs."] if cell.get("outputs") else []
    for value in _strings(notebook):
        lines = _lines(value)
        for name, kept in secret.items():
            whole = len("\n".join(kept)) >= _LEAST_WHOLE and "\n".join(kept) in "\n".join(lines)
            stray = value not in public and any(len(line) >= _LEAST and line in "\n".join(lines) for line in kept)
            found += [f"the code of {name} occurs in it: {value.strip()[:60]!r}."] if whole or stray else []
    return found


def _lines(text: str) -> list[str]:
    """The lines of a text without indentation and blank ones."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _removed(cell: Converted) -> list[str]:
    """The lines of a solution that its student does not get."""
    given, kept = Counter(_lines(cell.student)), []
    for line in _lines(cell.solution):
        kept += [] if given[line] > 0 else [line]
        given[line] -= 1
    return kept


def _of_checks(cells: Sequence[Converted]) -> dict[str, list[str]]:
    """The code behind each exercise's check: the reference, and how its inputs are drawn."""
    found = {}
    for cell in cells:
        number = _exercise(cell)
        declared = _declared(number, _asked(cell.student)) if number else None
        for part in ("reference", "cases") if declared else ():
            found[f"the {part} of exercise {number}"] = _body_of(getattr(declared, part))
    return found


def _body_of(function: object) -> list[str]:
    """The lines of a function or class under its head and docstring; none where its source is not its own."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):  # a lambda within a call, or made by a call
        return []
    body = getattr(node, "body", [])
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return []
    return _lines("\n".join(ast.unparse(one) for one in (body[1:] if ast.get_docstring(node) else body)))


def _strings(value: object) -> Iterator[str]:
    """Every text in a JSON value; a list of lines is one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        yield "".join(value)
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def manifest_text(made: Release) -> str:
    """The manifest as signed JSON text."""
    body = {"format": _FORMAT, "lesson": made.lesson, "labkit": made.version, "cells": [asdict(c) for c in made.cells]}
    return json.dumps(body | {"signature": _signature(body)}, indent=1, sort_keys=True) + "\n"


def load(path: Path) -> Release:
    """The release that a manifest describes. CourseError: unreadable, changed since, or signed with another key."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        signature = body.pop("signature")
        cells = [ReleasedCell(**cell | {"names": tuple(cell["names"])}) for cell in body["cells"]]
        made = Release(lesson=body["lesson"], version=body["labkit"], cells=tuple(cells), signed=True)
        matches = hmac.compare_digest(signature.encode(), _signature(body).encode())
    except FileNotFoundError:
        raise CourseError(f"{path} is not there: labkit release writes it.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CourseError(f"{path} is no manifest of a release: labkit release writes one.") from None
    if not matches:
        way = f"release the lesson anew, or copy the key of whoever signed it to {key_path()}"
        raise CourseError(f"{path} was changed after it was signed, or signed with another key: {way}.")
    return made


def _signature(body: dict) -> str:
    """The HMAC-SHA256 of a manifest's content under this instructor's key, in hexadecimal."""
    content = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key(), content, hashlib.sha256).hexdigest()


def key_path() -> Path:
    """Where the instructor's key is kept."""
    import platformdirs

    return platformdirs.user_config_path("labkit") / "release.key"


def key() -> bytes:
    """The instructor's key, made when first asked for, for its owner alone. CourseError: one that others can read."""
    path = key_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    if not path.exists():
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(_KEY_BYTES))
            if not path.exists():  # of two that make one at once, the later one reads the earlier one's below
                os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise CourseError(f"{path} can be read by others, so it proves nothing: run chmod 600 {path}.")
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch(rf"[0-9a-f]{{{2 * _KEY_BYTES}}}", text):
        raise CourseError(f"{path} is no key: move it away, and the next release makes a new one.")
    return bytes.fromhex(text)
