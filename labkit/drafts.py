"""Files that are there whole or not at all: a draft beside the place, which takes it in one step."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

DRAFT = ".labkit-draft-"
"""How the name of a draft begins, which a kill may leave behind."""


def write_text(path: Path, text: str) -> None:
    """Write a text to path, whole or not at all; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=DRAFT)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
