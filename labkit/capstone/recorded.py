"""Whether the record that a script leaves makes the run again: same metrics, to the last bit."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from labkit.capstone.running import lay_out
from labkit.repro.store import Store

_LIMIT_S = 1800.0
_WHO = ("-c", "user.name=capstone", "-c", "user.email=capstone@localhost", "-c", "commit.gpgsign=false")
_WHO += ("-c", "core.hooksPath=/dev/null")  # what the user's own commits must pass is no matter here
_IGNORED = ("/data/", "/out/", "/home/", "/runs/", "/asking/")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What became of a script's record. same: made again, every metric alike; None: there is nothing to say it by."""

    same: bool | None
    said: str
    seeds: tuple[int, ...] = ()


def lay_out_recorded(submission: Path, place: Path) -> bool:
    """A submission's folder as a repository of its own, which a record needs; whether git could make it one."""
    lay_out(submission, place)
    (place / ".gitignore").write_text("\n".join(_IGNORED) + "\n")
    if shutil.which("git") is None:
        return False
    for words in (("init", "-q"), ("add", "-A"), (*_WHO, "commit", "-qm", "submission")):
        if subprocess.run(("git", "-C", str(place), *words), capture_output=True, check=False).returncode:
            return False
    return True


def made_again(place: Path) -> Record:
    """Run `labkit runs remake` on the record that a run left in a folder made by `lay_out_recorded`."""
    found = Store(place / "runs").all()
    if not found:
        return Record(same=None, said="It left no record: wrap the training in `with run(...)` of labkit.repro.")
    [*_, last] = found
    words = (sys.executable, "-c", "from labkit.cli import main; main()", "runs", "remake", last["id"], "--json")
    told = {"seeds": tuple(last.get("seeds", ()))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=place, env=_variables(place), **pipes) as child:
        try:
            out, err = child.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.terminate()  # then it ends what it has begun, and clears away; a kill would leave both
            child.communicate()
            return Record(same=False, said=f"Made again, it was not done after {_LIMIT_S:g} s.", **told)
    try:
        answer = json.loads(out)
    except ValueError:
        tail = err.decode(errors="replace").strip().splitlines()[-1:]
        return Record(same=False, said="".join(tail) or "It could not be made again.", **told)
    return Record(same=answer["same"], said=_sentence(answer), **told)


def _variables(place: Path) -> dict[str, str]:
    """The environment in which a record is looked for beside its run."""
    return os.environ | {"LABKIT_RUNS": str(place / "runs")}


def _sentence(answer: dict) -> str:
    """What a remake found."""
    metrics = answer["metrics"]
    if metrics is None:
        return answer["why"] or "It could not be made again."
    if not metrics["compared"]:
        return "Its record holds no metric: log the loss or the accuracy."
    if answer["same"]:
        return f"Made again from its record: {metrics['compared']} values, all alike to the last bit."
    where = "".join(f", from {name} at step {step} on" for step, name, *_ in metrics["unlike"][:1])
    return f"Made again from its record: {metrics['equal']} of {metrics['compared']} values are alike{where}."
