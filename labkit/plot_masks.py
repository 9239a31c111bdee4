"""Which places of a row may see which: attention masks as pictures, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from labkit.figure import BLUE, GREY, WIDTH_IN, sentence, show_figure


def masks(named: Mapping[str, Bool[Tensor, "T T"]], ends: Sequence[int] = (), *, title: str = "") -> None:
    """Show each mask under its name: a row for each place that looks, dark where it may see the column's place.

    ends: where documents end, thin lines in both directions. ValueError: no masks.
    """
    if not named:
        raise ValueError("nothing to draw: masks needs at least one, as {'name': mask}")

    def draw(figure: Any) -> None:
        from matplotlib.colors import ListedColormap

        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        for axes, (name, mask) in zip(figure.subplots(1, len(named), squeeze=False)[0], named.items(), strict=True):
            axes.imshow(mask.cpu().numpy(), cmap=ListedColormap(["#0000", BLUE]), interpolation="nearest")
            for end in ends:
                axes.axhline(end - 0.5, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
                axes.axvline(end - 0.5, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
            axes.grid(False)
            axes.set(xlabel="place that is seen", ylabel="place that looks", xticks=[], yticks=[])
            axes.set_title(name, fontsize=10, fontweight="normal")

    height_in = 0.9 + WIDTH_IN / max(len(named), 2)
    show_figure(draw, height_in=height_in, alt=sentence(title, f"attention masks: {', '.join(named)}"))
