"""The warm parent: inside the box, with torch loaded and nothing of it run, forking a child for each submission.

It talks to the grader in records of one size over one socket, and passes descriptors along with them. It runs no line
of a learner's code and reads nothing that a child writes. Before it loads anything, it forks the maker of worlds.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from labkit.grading import confine, spare
from labkit.grading.frames import ENDED, FAILED, STARTED, WARM, receive, send

_LOADED = (
    "torch",
    "torch.nn.functional",
    "torch.utils.data",
    "torch._dynamo",  # a second of imports, which the first step of any optimizer would do in each child
    "numpy",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "labkit.grading.harness",
    "labkit.packing",
    "labkit.balance",
    "labkit.data",
    "labkit.ranks",
    "labkit.sync",
    "labkit.judge",
    *("labkit.checker", "labkit.claims", "labkit.progress", "labkit.train", "labkit.plot"),  # of lessons' first cells
    *("labkit.waits", "labkit.traffic", "labkit.plot_memory", "labkit.explorer_memory"),
    *("labkit.cost", "labkit.formats", "labkit.precision", "labkit.resize", "labkit.timeline"),
    *("labkit.trace.slow", "labkit.workshop"),  # where labkit has answers: kept from being changed
)


@dataclass(frozen=True)
class World:
    """A place for one child: descriptors of its namespaces, and the link to its process 1."""

    namespaces: list[int]
    link: int

    def close(self) -> None:
        """Let go of it; it ends unless somebody else holds the link."""
        for fd in (*self.namespaces, self.link):
            os.close(fd)


class Worlds:
    """The maker of worlds: a small process of its own, and one world made ahead of need."""

    def __init__(self, disk_bytes: int) -> None:
        self._asked, orders = socket.socketpair()
        if not os.fork():
            confine.close_all_but([0, 1, 2, orders.fileno()])
            _make_worlds(orders, disk_bytes)
        orders.close()
        self._asked.send(b"1")
        self._ahead: World | None = None

    def look_ahead(self) -> None:
        """Wait for the world that the next child will be in. OSError: none could be made."""
        if self._ahead is None:
            record = receive(self._asked)
            if record is None or record[0] != STARTED:
                raise OSError(record[2] if record else 0, "no world")
            *namespaces, link = record[3]
            self._ahead = World(namespaces, link)

    def take(self) -> World:
        """A world that is ready, while the next is being made. OSError: none could be made."""
        self.look_ahead()
        world, self._ahead = self._ahead, None
        self._asked.send(b"1")
        return world


def _make_worlds(orders: socket.socket, disk_bytes: int) -> NoReturn:
    """Make one whenever asked, in a child that leaves its own child behind as process 1."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        while orders.recv(1):
            if not os.fork():
                _make_world(orders, disk_bytes)
    os._exit(0)


def _make_world(orders: socket.socket, disk_bytes: int) -> NoReturn:
    """In the maker's child."""
    try:
        confine.enter_new()
        if os.fork():
            os._exit(0)
        confine.furnish(disk_bytes)
        mine, theirs = socket.socketpair()
        send(orders, STARTED, fds=(*confine.namespaces(), theirs.fileno()))
        confine.keep_world(mine)
    except BaseException as error:
        print(f"world: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            send(orders, FAILED, value=getattr(error, "errno", None) or 0)
    finally:
        os._exit(1)


class Warm:
    """The loop of the warm parent. worlds: None where there is no sandbox. serve: what a child does with its link."""

    def __init__(
        self, link: socket.socket, limits: dict, worlds: Worlds | None, serve: Callable[[socket.socket], None]
    ) -> None:
        self._link, self._limits, self._worlds, self._serve, self._sessions = link, limits, worlds, serve, {}
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY) if worlds else -1
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Fork a child whenever asked, say when one has ended; return when the grader is gone."""
        send(self._link, WARM)
        while True:
            ready, _, _ = select.select([self._link, self._woken], [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._bury()
            if self._link in ready:
                record = receive(self._link)
                if record is None:
                    return
                self._start(*record[1:])

    def _bury(self) -> None:
        """Tell of each child that has ended how it did."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self._sessions:
                    send(self._link, ENDED, self._sessions.pop(pid), status)

    def _start(self, session: int, with_ranks: int, fds: list[int]) -> None:
        """Fork the child of a session, which takes the two descriptors: its talk with the grader, and its output."""
        world = None
        try:
            if with_ranks and spare.LOADED not in sys.modules:
                importlib.import_module(spare.LOADED)  # seconds, once, and only where there are ranks
            world = self._worlds.take() if self._worlds else None
            pid = confine.fork_into(world.namespaces[0], self._own) if world else os.fork()
            if not pid:
                self._be_child(world, bool(with_ranks), *fds)
            self._sessions[pid] = session
            send(self._link, STARTED, session, pid, (world.link,) if world else ())
        except OSError as error:
            print(f"start: {error}", file=sys.stderr, flush=True)
            send(self._link, FAILED, session, error.errno or 0)
        finally:
            for fd in fds:
                os.close(fd)
            if world:
                world.close()

    def _be_child(self, world: World | None, with_ranks: bool, talk: int, output: int) -> NoReturn:
        """In the child: shut it in, then run cells until the grader is gone."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            if world:
                confine.enter(world.namespaces)
            nothing = os.open("/dev/null", os.O_RDONLY)
            for number, fd in ((0, nothing), (1, output), (2, output)):
                os.dup2(fd, number)
            confine.close_all_but([0, 1, 2, talk])
            confine.limit(**self._limits)
            if world:
                confine.renounce()
                confine.forbid()
            if with_ranks:
                spare.prepare(talk)
            self._serve(socket.socket(fileno=talk))
        except BaseException as error:
            with contextlib.suppress(OSError):
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)


def load() -> Callable[[socket.socket], None]:
    """Load what nearly every notebook does, and do once what is slow the first time; no operation of torch runs.

    Returns what a child is to do with its link to the grader.
    """
    from labkit.grading import cell, harness

    shell = cell.shell()
    for name in _LOADED:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell("raise ValueError", silent=True)
    _forget_ourselves()
    harness.keep()
    gc.collect()
    gc.freeze()  # children share this memory as long as no collection of garbage looks at it
    return cell.serve


def _forget_ourselves() -> None:
    """Take the grader's modules out of Python's table: who imports one there gets another, and changes nothing by it.

    Code that runs in the same process still finds them, through the frames that call it or the collector of garbage.
    """
    for name in [name for name in sys.modules if name.startswith("labkit.grading")]:
        del sys.modules[name]
    del sys.modules["labkit"].grading


def main() -> None:
    """What the box starts: argv[1] is JSON with the descriptor of the socket, the limits, and whether it is a box."""
    told = json.loads(sys.argv[1])
    link = socket.socket(fileno=told["link"])
    worlds = Worlds(told["disk_bytes"]) if told["boxed"] else None
    if worlds:
        worlds.look_ahead()
    else:
        confine.adopt()
        os.chdir(told["home"])
    serve = load()
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit("warm: loading has started a thread, and a child of a process with threads may hang")
    Warm(link, told["limits"], worlds, serve).serve()
