"""One submission in the box, from outside: a process that runs its cells and answers calls, watched until its end."""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.grading import frames, watch
from labkit.grading.exchange import Exchange

_GO_S, _END_S, _TICK_S = 30.0, 30.0, 0.05
_LEAST_FREE_BYTES = 256 << 20
_LONGEST_ERROR = 1 << 16  # bytes; the grader's own part sends a few thousand
_HELLO, _RUN, _CALL, _ERROR = b"h", b"r", b"c", b"e"  # as in labkit.grading.cell


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one session may take. disk_bytes: all its files together, which are memory; message_bytes: one answer.

    cell_s: one cell; calls_s: all calls for one exercise; total_s: all cells and calls together. memory_bytes: all
    processes together, without files, and what one of them may map beyond what the warm parent has mapped.
    output_bytes: of one cell or call.
    """

    cell_s: float = 60.0
    calls_s: float = 30.0
    total_s: float = 300.0
    memory_bytes: int = 2 << 30
    processes: int = 64
    file_bytes: int = 256 << 20
    open_files: int = 512
    output_bytes: int = 16 << 20
    message_bytes: int = 256 << 20
    disk_bytes: int = 256 << 20


@dataclass(frozen=True)
class Error:
    """An exception in the learner's process, as it tells it. line: of the cell, 0 where it is not known."""

    type: str
    message: str
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """How a cell ended: ok, error, timeout, memory, died or output-limit. cut: there was more output than is kept.

    said: of one that ended the session, how much it had printed, and the last line; a sentence without its subject.
    """

    name: str
    status: str
    seconds: float
    error: Error | None = None
    output: bytes = b""
    cut: bool = False
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back from a call, with the same statuses; payload is in the form of the wire, empty unless ok."""

    status: str
    payload: bytes = b""
    seconds: float = 0.0
    error: Error | None = None
    output: bytes = b""
    cut: bool = False
    said: str = ""


class Session:
    """A learner's process, from its start to the end of all that it started. A context manager.

    outcomes: how each cell ended, in order; there is none for cells after one that ended the session.
    over: "" while the session can be called, otherwise the status that ended it.
    """

    def __init__(self, box: Any, ranks: bool = False) -> None:
        self.outcomes: list[CellOutcome] = []
        self.over = ""
        self._box, self._limits, self._left_s, self._keeper = box, box.limits, box.limits.total_s, -1
        with contextlib.ExitStack() as held:
            self._talk, theirs = socket.socketpair()
            held.callback(self._talk.close)
            self._output, output = os.pipe()
            held.callback(os.close, self._output)
            with theirs, os.fdopen(output, "wb"):
                self._number, pid, world = box.go(theirs.fileno(), output, ranks)
            self._roots, self._links = [pid], [socket.socket(fileno=link) for link in world]
            held.callback(self._let_go)
            if world:
                self._hold()
            self._greet()
            self._held = held.pop_all()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that the session has started, and wait until it has ended."""
        self.over = self.over or "died"
        self._held.close()

    def pids(self) -> list[int]:
        """The session's processes, as this system numbers them."""
        return watch.family(self._roots)

    def helpers(self) -> list[int]:
        """Those of them that the learner's code has started."""
        return [pid for pid in self.pids() if pid not in self._roots]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A block in which nothing of the session runs, whatever it has started."""
        stopped: set[int] = set()
        try:
            while new := set(self.pids()) - stopped:
                _signalled(new, signal.SIGSTOP)  # one that is told to stop forks no more
                stopped |= new
            yield
        finally:
            _signalled(stopped, signal.SIGCONT)

    def run(self, cells: Sequence[tuple[str, str]]) -> None:
        """Run cells, (name, source), one after the other, and add their outcomes."""
        for name, source in cells:
            if self.over:
                return
            asked = json.dumps({"name": name, "source": source}).encode()
            self.outcomes.append(CellOutcome(name=name, **self._exchange(_RUN, asked, self._limits.cell_s)[0]))

    def call(self, name: str, payload: bytes, timeout_s: float) -> Answer:
        """What the learner's global `name` answers to a payload; both are in the form of labkit.grading.wire."""
        if self.over:
            return Answer(status="died", error=Error("died", f"the session had ended before ({self.over})"))
        asked = struct.pack("!H", len(name.encode())) + name.encode() + payload
        how, body = self._exchange(_CALL, asked, timeout_s)
        return Answer(payload=body if how["status"] == "ok" else b"", **how)

    def _hold(self) -> None:
        """Ask the kernel which process is number 1 of the session's world, and hold that one."""
        (keeper,) = self._links
        keeper.settimeout(_GO_S)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        keeper.send(b"?")
        self._roots = [_with_sender(keeper)[1]]
        self._keeper = os.pidfd_open(self._roots[0])

    def _greet(self) -> None:
        """Give the child its token, and have it say that it is ready: so far nothing of the learner's has run."""
        self._token = secrets.token_bytes(frames.TOKEN_BYTES)
        self._inbox = frames.Inbox(self._token, self._limits.message_bytes)
        self._talk.settimeout(_GO_S)
        if self._keeper >= 0:
            self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        body = json.dumps({"message_bytes": self._limits.message_bytes}).encode()
        self._talk.sendall(self._token + frames.packed(self._token, _HELLO, body))
        data, pid = _with_sender(self._talk)
        if not data:
            raise OSError(f"a child of the box did not start: {os.read(self._output, 2000).decode(errors='replace')}")
        self._roots += [pid] if self._keeper >= 0 else []
        self._inbox.add(data)
        while self._inbox.take() is None:
            self._inbox.add(self._talk.recv(frames.HEAD_BYTES))
        self._talk.setblocking(False)

    def _exchange(self, kind: bytes, body: bytes, limit_s: float) -> tuple[dict, bytes]:
        """Send a message and wait: fields of an outcome, and the reply. Where none comes, the session ends."""
        unsent = memoryview(frames.packed(self._token, kind, body))
        exchange = Exchange(self._talk, self._output, self._inbox, self._limits.output_bytes, unsent)
        started_s = time.monotonic()
        limit_s = min(limit_s, self._left_s)
        try:
            self._await(exchange, started_s + limit_s, f"it took longer than {limit_s:.3g} s")
        except BaseException:  # such as a deadline of the caller's: the reply would be taken for that of the next call
            self.over = "timeout"
            raise
        seconds = time.monotonic() - started_s
        self._left_s -= seconds
        exchange.drain()
        if exchange.failure:
            error, status = Error(*exchange.failure), exchange.failure[0]
            self.over = status
            self._end()
        else:
            error = _told(exchange.reply) if exchange.reply[0] in (_RUN, _ERROR) else None
            status = _status(error)
        how = {"status": status, "seconds": seconds, "error": error}
        how |= {"output": bytes(exchange.kept), "cut": exchange.printed > len(exchange.kept), "said": exchange.said}
        return how, exchange.reply[1] if exchange.reply else b""

    def _await(self, exchange: Exchange, until_s: float, late: str) -> None:
        """Wait until an exchange is settled, by a reply or by what goes wrong."""
        looked_s = time.monotonic()
        while not exchange.settled:
            if exchange.step(self._box.link, min(_TICK_S, until_s - time.monotonic())):
                self._box.hear()
            if exchange.closed or self._number in self._box.ended:
                exchange.step(self._box.link, 0)
                exchange.fail("died", self._how())
            now_s = time.monotonic()
            if now_s >= until_s:
                exchange.fail("timeout", late)
            elif now_s - looked_s >= _TICK_S:
                self._look(exchange)
                looked_s = time.monotonic()

    def _look(self, exchange: Exchange) -> None:
        """Settle an exchange whose processes hold too much memory, also where nobody counts it, as in sockets."""
        if watch.free_bytes() < _LEAST_FREE_BYTES:
            exchange.fail("memory", "the machine had no memory left")
        held = watch.memory_bytes(self.pids(), self._limits.memory_bytes)
        if held > self._limits.memory_bytes:
            exchange.fail("memory", f"it held {held >> 20} MiB of memory, of {self._limits.memory_bytes >> 20}")

    def _how(self) -> str:
        """How the learner's process ended."""
        until_s = time.monotonic() + 1.0
        while self._number not in self._box.ended and time.monotonic() < until_s:
            if not self._box.hear(until_s - time.monotonic()):
                return "the box has ended"
        if self._number not in self._box.ended:
            return "it closed the descriptor that its answers go through"
        code = os.waitstatus_to_exitcode(self._box.ended[self._number])
        return f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process exited with {code}"

    def _end(self) -> None:
        """Kill all of it, and wait until it is gone."""
        if self._keeper >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._keeper, signal.SIGKILL)
            gone = bool(select.select([self._keeper], [], [], _END_S)[0])
        else:
            gone = watch.end(self._box.children())
        if not gone:
            self._box.close()  # which takes everything along

    def _let_go(self) -> None:
        """End it and forget it."""
        self._end()
        if self._number not in self._box.ended:
            self._box.hear(0.1)  # that it has ended is on its way
        self._box.ended.pop(self._number, None)
        for link in self._links:
            link.close()
        if self._keeper >= 0:
            os.close(self._keeper)
            self._keeper = -1


def _signalled(pids: Iterable[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _with_sender(link: socket.socket) -> tuple[bytes, int]:
    """What comes, and the process that the kernel says has sent it, 0 where it does not say."""
    data, carried, _, _ = link.recvmsg(frames.HEAD_BYTES, socket.CMSG_SPACE(struct.calcsize("3i")))
    for level, kind, body in carried:
        if (level, kind) == (socket.SOL_SOCKET, getattr(socket, "SCM_CREDENTIALS", -1)):
            return data, struct.unpack("3i", body[: struct.calcsize("3i")])[0]
    return data, 0


def _told(reply: tuple[bytes, bytes]) -> Error | None:
    """The error that a learner's process tells of, if it does; nonsense is an error as well."""
    try:
        told = json.loads(reply[1]) if len(reply[1]) < _LONGEST_ERROR else ()
        return None if told is None else Error(str(told[0])[:100], str(told[1]), int(told[2]))
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return Error("unreadable", "what came back is no answer of the grader's own part in the process")


def _status(error: Error | None) -> str:
    """The status for a told error."""
    if error is None:
        return "ok"
    if error.type == "unreadable":
        return "tampered"
    if error.type == "TooLong":
        return "output-limit"
    return watch.status_of(error.type, error.message)
