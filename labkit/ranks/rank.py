"""One rank, as the launching process sees it."""

import multiprocessing
import os
import pickle
import re
import signal
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from labkit import deadline
from labkit.ranks import ledger, server, worker
from labkit.ranks.errors import RankError
from labkit.ranks.output import Stream


@dataclass(kw_only=True)
class Rank:
    """A process that is one rank, and all that ties it to this one.

    said: its last word as (kind, time, more), None until then. port: where rank 0 keeps the store.
    """

    number: int
    world_size: int
    on_gpu: bool
    control: Any
    calls: Any
    stacks: Any
    streams: list[Stream]
    ties: ExitStack = field(default_factory=ExitStack)
    process: Any = None
    ready: bool = False
    said: tuple | None = None
    port: int | None = None
    looked_s: float = 0.0
    _told: bool = False
    _result: bytes = b""
    _heard: bool = True

    @classmethod
    @deadline.uncut
    def start(cls, seat: worker.Seat) -> "Rank":
        """Start one. OSError where the system gives no more processes or files."""
        label, theirs = f"[rank {seat.rank}]", ExitStack()
        with ExitStack() as ties, theirs:
            control, their_control = multiprocessing.Pipe()
            ties.callback(control.close)
            theirs.callback(their_control.close)
            (out, out_in), (err, err_in) = _pipe(ties, theirs), _pipe(ties, theirs)
            life, _ = _pipe(theirs, ties)
            shared = theirs.enter_context(tempfile.TemporaryFile())
            calls = ties.enter_context(closing(ledger.blank(shared.fileno())))
            stacks = ties.enter_context(tempfile.TemporaryFile())
            rank = cls(
                number=seat.rank,
                world_size=seat.world_size,
                on_gpu=seat.device != "cpu",
                control=control,
                calls=calls,
                stacks=stacks,
                streams=[Stream(out, label, "stdout"), Stream(err, label, "stderr")],
            )
            fds = {"out": out_in, "err": err_in, "calls": shared.fileno(), "stacks": stacks.fileno()}
            fds["lifeline"] = life
            carried = worker.Ties(**{name: worker.Tie(fd) for name, fd in fds.items()})
            process = server.Process(target=worker.main, args=(seat, their_control, carried), daemon=True)
            process.start()  # one that is interrupted here ends with its lifeline
            rank.process, rank.ties = process, ties.pop_all()
        return rank

    @property
    def returned(self) -> bool:
        """Whether it has handed back what its function returned."""
        return self.said is not None and self.said[0] == "returned"

    def result(self) -> Any:
        """What its function returned. RankError: it cannot be put together again here."""
        try:
            return pickle.loads(self._result)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            text = f"What rank {self.number} of {self.world_size} returned cannot be put together again here: {why}"
            raise RankError(text, kind="unreturnable", rank=self.number) from None

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
        self._heard = False  # if an interrupt cuts a word short, no more can be made of what follows
        try:
            kind, *rest = self.control.recv()
            if kind == "returned":
                self._result = self.control.recv_bytes()
        except (EOFError, OSError):
            return
        self._heard = True
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
        if not _takes_signal(self.process.pid):
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

    @deadline.uncut
    def end(self, leave_s: float = 0.0) -> None:
        """End it after so many seconds, and close all that ties it to this process; harmless when done again."""
        if self.process is not None:
            self.process.join(leave_s)
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


def _pipe(reading: ExitStack, writing: ExitStack) -> tuple[int, int]:
    """A new pipe's ends, each closed with the stack of whoever keeps it."""
    ends = os.pipe()
    for stack, end in zip((reading, writing), ends, strict=True):
        stack.callback(os.close, end)
    return ends


def _takes_signal(pid: int) -> bool:
    """Whether a process still writes down its stacks when it is asked; where it no longer does, asking would end it."""
    try:
        caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return True  # no Linux, or the process is gone
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)
