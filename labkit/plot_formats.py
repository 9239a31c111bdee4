"""Figures about number formats, in the style of labkit/figure.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from labkit.figure import COLOURS, DASHES, GREY, sentence, show_figure
from labkit.formats import Format


def ranges(values: Mapping[str, Float[Tensor, "N"]], formats: Sequence[Format], *, title: str = "") -> None:
    """Show how large the numbers are, as a share for each power of two, above the range of each format.

    A format's thick bar is the range of its normal numbers, the thin one that of its subnormal ones, which lose a bit
    with each halving; what lies left of both becomes zero. Zeros among the values are left out.
    ValueError: no values, or none but zeros.
    """
    if not values or not all(bool(each.count_nonzero()) for each in values.values()):
        raise ValueError("nothing to draw: ranges needs numbers other than zero")
    counted = {label: _shares(each) for label, each in values.items()}
    low = min(min(places) for places, _ in counted.values())
    high = max(max(places) for places, _ in counted.values())
    edges = (max(low, -60) - 1, max(high, 17) + 2)

    def draw(figure: Any) -> None:
        sizes, spans = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 0.4 + 0.35 * len(formats)))
        for index, (label, (places, shares)) in enumerate(counted.items()):
            look = {"color": COLOURS[index], "linestyle": DASHES[index]}
            sizes.step(places, shares, where="post", label=label, **look)
            sizes.fill_between(places, shares, step="post", alpha=0.15, color=COLOURS[index], linewidth=0)
        sizes.set(ylabel="share of the numbers", title=title, ylim=(0, None))
        sizes.legend(frameon=False, loc="upper right", fontsize=9)
        for row, each in enumerate(formats):
            _span(spans, row, each, edges)
        spans.set(xlim=edges, ylim=(len(formats) - 0.4, -0.6), yticks=range(len(formats)), xlabel="size of the number")
        spans.set_yticklabels([each.name for each in formats])
        spans.xaxis.set_major_formatter(lambda power, _: f"$2^{{{power:.0f}}}$")
        spans.grid(axis="y", visible=False)
        spans.tick_params(axis="y", length=0, pad=10)

    names = ", ".join(each.name for each in formats)
    alt = sentence(title, f"sizes of {', '.join(values)} above the ranges of {names}")
    show_figure(draw, height_in=3.2 + 0.3 * len(formats), alt=alt)


def _shares(values: Float[Tensor, "N"]) -> tuple[list[int], list[float]]:
    """For each power of two from the smallest to the largest, and one beyond: the share of numbers from it on."""
    exponents = values[values != 0].detach().abs().double().frexp().exponent.cpu() - 1
    low, high = int(exponents.min()), int(exponents.max())
    counts = torch.bincount(exponents - low, minlength=high - low + 2)
    return list(range(low, high + 2)), (counts / counts.sum()).tolist()


def _span(axes: Any, row: int, each: Format, edges: tuple[int, int]) -> None:
    """One format's range as a bar, thick for normal numbers; an arrowhead where it goes on beyond the edge."""
    smallest = each.min_exponent - each.mantissa_bits
    largest = torch.tensor(each.largest, dtype=torch.float64).log2().item()
    left, right = max(smallest, edges[0]), min(largest, edges[1])
    axes.plot([left, right], [row, row], color=GREY, linewidth=2, solid_capstyle="butt")
    axes.plot([max(each.min_exponent, left), right], [row, row], color=GREY, linewidth=8, solid_capstyle="butt")
    for beyond, place, mark in ((smallest < edges[0], left, "<"), (largest > edges[1], right, ">")):
        if beyond:
            axes.plot([place], [row], mark, color=GREY, markersize=12, clip_on=False)
