"""Ranks started plainly, as torchrun would, and what they leave behind: an exit code, log, stack and flight record.

`labkit.ranks` ends a run that hangs and says why. Here nothing says why: a rank that waits runs into torch's own time
limit, and once one has failed, the others are ended with SIGTERM, as torchrun ends them.
"""

import faulthandler
import json
import multiprocessing
import os
import pickle
import re
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit import lines
from labkit.ranks import payload, server, worker
from labkit.show import show, varying_html, varying_text

GRACE_S, START_S, _TICK_S = 1.0, 3.0, 0.02
_MEET_S = 20.0
_FILE = re.compile(r'(?<=File ")[^"]+(?=", line)')


@dataclass(frozen=True, kw_only=True)
class Left:
    """What one rank left behind.

    ended: its exit code; below zero, the signal that ended it: -9 SIGKILL, -6 SIGABRT, -15 the launcher's SIGTERM.
    said: what it printed, errors included. stood: the stacks of its threads, as faulthandler writes them, when the
    launcher looked; nothing if it had ended by then. record: its flight record, a dictionary a collective, in order;
    None where it left none.
    """

    ended: int
    said: str = ""
    stood: str = ""
    record: list[dict[str, Any]] | None = None

    @property
    def last_words(self) -> str:
        """The last line of the log; nothing where there is none."""
        return next((line.strip() for line in reversed(self.said.splitlines()) if line.strip()), "")


def show_report(report: Sequence[Left], *, caption: str) -> None:
    """Show how each rank ended, and its last words."""
    rows = [(f"rank {rank}", _named(left.ended), left.last_words) for rank, left in enumerate(report)]
    lines = [f"{rank} ended with {ended:<11} {words}".rstrip() for rank, ended, words in rows]
    head = _row("th", ("", "ended with", "the last line of its log"))
    body = varying_html("".join(_row("td", row) for row in rows))
    shown = f"<p>{escape(caption)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>"
    show(f"{caption}\n{varying_text(chr(10).join(lines))}", shown)


def _row(tag: str, cells: Sequence[str]) -> str:
    """A row of a table whose last column holds long text, all of it at the left."""
    style = "text-align: left; vertical-align: top; overflow-wrap: anywhere"
    kept = f"{style}; white-space: nowrap"
    *short, long = map(escape, cells)
    named = "".join(f'<{tag} style="{kept}">{cell}</{tag}>' for cell in short)
    return f'<tr>{named}<{tag} style="{style}">{long}</{tag}></tr>'


def show_text(text: str, *, caption: str) -> None:
    """Show a log as it is, under a caption."""
    style = "max-height: 30em; overflow: auto; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
    body = varying_html(f'<pre style="{style}">{escape(text)}</pre>')
    show(f"{caption}\n{varying_text(text)}", f"<p>{escape(caption)}</p>{body}")


def _named(ended: int) -> str:
    """`-9 SIGKILL`, `1`."""
    return f"{ended} {signal.Signals(-ended).name}" if ended < 0 else str(ended)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What all ranks of a launch are told."""

    folder: Path
    world_size: int
    timeout_s: float
    look_s: float
    detail: bool
    address: str
    packed: bytes


def left_by(
    fn: Callable,
    world_size: int,
    *,
    timeout_s: float = 2.0,
    look_s: float = 1.0,
    detail: bool = False,
    address: str = "",
    fork_after: Callable | None = None,
) -> list[Left]:
    """What each of world_size processes leaves that calls fn() in a gloo group whose collectives wait for timeout_s.

    look_s: seconds after which stacks and flight records are written down. detail: TORCH_DISTRIBUTED_DEBUG=DETAIL.
    address: where the ranks meet, such as `tcp://127.0.0.1:29500`; a file of their own if it is not given.
    fork_after: called in a process with two threads for operations, from which the ranks are then forked.
    Ends by itself: ranks that have neither ended nor failed 3 s after timeout_s are ended as well.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = _Job(
            folder=folder,
            world_size=world_size,
            timeout_s=timeout_s,
            look_s=look_s,
            detail=detail,
            address=address or f"file://{folder / 'meeting'}",
            packed=payload.pack(fn, (fork_after,)),
        )
        if fork_after is None:
            _attend(job, server.Process)
        else:
            parent = server.Process(target=_fork, args=(job,))
            parent.start()
            try:
                parent.join(2 * _MEET_S)
            finally:  # where the user interrupts it, the ranks are still there
                with suppress(ProcessLookupError):
                    os.killpg(parent.pid, signal.SIGKILL)
                parent.join()
        return [_left(folder, rank) for rank in range(world_size)]


def _left(folder: Path, rank: int) -> Left:
    """What is found in a rank's files."""

    def read(kind: str) -> str:
        path = folder / f"{kind}{rank}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    ended, record = read("ended"), read("record")
    return Left(
        ended=int(ended or -signal.SIGKILL),
        said=_FILE.sub(_shorter, read("said")),
        stood=_FILE.sub(_shorter, read("stood")),
        record=json.loads(record).get("entries") if record else None,
    )


def _shorter(found: re.Match) -> str:
    """A file's name as a log needs it: a cell's own, or the end of its path."""
    path = found[0]
    for folder in (f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib", "stdlib")):
        if path.startswith(folder):
            return f"…/{path.removeprefix(folder)}"
    return lines.cell(path) or Path(path).name


def _fork(job: _Job) -> None:
    """Use torch with two threads, as a notebook may have done, then fork the ranks."""
    import warnings

    warnings.simplefilter("ignore")  # Python 3.12 warns of exactly this
    os.setpgid(0, 0)
    torch.set_num_threads(2)
    (fork_after,) = worker.unpack(job.packed)[1]
    fork_after()
    _attend(job, multiprocessing.get_context("fork").Process)


def _attend(job: _Job, process: Callable) -> None:
    """Start the ranks, end them once one has failed, and note how each ended."""
    ranks = [process(target=_rank, args=(job, rank)) for rank in range(job.world_size)]
    try:
        for rank in ranks:
            rank.start()
        until_s, failed = time.monotonic() + job.timeout_s + START_S, False
        while time.monotonic() < until_s and any(rank.exitcode is None for rank in ranks):
            if not failed and any(rank.exitcode for rank in ranks):
                failed, until_s = True, time.monotonic() + GRACE_S
            time.sleep(_TICK_S)
    finally:
        for rank in ranks:
            if rank.pid is not None and rank.exitcode is None:
                rank.terminate()
        for number, rank in enumerate(ranks):
            if rank.pid is not None:
                rank.join(1.0)
                if rank.exitcode is None:
                    rank.kill()
                    rank.join()
                (job.folder / f"ended{number}").write_text(str(rank.exitcode))
                rank.close()


def _rank(job: _Job, rank: int) -> None:
    """One rank: it writes into files of its own, joins the others, and calls the function."""
    signal.setitimer(signal.ITIMER_REAL, 2 * _MEET_S)  # whatever becomes of the launcher, this ends
    said = os.open(job.folder / f"said{rank}", os.O_WRONLY | os.O_CREAT)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(said, number)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    try:
        fn, _ = worker.unpack(job.packed)
        with (job.folder / f"stood{rank}").open("w") as stood:
            _join(job, rank)
            faulthandler.dump_traceback_later(job.look_s, file=stood)
            fn()
            code = 0
    except BaseException as error:
        faulthandler.cancel_dump_traceback_later()
        code = _exit_code(error)
    with suppress(Exception):
        _write_record(job, rank)
    os._exit(code)  # the end of Python would sometimes abort in threads of gloo


def _join(job: _Job, rank: int) -> None:
    """Meet the other ranks; from then on the flight record is kept, and written down when the launcher looks."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    torch.set_num_threads(2 if torch.get_num_threads() > 1 else 1)
    if job.detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    meeting = {"init_method": job.address, "rank": rank, "world_size": job.world_size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=_MEET_S), **meeting)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=job.timeout_s))
    writer = threading.Timer(job.look_s + 0.1, _write_record, (job, rank))
    writer.daemon = True
    writer.start()


def _write_record(job: _Job, rank: int) -> None:
    """Write down this rank's flight record, where this torch keeps one for gloo."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return
    record = pickle.loads(dump(True, False, False))  # all collectives, without stacks, which take a second
    draft = job.folder / f"draft{rank}-{threading.get_ident()}"
    draft.write_text(json.dumps(record))
    draft.replace(job.folder / f"record{rank}")  # whole or not at all: the launcher may end this process meanwhile


def _exit_code(error: BaseException) -> int:
    """What Python ends with after an exception, which it prints: 1, or what sys.exit was given."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr, flush=True)
    else:
        _print(error)
    return 1


def _print(error: BaseException) -> None:
    """Print an exception as Python does at a program's end, without the lines of this file."""
    story = traceback.TracebackException.from_exception(error)
    while story.stack and story.stack[0].filename == __file__:
        story.stack.pop(0)
    print("".join(story.format()), end="", file=sys.stderr, flush=True)
