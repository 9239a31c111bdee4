"""A lesson's code cells one after another in this process, which is a fresh one that labkit/run.py has started.

It draws the progress and writes what it has come to into a small file, line by line: if it dies, the parent can still
say in which cell.
"""

import contextlib
import json
import os
import re
import stat
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from labkit import course, progress
from labkit.course import Cell
from labkit.show import lenient_streams

INTERRUPTED, _UNREAD = 130, 141  # as shells say it: ended by Ctrl-C, by a pipe that nobody reads
_SECTION = re.compile(r"^##? (.+)$", re.MULTILINE)


def where(note: dict) -> str:
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


def _child(source: Path, notes: Path, record: bool) -> int:
    """Run the cells of `source` in this process, record what they measured where asked; returns the exit code."""
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
            code, how = _verdict(failure, source, note, time.perf_counter() - begin, record)
        except BrokenPipeError:
            code, how = _leave_unread(), {}
        with contextlib.suppress(OSError):
            file.write(json.dumps(note | how | {"ended": code}) + "\n")
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


def _verdict(failure: BaseException | None, source: Path, note: dict, seconds: float, record: bool) -> tuple[int, dict]:
    """Say how the run ended; returns the exit code, and what the parent should know."""
    if failure is None:
        return _summary(source, seconds, record)
    if isinstance(failure, KeyboardInterrupt):
        print(f"Interrupted {where(note)}.", file=sys.stderr)
        return INTERRUPTED, {"why": f"interrupted {where(note)}"}
    if isinstance(failure, BrokenPipeError):
        for stream in (sys.stdout, sys.stderr):  # raises again where it is this pipe, not one of the lesson's own
            print(file=stream, flush=True)
    frame = failure.__traceback__
    while frame and frame.tb_frame.f_code.co_filename != str(source):
        frame = frame.tb_next
    traceback.print_exception(type(failure), failure, frame)
    print(f"The lesson stopped {where(note)}.", file=sys.stderr)
    return 1, {"why": f"{type(failure).__name__} {where(note)}"}


def _summary(source: Path, seconds: float, record: bool) -> tuple[int, dict]:
    """Print how many claims held; the code is 1 if one was refuted, else 0."""
    claims = sys.modules.get("labkit.claims")
    made = claims.results() if claims else ()
    counts = Counter(result.status for result in made)
    held, undecided, refuted = (counts[status] for status in ("held", "undecided", "refuted"))
    plural = "" if held == 1 else "s"
    print(f"{held} claim{plural} held, {undecided} undecided, {refuted} refuted, in {seconds:.1f} s.", flush=True)
    how = {"claims": dict(counts)}
    if record:
        try:
            how["recorded"] = _written(source, list(made), seconds)
        except (OSError, course.CourseError) as error:
            print(f"Nothing was recorded: {error}", file=sys.stderr)
            return 1, how | {"why": f"nothing was recorded: {error}"}
    return (1 if refuted else 0), how


def _written(source: Path, claims: list, seconds: float) -> str:
    """Write the lesson's recording and say so; returns its path within the course, wherever the lesson has gone to."""
    from labkit import recording

    root = source.parents[1]
    path = recording.write(source.stem, claims, seconds, root=root).relative_to(root).as_posix()
    print(f"wrote {path}", flush=True)
    return path


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
    # What a record of a run keeps as the way to begin it again: the command of whoever has started this process.
    sys.orig_argv = [sys.executable, "-m", "labkit.cli", "run", Path(sys.argv[1]).stem[:2]]
    sys.exit(_child(Path(sys.argv[1]), Path(sys.argv[2]), "--record" in sys.argv[3:]))
