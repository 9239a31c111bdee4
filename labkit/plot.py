"""One call draws a figure, in the style of labkit/figure.py, and computes nothing but what it draws."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from labkit.figure import COLOURS, DASHES, GREY, MARKERS, WIDTH_IN, seconds_ticks, sentence, show_figure
from labkit.measure import Bench, quartiles
from labkit.units import format_s

Line = tuple[Sequence[float], Sequence[float]]
Samples = Mapping[str, Sequence[float]]


def samples(seconds: Bench | Samples, *, title: str = "", xlabel: str = "time of one call", log: bool = False) -> None:
    """Show every timing sample as a dot, a row a candidate, with the middle half as a bar and the median as a tick."""
    rows = seconds.seconds if isinstance(seconds, Bench) else seconds
    if not rows:
        raise ValueError("nothing to draw: samples needs at least one candidate")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for row, (name, values) in enumerate(rows.items()):
            _sample_row(axes, row, list(values), COLOURS[row % len(COLOURS)])
            axes.text(-0.02, row, name, ha="right", va="center", transform=axes.get_yaxis_transform())
        axes.set(yticks=[], ylim=(len(rows) - 0.4, -0.6), xlabel=xlabel, title=title)
        axes.set_xscale("log" if log else "linear")
        if not log:
            axes.set_xlim(left=0)
        seconds_ticks(axes.xaxis)
        axes.spines["left"].set_visible(False)

    counts = ", ".join(f"{name}, {len(values)} samples" for name, values in rows.items())
    show_figure(draw, height_in=0.9 + 0.6 * len(rows), alt=sentence(title, f"timing samples: {counts}"))


def _sample_row(axes: Any, row: int, values: list[float], colour: str) -> None:
    """One candidate's samples in a band below y = row, above it the bar of their middle half, and the median."""
    low, middle, high = quartiles(values) if len(values) > 1 else (values[0],) * 3
    heights = [row + 0.16 + 0.14 * math.sin(2.4 * i) for i in range(len(values))]  # by the golden angle, not by chance
    axes.plot(values, heights, "o", color=colour, alpha=0.55, markeredgewidth=0, clip_on=False)
    axes.plot([low, high], [row - 0.15] * 2, "-", color=colour, linewidth=7, alpha=0.45, solid_capstyle="butt")
    axes.plot([middle], [row], "|", color=colour, markersize=22, markeredgewidth=1.5)
    axes.text(middle, row - 0.32, f"median {format_s(middle)}", va="bottom", fontsize=9)


def in_order(seconds: Samples, *, row: Sequence[str] = (), log: bool = False, **more: Any) -> None:
    """Show timing samples in the order in which they were taken, so that a slow start or a drift can be seen.

    row: the candidates in the order of their calls; without it each is drawn from call 1. more: as for `lines`.
    """
    places = {name: [place for place, called in enumerate(row, 1) if called == name] for name in seconds if row}
    series = {name: (places.get(name, range(1, len(values) + 1)), values) for name, values in seconds.items()}
    labels = {"xlabel": "call, in the order taken", "ylabel": "time of one call"}
    lines(series, **labels, log_y=log, markers=True, seconds_axis="y", **more)


def lines(
    series: Mapping[str, Line],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    levels: Mapping[str, float] | None = None,
    marks: Mapping[str, float] | None = None,
    markers: bool = False,
    seconds_axis: str = "",
    ticks: str = "",
) -> None:
    """Show labelled lines {label: (x, y)}; where a line stops being finite a cross and the word `diverged` say so.

    bands: per label, low and high edge of a shaded band. levels, marks: labelled lines across and down. seconds_axis:
    `x`, `y`, both: ticks read 10 ms and not 0.01. ticks: `x`, `y`, both: at the points of the first line, in digits.
    ValueError: no series, an axis without a label, lengths that differ.
    """
    _refuse(series, xlabel, ylabel)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
        for index, (label, (x, y)) in enumerate(series.items()):
            low, high = (bands or {}).get(label, (None, None))
            if low is not None:
                axes.fill_between(x, low, high, color=COLOURS[index % len(COLOURS)], alpha=0.18, linewidth=0)
            _line(axes, index, list(x), list(y), markers)
        _rules(axes, levels or {}, marks or {})
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if not log_x and all(isinstance(value, int) for x, _ in series.values() for value in x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        for axis in seconds_axis:
            seconds_ticks(getattr(axes, f"{axis}axis"))
        for axis in ticks:
            values = next(iter(series.values()))["xy".index(axis)]
            getattr(axes, f"set_{axis}ticks")(values, [f"{value:,.6g}" for value in values])
            getattr(axes, f"{axis}axis").minorticks_off()
        _label_lines(axes, series)
        _say_diverged(axes)

    show_figure(draw, height_in=3.6, alt=sentence(title, f"{ylabel} against {xlabel} for {', '.join(series)}"))


def _refuse(series: Mapping[str, Line], xlabel: str, ylabel: str) -> None:
    """ValueError, with a sentence, for what would make a figure that cannot be read."""
    if not series:
        raise ValueError("nothing to draw: lines needs at least one series, as {'label': (x, y)}")
    if not xlabel.strip() or not ylabel.strip():
        raise ValueError("an axis without a label cannot be read: give xlabel and ylabel, with their units")
    for label, (x, y) in series.items():
        if len(x) != len(y):
            raise ValueError(f"{label!r} has {len(x)} values of x and {len(y)} of y: they must be as many")


def _look(index: int) -> dict[str, Any]:
    """Colour, dash and width of the index-th line; later ones are thinner, so that one under another still shows."""
    which = index % len(COLOURS)
    return {"color": COLOURS[which], "linestyle": DASHES[which], "linewidth": 3.0 - 0.35 * which}


def _line(axes: Any, index: int, x: list[float], y: list[float], markers: bool) -> None:
    """One line, with some 20 markers on request; a cross on its last finite point before a value that is not finite."""
    look, marker = _look(index), MARKERS[index % len(MARKERS)] if markers else None
    axes.plot(x, y, marker=marker, markevery=max(1, len(x) // 20), **look)
    for i in range(1, len(y)):
        if math.isfinite(y[i - 1]) and not math.isfinite(y[i]):
            axes.plot([x[i - 1]], [y[i - 1]], "X", color=look["color"], markersize=10)


def _rules(axes: Any, levels: Mapping[str, float], marks: Mapping[str, float]) -> None:
    """Thin lines right across: levels labelled above, at the right edge; marks to the left, at the top."""
    thin = {"color": GREY, "linewidth": 1, "linestyle": (0, (2, 2))}
    text = {"textcoords": "offset points", "fontsize": 9}
    for name, level in levels.items():
        axes.axhline(level, **thin)
        axes.annotate(name, (0.99, level), (0, 2), xycoords=axes.get_yaxis_transform(), ha="right", **text)
    for name, place in marks.items():
        axes.axvline(place, **thin)
        axes.annotate(name, (place, 1), (-4, -4), xycoords=axes.get_xaxis_transform(), ha="right", va="top", **text)


def _say_diverged(axes: Any) -> None:
    """The word `diverged` beside each cross, towards the middle of the figure, and once where crosses lie together."""
    to_axes, said = axes.transData - axes.transAxes, []
    for point in [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "X"]:
        across, up = to_axes.transform(point)
        if any(abs(across - x) < 0.25 and abs(up - y) < 0.08 for x, y in said):
            continue
        said.append((across, up))
        side, dx = ("right", -8) if across > 0.5 else ("left", 8)
        axes.annotate("diverged", point, (dx, 5 if up < 0.9 else -12), textcoords="offset points", ha=side, fontsize=9)


def _label_lines(axes: Any, series: Mapping[str, Line]) -> None:
    """Each line's label at the right edge beside a piece of the line, as high as its end, moved where labels meet."""
    axes.margins(x=0.02)
    axes.autoscale_view()
    ends = [_last_finite(x, y) for x, y in series.values()]
    edge, height = axes.bbox.y0, axes.bbox.height
    wanted = [(axes.transData.transform(end)[1] - edge) / height if end else 0.0 for end in ends]
    heights = _spread(wanted, gap=15 / 72 * axes.figure.dpi / height)
    for index, (label, y) in enumerate(zip(series, heights, strict=True)):
        text = label if ends[index] else f"{label} (no finite value)"
        axes.plot([1.015, 1.055], [y, y], transform=axes.transAxes, clip_on=False, **_look(index))
        axes.text(1.065, y, text, transform=axes.transAxes, va="center", fontsize=9)


def _last_finite(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """The last point of a line that can be drawn, or None."""
    return next(((a, b) for a, b in zip(reversed(x), reversed(y), strict=True) if math.isfinite(b)), None)


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights near the wanted ones, in the same order, each at least `gap` from the next, and none up in the title."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = list(wanted)
    for lower, upper in zip(order, order[1:], strict=False):
        placed[upper] = max(placed[upper], placed[lower] + gap)
    shift = max(0.0, max(placed) - 0.97) if placed else 0.0
    return [height - shift for height in placed]


def runs(arms: Mapping[str, Sequence[Line]], *, xlabel: str, ylabel: str, title: str = "", **options: Any) -> None:
    """Show arms of several runs each (one a seed): the median as a line, smallest to largest as a band.

    Runs of an arm have the same points in the same order; where their x differs (seconds), its median is used. options:
    as for `lines`. ValueError: runs of one arm that differ in length.
    """
    series, bands = {}, {}
    for label, seeds in arms.items():
        if len({len(values) for line in seeds for values in line}) > 1:
            raise ValueError(f"the runs of {label!r} differ in length: a median needs the same points in each")
        points = list(zip(*(y for _, y in seeds), strict=True))
        series[label] = ([median(xs) for xs in zip(*(x for x, _ in seeds), strict=True)], [_median(p) for p in points])
        drawable = [[value for value in p if math.isfinite(value)] or [math.nan] for p in points]
        bands[label] = ([min(p) for p in drawable], [max(p) for p in drawable])
    lines(series, xlabel=xlabel, ylabel=ylabel, title=title, bands=bands, **options)


def _median(values: Sequence[float]) -> float:
    """The median, a value that is not a number counted as infinitely large: most runs lost, the arm is lost."""
    return median(value if not math.isnan(value) else math.inf for value in values)


def sharpness(steps: Sequence[int], values: Sequence[float], lr: Sequence[float], *, title: str = "") -> None:
    """Show the sharpness (largest Hessian eigenvalue) along training against 2/lr, where a rate of 0 has none."""
    edge = [(step, 2 / rate) for step, rate in zip(steps, lr, strict=True) if rate > 0]
    series = {"sharpness": (steps, values), "2 / learning rate": ([step for step, _ in edge], [y for _, y in edge])}
    lines(series, xlabel="training step", ylabel="largest Hessian eigenvalue", title=title, log_y=True, markers=True)


def images(split: Any, *, rows: int = 3, columns: int = 8, title: str = "") -> None:
    """Show the first rows x columns images of a split, each under the name of its class."""
    names = [split.classes[int(target)] for target in split.targets[: rows * columns]]

    def draw(figure: Any) -> None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        for index, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
            axes.axis("off")
            if index < len(names):
                picture = split.inputs[index].float().movedim(0, -1).squeeze(-1)
                axes.imshow(picture.numpy(), cmap="gray", interpolation="nearest")
                axes.set_title(names[index], fontsize=9, loc="center", pad=2, fontweight="normal")

    alt = sentence(title, f"{len(names)} images from {split.name}: {', '.join(names)}")
    show_figure(draw, height_in=0.4 + rows * (WIDTH_IN / columns + 0.22), alt=alt)
