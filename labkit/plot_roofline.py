"""The roofline of a machine: how fast work can go that does so many operations on each byte that it moves."""

from collections.abc import Mapping
from typing import Any

from labkit import cost
from labkit.figure import COLOURS, GREY, MARKERS, sentence, show_figure
from labkit.units import format_bytes, format_flops

Point = tuple[float, float]


def roofline(
    points: Mapping[str, Point | None], *, bytes_per_s: float, peaks: Mapping[str, float], title: str = ""
) -> None:
    """Show points {label: (FLOPs per byte, FLOPs per second)} under the roof that memory and arithmetic set.

    A point that is None is named as not measured. bytes_per_s: the slope, drawn up to the highest of the peaks {label:
    FLOPs per second}. ValueError: nothing to draw, or a value that a logarithmic axis cannot show.
    """
    known = [point for point in points.values() if point]
    values = [*(value for point in known for value in point), bytes_per_s, *peaks.values()]
    if not known or not peaks or min(values) <= 0:
        raise ValueError("a roofline needs points, a bandwidth and at least one peak, all of them above 0")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="FLOPs per second", title=title)
        _roof(axes, [x for x, _ in known], bytes_per_s, peaks)
        for index, (label, point) in enumerate(points.items()):
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            name = label if point else f"{label} (not measured)"
            axes.plot(*(point or ([], [])), linestyle="none", markersize=8, label=name, **look)
        axes.yaxis.set_major_formatter(lambda value, _: f"{format_flops(value)}/s")
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))

    show_figure(draw, height_in=3.6, alt=sentence(title, f"roofline with {', '.join(points)}"))


def _roof(axes: Any, places: list[float], bytes_per_s: float, peaks: Mapping[str, float]) -> None:
    """The slope, then each peak as a level that begins where the slope reaches it."""
    top = max(peaks.values())
    ridge = top / bytes_per_s
    xs = [min([*places, ridge]) / 2, ridge, max([*places, ridge]) * 20]
    axes.plot(xs, [cost.roofline_flops_per_s(x, bytes_per_s, top) for x in xs], color=GREY, linewidth=2)
    text = {"textcoords": "offset points", "fontsize": 9, "color": GREY}
    axes.annotate(f"copy: {format_bytes(bytes_per_s)}/s", (xs[0], xs[0] * bytes_per_s), (22, -3), **text)
    for name, peak in peaks.items():
        axes.plot([peak / bytes_per_s, xs[2]], [peak, peak], color=GREY, linewidth=1, linestyle="--")
        axes.annotate(f"{name}: {format_flops(peak)}/s", (xs[2], peak), (0, 4), ha="right", **text)
