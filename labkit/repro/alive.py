"""Whether the process that began a record still runs."""

import os
import platform
from pathlib import Path


def process() -> dict:
    """This process, so that another one can tell whether it still runs: its number, its start, the machine's name."""
    return {"pid": os.getpid(), "began": _began(os.getpid()), "machine": platform.node(), "numbers": _numbers()}


def _numbers() -> str:
    """Which numbering of processes: a container has its own, under the name of its machine. Empty but on Linux."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, as the system counts; a number that is used again has another.

    `none` of one that has ended, and only waits for its parent to ask; nothing where the system does not say.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "none" if told[0] in "ZX" else told[19]
    except (OSError, IndexError):
        return ""


def lives(told: dict) -> bool:
    """Whether a process still runs; of another machine's or container's, and on Windows, it is taken for granted."""
    elsewhere = (told["machine"], told["numbers"]) != (platform.node(), _numbers())
    if elsewhere or os.name == "nt":  # there, the signal 0 would be Ctrl-C
        return True
    try:
        os.kill(told["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _began(told["pid"]) == told["began"]
