"""Which steps of a run were slow, from nothing but their seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from labkit.units import format_s

FEWEST_STEPS = 8  # below that nothing is typical
SMALLEST_RATIO = 1.33  # what is closer to its neighbours is not worth an explanation
FALSE_ALARMS = 0.02  # expected in a whole run of plain noise
WINDOW = 25  # steps: the trend is followed over so many neighbours on either side
DENSE_SHARE, MODE_SHARE = 0.025, 1 / 8  # of all steps: so many make a stretch dense, more than so many an ordinary kind
FEWEST_FOR_MODES = 40
FAR_AT_FIRST, FAR = 0.75, 0.98  # quantiles that tell how long the tail of the noise is, before and after the first look


@dataclass(frozen=True, kw_only=True)
class SlowStep:
    """A step that took longer than its like: its place, seconds, times the typical, and distance in noise widths."""

    index: int
    seconds: float
    ratio: float
    z: float

    def __str__(self) -> str:
        return f"step {self.index}: {format_s(self.seconds)}, {self.ratio:.2g} times the typical"


def slow_steps(seconds: Sequence[float] | np.ndarray, *, smallest_ratio: float = SMALLEST_RATIO) -> list[SlowStep]:
    """The steps that are slow beyond what noise explains, in order: outliers of the logarithm of the time.

    A trend is removed where that leaves the times more alike: the quantile of the neighbours, or none, whichever leaves
    the least entropy (Vasicek's estimate). Times that more than one step in eight has are a mode, with a width of its
    own, and ordinary: a step that takes longer every fourth time is not slow for that. Every tenth time it is: rarer
    kinds of steps are reported, each step of them. Slow is what lies above its mode by more widths than normal noise
    reaches once in fifty runs, outside every other mode, and smallest_ratio times the commonest mode or more.

    It cannot: find a slow step among fewer than 8; find 1.5 times the typical where the noise is wider than about 7 %
    (standard deviation), or 2 times where it is wider than 11 %, or, where one step in ten is slow, 5 and 9 %; find
    even 20 times where steps scatter by a factor of two either way, as they do where a host runs ahead of its device;
    tell a slow step from an ordinary one of a slower mode that takes as long, nor, where noise is that wide, whether a
    kind of one step in six to eight is ordinary; call slow what more than one step in eight is; or what stays slow for
    more than about 15 steps in a row, which is a new level. Noise with a long tail (exponential, of 5 % of the step or
    more) raises about one false alarm in five runs of 500 steps. In a run that drifts and whose steps alternate between
    two lengths, slow ones are missed.
    Sources: Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993); Vasicek, J. R. Stat. Soc. B 38 (1976).
    ValueError: a time that is not a positive, finite number.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if not np.all(np.isfinite(times) & (times > 0)):
        raise ValueError("the seconds of a step must be positive and finite")
    if len(times) < FEWEST_STEPS:
        return []
    logs = _detrended(np.log(times))
    above, z = _beyond(logs, smallest_ratio)
    slow = np.flatnonzero(z > 0)
    return [SlowStep(index=int(i), seconds=float(times[i]), ratio=math.exp(above[i]), z=float(z[i])) for i in slow]


def _detrended(logs: np.ndarray) -> np.ndarray:
    """Without the trend that, once removed, leaves the least entropy; no trend is one of the candidates."""
    candidates = [logs - np.median(logs)]
    if len(logs) >= 4 * WINDOW:
        candidates += [logs - _trend(logs, q) for q in (0.5, 0.25)]
    return min(candidates, key=_entropy)


def _trend(values: np.ndarray, q: float) -> np.ndarray:
    """The higher of two quantiles: that of the neighbours before, that of the neighbours after each value.

    The higher one, so that the first steps of a new, slower level are held against what follows. The lower quartile
    follows a trend where steps of two kinds take turns, and the median jumps between them.
    """
    windows = np.quantile(np.lib.stride_tricks.sliding_window_view(values, WINDOW), q, axis=1)
    before = np.concatenate((np.full(WINDOW, -np.inf), windows[:-1]))
    after = np.concatenate((windows[1:], np.full(WINDOW, -np.inf)))
    return np.maximum(before, after)


def _spacing(ordered: np.ndarray, m: int) -> np.ndarray:
    """For each sorted value the width of the narrowest run of m + 1 values that starts or ends at it or holds it."""
    widths = ordered[m:] - ordered[:-m]
    return np.minimum.reduce([np.pad(widths, (i, m - i), constant_values=np.inf) for i in range(m + 1)])


def _entropy(values: np.ndarray) -> float:
    """Vasicek's estimate of the differential entropy, up to a constant: the mean log spacing of the sorted values."""
    m = max(2, round(math.sqrt(len(values)) / 2))
    ordered = np.sort(values)
    ordered = ordered[: math.ceil(0.95 * len(ordered))]  # the slowest are what is looked for
    return float(np.log(np.maximum(ordered[m:] - ordered[:-m], 1e-9)).mean())


def _modes(values: np.ndarray) -> list[np.ndarray]:
    """The values of each ordinary kind, sorted: those around a stretch where many are alike; rarer kinds are left out.

    An empty stretch, or one where few are, separates kinds. Alike is what lies within 1.25 times the width of the
    normal mode that has the densest quarter of all values.
    """
    ordered = np.sort(values)
    m = math.ceil(DENSE_SHARE * len(ordered))
    if len(ordered) < FEWEST_FOR_MODES:
        return [ordered]
    quarter = len(ordered) // 4
    width = max((ordered[quarter:] - ordered[:-quarter]).min() / 0.637, 1e-6)
    dense = _spacing(ordered, m) <= 1.25 * width
    starts = dense & np.concatenate(([True], ~dense[:-1] | (np.diff(ordered) > 1.25 * width)))
    groups = np.split(ordered[dense], np.flatnonzero(starts[dense])[1:])
    kinds = _members(ordered, groups)
    return [kind for kind in kinds if len(kind) > MODE_SHARE * len(ordered)] or [ordered]


def _beyond(logs: np.ndarray, smallest_ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """For each value: how far it lies above the centre of its largest mode below, and z where it is slow, else 0.

    Twice: what the first look finds no longer widens the noise of the second, which then can see how long its tail is.
    """
    bar = NormalDist().inv_cdf(1 - FALSE_ALARMS / len(logs)) * (1 + 4 / len(logs))
    slow = np.zeros(len(logs), dtype=bool)
    for far in (FAR_AT_FIRST, FAR):
        members = _modes(logs[~slow])
        modes = [_centre_and_width(group, far) for group in members]
        distance = np.stack([(logs - centre) / width for centre, width in modes])
        height = np.stack([logs - centre for centre, _ in modes])
        sizes = np.asarray([[len(group)] for group in members])
        above = _pick(height, np.where(height >= 0, sizes, 0).argmax(axis=0))
        z = _pick(distance, np.where(height >= 0, height, np.inf).argmin(axis=0))
        slow = (np.abs(distance) > bar).all(axis=0) & (z > 0) & (above >= math.log(smallest_ratio))
    return above, np.where(slow, z, 0.0)


def _pick(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Of each column the entry in the row that `which` names."""
    return np.take_along_axis(rows, which[None], axis=0)[0]


def _members(values: np.ndarray, modes: list[np.ndarray]) -> list[np.ndarray]:
    """All values, each given to the mode whose centre is nearest."""
    centres = np.asarray([np.median(mode) for mode in modes])
    nearest = np.abs(values[:, None] - centres).argmin(axis=1)
    return [values[nearest == i] for i in range(len(centres))]


def _centre_and_width(values: np.ndarray, far: float) -> tuple[float, float]:
    """Median, and the largest standard deviation that the middle, the upper tenth or the quantile `far` would imply."""
    centre = float(np.median(values))
    widths = [float(np.median(np.abs(values - centre))) / NormalDist().inv_cdf(0.75)]
    widths += [(float(np.quantile(values, q)) - centre) / NormalDist().inv_cdf(q) for q in (FAR_AT_FIRST, far)]
    return centre, max(*widths, 1e-4)
