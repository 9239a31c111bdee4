"""The recordings that a course keeps: what its lessons measured on named hardware."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit import course, hardware
from labkit.drafts import write_text
from labkit.repro.files import plain


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
    held = {"manifest": plain(manifest), "results": plain(results)}
    write_text(path, json.dumps(held, indent=1, allow_nan=False) + "\n")
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
