"""A trace in columns: a million events in tens of megabytes, and labkit.timeline's spans where they are looked at."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from labkit.timeline import DEVICE_KINDS, KINDS, Intervals, Span, complement, union, why_idle

CODE = {kind: code for code, kind in enumerate(KINDS)}
OPERATOR, FRAME = 1, 2
_OPTIMIZER = re.compile(r"^Optimizer\.step#")


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """One entry an event, by start: seconds from the trace's first event, indices of names and rows, code of the kind.

    role: OPERATOR for an operator on the CPU, FRAME for a frame of Python code, else 0. link: the number that a launch
    shares with the work it launched, or -1. shape: the index of its inputs' shapes, or -1. n_bytes: what a copy moved.
    """

    start_s: np.ndarray
    end_s: np.ndarray
    name: np.ndarray
    row: np.ndarray
    kind: np.ndarray
    role: np.ndarray
    link: np.ndarray
    shape: np.ndarray
    n_bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.start_s)

    def take(self, which: np.ndarray) -> "Columns":
        """The entries that a mask or indices name."""
        return Columns(**{key: column[which] for key, column in vars(self).items()})

    def joined(self, other: "Columns") -> "Columns":
        """Both, by start; of two that start together the longer one first."""
        both = Columns(**{key: np.concatenate((column, vars(other)[key])) for key, column in vars(self).items()})
        return both.take(np.lexsort((-both.end_s, both.start_s)))

    def intervals(self, which: np.ndarray) -> Intervals:
        """The time that the entries named cover."""
        return union(self.start_s[which], self.end_s[which])


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the program: its name, and when it ran, in seconds from the trace's first event."""

    name: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What host and devices did when. `devices` names the device rows; without a GPU that is the CPU, by its operators.

    source: the file's name. notes: sentences about what was odd. span_s: seconds from the first event to the last end.
    """

    source: str
    columns: Columns
    names: Sequence[str]
    rows: Sequence[str]
    devices: Sequence[str]
    notes: Sequence[str] = field(default=())

    @property
    def span_s(self) -> float:
        """Seconds from the first event to the last end."""
        return float(self.columns.end_s.max(initial=0.0))

    @property
    def spans(self) -> list[Span]:
        """Every event as a span; a large trace has a million: see `window`."""
        return list(self.window())

    def window(self, start_s: float = 0.0, end_s: float = float("inf"), *, shortest_s: float = 0.0) -> Iterator[Span]:
        """The spans that touch start_s to end_s and last shortest_s at least, by start."""
        columns = self.columns
        last = int(np.searchsorted(columns.start_s, end_s))
        long = columns.end_s[:last] - columns.start_s[:last] >= shortest_s
        for i in np.flatnonzero(long & (columns.end_s[:last] >= start_s)).tolist():
            yield Span(
                row=self.rows[columns.row[i]],
                name=self.names[columns.name[i]],
                start_s=float(columns.start_s[i]),
                end_s=float(columns.end_s[i]),
                kind=KINDS[columns.kind[i]],
            )

    def on_devices(self) -> np.ndarray:
        """Which entries belong to a device's row."""
        return np.array([row in self._devices for row in self.rows], dtype=bool)[self.columns.row]

    def of_row(self, row: str) -> np.ndarray:
        """Indices of a row's entries, by start. KeyError: no such row."""
        order, edges = self._by_row
        place = self._places[row]
        return order[edges[place] : edges[place + 1]]

    def work(self, device: str) -> np.ndarray:
        """Indices of a device's work, by start: kernels, copies, communication. KeyError: no such device."""
        if device not in self._devices:
            raise self._no_device(device)
        members = self.of_row(device)
        return members[np.isin(self.columns.kind[members], [CODE[kind] for kind in DEVICE_KINDS])]

    def of_kind(self, *kinds: str) -> np.ndarray:
        """Which entries are of one of these kinds."""
        return np.isin(self.columns.kind, [CODE[kind] for kind in kinds])

    def launched_s(self, works: np.ndarray) -> np.ndarray:
        """When the launch of each of these entries was over; their own start, where no launch bears their number."""
        columns = self.columns
        links, ends = self._launches
        if not len(links):
            return columns.start_s[works]
        place = np.minimum(np.searchsorted(links, columns.link[works]), len(links) - 1)
        known = links[place] == columns.link[works]
        return np.where(known, ends[place], columns.start_s[works])

    def idle(self, device: str) -> tuple[Intervals, list[str]]:
        """When a device stood idle, and each time's cause, one of labkit.timeline.CAUSES. KeyError: no such device.

        Where launches and work bear common numbers, what was launched before the device fell idle counts as queued.
        """
        if device not in self._idle:
            raise self._no_device(device)
        return self._idle[device]

    @cached_property
    def _idle(self) -> dict[str, tuple[Intervals, list[str]]]:
        """As `idle`, for each device: the causes are looked for in one go, for what the host did is common to all."""
        idle, queued = [], []
        for device in self.devices:
            works = self.work(device)
            starts, ends = complement(self.columns.intervals(works), 0.0, self.span_s)
            place = np.searchsorted(self.columns.start_s[works], ends)
            idle.append((starts, ends))
            queued.append(np.append(self.launched_s(works), np.inf)[place] <= starts)
        if not idle:
            return {}
        every = tuple(np.concatenate(each) for each in zip(*idle, strict=True))
        causes, edges = why_idle(every, self.host, np.concatenate(queued)), np.cumsum([0, *map(len, queued)]).tolist()
        each = zip(self.devices, idle, edges, edges[1:], strict=False)
        return {device: (gaps, causes[first:last]) for device, gaps, first, last in each}

    @cached_property
    def host(self) -> dict[str, Intervals]:
        """What the host did: for each kind, the time that it covers on any row that is no device's.

        Frames of Python code are no work of the kind `host`: where stacks were recorded, some frame is always open.
        """
        hosts = ~self.on_devices() & ~((self.columns.role == FRAME) & self.of_kind("host"))
        return {kind: self.columns.intervals(hosts & self.of_kind(kind)) for kind in KINDS}

    def _no_device(self, name: str) -> KeyError:
        """What to raise where there is no such device."""
        return KeyError(f"no device {name!r}; there are: {', '.join(self.devices) or 'none'}")

    @cached_property
    def _devices(self) -> frozenset[str]:
        return frozenset(self.devices)

    @cached_property
    def _places(self) -> dict[str, int]:
        """Each row's index."""
        return {row: i for i, row in enumerate(self.rows)}

    @cached_property
    def _by_row(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of all entries row by row, and where each row's begin: no device need look through them all."""
        edges = np.cumsum(np.bincount(self.columns.row, minlength=len(self.rows)))
        return np.argsort(self.columns.row, kind="stable"), np.concatenate(([0], edges))

    @cached_property
    def _launches(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that launches bear, sorted, and when each launch was over."""
        hosts = np.flatnonzero(~self.on_devices() & (self.columns.link >= 0))
        hosts = hosts[np.argsort(self.columns.link[hosts], kind="stable")]
        return self.columns.link[hosts], self.columns.end_s[hosts]

    @cached_property
    def steps(self) -> list[Step]:
        """The steps: as annotated (the profiler's own count, if there is one), else from optimizer step to the next.

        Empty where neither is in the trace.
        """
        return annotated(self) or _between_optimizers(self)


def annotated(trace: Trace) -> list[Step]:
    """The steps that annotations name, outermost ones only; the profiler's own before a user's."""
    chosen = np.flatnonzero(trace.of_kind("step") & ~trace.on_devices())
    profilers = [i for i in chosen.tolist() if trace.names[trace.columns.name[i]].startswith("ProfilerStep")]
    steps: list[Step] = []
    for i in profilers or chosen.tolist():
        start_s, end_s = float(trace.columns.start_s[i]), float(trace.columns.end_s[i])
        if end_s > start_s and (not steps or start_s >= steps[-1].end_s - 1e-9):
            steps.append(Step(name=trace.names[trace.columns.name[i]], start_s=start_s, end_s=end_s))
    return steps


def _between_optimizers(trace: Trace) -> list[Step]:
    """From the end of one optimizer step to the end of the next; of several optimizers, the first one counts."""
    names = [i for i, name in enumerate(trace.names) if _OPTIMIZER.match(name)]
    found = np.flatnonzero(np.isin(trace.columns.name, names) & ~trace.on_devices())
    if not len(found):
        return []
    ends = trace.columns.end_s[found[trace.columns.name[found] == trace.columns.name[found[0]]]].tolist()
    return [
        Step(name=f"step {i}", start_s=a, end_s=b)
        for i, (a, b) in enumerate(zip(ends, ends[1:], strict=False), 1)
        if b > a
    ]
