"""What messages take beside what computing takes: seconds over links that differ a thousandfold."""

from collections.abc import Mapping
from typing import Any

from labkit.figure import COLOURS, MARKERS, seconds_ticks, sentence, show_figure

Times = Mapping[str, Mapping[str, float]]


def times(takes: Times, *, steps: Mapping[str, float], title: str = "") -> None:
    """Show seconds {network: {link: seconds}} as dots, a row a link, and the steps {network: seconds} as lines across.

    The axis is logarithmic. ValueError: nothing to draw, networks without a step, or a time that is not above 0.
    """
    links = list(dict.fromkeys(link for each in takes.values() for link in each))
    values = [*steps.values(), *(s for each in takes.values() for s in each.values())]
    if not links or takes.keys() != steps.keys() or min(values) <= 0:
        raise ValueError("needs a link or more, a step for each network, and times above 0")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for index, (name, each) in enumerate(takes.items()):
            colour = COLOURS[index % len(COLOURS)]
            rows = [links.index(link) + 0.24 * (index - (len(takes) - 1) / 2) for link in each]
            look = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 8}
            axes.plot(list(each.values()), rows, linestyle="none", label=f"{name}: all-reduce", **look)
            axes.axvline(steps[name], color=colour, linestyle="--", linewidth=1.2, label=f"{name}: computing a step")
        for row, link in enumerate(links):
            axes.text(-0.02, row, link, ha="right", va="center", transform=axes.get_yaxis_transform())
        axes.set(xscale="log", yticks=[], ylim=(len(links) - 0.4, -0.6), xlabel="time", title=title)
        seconds_ticks(axes.xaxis)
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside lower left", ncols=2, fontsize=8, frameon=False)

    alt = sentence(title, f"seconds over {', '.join(links)} for {', '.join(takes)}, beside a step of each")
    show_figure(draw, height_in=1.5 + 0.36 * len(links), alt=alt)
