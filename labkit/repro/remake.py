"""A recorded run made again: its revision and uncommitted changes in a folder of their own, its command run anew.

The folder is a worktree of the course's repository, so nothing in the course itself is touched. What cannot be put
back, such as another version of torch, is said; what the run then measures is compared bit by bit.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit import course
from labkit.repro import differ
from labkit.repro.differ import Difference, Parting
from labkit.repro.manifests import git
from labkit.repro.store import Store, values

_LIMIT_S = 24 * 3600.0
_TAIL = 15  # lines of what a run that failed has printed


@dataclass(frozen=True, kw_only=True)
class Remade:
    """A run made again. record: the new one, kept beside the old; found: what differs; why: why there is no record."""

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
    left_out = old["patch"]["left_out"]
    missing = [f"{one['path']} ({one['bytes']} bytes, SHA-256 {one['sha256'][:12]})" for one in left_out]
    with tempfile.TemporaryDirectory(prefix="labkit-remake-") as place, _worktree(old, Path(place) / "code") as code:
        store = Store(Path(place) / "runs")
        why = _again(old, code, store.folder, Path(place), limit_s)
        record = next((one for one in store.all() if (one["name"], one["nth"]) == (old["name"], old["nth"])), None)
        rows = store.metrics(record["id"]) if record else []
        store.close()
    if record is None:
        why = why or "The command ended without recording a run of that name."
        return Remade(old=old, record=None, found=(), missing=tuple(missing), parting=None, why=why)
    found = differ.differences(old, record)
    record |= {"remakes": old["id"]}
    kept.log(record["id"], values(rows))
    kept.put(record)
    parting = differ.parting(kept.metrics(old["id"]), rows)
    return Remade(old=old, record=record, found=tuple(found), missing=tuple(missing), parting=parting, why=why)


def _possible(old: dict) -> None:
    """CourseError with the reason where a record cannot be made again."""
    if old["revision"] is None:
        raise course.CourseError(f"{old['id']} was made outside of git: its code is not recorded.")
    if git("cat-file", "-e", old["revision"] + "^{commit}") is None:
        raise course.CourseError(f"Revision {old['revision'][:12]} of {old['id']} is not in this repository: fetch it.")
    if old["start"]["kind"] == "other" or old["start"]["folder"] is None:
        raise course.CourseError(f"{old['id']} was typed in, or begun outside of the course: no command can be run.")
    if old["patch"]["removed"]:
        said = f"{old['patch']['removed']} places in the uncommitted changes of {old['id']} looked like secrets"
        raise course.CourseError(f"{said} and were not recorded: commit without them, and run it again.")


@contextmanager
def _worktree(old: dict, place: Path) -> Iterator[Path]:
    """A folder with the revision's files and the changes of the record; gone afterwards."""
    _git("worktree", "add", "--detach", "--quiet", str(place), old["revision"])
    try:
        if old["patch"]["text"]:
            _git("-C", str(place), "apply", "--unidiff-zero", "--whitespace=nowarn", "-", given=old["patch"]["text"])
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))


def _git(*arguments: str, given: str = "") -> None:
    """Run git in the course's repository. CourseError: what it says."""
    command = ("git", "-C", str(course.root()), *arguments)
    done = subprocess.run(command, input=given.encode(errors="surrogateescape"), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise course.CourseError(f"git {arguments[0]} failed: {said[-1] if said else done.returncode}.")


def _again(old: dict, code: Path, runs: Path, place: Path, limit_s: float) -> str:
    """Run what a record says in the folder of its code; what went wrong, or nothing."""
    variables = os.environ | {"LABKIT_RUNS": str(runs), "PYTHONPATH": str(code), "MPLBACKEND": "agg"}
    variables["PYTHONHASHSEED"] = old["start"]["hash_seed"]
    if threads := old["torch"].get("threads") or old["torch_at_end"].get("threads"):
        variables["OMP_NUM_THREADS"] = str(threads)
    arguments = old["start"]["argv"] if old["start"]["kind"] == "script" else _cells(old, place)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, *_moved(arguments, code)]
    try:
        done = subprocess.run(
            command, env=variables, cwd=code / old["start"]["folder"], timeout=limit_s, check=False, **streams
        )
    except subprocess.TimeoutExpired:
        return f"It was stopped after {limit_s:g} s."
    tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-_TAIL:])
    return f"It ended with exit code {done.returncode}:\n{tail}" if done.returncode else ""


def _moved(arguments: Sequence[str], code: Path) -> list[str]:
    """A command's arguments with files of the course named where its copy has them."""
    root = str(course.root()) + os.sep
    inside = {one: code / one.removeprefix(root) for one in arguments if one.startswith(root)}
    return [str(inside[one]) if one in inside and inside[one].exists() else one for one in arguments]


def _cells(old: dict, place: Path) -> list[str]:
    """The command that runs a notebook's cells, as recorded, in one new process."""
    path = place / "cells.json"
    path.write_text(json.dumps([cell["source"] for cell in old["cells"]]), encoding="utf-8")
    return ["-m", "labkit.repro.cells", str(path)]
