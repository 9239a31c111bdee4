"""Timelines: which rows and gaps are drawn, in which colours, and how a crowd of spans stays one figure."""

import pytest

from labkit import figure as look
from labkit import plot_timeline
from labkit.timeline import CAUSES, KINDS, Span
from labkit.trace import page


@pytest.fixture
def drawn(monkeypatch):
    """(figure, sentence) of each figure shown, each rendered, so that an error or a warning fails the test."""
    shown = []
    monkeypatch.setattr(look, "_show", lambda figure, alt: shown.append((look.png(figure) and figure, alt)))
    return shown


def _span(kind, start_s, end_s, row="host", name=""):
    return Span(row=row, name=name or kind, start_s=start_s, end_s=end_s, kind=kind)


SPANS = [
    _span("step", 0.0, 1.0),
    _span("host", 0.0, 0.5, name="aten::mm"),
    _span("wait", 0.5, 0.9, name="cost $5 and 3_4^2 <b>"),
    _span("kernel", 0.1, 0.4, row="GPU 0"),
    _span("kernel", 0.8, 0.9, row="GPU 0"),
]


def _texts(axes):
    return [text.get_text().strip() for text in axes.texts]


def test_every_kind_and_every_cause_has_a_look_of_its_own():
    assert set(plot_timeline.LOOKS) == set(KINDS)
    assert set(plot_timeline.GAP_LOOKS) == set(CAUSES)
    for looks in (plot_timeline.LOOKS, plot_timeline.GAP_LOOKS):
        assert len(set(looks.values())) == len(looks)


def test_compiling_and_launching_differ_in_colour_and_without():
    for looks, compiling, launching in (
        (plot_timeline.LOOKS, "compile", "launch"),
        (plot_timeline.GAP_LOOKS, "compilation", "launch-bound"),
        (page.LOOKS, "compile", "launch"),
    ):
        assert all(one != other for one, other in zip(looks[compiling], looks[launching], strict=True))
        assert [colour for colour, _ in looks.values()].count(look.OCHRE) == 1
    for looks, compiling in ((plot_timeline.LOOKS, "compile"), (plot_timeline.GAP_LOOKS, "compilation")):
        assert [hatch for _, hatch in looks.values()].count(looks[compiling][1]) == 1, "told apart without colour"


def test_rows_gaps_and_legend(drawn):
    plot_timeline.timeline(SPANS, title="one step")
    ((figure, alt),) = drawn
    assert alt == "Figure: one step. timeline of host above GPU 0."
    assert [text for text in _texts(figure.axes[0]) if text in ("host", "GPU 0")] == ["host", "GPU 0"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["host", "kernel", "wait", "step", "idle: synchronisation", "idle: launch-bound"]


def test_names_are_drawn_as_they_are(drawn):
    plot_timeline.timeline(SPANS, title="")
    assert any(text.startswith("cost $5") for text in _texts(drawn[0][0].axes[0]))


def test_a_window_starts_at_zero_and_leaves_the_rest_out(drawn):
    plot_timeline.timeline(SPANS, title="", start_s=0.55, end_s=0.95)
    figure = drawn[0][0]
    assert figure.axes[0].get_xlim() == (0, pytest.approx(0.4))
    assert not {"aten::mm"} & set(_texts(figure.axes[0]))


def test_rows_named_as_devices_are_last_and_have_the_gaps(drawn):
    spans = [_span("kernel", 0.0, 0.2, row="worker"), _span("host", 0.0, 1.0)]
    plot_timeline.timeline(spans, title="", devices=["worker"])
    assert drawn[0][1] == "Figure: timeline of host above worker."


def test_a_crowd_of_spans_becomes_few_bars(drawn):
    spans = [_span("kernel", i * 1e-6, i * 1e-6 + 5e-7, row="gpu") for i in range(10_000)]
    plot_timeline.timeline(spans, title="")
    bars = sum(len(each.get_paths()) for each in drawn[0][0].axes[0].collections)
    assert bars < 2000


def test_deep_nesting_is_cut_and_said(drawn):
    plot_timeline.timeline([_span("host", i * 0.1, 2 - i * 0.1) for i in range(9)], title="")
    axes = drawn[0][0].axes[0]
    assert len(axes.collections) == plot_timeline.MOST_LANES
    assert axes.get_xlabel() == "time (5 spans below these not drawn)"


def _drawn_bars(axes):
    return sum(len(each.get_paths()) for each in axes.collections)


def test_overlapping_spans_reuse_the_lanes_that_are_free(drawn):
    spans = [_span("communication", i, i + 2.5, row="messages", name=str(i)) for i in range(12)]
    plot_timeline.timeline(spans, title="", devices=[])
    axes = drawn[0][0].axes[0]
    assert len(axes.collections) == 3, "three at once, three lanes"
    assert _drawn_bars(axes) == 12
    assert {str(i) for i in range(12)} <= set(_texts(axes))
    assert axes.get_xlabel() == "time"


def test_as_many_lanes_as_asked_for(drawn):
    spans = [_span("communication", 0.1 * i, 10, row="messages") for i in range(6)]
    plot_timeline.timeline(spans, title="", devices=[], lanes=6)
    plot_timeline.timeline(spans, title="", devices=[], lanes=5)
    (whole, _), (cut, _) = drawn
    assert _drawn_bars(whole.axes[0]) == 6
    assert (_drawn_bars(cut.axes[0]), cut.axes[0].get_xlabel()) == (5, "time (1 span below these not drawn)")


def test_neighbours_without_a_gap_are_told_apart(drawn):
    plot_timeline.timeline([_span("host", i, i + 1) for i in range(5)], title="")
    ((bars,), edge) = drawn[0][0].axes[0].collections, (1.0, 1.0, 1.0, 1.0)
    assert [tuple(each) for each in bars.get_edgecolors()] == [edge] * 5


def test_nothing_in_the_window_is_a_sentence():
    for spans in ([], SPANS):
        with pytest.raises(ValueError, match="nothing to draw: no span lies between"):
            plot_timeline.timeline(spans, title="", start_s=5.0, end_s=6.0)
