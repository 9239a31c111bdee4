"""A recorded run made again: its revision and uncommitted changes in a folder of their own, its command run anew.

The folder is a worktree of the repository, and nothing of it stays. What the command names by a whole path that the
copy lacks, the run reads and writes where it is: such paths are said. So is what cannot be put back, such as data that
git does not know, or another version of torch. What the run then measures is compared bit by bit.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit import course, hardware
from labkit.repro import capture, differ
from labkit.repro.differ import Difference, Parting
from labkit.repro.patches import file_digest
from labkit.repro.places import git, home
from labkit.repro.scrub import REMOVED
from labkit.repro.store import PROBLEMS, Store

_LIMIT_S = 24 * 3600.0
_TAIL = 15  # lines of what a run that failed has printed


@dataclass(frozen=True, kw_only=True)
class Remade:
    """A run made again. record: the new one, kept beside the old; found: what differs; why: why there is no record.

    missing: what of the old one is not recorded, so could not be put back, or is used where it is.
    """

    old: dict
    record: dict | None
    found: tuple[Difference, ...]
    missing: tuple[str, ...]
    parting: Parting | None
    why: str = ""

    @property
    def same(self) -> bool:
        """Whether every metric came out alike, to the last bit."""
        return self.parting is not None and self.parting.same


def remake(kept: Store, old: dict, *, limit_s: float = _LIMIT_S) -> Remade:
    """Make a run again and compare. CourseError: the record does not say how, or its code is not to be had."""
    _possible(old)
    rows = kept.metrics(old["id"])
    with _gentle_end(), tempfile.TemporaryDirectory(prefix="labkit-remake-") as place:
        store = Store(Path(place) / "runs")
        with _worktree(old, Path(place) / "code") as code:
            missing = (*_put_back(old, code), *_outside(old, code / _prefix()), *_removed(old))
            why = _again(old, code / _prefix(), store.folder, Path(place), limit_s)
        record = next((one for one in store.all() if (one["name"], one["nth"]) == (old["name"], old["nth"])), None)
        new_rows = store.metrics(record["id"]) if record else []
    if record is None:
        found = tuple(differ.differences(old, old | _here()))
        why = why or "The command ended without recording a run of that name."
        return Remade(old=old, record=None, found=found, missing=missing, parting=None, why=why)
    found = tuple(differ.differences(old, record))
    record |= {"remakes": old["id"]}
    try:
        kept.put(record, new_rows)
    except PROBLEMS as error:
        why = f"{why}\nThe new record could not be kept in {kept.folder}: {error}.".strip()
    parting = differ.parting(rows, new_rows)
    return Remade(old=old, record=record, found=found, missing=missing, parting=parting, why=why)


def _possible(old: dict) -> None:
    """CourseError with the reason where a record cannot be made again."""
    if old["revision"] is None:
        raise course.CourseError(f"{old['id']} was made outside of git: its code is not recorded.")
    if git("cat-file", "-e", old["revision"] + "^{commit}", at=home()) is None:
        raise course.CourseError(f"Revision {old['revision'][:12]} of {old['id']} is not in this repository: fetch it.")
    if old["start"]["kind"] == "other":
        raise course.CourseError(f"{old['id']} was typed in, or begun by another program: no command can be run.")
    if why := old["patch"].get("why"):
        raise course.CourseError(f"The uncommitted changes of {old['id']} could not be read: {why}.")
    if old["patch"]["removed"]:
        said = f"{old['patch']['removed']} places in the uncommitted changes of {old['id']} looked like secrets"
        raise course.CourseError(f"{said} and were not recorded: commit without them, and run it again.")


def _prefix() -> str:
    """Where in its repository the folder lies that a run belongs to."""
    return git("rev-parse", "--show-prefix", at=home()) or ""


def _here() -> dict:
    """What this process would record of packages and hardware."""
    machine = hardware.machine()
    told = {"name": machine.name, **json.loads(json.dumps(asdict(machine)))}
    return {"packages": capture.packages(), "versions": {"python": machine.python}, "hardware": told}


@contextmanager
def _gentle_end() -> Iterator[None]:
    """Have an end by SIGTERM leave as little behind as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _worktree(old: dict, place: Path) -> Iterator[Path]:
    """A folder with the revision's files and the changes of the record; gone afterwards, however that comes."""
    try:
        _git("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--quiet", str(place), old["revision"])
        if old["patch"]["text"]:
            _git("-C", str(place), "apply", "--unidiff-zero", "--whitespace=nowarn", "-", given=old["patch"]["text"])
        yield place
    finally:
        with _undisturbed():
            shutil.rmtree(place, ignore_errors=True)
            with suppress(course.CourseError):  # not even begun
                _git("worktree", "remove", "--force", "--force", str(place))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C waits until all is cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _git(*arguments: str, given: str = "") -> None:
    """Run git in the repository, out of reach of the terminal's Ctrl-C. CourseError: what it says."""
    command = ("git", "-C", str(home()), *arguments)
    text = given.encode(errors="surrogateescape")
    done = subprocess.run(command, input=text, capture_output=True, check=False, start_new_session=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        verb = next(one for one in arguments if one in ("worktree", "apply"))
        raise course.CourseError(f"git {verb} failed: {said[-1] if said else done.returncode}.")


def _put_back(old: dict, code: Path) -> list[str]:
    """Copy the files that the patch has left out, where they still are as they were; the others, named."""
    top, missing = Path(git("rev-parse", "--show-toplevel", at=home()) or home()), []
    for one in old["patch"]["left_out"]:
        now = top / one["path"]
        if one["sha256"] and now.is_file() and file_digest(now) == one["sha256"]:
            (code / one["path"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(now, code / one["path"])
        else:
            missing.append(f"{one['path']} ({one['bytes']} bytes, SHA-256 {one['sha256'][:12] or 'unknown'})")
    return missing


def _outside(old: dict, code: Path) -> list[str]:
    """What a script's command names of the folder that a run belongs to, and the copy in `code` lacks."""
    found, top = [], home()
    for name in (_path(one) for one in old["start"]["argv"] if old["start"]["kind"] == "script"):
        path = top / old["start"]["folder"] / name  # a whole one stays as it is
        if not path.is_relative_to(top) or os.path.exists(code / path.relative_to(top)):
            continue
        if Path(name).is_absolute():
            found.append(f"{name}: the copy has none, so the run reads and writes it where it is")
        elif name and os.path.exists(path):  # Path.exists raises at a text too long to be a path
            found.append(f"{name}: git does not know it, so the copy has none")
    return found


def _path(argument: str) -> str:
    """What may be a path in an argument: `x` in `--data=x`, else all of it."""
    return argument.partition("=")[2] if argument.startswith("-") else argument


def _removed(old: dict) -> list[str]:
    """What a command or cells lack because it looked like a secret."""
    texts = {"the command": old["start"]["argv"], "the cells": [cell["source"] for cell in old.get("cells", [])]}
    counts = {name: sum(text.count(REMOVED) for text in every) for name, every in texts.items()}
    return [f"{count} places in {name} that looked like secrets" for name, count in counts.items() if count]


def _again(old: dict, code: Path, runs: Path, place: Path, limit_s: float) -> str:
    """Run what a record says in the folder of its code; what went wrong, or nothing."""
    arguments = old["start"]["argv"] if old["start"]["kind"] == "script" else _cells(old, place)
    command, folder = [sys.executable, *_moved(arguments, code)], code / old["start"]["folder"]
    folder.mkdir(parents=True, exist_ok=True)  # one that holds no file of git's
    with (place / "output").open("w+b") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        with subprocess.Popen(
            command, env=_environment(old, code, runs), cwd=folder, start_new_session=True, **streams
        ) as child:
            try:
                exit_code = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                return f"It was stopped after {limit_s:g} s."
            finally:
                _end(child)
        output.seek(0)
        tail = "\n".join(output.read().decode(errors="replace").splitlines()[-_TAIL:])
    return f"It ended with exit code {exit_code}:\n{tail}" if exit_code else ""


def _end(child: subprocess.Popen) -> None:
    """End a process and whatever it has started."""
    if not hasattr(os, "killpg"):
        child.kill()
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _environment(old: dict, code: Path, runs: Path) -> dict[str, str]:
    """This process's variables, but the code of the record first, its budget, its threads and its seed of hashes."""
    paths = [str(code), *([str(code / "src")] if (code / "src").is_dir() else []), os.environ.get("PYTHONPATH")]
    variables = os.environ | {"LABKIT_RUNS": str(runs), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables |= {"LABKIT_BUDGET": old["start"]["budget"], "PYTHONHASHSEED": old["start"]["hash_seed"]}
    variables |= {"MPLBACKEND": "agg"}
    variables.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if cublas := old["start"]["cublas"]:
        variables["CUBLAS_WORKSPACE_CONFIG"] = cublas
    if threads := old["torch"].get("threads") or old.get("torch_at_end", {}).get("threads"):
        variables["OMP_NUM_THREADS"] = str(threads)
    return variables


def _moved(arguments: Sequence[str], code: Path) -> list[str]:
    """A command's arguments with files of the folder that a run belongs to named where its copy has them."""
    root, moved = str(home()) + os.sep, []
    for one in arguments:
        path = _path(one)
        inside = code / path.removeprefix(root)
        there = path.startswith(root) and inside.exists()
        moved.append(one.removesuffix(path) + str(inside) if there else one)
    return moved


def _cells(old: dict, place: Path) -> list[str]:
    """The command that runs a notebook's cells, as recorded, in one new process."""
    path = place / "cells.json"
    path.write_text(json.dumps([cell["source"] for cell in old["cells"]]), encoding="utf-8")
    return ["-m", "labkit.repro.cells", str(path)]
