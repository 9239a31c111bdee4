"""The checks of lesson 00: a fair stopwatch for several functions, and when two of them can be told apart.

Both run on a pretended clock and a pretended device, so a verdict is exact and takes no time, however busy the machine.
"""

from collections.abc import Callable, Sequence
from statistics import mean, median

import torch

from labkit.checker import Exercise, close

Candidates = dict[str, Callable[[], object]]
Wait, Clock = Callable[[], None], Callable[[], float]


class _World:
    """A clock, and a device that works through what it is given only while somebody waits for it.

    After `calm` calls a neighbour wakes up, and from then on all work takes twice as long.
    """

    def __init__(self, calm: int) -> None:
        self.now_s, self.owed_s, self.calls, self.calm = 0.0, 0.0, 0, calm

    def clock(self) -> float:
        """Seconds since the start."""
        return self.now_s

    def synchronize(self) -> None:
        """Wait for everything that was submitted."""
        self.now_s, self.owed_s = self.now_s + self.owed_s, 0.0

    def submits(self, spans_s: Sequence[float]) -> Callable[[], None]:
        """A function that returns after 10 µs and leaves the device work: spans_s, call by call, the last repeated."""
        own = iter(spans_s)

        def candidate() -> None:
            self.now_s += 1e-5
            self.owed_s += next(own, spans_s[-1]) * (1 if self.calls < self.calm else 2)
            self.calls += 1

        return candidate


def bench(candidates: Candidates, repeats: int, warmup: int, synchronize: Wait, clock: Clock) -> dict[str, list[float]]:
    """Per candidate, `repeats` samples in seconds, in rounds; the device idle when each starts and when it stops."""
    for fn in candidates.values():
        for _ in range(warmup):
            fn()
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, fn in candidates.items():
            synchronize()
            start = clock()
            fn()
            synchronize()
            seconds[name].append(clock() - start)
    return seconds


def _variant(*, warm: bool = True, before: bool = True, after: bool = True, blocks: bool = False) -> Callable:
    """`bench` with one part missing, or with each candidate's samples taken in one block."""

    def mistaken(candidates, repeats, warmup, synchronize, clock):
        for fn in candidates.values():
            for _ in range(warmup if warm else 0):
                fn()
        seconds = {name: [] for name in candidates}
        rounds = [name for _ in range(repeats) for name in candidates]
        for name in sorted(rounds, key=list(candidates).index) if blocks else rounds:
            if before:
                synchronize()
            start = clock()
            candidates[name]()
            if after:
                synchronize()
            seconds[name].append(clock() - start)
        return seconds

    return mistaken


def _bench_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One candidate and no warm-up; then more of each, with slow first calls and a neighbour half-way."""
    return [_bench_case(rng, *sizes) for sizes in ((1, 2, 0), (1, 3, 1), (2, 4, 2), (3, 6, 3), (2, 10, 1))]


def _bench_case(rng: torch.Generator, n_candidates: int, repeats: int, warmup: int) -> tuple:
    """Arguments for `bench`; call by call each candidate needs other times, in whole milliseconds."""
    world = _World(calm=n_candidates * (warmup + repeats // 2))
    candidates = {}
    for name in "ABC"[:n_candidates]:
        warm_s = [int(ms) / 1000 for ms in torch.randint(2, 60, (repeats,), generator=rng)]
        candidates[name] = world.submits([0.9, 0.3, 0.2][:warmup] + warm_s)
    return candidates, repeats, warmup, world.synchronize, world.clock


_SAMPLES = close(1e-6, 1e-9, "One sample is: wait, read the clock, call, wait, read the clock.")


def _compare_bench(got: dict, expected: dict) -> str | None:
    """As `_SAMPLES`, but a clock other than the one that was given is named."""
    cause = _SAMPLES(got, expected)
    if cause and any(map(_off_clock, got.values())):
        return "The check only pretends to work: this machine's own clock hardly moves. Read the time with clock()."
    return cause


def _off_clock(seconds: Sequence[float]) -> bool:
    """Whether the shortest sample is far too short, and not the 10 µs that the pretended clock gives a call."""
    ticks = min(seconds) / 1e-5
    return 0 <= ticks < 100 and abs(ticks - max(1, round(ticks))) > 1e-3


def compare_rounds(slow_s: list[float], fast_s: list[float]) -> tuple[float, bool]:
    """How many times longer `slow` takes (median over rounds), and whether 90 % of the rounds agree who is slower."""
    rounds = list(zip(slow_s, fast_s, strict=True))
    lost = sum(slow > fast for slow, fast in rounds)
    won = sum(slow < fast for slow, fast in rounds)
    return median(slow / fast for slow, fast in rounds), max(lost, won) >= 0.9 * len(rounds)


def _agree(slow_s: Sequence[float], fast_s: Sequence[float]) -> bool:
    """The second answer of `compare_rounds` alone."""
    return compare_rounds(list(slow_s), list(fast_s))[1]


def _round_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Four rounds told apart either way, with ties, with no winner; ten on both sides of 90 %; then drifting ones.

    Ten rounds are not shown in full by a message, so what decides stands at their front.
    """
    ones, twos = [1.0] * 4, [2.0] * 4
    corners = [
        (twos, ones),
        (ones, twos),
        (twos, list(twos)),
        ([1.0, 1.0, 0.5, 0.5], ones),
        ([1.0, 3.0, 1.0, 3.0], twos),
        ([2.0] * 10, [3.0, *[1.0] * 9]),
        ([2.0] * 10, [2.0, *[1.0] * 9]),
        ([2.0] * 10, [3.0, 3.0, *[1.0] * 8]),
    ]
    cases = [*corners, *(_drifting(rng, factor) for factor in (1.0, 1.3, 0.7, 3.0, 1.0, 1.3))]
    return [(list(slow), list(fast)) for slow, fast in cases]


def _drifting(rng: torch.Generator, factor: float) -> tuple:
    """20 rounds on a machine that gets slower, one of them interrupted, of candidates a factor apart."""
    drift = torch.linspace(1, 4, 20)
    slow = factor * drift * (1 + 0.1 * torch.rand(20, generator=rng))
    fast = drift * (1 + 0.1 * torch.rand(20, generator=rng))
    (slow if factor < 2 else fast)[int(torch.randint(0, 20, (), generator=rng))] *= 50
    return [round(x, 4) for x in slow.tolist()], [round(x, 4) for x in fast.tolist()]


def _unpaired(average: Callable) -> Callable:
    """`compare_rounds` with the ratio of two averages in place of the median of ratios."""
    return lambda slow_s, fast_s: (average(slow_s) / average(fast_s), _agree(slow_s, fast_s))


def _mean_of_ratios(slow_s: list[float], fast_s: list[float]) -> tuple[float, bool]:
    """`compare_rounds` with a mean."""
    return mean(a / b for a, b in zip(slow_s, fast_s, strict=True)), _agree(slow_s, fast_s)


def _upside_down(slow_s: list[float], fast_s: list[float]) -> tuple[float, bool]:
    """`compare_rounds` with fast divided by slow."""
    return compare_rounds(fast_s, slow_s)[0], _agree(slow_s, fast_s)


def _told_apart_if(rule: Callable[[int, int, int], bool]) -> Callable:
    """`compare_rounds` with another rule (lost, won, rounds) -> told apart."""

    def mistaken(slow_s: list[float], fast_s: list[float]) -> tuple[float, bool]:
        rounds = list(zip(slow_s, fast_s, strict=True))
        lost, won = sum(slow > fast for slow, fast in rounds), sum(slow < fast for slow, fast in rounds)
        return compare_rounds(slow_s, fast_s)[0], rule(lost, won, len(rounds))

    return mistaken


_TIES = "A tie counts as a round, but for nobody: count slow > fast and slow < fast apart, and divide by all rounds."
_BENCH_MISTAKES = (
    (
        "The clock stops before the device has finished: wait between the call and the second reading.",
        _variant(after=False),
    ),
    (
        "The first sample pays for what the warm-up left unfinished: wait before the first reading too.",
        _variant(before=False),
    ),
    ("The warm-up calls are missing, so cold calls are among the samples.", _variant(warm=False)),
    (
        "Each candidate has its samples in one block, so a neighbour who wakes up half-way is charged to the last one.",
        _variant(blocks=True),
    ),
)
_ROUND_MISTAKES = (
    ("This is the ratio of two medians; take the ratio round by round, then the median of those.", _unpaired(median)),
    ("A mean follows the one interrupted round; take a median.", _unpaired(mean)),
    ("A mean follows the one interrupted round; take a median.", _mean_of_ratios),
    ("Fast is divided by slow.", _upside_down),
    (
        "Either may be the slower one: told apart works both ways.",
        _told_apart_if(lambda lost, _, n: lost >= 0.9 * n),
    ),
    (
        "The rule is a share, 90 % of the rounds that there are, be they four or twenty, and no number of rounds.",
        _told_apart_if(lambda lost, won, n: n >= 10 and max(lost, won) >= 0.9 * n),
    ),
    (
        "Nine rounds of ten are 90 %, and at least 90 % is enough: >= and not >. One round may differ.",
        _told_apart_if(lambda lost, won, n: max(lost, won) > 0.9 * n),
    ),
    (_TIES, _told_apart_if(lambda lost, _, n: max(lost, n - lost) >= 0.9 * n)),
    (_TIES, _told_apart_if(lambda _, won, n: max(n - won, won) >= 0.9 * n)),
    (_TIES, _told_apart_if(lambda lost, won, _: max(lost, won) >= 0.9 * (lost + won))),
)

EXERCISES = (
    Exercise(
        number="0.1",
        name="bench",
        cases=_bench_cases,
        reference=bench,
        compare=_compare_bench,
        points=2,
        hints=(
            "Far too small, all alike: that is the call which hands the work over. Wait before you stop the clock.",
            "Only first samples are too large: a cold call, or its unfinished work. Warm up; wait before you start.",
            "Later candidates look slow: they all ran beside the neighbour. Rounds outside, candidates inside.",
        ),
        mistakes=_BENCH_MISTAKES,
    ),
    Exercise(
        number="0.2",
        name="compare_rounds",
        cases=_round_cases,
        reference=compare_rounds,
        compare=close(
            1e-6, 1e-9, "The ratio is a median over rounds; told apart: 90 % of all rounds agree, either way."
        ),
        points=1,
        hints=(
            "The ratio is off where the machine drifts: slow and fast of one round belong together. Use zip.",
            "True where nobody is slower: a tie counts for neither. Count slow > fast and slow < fast apart.",
            "False where `fast` is clearly slower: told apart works both ways. Take the larger count.",
        ),
        mistakes=_ROUND_MISTAKES,
    ),
)
