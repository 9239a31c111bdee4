"""Which rows of a trace are devices: GPUs, else the worker of labkit.device_thread, else the CPU by its operators."""

import re
from dataclasses import dataclass, replace

import numpy as np

from labkit.trace import names as naming
from labkit.trace.model import CODE, FRAME, OPERATOR, Columns, Trace

CPU, WORKER = "CPU", "device thread"
# The launch of a copy that takes longer is the copy itself: the memory was not pinned, and the host had to wait.
SLOWEST_LAUNCH_S = 50e-6
_ACCELERATOR = re.compile(r"/device:(GPU|TPU):\d+", re.I)  # how XLA names the processes that stand for devices


def is_accelerator(process: str) -> bool:
    """Whether a process of this name stands for a device, as in traces of JAX and TensorFlow."""
    return bool(_ACCELERATOR.search(process))


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a file holds, before its devices are known. devices: the rows whose events bear a device's category."""

    columns: Columns
    names: list[str]
    rows: list[str]
    devices: list[int]
    notes: list[str]

    def trace(self, source: str) -> Trace:
        """The trace, with its devices."""
        found = _accelerators(_worker(replace(self, columns=_slow_launches(self.columns, self.names))))
        if not found.devices:
            found = _cpu(found)
        rows, devices = found.rows, sorted(found.rows[i] for i in found.devices)
        fields = {"columns": found.columns, "names": found.names, "rows": rows, "devices": devices}
        return Trace(source=source, notes=found.notes, **fields)


def _slow_launches(columns: Columns, names: list[str]) -> Columns:
    """Launches of copies that took as long as a copy become copies."""
    copies = [i for i, name in enumerate(names) if "memcpy" in name.lower()]
    slow = (columns.kind == CODE["launch"]) & (columns.end_s - columns.start_s > SLOWEST_LAUNCH_S)
    columns.kind[slow & np.isin(columns.name, copies)] = CODE["copy"]
    return columns


def _worker(found: Found) -> Found:
    """With the worker thread as a device: its row keeps the device's operations, and loses what they are made of."""
    marked = [i for i, name in enumerate(found.names) if name.startswith(naming.DEVICE_PREFIX)]
    works = np.isin(found.columns.name, marked)
    if not works.any():
        return found
    row = int(found.columns.row[works][0])
    rows = [*found.rows[:row], WORKER, *found.rows[row + 1 :]]
    names = [name.removeprefix(naming.DEVICE_PREFIX) for name in found.names]
    columns = found.columns.take(works | (found.columns.row != row))
    return replace(found, columns=columns, rows=rows, names=names, devices=[*found.devices, row])


def _accelerators(found: Found) -> Found:
    """With XLA's devices: what their threads do is work; those of one device become one row."""
    rows = list(found.rows)
    first: dict[str, int] = {}
    homes, works = np.arange(len(rows), dtype=found.columns.row.dtype), np.zeros(len(rows), dtype=bool)
    for i, row in enumerate(found.rows):
        if device := _ACCELERATOR.search(row):
            homes[i] = first.setdefault(device.group(), i)
            works[i] = True
            rows[i] = device.group().lstrip("/") if homes[i] == i else row
    kind, row = found.columns.kind, found.columns.row
    kind = np.where(works[row] & (kind == CODE["host"]), CODE["kernel"], kind).astype(kind.dtype)
    columns = replace(found.columns, kind=kind, row=homes[row])
    return replace(found, columns=columns, rows=rows, devices=[*found.devices, *first.values()])


def _cpu(found: Found) -> Found:
    """With the CPU as a device: its work is that of the operators which no other operator called.

    What operators do while something is compiled is not work, only the tracing of it. Where a trace has no operators,
    whatever its threads show is work, and a note says so.
    """
    columns, names, notes = found.columns, found.names, list(found.notes)
    computing = np.isin(columns.name, [i for i, name in enumerate(names) if naming.computes(name)])
    works = (columns.role == OPERATOR) & computing & (columns.kind != CODE["compile"])
    works |= (columns.kind == CODE["communication"]) & computing
    works |= np.isin(columns.name, [i for i, name in enumerate(names) if "CompiledFxGraph" in name])
    if not works.any():
        works = np.isin(columns.kind, [CODE["host"], CODE["copy"], CODE["alloc"]]) & (columns.role != FRAME)
        notes.append(
            "It has no device and no PyTorch operators: the CPU's work is taken to be all that its threads show."
        )
    starts, ends = columns.intervals(columns.kind == CODE["compile"])
    compiling = np.searchsorted(starts, columns.start_s, "right") > np.searchsorted(ends, columns.start_s, "right")
    works &= ~compiling
    outer = columns.take(_outermost(columns, works))
    copies = np.isin(outer.name, [i for i, name in enumerate(names) if naming.kind("kernel", name) == "copy"])
    kind = np.where(copies, CODE["copy"], CODE["kernel"])
    kind = np.where(outer.kind == CODE["communication"], CODE["communication"], kind).astype(np.int8)
    row = np.full(len(outer), len(found.rows), dtype=outer.row.dtype)
    columns = columns.joined(replace(outer, kind=kind, row=row, role=np.zeros_like(outer.role)))
    return replace(found, columns=columns, rows=[*found.rows, CPU], devices=[len(found.rows)], notes=notes)


def _outermost(columns: Columns, which: np.ndarray) -> np.ndarray:
    """Indices of the entries that lie in no other of these entries on the same row."""
    found = np.flatnonzero(which)
    found = found[np.argsort(columns.row[found], kind="stable")]
    kept = []
    for members in np.split(found, np.flatnonzero(np.diff(columns.row[found])) + 1) if len(found) else ():
        reach = np.maximum.accumulate(columns.end_s[members])
        kept.append(members[np.concatenate(([True], columns.start_s[members[1:]] >= reach[:-1]))])
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)
