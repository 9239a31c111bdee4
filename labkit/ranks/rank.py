"""One rank, as the launching process sees it."""

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from glob import glob
from multiprocessing import spawn, util
from threading import Lock
from typing import Any

from labkit.ranks import ledger, worker
from labkit.ranks.output import Stream

_END_S = 1.0  # so long a rank that was let go may take to leave by itself
_lock = Lock()


def _context() -> Any:
    """Processes forked from a server that has torch loaded and has never run an operation of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__])
    return context


@contextmanager
def _without_main() -> Iterator[None]:
    """A block in which ranks start without running the main program again: what they need travels pickled."""
    with _lock:
        original = spawn.get_preparation_data

        def prepared(name: str) -> dict:
            data = original(name)
            if name.startswith("rank "):
                data = {key: value for key, value in data.items() if not key.startswith("init_main")}
            return data

        spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            spawn.get_preparation_data = original


# How the server starts: in a process group of its own, and silent about hosts without a network, of which torch warns.
_STEP_ASIDE = """import os, sys
os.setpgid(0, 0)
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.execv(sys.argv[1], sys.argv[1:])"""


@contextmanager
def _apart() -> Iterator[None]:
    """A block in which the server, and multiprocessing's resource tracker, start in process groups of their own.

    A notebook's kernel that is shut down ends the processes of its own group first, and waits 14 s for the tracker,
    which heeds no SIGTERM; the front end kills the kernel before that, so that nobody tidies up.
    """
    original = util.spawnv_passfds
    util.spawnv_passfds = lambda path, args, fds: original(path, [path, "-c", _STEP_ASIDE, *args], fds)
    try:
        yield
    finally:
        util.spawnv_passfds = original


@dataclass(kw_only=True)
class Rank:
    """A process that is one rank, and all that ties it to this one.

    said: its last word as (kind, time, more), None until then. port: where rank 0 keeps the store.
    """

    number: int
    world_size: int
    control: Any
    calls: Any
    stacks: Any
    ties: ExitStack
    streams: list[Stream]
    process: Any = None
    ready: bool = False
    said: tuple | None = None
    port: int | None = None
    _told: bool = False
    _result: bytes = b""
    _heard: bool = True

    @classmethod
    def start(cls, seat: worker.Seat) -> "Rank":
        """Start one. OSError where the system gives no more processes or files."""
        control, theirs = multiprocessing.Pipe()
        (out, out_in), (err, err_in), (life_out, lifeline) = os.pipe(), os.pipe(), os.pipe()
        calls_in, calls = ledger.blank()
        stacks = tempfile.TemporaryFile()  # noqa: SIM115, closed with the other ties
        ties, label = ExitStack(), f"[rank {seat.rank}]"
        for fd in (out, err, lifeline):
            ties.callback(os.close, fd)
        ties.callback(stacks.close)
        ties.callback(calls.close)
        rank = cls(
            number=seat.rank,
            world_size=seat.world_size,
            control=control,
            calls=calls,
            stacks=stacks,
            ties=ties,
            streams=[Stream(out, label, "stdout"), Stream(err, label, "stderr")],
        )
        fds = {"out": out_in, "err": err_in, "calls": calls_in, "stacks": os.dup(stacks.fileno()), "lifeline": life_out}
        theirs_too = worker.Ties(**{name: worker.Tie(fd) for name, fd in fds.items()})
        try:
            process = _context().Process(
                target=worker.main, args=(seat, theirs, theirs_too), name=f"rank {seat.rank}", daemon=True
            )
            with _without_main(), _apart():
                process.start()
            rank.process = process
        except BaseException:
            rank.end()
            raise
        finally:
            theirs.close()
            for fd in fds.values():
                os.close(fd)
        return rank

    @property
    def returned(self) -> bool:
        """Whether it has handed back what its function returned."""
        return self.said is not None and self.said[0] == "returned"

    def result(self) -> Any:
        """What its function returned."""
        return pickle.loads(self._result)

    def send(self, packed: bytes) -> None:
        """Send the function; one that has died meanwhile is found when it is listened to."""
        with suppress(OSError):
            self.control.send_bytes(packed)

    def tell_port(self, port: int) -> None:
        """Tell it, once, where rank 0 keeps the store."""
        if not self._told and self.said is None:
            self._told = True
            with suppress(OSError):
                self.control.send(port)

    def sources(self) -> list:
        """What to wait for: its words, its end, its output."""
        alive = [self.process.sentinel] if self.said is None else []
        words = [self.control] if self._heard else []
        return [*words, *alive, *(stream.fd for stream in self.streams if stream.open)]

    def take(self, source: Any) -> None:
        """Take what one of its sources has."""
        for stream in self.streams:
            if source == stream.fd:
                stream.take()
        if source is self.control:
            self._hear()
        elif source == self.process.sentinel:
            while self._heard and self.control.poll():  # its last words come before its end
                self._hear()
            self._ended()

    def _hear(self) -> None:
        """Take one word of it."""
        try:
            kind, *rest = self.control.recv()
            if kind == "returned":
                self._result = self.control.recv_bytes()
        except (EOFError, OSError):
            self._heard = False
            return
        if kind == "port":
            (self.port,) = rest
        elif kind == "ready":
            self.ready = True
        else:
            self.said = (kind, *rest)

    def _ended(self) -> None:
        """Note that its process is gone, unless it had said its last word."""
        self.process.join()
        if self.said is None:
            code = self.process.exitcode
            self.said = ("exited", time.monotonic(), code) if code >= 0 else ("killed", time.monotonic(), -code)

    def ask_for_stacks(self) -> int | None:
        """Have it write down where its threads stand; how much was written before, None where it cannot be asked."""
        if not self.ready or self.said is not None:
            return None
        size = self.stacks_size()
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
        return size

    def stacks_size(self) -> int:
        """How many bytes it has written of where its threads stand."""
        return os.fstat(self.stacks.fileno()).st_size

    def written_stacks(self) -> str:
        """What it wrote."""
        return os.pread(self.stacks.fileno(), self.stacks_size(), 0).decode(errors="replace")

    def show_output(self) -> None:
        """Show what it has printed and is not shown yet."""
        for stream in self.streams:
            stream.finish()

    def let_go(self) -> None:
        """Let it leave if it has returned; otherwise end it and its children."""
        if not self.returned and self.process is not None:
            self._kill()
        self.control.close()

    def end(self) -> None:
        """End it, and close all that ties it to this process; harmless when done twice, or done in part before."""
        self.control.close()
        if self.process is not None:
            self.process.join(_END_S)
            self._kill()
            self.process.join()
            for left in glob(f"/dev/shm/torch_{self.process.pid}_*"):  # of a loader whose workers were killed
                with suppress(OSError):
                    os.unlink(left)
            self.process.close()
            self.process = None
        self.ties.close()

    def __del__(self) -> None:
        self.end()  # where an exception has cut short what should have ended it

    def _kill(self) -> None:
        """Kill it and its children, which share its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self.process.kill()  # one that has not come to its own group yet
