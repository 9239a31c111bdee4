"""What each change of the course's own fast script gives: alone, and added to those before it."""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit import course
from labkit.capstone.running import Outcome, once, test_accuracy
from labkit.capstone.task import Task, glyphs_task

ORDER = ("loading", "augmentation", "syncs", "precision", "schedule", "sizes")
NONE = "none"


def arms(order: Sequence[str] = ORDER) -> list[tuple[str, str]]:
    """(kind, changes) of every run: none, each alone, each with those before it, and all with compilation."""
    alone = [("alone", name) for name in order]
    added = [("in order", ",".join(order[: k + 1])) for k in range(1, len(order))]
    return [("alone", NONE), *alone, *added, ("in order", ",".join((*order, "compile")))]


def solution_script() -> Path:
    """The course's own fast script."""
    return course.root() / "solutions" / "capstone" / "train.py"


def measured(
    rounds: int,
    *,
    task: Task | None = None,
    script: Path | None = None,
    order: Sequence[str] = ORDER,
    say: Callable[[str], None] = print,
) -> list[dict]:
    """Run every arm `rounds` times, in turns: seconds to the target by both clocks, of each run that reached it."""
    task, script = task or glyphs_task(), script or solution_script()
    found: dict[tuple[str, str], list[Outcome]] = {arm: [] for arm in arms(order)}
    with tempfile.TemporaryDirectory(prefix="labkit-waterfall-") as folder:
        for seed in range(rounds):
            for n, (kind, names) in enumerate(found):
                place = Path(folder) / f"{seed}-{n}"
                one = once(task, script, place, seed=seed, secret=seed, more=("--changes", names))
                found[kind, names].append(one)
                say(f"round {seed + 1}: {names}: {one.wall_s:.1f} s{'' if one.reached else ', below the target'}")
    return [_row(kind, names, runs) for (kind, names), runs in found.items()]


def _row(kind: str, names: str, runs: Sequence[Outcome]) -> dict:
    good = [one for one in runs if one.reached]
    clocks = {clock: [round(getattr(one, clock), 2) for one in good] for clock in ("wall_s", "cpu_s")}
    return {"kind": kind, "changes": names, "runs": len(runs), **clocks, "test": test_accuracy(runs)}


def text(found: Sequence[dict]) -> str:
    """The arms, a line each: medians, and how many times faster than none they are."""
    start = found[0]["wall_s"]
    lines = [f"{'changes':64}  {'wall':>7}  {'cpu':>7}  {'times':>6}  {'test':>5}  reached"]
    for row in found:
        named = row["changes"] if row["kind"] == "alone" else "+ " + row["changes"].rpartition(",")[2]
        wall, cpu = (f"{statistics.median(row[clock]):.1f} s" if row[clock] else "-" for clock in ("wall_s", "cpu_s"))
        both = start and row["wall_s"]
        times = f"{statistics.median(start) / statistics.median(row['wall_s']):.2f}" if both else "-"
        told = f"{wall:>7}  {cpu:>7}  {times:>6}  {row['test']:.3f}  {len(row['wall_s'])} of {row['runs']}"
        lines.append(f"{named:64}  {told}")
    return "\n".join(lines)
