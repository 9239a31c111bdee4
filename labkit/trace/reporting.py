"""What a trace says about its devices, its host and its steps: as records, text, JSON, and a page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from labkit.show import show, varying_html, varying_text
from labkit.timeline import UNKNOWN, Intervals, length_s, overlap_s, union
from labkit.trace.devices import CPU
from labkit.trace.explain import Explained, explain
from labkit.trace.model import CODE, Columns, Trace, annotated
from labkit.trace.reading import read
from labkit.units import format_bytes, format_s

SHORT_S = 10e-6  # a kernel below this is about as short as its launch is long
TOP = 10
INFERRED = "None was marked: each lies between the ends of two optimizer steps; what came before the first is in none."


@dataclass(frozen=True, kw_only=True)
class Top:
    """One operation of a device: its name, all its seconds, how often it ran, its share of the device's busy time."""

    name: str
    seconds: float
    count: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one device did, in seconds; busy_s and idle_s make up the trace's span_s.

    busy_s: kernels, copies or communication, counted once where they overlap. kernels: communication left out. copies:
    memory filled is not a copy. exposed_communication_s: during which no kernel computed. short_kernels: below 10 us.
    idle_causes: seconds by cause (labkit.timeline.CAUSES). idle_share_between: of the time from the first work to the
    last, which leaves out what came before and after.
    """

    busy_s: float
    idle_s: float
    idle_share: float
    idle_share_between: float
    idle_causes: Mapping[str, float]
    kernels: int
    short_kernels: int
    copies: int
    copied_bytes: float
    copy_s: float
    communication_s: float
    exposed_communication_s: float
    top: Sequence[Top]


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the host did: how many launches, and seconds and number of its waits for a device and for data.

    None is what a trace does not tell: the first three where it holds neither launches nor waits, as of a CPU alone;
    the last two where no wait for data is marked.
    """

    launches: int | None
    waits: int | None
    wait_s: float | None
    data_waits: int | None
    data_wait_s: float | None

    def __str__(self) -> str:
        said = "launches and waits for a device: not recorded"
        if self.launches is not None:
            said = f"{_count(self.launches, 'launch', 'launches')}; waited {format_s(self.wait_s)} for a device "
            said += f"({_count(self.waits, 'time')})"
        if self.data_waits is None:
            return f"{said}; waits for data: none marked"
        return f"{said}; waited {format_s(self.data_wait_s)} for data ({_count(self.data_waits, 'time')})"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report on one trace. span_s: seconds from its first event to its last end. steps: how many were found.

    steps_inferred: whether they were not marked, but are what lies between the optimizer's steps.
    """

    source: str
    span_s: float
    devices: Mapping[str, Device]
    host: Host
    steps: int
    steps_inferred: bool
    slow_steps: Sequence[Explained]
    notes: Sequence[str]
    trace: Trace

    def json(self) -> str:
        """The report as JSON, all times in seconds; in ASCII, so that any terminal and pipe keeps every name."""
        slow = [
            {"name": each.step.name, "index": each.slow.index, "seconds": each.slow.seconds, "ratio": each.slow.ratio}
            | {"causes": [{"cause": cause, "seconds": seconds} for cause, seconds in each.causes], "note": each.note}
            for each in self.slow_steps
        ]
        devices = {name: asdict(device) for name, device in self.devices.items()}
        said = {"source": self.source, "span_s": self.span_s, "devices": devices, "host": asdict(self.host)}
        said |= {"steps": self.steps, "steps_inferred": self.steps_inferred, "slow_steps": slow}
        said["notes"] = list(self.notes)
        return json.dumps(said, indent=2)

    def text(self) -> str:
        """The report as lines of text."""
        lines = [f"{cut(self.source)}: {format_s(self.span_s)}, {len(self.trace.columns):,} events"]
        lines += [f"  Note: {cut(note, 160)}" for note in self.notes]
        for name, device in self.devices.items():
            lines += ["", *_device_lines(name, device)]
        if not self.devices:
            lines += ["", "No device and no operators in this trace: only what its host rows are named is known."]
        lines += ["", f"Host: {self.host}", "", self.steps_said()]
        lines += [f"  {cut(str(each), 160)}" for each in self.slow_steps]
        return "\n".join(lines)

    def steps_said(self) -> str:
        """How many steps there are, how they were found, and how many were slow: a sentence or two."""
        if not self.steps:
            return "No steps in this trace: call the profiler's step(), or name a step with record_function."
        typical_s = float(np.median([step.seconds for step in self.trace.steps]))
        said = f"{_count(self.steps, 'step')}, {format_s(typical_s)} in the median; {len(self.slow_steps)} slow"
        return f"{said}. {INFERRED}" if self.steps_inferred else said

    def html(self) -> str:
        """The report with a timeline as one HTML page that needs nothing else."""
        from labkit.trace.page import page

        return page(self)

    def show(self) -> None:
        """Show the report, marked as figures that may differ from run to run."""
        from labkit.trace.page import body

        show(varying_text(self.text()), varying_html(body(self, timeline=False)))

    def __str__(self) -> str:
        return self.text()


def report(source: object) -> Report:
    """The report on a trace, or on anything that `read` takes. TraceError as there."""
    trace = read(source)
    slow = explain(trace)
    return Report(
        source=trace.source,
        span_s=trace.span_s,
        devices={name: _device(trace, name) for name in trace.devices},
        host=_host(trace),
        steps=len(trace.steps),
        steps_inferred=bool(trace.steps) and not annotated(trace),
        slow_steps=slow,
        notes=trace.notes,
        trace=trace,
    )


def _device(trace: Trace, name: str) -> Device:
    """What one device did."""
    work = trace.columns.take(trace.work(name))
    busy = union(work.start_s, work.end_s)
    kinds = {kind: work.kind == CODE[kind] for kind in ("kernel", "copy", "communication")}
    computing, talking = work.intervals(kinds["kernel"]), work.intervals(kinds["communication"])
    fills = [i for i in np.unique(work.name).tolist() if "memset" in trace.names[i].lower()]
    moved = kinds["copy"] & ~np.isin(work.name, fills)
    idle, causes = trace.idle(name)
    between_s = float(busy[1][-1] - busy[0][0]) if len(busy[0]) else 0.0
    busy_s, idle_s = length_s(busy), length_s(idle)
    seconds = work.end_s - work.start_s
    return Device(
        busy_s=busy_s,
        idle_s=idle_s,
        idle_share=idle_s / trace.span_s if trace.span_s else 0.0,
        idle_share_between=1 - busy_s / between_s if between_s else 0.0,
        idle_causes=_causes(idle, causes),
        kernels=int(kinds["kernel"].sum()),
        short_kernels=int((kinds["kernel"] & (seconds < SHORT_S)).sum()),
        copies=int(moved.sum()),
        copied_bytes=float(work.n_bytes[moved].sum()),
        copy_s=length_s(work.intervals(kinds["copy"])),
        communication_s=length_s(talking),
        exposed_communication_s=length_s(talking) - overlap_s(talking, computing),
        top=_top(work, trace.names, busy_s),
    )


def _causes(idle: Intervals, causes: Sequence[str]) -> dict[str, float]:
    """Idle seconds by cause, most first."""
    total: dict[str, float] = {}
    for cause, seconds in zip(causes, (idle[1] - idle[0]).tolist(), strict=True):
        total[cause] = total.get(cause, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda each: -each[1]))


def _top(work: Columns, called: Sequence[str], busy_s: float) -> list[Top]:
    """The operations with the most seconds in all."""
    names, places = np.unique(work.name, return_inverse=True)
    total = np.bincount(places, work.end_s - work.start_s, minlength=len(names))
    count = np.bincount(places, minlength=len(names))
    return [
        Top(
            name=called[names[i]],
            seconds=float(total[i]),
            count=int(count[i]),
            share=float(total[i] / busy_s) if busy_s else 0.0,
        )
        for i in np.argsort(-total, kind="stable")[:TOP].tolist()
    ]


def _host(trace: Trace) -> Host:
    """What the host did."""
    host = trace.host
    launches = int((~trace.on_devices() & trace.of_kind("launch")).sum())
    waits, data_waits = len(host["wait"][0]), len(host["data"][0])
    recorded = launches + waits > 0
    return Host(
        launches=launches if recorded else None,
        waits=waits if recorded else None,
        wait_s=length_s(host["wait"]) if recorded else None,
        data_waits=data_waits or None,
        data_wait_s=length_s(host["data"]) if data_waits else None,
    )


def _device_lines(name: str, device: Device) -> list[str]:
    """One device as text."""
    lines = [
        f"{cut(name)}: busy {format_s(device.busy_s)}, idle {format_s(device.idle_s)} ({device.idle_share:.1%}; "
        f"{device.idle_share_between:.1%} from its first work to its last)"
    ]
    whole = device.idle_s or 1.0
    between = " (between operators: Python, or nothing at all)" if name == CPU else ""
    for cause, seconds in device.idle_causes.items():
        said = cause + between if cause == UNKNOWN else cause
        lines += [f"  idle, {said}: {format_s(seconds)} ({seconds / whole:.0%})"]
    short = f", {device.short_kernels / device.kernels:.0%} shorter than 10 µs" if device.kernels else ""
    lines += [f"  {_count(device.kernels, 'operator' if name == CPU else 'kernel')}{short}"]
    moved = f", {format_bytes(device.copied_bytes)}" if device.copied_bytes else ""
    took = f", {format_s(device.copy_s)}" if device.copy_s else ""
    lines += [f"  {_count(device.copies, 'copy', 'copies')}{moved}{took}"]
    if device.communication_s:
        exposed_s = device.exposed_communication_s
        hidden = f"overlapped by kernels {format_s(device.communication_s - exposed_s)}, exposed {format_s(exposed_s)}"
        lines += [f"  communication {format_s(device.communication_s)}: {hidden}"]
    lines += ["  most time:"] if device.top else []
    return lines + [
        f"    {top.share:6.1%}  {format_s(top.seconds):>8}  {top.count:>7} x  {cut(top.name)}" for top in device.top
    ]


def cut(name: str, longest: int = 80) -> str:
    """A name on one line, without what a terminal would obey, and not too long."""
    plain = "".join(sign if sign.isprintable() else " " for sign in name)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"
