"""Processes seen from outside, through /proc: whose children they are, what memory they hold, and their end. Linux."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable

_KIB = 1024
_MEMORY = ("MemoryError", "OutOfMemoryError")
_MEMORY_SAID = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "std::bad_alloc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def family(roots: Iterable[int]) -> list[int]:
    """These processes, as far as they are alive, and all their descendants."""
    children: dict[int, list[int]] = {}
    alive = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    alive.add(int(name))
                children.setdefault(int(parent), []).append(int(name))
    found, waiting = [], list(dict.fromkeys(roots))
    while waiting:
        pid = waiting.pop()
        if pid in alive and pid not in found:
            found.append(pid)
        waiting += children.pop(pid, [])
    return found


def memory_bytes(pids: Iterable[int], harmless_bytes: int = 0) -> int:
    """What processes hold in memory, of shared pages each its part. Files in memory count where they are mapped.

    Where all they map is within harmless_bytes, that sum, in which a shared page counts for each: to ask for parts has
    the kernel walk through every page, some 10 ms a process that has loaded torch.
    """
    pids = list(pids)
    mapped = sum(map(_resident_bytes, pids))
    if mapped <= harmless_bytes:
        return mapped
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            pss = next((line for line in file if line.startswith(b"Pss:")), b"Pss: 0 kB")
            total += int(pss.split()[1]) * _KIB
    return total


def cpu_s(pids: Iterable[int]) -> float:
    """What processes, and those of their children that have ended, have taken of the processor: seconds, to 10 ms."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    """What a process has in memory, shared pages in full; 0 for one that is gone."""
    with contextlib.suppress(OSError, LookupError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def free_bytes() -> int:
    """The memory that this machine can still give without swapping."""
    with open("/proc/meminfo", "rb") as file:
        line = next((line for line in file if line.startswith(b"MemAvailable:")), b"MemAvailable: 1073741824 kB")
    return int(line.split()[1]) * _KIB


def status_of(kind: str, said: str) -> str:
    """The status for an exception of this type that says this: `memory` where there was none to be had, or `error`."""
    return "memory" if kind in _MEMORY or any(words in said for words in _MEMORY_SAID) else "error"


def end(pids: Iterable[int], wait_s: float = 10.0) -> bool:
    """Kill processes and wait for their end; whether it came within wait_s."""
    left, until_s = set(pids), time.monotonic() + wait_s
    while left and time.monotonic() < until_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        left &= set(family(left))
        if left:
            time.sleep(0.002)
    return not left
