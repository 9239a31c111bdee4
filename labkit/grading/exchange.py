"""One message to a learner's process and the wait for what comes back, its output read meanwhile."""

import os
import select
import socket
from dataclasses import dataclass, field

from labkit import units
from labkit.grading.frames import Inbox, TooLong

KEPT_BYTES = 1 << 16  # of the output of one cell or call
_CHUNK = 1 << 20
_LAST_BYTES, _LONGEST = 2000, 100  # of what was printed last; characters of its last line that are told


@dataclass
class Exchange:
    """unsent: what is left of the message. reply: (kind, body) once it is there. failure: (status, why) once it failed.

    closed: the other side has hung up. output_bytes: the most that may be printed. last: the end of what was printed.
    """

    talk: socket.socket
    output: int
    inbox: Inbox
    output_bytes: int
    unsent: memoryview
    reply: tuple[bytes, bytes] | None = None
    failure: tuple[str, str] | None = None
    closed: bool = False
    printed: int = 0
    kept: bytearray = field(default_factory=bytearray)
    last: bytes = b""

    @property
    def said(self) -> str:
        """Of an exchange that failed, how much had been printed, and the last line of it; empty where nothing was."""
        lines = [line for line in self.last.decode(errors="replace").splitlines() if line.strip()]
        if not self.failure or not lines:
            return ""
        return f"{units.format_bytes(self.printed)} before it was ended, and last {lines[-1][:_LONGEST]!r}"

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.reply is not None or self.failure is not None

    def fail(self, status: str, why: str) -> None:
        """Settle it, unless it is."""
        if not self.settled:
            self.failure = status, why

    def step(self, also: socket.socket, wait_s: float) -> bool:
        """Take what comes within wait_s; whether something has come on `also`."""
        poll = select.poll()
        if also.fileno() >= 0:
            poll.register(also, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        if not self.closed:
            poll.register(self.talk, select.POLLIN | (select.POLLOUT if self.unsent else 0))
        ready = dict(poll.poll(max(0.0, wait_s) * 1000))
        if ready.get(self.output, 0) & select.POLLIN:
            self._print()
        talk = ready.get(self.talk.fileno(), 0)
        if talk & select.POLLOUT:
            self._send()
        if talk & ~select.POLLOUT:
            self._receive()
        if ready.get(self.output) == select.POLLHUP and len(ready) == 1:
            select.select([], [], [], min(wait_s, 0.002))  # hung up for good, which poll says at once each time
        return also.fileno() in ready

    def drain(self) -> None:
        """Read what has been printed and not yet read."""
        while self.printed <= self.output_bytes and select.select([self.output], [], [], 0)[0]:
            if not self._print():
                return

    def _print(self) -> int:
        data = os.read(self.output, _CHUNK)
        self.printed += len(data)
        self.kept += data[: KEPT_BYTES - len(self.kept)]
        self.last = (self.last + data[-_LAST_BYTES:])[-_LAST_BYTES:]
        if self.printed > self.output_bytes:
            self.fail("output-limit", f"it printed more than {self.output_bytes} bytes")
        return len(data)

    def _send(self) -> None:
        try:
            self.unsent = self.unsent[self.talk.send(self.unsent[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def _receive(self) -> None:
        try:
            data = self.talk.recv(_CHUNK)
            self.inbox.add(data)
            self.reply = self.reply or self.inbox.take()
        except BlockingIOError:
            return
        except TooLong:
            self.fail("output-limit", f"it sent more than {self.inbox.most_bytes} bytes at once")
            return
        except OSError:
            data = b""
        self.closed = not data
