"""Controls that a reader sets; every one works by keyboard and says what it is."""

from html import escape
from math import log10

from labkit.show import in_notebook


def guess_control(
    question: str, *, start: float, unit: str, low: float | int | None, high: float | int | None
) -> tuple[object | None, dict]:
    """A slider or a field for one number, and its display data; (None, {}) where there is no front end for it."""
    if not in_notebook():
        return None, {}
    try:
        import ipywidgets
    except ImportError:
        return None, {}
    control = _number_control(ipywidgets, start, low, high)
    heading = ipywidgets.HTML(escape(question), layout={"width": "auto"})
    row = ipywidgets.HBox([control, ipywidgets.Label(unit)]) if unit else control
    box = ipywidgets.VBox([heading, row])
    views = {mime: data for mime, data in box._repr_mimebundle_().items() if mime != "text/plain"}
    return control, views


def _number_control(ipywidgets: object, start: float, low: float | int | None, high: float | int | None) -> object:
    """A slider between two bounds, else a field; its label is never cut short."""
    common = {
        "value": start,
        "description": "Your guess",
        "style": {"description_width": "initial"},
        "layout": {"width": "28em", "max_width": "100%"},
    }
    if low is None or high is None:
        return ipywidgets.FloatText(**common | {"layout": {"width": "16em"}})
    if low > 0 and high / low > 100:
        powers = {"min": log10(low), "max": log10(high), "step": log10(high / low) / 1000}
        return ipywidgets.FloatLogSlider(**powers, readout_format=",.3r", **common)
    if all(number == int(number) for number in (start, low, high)) and high - low <= 100:
        return ipywidgets.IntSlider(min=int(low), max=int(high), **common | {"value": int(start)})
    return ipywidgets.FloatSlider(min=low, max=high, step=(high - low) / 100, readout_format=".3g", **common)
