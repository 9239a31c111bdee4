"""A child process with a session and folders of its own: how long it took, and what it left running."""

import os
import secrets
import signal
import site
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.course import CourseError

_GRACE_S = 2.0  # helpers of Python's own end a moment after their parent
_TAIL = 12
_OWN = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LABKIT_CACHE", "LABKIT_HOME")
_MARK = "LABKIT_CAPSTONE_RUN"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process that ended. why: nothing, or what went wrong; left: it left processes behind, which are gone now."""

    wall_s: float
    cpu_s: float
    why: str
    left: bool


def run_child(command: Sequence[str], *, folder: Path, home: Path, limit_s: float, runs: Path | None = None) -> Ended:
    """Run a command in a folder, with an empty home and cache, and wait for it; it is killed after limit_s.

    Processor seconds are of the process and of its children that ended before it. CourseError: a system without wait4.
    """
    if not hasattr(os, "wait4"):
        raise CourseError("The capstone needs a system that tells what a child process has used: Linux or macOS.")
    home.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(16)
    variables = os.environ | dict.fromkeys(_OWN, str(home)) | {_MARK: mark, "PYTHONDONTWRITEBYTECODE": "1"}
    variables |= {"LABKIT_RUNS": str(runs or home / "runs"), "PYTHONUSERBASE": site.getuserbase()}
    log = home / "output.txt"
    with log.open("wb") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        began = time.perf_counter()
        child = subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, **streams)
        timer = threading.Timer(limit_s, _kill, (child.pid,))
        timer.start()
        try:
            _, status, used = os.wait4(child.pid, 0)
        except BaseException:  # Ctrl-C does not reach a session of its own
            _kill(child.pid)
            raise
        finally:
            late = not timer.is_alive()
            timer.cancel()
        wall_s = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    why = f"It was stopped after {limit_s:g} s." if late else _why(child.returncode, log)
    return Ended(wall_s=wall_s, cpu_s=used.ru_utime + used.ru_stime, why=why, left=_left(child.pid, mark))


def _why(code: int, log: Path) -> str:
    """What a failed process said last."""
    if code == 0:
        return ""
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
    return f"It ended with exit code {code}:\n" + "\n".join(tail)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _left(group: int, mark: str) -> bool:
    """Whether processes of a run are still there when it has ended; they are killed.

    Found by their group, and on Linux by a mark in their environment, which one that wants to hide can remove.
    """
    until = time.monotonic() + _GRACE_S
    while (found := _group_lives(group) or bool(_marked(mark))) and time.monotonic() < until:
        time.sleep(0.05)
    _kill(group)
    for pid in _marked(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def _group_lives(group: int) -> bool:
    """Whether a process of a group runs; where the system shows it, one that has ended and waits to be asked does not.

    In a container whose first process never asks, those that lost their parent wait for ever.
    """
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    states = _states(group)
    return not states or any(one not in "ZX" for one in states)


def _states(group: int) -> list[str]:
    """The states of a group's processes, a letter each; none where the system does not show them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, its = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its) == group:
                found.append(state)
    return found


def _marked(mark: str) -> list[int]:
    """The processes that have a mark in their environment; none where the system does not show it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
