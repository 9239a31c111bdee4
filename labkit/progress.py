"""Which exercises this learner has solved: one small file each, so that two notebooks never fight over one."""

import json
import os
import re
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from labkit import hardware
from labkit.show import show

_NUMBER = re.compile(r"\d+\.\d+")
_state = {"recording": True, "warned": False}


def folder() -> Path:
    """Where the marks are kept."""
    return hardware.user_folder() / "progress"


def recording(on: bool) -> None:
    """Turn recording on or off for this process: `labkit run` runs the reference, which solves nothing."""
    _state["recording"] = on


def solved() -> set[str]:
    """The numbers of the solved exercises; a file that cannot be read is left out with a sentence."""
    found = set()
    for path in sorted(folder().glob("*.json")):
        try:
            number = json.loads(path.read_text(encoding="utf-8"))["exercise"]
            if not _NUMBER.fullmatch(number):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            show(f"Left out {path}: it cannot be read as a solved exercise.")
            continue
        found.add(number)
    return found


def record(number: str) -> bool:
    """Note that exercise `number` is solved; returns whether it is now on disk. Never raises for a folder's fault."""
    try:
        if not _state["recording"] or _reference_runs():
            return False
        _write(folder() / f"{number}.json", {"exercise": number, "solved": _now()})
    except OSError as error:
        _warn(error)
        return False
    return True


def _now() -> str:
    """The time to the second, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _write(path: Path, mark: dict[str, str]) -> None:
    """Put a mark at `path` all at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".draft")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(mark, file)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def reset() -> int:
    """Forget every solved exercise; returns how many marks were removed."""
    paths = [path for pattern in ("*.json", "*.draft") for path in folder().glob(pattern)]
    for path in paths:
        path.unlink(missing_ok=True)
    return sum(path.suffix == ".json" for path in paths)


def _reference_runs() -> bool:
    """Whether what runs is a lesson's source or its solved notebook, in which every exercise passes by itself."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    running = [Path.cwd() / "kernel"] + [Path(path).absolute() for path in (hardware.notebook_path(), main) if path]
    return any(path.parent.name == "solutions" for path in running)


def _warn(error: OSError) -> None:
    """Say once that marks cannot be kept."""
    if not _state["warned"]:
        show(f"Solved exercises cannot be noted in {folder()}: {error.strerror or error}. Everything else works.")
    _state["warned"] = True
