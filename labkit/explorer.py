"""A number bit by bit in any format: controls in a notebook, the same as plain text where there is no front end."""

import re
from collections.abc import Sequence
from html import escape
from math import copysign, inf, isfinite, isnan, ldexp

from labkit import formats
from labkit.figure import BLUE, GREEN, VERMILLION
from labkit.formats import FORMATS, Format
from labkit.show import in_notebook, panel, show

_PARTS = (("sign", VERMILLION), ("exponent", BLUE), ("mantissa", GREEN))
_POWER = re.compile(r"\s*(-?)2\s*(?:\*\*|\^)\s*(-?\d{1,9})\s*")


def bits(value: object = 1.0, format: str = "fp16") -> None:  # noqa: A002 - the word that a reader looks for
    """Show a number's bits, its neighbours and what 1 plus the number becomes; in a notebook both can be changed.

    value: whatever float() takes, or text as `parsed` takes it; beyond float64's largest number it is inf.
    KeyError: a format other than fp32, tf32, bf16, fp16, e4m3, e5m2 and e2m1. ValueError: text that is no number.
    """
    chosen, value = FORMATS[format], _number(value)
    lines = described(value, chosen)
    show(_text(value, chosen, lines), _html(value, chosen, lines), views=_controls(value, format))


def _number(value: object) -> float:
    """Whatever stands for a number, as a float. ValueError: text that is no number."""
    if isinstance(value, str):
        number = parsed(value)
        if number is None:
            raise ValueError(f"{value!r} is no number. Try 0.1, '1/3', '2**-24', 'inf' or 'nan'.")
        return number
    try:
        return float(value)
    except OverflowError:  # a whole number or a fraction, which may be larger than any float
        return inf if value > 0 else -inf


def described(value: float, to: Format) -> list[tuple[str, str]]:
    """What is to be said of a number in a format, as (label, text) pairs."""
    if isnan(value) and to == formats.E2M1:
        return [("stored", "e2m1 has no NaN, and no infinity")]
    stored = formats.rounded(value, to)
    lines = [("stored", _digits(stored)), ("because", _formula(stored, to))]
    if isfinite(stored):
        below, above = (formats.neighbour(stored, to, way) for way in (-1, 1))
        lines.append(("neighbours", " and ".join(_digits(each) for each in (below, above) if each != stored)))
        lines.append(("spacing", _digits(_gap(stored, to))))
    lines.append(("1 + this", f"becomes {_digits(formats.rounded(1 + stored, to))}"))
    half = _digits(to.epsilon / 2)
    lines.append(("eps", f"{_digits(to.epsilon)}: the next number after 1 is {_digits(1 + to.epsilon)}"))
    lines.append(("1 + eps/2", f"becomes {_digits(formats.rounded(1 + to.epsilon / 2, to))}: {half} is lost"))
    return lines


def _gap(stored: float, to: Format) -> float:
    """The distance to the next number further from zero; at the largest, to the one before."""
    above = formats.neighbour(abs(stored), to, 1)
    return above - abs(stored) if above != abs(stored) else abs(stored) - formats.neighbour(abs(stored), to, -1)


def _digits(number: float) -> str:
    """A number with nine significant digits at most, enough to tell any two of fp32 apart."""
    return f"{number:.9g}"


def _formula(stored: float, to: Format) -> str:
    """`+ 2^(14 - 15) x (1 + 512/1024)`: how the three fields make the number."""
    sign, exponent, mantissa = formats.fields(stored, to)
    if not isfinite(stored):
        return f"an exponent of ones is kept for {'NaN' if isnan(stored) else 'infinity'}" if to.infinite else "NaN"
    share = f"{int(mantissa, 2)}/{2**to.mantissa_bits}"
    plus = "-" if sign == "1" else "+"
    if int(exponent, 2):
        return f"{plus} 2^({int(exponent, 2)} - {to.bias}) x (1 + {share})"
    kind = "subnormal: no leading 1" if int(mantissa, 2) else "zero: no bit is set"
    return f"{plus} 2^({to.min_exponent}) x (0 + {share}), {kind}"


def _fields(value: float, to: Format) -> Sequence[str]:
    """The three strings of bits; none for a NaN that the format has not."""
    return () if isnan(value) and to == formats.E2M1 else formats.fields(value, to)


def _text(value: float, to: Format, lines: list[tuple[str, str]]) -> str:
    """The bits and the lines as plain text."""
    named = [f"{name} {part}" for (name, _), part in zip(_PARTS, _fields(value, to), strict=False)]
    return "\n  ".join([f"{_digits(value)} in {to.name}", *named, *(f"{label}: {text}" for label, text in lines)])


def _html(value: float, to: Format, lines: list[tuple[str, str]]) -> str:
    """The same as HTML: each field over a bar in its colour and its name, text in the theme's own colour."""
    cells = "".join(
        f'<span style="display: inline-block; margin-right: 10px"><span style="letter-spacing: 2px">{part}</span>'
        f'<br><span style="border-top: 4px solid {colour}; display: block; font-size: 85%">{name}</span></span>'
        for (name, colour), part in zip(_PARTS, _fields(value, to), strict=False)
    )
    rows = "".join(
        f'<div><span style="display: inline-block; width: 7em">{escape(label)}</span>{escape(text)}</div>'
        for label, text in lines
    )
    mono = "font-family: var(--jp-code-font-family, monospace); color: var(--jp-content-font-color1, inherit)"
    body = f"<b>{escape(_digits(value))} in {to.name}, {to.bits} bits</b><br>{cells}{rows}"
    return panel("neutral", f'<div style="{mono}; line-height: 1.5">{body}</div>')


def parsed(text: str) -> float | None:
    """The number that a reader typed: `0.1`, `1e-8`, `1/3`, `2**-24`, `inf`, `nan`; None for anything else."""
    power = _POWER.fullmatch(text)
    try:
        if power:
            return copysign(ldexp(1.0, int(power[2])), float(f"{power[1]}1"))
        above, *below = map(float, text.split("/", 1))
        return above / below[0] if below else above
    except OverflowError:
        return float(f"{power[1]}inf")
    except (ValueError, ZeroDivisionError):
        return None


def _typed(number: float) -> str:
    """A number as a reader would type it, whole ones without a point; every digit that tells it from its neighbours."""
    return repr(number).removesuffix(".0")


def _controls(value: float, format: str) -> dict:  # noqa: A002
    """Display data of a menu, a field, two buttons and what they show; nothing where there is no front end for it."""
    if not in_notebook():
        return {}
    try:
        import ipywidgets
    except ImportError:
        return {}
    box = controls(ipywidgets, value, format)
    return {mime: data for mime, data in box._repr_mimebundle_().items() if mime != "text/plain"}


def controls(ipywidgets: object, value: float, format: str) -> object:  # noqa: A002
    """The box of controls: a format, a number, a button to either neighbour, and below them the bits."""
    wide = {"style": {"description_width": "initial"}, "layout": {"width": "14em"}}
    menu = ipywidgets.Dropdown(options=list(FORMATS), value=format, description="Format", **wide)
    field = ipywidgets.Text(value=_typed(value), description="Number", continuous_update=False, **wide)
    names = ("Next number below", "Next number above")
    below, above = (ipywidgets.Button(description=name, layout={"width": "12em"}) for name in names)
    shown = ipywidgets.HTML(layout={"width": "auto"})

    def update(_change: object = None) -> None:
        number, to = parsed(field.value), FORMATS[menu.value]
        hint = "That is no number. Try 0.1, 1e-8, 1/3, 2**-24, inf or nan."
        shown.value = panel("bad", hint) if number is None else _html(number, to, described(number, to))

    def move(way: int) -> None:
        number = parsed(field.value)
        if number is not None and not isnan(number):
            field.value = _typed(formats.neighbour(number, FORMATS[menu.value], way))

    below.on_click(lambda _button: move(-1))
    above.on_click(lambda _button: move(1))
    menu.observe(update, "value")
    field.observe(update, "value")
    update()
    return ipywidgets.VBox([ipywidgets.HBox([menu, field]), ipywidgets.HBox([below, above]), shown])
