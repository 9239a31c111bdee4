"""Timelines: what host and device did when, and why the device stood idle."""

from collections.abc import Sequence
from typing import Any

from labkit.figure import BLUE, GREEN, GREY, OCHRE, PURPLE, VERMILLION, WIDTH_IN, seconds_ticks, sentence, show_figure
from labkit.timeline import DEVICE_KINDS, Gap, Span, device_rows, gaps

# kind: colour and hatch. What the eye should find first is in colour: waiting, and the device's work.
LOOKS = {
    "host": (GREY, ""),
    "launch": (BLUE, ""),
    "kernel": (GREEN, ""),
    "copy": (PURPLE, ""),
    "communication": (BLUE, ".."),
    "wait": (VERMILLION, ""),
    "data": (PURPLE, "//"),
    "gc": (VERMILLION, ".."),
    "compile": (OCHRE, "\\\\"),
    "alloc": (GREEN, "//"),
    "annotation": (GREY, ".."),
    "step": (GREY, "//"),
}
# cause of an idle gap: colour and hatch, on a pale ground
GAP_LOOKS = {
    "synchronisation": (VERMILLION, "xxx"),
    "data wait": (PURPLE, "///"),
    "copy": (PURPLE, "ooo"),
    "launch-bound": (BLUE, "|||"),
    "garbage collection": (VERMILLION, "..."),
    "compilation": (OCHRE, "\\\\\\"),
    "allocator": (GREEN, "///"),
    "communication": (BLUE, "..."),
    "between queued work": (GREY, "|||"),
    "nothing known": (GREY, "---"),
}
MOST_LANES = 4  # of a row, unless asked otherwise; spans below are left out
_NARROW = 0.01  # of the window: a bar wider than this has an edge, which tells it from its neighbour
NARROWEST = 1 / 1500  # of the window: spans closer than this look like one, and are drawn as one


def timeline(
    spans: Sequence[Span],
    *,
    title: str,
    start_s: float | None = None,
    end_s: float | None = None,
    devices: Sequence[str] | None = None,
    lanes: int = MOST_LANES,
) -> None:
    """Show spans in rows, host rows above device rows, from start_s to end_s; a device's idle gaps bear their causes.

    devices: the rows to draw gaps in; by default those with kernels, copies or communication. Spans of a row
    that are within one another, or overlap, stand below one another, in so many lanes at most; how many spans had no
    room is said below the axis. Time is counted from start_s. ValueError: no span in the window.
    """
    devices = device_rows(spans) if devices is None else list(devices)
    start_s = min((span.start_s for span in spans), default=0.0) if start_s is None else start_s
    end_s = max((span.end_s for span in spans), default=0.0) if end_s is None else end_s
    seen = [span for span in spans if span.end_s > start_s and span.start_s < end_s]
    if not seen:
        raise ValueError(f"nothing to draw: no span lies between {start_s} s and {end_s} s")
    hosts = [row for row in dict.fromkeys(span.row for span in seen) if row not in devices]
    idle = [gap for gap in gaps(spans, devices, start_s, end_s) if gap.seconds > NARROWEST * (end_s - start_s)]
    rows = {row: _lanes([span for span in seen if span.row == row], flat=row in devices) for row in (*hosts, *devices)}
    left_out = sum(len(members) for stacked in rows.values() for members in stacked[lanes:])
    rows = {row: stacked[:lanes] for row, stacked in rows.items()}
    heights = [max(len(stacked), 1) for stacked in rows.values()]
    label = f"time ({left_out} span{'s' * (left_out > 1)} below these not drawn)" if left_out else "time"

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        top = 0.0
        for (row, stacked), height in zip(rows.items(), heights, strict=True):
            axes.text(-0.01, top + height / 2, row, ha="right", va="center", transform=axes.get_yaxis_transform())
            for lane, members in enumerate(stacked):
                _bars(axes, members, top + lane, start_s, end_s)
            _gaps(axes, [gap for gap in idle if gap.row == row], top, start_s)
            top += height + 0.6
        axes.set(xlim=(0, end_s - start_s), ylim=(top - 0.3, -0.3), yticks=[], title=title, xlabel=label)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        seconds_ticks(axes.xaxis)
        _legend(figure, seen, idle)

    alt = sentence(title, f"timeline of {', '.join(hosts) or 'no host'} above {', '.join(devices) or 'no device'}")
    show_figure(draw, height_in=1.3 + 0.24 * (sum(heights) + 0.6 * len(heights)), alt=alt)


def _lanes(spans: list[Span], *, flat: bool) -> list[list[Span]]:
    """Spans of one row by lane: each in the first that is free, so what lies within another, or overlaps it, is below.

    A device's are flat, its communication below its work.
    """
    if flat:
        works = [span for span in spans if span.kind in DEVICE_KINDS]
        talks = [span for span in works if span.kind == "communication"]
        return [[span for span in works if span.kind != "communication"], *([talks] if talks else [])]
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        free = next((lane for lane in lanes if lane[-1].end_s <= span.start_s), None)
        if free is None:
            lanes.append(free := [])
        free.append(span)
    return lanes


def _bars(axes: Any, spans: list[Span], top: float, start_s: float, end_s: float) -> None:
    """One lane's spans as bars, a colour and hatch a kind; a name stands in a bar that is wide enough for it."""
    width = end_s - start_s
    for kind in dict.fromkeys(span.kind for span in spans):
        colour, hatch = LOOKS[kind]
        joined = _joined([span for span in spans if span.kind == kind], width * NARROWEST)
        edges = [(max(a, start_s) - start_s, min(b, end_s)) for a, b, _ in joined]
        bars = [(a, max(b - start_s - a, width * NARROWEST)) for a, b in edges]
        edges = ["white" if hatch or wide > _NARROW * width else colour for _, wide in bars]
        axes.broken_barh(bars, (top, 0.86), facecolor=colour, hatch=hatch, edgecolors=edges, linewidth=0.5)
        for (left, wide), (*_, name) in zip(bars, joined, strict=True):
            _name(axes, name, left, wide / width, top, colour)


def _joined(spans: list[Span], narrow_s: float) -> list[tuple[float, float, str]]:
    """Start, end and name of each bar: neighbours closer than narrow_s become one nameless bar."""
    joined: list[tuple[float, float, str]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        thin = joined and (span.seconds < narrow_s or joined[-1][1] - joined[-1][0] < narrow_s)
        if thin and span.start_s - joined[-1][1] < narrow_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], span.end_s), "")
        else:
            joined.append((span.start_s, span.end_s, span.name))
    return joined


def _name(axes: Any, name: str, left: float, share: float, top: float, colour: str) -> None:
    """The name inside its bar; cut where twelve signs of it fit, else left out."""
    fits = int(share * WIDTH_IN * 0.8 * 72 / 4.4) - 1
    if not name or fits < min(len(name), 12):
        return
    text = name if len(name) <= fits else name[: fits - 1] + "…"
    ground = {
        "facecolor": colour,
        "edgecolor": "none",
        "boxstyle": "square,pad=0",
    }  # hatches would cross the letters
    look = {"color": "white" if colour in (BLUE, OCHRE) else "black", "fontsize": 7, "va": "center", "bbox": ground}
    axes.text(left, top + 0.43, f" {text}", clip_on=True, parse_math=False, **look)


def _gaps(axes: Any, idle: list[Gap], top: float, start_s: float) -> None:
    """A device's idle gaps, pale and hatched by cause."""
    for cause in dict.fromkeys(gap.cause for gap in idle):
        colour, hatch = GAP_LOOKS[cause]
        bars = [(gap.start_s - start_s, gap.seconds) for gap in idle if gap.cause == cause]
        axes.broken_barh(bars, (top + 0.1, 0.66), facecolor="none", hatch=hatch, edgecolor=colour, linewidth=0.5)


def _legend(figure: Any, spans: list[Span], idle: list[Gap]) -> None:
    """What the colours and hatches mean, below the axes: only those that occur."""
    from matplotlib.patches import Patch

    kinds = {span.kind for span in spans}
    causes = {gap.cause for gap in idle}
    bars = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white" if hatch else colour, linewidth=0.3, label=kind)
        for kind, (colour, hatch) in LOOKS.items()
        if kind in kinds
    ]
    empty = [
        Patch(facecolor="none", hatch=hatch, edgecolor=colour, linewidth=0.5, label=f"idle: {cause}")
        for cause, (colour, hatch) in GAP_LOOKS.items()
        if cause in causes
    ]
    figure.legend(handles=[*bars, *empty], loc="outside lower left", ncols=4, fontsize=8, frameon=False)
