"""Exercise 19.2: whether a recipe that scores higher is better, from the runs of both that share their seeds."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import erfc, sqrt
from statistics import stdev

import torch

Scores = Mapping[int, int]
LEVEL = 0.05


def improvement(before: Scores, after: Scores) -> tuple[float, float, bool]:
    """Mean gain over shared seeds, its two-sided p by all flips of signs, and whether it is a gain with p <= 0.05.

    p: of all 2**n ways to give each seed's difference a sign, the share whose sum is at least as far from zero.
    Source: Fisher, The Design of Experiments (1935), section 21.
    """
    gains = [after[seed] - before[seed] for seed in before.keys() & after.keys()]
    if not gains:
        return 0.0, 1.0, False
    n_far = sum(abs(total) >= abs(sum(gains)) for total in _signed_sums(gains))
    gain, p = sum(gains) / len(gains), n_far / 2 ** len(gains)
    return gain, p, gain > 0 and p <= LEVEL


def _signed_sums(gains: Sequence[int]) -> Iterator[int]:
    """The sum of the differences, for each way to give them signs."""
    for flip in itertools.product((-1, 1), repeat=len(gains)):
        yield sum(sign * gain for sign, gain in zip(flip, gains, strict=True))


def improvement_cases(rng: torch.Generator) -> Sequence[tuple]:
    """By hand: few seeds, another order, missing ones, none shared, no difference; then drawn, up and down."""
    even = {seed: 800 + 7 * (seed * seed % 11) for seed in range(8)}
    cases = [
        ({1: 90, 2: 94}, {1: 93, 2: 95}),
        ({1: 90, 2: 70, 3: 80}, {3: 82, 1: 93, 2: 71}),
        ({1: 90, 2: 94, 4: 60}, {5: 99, 2: 91, 1: 93}),
        ({1: 90}, {2: 99}),
        (even, dict(even)),
        (even, {seed: score + 3 for seed, score in reversed(even.items())}),
        (even, {seed: score - 3 for seed, score in even.items()}),
        ({s: 500 + 40 * s for s in range(7)}, {s: 500 + 40 * s + d for s, d in enumerate((4, 5, 3, -1, 6, 2, 4))}),
    ]
    return cases + [_drawn(rng, n, lift) for n, lift in ((6, 5), (9, 4), (10, 7), (11, 4), (8, -6))]


def _drawn(rng: torch.Generator, n: int, lift: int) -> tuple[dict, dict]:
    """Runs that share much of their chance, n shared seeds and one more on each side, in orders of their own."""
    seeds = torch.randperm(50, generator=rng)[: n + 2].tolist()
    luck = torch.randint(-40, 40, (n + 2,), generator=rng).tolist()
    own = torch.randint(-6, 7, (n + 2,), generator=rng).tolist()
    before = {seed: 800 + each for seed, each in zip(seeds[1:], luck[1:], strict=True)}
    after = {seed: 800 + a + b + lift for seed, a, b in zip(seeds, luck, own, strict=True) if seed != seeds[-1]}
    return before, dict(sorted(after.items(), reverse=True))


def _by(gains_of: Callable | None = None, far: Callable | None = None) -> Callable:
    """`improvement` with other differences, or another idea of what is far from zero."""
    gains_of = gains_of or (lambda b, a: [a[s] - b[s] for s in b.keys() & a.keys()])
    far = far or (lambda total, seen: abs(total) >= abs(seen))

    def mistaken(before: Scores, after: Scores) -> tuple[float, float, bool]:
        gains = gains_of(before, after)
        if not gains:
            return 0.0, 1.0, False
        n_far = sum(far(total, sum(gains)) for total in _signed_sums(gains))
        gain, p = sum(gains) / len(gains), n_far / 2 ** len(gains)
        return gain, p, gain > 0 and p <= LEVEL

    return mistaken


def _normal(before: Scores, after: Scores) -> tuple[float, float, bool]:
    """The mistake of a bell curve for so few runs."""
    gains = [after[s] - before[s] for s in before.keys() & after.keys()]
    gain = sum(gains) / len(gains)
    p = erfc(abs(gain) / (stdev(gains) / sqrt(len(gains))) / sqrt(2))
    return gain, p, gain > 0 and p <= LEVEL


def _either_way(before: Scores, after: Scores) -> tuple[float, float, bool]:
    """The mistake of calling a loss an improvement."""
    gain, p, _ = improvement(before, after)
    return gain, p, p <= LEVEL


IMPROVEMENT_MISTAKES = (
    ("Pairs by place: the runs stand in other orders, and not all are there. Pair by seed.",)
    + (_by(lambda b, a: [y - x for x, y in zip(b.values(), a.values(), strict=False)]),),
    ("A run that is missing is no run that scored 0: leave out seeds that only one side has.",)
    + (_by(lambda b, a: [a.get(s, 0) - b.get(s, 0) for s in b.keys() | a.keys()]),),
    ("One-sided: a loss as large would have surprised as much. Compare sizes, abs(...).",)
    + (_by(far=lambda total, seen: total >= seen),),
    ("Count as far as what was seen, too: >=. What was seen is one of the ways itself.",)
    + (_by(far=lambda total, seen: abs(total) > abs(seen)),),
    ("The gain is after - before.", _by(lambda b, a: [b[s] - a[s] for s in b.keys() & a.keys()])),
    ("A bell curve is not exact for so few runs: go through all 2**n ways.", _normal),
    ("A loss is no improvement, however sure.", _either_way),
)
