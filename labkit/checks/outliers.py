"""Exercise 5.3: the steps of a run that are slow, and runs in which some were made so."""

import math
import re
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch

from labkit.describe import kind_of

SIGMAS, LEAST = 5.0, 1.25
N_SEEDS, PLANTED, N_STEPS = 25, (0, 1, 3, 10), 500
WANTED = 0.95


def slow_steps(seconds: Sequence[float]) -> list[int]:
    """The steps that took LEAST times the median or more, and SIGMAS robust standard deviations more than it.

    1.4826 times the median absolute deviation is the standard deviation of normal noise, and outliers do not move it.
    Source: Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, J. Am. Stat. Assoc. 88 (1993).
    """
    usual = statistics.median(seconds)
    noise = 1.4826 * statistics.median(abs(each - usual) for each in seconds)
    limit = max(usual + SIGMAS * noise, LEAST * usual)
    return [step for step, each in enumerate(seconds) if each >= limit]


def planted_run(rng: torch.Generator, n_slow: int, n_steps: int = N_STEPS) -> tuple[list[float], list[int]]:
    """Seconds of n_steps noisy steps of some typical length, and which n_slow of them were made slow.

    The noise is normal, of 2 to 8 per cent, and in one run of three, by chance, of 15 to 20. Slow steps take 1.5 times
    as long or more, in such a run 2.5 times or more, some of them ten times.
    """
    usual = 10 ** (-3 + 3 * torch.rand((), generator=rng).item())
    noise = 0.02 + 0.06 * torch.rand((), generator=rng).item()
    if torch.rand((), generator=rng) < 1 / 3:
        noise = 0.15 + 0.05 * torch.rand((), generator=rng).item()
    factors = (1 + noise * torch.randn(n_steps, generator=rng)).clamp(min=0.1)
    slow = torch.randperm(n_steps, generator=rng)[:n_slow]
    least = 1.5 if noise < 0.1 else 1 + 10 * noise
    factors[slow] *= least * 10 ** (0.8 * torch.rand(n_slow, generator=rng) ** 2)
    return (usual * factors).tolist(), sorted(slow.tolist())


def recall_and_precision(fn: Callable, n_seeds: int = N_SEEDS) -> tuple[float, float]:
    """The share of planted slow steps that fn finds, and the share of what it finds that was planted.

    Over n_seeds runs of 500 steps each with none, 1, 3 and 10 slow ones.
    """
    found = right = planted = 0
    for seed in range(n_seeds):
        for n_slow in PLANTED:
            seconds, slow = planted_run(torch.Generator().manual_seed(100 * seed + n_slow), n_slow)
            said = {int(step) for step in fn(seconds)}
            found, right, planted = found + len(said), right + len(said & set(slow)), planted + n_slow
    return right / planted, right / found if found else 0.0


def slow_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One slow step; several, large ones hiding small ones; equal steps; seconds and milliseconds; none, and noise."""
    even = [0.010, 0.011, 0.010, 0.009, 0.010, 0.011, 0.009, 0.010, 0.010, 0.011]
    shuffled = [even[i % 10] for i in torch.randperm(40, generator=rng).tolist()]
    three = [*shuffled[:10], 0.019, *shuffled[10:20], 0.9, *shuffled[20:30], 0.02, *shuffled[30:]]
    ticks = [0.01] * 15 + [0.0101] + [0.01] * 4 + [0.02]
    noisy = [0.07 + 0.0016 * i for i in torch.randperm(40, generator=rng).tolist()]
    listed = [[*even, 0.03, *even], three, ticks, [1000 * each for each in three], shuffled, [0.5, *even], noisy]
    return [(each,) for each in listed]


def listed(found: object, what: str) -> list:
    """What a learner's function returned, as a list; TypeError, saying what it returns instead of what."""
    if found is None:
        raise TypeError(f"nothing returned (None): is the `return` missing? {what}")
    if isinstance(found, (str, dict)) or not hasattr(found, "__iter__"):
        raise TypeError(f"{what}, not {kind_of(found)}")
    return list(found)


def named(fn: Callable, seconds: list[float]) -> str:
    """How `fn` is used: the steps that it gives, as text, so that a known mistake is known whatever its length."""
    what = "slow_steps returns the numbers of the slow steps, such as [3, 7]"
    steps = listed(fn(seconds), what)
    if any(isinstance(step, (bool, np.bool_)) for step in steps):
        raise TypeError(f"{what}, not a True or False for each step")
    if any(float(step) != int(step) for step in steps):
        raise TypeError(f"{what}, not their seconds, such as {float(steps[0]):g}")
    return f"steps {', '.join(str(int(step)) for step in steps) or 'none'}"


def same_steps(got: str, expected: str) -> str | None:
    """None where both name the same steps in order, otherwise what is missed, or too much, or out of order."""
    mine, right = ([int(step) for step in re.findall(r"\d+", text)] for text in (got, expected))
    missed, extra = ([str(step) for step in one if step not in other] for one, other in ((right, mine), (mine, right)))
    said = []
    if missed:
        said.append(f"Missed: step {', '.join(missed[:3])}. It takes a quarter longer than the median, and stands out.")
    if extra:
        said.append(
            f"Not slow: step {', '.join(extra[:3])}. Less than a quarter longer than usual, or within the noise."
        )
    if mine != right and not said:
        said.append("The steps are right; they belong in order, each once.")
    return " ".join(said) or None


def _mean_and_sigma(seconds: Sequence[float]) -> list[int]:
    """Mean and three standard deviations."""
    limit = statistics.mean(seconds) + 3 * statistics.pstdev(seconds)
    return [step for step, each in enumerate(seconds) if each > limit]


def _no_least(seconds: Sequence[float]) -> list[int]:
    """The robust rule without a least ratio."""
    usual = statistics.median(seconds)
    noise = 1.4826 * statistics.median(abs(each - usual) for each in seconds)
    return [step for step, each in enumerate(seconds) if each > usual + SIGMAS * noise]


def _times_the_mean(seconds: Sequence[float]) -> list[int]:
    """Half as long again as the mean."""
    limit = 1.5 * statistics.mean(seconds)
    return [step for step, each in enumerate(seconds) if each > limit]


def _a_quarter_more(seconds: Sequence[float]) -> list[int]:
    """A quarter longer than the median, whatever the noise."""
    limit = LEAST * statistics.median(seconds)
    return [step for step, each in enumerate(seconds) if each >= limit]


def _both_sides(seconds: Sequence[float]) -> list[int]:
    """Quick steps too."""
    usual = statistics.median(seconds)
    return [step for step, each in enumerate(seconds) if abs(each - usual) > 3 * statistics.pstdev(seconds)]


SLOW_MISTAKES = (
    ("A large outlier moves mean and standard deviation so far that small ones hide behind it: take the median and "
     "the median of the distances from it.", _mean_and_sigma),
    ("Where most steps are equal, their spread is 0 and any difference stands out: a slow step also takes a quarter "
     "longer than usual, at least.", _no_least),
    ("The noise of this run is wider than a quarter: a slow step stands out from it, too.", _a_quarter_more),
    ("One large outlier moves the mean: take the median.", _times_the_mean),
    ("A large outlier moves the standard deviation: take the median distance.", _both_sides),
)  # fmt: skip


def finds_planted_ones(fn: Callable) -> str | None:
    """Says so where fn misses planted slow steps, or takes noise for them."""
    recall, precision = recall_and_precision(fn)
    if recall >= WANTED and precision >= WANTED:
        return None
    shown = f"recall {math.floor(100 * recall) / 100:.2f}, precision {math.floor(100 * precision) / 100:.2f}"
    likely = "Noise is taken for slowness: how far do the ordinary steps of this run scatter?"
    if recall < WANTED:
        likely = "Slow steps are missed: does a large one, or a limit made for another run, hide small ones?"
    return f"Over {len(PLANTED) * N_SEEDS} runs of {N_STEPS} steps: {shown}; {WANTED} of each is asked for. {likely}"
