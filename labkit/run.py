"""A lesson run from the command line: its code cells one after another in one fresh process, no Jupyter needed.

The fresh process is this module run as a program. It draws the progress and writes what it has come to into a small
file, line by line; if it dies, the parent can still say in which cell.
"""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from labkit import course, progress, repro
from labkit.course import Cell, Lesson
from labkit.show import lenient_streams

_INTERRUPTED, _UNREAD = 130, 141  # as shells say it: ended by Ctrl-C, by a pipe that nobody reads
_SECTION = re.compile(r"^##? (.+)$", re.MULTILINE)


def run(lesson: Lesson) -> int:
    """Run the lesson and say how its claims fared; returns 0 when none was refuted, 1 otherwise, 130 if interrupted."""
    course.split_cells(lesson.text())  # a malformed source is a sentence here, not a traceback from the child
    repro.budget()
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.touch()
        command = [sys.executable, "-m", "labkit.run", str(lesson.source), str(notes)]
        # The child lives no longer than this process, however it ends: then the pipe on its stdin is closed.
        with subprocess.Popen(command, env=_environment(), cwd=lesson.source.parent, stdin=subprocess.PIPE) as child:
            code, interrupted = _wait(child)
        last = _last(notes)
    if "ended" in last:
        return code
    if interrupted:
        print(f"Interrupted {_where(last)}.", file=sys.stderr)
        return _INTERRUPTED
    print(f"{lesson.name}: {_death(code)} {_where(last)}.", file=sys.stderr)
    return 1


def _environment() -> dict[str, str]:
    """What the child inherits: figures without a window, and bars inside a cell only where there is a terminal."""
    quiet = {} if sys.stderr.isatty() else {"LABKIT_QUIET": "1"}
    return {"MPLBACKEND": "agg"} | quiet | os.environ


def _wait(child: subprocess.Popen) -> tuple[int, bool]:
    """The child's exit code, and whether Ctrl-C was pressed, which leaves it the time to say where it was."""
    interrupted = False
    interrupt = (lambda: child.send_signal(signal.SIGINT)) if os.name != "nt" else child.terminate
    # A terminal has sent Ctrl-C to the child already, so it is first given a second.
    for action, wait_s in ((None, None), (None, 1.0), (interrupt, 5.0), (child.terminate, 5.0), (child.kill, None)):
        try:
            if action:
                action()
            return child.wait(wait_s), interrupted
        except KeyboardInterrupt:
            interrupted = True
        except subprocess.TimeoutExpired:
            continue
    return _INTERRUPTED, True


def _last(notes: Path) -> dict:
    """The last thing that the child noted; empty where it came to nothing."""
    for line in reversed(notes.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(ValueError):
            return json.loads(line)
    return {}


def _death(code: int) -> str:
    """What an exit code says of a process that did not get to its end."""
    if code >= 0:
        return f"its process left with exit code {code}"
    known = {member.value: member.name for member in signal.Signals}
    hint = " (often: out of memory)" if -code == getattr(signal, "SIGKILL", None) else ""
    return f"its process was ended by {known.get(-code, -code)}{hint}"


def _where(note: dict) -> str:
    """`in cell 3 of 20 (Measure), line 41`."""
    if not note:
        return "before the first cell"
    return f"in cell {note['cell']} of {note['cells']} ({note['section']}), line {note['line']}"


class _Above:
    """A stdout whose finished lines are printed above the progress bar."""

    def __init__(self, stream: object) -> None:
        self._stream, self._pending = stream, ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Print what is finished, keep the rest for later."""
        finished, newline, self._pending = (self._pending + text).rpartition("\n")
        if newline:
            self._print(finished)
        return len(text)

    def flush(self) -> None:
        """Nothing: a line is printed when it is finished."""

    def finish(self) -> None:
        """Print a last line that had no end."""
        if self._pending:
            self._print(self._pending)
        self._pending = ""

    def _print(self, text: str) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode():
            self._stream.write(text + "\n")
            self._stream.flush()


def _steps(cells: list[Cell]) -> list[tuple[str, Cell]]:
    """The code cells, each with the heading of the section that it stands in."""
    section, steps = "start", []
    for cell in cells:
        if cell.kind == "code" and cell.source:
            steps.append((section, cell))
        elif cell.kind == "markdown":
            section = ([section] + _SECTION.findall(cell.source))[-1]
    return steps


def _shown(steps: list[tuple[str, Cell]], name: str) -> Iterator[tuple[int, str, Cell]]:
    """The steps, numbered from 1, with a bar on a terminal and a line per section elsewhere."""
    from tqdm import tqdm

    terminal, begin, before = sys.stderr.isatty(), time.perf_counter(), None
    layout = "{desc} |{bar:20}| {elapsed}"
    with tqdm(total=len(steps), desc=name, bar_format=layout, disable=not terminal, dynamic_ncols=True) as bar:
        for number, (section, cell) in enumerate(steps, start=1):
            bar.set_description_str(f"{name}, cell {number} of {len(steps)}: {section}")
            if not terminal and section != before:
                seconds = time.perf_counter() - begin
                print(f"[{seconds:6.1f} s] cell {number} of {len(steps)}: {section}", file=sys.stderr, flush=True)
            before = section
            yield number, section, cell
            bar.update()


def _child(source: Path, notes: Path) -> int:
    """Run the cells of `source` in this process; returns the exit code."""
    progress.recording(False)
    note, failure, begin, real = {}, None, time.perf_counter(), sys.stdout
    above = sys.stdout = _Above(real)
    with notes.open("a", encoding="utf-8", buffering=1) as file:
        try:
            for note in _executed(source):
                file.write(json.dumps(note) + "\n")
        except BaseException as error:
            failure = error
        sys.stdout = real
        try:
            above.finish()
            code = _verdict(failure, source, note, time.perf_counter() - begin)
        except BrokenPipeError:
            code = _leave_unread()
        with contextlib.suppress(OSError):
            file.write(json.dumps(note | {"ended": code}) + "\n")
    return code


def _leave_unread() -> int:
    """Whoever read stdout or stderr (`| head -1`) has left: no more is said, not even by Python's own end."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return _UNREAD


def _executed(source: Path) -> Iterator[dict]:
    """Execute the cells one by one; yields where that is before each."""
    main = ModuleType("__main__")  # without a file, as in a notebook: the processes it launches must not run it again
    sys.modules["__main__"] = main
    steps = _steps(course.split_cells(course.read_source(source)))
    for number, section, cell in _shown(steps, source.stem):
        yield {"cell": number, "cells": len(steps), "section": section, "line": cell.first_line}
        code = compile("\n" * (cell.first_line - 1) + cell.source, str(source), "exec")  # lines as in the source
        exec(code, main.__dict__)


def _verdict(failure: BaseException | None, source: Path, note: dict, seconds: float) -> int:
    """Say how the run ended; returns the exit code."""
    if failure is None:
        return _summary(seconds)
    if isinstance(failure, KeyboardInterrupt):
        print(f"Interrupted {_where(note)}.", file=sys.stderr)
        return _INTERRUPTED
    if isinstance(failure, BrokenPipeError):
        for stream in (sys.stdout, sys.stderr):  # raises again where it is this pipe, not one of the lesson's own
            print(file=stream, flush=True)
    frame = failure.__traceback__
    while frame and frame.tb_frame.f_code.co_filename != str(source):
        frame = frame.tb_next
    traceback.print_exception(type(failure), failure, frame)
    print(f"The lesson stopped {_where(note)}.", file=sys.stderr)
    return 1


def _summary(seconds: float) -> int:
    """Print how many claims held; returns 1 if one was refuted, else 0."""
    claims = sys.modules.get("labkit.claims")
    counts = Counter(result.status for result in (claims.results() if claims else ()))
    held, undecided, refuted = (counts[status] for status in ("held", "undecided", "refuted"))
    plural = "" if held == 1 else "s"
    print(f"{held} claim{plural} held, {undecided} undecided, {refuted} refuted, in {seconds:.1f} s.", flush=True)
    return 1 if refuted else 0


def _end_with_parent() -> None:
    """End this process as soon as its parent has gone, which closes the pipe that is this one's stdin."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a lesson reads nothing, and nor do its subprocesses

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    lenient_streams()
    sys.exit(_child(Path(sys.argv[1]), Path(sys.argv[2])))
