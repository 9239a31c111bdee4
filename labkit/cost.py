"""Closed forms: what work must cost at least on hardware whose rates are known."""

import math
from collections.abc import Sequence

from labkit.architecture import Architecture

Number = float | int


def roofline_flops_per_s(flops_per_byte: float, bytes_per_s: float, flops_per_s: float) -> float:
    """The most floating-point operations per second that work can reach which does flops_per_byte.

    Memory allows flops_per_byte times bytes_per_s, the arithmetic units allow flops_per_s; the smaller one counts.
    Ignores caches, latency, and that not every operation can use the units at their peak.
    Source: Williams, Waterman and Patterson, Roofline, Communications of the ACM 52(4) (2009).
    """
    return min(flops_per_byte * bytes_per_s, flops_per_s)


def kernel_s(n_bytes: float, flops: float, bytes_per_s: float, flops_per_s: float) -> float:
    """Seconds that one kernel takes at least: those of its memory traffic or of its arithmetic, the larger one.

    The roofline, read as a time. Ignores the launch.
    """
    return max(n_bytes / bytes_per_s, flops / flops_per_s)


def break_even_calls(compile_s: float, slow_s: float, fast_s: float) -> float:
    """The first number of calls after which a compilation has saved as many seconds as it took; inf if it never does.

    compile_s is paid once; each call then takes fast_s where it took slow_s before.
    """
    saved_s = slow_s - fast_s
    return math.ceil(compile_s / saved_s) if saved_s > 0 else math.inf


BUS_SHARES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1, "broadcast": 0, "reduce": 0}
"""How many times (R-1)/R of the whole array an ideal algorithm has each of R ranks send; 0: all of it, from one."""


def ring_all_reduce_bytes(n_bytes: Number, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of n_bytes: 2 (R-1)/R of them.

    Reduce-scatter, then all-gather, each of R-1 messages that are an R-th part long. No all-reduce made of messages
    between two ranks has every rank send less.
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, J. Parallel Distrib. Comput. 69 (2009).
    """
    return 2 * (world_size - 1) / world_size * n_bytes


def ring_all_reduce_s(n_bytes: Number, world_size: int, bytes_per_s: Number, alpha_s: Number = 0.0) -> float:
    """Seconds that a ring all-reduce of n_bytes takes at least, over links that each need alpha_s a message besides.

    2 (R-1) messages one after another. Ignores the adding, and that a slow rank holds up all others.
    Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, Int. J. High
    Perform. Comput. Appl. 19 (2005), section 4.
    """
    return 2 * (world_size - 1) * alpha_s + ring_all_reduce_bytes(n_bytes, world_size) / bytes_per_s


def bus_bytes_per_s(op: str, n_bytes: Number, seconds: Number, world_size: int) -> float:
    """Bus bandwidth of a collective, in bytes per second: what an ideal algorithm would have had each link carry.

    op: a key of BUS_SHARES. n_bytes: of the whole array, also where each rank holds a part (all_gather's result,
    reduce_scatter's input). Ignores which algorithm ran. KeyError: an unknown op.
    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md (2026-11-30).
    """
    times = BUS_SHARES[op]
    return (times * (world_size - 1) / world_size if times else 1.0) * n_bytes / seconds


def fit_alpha_beta(n_bytes: Sequence[Number], seconds: Sequence[Number]) -> tuple[float, float]:
    """(seconds a message, bytes per second) of the line seconds = alpha + n_bytes / rate that fits best.

    Best: the least sum of squared *relative* errors, for the longest message takes thousands of times as long as the
    shortest, and would otherwise decide alone. ValueError: fewer than two different sizes.
    Source: Hockney, The communication challenge for MPP, Parallel Computing 20 (1994).
    """
    if len(set(n_bytes)) < 2:
        raise ValueError("a line needs messages of two sizes or more")
    rows = [(1 / t, n / t) for n, t in zip(n_bytes, seconds, strict=True)]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    return (a1 * bb - b1 * ab) / determinant, determinant / (b1 * aa - a1 * ab)


def overlapped_s(compute_s: Sequence[Number], send_s: Sequence[Number]) -> float:
    """Seconds until all is sent where each piece may go as soon as it is computed, while the next one is computed.

    One piece is computed at a time and one is sent at a time, in order. Ignores that sending takes some of the
    processor's time from computing.
    """
    computed = sent = 0.0
    for compute, send in zip(compute_s, send_s, strict=True):
        computed += compute
        sent = max(sent, computed) + send
    return sent


def train_flops(n_params: Number, n_tokens: Number) -> float:
    """FLOPs of training on n_tokens, about: six for each parameter and token, two forward and four backward.

    n_params: those that multiply something, so no embedding, and of experts the active ones. Ignores attention's
    scores, which `step_flops` counts. Source: Kaplan et al., Scaling laws (arXiv:2001.08361), section 2.1.
    """
    return 6 * n_params * n_tokens


def forward_flops(arch: Architecture, *, batch: int, seq: int) -> dict[str, int]:
    """FLOPs of the matrix products of a forward pass: of the blocks' weights, attention's scores, and the head.

    Scores count whole, as most counters do; a causal kernel that skips the masked half does half of them. Ignores
    norms, activations, softmax, which do under a hundredth of it.
    """
    tokens, d = batch * seq, arch.width
    rows = 2 * arch.heads * arch.head_width + 2 * arch.kv_heads * arch.head_width
    mlp = (3 if arch.gated else 2) * arch.hidden * max(arch.experts_per_token, 1)
    block = d * (rows + mlp + arch.experts)
    scores = 2 * seq * arch.heads * arch.head_width  # queries with keys, then weights with values
    flops = {"blocks": arch.layers * block, "scores": arch.layers * scores, "head": d * arch.vocab}
    return {part: 2 * tokens * products for part, products in flops.items()}


def step_flops(arch: Architecture, *, batch: int, seq: int, recompute: str = "none") -> int:
    """FLOPs of the matrix products of a step: forward, twice that backward, and what is recomputed.

    recompute: "none" | "selective" (attention's scores again) | "full" (the blocks again).
    Source: Korthikanti et al. (arXiv:2205.05198), appendix A.
    """
    forward = forward_flops(arch, batch=batch, seq=seq)
    again = {"none": 0, "selective": forward["scores"], "full": forward["blocks"] + forward["scores"]}[recompute]
    return 3 * sum(forward.values()) + again


def mfu(model_flops: Number, seconds: Number, flops_per_s: Number) -> float:
    """Model FLOPs utilisation: the share of a device's peak rate that went into the model's own FLOPs.

    model_flops: without recomputation. Source: Chowdhery et al., PaLM (arXiv:2204.02311), appendix B.
    """
    return model_flops / seconds / flops_per_s
