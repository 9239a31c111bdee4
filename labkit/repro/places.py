"""Which folder a run belongs to, and what git says there."""

import subprocess
from pathlib import Path

from labkit import course, hardware


def home() -> Path:
    """The folder that a run belongs to: the course around the current folder, else the repository, else that folder."""
    here = Path.cwd()
    try:
        if here.is_relative_to(root := course.root()):
            return root
    except course.CourseError:
        pass
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def runs_folder() -> Path:
    """Where records are kept: LABKIT_RUNS, else runs/ in the folder of a run. CourseError: it is no whole path."""
    return hardware.named_folder("LABKIT_RUNS") or home() / "runs"


def git(*arguments: str, at: Path | None = None) -> str | None:
    """What git says in a folder, by default the course's; None where there is no git or no repository."""
    try:
        command = ("git", "-C", str(course.root() if at is None else at), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError, course.CourseError):
        return None
    return done.stdout.strip()
