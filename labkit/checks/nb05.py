"""The checks of lesson 05: idle gaps, whose fault they are, slow steps, and a loop without its six faults."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial

import torch

from labkit import device_thread, workshop
from labkit.checker import Exercise, close, exact
from labkit.checks.faults import Counted, counted
from labkit.checks.idle import BLAME_MISTAKES, GAP_MISTAKES, blame, blame_cases, gap_cases, idle_gaps
from labkit.describe import kind_of

# ---- 5.3: slow steps ------------------------------------------------------------------------------------------------

SIGMAS, LEAST = 5.0, 1.25
N_SEEDS, PLANTED, N_STEPS = 50, (1, 3, 10), 500
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

    The noise is lognormal, of 2 to 8 per cent. Slow steps take 1.5 times as long or more, some of them ten times.
    """
    usual = 10 ** (-3 + 3 * torch.rand((), generator=rng).item())
    noise = 0.02 + 0.06 * torch.rand((), generator=rng).item()
    factors = torch.exp(noise * torch.randn(n_steps, generator=rng))
    slow = torch.randperm(n_steps, generator=rng)[:n_slow]
    factors[slow] *= 1.5 * 10 ** (0.8 * torch.rand(n_slow, generator=rng) ** 2)
    return (usual * factors).tolist(), sorted(slow.tolist())


def recall_and_precision(fn: Callable, n_seeds: int = N_SEEDS) -> tuple[float, float]:
    """The share of planted slow steps that fn finds, and the share of what it finds that was planted.

    Over n_seeds runs of 500 steps, each with 1, 3 and 10 slow ones.
    """
    found = right = planted = 0
    for seed in range(n_seeds):
        for n_slow in PLANTED:
            seconds, slow = planted_run(torch.Generator().manual_seed(100 * seed + n_slow), n_slow)
            said = {int(step) for step in fn(seconds)}
            found, right, planted = found + len(said), right + len(said & set(slow)), planted + n_slow
    return right / planted, right / found if found else 0.0


def _slow_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One slow step; several, large ones hiding small ones; equal steps; seconds and milliseconds; no slow step."""
    even = [0.010, 0.011, 0.010, 0.009, 0.010, 0.011, 0.009, 0.010, 0.010, 0.011]
    shuffled = [even[i % 10] for i in torch.randperm(40, generator=rng).tolist()]
    three = [*shuffled[:10], 0.019, *shuffled[10:20], 0.9, *shuffled[20:30], 0.02, *shuffled[30:]]
    ticks = [0.01] * 15 + [0.0101] + [0.01] * 4 + [0.02]
    listed = [[*even, 0.03, *even], three, ticks, [1000 * each for each in three], shuffled, [0.5, *even]]
    return [(each,) for each in listed]


def _named(fn: Callable, seconds: list[float]) -> str:
    """How `fn` is used: the steps that it gives, as text, so that a known mistake is known whatever its length."""
    found = fn(seconds)
    if isinstance(found, (str, dict)) or not hasattr(found, "__iter__"):
        raise TypeError(f"slow_steps returns a list of step numbers, not {kind_of(found)}")
    return f"steps {', '.join(str(int(step)) for step in found) or 'none'}"


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


def _both_sides(seconds: Sequence[float]) -> list[int]:
    """Quick steps too."""
    usual = statistics.median(seconds)
    return [step for step, each in enumerate(seconds) if abs(each - usual) > 3 * statistics.pstdev(seconds)]


_SLOW_MISTAKES = (
    ("A large outlier moves mean and standard deviation so far that small ones hide behind it: take the median and "
     "the median of the distances from it.", _mean_and_sigma),
    ("Where most steps are equal, their spread is 0 and any difference stands out: a slow step also takes a quarter "
     "longer than usual, at least.", _no_least),
    ("One large outlier moves the mean: take the median.", _times_the_mean),
    ("A large outlier moves the standard deviation: take the median distance.", _both_sides),
)  # fmt: skip


def _finds_planted_ones(fn: Callable) -> str | None:
    """Says so where fn misses planted slow steps, or takes noise for them."""
    recall, precision = recall_and_precision(fn)
    if recall >= WANTED and precision >= WANTED:
        return None
    shown = f"recall {math.floor(100 * recall) / 100:.2f}, precision {math.floor(100 * precision) / 100:.2f}"
    likely = "Noise is taken for slowness: how far do the ordinary steps of this run scatter?"
    if recall < WANTED:
        likely = "Slow steps are missed: does a large one, or a limit made for another run, hide small ones?"
    return f"Over {len(PLANTED) * N_SEEDS} runs of {N_STEPS} steps: {shown}; {WANTED} of each is asked for. {likely}"


# ---- 5.4: the loop --------------------------------------------------------------------------------------------------

FASTER, BAR_STEPS = 3.0, 30
_FEW_STEPS = 21  # two lines of the log


def fast_loop(dev: object, shelf: workshop.Shelf, n_steps: int, log: list) -> list:
    """The losses of n_steps steps of training, without any of the six faults; `log` gets a line every 20 steps."""
    return workshop.loop(dev, shelf, n_steps, log, faults=())


def _trained(fn: Callable, n_steps: int, seed: int) -> dict:
    """How `fn` is used: it trains on a device, and its losses and the needed lines of its log are looked at."""
    with closing(device_thread.open()) as dev:
        torch.compiler.reset()
        log: list = []
        losses = [float(loss) for loss in fn(dev, workshop.Shelf(seed=seed, latency_s=0), n_steps, log)]
    lines = [str(line) for line in log]
    needed = range(0, n_steps, workshop.EVERY)
    missing = [n for n in needed if not any(re.match(rf"step {n}: .*\d", line) for line in lines)]
    return {"losses": losses, "steps whose line is missing from the log": missing}


@cache
def _usual() -> Counted:
    """What is counted in a run without faults."""
    with closing(device_thread.open()) as dev:
        return counted(fast_loop, dev, n_steps=_FEW_STEPS)


def _six_repairs(fn: Callable) -> str | None:
    """Counts what each fault leaves behind, and names those that are still there."""
    with closing(device_thread.open()) as dev:
        left = counted(fn, dev, n_steps=_FEW_STEPS).faults(_usual())
    if not left:
        return None
    return f"Of the six faults {len(left)} can still be counted. {' '.join(left)}"


def _three_times_faster(fn: Callable) -> str | None:
    """Times the loop with all six faults and fn in turns, here and now, until they can be told apart."""
    times = faster(partial(workshop.loop, faults=workshop.FAULTS), fn)
    if times >= FASTER:
        return None
    shown = math.floor(100 * times) / 100  # never 3.00 where 3 was missed
    return f"It is {shown:.2f} times as fast as the loop with six faults, timed in turns; {FASTER:g} is asked for."


def faster(slow: workshop.Loop, fast: workshop.Loop) -> float:
    """How many times longer `slow` takes than `fast`, each at its quickest of three rounds, in turns.

    The quickest, for what other programs take from a run only ever adds to it. Where the two come close to the bar,
    for the same reason, up to twelve rounds.
    """
    shelf, quickest = workshop.Shelf(seed=1), [math.inf, math.inf]
    with closing(device_thread.open()) as dev:
        for n_rounds in (3, 3, 6):
            for _ in range(n_rounds):
                done = [workshop.timed(run, dev, shelf=shelf, n_steps=BAR_STEPS) for run in (slow, fast)]
                quickest = [min(best, each.seconds) for best, each in zip(quickest, done, strict=True)]
            times = quickest[0] / quickest[1]
            if not 0.6 * FASTER < times < FASTER:
                break
    return times


EXERCISES = (
    Exercise(
        number="5.1",
        name="idle_gaps",
        cases=gap_cases,
        reference=idle_gaps,
        compare=close(1e-9, 1e-9, "A gap runs from the latest end so far to the next start, within the window."),
        mistakes=GAP_MISTAKES,
        points=3,
        hints=(
            "A gap where something runs: keep the latest end so far, and not the end of the last operation.",
            "Sort by start. Begin with free_from = start_s. One that starts later than free_from leaves a gap; "
            "then free_from = max(free_from, its end).",
            "After the loop, the time from free_from to end_s is a gap too, if there is any.",
        ),
    ),
    Exercise(
        number="5.2",
        name="blame",
        cases=blame_cases,
        reference=blame,
        compare=close(1e-9, 1e-9, "For each gap and each span of the host, add the seconds that they share."),
        mistakes=BLAME_MISTAKES,
        points=3,
        hints=(
            "Too much: two stretches share min(ends) - max(starts) seconds, where that is more than 0.",
            "What is left of a gap, once all shares are taken away, belongs to 'other'.",
            "seconds[name] = seconds.get(name, 0.0) + shared adds to a name that may not be there yet.",
        ),
    ),
    Exercise(
        number="5.3",
        name="slow_steps",
        cases=_slow_cases,
        reference=slow_steps,
        compare=exact,
        drive=_named,
        mechanism=_finds_planted_ones,
        mistakes=_SLOW_MISTAKES,
        points=4,
        hints=(
            "Small outliers are missed beside a large one: the median is not moved by it, mean and spread are.",
            "statistics.median of the distances from the median, times 1.4826, is the spread of the ordinary steps.",
            "The limit is the larger of two: the median plus five spreads, and 1.25 times the median.",
        ),
    ),
    Exercise(
        number="5.4",
        name="fast_loop",
        cases=lambda rng: [(2, 0), (_FEW_STEPS, int(torch.randint(1, 100, (), generator=rng)))],
        reference=fast_loop,
        compare=close(2e-3, 2e-3, "The repairs change no loss: the same batches, gains and steps in the same order."),
        drive=_trained,
        mechanism=_six_repairs,
        bar=_three_times_faster,
        points=6,
        hints=(
            "Copy slow_loop and change a line at a time; labkit.sync.watch() around a run lists the lines that wait.",
            "shelf.ahead(n_steps) gives the batches, read by other threads. dev.put(x, non_blocking=True) does not "
            "wait. torch.compile(..., dynamic=True) compiles once for all sizes.",
            "pictures * gains.view(-1, 1, 1, 1) is one operation. Keep loss.detach(), and turn all losses into numbers "
            "after the last step. `if step % 20 == 0:` before the line of the log.",
        ),
    ),
)
