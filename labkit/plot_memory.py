"""Memory as stacked bars: what each part takes, a bar a plan, against what the card has."""

import math
from collections.abc import Mapping
from typing import Any

from labkit.figure import BLUE, GREEN, GREY, OCHRE, PURPLE, VERMILLION, sentence, show_figure
from labkit.units import format_bytes

Parts = Mapping[str, float | int]
PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "overhead")
"""What labkit.estimate tells apart, in the order of every table and bar."""

# Of each of PARTS, then of two parts more: its colour, its hatch (no two parts differ by colour alone, see OCHRE)
# and the colour of a figure written on it, black or white, whichever has the higher contrast.
LOOKS = (
    (BLUE, "", "white"),
    (VERMILLION, "", "black"),
    (GREEN, "", "black"),
    (PURPLE, "", "black"),
    (OCHRE, "//", "white"),
    (GREY, "", "black"),
    (BLUE, "..", "white"),
    (PURPLE, "\\\\", "black"),
)
_PAD = 1.5  # points around a figure on a bar
_FOOT = 0.3  # rows less than a whole one below the last bar's middle, where figures may stand
_CLEAR = 4  # pixels between a figure and the card's line


def bars(
    bytes_by_label: Mapping[str, Parts],
    capacity_bytes: float | int | None = None,
    *,
    title: str = "",
    xlabel: str = "memory of one rank",
) -> None:
    """Show {label: {part: bytes}} as stacked bars, a row a label, each with its total; a part keeps its colour.

    A part's figure stands on it where there is room, and below its bar otherwise, where the part can be seen at all.
    One of PARTS has the same look in every figure; others share what is left, in the order of their appearance.

    capacity_bytes: of the card, a line across; a total beyond it says by how much. Sizes are in powers of 1000.
    ValueError: no bars, more than 8 different parts, or sizes that are negative or not finite.
    """
    parts = list(dict.fromkeys(part for each in bytes_by_label.values() for part in each))
    _refuse(bytes_by_label, parts, capacity_bytes)
    totals = {label: sum(each.values()) for label, each in bytes_by_label.items()}
    looks = _looks(parts)
    end = 1.02 * max([*totals.values(), capacity_bytes or 0]) or 1.0

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for row, (label, each) in enumerate(bytes_by_label.items()):
            _row(axes, row, [(each.get(part, 0), *look) for part, look in looks.items()])
            axes.text(-0.015, row, label, ha="right", va="center", transform=axes.get_yaxis_transform())
            said = _said(totals[label], capacity_bytes)
            axes.text(1.015, row, said, va="center", fontsize=9, transform=axes.get_yaxis_transform())
        axes.set(xlim=(0, end), ylim=(len(totals) - _FOOT, -0.7), yticks=[], title=title, xlabel=xlabel)
        axes.xaxis.set_major_formatter(lambda value, _: format_bytes(value) if value else "0")
        axes.xaxis.get_major_locator().set_params(nbins=6)  # a tick's text is long
        axes.spines["left"].set_visible(False)
        _legend(figure, looks)
        figure.draw_without_rendering()  # so that it is laid out, and what is written on it can be measured
        reach = [_figures(axes, row, each, looks, capacity_bytes) for row, each in enumerate(bytes_by_label.values())]
        if capacity_bytes is not None:
            _card(axes, capacity_bytes, end, reach)

    said = "; ".join(f"{' '.join(label.split())}: {_sentence(each)}" for label, each in bytes_by_label.items())
    card = "" if capacity_bytes is None else f"; the card has {format_bytes(capacity_bytes)}"
    show_figure(draw, height_in=1.6 + 0.55 * len(totals), alt=sentence(title, f"{xlabel}: {said}{card}"))


def _looks(parts: list[str]) -> dict[str, tuple[str, str, str]]:
    """Each part's look."""
    others = [part for part in parts if part not in PARTS]
    free = [LOOKS[i] for i in range(len(LOOKS)) if i >= len(PARTS) or PARTS[i] not in parts]
    # What no part of ours ever has comes first, so that another part's colour is not met again as something else.
    own = dict(zip(others, free[-2:] + free[:-2], strict=False))
    return {part: own[part] if part in own else LOOKS[PARTS.index(part)] for part in parts}


def _refuse(bytes_by_label: Mapping[str, Parts], parts: list[str], capacity_bytes: float | int | None) -> None:
    """ValueError, with a sentence, for what would make no figure, or one that says something wrong."""
    if not parts:
        raise ValueError("nothing to draw: bars needs at least one bar, as {'label': {'part': bytes}}")
    if len(parts) > len(LOOKS):
        raise ValueError(f"bars tells {len(LOOKS)} parts apart at most, and these are {len(parts)}: {', '.join(parts)}")
    sizes = {f"{part!r} of {label!r}": size for label, each in bytes_by_label.items() for part, size in each.items()}
    for name, size in (sizes | ({} if capacity_bytes is None else {"the capacity": capacity_bytes})).items():
        if not 0 <= size < math.inf:
            raise ValueError(f"{name} is {size}: a size in bytes is 0 or more, and finite")


def _row(axes: Any, row: int, segments: list[tuple[float | int, str, str, str]]) -> None:
    """One stacked bar: (bytes, colour, hatch, ink) from the left on."""
    left = 0
    for size, colour, hatch, ink in segments:
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white" if ink == "black" else "black"}
        axes.barh(row, size, left=left, height=0.62, linewidth=0, **look)
        if left and size:
            axes.plot([left, left], [row - 0.31, row + 0.31], color="white", linewidth=1)
        left += size


def _figures(
    axes: Any, row: int, each: Parts, looks: Mapping[str, tuple[str, str, str]], capacity_bytes: float | int | None
) -> float:
    """Write the parts' figures, on their bar or below it; how far on the axis those below it reach."""
    left, below = 0.0, []
    pixels_per_byte = axes.bbox.width / axes.get_xlim()[1]
    for part, (colour, _, ink) in looks.items():
        size = each.get(part, 0)
        if size * pixels_per_byte >= 1:
            back = {"facecolor": colour, "edgecolor": "none", "pad": _PAD}  # no hatch crosses the figure
            place = {"ha": "center", "va": "center", "zorder": 5}
            text = axes.text(left, row, format_bytes(size), color=ink, fontsize=8, bbox=back, **place)
            width = (text.get_window_extent().width + 2 + 2 * _PAD * axes.figure.dpi / 72) / pixels_per_byte
            middle = _place(left, left + size, width, capacity_bytes, _CLEAR / pixels_per_byte)
            if middle is None:
                text.remove()
                below.append(f"{part} {format_bytes(size)}")
            else:
                text.set_x(middle)
        left += size
    written = axes.text(0, row + 0.36, ", ".join(below), va="top", fontsize=7.5)
    return written.get_window_extent().width / pixels_per_byte if below else 0.0


def _place(low: float, high: float, width: float, line: float | int | None, clear: float) -> float | None:
    """The middle of a text of this width between low and high, clear of the line; None where it does not fit."""
    middle = (low + high) / 2
    if line is not None and abs(line - middle) < width / 2 + clear:
        low, high = max([(low, line - clear), (line + clear, high)], key=lambda room: room[1] - room[0])
        middle = (low + high) / 2
    return middle if high - low >= width else None


def _card(axes: Any, capacity_bytes: float | int, end: float, reach: list[float]) -> None:
    """The line of the card's memory, left out where figures below a bar reach it.

    White below its dashes keeps them apart from a bar of their colour.
    """
    edges = [-0.7]
    for row, right in enumerate(reach):
        edges += [row + 0.33, math.nan, row + 0.64] if right > 0.99 * capacity_bytes else []
    edges.append(len(reach) - _FOOT)
    axes.plot([capacity_bytes] * len(edges), edges, color="white", linewidth=3)
    axes.plot([capacity_bytes] * len(edges), edges, color=VERMILLION, linestyle="--", linewidth=1.6)
    side = "right" if capacity_bytes > end / 2 else "left"
    axes.text(capacity_bytes, -0.62, f" {format_bytes(capacity_bytes)} on the card ", ha=side, va="bottom", fontsize=9)


def _said(total: float | int, capacity_bytes: float | int | None) -> str:
    """What stands at a bar's end: the total, and by how much it is too large."""
    if capacity_bytes is None or total <= capacity_bytes:
        return format_bytes(total)
    return f"{format_bytes(total)}\n{format_bytes(total - capacity_bytes)} too much"


def _sentence(each: Parts) -> str:
    """A bar in words."""
    return f"{format_bytes(sum(each.values()))} ({', '.join(f'{part} {format_bytes(n)}' for part, n in each.items())})"


def _legend(figure: Any, looks_by_part: Mapping[str, tuple[str, str, str]]) -> None:
    """Which part has which look, below the axes."""
    from matplotlib.patches import Patch

    looks = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black" if ink == "white" else "white", linewidth=0, label=part)
        for part, (colour, hatch, ink) in looks_by_part.items()
    ]
    figure.legend(handles=looks, loc="outside lower left", ncols=min(len(looks), 6), fontsize=8, frameon=False)
