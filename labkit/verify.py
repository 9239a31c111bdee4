"""The estimate held against measurement: live tensors, real ranks' states, a real process, a card's own counter.

Each row is a configuration, the phase of its peak, bytes predicted, bytes measured and their ratio.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from labkit.architecture import Architecture
from labkit.states import Plan
from labkit.verify_grid import Row, describe, held_out, tuned

BARS = {"tuned": (0.01, 0.05), "held out": (0.10, 0.10), "at rest": (0, 0), "a process": (0.25, 0.25)}
BARS["a card"] = BARS["a process"]
ALWAYS = ("tuned", "held out", "at rest")
"""Median and worst error that a group may have; and the groups that every machine can measure."""


def live_row(group: str, arch: Architecture, plan: Plan) -> Row:
    """Live bytes at the peak of a step: the closed form and MemTracker."""
    from labkit.estimate import estimate
    from labkit.live import training_peak

    found = estimate(arch, plan, overhead=False)
    measured = training_peak(arch, plan).total_bytes
    return Row(group, describe(arch, plan), found.phase, found.total_bytes, measured)


def live_rows() -> Iterator[Row]:
    """Every configuration of the grid that one rank shows."""
    for arch, plan in tuned():
        yield live_row("tuned", arch, plan)
    for arch, plan in held_out():
        yield live_row("held out", arch, plan)


def rows() -> list[Row]:
    """All rows: live tensors, states on real ranks, real processes, and the card's counter where there is one."""
    from labkit.verify_real import card_rows, process_rows, rest_rows

    return [*live_rows(), *rest_rows(), *process_rows(), *card_rows()]


def misses(found: list[Row], needed: Sequence[str] = ()) -> list[str]:
    """A sentence for each group whose median or worst error is above its bar, or that is needed and not there."""
    said = [f"{group}: nothing was measured." for group in needed if all(row.group != group for row in found)]
    for group, bars in BARS.items():
        errors = [abs(row.ratio - 1) for row in found if row.group == group]
        found_errors = (median(errors), max(errors)) if errors else (0, 0)
        for what, error, bar in zip(("median", "worst"), found_errors, bars, strict=True):
            if error > bar:
                said.append(f"{group}: {what} error {error:.1%}, and {bar:.1%} is allowed.")
    return said


def show(found: list[Row]) -> None:
    """Prints the rows as a table, and a line for each group: how many, the median and the worst error."""
    width = max(len(row.phase) for row in found)
    print(f"{'predicted':>13} {'measured':>13} {'ratio':>6}  {'phase':<{width}}  configuration")
    for row in found:
        print(f"{row.predicted:13,} {row.measured:13,} {row.ratio:6.3f}  {row.phase:<{width}}  {row.configuration}")
    for group in dict.fromkeys(row.group for row in found):
        errors = [abs(row.ratio - 1) for row in found if row.group == group]
        allowed = f" (allowed: {BARS[group][0]:.1%}, {BARS[group][1]:.1%})" if group in BARS else " (no bar)"
        print(f"{group}: {len(errors)} rows, median error {median(errors):.2%}, worst {max(errors):.2%}{allowed}")


def main() -> int:
    """Measures, prints all, and says what misses its bar: 1 if anything does, and otherwise 0."""
    from labkit.verify_real import not_measured

    found = rows()
    show(found)
    for said in (*not_measured(), *(missed := misses(found, ALWAYS))):
        print(said)
    print("Some bar is missed." if missed else "Every bar is met.")
    return 1 if missed else 0
