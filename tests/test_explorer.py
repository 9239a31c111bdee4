"""The explorer: what it says of a number, and its controls, used as a front end would use them."""

import math
import sys
from fractions import Fraction

import ipywidgets
import numpy as np
import pytest
import torch

from labkit import explorer, show
from labkit.formats import E2M1, E4M3, FORMATS, FP16

MODULE = sys.modules["labkit.explorer"]


def said(value, to):
    return dict(explorer.described(value, to))


def test_what_is_said_of_a_tenth():
    lines = said(0.1, FP16)
    assert lines["stored"] == "0.0999755859"
    assert lines["because"] == "+ 2^(11 - 15) x (1 + 614/1024)"
    assert 2 ** (11 - 15) * (1 + 614 / 1024) == 0.0999755859375
    assert lines["neighbours"] == "0.0999145508 and 0.100036621"
    assert lines["spacing"] == "6.10351562e-05"
    assert lines["1 + this"] == "becomes 1.09960938"
    assert lines["1 + eps/2"] == "becomes 1: 0.00048828125 is lost"


def test_what_is_said_at_the_edges():
    assert said(2.0**-24, FP16)["because"] == "+ 2^(-14) x (0 + 1/1024), subnormal: no leading 1"
    assert said(-0.0, FP16)["because"] == "- 2^(-14) x (0 + 0/1024), zero: no bit is set"
    assert said(1e9, FP16)["stored"] == "inf"
    assert said(math.nan, FP16)["because"] == "an exponent of ones is kept for NaN"
    assert said(1e9, E4M3)["stored"] == "448"
    assert said(1e9, E4M3)["neighbours"] == "416"
    assert said(1e9, E4M3)["spacing"] == "32"
    assert said(math.nan, E2M1) == {"stored": "e2m1 has no NaN, and no infinity"}


@pytest.mark.parametrize("name", FORMATS)
def test_without_a_front_end_it_is_plain_text(capsys, name):
    explorer.bits(-1.5, name)
    shown = capsys.readouterr().out
    to = FORMATS[name]
    mantissa = "1" + "0" * (to.mantissa_bits - 1)
    assert shown.startswith(f"-1.5 in {name}\n  sign 1\n  exponent {to.bias:0{to.exponent_bits}b}\n")
    assert f"  mantissa {mantissa}\n" in shown
    assert "  1 + this: becomes -0.5\n" in shown
    assert "<" not in shown


def test_an_unknown_format_is_an_error():
    with pytest.raises(KeyError):
        explorer.bits(1.0, "fp12")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0.1", 0.1), ("1e-8", 1e-8), ("2**-24", 2.0**-24), (" -2^3 ", -8.0), ("inf", math.inf), ("one", None)),
        *(("2^9999", math.inf), ("-2**999999999", -math.inf), ("2^-9999", 0.0), ("9" * 400, math.inf)),
        *(("1/3", 1 / 3), (" -1 / 4e0 ", -0.25), ("1/0", None), ("1/2/3", None), ("1/", None), ("10**400", None)),
    ],
)
def test_what_a_reader_may_type(text, number):
    assert explorer.parsed(text) == number


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((1, "1"), ("1/3", "0.333333333"), ("2^9999", "inf"), (True, "1"), (Fraction(-3, 2), "-1.5")),
        *((np.float16(0.5), "0.5"), (torch.tensor([2.0]), "2"), (10**400, "inf"), (-(10**400), "-inf")),
    ],
)
def test_a_value_may_be_whatever_float_takes(capsys, value, shown):
    explorer.bits(value)
    assert capsys.readouterr().out.startswith(f"{shown} in fp16\n")


def test_text_that_is_no_number_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="'one' is no number. Try"):
        explorer.bits("one")


def test_whole_numbers_have_no_point_in_the_field():
    menu, field, below, above, shown = parts(explorer.controls(ipywidgets, 65472.0, "fp16"))
    assert field.value == "65472"
    above.click()
    assert field.value == "65504"
    field.value = "2^9999"
    assert "inf in fp16" in shown.value
    above.click()
    assert field.value == "inf"


def parts(box):
    """Menu, field, both buttons and what is shown."""
    (menu, field), (below, above), shown = box.children[0].children, box.children[1].children, box.children[2]
    return menu, field, below, above, shown


def test_controls_follow_the_reader():
    menu, field, below, above, shown = parts(explorer.controls(ipywidgets, 1.0, "fp16"))
    assert "01111" in shown.value
    above.click()
    assert field.value == "1.0009765625"
    below.click()
    below.click()
    assert field.value == "0.99951171875"
    menu.value = "e4m3"
    assert "1 in e4m3" not in shown.value
    assert "e4m3, 8 bits" in shown.value
    field.value = "<b>"
    assert "no number" in shown.value
    above.click()
    assert field.value == "<b>"
    field.value = "nan"
    above.click()
    menu.value = "e2m1"
    assert "e2m1 has no NaN" in shown.value


def test_controls_have_names_and_no_fixed_colours_for_text():
    menu, field, below, above, shown = parts(explorer.controls(ipywidgets, 1.0, "fp16"))
    assert all(control.description for control in (menu, field, below, above))
    assert "color: var(--jp-content-font-color1, inherit)" in shown.value
    assert "background" not in shown.value


def test_in_a_notebook_both_forms_are_given(monkeypatch):
    given = []
    for module in (show, MODULE):
        monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, **_: given.append(data))
    explorer.bits(1.0, "bf16")
    assert {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"} <= given[0].keys()
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    explorer.bits(1.0, "bf16")
    assert given[1].keys() == {"text/plain", "text/html"}
