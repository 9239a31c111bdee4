"""The closed forms, against counting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import cost

rates = st.floats(1e3, 1e15)


@pytest.mark.parametrize(("flops_per_byte", "reached"), [(0.25, 10e9), (2.5, 100e9), (40.0, 100e9)])
def test_memory_limits_on_the_left_and_arithmetic_on_the_right(flops_per_byte, reached):
    assert cost.roofline_flops_per_s(flops_per_byte, 40e9, 100e9) == reached


@given(n_bytes=st.floats(1, 1e12), flops=st.floats(1, 1e12), bytes_per_s=rates, flops_per_s=rates)
def test_the_time_of_a_kernel_is_the_roofline_read_the_other_way(n_bytes, flops, bytes_per_s, flops_per_s):
    reached = cost.roofline_flops_per_s(flops / n_bytes, bytes_per_s, flops_per_s)
    assert cost.kernel_s(n_bytes, flops, bytes_per_s, flops_per_s) == pytest.approx(flops / reached)


@pytest.mark.parametrize(("compile_s", "slow_s", "fast_s"), [(1.0, 0.5, 0.25), (3.1, 0.5, 0.25), (0.1, 2.0, 1.0)])
def test_break_even_against_adding_up(compile_s, slow_s, fast_s):
    calls = 1
    while compile_s + calls * fast_s > calls * slow_s:
        calls += 1
    assert cost.break_even_calls(compile_s, slow_s, fast_s) == calls


@pytest.mark.parametrize("fast_s", [1.0, 1.5])
def test_what_saves_nothing_never_pays(fast_s):
    assert cost.break_even_calls(2.0, 1.0, fast_s) == math.inf
