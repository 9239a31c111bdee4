"""From events to a trace: which row, which kind, when; and which rows are devices."""

import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from labkit.timeline import Span, device_rows
from labkit.trace import names as naming
from labkit.trace.devices import Found, is_accelerator
from labkit.trace.model import CODE, FRAME, OPERATOR, Columns, Trace
from labkit.trace.stream import Events, TraceError

DEVICE = object()  # in the place of a process: the row belongs to a device
_FIELDS = {
    "start_s": "d",
    "end_s": "d",
    "name": "i",
    "row": "i",
    "kind": "b",
    "role": "b",
    "link": "q",
    "shape": "i",
    "n_bytes": "d",
}


class Builder:
    """Takes events one by one and makes the trace; what it cannot use it counts, by reason."""

    def __init__(self) -> None:
        self.columns = {key: array(code) for key, code in _FIELDS.items()}
        self._append = [self.columns[key].append for key in _FIELDS]
        self.names: dict[str, int] = {}
        self.shapes: dict[str, int] = {}
        self.rows: dict[tuple[object, object], int] = {}
        self.labels: dict[object, str] = {}
        self.left_out: Counter[str] = Counter()
        self._kinds: dict[tuple[object, object], tuple[int, int, int, bool]] = {}
        self._open: dict[tuple[object, object], list[dict[str, Any]]] = {}
        self.count = 0

    def add(self, event: dict[str, Any]) -> None:
        """Take one event of a Chrome trace."""
        self.count += 1
        phase = event.get("ph")
        if phase == "X":
            self._complete(event, event.get("dur"))
        elif phase == "B":
            self._open.setdefault(_place(event), []).append(event)
        elif phase == "E":
            self._close(event)
        elif phase == "M":
            self._label(event)

    def _close(self, event: dict[str, Any]) -> None:
        """The end of the latest event begun on the same thread."""
        begun = self._open.get(_place(event))
        if not begun:
            self.left_out["ends without a beginning"] += 1
            return
        first = begun.pop()
        start, end = _number(first.get("ts")), _number(event.get("ts"))
        self._complete(first, None if start is None or end is None else end - start)

    def _complete(self, event: dict[str, Any], duration: object) -> None:
        """An event with a beginning and a duration in microseconds; a device's has a row of its device."""
        start, duration = _number(event.get("ts")), _number(duration)
        if start is None or duration is None or duration < 0:
            self.left_out["without a time"] += 1
            return
        kind, name, role, device = self._kind(event.get("cat"), event.get("name"))
        if kind < 0:
            return
        arguments = event.get("args")
        arguments = arguments if type(arguments) is dict else {}
        row = self._row(event, arguments, device)
        link = arguments.get("correlation", -1)
        shape = arguments.get("Input Dims") or arguments.get("Input dims") if role == OPERATOR else None
        n_bytes = _number(arguments.get("bytes")) if device else None
        shape = -1 if shape is None else self.shapes.setdefault(str(shape), len(self.shapes))
        link = link if type(link) is int and abs(link) < 1 << 62 else -1
        fields = (start, start + duration, name, row, kind, role, link, shape, n_bytes or 0.0)
        for append, value in zip(self._append, fields, strict=True):
            append(value)

    def _kind(self, category: object, name: object) -> tuple[int, int, int, bool]:
        """Code of the kind (negative: to be left out), index of the name, its role, whether a device's."""
        try:
            return self._kinds[category, name]
        except KeyError:
            pass
        except TypeError:  # a list for a name
            return self._kind(str(category), str(name))
        text, group = "" if name is None else str(name), "" if category is None else str(category)
        code = CODE.get(naming.kind(group, text), -1)
        found = (
            code,
            self.names.setdefault(naming.readable(naming.shown(text)), len(self.names)),
            OPERATOR if naming.is_operator(group) else FRAME if group == "python_function" else 0,
            naming.is_device(group),
        )
        self._kinds[category, name] = found
        return found

    def _row(self, event: dict[str, Any], arguments: dict[str, Any], device: bool) -> int:
        """The index of the row: a device has one, whatever its streams; each host thread has its own."""
        place = _place(event)
        if device:
            identity = arguments.get("device", event.get("pid"))
            place = (DEVICE, naming.device_name(str(event.get("cat")), identity))
        return self.rows.setdefault(place, len(self.rows))

    def _label(self, event: dict[str, Any]) -> None:
        """The name of a process or a thread."""
        arguments = event.get("args")
        name = arguments.get("name") if type(arguments) is dict else None
        if event.get("name") in ("process_name", "thread_name") and name is not None:
            process, thread = _place(event)
            self.labels[process if event["name"] == "process_name" else (process, thread)] = str(name)

    def trace(self, source: str, notes: Iterable[str]) -> Trace:
        """The trace of all events so far."""
        self.left_out["begun and never ended"] += sum(map(len, self._open.values()))
        notes = list(notes)
        notes += [
            f"{count} event{'' if count == 1 else 's'} left out: {why}."
            for why, count in self.left_out.items()
            if count
        ]
        columns = Columns(**{key: np.array(column, dtype=column.typecode) for key, column in self.columns.items()})
        zero = columns.start_s.min(initial=np.inf)
        for times in (columns.start_s, columns.end_s):
            times -= zero
            times *= 1e-6
        columns = columns.take(np.lexsort((-columns.end_s, columns.start_s)))
        devices = [i for i, (process, _) in enumerate(self.rows) if process is DEVICE]
        found = Found(columns=columns, names=list(self.names), rows=self._row_names(), devices=devices, notes=notes)
        return found.trace(source)

    def _row_names(self) -> list[str]:
        """Each row's name: `GPU 0`, or the names that the trace gives process and thread; none twice."""
        names: dict[str, None] = {}
        for process, thread in self.rows:
            owner = self.labels.get(process, "")
            if process is DEVICE:
                name = thread
            elif is_accelerator(owner):
                name = f"{owner} {self.labels.get((process, thread), thread)}"
            else:
                name = self.labels.get((process, thread), f"thread {thread}")
            if name in names and process is not DEVICE:
                name = f"{name} of process {process}"
            name = naming.readable(name)
            while name in names:
                name = f"{name} ({len(names)})"
            names[name] = None
        return list(names)


def _place(event: dict[str, Any]) -> tuple[object, object]:
    """Process and thread of an event, as something that can be a key; numbers and their texts are the same."""
    return str(event.get("pid", "")), str(event.get("tid", ""))


def _number(value: object) -> float | None:
    """A finite number, from a number or its text; None for anything else."""
    if type(value) is float or type(value) is int:
        return float(value) if -1e18 < value < 1e18 else None
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if number is None or not -1e18 < number < 1e18 else number


def of_spans(spans: Iterable[Span], source: str = "spans") -> Trace:
    """A trace made of labkit.timeline's spans, such as labkit.device_thread records."""
    spans = sorted(spans, key=lambda span: (span.start_s, -span.end_s))
    names = {name: i for i, name in enumerate(dict.fromkeys(span.name for span in spans))}
    rows = {row: i for i, row in enumerate(dict.fromkeys(span.row for span in spans))}
    zero = min((span.start_s for span in spans), default=0.0)
    n = len(spans)
    columns = Columns(
        start_s=np.array([span.start_s - zero for span in spans]),
        end_s=np.array([span.end_s - zero for span in spans]),
        name=np.array([names[span.name] for span in spans], dtype=np.int32),
        row=np.array([rows[span.row] for span in spans], dtype=np.int32),
        kind=np.array([CODE[span.kind] for span in spans], dtype=np.int8),
        role=np.zeros(n, dtype=np.int8),
        link=np.full(n, -1),
        shape=np.full(n, -1, dtype=np.int32),
        n_bytes=np.zeros(n),
    )
    shown = {"names": names, "rows": rows, "devices": device_rows(spans)}
    shown = {key: [naming.readable(text) for text in texts] for key, texts in shown.items()}
    return Trace(source=source, columns=columns, **shown)


def read(source: object) -> Trace:
    """A trace from a Chrome trace file (gzip or not), from a torch.profiler.profile, or from spans.

    TraceError, a sentence: no such file, not a trace, or nothing in it. A file cut off in the middle is read up to
    there, with a note. The file is read once, event by event; what stays in memory is about 50 bytes an event.
    """
    if isinstance(source, Trace):
        return source
    if hasattr(source, "export_chrome_trace"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                source.export_chrome_trace(str(Path(folder) / "trace.json"))
            except (RuntimeError, AssertionError) as error:
                raise TraceError(f"This profile gives no trace (it gives one once, after its end): {error}.") from None
            return _of_file(Path(folder) / "trace.json", "this profile")
    if isinstance(source, (str, Path)):
        return _of_file(Path(source), Path(source).name)
    return of_spans(source)


def _of_file(path: Path, name: str) -> Trace:
    """The trace in a file."""
    events, builder = Events(path), Builder()
    add = builder.add
    for event in events:
        add(event)
    if not len(builder.columns["name"]):
        what = f"{builder.count} events, none of which lasted any known time" if builder.count else "no events"
        raise TraceError(f"{path} holds {what}: export the trace again, around some work.")
    return builder.trace(naming.readable(name), events.notes)
