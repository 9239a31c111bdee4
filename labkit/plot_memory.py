"""Memory as stacked bars: what each part takes, a bar a plan, against what the card has."""

import math
from collections.abc import Mapping
from typing import Any

from labkit.figure import BLUE, GREEN, GREY, OCHRE, PURPLE, VERMILLION, sentence, show_figure
from labkit.units import format_bytes

Parts = Mapping[str, float | int]
PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "overhead")
"""What labkit.estimate tells apart, in the order of every table and bar."""

# Per part, in the order of first appearance: its colour, its hatch (no two parts differ by colour alone, see OCHRE)
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
_WIDE = 0.08  # of the axis: a part this wide has room for its figure


def bars(bytes_by_label: Mapping[str, Parts], capacity_bytes: float | int | None = None, *, title: str = "") -> None:
    """Show {label: {part: bytes}} as stacked bars, a row a label, each with its total; a part keeps its colour.

    capacity_bytes: of the card, a line across; a total beyond it says by how much. Sizes are in powers of 1000.
    ValueError: no bars, more than 8 different parts, or sizes that are negative or not finite.
    """
    parts = list(dict.fromkeys(part for each in bytes_by_label.values() for part in each))
    _refuse(bytes_by_label, parts, capacity_bytes)
    totals = {label: sum(each.values()) for label, each in bytes_by_label.items()}
    end = 1.02 * max([*totals.values(), capacity_bytes or 0]) or 1.0

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for row, (label, each) in enumerate(bytes_by_label.items()):
            _row(axes, row, [(each.get(part, 0), *LOOKS[index]) for index, part in enumerate(parts)], end)
            axes.text(-0.015, row, label, ha="right", va="center", transform=axes.get_yaxis_transform())
            said = _said(totals[label], capacity_bytes)
            axes.text(1.015, row, said, va="center", fontsize=9, transform=axes.get_yaxis_transform())
        if capacity_bytes is not None:
            _card(axes, capacity_bytes, end)
        axes.set(xlim=(0, end), ylim=(len(totals) - 0.5, -0.7), yticks=[], title=title, xlabel="memory of one rank")
        axes.xaxis.set_major_formatter(lambda value, _: format_bytes(value) if value else "0")
        axes.spines["left"].set_visible(False)
        _legend(figure, parts)

    said = "; ".join(f"{label}: {_sentence(each)}" for label, each in bytes_by_label.items())
    card = "" if capacity_bytes is None else f"; the card has {format_bytes(capacity_bytes)}"
    show_figure(draw, height_in=1.6 + 0.45 * len(totals), alt=sentence(title, f"memory of one rank: {said}{card}"))


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


def _row(axes: Any, row: int, segments: list[tuple[float | int, str, str, str]], end: float) -> None:
    """One stacked bar: (bytes, colour, hatch, ink) from the left on, each with its figure where there is room."""
    left = 0
    for size, colour, hatch, ink in segments:
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white" if ink == "black" else "black"}
        axes.barh(row, size, left=left, height=0.62, linewidth=0, **look)
        if left and size:
            axes.plot([left, left], [row - 0.31, row + 0.31], color="white", linewidth=1)
        if size > _WIDE * end:
            back = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}  # no hatch and no line crosses the figure
            place = {"ha": "center", "va": "center", "zorder": 5}
            axes.text(left + size / 2, row, format_bytes(size), color=ink, fontsize=8, bbox=back, **place)
        left += size


def _card(axes: Any, capacity_bytes: float | int, end: float) -> None:
    """The line of the card's memory; white below its dashes, which keeps them apart from a bar of their colour."""
    axes.axvline(capacity_bytes, color="white", linewidth=3)
    axes.axvline(capacity_bytes, color=VERMILLION, linestyle="--", linewidth=1.6)
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


def _legend(figure: Any, parts: list[str]) -> None:
    """Which part has which look, below the axes."""
    from matplotlib.patches import Patch

    looks = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black" if ink == "white" else "white", linewidth=0, label=part)
        for part, (colour, hatch, ink) in zip(parts, LOOKS, strict=False)
    ]
    figure.legend(handles=looks, loc="outside lower left", ncols=min(len(parts), 6), fontsize=8, frameon=False)
