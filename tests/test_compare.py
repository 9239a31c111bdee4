"""Equivalent forms are accepted, wrong ones named; values compared with a cause; arguments found changed."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from labkit.compare import Unfit, changed, close, exact, fit, same
from labkit.describe import call_text, describe, describe_error, kind_of, learner_line


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (np.True_, True),
        (torch.tensor(True), True),
        (np.float64(2.5), 2.5),
        (torch.tensor(2.5), 2.5),
        (np.array(3), 3),
        (3.0, 3),
        (3, 3.0),
        (np.int32(3), 3),
        ([1.0, 2.0], torch.tensor([1.0, 2.0])),
        ((1, 2), torch.tensor([1.0, 2.0])),
        (np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, 2.0]), np.array([1.0, 2.0])),
        (torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 2])),
        (torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 2.0])),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (torch.tensor([1, 2, 3]), [1, 2, 3]),
        (np.ones((2, 2)), [(1.0, 1.0), (1.0, 1.0)]),
        (range(3), [0, 1, 2]),
        ((1, 2.0), [1, 2.0]),
        ([np.float32(0.5), torch.tensor(2)], (0.5, 2)),
        ({"b": np.int64(2), "a": [1]}, {"a": (1,), "b": 2}),
        (np.str_("relu"), "relu"),
        ([], []),
        (torch.ones(0), torch.ones(0)),
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf])),
        (2**70, 2**70),
    ],
)
def test_an_equivalent_form_is_right(got, expected):
    assert exact(fit(got, expected), expected) is None


@pytest.mark.parametrize(
    ("got", "expected", "what", "cause"),
    [
        (None, 1.0, "nothing returned", "return"),
        ("a", 1.0, "wrong type", "the text 'a'; the number 1 is expected"),
        (True, 1, "wrong type", "the bool True"),
        (1, True, "wrong type", "the number 1; the bool True"),
        ([1.0], 1.0, "wrong type", "a list"),
        (1j, 1.0, "wrong type", "expected"),
        (torch.ones(1), 1.0, "wrong shape", r"\.item\(\)"),
        (torch.ones(2), 1.0, "wrong shape", "one number is expected"),
        (torch.ones(3, 1), torch.ones(3), "wrong shape", r"\(3, 1\); \(3,\) is expected.*as many"),
        (torch.ones(4), torch.ones(3), "wrong shape", r"\(4,\)"),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), "wrong dtype", "int64; float32 is expected"),
        (torch.tensor([1.0]), torch.tensor([1]), "wrong dtype", "float32; int64"),
        ("abc", torch.ones(3), "wrong type", "a tensor of shape"),
        ([[1], [1, 2]], torch.ones(2), "wrong type", "a list"),
        ((i for i in range(3)), [0, 1, 2], "wrong type", r"a generator.*list\(\.\.\.\)"),
        ([1, 2], [1, 2, 3], "wrong length", "2 items; 3"),
        (torch.ones(2, 3), (torch.ones(3), torch.ones(3)), "wrong type", "without stacking"),
        (np.ones((2, 3)), [torch.ones(3), torch.ones(3)], "wrong type", "without stacking"),
        ({"a": 1}, {"a": 1, "b": 2}, "wrong keys", "'b'"),
        (5, {"a": 1}, "wrong type", "the number 5; a dict"),
        (3, "relu", "wrong type", "the text 'relu'"),
        (3, len, "wrong type", "the function len"),
        (math.nan, 1.0, "NaN in the result", "finite"),
        (torch.tensor([[1.0, 2.0], [math.inf, math.nan]]), torch.ones(2, 2), "inf in the result", r"2 of 4.*\[1, 0\]"),
        ({"loss": [1.0, math.nan]}, {"loss": [1.0, 2.0]}, "NaN in the result", r"\['loss'\]\[1\]"),
    ],
)
def test_a_wrong_form_is_named(got, expected, what, cause):
    with pytest.raises(Unfit) as caught:
        fit(got, expected)
    assert what in caught.value.what
    assert re.search(cause, caught.value.cause)


def test_precision_counts_only_where_asked_for():
    double = torch.ones(2, dtype=torch.float64)
    fit(double, torch.ones(2))
    with pytest.raises(Unfit, match="wrong dtype"):
        fit(double, torch.ones(2), strict_dtype=True)


@pytest.mark.parametrize(
    ("got", "expected", "cause"),
    [
        (-3.0, 3.0, "sign"),
        (0.0, 3.0, "zero"),
        (30.0, 3.0, "10 times too large"),
        (1.5, 3.0, "2 times too small"),
        (4, 3, "1 too large"),
        (torch.tensor([1.3, 2.6, 5.2]), torch.tensor([1.0, 2.0, 4.0]), "1.3 times too large"),
        (torch.tensor([3.0, 4.0, 6.0]), torch.tensor([1.0, 2.0, 4.0]), "2 too large"),
        (torch.tensor([4.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 4.0]), "order"),
        (torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 4.0]), "too late"),
        (torch.tensor([2.0, 4.0, 9.0]), torch.tensor([1.0, 2.0, 4.0]), "too early"),
        ([[1.0, 2.0], [3.0, 4.0]], torch.tensor([[1.0, 3.0], [2.0, 4.0]]), "Rows and columns"),
    ],
)
def test_a_simple_relation_to_the_answer_is_named(got, expected, cause):
    said = close(why="Because.")(fit(got, expected), expected)
    assert cause in said
    assert said.endswith("Because.")


def test_what_single_precision_has_rounded_is_named():
    said = close(1e-9, 1e-9)
    assert said(torch.tensor(6 / 7).item(), 6 / 7).startswith("Right but for rounding, off by 9e-09")
    assert said([0.5 + 1e-7, 0.25], [0.5, 0.25]).startswith("Right but for rounding, off by 1e-07")
    assert "rounding" not in said(0.857, 6 / 7)
    assert "rounding" not in exact(10**7 + 1, 10**7)


def test_what_has_no_simple_relation_is_still_wrong():
    assert close()(3.3, 7.1) == ""
    assert exact("relu", "gelu") == ""
    assert exact(2**60 + 1, 2**60) is not None, "whole numbers are compared as such, not as floats"
    assert exact(2**70 + 1, 2**70) is not None
    assert exact([1, "a"], [1, "b"]) is not None
    assert exact({"a": True}, {"a": False}) is not None
    assert close()(math.nan, math.inf) is not None


@pytest.mark.parametrize("wrap", [float, lambda value: [value, value], lambda value: {"a": value}])
def test_plain_floats_are_compared_in_full(wrap):
    assert close(rtol=1e-9)(wrap(1 + 1e-7), wrap(1.0)) is not None
    assert close(rtol=1e-6)(wrap(1 + 1e-7), wrap(1.0)) is None


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e-2))
def test_close_is_atol_plus_rtol_times_expected(expected, rtol):
    right = close(rtol=rtol, atol=1e-3)
    allowed = 1e-3 + rtol * abs(expected)
    assert right(expected + 0.9 * allowed, expected) is None
    assert right(expected + 1.1 * allowed, expected) is not None


@pytest.mark.parametrize("make", [lambda: torch.ones(2), lambda: np.ones(2), lambda: [1, [2, 3]], lambda: {"a": [1]}])
def test_a_changed_argument_is_found(make):
    assert same(make(), make())
    changed = make()
    if isinstance(changed, dict):
        changed["a"].append(2)
    elif isinstance(changed, list):
        changed[1][0] = 9
    else:
        changed[0] = 9
    assert not same(make(), changed)


def test_what_may_change_is_not_a_change():
    drawn = torch.Generator().manual_seed(1)
    torch.rand(3, generator=drawn)
    assert same(torch.Generator().manual_seed(1), drawn)
    assert same(math.nan, math.nan)
    assert same(torch.tensor([math.nan]), torch.tensor([math.nan]))
    layer = torch.nn.BatchNorm1d(2)
    used = torch.nn.BatchNorm1d(2)
    used(torch.rand(4, 2))
    assert same(layer, used), "running statistics are what a forward pass is meant to change"
    with torch.no_grad():
        used.weight += 1
    assert not same(layer, used)


def test_values_are_short_in_a_message():
    large = torch.arange(1000.0).reshape(10, 100)
    assert describe(large, (1, 2)) == "tensor of shape (10, 100), float32; at [1, 2]: 102"
    assert describe(torch.tensor([1.0, 0.1234567])) == "tensor([1, 0.123457])"
    assert describe(np.arange(3)) == "array([0, 1, 2])"
    assert describe(list(range(100)), (17,)) == "[0, 1, 2, 3, 4, 5, 6, 7, ...] (100 items); at [17]: 17"
    assert describe((1,)) == "(1,)"
    assert describe(math.log) == "<function log>"
    assert describe(torch.nn.ReLU()) == "<ReLU>"
    for value in (large, "x" * 1000, dict.fromkeys(range(100), large), list(range(10**6)), [["y" * 99] * 8] * 8):
        assert len(describe(value)) < 200
    assert kind_of([1]) == "a list"
    assert call_text("f", ["step", "x"], (3, 0.1)) == "f(step=3, x=0.1)"


def _misspelt(_):
    return misspelt  # noqa: F821


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (("fp16", True), ("fp32", False)),
        (("fp16", 2), ("fp32", 1)),
        (True, False),
        ((2, True), (1, False)),
        ({"on": True}, {"on": False}),
        (torch.tensor([True, True, True]), torch.tensor([False, False, False])),
    ],
)
def test_no_arithmetic_is_told_of_what_is_not_all_numbers(got, expected):
    assert exact(fit(got, expected), expected) == ""
    assert exact(2, 1) == "The value is 2 times too large."


def test_torchs_own_line_is_nobodys_wherever_packages_lie():
    site = Path(torch.__file__).parent.parent
    code = f"""
import sys, sysconfig
sys.path.insert(0, {str(site)!r})
sysconfig.get_path = lambda name, **more: "/nowhere/" + name  # as in a sandbox, whose packages lie elsewhere
import torch
from labkit.describe import learner_line
x = torch.ones(2, requires_grad=True)
try:
    x.backward()
except RuntimeError as error:
    print(learner_line(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("line 9")


def test_an_exception_is_told_by_the_learners_own_line():
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert learner_line(caught.value).endswith("torch.ones(2) @ torch.ones(3)")
    assert describe_error(caught.value).startswith("RuntimeError: ")

    with pytest.raises(KeyError) as again:  # noqa: PT012 - the first exception has to be on its way
        try:
            torch.ones(2) @ torch.ones(3)
        finally:
            raise KeyError
    assert learner_line(again.value.with_traceback(None)).endswith("torch.ones(2) @ torch.ones(3)")

    loader = DataLoader(range(3), num_workers=1, collate_fn=_misspelt)
    with pytest.raises(NameError) as elsewhere:  # its text tells what a process of its own raised
        next(iter(loader))
    assert learner_line(elsewhere.value).split(": ")[1].startswith("return misspelt")

    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert describe_error(Mute()) == "Mute"
    assert learner_line(Mute()) == ""


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([{"a": 1}, {"a": 2, "b": 3}], [{"a": 1}, {"a": 2, "b": 4}], ("[1]['b']", 3, 4)),
        ({"a": [1, 2]}, {"a": [1, 5]}, ("['a'][1]", 2, 5)),
        ([1, 2], [1], ("", [1, 2], [1])),
        (1, 2, ("", 1, 2)),
    ],
)
def test_the_first_change_is_found(before, after, found):
    assert changed(before, after) == found
