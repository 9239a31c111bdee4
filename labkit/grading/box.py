"""The sandbox of the grader, from outside: a box with a warm parent, and in it a session for each submission.

What comes from a session is said by the learner's process, whoever wrote it: outcomes of cells tell what to show a
learner, and answers are data to be judged elsewhere. Time, memory, output and the end of processes are this side's
own measurements.
"""

import contextlib
import os
import select
import socket
import subprocess
import tempfile
from collections.abc import Sequence

from labkit.grading import frames, launch, watch
from labkit.grading.frames import ENDED, START, STARTED, WARM
from labkit.grading.session import Answer, CellOutcome, Error, Limits, Session

__all__ = ["Answer", "Box", "CellOutcome", "Error", "Limits", "Refused", "Session", "Trusted", "available"]

_START_S = 120.0  # to load torch from a slow disk
_OURS = 8  # processes of the box itself, which the kernel counts with the learner's
_OF_RANKS = ("rank", "torch.distributed")
_ANYHOW = {"ignore_cleanup_errors": True}
_PROBE = "from labkit.grading import confine; confine.probe()"
_WARM = "from labkit.grading.warm import main; main()"


class Refused(Exception):
    """No sandbox can be had here; the sentence says why and what mends it."""


def available() -> str:
    """Why no boxes can be had here and what mends that, in a sentence; an empty text where they can."""
    if said := launch.missing():
        return said
    command = launch.boxed(_PROBE, {}, Limits().disk_bytes)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
    return "" if done.returncode == 0 else launch.why(done.stderr)


class Box:
    """One sandbox with a warm parent in it, from which a process is forked for each session. A context manager.

    Refused: a sandbox cannot be had here.
    """

    boxed = True

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008, frozen
        self.limits = limits
        self.ended: dict[int, int] = {}
        self._number = 0
        self._held = contextlib.ExitStack()
        self._process: subprocess.Popen | None = None
        if said := launch.missing() if self.boxed else launch.elsewhere():
            raise Refused(said)
        self._start()

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the box and everything in it."""
        self._held.close()

    def run(self, cells: Sequence[tuple[str, str]], ranks: bool | None = None) -> Session:
        """A session in which these cells, (name, source), have run one after the other, until one ended it.

        ranks: whether it will use labkit.ranks, which then starts in a tenth of the time; None: if the cells look so.
        """
        if ranks is None:
            ranks = any(word in source for _, source in cells for word in _OF_RANKS)
        session = self._session(ranks)
        try:
            session.run(cells)
        except BaseException:
            session.close()
            raise
        return session

    def _session(self, ranks: bool) -> Session:
        """A session without cells; where the box gives none, for somebody has killed it, a new box does."""
        try:
            return Session(self, ranks)
        except (OSError, Refused):
            self.close()
            self._start()
            return Session(self, ranks)

    def pids(self) -> list[int]:
        """The processes of the box, sessions included, as this system numbers them."""
        return watch.family([self._process.pid]) if self._process.poll() is None else []

    def children(self) -> list[int]:
        """The processes that the warm parent has started."""
        return self.pids()[1:]

    def _start(self) -> None:
        """Start the warm parent and wait until it has loaded everything."""
        with contextlib.ExitStack() as held:
            link, theirs = socket.socketpair()
            held.callback(link.close)
            log = held.enter_context(tempfile.TemporaryFile())
            told = {"link": theirs.fileno(), "boxed": self.boxed, "disk_bytes": self.limits.disk_bytes}
            told["limits"] = {name: getattr(self.limits, name) for name in ("memory_bytes", "file_bytes", "open_files")}
            told["limits"]["processes"] = self.limits.processes + _OURS if self.boxed else None
            if not self.boxed:
                told["home"] = held.enter_context(tempfile.TemporaryDirectory(prefix="labkit-", **_ANYHOW))
            command, variables = launch.command(_WARM, told, self.limits.disk_bytes)
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(command, env=variables, pass_fds=[theirs.fileno()], cwd="/", **streams)
            held.callback(_end, process)
            theirs.close()
            link.settimeout(_START_S)
            self.link, self._log, self._process = link, log, process
            if (record := self._record()) is None or record[0] != WARM:
                raise Refused(launch.why(self._said()))
            self._held = held.pop_all()

    def _said(self) -> str:
        """What the box has printed for the grader."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def _record(self) -> tuple[bytes, int, int, list[int]] | None:
        """The next record of the warm parent; None when there is none any more."""
        try:
            return frames.receive(self.link)
        except OSError:
            return None

    def go(self, talk: int, output: int, ranks: bool) -> tuple[int, int, list[int]]:
        """For a session: fork a child; its number, its process as the box counts, and the link to its world."""
        self._number += 1
        frames.send(self.link, START, self._number, int(ranks), (talk, output))
        while (record := self._record()) is not None:
            if record[0] == ENDED:
                self.ended[record[1]] = record[2]
            elif record[0] == STARTED:
                return self._number, record[2], record[3]
            else:
                break
        raise Refused(launch.why(self._said()))

    def hear(self, wait_s: float = 0.0) -> bool:
        """For a session: take one record, if one comes within wait_s; whether the box still stands."""
        if self.link.fileno() < 0:
            return False
        if select.select([self.link], [], [], wait_s)[0]:
            record = self._record()
            if record is None:
                return False
            self.ended[record[1]] = record[2]
        return True


def _end(process: subprocess.Popen) -> None:
    """Kill a box with all that is in it, and wait until that is gone."""
    watch.end(watch.family([process.pid]))
    process.wait()


class Trusted(Box):
    """As a Box, without a sandbox: a warm parent that forks in a folder of its own, watched as in a box.

    What it runs can do whatever this user can. Every result should say so.
    """

    boxed = False
