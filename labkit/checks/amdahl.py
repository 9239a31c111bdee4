"""Exercise 21.2: how many times faster a run is as a whole, when each of its parts has become faster by itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean, harmonic_mean, mean

import torch

Parts = Mapping[str, float]


def times_faster(seconds: Parts, factors: Parts, epochs_before: int, epochs_after: int) -> float:
    """Time of the run before, by that after: parts that no factor names stay as they are, math.inf takes one away.

    Source: Amdahl, Validity of the Single Processor Approach, AFIPS 1967.
    """
    after_s = sum(part_s / factors.get(part, 1.0) for part, part_s in seconds.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after_s)


_LESSON = {"pictures": 6.0, "network": 3.0, "validation": 2.0}


def faster_cases(rng: torch.Generator) -> Sequence[tuple]:
    """By hand: all epochs kept; fewer; one part; none; one gone; one slower; then drawn."""
    by_hand = [
        (dict(_LESSON), {"pictures": 5.0, "network": 2.0}, 10, 10),
        (dict(_LESSON), {"pictures": 5.0, "network": 2.0}, 12, 9),
        (dict(_LESSON), {"validation": 8.0}, 10, 10),
        (dict(_LESSON), {}, 12, 4),
        (dict(_LESSON), {"pictures": math.inf, "network": 1.5}, 10, 10),
        (dict(_LESSON), {"pictures": math.inf, "validation": 0.5}, 8, 11),
    ]
    return by_hand + [_drawn(rng, n) for n in (1, 2, 3, 4, 5, 6, 6, 6)]


def _drawn(rng: torch.Generator, n: int) -> tuple:
    """A run of n parts, the first of which is never gone."""
    shares, kinds, draws = torch.rand(3, n, generator=rng).tolist()
    seconds = {f"part {i}": round(0.2 + 20 * share**2, 2) for i, share in enumerate(shares, 1)}
    factors = {part: round(0.5 * 40**draw, 2) for part, draw in zip(seconds, draws, strict=True)}
    named = {part: factors[part] for part, kind in zip(seconds, kinds, strict=True) if kind < 0.75}
    gone = {part: math.inf for part, kind in zip(list(seconds)[1:], kinds[1:], strict=True) if kind < 0.15}
    epochs = torch.randint(2, 30, (2,), generator=rng).tolist()
    return seconds, named | gone, *epochs


def _by(ratio: Callable[[Parts, Parts], float]) -> Callable:
    """`times_faster` with another ratio of an epoch's seconds; asked with a factor for each part."""

    def mistaken(seconds: Parts, factors: Parts, epochs_before: int, epochs_after: int) -> float:
        every = {part: factors.get(part, 1.0) for part in seconds}
        return epochs_before / epochs_after * ratio(seconds, every)

    return mistaken


def _among_named(ratio: Callable[[Parts, Parts], float]) -> Callable:
    """`times_faster` as if there were no parts beside those that have a factor."""

    def mistaken(seconds: Parts, factors: Parts, epochs_before: int, epochs_after: int) -> float:
        named = {part: part_s for part, part_s in seconds.items() if part in factors}
        return epochs_before / epochs_after * ratio(named, factors)

    return mistaken


def _remaining(seconds: Parts, factors: Parts) -> float:
    """Seconds of an epoch after."""
    return sum(part_s / factors[part] for part, part_s in seconds.items())


def _ratio(seconds: Parts, factors: Parts) -> float:
    """The right ratio of an epoch's seconds."""
    return sum(seconds.values()) / _remaining(seconds, factors)


def _weighed(seconds: Parts, factors: Parts) -> float:
    """The mean of factors, by the seconds before."""
    return sum(part_s * factors[part] for part, part_s in seconds.items()) / sum(seconds.values())


def _each_alone(seconds: Parts, factors: Parts) -> float:
    """The product of what each part's factor would give alone."""
    total_s = sum(seconds.values())
    return math.prod(total_s / (total_s - part_s + part_s / factors[part]) for part, part_s in seconds.items())


def _after_of_named(seconds: Parts, factors: Parts, epochs_before: int, epochs_after: int) -> float:
    """Parts without a factor counted before, not after."""
    after_s = sum(seconds[part] / factor for part, factor in factors.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after_s)


def _gone_before(seconds: Parts, factors: Parts) -> float:
    """Parts that are gone left out of both sums."""
    return _ratio({part: part_s for part, part_s in seconds.items() if factors[part] < math.inf}, factors)


def _gone_stays(seconds: Parts, factors: Parts) -> float:
    """Parts that are gone taken as unchanged."""
    return _ratio(seconds, {part: factor if factor < math.inf else 1.0 for part, factor in factors.items()})


def _one_denominator(seconds: Parts, factors: Parts) -> float:
    """The right fraction, with one denominator for all."""
    product = math.prod(factors.values())
    return sum(seconds.values()) * product / sum(part_s * product / factors[part] for part, part_s in seconds.items())


_MEAN = "A mean of factors knows nothing of how long each part takes: add up seconds, then divide."
_WEIGHED = "Weighed by the seconds before, a part counts most where least of it is left: add up seconds / factor."
_PRODUCT = "Factors do not multiply: while one part runs, the others do not. Add up the seconds that are left of each."
_UNNAMED = "A part without a factor still takes its time, before and after: factors.get(part, 1)."
_RATIO = "These are seconds: divide those of the run before by those of the run after."
FASTER_MISTAKES = (
    (_MEAN, _among_named(lambda _, factors: mean(factors.values()))),
    (_MEAN, _by(lambda _, factors: mean(factors.values()))),
    (_MEAN, _among_named(lambda _, factors: geometric_mean(factors.values()))),
    (_MEAN, _by(lambda _, factors: geometric_mean(factors.values()))),
    ("A harmonic mean, but each part must weigh as many as its seconds.",)
    + (_by(lambda _, factors: harmonic_mean(list(factors.values()))),),
    ("A harmonic mean, but each part must weigh as many as its seconds, those without a factor too.",)
    + (_among_named(lambda _, factors: harmonic_mean(list(factors.values()))),),
    (_WEIGHED, _by(_weighed)),
    (_WEIGHED, _among_named(_weighed)),
    (_PRODUCT, _by(lambda _, factors: math.prod(factors.values()))),
    (_PRODUCT, _by(_each_alone)),
    (_UNNAMED, _among_named(_ratio)),
    (_UNNAMED, _after_of_named),
    ("Four times faster is a quarter of the seconds: divide by the factor.",)
    + (_by(lambda seconds, factors: sum(seconds.values()) / sum(s * factors[part] for part, s in seconds.items())),),
    ("A part that is gone took its time before: leave it out of the sum after only.", _by(_gone_before)),
    ("math.inf: the part is gone, and takes no time. Here it runs on as before.", _by(_gone_stays)),
    ("inf / inf is NaN: divide each part's seconds by its factor, seconds / math.inf is 0.", _by(_one_denominator)),
    ("The epochs are missing: a run's time is that of an epoch, so many times.",)
    + (lambda s, f, before, _: times_faster(s, f, before, before),),
    ("The epochs are upside down: those before belong to the run before.",)
    + (lambda s, f, before, after: times_faster(s, f, after, before),),
    ("Turned round: the time before, divided by the time after.", lambda *given: 1 / times_faster(*given)),
    (_RATIO, lambda s, f, before, after: before * sum(s.values()) / times_faster(s, f, before, after)),
    (_RATIO, lambda s, f, before, after: before * sum(s.values()) * (1 - 1 / times_faster(s, f, before, after))),
)
