"""The one style of every figure of the course, and how a figure is shown.

Readable on white and on near-black pages: no background, grey text, and four colours of the Okabe-Ito palette that keep
a contrast of 3:1 on both; a marker and a line style stand beside each colour. Figures are made without pyplot, so none
stays open; each is shown once, with a sentence in its place where no image can be drawn.
Sources: Okabe and Ito, Color Universal Design (2008), https://jfly.uni-koeln.de/color/; contrast: WCAG 2.2, criteria
1.4.3 and 1.4.11, https://www.w3.org/TR/WCAG22/.
"""

import base64
import io
from collections.abc import Callable
from typing import Any

from labkit.show import in_notebook
from labkit.units import format_s

BLUE, VERMILLION, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a7a7a"
OCHRE = "#8c6d1f"  # where five are too few; some people see it as vermillion, so a hatch must tell them apart
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, GREY)
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), "-")
MARKERS = ("o", "s", "^", "D", "v")
WIDTH_IN, DPI = 7.0, 160

_GREYS = ("text.color", "axes.labelcolor", "axes.edgecolor", "grid.color", "xtick.color", "ytick.color")
STYLE: dict[str, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(_GREYS, GREY),
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 2.0,
    "lines.markersize": 5,
}


def sentence(title: str, rest: str) -> str:
    """What stands where the image cannot: the title, then what is drawn."""
    return f"Figure: {title}. {rest}." if title else f"Figure: {rest}."


def seconds_ticks(axis: Any) -> None:
    """Ticks that read `10 ms`."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: "0" if value == 0 else format_s(value)))
    axis.set_minor_formatter(NullFormatter())


def show_figure(draw: Callable[[Any], None], *, height_in: float, alt: str) -> None:
    """Draw on a new figure in the common style and show it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
        draw(figure)
        _show(figure, alt)


def _show(figure: Any, alt: str) -> None:
    """Show the figure where a notebook can draw it, its sentence where none can; nothing is saved."""
    if not in_notebook():
        print(f"[{alt}]", flush=True)
        return
    from IPython.display import display

    image = base64.b64encode(png(figure)).decode("ascii")
    size = {"width": round(figure.get_figwidth() * 100), "height": round(figure.get_figheight() * 100), "alt": alt}
    display({"image/png": image, "text/plain": alt}, metadata={"image/png": size}, raw=True)


def png(figure: Any) -> bytes:
    """The figure as PNG, the same bytes for the same figure (no date, no version inside)."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
