"""The report as one HTML page: no script, nothing fetched, light and dark as the reader's system is."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from labkit.figure import BLUE, GREEN, GREY, OCHRE, PURPLE, VERMILLION
from labkit.trace.devices import CPU
from labkit.trace.model import CODE, Trace
from labkit.units import format_bytes, format_s

if TYPE_CHECKING:
    from labkit.trace.reporting import Device, Report

WIDTH, ROW, PAD = 1200, 22, 6  # of the drawing, in its own units
MOST_HOST_ROWS = 4
# kind: colour, and whether striped; what is rarer and matters more is drawn later, and lies above
LOOKS = {
    "host": (GREY, False),
    "launch": (BLUE, False),
    "alloc": (GREEN, True),
    "compile": (OCHRE, True),
    "gc": (VERMILLION, True),
    "data": (PURPLE, True),
    "wait": (VERMILLION, False),
    "kernel": (GREEN, False),
    "copy": (PURPLE, False),
    "communication": (BLUE, True),
}
CAPTION = "<p>Dashed: a device stood idle. Point at a bar to see what it is, how long, and why it was idle.</p>"
STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff; --line: #8a8a8a; --soft: #f1f1f1; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --page: #161616; --line: #7a7a7a; --soft: #262626; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2em auto;
  max-width: 76em; padding: 0 1em; }
.labkit-trace table { border-collapse: collapse; margin: .5em 0 1.5em; }
.labkit-trace td, .labkit-trace th { padding: .2em .9em .2em 0; text-align: right; border-bottom: 1px solid #8a8a8a66;
  white-space: nowrap; }
.labkit-trace td:first-child, .labkit-trace th:first-child { text-align: left; overflow-wrap: anywhere;
  white-space: normal; }
.labkit-trace svg { width: 100%; height: auto; background: var(--soft); }
.labkit-trace svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
.labkit-trace li { margin: .2em 0; }
"""


def page(report: "Report") -> str:
    """The whole page."""
    title = f"{escape(report.source)}: labkit trace"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body>{body(report, timeline=True)}</body></html>\n"
    )


def body(report: "Report", *, timeline: bool) -> str:
    """What stands in the page, for a notebook without the drawing."""
    devices = "".join(_device(name, device) for name, device in report.devices.items())
    notes = "".join(f"<p><em>{escape(note)}</em></p>" for note in report.notes)
    slow = "".join(f"<li>{escape(str(each))}</li>" for each in report.slow_steps)
    steps = f"<h3>Steps</h3><p>{escape(report.steps_said())}</p><ul>{slow}</ul>"
    host = f"<h3>Host</h3><p>{escape(str(report.host))}</p>"
    drawing = "".join(_drawing(report.trace, *each) for each in _windows(report)) if timeline else ""
    head = f"<h2>{escape(report.source)}</h2><p>{format_s(report.span_s)}, {len(report.trace.columns):,} events.</p>"
    return f'<div class="labkit-trace">{head}{notes}{drawing}{devices}{host}{steps if report.steps else ""}</div>'


def _device(name: str, device: "Device") -> str:
    """One device: what it did, why it stood idle, what took most time."""
    facts = {
        "busy": format_s(device.busy_s),
        "idle": f"{format_s(device.idle_s)} ({device.idle_share:.1%})",
        "idle from first work to last": f"{device.idle_share_between:.1%}",
        "operators" if name == CPU else "kernels": f"{device.kernels:,}",
        "of them shorter than 10 µs": f"{device.short_kernels:,}",
        "copies": f"{device.copies:,}",
    }
    if device.copies:
        facts["copies"] += f", {format_bytes(device.copied_bytes)}, {format_s(device.copy_s)}"
    if device.communication_s:
        facts["communication"] = format_s(device.communication_s)
        facts["of it exposed"] = format_s(device.exposed_communication_s)
    causes = [
        (cause, format_s(seconds), f"{seconds / (device.idle_s or 1.0):.0%}")
        for cause, seconds in device.idle_causes.items()
    ]
    top = [(each.name, format_s(each.seconds), f"{each.count:,}", f"{each.share:.1%}") for each in device.top]
    return (
        f"<h3>{escape(name)}</h3>{_table((), list(facts.items()))}"
        + (_table(("idle because of", "time", "of the idle time"), causes) if causes else "")
        + (_table(("operation", "time", "times", "of the busy time"), top) if top else "")
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column to the left."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if headings else ''}<tbody>{lines}</tbody></table>"


def _windows(report: "Report") -> list[tuple[str, float, float]]:
    """What to draw: the whole trace; then the slowest step with its neighbours, or three steps from the middle."""
    windows = [("Timeline", 0.0, report.trace.span_s)] if report.trace.span_s else []
    steps = report.trace.steps
    if len(steps) < 5:
        return windows
    slowest = max(report.slow_steps, key=lambda each: each.slow.ratio, default=None)
    middle = slowest.slow.index if slowest else len(steps) // 2
    named = f"The slowest step, {slowest.step.name}, and its neighbours" if slowest else "Three steps"
    first, last = steps[max(middle - 1, 0)], steps[min(middle + 1, len(steps) - 1)]
    return [*windows, (named, first.start_s, last.end_s)]


def _drawing(whole: Trace, title: str, start_s: float, end_s: float) -> str:
    """Rows of bars: the busiest host rows, then the devices with their gaps dashed; pointing at a bar names it."""
    columns = whole.columns
    inside = columns.take((columns.start_s < end_s) & (columns.end_s > start_s))
    clipped = {
        "start_s": np.maximum(inside.start_s, start_s) - start_s,
        "end_s": np.minimum(inside.end_s, end_s) - start_s,
    }
    trace = replace(whole, columns=replace(inside, **clipped))
    counts = np.bincount(trace.columns.row, minlength=len(trace.rows))
    busiest, devices = np.argsort(-counts, kind="stable").tolist(), set(trace.devices)
    hosts = [trace.rows[i] for i in busiest if counts[i] and trace.rows[i] not in devices]
    rows = [*hosts[:MOST_HOST_ROWS], *trace.devices]
    scale = WIDTH / (end_s - start_s)
    parts, top = [], 0
    for row in rows:
        parts.append(f'<text x="4" y="{top + 13}">{escape(row)}</text>')
        parts += _row(trace, row, top + 17, scale)
        top += 17 + ROW + PAD
    ticks = "".join(
        f'<text x="{min(WIDTH * k / 5 + 2, WIDTH - 60):.0f}" y="{top + 12}">'
        f"{format_s((end_s - start_s) * k / 5) if k else 0}</text>"
        for k in range(6)
    )
    kinds = [kind for kind in LOOKS if trace.of_kind(kind).any()]
    legend = "".join(
        f'<rect x="{i * 118 + 4}" y="{top + 22}" width="12" height="12" fill="{_fill(kind)}"/>'
        f'<text x="{i * 118 + 20}" y="{top + 33}">{kind}</text>'
        for i, kind in enumerate(kinds)
    )
    stripes = "".join(_stripes(kind) for kind in kinds if LOOKS[kind][1])
    box = f'<svg viewBox="0 0 {WIDTH} {top + 44}" role="img" aria-label="{escape(title)}"><defs>{stripes}</defs>'
    return f"<h3>{escape(title)}</h3>{box}{''.join(parts)}{ticks}{legend}</svg>{CAPTION}"


def _fill(kind: str) -> str:
    """The colour of a kind, or the name of its stripes."""
    colour, striped = LOOKS[kind]
    return f"url(#labkit-{kind})" if striped else colour


def _stripes(kind: str) -> str:
    """Stripes in a kind's colour."""
    return (
        f'<pattern id="labkit-{kind}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="4" height="6" fill="{LOOKS[kind][0]}"/></pattern>'
    )


def _row(trace: Trace, row: str, top: int, scale: float) -> list[str]:
    """The bars of one row, a kind after the other, and a device's gaps."""
    bars: list[str] = []
    columns = trace.columns.take(trace.of_row(row))
    for kind in LOOKS:
        starts, ends = columns.intervals(columns.kind == CODE[kind])
        bars += _bars(starts, ends, top, scale, f'fill="{_fill(kind)}"', kind)
    if row in trace.devices:
        look = 'fill="none" stroke="var(--line)" stroke-dasharray="2 2"'
        (starts, ends), causes = trace.idle(row)
        wide = np.flatnonzero((ends - starts) * scale > 3).tolist()
        for start, end, cause in ((starts[i], ends[i], causes[i]) for i in wide):
            bars += _bars(np.array([start]), np.array([end]), top, scale, look, f"idle: {cause}")
    return bars


def _bars(starts: np.ndarray, ends: np.ndarray, top: int, scale: float, look: str, title: str) -> list[str]:
    """Bars for disjoint intervals; what lies closer than the drawing can show becomes one."""
    if not len(starts):
        return []
    apart = np.concatenate(([True], starts[1:] - ends[:-1] > 0.7 / scale))
    lefts, rights = starts[apart], ends[np.concatenate((apart[1:], [True]))]
    return [
        f'<rect x="{a * scale:.1f}" y="{top}" width="{max((b - a) * scale, 0.7):.1f}" height="{ROW}" {look}>'
        f"<title>{escape(title)}, {format_s(b - a)}</title></rect>"
        for a, b in zip(lefts.tolist(), rights.tolist(), strict=True)
    ]
