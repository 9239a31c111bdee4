"""A course of a few files in a folder of its own, under git: runs recorded there leave no trace in the real one."""

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from labkit import course

_GIT = ("-c", "user.name=learner", "-c", "user.email=learner@localhost", "-c", "commit.gpgsign=false")
_PARTED = 1  # how `labkit runs` ends where two runs are not alike


class Scratch:
    """A folder with files, committed once; gone when the object is. CourseError: there is no git."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="labkit-")).resolve()
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        package = Path(__file__).resolve().parent
        (self.path / "solutions").mkdir()  # with labkit/, what makes a folder a course
        with suppress(OSError):  # Windows asks for a right; there labkit is installed, and an empty folder does
            (self.path / "labkit").symlink_to(package, target_is_directory=True)
        (self.path / "labkit").mkdir(exist_ok=True)
        paths = [str(package.parent), *sys.path]
        self._variables = {"LABKIT_RUNS": str(self.path / "runs"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.write("solutions/README.md", "A course without lessons.\n")
        self.write(".gitignore", "/runs/\n__pycache__/\n")
        for name, text in files.items():
            self.write(name, text)
        for arguments in (("init", "-q"), ("add", "."), (*_GIT, "commit", "-q", "--no-verify", "-m", "First")):
            self._said(["git", *arguments])

    def write(self, name: str, text: str) -> None:
        """Put a text into a file; nothing is committed."""
        (self.path / name).write_text(text, encoding="utf-8")

    def python(self, *arguments: str) -> str:
        """What Python prints with these arguments, in the folder."""
        return self._said([sys.executable, *arguments])

    def labkit(self, *arguments: str) -> str:
        """What `labkit` prints, in the folder; that two runs are not alike is no error."""
        begin = "import sys; sys.path.pop(0); from labkit.cli import main; main()"
        return self._said([sys.executable, "-c", begin, *arguments])

    def _said(self, command: list[str]) -> str:
        """What a command prints. CourseError: it cannot be run; RuntimeError with its last words: it failed."""
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
        try:
            done = subprocess.run(command, cwd=self.path, env=os.environ | self._variables, check=False, **streams)
        except OSError as error:
            raise course.CourseError(f"{command[0]} cannot be run: {error.strerror}.") from error
        if done.returncode and not (done.returncode == _PARTED and "runs" in command):
            raise RuntimeError(f"{command[-1]} ended with exit code {done.returncode}: {done.stderr[-500:]}")
        return done.stdout
