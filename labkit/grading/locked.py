"""A folder of grades is one labkit's at a time: of two who read, change and write it one would lose."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.course import CourseError

FILE = ".lock"
WAIT_S = 30.0  # points set by hand take a second, and several people may do so at once
_TICK_S = 0.05


@contextlib.contextmanager
def held(out: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """A block in which nobody else has `out`, which is made if need be; one who is killed lets go of it.

    CourseError: somebody has it for longer than wait_s.
    """
    out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + wait_s
    with open(out / FILE, "ab") as file:
        while not _locked(file.fileno()):
            if time.monotonic() > until_s:
                raise CourseError(f"Another labkit is at work in {out}: say it again when that is done.")
            time.sleep(_TICK_S)
        yield


def _locked(handle: int) -> bool:
    """Whether a file is now ours alone."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
