"""A spare process of the box, forked before a learner's code runs: it becomes the server that ranks are forked from.

A notebook starts that server as a new Python, which loads torch for seconds. Here it is a fork of what is loaded
anyway, as untouched by the learner's code as a new Python would be, and shut in as the learner's process is.
"""

import array
import contextlib
import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import NoReturn

from labkit.grading import confine

LOADED = "labkit.ranks.preload"  # what the server loads, and what tells it from other processes that are started
_MOST_DESCRIPTORS = 16


def prepare(talk: int) -> None:
    """Fork it, and have multiprocessing take it. talk: a descriptor that it is not to have."""
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        os.close(talk)
        mine.close()
        _wait(theirs)
    theirs.close()
    util.spawnv_passfds = _Taking(mine, pid, util.spawnv_passfds)


class _Taking:
    """In place of multiprocessing's own function to start a Python: the first server of ranks is the spare process."""

    def __init__(self, link: socket.socket, pid: int, original: Callable) -> None:
        self._link, self._pid, self._original, self._taken = link, pid, original, False

    def __call__(self, path: object, args: Sequence, fds: Sequence[int]) -> int:
        """The number of the process, as the original gives it."""
        code = os.fsdecode(args[-1])
        if self._taken or LOADED not in code:
            return self._original(path, args, fds)
        self._taken = True
        told = json.dumps({"code": code, "fds": list(fds), "environ": dict(os.environ)}).encode() + b"\n"
        carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sent = self._link.sendmsg([told], carried)
        if sent < len(told):  # it closes its end as soon as it has all
            self._link.sendall(told[sent:])
        return self._pid


def _wait(link: socket.socket) -> NoReturn:
    """Wait to be taken, then be what is asked for; the end of the learner's process is this one's, too."""
    try:
        data, carried, _, _ = link.recvmsg(1 << 16, socket.CMSG_SPACE(struct.calcsize("i") * _MOST_DESCRIPTORS))
        while data and not data.endswith(b"\n"):
            more = link.recv(1 << 16)
            data = data + more if more else b""
        if data:
            got = array.array("i")
            got.frombytes(carried[0][2])
            told = json.loads(data)
            _arrange(list(got), told["fds"])
            os.setpgid(0, 0)
            os.environ.clear()
            os.environ.update(told["environ"])
            _forget_shell()
            exec(told["code"], {"__name__": "__main__"})
    except BaseException as error:
        if not isinstance(error, SystemExit):
            with contextlib.suppress(OSError):
                os.write(2, f"ranks: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


def _arrange(got: list[int], wanted: list[int]) -> None:
    """Give descriptors the numbers that the code expects, and close all others."""
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, max([*wanted, *got]) + 1) for fd in got]
    for fd, number in zip(aside, wanted, strict=True):
        os.dup2(fd, number)
    confine.close_all_but([0, 1, 2, *wanted])


def _forget_shell() -> None:
    """A rank has no IPython."""
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
