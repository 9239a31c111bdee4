"""What shuts a learner's process in, from within the box: namespaces, mounts, capabilities, limits.

A world is a set of namespaces with a process 1 that keeps it: ending that process ends, by the kernel's own hand,
everything that ever ran there. Worlds are made by a small process that has loaded nothing, one ahead of need; the warm
parent then forks a child into one. Linux only.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Iterable

from labkit.grading import seccomp

HOME, HOST = "/home/learner", "box"
KINDS = ("pid", "mnt", "ipc", "net", "uts")
_NEW = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "pid": 0x20000000, "net": 0x40000000}
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _AGAIN, _BIND = 1, 2, 4, 8, 32, 0x1000
_RECURSIVE, _PRIVATE, _DETACH = 0x4000, 0x40000, 2
_PRIVATE_FOLDERS = {"tmp": "/tmp", "shm": "/dev/shm", "home": HOME, "cache": "/cache"}
_DATA, _CACHE = "/opt/data", "/cache/labkit"  # data sets as the grader has them, and where labkit looks for them
_STAGE = "/stage"  # an empty folder of the box, where the tmpfs of those folders is mounted for a moment
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_DUMPABLE, _ADOPT, _BOUNDING_DROP, _NO_NEW_PRIVILEGES, _AMBIENT, _AMBIENT_CLEAR = 4, 36, 24, 38, 47, 4
_CAPABILITIES_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _do(name: str, *args: object) -> None:
    """Call a function of the C library that returns 0; OSError with its name where it does not."""
    if getattr(_libc, name)(*args):
        raise OSError(ctypes.get_errno(), f"{name}{args}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [text.encode() if text is not None else None for text in (source, target, kind)]
    _do("mount", *words, ctypes.c_ulong(flags), options.encode() if options else None)


def enter_new() -> None:
    """Give this process new namespaces of every kind; the process it forks next will be number 1 of its own."""
    _do("unshare", sum(_NEW.values()))


def furnish(disk_bytes: int) -> None:
    """As process 1 of a world: its own /proc, empty folders to write to, a name and a loopback that works.

    disk_bytes: what all files in the world may hold together; they are memory.
    """
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc", _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS)
    _mount("tmpfs", _STAGE, "tmpfs", _NO_SETUID | _NO_DEVICES, f"size={disk_bytes},nr_inodes=20000,mode=0755")
    for name, place in _PRIVATE_FOLDERS.items():
        os.mkdir(f"{_STAGE}/{name}")
        os.chmod(f"{_STAGE}/{name}", 0o1777 if name in ("tmp", "shm") else 0o755)
        _mount(f"{_STAGE}/{name}", place, None, _BIND)
    _do("umount2", _STAGE.encode(), _DETACH)
    os.mkdir(_CACHE)
    for name in os.listdir(_DATA):
        os.symlink(f"{_DATA}/{name}", f"{_CACHE}/{name}")
    socket.sethostname(HOST)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def namespaces() -> list[int]:
    """Descriptors of this process's namespaces, in the order of KINDS."""
    return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in KINDS]


def fork_into(pid_namespace: int, own: int) -> int:
    """os.fork, with the child in another pid namespace; `own` is a descriptor of this process's."""
    _do("setns", pid_namespace, _NEW["pid"])
    child = -1
    try:
        child = os.fork()
    finally:
        if child:
            _do("setns", own, _NEW["pid"])
    return child


def enter(namespaces_of_world: Iterable[int]) -> None:
    """Join a world's other namespaces, the mounts last, for then this process's /proc is the world's."""
    for kind, fd in sorted(zip(KINDS, namespaces_of_world, strict=True), key=lambda pair: pair[0] == "mnt"):
        if kind != "pid":
            _do("setns", fd, _NEW[kind])
    os.chdir(HOME)


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor but these."""
    edges = [-1, *sorted(set(kept)), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
    for low, high in zip(edges, edges[1:], strict=False):
        if low + 1 < high:  # of an empty range, closerange makes all descriptors there are
            os.closerange(low + 1, high)


def limit(*, memory_bytes: int, processes: int | None, file_bytes: int, open_files: int) -> None:
    """Set this process's limits, for good. Memory: what may be added to the address space that a process has now."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    wanted = {
        "AS": mapped + memory_bytes,
        "NPROC": processes,
        "FSIZE": file_bytes,
        "NOFILE": open_files,
        "CORE": 1,  # 0 would still have a core dump piped to a program of the host, where one is set
        "MEMLOCK": 1 << 20,
        "MSGQUEUE": 0,
        "RTPRIO": 0,
        "NICE": 0,
        "SIGPENDING": 1024,
    }
    for name, value in wanted.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None and value is not None:
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))


def adopt() -> None:
    """Be the parent of whatever a descendant leaves behind, so that it can be found."""
    _do("prctl", _ADOPT, 1, 0, 0, 0)


def hide() -> None:
    """Keep other processes of this user from reading or tracing this one."""
    _do("prctl", _DUMPABLE, 0, 0, 0, 0)


def renounce() -> None:
    """Give up every capability, now and for whatever is started, and what a set-user-id program would bring."""
    for number in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_BOUNDING_DROP, number, 0, 0, 0):
            break  # EINVAL: there are no more
    _do("prctl", _AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    _do("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    head, nothing = struct.pack("=Ii", _CAPABILITIES_3, 0), bytes(24)
    _do("capset", head, nothing)


def forbid() -> None:
    """Put the filter of system calls on, where there is one for this architecture."""
    if seccomp.supported(platform.machine()):
        seccomp.install()


def keep_world(link: socket.socket) -> None:
    """Be process 1 of a world until the other end of `link` is closed; answer there, so that the kernel says who."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what is orphaned is buried by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one signal that Python would take from within the world
    close_all_but([link.fileno()])
    renounce()
    hide()
    with contextlib.suppress(OSError):
        while link.recv(1):
            link.send(b"1")
    os._exit(0)


def probe() -> None:
    """Make a world and leave it: OSError where that cannot be done here."""
    enter_new()
    child = os.fork()
    if child:
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    furnish(1 << 20)
    renounce()
    forbid()
