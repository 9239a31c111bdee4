"""Exercises 5.1 and 5.2: when a device stood idle, and what the host did meanwhile."""

from collections.abc import Sequence
from itertools import pairwise

import torch

Stretch = tuple[float, float]
Named = tuple[str, float, float]


def idle_gaps(busy: Sequence[Stretch], start_s: float, end_s: float) -> list[Stretch]:
    """The stretches from start_s to end_s in which none of `busy`, in any order and overlapping, runs; none empty."""
    gaps, free_from = [], start_s
    for first, last in sorted(busy):
        if min(first, end_s) > free_from:
            gaps.append((free_from, min(first, end_s)))
        free_from = max(free_from, last)
    return [*gaps, (free_from, end_s)] if free_from < end_s else gaps


def gap_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Two operations; then overlapping, nested, unsorted, touching ones, some beyond the window; none; drawn ones."""
    listed = [
        ([(1.0, 2.0), (4.0, 5.0)], 0.0, 6.0),
        ([(0.0, 2.0), (1.0, 4.0), (6.0, 7.0)], 0.0, 7.0),
        ([(0.0, 8.0), (1.0, 2.0), (9.0, 10.0)], 0.0, 10.0),
        ([(5.0, 6.0), (1.0, 2.0)], 1.0, 6.0),
        ([(0.0, 1.0), (1.0, 3.0), (4.0, 6.0)], 0.0, 5.0),
        ([(0.0, 1.0), (3.0, 4.0), (7.0, 9.0)], 2.0, 6.0),
        ([], 2.0, 3.0),
    ]
    return [*listed, *(_drawn(rng) for _ in range(20))]


def _drawn(rng: torch.Generator) -> tuple:
    """A dozen operations at random, none without length, and a window that cuts some of them."""
    starts = torch.randint(0, 60, (12,), generator=rng).tolist()
    lengths = torch.randint(1, 12, (12,), generator=rng).tolist()
    return [(float(a), float(a + n)) for a, n in zip(starts, lengths, strict=True)], 5.0, 55.0


def _between_neighbours(busy: Sequence[Stretch], start_s: float, end_s: float) -> list[Stretch]:
    """Compares each operation with the one before it only."""
    inside = sorted((max(a, start_s), min(b, end_s)) for a, b in busy if b >= start_s and a <= end_s)
    edges = [(start_s, start_s), *inside, (end_s, end_s)]
    return [(before[1], after[0]) for before, after in pairwise(edges) if after[0] > before[1]]


def _unsorted(busy: Sequence[Stretch], start_s: float, end_s: float) -> list[Stretch]:
    """Takes the operations in the order in which they were given."""
    gaps, free_from = [], start_s
    for first, last in busy:
        if min(first, end_s) > free_from:
            gaps.append((free_from, min(first, end_s)))
        free_from = max(free_from, last)
    return [*gaps, (free_from, end_s)] if free_from < end_s else gaps


def _beyond_the_window(busy: Sequence[Stretch], start_s: float, end_s: float) -> list[Stretch]:
    """Does not cut at the window's end."""
    gaps, free_from = [], start_s
    for first, last in sorted(busy):
        if first > free_from:
            gaps.append((free_from, first))
        free_from = max(free_from, last)
    return [*gaps, (free_from, end_s)] if free_from < end_s else gaps


GAP_MISTAKES = (
    ("A long operation may still run when a later one has ended: remember the latest end so far.", _between_neighbours),
    ("The operations come in any order: sort them by their start first.", _unsorted),
    ("A gap ends where the window ends: cut it at end_s.", _beyond_the_window),
)


def blame(gaps: Sequence[Stretch], host: Sequence[Named]) -> dict[str, float]:
    """Seconds of the gaps by what the host did in them; what no span of the host covers is under `other`.

    host: (name, start, end), in any order, of spans that do not overlap. A name that explains no gap is left out.
    """
    seconds: dict[str, float] = {}
    for gap_start, gap_end in gaps:
        left = gap_end - gap_start
        for name, first, last in host:
            shared = min(gap_end, last) - max(gap_start, first)
            if shared > 0:
                seconds[name] = seconds.get(name, 0.0) + shared
                left -= shared
        if left > 1e-12:
            seconds["other"] = seconds.get("other", 0.0) + left
    return seconds


def blame_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One gap under one span; longer and shorter ones, a name twice, spans in any order, time uncovered; drawn."""
    listed = [
        ([(1.0, 3.0)], [("data", 1.0, 3.0)]),
        ([(0.0, 3.0), (4.0, 7.0)], [("data", 0.0, 2.0), ("wait", 2.0, 5.0), ("wait", 5.0, 7.0)]),
        ([(1.0, 3.0)], [("data", 0.0, 2.0), ("launch", 2.0, 8.0)]),
        ([(0.0, 4.0), (6.0, 8.0)], [("data", 1.0, 2.0), ("wait", 3.0, 7.0), ("data", 7.0, 7.5)]),
        ([(0.0, 4.0), (6.0, 8.0)], [("wait", 3.0, 7.0), ("data", 7.0, 7.5), ("data", 1.0, 2.0)]),
        ([(0.0, 1.0), (5.0, 6.0)], [("launch", 1.0, 5.0)]),
        ([], [("data", 0.0, 1.0)]),
    ]
    return [*listed, *(_drawn_blame(rng) for _ in range(10))]


def _drawn_blame(rng: torch.Generator) -> tuple:
    """Gaps and host spans at random, neither overlapping among themselves."""
    edges = torch.randint(1, 6, (41,), generator=rng).cumsum(0).double().tolist()
    shifted = [edge - 0.5 for edge in edges]
    names = ("data", "launch", "wait", "log")
    host = [(names[i % 4], *pair) for i, pair in enumerate(pairwise(shifted)) if i % 3]
    order = torch.randperm(len(host), generator=rng).tolist()
    return [pair for i, pair in enumerate(pairwise(edges)) if i % 2], [host[i] for i in order]


def _by_majority(gaps: Sequence[Stretch], host: Sequence[Named]) -> dict[str, float]:
    """Gives each gap whole to the span that covers most of it."""
    seconds: dict[str, float] = {}
    for first, last in gaps:
        shares = {name: 0.0 for name, _, _ in host}
        for name, a, b in host:
            shares[name] += max(0.0, min(last, b) - max(first, a))
        name = max(shares, key=shares.__getitem__) if any(shares.values()) else "other"
        seconds[name] = seconds.get(name, 0.0) + last - first
    return seconds


def _whole_spans(gaps: Sequence[Stretch], host: Sequence[Named]) -> dict[str, float]:
    """Counts each span of the host that meets a gap whole."""
    seconds: dict[str, float] = {}
    for first, last in gaps:
        met = [(name, b - a) for name, a, b in host if min(last, b) > max(first, a)]
        for name, length in met:
            seconds[name] = seconds.get(name, 0.0) + length
        if (left := last - first - sum(length for _, length in met)) > 1e-12:
            seconds["other"] = seconds.get("other", 0.0) + left
    return seconds


def _last_only(gaps: Sequence[Stretch], host: Sequence[Named]) -> dict[str, float]:
    """Writes over what an earlier span under the same name had."""
    seconds: dict[str, float] = {}
    for first, last in gaps:
        left = last - first
        for name, a, b in host:
            if (shared := min(last, b) - max(first, a)) > 0:
                seconds[name], left = shared, left - shared
        if left > 1e-12:
            seconds["other"] = left
    return seconds


BLAME_MISTAKES = (
    ("Each gap went whole to one span: share it out, second by second.", _by_majority),
    ("A span of the host counts only as far as it overlaps the gap.", _whole_spans),
    ("A name may occur many times: add to what it has.", _last_only),
)
