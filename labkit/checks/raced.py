"""Exercise 21.3: how many times faster one script is than another, from logs of runs that did not all get there."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import exp
from statistics import mean, median, median_high, median_low

import torch

Log = Sequence[tuple[float, float]]
Pairs = Sequence[tuple[Log, Log]]


def fair_ratio(pairs: Pairs, target: float) -> float:
    """The median over pairs of the time to the target, slow by fast; 0.0 where no slow run gets there.

    A run's time is that of its first entry with at least the target. A fast run that never gets there makes its pair 0.
    """
    timed = [(_first(slow, target), _first(fast, target)) for slow, fast in pairs]
    ratios = [0.0 if fast_s is None else slow_s / fast_s for slow_s, fast_s in timed if slow_s is not None]
    return median(ratios) if ratios else 0.0


def _first(log: Log, target: float) -> float | None:
    """Seconds to the first entry at the target."""
    return next((seconds for seconds, accuracy in log if accuracy >= target), None)


def _log(epoch_s: float, *accuracies: float) -> list[tuple[float, float]]:
    """A run whose epochs take epoch_s."""
    return [(epoch_s * epoch, accuracy) for epoch, accuracy in enumerate(accuracies, 1)]


def _up(epoch_s: float, n_epochs: int) -> list[tuple[float, float]]:
    """A run that is above 0.9 after n_epochs, and goes on for two more."""
    return _log(epoch_s, *(0.8 - 0.05 * left for left in range(n_epochs - 2, -1, -1)), 0.92, 0.93, 0.91)


def _never(epoch_s: float) -> list[tuple[float, float]]:
    """A run that stays below 0.9."""
    return _log(epoch_s, 0.6, 0.8, 0.86, 0.85)


def ratio_cases(rng: torch.Generator) -> Sequence[tuple]:
    """By hand, one trap after the other; then drawn."""
    runs = lambda *epochs: [(_up(10.0, slow), _up(2.0, fast)) for slow, fast in epochs]
    by_hand = [
        # one pair, whose first, best and last entry at the target differ; exactly the target; up, down and up again
        ([(_log(10.0, 0.5, 0.8, 0.9, 0.93, 0.91, 0.84), _log(4.0, 0.6, 0.88, 0.91, 0.9, 0.82))], 0.85),
        ([(_log(10.0, 0.7, 0.85, 0.9, 0.92, 0.93, 0.91), _log(3.0, 0.8, 0.9, 0.91, 0.9, 0.9, 0.92, 0.9))], 0.9),
        ([(_log(9.0, 0.6, 0.8, 0.86, 0.9, 0.92), _log(2.0, 0.5, 0.9, 0.7, 0.75, 0.95))], 0.85),
        # three pairs; four
        ([(_up(10.0, 4), _up(5.0, 4)), (_up(15.0, 6), _up(10.0, 3)), (_up(10.0, 5), _up(2.5, 2))], 0.9),
        (runs((4, 9), (3, 7), (7, 6), (9, 4)), 0.9),
        # a fast run that fails; a slow one; both; most fast ones; none left, of one and of none
        ([*runs((4, 5), (9, 5)), (_up(10.0, 5), _never(2.0))], 0.9),
        ([*runs((4, 5), (6, 5), (8, 5)), (_never(10.0), _up(2.0, 4))], 0.9),
        ([(_never(10.0), _never(2.0)), *runs((3, 4), (8, 3))], 0.9),
        ([(_up(10.0, 6), _never(2.0)), *runs((5, 4)), (_up(10.0, 7), _never(3.0))], 0.9),
        ([(_never(10.0), _up(2.0, 4))], 0.9),
        ([], 0.9),
    ]
    return by_hand + [_drawn(rng, n) for n in (3, 4, 5, 6, 7, 8, 8, 9, 10, 11)]


def _drawn(rng: torch.Generator, n_pairs: int) -> tuple:
    """Pairs of runs with luck of their own; some stay below the target."""
    target = 0.84 + 0.01 * int(torch.randint(8, (), generator=rng))
    pairs = [(_run(rng, 12.0, 0.1), _run(rng, 3.0, 0.25)) for _ in range(n_pairs)]
    return pairs, round(target, 2)


def _run(rng: torch.Generator, epoch_s: float, failing: float) -> list[tuple[float, float]]:
    """A run of epochs that are not equally long; fails to learn with this probability."""
    chance, pace, *luck = torch.rand(26, generator=rng).tolist()
    top, pace = 0.8 if chance < failing else 0.94, 1.5 + 2 * pace
    seconds, log = 0.0, []
    for epoch, (longer, better) in enumerate(zip(luck[:12], luck[12:], strict=True), 1):
        seconds += epoch_s * (0.7 + 0.6 * longer)
        log.append((round(seconds, 1), round(top * (1 - exp(-epoch / pace)) + 0.08 * (better - 0.5), 2)))
    return log


def _by(time_of: Callable = _first, joined: Callable = median) -> Callable:
    """`fair_ratio` with another time of a run, or another way to make one number of the ratios."""

    def mistaken(pairs: Pairs, target: float) -> float:
        timed = [(time_of(slow, target), time_of(fast, target)) for slow, fast in pairs]
        ratios = [0.0 if fast_s is None else slow_s / fast_s for slow_s, fast_s in timed if slow_s is not None]
        return joined(ratios) if ratios else 0.0

    return mistaken


def _among(choose: Callable[[Log, float], Log], pick: Callable[[Log], tuple[float, float]]) -> Callable:
    """The time of one of the entries that were chosen; None where there are none."""

    def time_of(log: Log, target: float) -> float | None:
        chosen = choose(log, target)
        return pick(chosen)[0] if chosen else None

    return time_of


def _sorted(log: Log, target: float) -> float | None:
    """The entry that a search in halves finds."""
    place = bisect_left([accuracy for _, accuracy in log], target)
    return log[place][0] if place < len(log) else None


def _for_good(log: Log, target: float) -> float | None:
    """The entry after the last one below the target."""
    below = [place for place, (_, accuracy) in enumerate(log) if accuracy < target]
    place = below[-1] + 1 if below else 0
    return log[place][0] if place < len(log) else None


def _epochs(log: Log, target: float) -> int | None:
    """Epochs instead of seconds."""
    return next((epoch for epoch, (_, accuracy) in enumerate(log, 1) if accuracy >= target), None)


def _both_ended(pairs: Pairs, target: float) -> float:
    """Survivors only."""
    ended = [(slow, fast) for slow, fast in pairs if _first(fast, target) is not None]
    return fair_ratio(ended, target)


def _slow_as_zero(pairs: Pairs, target: float) -> float:
    """A slow run that fails makes its pair 0, too."""
    timed = [(_first(slow, target), _first(fast, target)) for slow, fast in pairs]
    return median([0.0 if None in pair else pair[0] / pair[1] for pair in timed]) if timed else 0.0


def _ends(*, slow: bool = False, fast: bool = False) -> Callable:
    """Slow or fast runs that never get there, given the time of their last entry."""

    def mistaken(pairs: Pairs, target: float) -> float:
        closed = lambda log, ends: [*log, (log[-1][0], 1.0)] if ends else log
        return fair_ratio([(closed(one, slow), closed(other, fast)) for one, other in pairs], target)

    return mistaken


def _of_all(joined: Callable) -> Callable:
    """One ratio, of what was joined of all slow and of all fast runs."""

    def mistaken(pairs: Pairs, target: float) -> float:
        slow, fast = ([_first(log, target) for log in logs] for logs in zip(*pairs, strict=True))
        return joined([s for s in slow if s is not None]) / joined([s for s in fast if s is not None])

    return mistaken


def _upside_down(pairs: Pairs, target: float) -> float:
    """Fast by slow."""
    timed = [(_first(slow, target), _first(fast, target)) for slow, fast in pairs]
    ratios = [0.0 if fast_s is None else fast_s / slow_s for slow_s, fast_s in timed if slow_s is not None]
    return median(ratios) if ratios else 0.0


_at_target = lambda log, target: [entry for entry in log if entry[1] >= target]
_if_reached = lambda log, target: log if _at_target(log, target) else []
_above = lambda log, target: [entry for entry in log if entry[1] > target]
_last = lambda log: log[-1]
_FIRST = "A run is done at its first entry that has the target; what it did afterwards is no part of the race."
_DIPS = "Accuracies go up and down: what counts is the first entry at the target, though a later one may be below it."
_CENSORED = "That a run ended without the target is no time to the target."
_PAIRS = "First the ratio of each pair, which ran side by side, then the median of the ratios."
RATIO_MISTAKES = (
    (_FIRST, _by(_among(_if_reached, _last))),
    (_FIRST, _by(_among(_at_target, _last))),
    ("This is the time of the best accuracy: the race is for the target, so take the first entry that has it.",)
    + (_by(_among(_if_reached, lambda log: max(log, key=lambda entry: entry[1]))),),
    ("Exactly the target is enough: >=.", _by(_among(_above, lambda chosen: chosen[0]))),
    (_DIPS, _by(_sorted)),
    (_DIPS, _by(_for_good)),
    ("These are epochs: the first number of an entry is its seconds.", _by(_epochs)),
    ("Turned round: slow by fast.", _upside_down),
    ("The mean follows one lucky pair; take the median of the ratios.", _by(joined=mean)),
    ("Of an even number, the median is the mean of the two in the middle: statistics.median.", _by(joined=median_low)),
    ("Of an even number, the median is the mean of the two in the middle: statistics.median.", _by(joined=median_high)),
    (_PAIRS, _of_all(median)),
    (_PAIRS, _of_all(sum)),
    (_PAIRS, _of_all(mean)),
    ("Survivors only: a fast run that never gets there makes its pair 0. Left out, failing would pay.", _both_ended),
    ("A slow run that never gets there says nothing: leave its pair out, it is no 0.", _slow_as_zero),
    (_CENSORED + " The pair of a fast run that fails is 0.", _ends(fast=True)),
    (_CENSORED + " The pair of a slow run that fails is left out.", _ends(slow=True)),
)
