"""The report as one HTML page: no script, nothing fetched, light and dark as the reader's system is."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from labkit.figure import BLUE, GREEN, GREY, PURPLE, VERMILLION
from labkit.timeline import complement, why_idle
from labkit.trace.model import Trace
from labkit.units import format_bytes, format_s

if TYPE_CHECKING:
    from labkit.trace.reporting import Device, Report

WIDTH, ROW, PAD = 1200, 22, 6  # of the drawing, in its own units
MOST_HOST_ROWS = 4
COLOURS = {
    "host": GREY,
    "launch": BLUE,
    "alloc": PURPLE,
    "compile": BLUE,
    "gc": VERMILLION,
    "data": PURPLE,
    "wait": VERMILLION,
    "kernel": GREEN,
    "copy": PURPLE,
    "communication": BLUE,
}
STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff; --line: #8a8a8a; --soft: #f1f1f1; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --page: #161616; --line: #7a7a7a; --soft: #262626; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2em auto;
  max-width: 76em; padding: 0 1em; }
.labkit-trace table { border-collapse: collapse; margin: .5em 0 1.5em; }
.labkit-trace td, .labkit-trace th { padding: .2em .9em .2em 0; text-align: right; border-bottom: 1px solid #8a8a8a66; }
.labkit-trace td:first-child, .labkit-trace th:first-child { text-align: left; overflow-wrap: anywhere; }
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
    steps = f"<h3>Steps</h3><p>{report.steps} steps, {len(report.slow_steps)} of them slow.</p><ul>{slow}</ul>"
    host = report.host
    waited = (
        f"<h3>Host</h3><p>{host.launches:,} launches; waited {format_s(host.wait_s)} for a device "
        f"({host.waits:,} times) and {format_s(host.data_wait_s)} for data ({host.data_waits:,} times).</p>"
    )
    drawing = f"<h3>Timeline</h3>{_drawing(report.trace)}" if timeline and len(report.trace.columns) else ""
    head = f"<h2>{escape(report.source)}</h2><p>{format_s(report.span_s)}, {len(report.trace.columns):,} events.</p>"
    return f'<div class="labkit-trace">{head}{notes}{drawing}{devices}{waited}{steps if report.steps else ""}</div>'


def _device(name: str, device: "Device") -> str:
    """One device: what it did, why it stood idle, what took most time."""
    facts = {
        "busy": format_s(device.busy_s),
        "idle": f"{format_s(device.idle_s)} ({device.idle_share:.1%})",
        "idle from first work to last": f"{device.idle_share_between:.1%}",
        "kernels": f"{device.kernels:,}",
        "of them shorter than 10 µs": f"{device.short_kernels:,}",
        "copies": f"{device.copies:,}, {format_bytes(device.copied_bytes)}, {format_s(device.copy_s)}",
        "communication": format_s(device.communication_s),
        "of it exposed": format_s(device.exposed_communication_s),
    }
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


def _drawing(trace: Trace) -> str:
    """Rows of bars: the busiest host rows, then the devices with their gaps hatched; a title names what is under it."""
    counts = np.bincount(trace.columns.row, minlength=len(trace.rows))
    hosts = [i for i in np.argsort(-counts, kind="stable").tolist() if trace.rows[i] not in trace.devices]
    rows = [*hosts[:MOST_HOST_ROWS], *(trace.rows.index(device) for device in trace.devices)]
    scale = WIDTH / (trace.span_s or 1.0)
    parts, top = [], 0
    for row in rows:
        parts.append(f'<text x="4" y="{top + 13}">{escape(trace.rows[row])}</text>')
        parts += _row(trace, row, top + 17, scale)
        top += 17 + ROW + PAD
    ticks = "".join(
        f'<text x="{min(WIDTH * k / 5 + 2, WIDTH - 60):.0f}" y="{top + 12}">{format_s(trace.span_s * k / 5)}</text>'
        for k in range(6)
    )
    used = {kind for kind, colour in COLOURS.items() if trace.of_kind(kind).any()}
    legend = "".join(
        f'<rect x="{i * 120 + 4}" y="{top + 22}" width="12" height="12" fill="{COLOURS[kind]}"/>'
        f'<text x="{i * 120 + 20}" y="{top + 33}">{kind}</text>'
        for i, kind in enumerate(kind for kind in COLOURS if kind in used)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {top + 44}" role="img" aria-label="timeline">{"".join(parts)}{ticks}{legend}</svg>'
    )


def _row(trace: Trace, row: int, top: int, scale: float) -> list[str]:
    """The bars of one row, a kind after the other, so that what is rarer and matters more lies above."""
    bars: list[str] = []
    for kind, colour in COLOURS.items():
        starts, ends = trace.columns.intervals((trace.columns.row == row) & trace.of_kind(kind))
        bars += _bars(starts, ends, top, scale, f'fill="{colour}"', kind)
    if trace.rows[row] in trace.devices:
        idle = complement(trace.columns.intervals(trace.work(trace.rows[row])), 0.0, trace.span_s)
        wide = (idle[1] - idle[0]) * scale > 3
        idle = idle[0][wide], idle[1][wide]
        look = 'fill="none" stroke="var(--line)" stroke-dasharray="2 2"'
        for start, end, cause in zip(*idle, why_idle(idle, trace.host()), strict=True):
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
