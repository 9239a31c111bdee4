"""What host and device did when, as spans of time, and why a device stood idle: the one form that traces are read into.

Times are seconds on one clock, whatever its zero. Intervals are half-open: one that ends where another starts leaves no
gap and no overlap. Unions and overlaps are found by sorting, so a million spans take about a second.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

KINDS = (
    "host",  # Python, or an operator's work on the CPU
    "launch",  # the host hands work to the device
    "kernel",  # the device computes
    "copy",  # the device moves data
    "communication",  # collectives, sends and receives
    "wait",  # the host waits for the device
    "data",  # the host waits for data
    "step",  # one training step
    "gc",  # Python's garbage collection
    "compile",  # tracing, compiling, autotuning
    "alloc",  # memory asked for from the system or the driver, and given back
    "annotation",  # what a user named
)
DEVICE_KINDS = ("kernel", "copy", "communication")
HOST_KINDS = ("host", "launch", "wait", "data")
# Why a device stood idle, by what the host did then. The order settles ties.
SYNC, LAUNCH, QUEUED, UNKNOWN = "synchronisation", "launch-bound", "between queued work", "nothing known"
CAUSE_OF_KIND = {
    "gc": "garbage collection",
    "compile": "compilation",
    "data": "data wait",
    "alloc": "allocator",
    "communication": "communication",
    "copy": "copy",
    "wait": SYNC,
}
CAUSES = (*CAUSE_OF_KIND.values(), LAUNCH, QUEUED, UNKNOWN)
# A wait that ended this long before the gap still explains it: the last kernel ends a little after the wait returns,
# because the two clocks of a trace agree only to some microseconds.
CLOCKS_AGREE_S = 20e-6
MOSTLY, BUSY_LAUNCHING = 0.5, 0.3

Intervals = tuple[np.ndarray, np.ndarray]  # starts and ends in seconds


@dataclass(frozen=True, kw_only=True)
class Span:
    """One thing that happened: in which row, from when to when in seconds, of which kind (one of KINDS)."""

    row: str
    name: str
    start_s: float
    end_s: float
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of span: it is one of {', '.join(KINDS)}")
        if not self.end_s >= self.start_s:
            raise ValueError(f"{self.name!r} ends at {self.end_s} s, before it starts at {self.start_s} s")

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A time in seconds in which a device had nothing to do, and the cause, one of CAUSES."""

    row: str
    start_s: float
    end_s: float
    cause: str

    @property
    def seconds(self) -> float:
        """How long the device stood idle."""
        return self.end_s - self.start_s


def union(starts: object, ends: object) -> Intervals:
    """The same stretches of time without overlaps: sorted, disjoint, none empty, touching ones joined."""
    starts, ends = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    kept = ends > starts
    order = np.argsort(starts[kept], kind="stable")
    starts, ends = starts[kept][order], ends[kept][order]
    if not len(starts):
        return starts, ends
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def length_s(intervals: Intervals) -> float:
    """Seconds that disjoint intervals cover."""
    return float((intervals[1] - intervals[0]).sum())


def covered_s(intervals: Intervals, starts: object, ends: object) -> np.ndarray:
    """For each window from starts to ends, the seconds of it that disjoint, sorted intervals cover."""
    starts, ends = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    if not len(intervals[0]):
        return np.zeros(len(starts))
    edges = np.stack(intervals, axis=1).ravel()
    before = np.concatenate(([0.0], np.cumsum(intervals[1] - intervals[0])))
    reached = np.stack((before[:-1], before[1:]), axis=1).ravel()
    return np.maximum(np.interp(ends, edges, reached) - np.interp(starts, edges, reached), 0.0)


def overlap_s(one: Intervals, other: Intervals) -> float:
    """Seconds that lie in both of two sets of disjoint, sorted intervals."""
    return float(covered_s(one, *other).sum())


def complement(intervals: Intervals, start_s: float, end_s: float) -> Intervals:
    """The stretches from start_s to end_s that disjoint, sorted intervals leave free."""
    starts = np.concatenate(([start_s], np.clip(intervals[1], start_s, end_s)))
    ends = np.concatenate((np.clip(intervals[0], start_s, end_s), [end_s]))
    free = ends > starts
    return starts[free], ends[free]


def why_idle(idle: Intervals, host: dict[str, Intervals], queued: np.ndarray | None = None) -> list[str]:
    """For each idle stretch of a device its cause, one of CAUSES, from what the host did then: intervals by kind.

    queued: where known, whether the work that ended the stretch had been launched before it began: then the host is not
    the cause; the device took its time between two operations, or waited for another stream or another machine. Else
    what covers at least half of the stretch is the cause. Else, where a wait for the device ended in the stretch or
    just before it, the wait is: it had drained the queue, and the host must fill it again. Else, where the host was in
    operators or launches for three tenths of it, the device could have done more than the host handed to it.
    """
    starts, ends = idle
    empty = (np.zeros(0), np.zeros(0))
    shares = [covered_s(host.get(kind, empty), starts, ends) / (ends - starts) for kind in CAUSE_OF_KIND]
    most = np.argmax(shares, axis=0)
    found = np.take_along_axis(np.asarray(shares), most[None], axis=0)[0] >= MOSTLY
    returned = np.sort(host.get("wait", empty)[1])
    after = np.searchsorted(returned, ends) > np.searchsorted(returned, starts - CLOCKS_AGREE_S)
    busy = union(*(np.concatenate([host.get(kind, empty)[i] for kind in ("host", "launch")]) for i in (0, 1)))
    launching = covered_s(busy, starts, ends) >= BUSY_LAUNCHING * (ends - starts)
    names = np.asarray(CAUSES)
    causes = np.where(found, names[most], np.where(after, SYNC, np.where(launching, LAUNCH, UNKNOWN)))
    return (causes if queued is None else np.where(queued, QUEUED, causes)).tolist()


def device_rows(spans: Iterable[Span]) -> list[str]:
    """The rows of a device: kernels, copies or communication, and nothing that only a host does; in order of time."""
    spans = sorted(spans, key=lambda span: span.start_s)
    hosts = {span.row for span in spans if span.kind in HOST_KINDS}
    return list(dict.fromkeys(span.row for span in spans if span.kind in DEVICE_KINDS and span.row not in hosts))


def gaps(
    spans: Sequence[Span],
    devices: Sequence[str] | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
) -> list[Gap]:
    """When the device rows stood idle and why, from start_s to end_s (by default from the first span to the last)."""
    devices = device_rows(spans) if devices is None else devices
    start_s = min((span.start_s for span in spans), default=0.0) if start_s is None else start_s
    end_s = max((span.end_s for span in spans), default=0.0) if end_s is None else end_s
    works: dict[str, list[Span]] = {row: [] for row in devices}
    hosts: dict[str, list[Span]] = {kind: [] for kind in KINDS}
    for span in spans:
        if span.row not in works:
            hosts[span.kind].append(span)
        elif span.kind in DEVICE_KINDS:
            works[span.row].append(span)
    host = {kind: _intervals(members) for kind, members in hosts.items()}
    found = []
    for row in devices:
        idle = complement(_intervals(works[row]), start_s, end_s)
        causes = why_idle(idle, host)
        found += [
            Gap(row=row, start_s=float(a), end_s=float(b), cause=why) for a, b, why in zip(*idle, causes, strict=True)
        ]
    return found


def _intervals(spans: Sequence[Span]) -> Intervals:
    """The time that spans cover."""
    return union([span.start_s for span in spans], [span.end_s for span in spans])
