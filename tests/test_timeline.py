"""Intervals against a brute-force oracle on integer seconds, and the cause of an idle gap on cases with one answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.timeline import (
    CAUSE_OF_KIND,
    CAUSES,
    KINDS,
    Span,
    complement,
    covered_s,
    device_rows,
    gaps,
    length_s,
    overlap_s,
    union,
)

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12).map(
    lambda drawn: [(start, start + width) for start, width in drawn]
)


def _cells(intervals):
    """The unit cells that intervals with whole ends cover: the oracle."""
    return {cell for start, end in intervals for cell in range(start, end)}


def _union(intervals):
    return union([a for a, _ in intervals], [b for _, b in intervals])


@given(INTERVALS)
def test_a_union_covers_what_its_parts_cover_and_is_sorted_and_apart(intervals):
    starts, ends = _union(intervals)
    assert length_s((starts, ends)) == len(_cells(intervals))
    assert np.all(ends > starts)
    assert np.all(starts[1:] > ends[:-1])


@given(INTERVALS, INTERVALS)
def test_overlap_is_the_cells_in_both(one, other):
    assert overlap_s(_union(one), _union(other)) == pytest.approx(len(_cells(one) & _cells(other)))


@given(INTERVALS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8))
def test_what_a_window_is_covered_by(intervals, windows):
    windows = [(start, start + width) for start, width in windows]
    got = covered_s(_union(intervals), [a for a, _ in windows], [b for _, b in windows])
    assert got.tolist() == pytest.approx([len(_cells(intervals) & _cells([window])) for window in windows])


@given(INTERVALS, st.integers(0, 30), st.integers(1, 40))
def test_a_complement_is_the_rest_of_the_window(intervals, start, width):
    starts, ends = complement(_union(intervals), start, start + width)
    rest = _cells([(start, start + width)]) - _cells(intervals)
    assert _cells(zip(starts.astype(int).tolist(), ends.astype(int).tolist(), strict=True)) == rest
    assert np.all(ends > starts)


def _span(kind, start_s, end_s, row="host"):
    return Span(row=row, name=kind, start_s=start_s, end_s=end_s, kind=kind)


def _device(*edges):
    return [_span("kernel", start_s, end_s, row="gpu") for start_s, end_s in edges]


@pytest.mark.parametrize(("kind", "cause"), CAUSE_OF_KIND.items())
def test_what_covers_most_of_a_gap_is_its_cause(kind, cause):
    spans = [_span("host", 0.0, 3.0), _span(kind, 1.0, 1.7), *_device((0.0, 1.0), (2.0, 3.0))]
    assert [(gap.start_s, gap.end_s, gap.cause) for gap in gaps(spans)] == [(1.0, 2.0, cause)]


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ([("wait", 0.2, 0.99999), ("host", 1.0, 2.0)], "synchronisation"),
        ([("wait", 0.2, 1.00001), ("host", 1.1, 2.0)], "synchronisation"),
        ([("wait", 0.2, 0.9), ("host", 1.0, 2.0)], "launch-bound"),
        ([("wait", 0.2, 1.0), ("data", 1.05, 1.95)], "data wait"),
        ([("host", 0.0, 0.9), ("launch", 1.4, 1.45)], "nothing known"),
        ([("launch", 1.0 + i / 10, 1.05 + i / 10) for i in range(10)], "launch-bound"),
        ([("annotation", 0.0, 3.0), ("step", 0.0, 3.0)], "nothing known"),
        ([], "nothing known"),
    ],
)
def test_the_cause_of_a_gap(host, cause):
    spans = [*(_span(*each) for each in host), *_device((0.0, 1.0), (2.0, 3.0))]
    (gap,) = gaps(spans, start_s=0.0)
    assert (gap.cause, gap.seconds) == (cause, 1.0)


def test_gaps_are_those_of_each_device_in_the_window():
    spans = [*_device((1.0, 2.0)), _span("copy", 3.0, 4.0, row="other"), _span("host", 0.0, 5.0)]
    assert device_rows(spans) == ["gpu", "other"]
    found = [(gap.row, gap.start_s, gap.end_s) for gap in gaps(spans)]
    assert found == [("gpu", 0.0, 1.0), ("gpu", 2.0, 5.0), ("other", 0.0, 3.0), ("other", 4.0, 5.0)]
    assert [gap.row for gap in gaps(spans, ["gpu"], 0.5, 2.0)] == ["gpu"]
    assert gaps([]) == []


@given(INTERVALS)
def test_busy_and_idle_make_up_the_span(intervals):
    spans = [_span("host", 0.0, 60.0), *_device(*((float(a), float(b)) for a, b in intervals))]
    idle = gaps(spans, ["gpu"])
    assert sum(gap.seconds for gap in idle) == pytest.approx(60 - len(_cells(intervals)))
    assert all(gap.cause in CAUSES for gap in idle)


def test_a_wrong_span_is_refused():
    with pytest.raises(ValueError, match="'nap' is no kind of span: it is one of host, launch"):
        _span("nap", 0.0, 1.0)
    with pytest.raises(ValueError, match="before it starts"):
        _span("host", 1.0, 0.0)
    assert _span(KINDS[0], 1.0, 1.0).seconds == 0.0
