"""Values as JSON holds them, and files that are there whole or not at all."""

import os
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path


def plain(value: object) -> object:
    """`value` as JSON can hold it: dataclasses to dictionaries, paths and other objects to text."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Namespace):
        return plain(vars(value))
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)  # their own order is another one in every process
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # of NumPy or torch
        value = value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def write_text(path: Path, text: str) -> None:
    """Write a text to path, whole or not at all; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
