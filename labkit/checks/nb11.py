"""The checks of lesson 11: bus bandwidth, a step with overlap, one ring for all gradients, and hidden messages."""

from collections.abc import Callable, Sequence

import torch

from labkit import cost
from labkit.checker import Exercise, close
from labkit.checks import rings
from labkit.checks.replicas import seeds

# ---- 11.1: bus bandwidth --------------------------------------------------------------------------------------------

bus_bytes_per_s = cost.bus_bytes_per_s


def _bus_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Each collective on four ranks, where no two factors are alike; then on two to a thousand."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    four = [(op, 16_000_000, 0.01, 4) for op in cost.BUS_SHARES]
    more = [(op, 1024 * draw(1, 10**6), draw(1, 1000) / 1000, draw(2, 1025)) for op in cost.BUS_SHARES]
    return [*four, *more, ("all_reduce", 4096, 0.5, 1)]


def _shared(times: Callable[[str, int], float]) -> Callable:
    """Bus bandwidth with another factor, which times(op, world_size) gives."""

    def mistaken(op: str, n_bytes: int, seconds: float, world_size: int) -> float:
        return times(op, world_size) * n_bytes / seconds

    return mistaken


def _own(op: str, n: int) -> float:
    """The right factor."""
    return bus_bytes_per_s(op, 1, 1, n)


def _inverted(times: Callable[[str, int], float]) -> Callable:
    """Seconds over bytes, with a factor."""

    def mistaken(op: str, n_bytes: int, seconds: float, world_size: int) -> float:
        return times(op, world_size) * seconds / n_bytes

    return mistaken


_WHOLE = ("broadcast", "reduce")
_BUS_MISTAKES = (
    ("That is the algorithm bandwidth: multiply it by the factor of the collective.", _shared(lambda *_: 1.0)),
    ("Each collective has its own factor, not that of all_reduce.", _shared(lambda _, n: 2 * (n - 1) / n)),
    ("One array goes out from broadcast's rank, and into reduce's: their factor is 1.",)
    + (_shared(lambda op, n: (n - 1) / n if op in _WHOLE else _own(op, n)),),
    ("all_reduce moves everything twice: 2 (R-1)/R.",)
    + (_shared(lambda op, n: _own(op, n) / (2 if op == "all_reduce" else 1)),),
    ("It is (R-1)/R, and not R/(R-1): a rank keeps its own part.",)
    + (_shared(lambda op, n: _own(op, n) if op in _WHOLE else _own(op, n) * (n / (n - 1)) ** 2),),
    ("n_bytes is the whole array already: it is not multiplied by R.", _shared(lambda op, n: n * _own(op, n))),
    ("It is bytes a second, and not bits.", _shared(lambda op, n: 8 * _own(op, n))),
    ("It is bytes over seconds, and not seconds over bytes.", _inverted(_own)),
    ("It is bytes over seconds, and not seconds over bytes; and the factor is missing.", _inverted(lambda *_: 1.0)),
    ("It is bytes a second, and not GB.", _shared(lambda op, n: 1e-9 * _own(op, n))),
)

# ---- 11.2: computing and sending at once ----------------------------------------------------------------------------


def overlapped_step_s(
    compute_s: list[float], n_bytes: list[int], alpha_s: float, bytes_per_s: float, world_size: int
) -> float:
    """Seconds until the last piece is all-reduced, each going round as soon as it is there and the ring is free."""
    rings_s = [cost.ring_all_reduce_s(n, world_size, bytes_per_s, alpha_s) for n in n_bytes]
    return cost.overlapped_s(compute_s, rings_s)


def _step_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One piece; a slow link; a quick link; a long first piece; a large last piece; then drawn at random."""
    plain = [
        ([0.5], [2000], 0.0, 1000.0, 2),
        ([0.1, 0.1, 0.1], [1000, 1000, 1000], 0.0, 1000.0, 2),
        ([1.0, 1.0, 1.0], [100, 100, 100], 0.0, 1000.0, 2),
        ([4.0, 0.1, 0.1], [1000, 1000, 1000], 0.25, 1000.0, 4),
        ([0.5, 0.5, 2.0], [4000, 100, 4000], 0.0, 1000.0, 4),
    ]
    return [*plain, *(_random_step(rng) for _ in range(20))]


def _random_step(rng: torch.Generator) -> tuple:
    """Two to eight pieces whose computing and sending take about as long."""
    draw = lambda low, high: low + (high - low) * float(torch.rand((), generator=rng))
    count = 2 + int(torch.randint(7, (), generator=rng))
    compute_s = [draw(0.01, 0.5) for _ in range(count)]
    n_bytes = [int(draw(1000, 500_000)) for _ in range(count)]
    return compute_s, n_bytes, draw(0.0, 0.02), 1e6, 2 + int(torch.randint(7, (), generator=rng))


def _rings(n_bytes: list[int], alpha_s: float, bytes_per_s: float, world_size: int) -> list[float]:
    """Seconds of each piece's ring."""
    return [cost.ring_all_reduce_s(n, world_size, bytes_per_s, alpha_s) for n in n_bytes]


def _after(compute_s: list[float], *rest: object) -> float:
    """Computes all, then sends."""
    return sum(compute_s) + sum(_rings(*rest))


def _longer(compute_s: list[float], *rest: object) -> float:
    """The larger of two sums."""
    return max(sum(compute_s), sum(_rings(*rest)))


def _last_alone(compute_s: list[float], *rest: object) -> float:
    """Takes all but the last message to be hidden."""
    return sum(compute_s) + _rings(*rest)[-1]


def _in_lockstep(compute_s: list[float], *rest: object) -> float:
    """Has each piece computed while the one before is sent, and the next begun when both are done."""
    rings_s = _rings(*rest)
    return compute_s[0] + sum(map(max, [*compute_s[1:], 0.0], rings_s))


def _sent_otherwise(messages: Callable[[int], float], alphas: Callable[[int], float]) -> Callable:
    """Overlap with another number of R-th parts, and another number of latencies, for each piece."""

    def mistaken(
        compute_s: list[float], n_bytes: list[int], alpha_s: float, bytes_per_s: float, world_size: int
    ) -> float:
        parts, waits = messages(world_size) / world_size, alphas(world_size)
        return cost.overlapped_s(compute_s, [waits * alpha_s + parts * n / bytes_per_s for n in n_bytes])

    return mistaken


_STEP_MISTAKES = (
    ("Computing goes on while a piece is under way: its time is not added to all of the sending.", _after),
    ("The first piece cannot go before it is computed: the larger of the two sums is too little.", _longer),
    ("A ring that is slower than computing is still busy when the last piece is ready.", _last_alone),
    ("Computing does not wait for the ring: the next piece begins at once.", _in_lockstep),
    ("Every one of the 2 (R-1) messages pays alpha.", _sent_otherwise(lambda n: 2 * (n - 1), lambda _: 1)),
    ("Half of the ring is missing: reduce-scatter, then all-gather.",)
    + (_sent_otherwise(lambda n: n - 1, lambda n: n - 1),),
    ("A message carries an R-th of the piece, not all of it.",)
    + (_sent_otherwise(lambda n: 2 * n * (n - 1), lambda n: 2 * (n - 1)),),
)

EXERCISES = (
    Exercise(
        number="11.1",
        name="bus_bytes_per_s",
        cases=_bus_cases,
        reference=bus_bytes_per_s,
        compare=close(1e-9, 0.0, "Bytes over seconds, times the factor of the collective."),
        mistakes=_BUS_MISTAKES,
        points=2,
        hints=(
            "Start from n_bytes / seconds, and look up what each collective multiplies it by.",
            "A dictionary of factors, {'all_reduce': 2 * (world_size - 1) / world_size, ...}, needs no if.",
        ),
    ),
    Exercise(
        number="11.2",
        name="overlapped_step_s",
        cases=_step_cases,
        reference=overlapped_step_s,
        compare=close(1e-9, 1e-9, "A piece goes when it is computed and the ring is free, whichever is later."),
        mistakes=_STEP_MISTAKES,
        library=(cost.overlapped_s,),
        points=3,
        hints=(
            "Too short or too long: keep two clocks, when the piece is computed and when the ring is free.",
            "free_at = max(computed, free_at) + 2 * (world_size - 1) * message_s, once for each piece.",
            "message_s = alpha_s + n_bytes[i] / world_size / bytes_per_s.",
        ),
    ),
    Exercise(
        number="11.3",
        name="ring_mean",
        cases=rings.ring_shapes,
        reference=rings.ring_mean,
        compare=rings.same_means,
        drive=rings.averaged,
        mechanism=rings.ring_of_all,
        mistakes=rings.RING_MISTAKES,
        points=4,
        hints=(
            "torch.cat([t.flatten() for t in tensors]) is one vector, and one ring is enough for it: ring_all_reduce, "
            "or one of your own.",
            "In a ring of your own, flat.tensor_split(world_size) gives one chunk a rank, where flat.chunk may give "
            "fewer. Each step starts its receive and its send together (dist.batch_isend_irecv): ranks that all "
            "receive first wait for each other.",
            "At the end flat /= world_size, and tensor.copy_(part.view_as(tensor)) for each part of "
            "flat.split([t.numel() for t in tensors]).",
        ),
    ),
    Exercise(
        number="11.4",
        name="overlapped_means",
        cases=lambda rng: [(*each, *seeds(rng, 1)) for each in ((2, 1), (2, 3), (4, 6))],
        reference=rings.overlapped_means,
        compare=close(1e-6, 1e-6, "The sum over ranks, once it was waited for, divided by the world size."),
        drive=rings.hidden,
        mistakes=rings.HIDDEN_MISTAKES,
        mechanism=rings.nothing_waits,
        points=4,
        hints=(
            "Two loops: the first computes and launches, the second waits and divides.",
            "Keep pairs: under_way.append((gradient, launch(gradient))).",
            "gradient / world_size after pending.wait(); a list of them, in order.",
        ),
    ),
)
