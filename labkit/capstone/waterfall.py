"""What each change of the course's own fast script gives: alone, and added to those before it."""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit import course
from labkit.capstone.running import Outcome, once
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
    """Run every arm `rounds` times, in turns: seconds to the target by both clocks, medians over runs that reached it.

    None stands for seconds where no run reached it.
    """
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
    told = {"kind": kind, "changes": names, "reached": len(good), "runs": len(runs)}
    clocks = {
        clock: statistics.median(getattr(o, clock) for o in good) if good else None for clock in ("wall_s", "cpu_s")
    }
    return told | clocks | {"test": statistics.fmean(o.test for o in runs)}


def text(found: Sequence[dict]) -> str:
    """The arms, a line each, with how many times faster than none they are."""
    start = found[0]
    lines = [f"{'changes':64}  {'wall':>7}  {'cpu':>7}  {'times':>6}  {'test':>5}  reached"]
    for row in found:
        named = row["changes"] if row["kind"] == "alone" else "+ " + row["changes"].rpartition(",")[2]
        wall, cpu = ("-" if row[clock] is None else f"{row[clock]:.1f} s" for clock in ("wall_s", "cpu_s"))
        known = row["wall_s"] is not None and start["wall_s"] is not None
        times = f"{start['wall_s'] / row['wall_s']:.2f}" if known else "-"
        told = f"{wall:>7}  {cpu:>7}  {times:>6}  {row['test']:.3f}  {row['reached']} of {row['runs']}"
        lines.append(f"{named:64}  {told}")
    return "\n".join(lines)
