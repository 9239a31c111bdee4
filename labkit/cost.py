"""Closed forms: what work must cost at least on hardware whose rates are known."""

import math


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
