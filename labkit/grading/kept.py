"""What was found for a student, kept under a name that says all that it depends on."""

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import labkit
from labkit import build
from labkit.grading import submission
from labkit.grading.notebook import MAX_BYTES

_PASSING = "It was changed while it was graded: grade again."


def path(folder: Path, batch: Any, place: Path) -> Path:
    """The file in `place` for the results of a student's folder, as it and the batch are now."""
    paths = submission.notebooks(folder)[: submission.MAX_NOTEBOOKS]
    files = [(each.name, _sha256(each)) for each in paths]
    told = [batch.told(), batch.trusted, asdict(batch.limits)]
    return place / f"{build.digest([folder.name, files, *told, _code()])[:40]}.json"


def read(file: Path) -> dict:
    """What is kept in a file."""
    return json.loads(file.read_text(encoding="utf-8"))


def write(file: Path, found: dict, still: bool = True) -> None:
    """Keep it, without signs that no text in UTF-8 can hold, such as of a file's name.

    still: whether what was graded was so to the end. If not, it is kept for tables, with a note, and does not stand.
    """
    if not still:
        found = found | {"passing": True, "notes": [*found["notes"], _PASSING]}
    build.write(file, json.dumps(found, indent=1, ensure_ascii=False).encode("utf-8", "replace").decode())


def stands(file: Path) -> bool:
    """Whether something is kept there, and holds no fault of the grader, which may have passed meanwhile."""
    found = read(file) if file.exists() else {"passing": True}
    return not found.get("passing") and "ungraded" not in {row["status"] for row in found["results"]}


def name(folder: Path) -> str:
    """A student's name by the folder; bytes of it that are no UTF-8 are written out."""
    return folder.name.encode("utf-8", "backslashreplace").decode()


@cache
def _code() -> str:
    """The hash of labkit's own code, read once: a process goes on with what it has loaded."""
    code = [each.read_text(encoding="utf-8") for each in sorted(Path(labkit.__file__).parent.rglob("*.py"))]
    return build.digest(code)


def _sha256(file: Path) -> str:
    """A file's hash; of one that is too large to be read as a notebook its size and time, of another why it is not."""
    try:
        told = file.stat()
        if told.st_size > MAX_BYTES:
            return f"{told.st_size} {told.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:  # gone meanwhile, or nobody's to read
        return f"{error.strerror}"
