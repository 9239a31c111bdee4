"""Seeds, the manifest of a run, and the recordings made on named hardware."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labkit import course, hardware

_PACKAGES = ("labkit", "torch", "numpy", "matplotlib", "scikit-learn", "accelerate", "triton")


def budget() -> str:
    """`full`, or `smoke` where LABKIT_BUDGET asks for fewer repeats and epochs: a preview that decides no claim."""
    chosen = os.environ.get("LABKIT_BUDGET") or "full"
    if chosen not in ("full", "smoke"):
        raise course.CourseError(f"LABKIT_BUDGET is {chosen!r}; it may be 'full' or 'smoke'.")
    return chosen


def strict() -> bool:
    """Whether a refuted claim raises, as it does in tests (LABKIT_STRICT=1), instead of only saying so."""
    return os.environ.get("LABKIT_STRICT") == "1"


def quiet() -> bool:
    """Whether progress bars stay silent: in tests and while outputs are being stored (LABKIT_QUIET=1)."""
    return os.environ.get("LABKIT_QUIET") == "1"


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators (torch seeds every GPU too)."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def _git(*arguments: str) -> str | None:
    """What git says of the course's folder; None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ("git", "-C", str(course.root()), *arguments), capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError, course.CourseError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plain(value: object) -> object:
    """`value` as JSON can hold it: dataclasses to dictionaries, paths and other objects to text."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def manifest(
    *,
    config: object = None,
    data: Mapping[str, str] | None = None,
    seeds: tuple[int, ...] = (),
    command: str | None = None,
) -> dict:
    """What is needed to make a run again: code, versions, hardware, configuration, data hashes and seeds.

    revision and diff_sha256 name the code: the commit, and the hash of what differs from it (None where nothing does
    or git is missing). Files that git does not know are not part of the hash. command: by default that of this process.
    """
    known = bool(_git("ls-files"))  # not the repository of a folder around an unpacked zip
    diff = _git("diff", "HEAD") if known else None
    machine = hardware.machine()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "revision": _git("rev-parse", "HEAD") if known else None,
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "versions": {"python": machine.python} | {name: _version(name) for name in _PACKAGES if _version(name)},
        "hardware": {"name": machine.name, **asdict(machine)},
        "config": _plain(config),
        "data": dict(data or {}),
        "seeds": list(seeds),
    }


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recorded run: the hardware's name, the day, the figures and the manifest that makes the run again."""

    hardware: str
    date: str
    results: dict
    manifest: dict


def _folder(root: Path | None = None) -> Path:
    """Where a course, by default the one around here, keeps its recordings."""
    return (root or course.root()) / "datasets" / "recorded"


def write_recording(lesson: str, results: Mapping, manifest: Mapping, *, root: Path | None = None) -> Path:
    """Write one recording under this machine's name, whole or not at all; an older one of the lesson is replaced.

    root: the course's folder, by default the one around here.
    """
    path = _folder(root) / hardware.machine().slug / f"{lesson}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    text = json.dumps({"manifest": _plain(manifest), "results": _plain(results)}, indent=1, allow_nan=False)
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def recordings(lesson: str) -> list[Recording]:
    """Every recording of a lesson such as `01_lr_warmup`, in the order of the hardware's names.

    CourseError: a file among them that is no recording.
    """
    return [read_recording(path) for path in recording_files(lesson)]


def recording_files(lesson: str) -> list[Path]:
    """The files that hold a lesson's recordings, in the order of the hardware's names; none outside a course."""
    return sorted(_folder().glob(f"*/{lesson}.json"))


def read_recording(path: Path) -> Recording:
    """The recording in `path`; a file that is not one is a CourseError naming it."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        made = held["manifest"]
        if not isinstance(held["results"], dict):
            raise TypeError("its results are no dictionary")
        return Recording(
            hardware=made["hardware"]["name"], date=made["date"][:10], results=held["results"], manifest=made
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise course.CourseError(f"{path.parent.name}/{path.name} is not a recording: {error!r}.") from error
