"""The checks of lesson 05: idle gaps, whose fault they are, slow steps, and a loop without its six faults."""

import math
import re
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial

import torch

from labkit import device_thread, timeline, trace, workshop
from labkit.checker import Exercise, close
from labkit.checks.faults import Counted, counted
from labkit.checks.idle import BLAME_MISTAKES, GAP_MISTAKES, blame, blame_cases, gap_cases, idle_gaps
from labkit.checks.outliers import (
    SLOW_MISTAKES,
    finds_planted_ones,
    listed,
    named,
    same_steps,
    slow_cases,
    slow_steps,
)
from labkit.compare import fit
from labkit.timing import Timing

FASTER, BAR_STEPS = 3.0, 20
_FEW_STEPS = 22  # two lines of the log, and a step after the second
_LINE = 'f"step {step}: {logits[:8].detach()}"'
_NUMBER = re.compile(r"-?(?<!\d)\d+\.\d*(?:e[+-]\d+)?")  # a long run of digits is looked at once


def fast_loop(dev: object, shelf: workshop.Shelf, n_steps: int, log: list) -> list:
    """The losses of n_steps steps of training, without any of the six faults; `log` gets a line every 20 steps."""
    return workshop.loop(dev, shelf, n_steps, log, faults=())


def _ran(fn: Callable, n_steps: int, seed: int) -> tuple[list[float], list[str]]:
    """The losses and the log, as numbers and text, of a run on a device that is opened and closed."""
    with closing(device_thread.open(fresh=True)) as dev:
        torch.compiler.reset()
        log: list = []
        shelf = workshop.Shelf(batch_size=64 if n_steps < 10 else 16, seed=seed, latency_s=0)
        losses = listed(fn(dev, shelf, n_steps, log), "fast_loop returns the losses in a list")
        return workshop.numbers(losses), [str(line) for line in log]


@cache
def _expected(n_steps: int, seed: int) -> tuple[list[float], list[str]]:
    """`_ran` for the reference."""
    return _ran(fast_loop, n_steps, seed)


def _trained(fn: Callable, n_steps: int, seed: int) -> dict:
    """How `fn` is used: it trains on a device, and gives its losses and the lines of its log."""
    losses, lines = (_expected if fn is fast_loop else partial(_ran, fn))(n_steps, seed)
    return {"losses": losses, "log": lines}


def _kept(got: dict, expected: dict, _n_steps: int, _seed: int) -> dict:
    """The losses, and whether all lines of the log that are needed are there."""
    wanted = expected["log"]
    missing = [needed.split(":")[0] for needed in wanted if not any(_says(line, needed) for line in got["log"])]
    return {"log": f"without the line of {' and '.join(missing)}" if missing else "whole", "losses": got["losses"]}


def _says(line: str, needed: str) -> bool:
    """Whether a line of the log begins as `needed` does and holds the same numbers, apart from rounding."""
    if not line.startswith(needed.split(":")[0] + ":"):
        return False
    mine, right = ([float(each) for each in _NUMBER.findall(text)] for text in (line, needed))
    return len(mine) == len(right) and all(abs(a - b) < 0.01 for a, b in zip(mine, right, strict=True))


def _same_training(got: dict, expected: dict) -> str | None:
    """None where losses agree and no line of the log is missing, otherwise the likely cause."""
    why = close(2e-3, 2e-3, "The repairs change no loss: the same batches, gains and steps in the same order.")
    if cause := why(got["losses"], expected["losses"]):
        return cause
    if got["log"] != expected["log"]:
        return f"The log must keep the line of step 0 and of every twentieth step after it, word for word: {_LINE}."
    return None


@cache
def _usual() -> Counted:
    """What is counted in a run without faults: of the course's own loop, which is no secret, beside the learner's."""
    with closing(device_thread.open(fresh=True)) as dev:
        return counted(workshop.loop, dev, n_steps=_FEW_STEPS)


def _six_repairs(fn: Callable) -> str | None:
    """Counts what each fault leaves behind, and names those that are still there."""
    with closing(device_thread.open(fresh=True)) as dev:
        left = counted(fn, dev, n_steps=_FEW_STEPS).faults(_usual())
    if not left:
        return None
    return f"Of the six faults {len(left)} can still be counted. {' '.join(left)}"


def _three_times_faster(fn: Callable) -> str | None:
    """Times the loop with all six faults and fn in turns, here and now, until they can be told apart."""
    times = faster(partial(workshop.loop, faults=workshop.FAULTS), fn)
    return None if times >= FASTER else _too_slow(times)


def _too_slow(times: float) -> str:
    """What to say of a loop that is only so many times as fast."""
    shown = math.floor(100 * times) / 100  # never 3.00 where 3 was missed
    return f"It is {shown:.2f} times as fast as the loop with six faults, timed in turns; {FASTER:g} is asked for."


def faster(slow: workshop.Loop, fast: workshop.Loop) -> float:
    """How many times longer `slow` takes than `fast`, each at its quickest of two rounds, in turns.

    The quickest, for what other programs take from a run only ever adds to it. Where the two come close to the bar,
    for the same reason, up to twelve rounds.
    """
    shelf, quickest = workshop.Shelf(seed=1), [math.inf, math.inf]
    with closing(device_thread.open(fresh=True)) as dev:
        for n_rounds in (2, 2, 2, 6):
            for _ in range(n_rounds):
                done = [workshop.timed(run, dev, shelf=shelf, n_steps=BAR_STEPS) for run in (slow, fast)]
                quickest = [min(best, each.seconds) for best, each in zip(quickest, done, strict=True)]
            times = quickest[0] / quickest[1]
            if not 0.6 * FASTER < times < FASTER:
                break
    return times


class _Stocked(workshop.Shelf):
    """A shelf with batches that were packed elsewhere."""

    def __init__(self, stock: list[workshop.Packed]) -> None:
        super().__init__()
        self._stock = stock

    def _stored(self, step: int) -> workshop.Packed:
        return self._stock[step % len(self._stock)]


def _stock(seed: int) -> tuple[list[workshop.Packed]]:
    """Packed batches for one run that a grader times."""
    return ([workshop.packed(64, seed, step) for step in range(BAR_STEPS)],)


@cache
def _bench() -> object:
    """The device that such runs share."""
    return device_thread.open(fresh=True)


def _ready(fn: Callable, stock: list[workshop.Packed]) -> None:
    """Begin as every run does: with nothing compiled, and one step done."""
    torch.compiler.reset()
    fn(_bench(), _Stocked(stock), 1, [])
    _bench().synchronize()


def _losses(fn: Callable, stock: list[workshop.Packed]) -> list[float]:
    """The losses of a run; all is done when it returns."""
    losses = fn(_bench(), _Stocked(stock), BAR_STEPS, [])
    _bench().synchronize()
    return workshop.numbers(listed(losses, "fast_loop returns the losses in a list"))


_OTHER_RUN = "In the run that is timed its losses are others than those of the loop with six faults."
_NOT_FASTER = f"It is not {FASTER:g} times as fast as the loop with six faults, timed in turns."


def _same_losses(got: object, expected: list[float]) -> str | None:
    """Says so where a run that is timed has other losses than that of the slow loop."""
    return _OTHER_RUN if close(2e-3, 2e-3)(fit(got, expected), expected) is not None else None


EXERCISES = (
    Exercise(
        number="5.1",
        name="idle_gaps",
        cases=gap_cases,
        reference=idle_gaps,
        compare=close(1e-9, 1e-9, "A gap runs from the latest end so far to the next start, within the window."),
        mistakes=GAP_MISTAKES,
        library=(timeline.gaps, timeline.complement),
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
        cases=slow_cases,
        reference=slow_steps,
        compare=same_steps,
        drive=named,
        mechanism=finds_planted_ones,
        mistakes=SLOW_MISTAKES,
        library=(trace.slow_steps,),
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
        compare=_same_training,
        drive=_trained,
        find=_kept,
        mechanism=_six_repairs,
        bar=_three_times_faster,
        timing=Timing(
            inputs=_stock,
            ready=_ready,
            run=_losses,
            baseline=partial(workshop.loop, faults=workshop.FAULTS),
            fault=_same_losses,
            asked=FASTER,
            slow=_NOT_FASTER,
            says=(_OTHER_RUN,),
        ),
        library=(workshop.loop,),
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
