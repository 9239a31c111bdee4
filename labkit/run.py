"""A lesson run from the command line, in a fresh process of its own (labkit/program.py): no Jupyter needed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from labkit import course, hardware, recording, repro
from labkit.course import Lesson
from labkit.program import INTERRUPTED, where


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a lesson's run ended: the exit code to leave with, seconds, claims by status, and why it did not get through.

    The counts are empty where the lesson did not get to its end; recorded is the file that was written.
    """

    code: int
    seconds: float
    claims: dict[str, int] = field(default_factory=dict)
    why: str = ""
    recorded: str = ""


def run(lesson: Lesson, *, record: bool = False, limit_s: float | None = None) -> Outcome:
    """Run the lesson in a process of its own, what it prints being printed, and tell how it went.

    record: at its end, write what it measured under datasets/recorded/. limit_s: a run that takes longer is ended.
    The exit code is 0 where no claim was refuted, 130 where the run was interrupted, and 1 otherwise.
    """
    course.split_cells(lesson.text())  # a malformed source is a sentence here, not a traceback from the child
    repro.budget()  # so is a budget that there is not
    if record:
        recording.refuse_unrecordable()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.touch()
        command = [sys.executable, "-m", "labkit.program", str(lesson.source), str(notes), *(["--record"] * record)]
        # The child lives no longer than this process, however it ends: then the pipe on its stdin is closed.
        with subprocess.Popen(command, env=_environment(), cwd=lesson.source.parent, stdin=subprocess.PIPE) as child:
            code, ended_by = _wait(child, limit_s)
        last = _last(notes)
    seconds = time.perf_counter() - begin
    if ended_by == "limit" and last.get("ended", INTERRUPTED) == INTERRUPTED:
        why = f"ended after {seconds:.0f} s, its limit, {where(last)}"
    elif "ended" in last and (ended_by or code == last["ended"]):  # a limit that came after the last cell is none
        told = {name: last[name] for name in ("claims", "why", "recorded") if name in last}
        return Outcome(code=last["ended"], seconds=seconds, **told)
    elif "ended" in last:
        why = f"{_death(code)} after its last cell"
    elif ended_by == "interrupt":
        print(f"Interrupted {where(last)}.", file=sys.stderr)
        return Outcome(code=INTERRUPTED, seconds=seconds, why=f"interrupted {where(last)}")
    else:
        why = f"{_death(code)} {where(last)}"
    print(f"{lesson.name}: {why}.", file=sys.stderr)
    return Outcome(code=1, seconds=seconds, why=why)


def _environment() -> dict[str, str]:
    """What the child inherits: figures without a window, bars inside a cell only where there is a terminal, and labkit
    itself, which need not be installed (`make gpu-check` installs nothing).
    """
    quiet = {} if sys.stderr.isatty() else {"LABKIT_QUIET": "1"}
    return {"MPLBACKEND": "agg"} | quiet | os.environ | {"PYTHONPATH": hardware.python_path()}


def _wait(child: subprocess.Popen, limit_s: float | None) -> tuple[int, str]:
    """The child's exit code, and what ended it: `interrupt` (Ctrl-C, which leaves it the time to say where it was),
    `limit`, or nothing but itself.
    """
    ended_by = ""
    interrupt = (lambda: child.send_signal(signal.SIGINT)) if os.name != "nt" else child.terminate
    # A terminal has sent Ctrl-C to the child already, so it is first given a second.
    for action, wait_s in ((None, limit_s), (None, 1.0), (interrupt, 5.0), (child.terminate, 5.0), (child.kill, None)):
        try:
            if action:
                action()
            return child.wait(wait_s), ended_by
        except KeyboardInterrupt:
            ended_by = "interrupt"
        except subprocess.TimeoutExpired:
            ended_by = ended_by or "limit"
    return INTERRUPTED, "interrupt"


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
