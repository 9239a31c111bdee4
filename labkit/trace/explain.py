"""What differed between a slow step and its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from labkit.timeline import DEVICE_KINDS, Intervals, covered_s, length_s, union
from labkit.trace.devices import CPU
from labkit.trace.model import CODE, OPERATOR, Step, Trace
from labkit.trace.slow import SlowStep, slow_steps
from labkit.units import format_s

NEIGHBOURS = 10  # on either side, slow ones left out
SMALLEST_SHARE = 0.2  # of the step's excess: what explains less is not named
# What took the host's time, by the kind of span; where two overlap, the earlier one has it.
HOST_CAUSES = {
    "gc": "garbage collection",
    "compile": "recompilation",
    "alloc": "allocator",
    "data": "data wait",
    "communication": "communication",
}
LONGER, SLOWER, PYTHON, UNKNOWN = "longer sequence", "slower operation", "host (Python)", "nothing known"


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A slow step, and by how many seconds what exceeded its neighbours, largest first; `note` is about the first."""

    step: Step
    slow: SlowStep
    causes: Sequence[tuple[str, float]]
    note: str = ""

    @property
    def cause(self) -> str:
        """The largest cause."""
        return self.causes[0][0]

    def __str__(self) -> str:
        named = ", ".join(f"{cause} (+{format_s(seconds)})" if seconds else cause for cause, seconds in self.causes)
        what = f"{self.step.name}: {format_s(self.slow.seconds)}, {self.slow.ratio:.2g} times the typical: {named}"
        return f"{what}; {self.note}" if self.note else what


def explain(trace: Trace) -> list[Explained]:
    """The slow steps of a trace, each with what differed from up to ten ordinary steps before it and ten after.

    Compared are seconds of collection, compilation, allocation, waits for data, communication, the device's work that
    the step launched, and the host's time outside everything recorded. Empty where a trace has fewer than 8 steps.
    It cannot see what the profiler did not record: Python's collections need `with_stack` and, in its experimental
    configuration, `record_python_gc_info` (without them they are the host's own time), shapes need
    `record_shapes`. A cause that slowed every step alike is none.
    """
    steps = trace.steps
    slow = slow_steps([step.seconds for step in steps])
    if not slow:
        return []
    starts, ends = np.array([s.start_s for s in steps]), np.array([s.end_s for s in steps])
    work = _Work(trace, starts, ends)
    spent = _spent(trace, starts, ends, work)
    ordinary = np.setdiff1d(np.arange(len(steps)), [each.index for each in slow])
    return [_explained(steps, each, _around(ordinary, each.index), spent, work) for each in slow]


def _around(ordinary: np.ndarray, index: int) -> list[int]:
    """The nearest ordinary steps before and after."""
    place = int(np.searchsorted(ordinary, index))
    return ordinary[max(place - NEIGHBOURS, 0) : place + NEIGHBOURS].tolist()


def _spent(trace: Trace, starts: np.ndarray, ends: np.ndarray, work: "_Work") -> dict[str, np.ndarray]:
    """For each cause, its seconds in each step; what a device did meanwhile is added to what the host did."""
    host, taken, spent = trace.host, _none(), {}
    on_cpu = trace.columns.take(trace.of_row(CPU)) if CPU in trace.devices else None
    here = {} if on_cpu is None else {kind: on_cpu.intervals(on_cpu.kind == CODE[kind]) for kind in DEVICE_KINDS}
    layers = [(cause, [host[kind], here.get(kind, _none())]) for kind, cause in HOST_CAUSES.items()]
    layers += [(LONGER, [here.get("kernel", _none()), here.get("copy", _none())])]
    layers += [("other", [host[kind] for kind in ("host", "launch", "wait", "copy")])]
    before = np.zeros(len(starts))
    for cause, parts in layers:
        for part in parts:
            taken = _both(taken, part)
        now = covered_s(taken, starts, ends)
        spent[cause], before = now - before, now
    del spent["other"]
    spent[PYTHON] = (ends - starts) - before
    if not here:
        spent["communication"] = spent["communication"] + work.seconds_by_step(communication=True)
        spent[LONGER] = work.seconds_by_step(communication=False)
    return spent


def _none() -> Intervals:
    return np.zeros(0), np.zeros(0)


def _both(one: Intervals, other: Intervals) -> Intervals:
    """The time that either covers."""
    return union(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1])))


class _Work:
    """The device's work, step by step, as (name, shape) to count and seconds: by launch time where that is known."""

    def __init__(self, trace: Trace, starts: np.ndarray, ends: np.ndarray) -> None:
        columns = trace.columns
        works = np.flatnonzero(trace.on_devices() & trace.of_kind(*DEVICE_KINDS))
        since = trace.launched_s(works)
        order = np.argsort(since, kind="stable")
        self.trace, self.members, since = trace, works[order], since[order]
        self.edges = np.searchsorted(since, starts), np.searchsorted(since, ends)
        self.seconds = columns.end_s - columns.start_s
        shaped = (columns.role == OPERATOR) & (columns.shape >= 0)
        self._shaped = np.flatnonzero(shaped)
        self._shaped_edges = tuple(np.searchsorted(columns.start_s[self._shaped], each) for each in (starts, ends))

    def of(self, step: int, *, communication: bool) -> np.ndarray:
        """Indices of what the step launched."""
        found = self.members[self.edges[0][step] : self.edges[1][step]]
        return found[(self.trace.columns.kind[found] == CODE["communication"]) == communication]

    def seconds_by_step(self, *, communication: bool) -> np.ndarray:
        """For each step, the seconds in which a device was at what it had launched."""
        found = (self.of(i, communication=communication) for i in range(len(self.edges[0])))
        return np.array([length_s(self.trace.columns.intervals(each)) for each in found])

    def by_name(self, step: int) -> dict[int, float]:
        """Seconds of each name."""
        found = self.of(step, communication=False)
        names, places = np.unique(self.trace.columns.name[found], return_inverse=True)
        return dict(zip(names.tolist(), np.bincount(places, self.seconds[found]).tolist(), strict=True))

    def shapes(self, step: int) -> set[int]:
        """The shapes that the step's operators had."""
        found = self._shaped[self._shaped_edges[0][step] : self._shaped_edges[1][step]]
        return set(self.trace.columns.shape[found].tolist())


def _explained(
    steps: Sequence[Step], slow: SlowStep, around: Sequence[int], spent: dict[str, np.ndarray], work: _Work
) -> Explained:
    """One slow step against the steps around it."""
    index = slow.index
    excess_s = slow.seconds - median(steps[i].seconds for i in around)
    causes = {cause: float(each[index] - np.median(each[around])) for cause, each in spent.items()}
    note = ""
    if causes[LONGER] > 0:
        name, note = _grown(index, around, work)
        causes[name] = causes.pop(LONGER)
    found = sorted(((c, s) for c, s in causes.items() if s >= SMALLEST_SHARE * excess_s), key=lambda each: -each[1])
    if not found or found[0][0] not in (LONGER, SLOWER):
        note = ""
    return Explained(step=steps[index], slow=slow, causes=found or [(UNKNOWN, 0.0)], note=note)


def _grown(index: int, around: Sequence[int], work: _Work) -> tuple[str, str]:
    """Whether the device's work grew at large (more of it, or most of it longer) or in one operation, and a note."""
    counts = [len(work.of(i, communication=False)) for i in around]
    mine, usual = work.by_name(index), [work.by_name(i) for i in around]
    grew = {name: seconds - median(each.get(name, 0.0) for each in usual) for name, seconds in mine.items()}
    typical_s = {name: median(each.get(name, 0.0) for each in usual) for name in mine}
    broad = sum(typical_s[n] for n in mine if grew[n] > 0.2 * typical_s[n]) >= 0.5 * sum(typical_s.values())
    new = work.shapes(index) - set().union(*(work.shapes(i) for i in around))
    count = len(work.of(index, communication=False))
    if new or count > 1.1 * median(counts) or broad:
        why = "shapes that its neighbours do not have" if new else f"{count} operations instead of {median(counts):.0f}"
        return LONGER, why if new or count != median(counts) else "most operations took longer"
    worst = max(grew, key=grew.__getitem__)
    return SLOWER, f"{work.trace.names[worst]} took {format_s(grew[worst])} longer"
