"""The closed forms, against counting."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from labkit import cost
from labkit.architecture import Architecture, active, count, parameters
from labkit.presets import preset

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


# ---- FLOPs ----------------------------------------------------------------------------------------------------------

TINY = Architecture(
    **{"name": "tiny", "vocab": 50, "width": 12, "layers": 3, "heads": 4, "kv_heads": 2, "head_width": 5},
    **{"hidden": 20, "gated": True, "norm": "rms", "context": 16},
)


def counted_flops(arch, batch, seq, backward):
    """What torch's own counter sees of the same products, done one by one."""
    x = torch.ones(batch * seq, arch.width, requires_grad=True)
    q, kv = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    matrices = lambda *sizes: [torch.ones(size, requires_grad=True) for size in sizes]
    with FlopCounterMode(display=False) as counter:
        total = torch.zeros(())
        for _ in range(arch.layers):
            for matrix in matrices((arch.width, q), (arch.width, kv), (arch.width, kv)):
                total = total + (x @ matrix).sum()
            scores = torch.ones(batch * arch.heads, seq, arch.head_width, requires_grad=True)
            total = total + ((scores @ scores.transpose(1, 2)) @ scores).sum()
            total = total + (torch.ones(batch * seq, q, requires_grad=True) @ matrices((q, arch.width))[0]).sum()
            for matrix in matrices(*[(arch.width, arch.hidden)] * (1 + arch.gated)):
                total = total + (x @ matrix).sum()
            wide = torch.ones(batch * seq, arch.hidden, requires_grad=True)
            total = total + (wide @ matrices((arch.hidden, arch.width))[0]).sum()
        total = total + (x @ matrices((arch.width, arch.vocab))[0]).sum()
        if backward:
            total.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("gated", [True, False])
def test_flops_are_those_that_torch_counts_and_backward_does_twice_as_many(gated):
    arch = dataclasses.replace(TINY, gated=gated)
    assert sum(cost.forward_flops(arch, batch=2, seq=7).values()) == counted_flops(arch, 2, 7, backward=False)
    assert cost.step_flops(arch, batch=2, seq=7) == counted_flops(arch, 2, 7, backward=True)


def test_six_a_parameter_and_token_is_a_step_but_for_the_scores():
    arch = preset("llama-2-7b")
    products = count(arch) - parameters(arch)["embedding"] - parameters(arch)["norms"]
    scores = 3 * cost.forward_flops(arch, batch=1, seq=512)["scores"]
    assert cost.train_flops(products, 512) == cost.step_flops(arch, batch=1, seq=512) - scores


def test_a_token_pays_for_the_experts_that_serve_it():
    arch = preset("mixtral-8x7b")
    products = active(arch) - parameters(arch)["embedding"] - parameters(arch)["norms"]
    forward = cost.forward_flops(arch, batch=1, seq=1)
    assert forward["blocks"] + forward["head"] == 2 * products


def test_full_recomputation_is_a_third_of_the_blocks_again():
    none, full = (cost.step_flops(TINY, batch=1, seq=9, recompute=how) for how in ("none", "full"))
    forward = cost.forward_flops(TINY, batch=1, seq=9)
    assert full - none == forward["blocks"] + forward["scores"]


def test_utilisation_is_a_share_of_the_peak():
    assert cost.mfu(30e12, 2.0, 100e12) == 0.15
