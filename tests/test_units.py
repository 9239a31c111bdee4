"""Numbers as a reader would write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.units import format_bytes, format_count, format_flops, format_s


@pytest.mark.parametrize(
    ("n_bytes", "decimal", "binary"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1000, "1 kB", "1000 B"),
        (1024, "1.02 kB", "1 KiB"),
        (1.5e9, "1.5 GB", "1.4 GiB"),
        (2**30, "1.07 GB", "1 GiB"),
        (16 * 7.5e9, "120 GB", "112 GiB"),
        (-2e6, "-2 MB", "-1.91 MiB"),
    ],
)
def test_bytes(n_bytes, decimal, binary):
    assert format_bytes(n_bytes) == decimal
    assert format_bytes(n_bytes, binary=True) == binary


def test_other_quantities():
    assert format_flops(312e12) == "312 TFLOP"
    assert format_count(175_968) == "176 k"
    assert format_count(7) == "7"
    assert format_count(999_999) == "1 M"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (3e-9, "3 ns"), (1.234e-5, "12.3 µs"), (0.0123, "12.3 ms"), (1, "1 s"), (119, "119 s")]
    + [(150, "2.5 min"), (7200, "2 h"), (-0.5, "-500 ms"), (0.9999, "1 s")],
)
def test_seconds(seconds, text):
    assert format_s(seconds) == text


@given(st.floats(1e-9, 1e17))
def test_three_significant_digits_are_kept(value):
    text, unit = (format_bytes(value) + " ").split(" ")[:2]
    scale = dict(
        zip(("B", "kB", "MB", "GB", "TB", "PB", "EB"), (10.0**power for power in range(0, 21, 3)), strict=True)
    )
    assert float(text) * scale[unit] == pytest.approx(value, rel=6e-3)
