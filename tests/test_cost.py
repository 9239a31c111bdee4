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


# ---- messages -------------------------------------------------------------------------------------------------------


def ring_by_hand(n_elements, world_size):
    """What each rank sends, element by element, in a ring all-reduce of whole numbers that comes out right."""
    whole = [[rank + i for i in range(n_elements)] for rank in range(world_size)]
    edges = [n_elements * part // world_size for part in range(world_size + 1)]
    sent = [0] * world_size
    for phase in range(2):
        for step in range(world_size - 1):
            moving = []
            for rank in range(world_size):
                part = (rank - step + phase) % world_size
                moving.append((rank, part, whole[rank][edges[part] : edges[part + 1]]))
            for rank, part, values in moving:
                sent[rank] += len(values)
                there, place = whole[(rank + 1) % world_size], slice(edges[part], edges[part + 1])
                there[place] = values if phase else [a + b for a, b in zip(there[place], values, strict=True)]
    total = [sum(rank + i for rank in range(world_size)) for i in range(n_elements)]
    assert all(mine == total for mine in whole)
    return sent


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_bytes_of_a_ring_against_a_ring(world_size):
    sent = ring_by_hand(24, world_size)
    assert sent == [cost.ring_all_reduce_bytes(24, world_size)] * world_size


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_seconds_of_a_ring_against_adding_up_its_messages(world_size):
    message_s = 1e-5 + 4e6 / world_size / 1e9
    total_s = sum(message_s for _ in range(2 * (world_size - 1)))
    assert cost.ring_all_reduce_s(4e6, world_size, 1e9, 1e-5) == pytest.approx(total_s)
    assert cost.ring_all_reduce_s(4e6, world_size, 1e9) <= total_s


def ideal_s(op, n_bytes, world_size, bytes_per_s):
    """Seconds of a collective over links of known bandwidth, counted part by part."""
    part = n_bytes / world_size
    parts = {"all_reduce": 2 * (world_size - 1), "broadcast": world_size, "reduce": world_size}
    return sum(part / bytes_per_s for _ in range(parts.get(op, world_size - 1)))


@pytest.mark.parametrize("op", cost.BUS_SHARES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_bus_bandwidth_is_that_of_the_link_whatever_the_collective(op, world_size):
    seconds = ideal_s(op, 1e9, world_size, 25e9)
    assert cost.bus_bytes_per_s(op, 1e9, seconds, world_size) == pytest.approx(25e9)


def test_bus_bandwidth_of_what_nobody_knows():
    with pytest.raises(KeyError):
        cost.bus_bytes_per_s("barrier", 1, 1.0, 2)


def test_the_published_bus_bandwidth_of_a_published_time():
    """8 H200: 1 GiB, algorithm bandwidth 264.90 GB/s, bus bandwidth 463.58 GB/s (ml-engineering, 2026-08-04)."""
    assert cost.bus_bytes_per_s("all_reduce", 264.90e9, 1.0, 8) == pytest.approx(463.58e9, rel=1e-4)


@given(alpha_s=st.floats(1e-6, 1e-1), rate=st.floats(1e6, 1e12))
def test_a_line_without_noise_is_found_again(alpha_s, rate):
    sizes = [2**k for k in range(8, 31, 2)]
    found = cost.fit_alpha_beta(sizes, [alpha_s + n / rate for n in sizes])
    fitted = [found[0] + n / found[1] for n in sizes]
    assert fitted == pytest.approx([alpha_s + n / rate for n in sizes], rel=1e-5)


def test_the_fit_has_the_least_relative_error_of_all_lines_near_it():
    sizes, seconds = [1e3, 1e4, 1e5, 1e6, 1e7], [32e-6, 29e-6, 61e-6, 240e-6, 2.7e-3]
    error = lambda alpha_s, rate: sum((1 - (alpha_s + n / rate) / t) ** 2 for n, t in zip(sizes, seconds, strict=True))
    alpha_s, rate = cost.fit_alpha_beta(sizes, seconds)
    steps = [0.5 + 0.01 * i for i in range(101)]
    assert min(error(alpha_s * a, rate * b) for a in steps for b in steps) == pytest.approx(error(alpha_s, rate))


@pytest.mark.parametrize("sizes", [[], [64], [64, 64]])
def test_one_size_makes_no_line(sizes):
    with pytest.raises(ValueError, match="two sizes"):
        cost.fit_alpha_beta(sizes, [1.0] * len(sizes))


def by_clock_s(compute_ms, send_ms):
    """Overlap, millisecond by millisecond."""
    computed, left, sending, clock = 0, [*compute_ms], [*send_ms], 0
    while any(left) or any(sending):
        ready = computed  # what was there when this millisecond began
        piece = next((i for i, ms in enumerate(left) if ms), None)
        going = next((i for i, ms in enumerate(sending) if ms), None)
        if piece is not None:
            left[piece] -= 1
            computed += not left[piece]
        if going is not None and going < ready:
            sending[going] -= 1
        clock += 1
    return clock


times_ms = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


@given(times_ms)
def test_overlap_against_a_clock(pieces):
    compute, send = zip(*pieces, strict=True)
    assert cost.overlapped_s(compute, send) == by_clock_s(compute, send)
