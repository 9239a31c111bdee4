"""As root: put what the box binds at neutral paths of a mount table of its own, become nobody, and start bubblewrap.

Run as a script by the grader's Python, with nothing of labkit imported and one argument, JSON: `user`, `binds` (pairs
of source and place) and `command`. Nobody cannot enter a home folder of mode 0700, where a Python or an environment may
well be, and root is not held to a number of processes. So root mounts, and another user goes on.
"""

import ctypes
import json
import os
import shutil
import sys

_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
LARGEST_BYTES = 16 << 20
STAGE = "/tmp"  # everybody has one; what it holds is hidden from the box only


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [text.encode() if text is not None else None for text in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None):
        raise OSError(ctypes.get_errno(), f"mounting {source} on {target}: {os.strerror(ctypes.get_errno())}")


def _copy(source: str, place: str) -> None:
    """A file that root alone may read, for everybody; one too large to hold in memory is empty there."""
    with open(source, "rb") as file, open(place, "xb") as copy:
        if os.fstat(file.fileno()).st_size <= LARGEST_BYTES:
            shutil.copyfileobj(file, copy)


def main(plan: dict) -> None:
    """Never returns: the process becomes plan["command"]. OSError where root may not mount here."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "root may not make a mount table of its own here")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    held = [(os.open(source, os.O_PATH), place) for source, place in plan["binds"]]
    _mount("tmpfs", STAGE, "tmpfs", 0, "size=256m,mode=0755")
    for fd, place in held:
        source = f"/proc/self/fd/{fd}"
        if os.path.isdir(source):
            os.mkdir(place)
            _mount(source, place, None, _BIND)
        else:
            _copy(source, place)
        os.close(fd)
    os.setgroups([])
    os.setgid(plan["user"])
    os.setuid(plan["user"])
    os.chdir("/")
    os.execvp(plan["command"][0], plan["command"])


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(f"drop: {error}")
