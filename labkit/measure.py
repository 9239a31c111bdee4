"""How long a function takes on this machine, told so that two functions can be compared.

The rules: warm up; wait for the device before the clock starts and before it stops; loop over what is too short for the
clock; take many samples, in turns; give the median and the interquartile range; say what cannot be told apart.
Sources: Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems, SC 2015 (medians, nonparametric
intervals, interference); PyTorch, torch.utils.benchmark (warm-up, synchronisation, inner loops).
"""

import gc
import math
import statistics
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

import torch

from labkit import hardware
from labkit.show import show, varying_html, varying_text
from labkit.units import format_s

FEWEST_REPEATS = 5
MOST_CALLS = 10_000_000  # in one sample: a clock that stands still must not loop for ever
CONFIDENCE = 0.99
# The place of code and data in memory alone moves times by some per cent, the same way in every round, so no number of
# rounds shows it (Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong, ASPLOS 2009).
SMALLEST_DIFFERENCE = 0.03
_LAZY = (types.GeneratorType, types.CoroutineType, map, filter, zip)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times longer `slow` takes than `fast`: the median over rounds, and an interval that holds it.

    decided: the whole interval lies more than 3 % to one side of 1. Ignores that neighbouring rounds are alike.
    """

    value: float
    low: float
    high: float
    decided: bool

    def at_least(self, bound: float) -> bool | None:
        """Whether the ratio reaches `bound`: True or False when the whole interval says so, else None."""
        if self.low >= bound:
            return True
        return False if self.high < bound else None

    def __str__(self) -> str:
        interval = f"{_times(self.low)} to {_times(self.high)}"
        return f"{_times(self.value)} ({interval})" if self.decided else f"cannot be told apart ({interval})"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What `bench` measured: each candidate's samples in seconds a call, round by round, and the calls in a sample."""

    seconds: Mapping[str, tuple[float, ...]]
    calls: Mapping[str, int]
    device: str

    @property
    def median_s(self) -> dict[str, float]:
        """Median seconds of one call, per candidate."""
        return {name: statistics.median(samples) for name, samples in self.seconds.items()}

    @property
    def iqr_s(self) -> dict[str, float]:
        """Interquartile range in seconds, per candidate: the width of the middle half of its samples."""
        ends = {name: quartiles(samples) for name, samples in self.seconds.items()}
        return {name: high - low for name, (low, _, high) in ends.items()}

    def ratio(self, slow: str, fast: str) -> Ratio:
        """How many times longer `slow` takes than `fast`, compared round by round so that a drift touches both alike.

        The interval is between two order statistics of the per-round ratios and holds their median with 99 % confidence
        (with fewer than 8 repeats, with what the smallest and the largest give), whatever their distribution.
        KeyError: an unknown name. Source: Conover, Practical Nonparametric Statistics, 3rd ed. (1999), section 3.2.
        """
        for name in (slow, fast):
            if name not in self.seconds:
                raise KeyError(f"no candidate {name!r}; there are: {', '.join(self.seconds)}")
        ratios = sorted(a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True))
        rank = _lower_rank(len(ratios), CONFIDENCE)
        low, high = ratios[rank - 1], ratios[-rank]
        decided = low > 1 + SMALLEST_DIFFERENCE or high < 1 / (1 + SMALLEST_DIFFERENCE)
        return Ratio(value=statistics.median(ratios), low=low, high=high, decided=decided)

    def show(self) -> None:
        """Show the table, marked as figures that may differ from run to run."""
        show(varying_text(str(self)), self._repr_html_())

    def _rows(self) -> list[tuple[str, ...]]:
        """Per candidate: name, median, interquartile range, times the fastest, samples."""
        medians, spreads = self.median_s, self.iqr_s
        fastest = min(medians, key=medians.__getitem__)
        return [
            (
                name,
                format_s(medians[name]),
                format_s(spreads[name]),
                "" if len(medians) == 1 else "fastest" if name == fastest else _against(self.ratio(name, fastest)),
                f"{len(samples)} x {self.calls[name]}",
            )
            for name, samples in self.seconds.items()
        ]

    def __str__(self) -> str:
        table = [_HEADINGS, *self._rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(_HEADINGS))]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td>'
            + "".join(f"<td>{varying_html(figure)}</td>" for figure in figures)
            + "</tr>"
            for name, *figures in self._rows()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


_HEADINGS = ("candidate", "median", "IQR", "takes", "samples x calls")


def _times(value: float) -> str:
    """`1.04x`, `12.3x`, `1250x`: three significant digits, never an exponent."""
    return f"{value:.0f}x" if value >= 100 else f"{value:.3g}x"


def _against(ratio: Ratio) -> str:
    """One cell of the table: `12.3x`, or that there is nothing to tell."""
    return _times(ratio.value) if ratio.decided else "cannot be told apart"


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile, interpolated as NumPy does (Hyndman and Fan's type 7)."""
    return tuple(statistics.quantiles(samples, n=4, method="inclusive"))


def _lower_rank(n: int, confidence: float) -> int:
    """The largest k for which the k-th smallest and k-th largest of n samples enclose the median so surely; 1 at least.

    Each sample lies below the median with probability 1/2, so the count below it is binomial.
    """
    rank, tail = 1, 0.5**n
    while rank < (n + 1) // 2:
        tail += math.comb(n, rank) * 0.5**n
        if 2 * tail > 1 - confidence:
            break
        rank += 1
    return rank


def synchronize(device: object) -> None:
    """Wait until the device has finished all work given to it; at once on a CPU.

    device: a torch device, its name, or anything that has a synchronize() of its own.
    """
    if hasattr(device, "synchronize"):
        device.synchronize()
        return
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind != "cpu":
        torch.accelerator.synchronize()


def peak_memory_bytes(fn: Callable[[], object]) -> int:
    """Bytes of GPU memory that `fn` needed at its peak, beyond what was held before. RuntimeError without a CUDA GPU.

    Counts what torch's allocator hands out; ignores the CUDA context and what libraries allocate on their own.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("peak_memory_bytes needs a CUDA GPU: torch keeps no such count on a CPU")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def bench(
    candidates: object,  # a mapping from name to function; object, for the message about anything else is ours
    *,
    repeats: int = 20,
    warmup: int = 3,
    device: object = None,
    min_time_s: float = 1e-3,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Bench:
    """Seconds that each candidate takes, sampled in rounds: every round samples every candidate, each in turn first.

    A candidate shorter than min_time_s is called many times a sample, the loop's own 20 to 50 ns a call included.
    Garbage is collected before, not during. device: as for `synchronize`, by default the one that lessons run on; on a
    GPU, CUDA events time the current stream. clock: nanoseconds, for tests. ValueError: no candidates, one that is no
    function, a GPU that is not there, under 5 repeats, no warm-up. RuntimeError: one raised or returned a generator.
    """
    device = hardware.device() if device is None else device
    _refuse(candidates, repeats, warmup, device)
    sample_s = _sampler(device, clock)
    names, calls = list(candidates), {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with _without_collection():
        for name in names:
            with _blaming(name):
                calls[name] = _calls_needed(candidates[name], sample_s, warmup, min_time_s)
        for turn in range(repeats):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                with _blaming(name):
                    seconds[name].append(sample_s(candidates[name], calls[name]) / calls[name])
    if still := [name for name in names if not all(seconds[name])]:
        raise RuntimeError(f"the clock stood still while candidate {still[0]!r} ran: there is nothing to compare")
    samples = {name: tuple(values) for name, values in seconds.items()}
    return Bench(seconds=samples, calls=calls, device=str(device))


def _refuse(candidates: object, repeats: int, warmup: int, device: object) -> None:
    """ValueError, with a sentence, for what cannot be measured well."""
    if not (isinstance(candidates, Mapping) and candidates and all(isinstance(name, str) for name in candidates)):
        raise ValueError("bench needs at least one candidate, each with its name: bench({'name': function})")
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"torch can use no GPU here, so nothing can be timed on {str(device)!r}")
    for name, fn in candidates.items():
        if not callable(fn):
            raise ValueError(f"candidate {name!r} is a {type(fn).__name__}, not a function: put 'lambda: ' before it")
    if repeats < FEWEST_REPEATS:
        raise ValueError(f"{repeats} repeats show no spread: take {FEWEST_REPEATS} or more")
    if warmup < 1:
        raise ValueError("the first call is never like the others: take a warm-up of 1 or more")


def _sampler(device: object, clock: Callable[[], int]) -> Callable[[Callable[[], object], int], float]:
    """A function (fn, calls) -> seconds for that many calls of fn, the device idle before and after."""

    def by_clock_s(fn: Callable[[], object], calls: int) -> float:
        synchronize(device)
        start = clock()
        for _ in range(calls):
            fn()
        synchronize(device)
        return (clock() - start) * 1e-9

    def by_events_s(fn: Callable[[], object], calls: int) -> float:
        with torch.cuda.device(device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                fn()
            end.record()
            torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3

    own = hasattr(device, "synchronize") or clock is not time.perf_counter_ns
    return by_clock_s if own or torch.device(device).type != "cuda" else by_events_s


def _calls_needed(fn: Callable[[], object], sample_s: Callable, warmup: int, min_time_s: float) -> int:
    """Warm `fn` up, then the calls that make one sample last min_time_s; the fastest of several outlives a hiccup."""
    result = fn()
    if isinstance(result, _LAZY):
        raise TypeError(f"it returns a {type(result).__name__}, so nothing has run yet when it returns: use list(...)")
    calls = 1
    fastest_s = min(sample_s(fn, 1) for _ in range(max(1, warmup - 1)))
    while fastest_s < min_time_s and calls < MOST_CALLS:
        growth = min_time_s / max(fastest_s, 1e-9)
        calls = max(calls + 1, math.ceil(calls * min(10.0, 1.1 * growth)))
        fastest_s = min(sample_s(fn, calls) for _ in range(2))
    return calls


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect garbage now and not inside, where a collection would be charged to whoever runs at that moment."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turn an exception into one that names the candidate."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"candidate {name!r} failed: {type(error).__name__}: {error}") from error
