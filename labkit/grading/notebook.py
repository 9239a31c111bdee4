"""A notebook file from a stranger, read as plain cells: every version of the format, and whatever went wrong with it.

Nothing of it is believed and nothing is run. What cannot be read is one sentence, an Unreadable; what can be read in
spite of a fault comes with a note.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.grading.source import unix

MAX_BYTES = 50_000_000  # a notebook with its outputs
MAX_VALUES = 6_000_000  # a small value takes thirty times as much of Python's memory as of the file
MAX_CELLS = 5_000
MAX_CHARACTERS = 1_000_000  # of one cell's source
MAX_CODE = 400_000  # characters of code in all: a lesson has some tens of thousands
_CONFLICT = re.compile(rb"^(<<<<<<< |>>>>>>> )", re.MULTILINE)
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}
_AGAIN = "save the notebook, open it once more to see that it is whole, and hand it in again."


class Unreadable(Exception):
    """Why a file is no notebook that can be graded: one sentence without the file's name."""


@dataclass(frozen=True, kw_only=True)
class RawCell:
    """A cell as its file has it: kind is `code`, `markdown`, `raw` or whatever else stands there.

    nbgrader: what that tool keeps in the cell's metadata, as it stands there.
    """

    index: int
    kind: str
    cell_id: str
    source: str
    nbgrader: Mapping[str, object] = field(default_factory=dict)


def read_bytes(path: Path) -> bytes:
    """The bytes of a plain file that is not too large. Unreadable: a link, a pipe, a folder, one that is not there."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if path.is_symlink():
            raise Unreadable("is a link, and links are not followed.") from None
        raise Unreadable(f"cannot be opened: {error.strerror}.") from None
    except ValueError:
        raise Unreadable("has a name that no file can have.") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("is no plain file.")
        if found.st_size > MAX_BYTES:
            raise Unreadable(f"has {found.st_size / 1e6:.0f} MB, and at most {MAX_BYTES / 1e6:.0f} MB are read.")
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}.") from None
    finally:
        os.close(handle)


def parse(data: bytes) -> tuple[list[RawCell], list[str]]:
    """The cells of a notebook and what was odd about it. Unreadable: it is none."""
    notebook = _json(data)
    if not isinstance(notebook, dict):
        raise Unreadable("is JSON but no notebook: it holds no cells.")
    found = _cells(notebook)
    if len(found) > MAX_CELLS:
        raise Unreadable(f"has {len(found)} cells, and at most {MAX_CELLS} are read.")
    notes = _about(notebook)
    cells = []
    for index, each in enumerate(found):
        try:
            cells.append(_cell(index, each))
        except Unreadable as fault:
            notes.append(f"Cell {index} {fault} It was left out.")
    if (total := sum(len(cell.source) for cell in cells if cell.kind == "code")) > MAX_CODE:
        raise Unreadable(f"holds {total} characters of code, and at most {MAX_CODE} are read.")
    return cells, notes


def _json(data: bytes) -> object:
    """The JSON value in a file, whatever Windows made of its encoding."""
    if not data.strip(b" \t\r\n\0"):
        raise Unreadable(f"is empty, perhaps as it was handed in before it was saved: {_AGAIN}")
    if data.count(b"{") + data.count(b"[") + data.count(b",") > MAX_VALUES:
        raise Unreadable(f"holds more than {MAX_VALUES / 1e6:.0f} million values: clear its outputs.")
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        return json.loads(data.decode(encoding))
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 text (byte {error.start}).") from None
    except RecursionError:
        raise Unreadable("is nested too deeply to be a notebook.") from None
    except json.JSONDecodeError as error:
        if conflict := _CONFLICT.search(data):
            line = data.count(b"\n", 0, conflict.start()) + 1
            raise Unreadable(f"has marks of an unresolved merge conflict (line {line}).") from None
        ends = error.pos >= len(data.rstrip()) - 1 or error.msg.startswith("Unterminated string")
        what = "it is cut off" if data.lstrip()[:1] == b"{" and ends else error.msg.removesuffix(" at")
        raise Unreadable(f"is no valid JSON (line {error.lineno}: {what}): {_AGAIN}") from None
    except ValueError:  # a number of more digits than Python reads
        raise Unreadable("holds a number that is too long to be read.") from None


def _cells(notebook: dict) -> list:
    """The raw cells, of version 4 and later, or of all worksheets of an older one."""
    if isinstance(notebook.get("cells"), list):
        return notebook["cells"]
    sheets = notebook.get("worksheets")
    if not isinstance(sheets, list):
        raise Unreadable("is JSON but no notebook: it holds no cells.")
    within = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
    return [cell for cells in within if isinstance(cells, list) for cell in cells]


def _about(notebook: dict) -> list[str]:
    """What is odd about a notebook as a whole, without being a reason not to read it."""
    notes, version, metadata = [], notebook.get("nbformat"), notebook.get("metadata")
    if not isinstance(version, int) or not 3 <= version <= 4:
        notes.append(f"Its format is {str(version)[:20]!r}, which is not known; it was read as what it looks like.")
    language = None
    for name in ("kernelspec", "language_info"):
        part = metadata.get(name) if isinstance(metadata, dict) else None
        said = part.get("language" if name == "kernelspec" else "name") if isinstance(part, dict) else None
        language = language or (said if isinstance(said, str) else None)
    if language and not language.lower().startswith(("python", "ipython")):
        notes.append(f"Its kernel speaks {language[:20]!r}; its cells were run as Python all the same.")
    return notes


def _cell(index: int, cell: object) -> RawCell:
    """One cell. Unreadable: it has no source that is text."""
    if not isinstance(cell, dict):
        raise Unreadable("is no cell.")
    kind, metadata = cell.get("cell_type"), cell.get("metadata")
    source = cell.get("source", cell.get("input", ""))  # `input` is version 3's name for code
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        whole = all(line.endswith("\n") for line in source[:-1])
        source = "".join(source) if whole or any("\n" in line for line in source[:-1]) else "\n".join(source)
    if not isinstance(source, str):
        raise Unreadable("has a source that is no text.")
    if len(source) > MAX_CHARACTERS:
        raise Unreadable(f"holds {len(source)} characters, and at most {MAX_CHARACTERS} are read.")
    named = [cell.get("id"), metadata.get("id") if isinstance(metadata, dict) else None]  # Colab keeps it in metadata
    cell_id = next((one for one in named if isinstance(one, str)), "")[:64]
    kind = kind if isinstance(kind, str) else ""
    kept = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    both = {"index": index, "kind": kind, "nbgrader": kept if isinstance(kept, dict) else {}}
    return RawCell(cell_id=_whole(cell_id), source=unix(_whole(source)), **both)


def _whole(text: str) -> str:
    """The text with a mark in place of each half of a character, which JSON may hold and no encoding can write."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
