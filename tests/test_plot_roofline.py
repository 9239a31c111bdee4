"""The figure of a roofline: where the roof and the points lie."""

import pytest

from labkit import figure as look
from labkit import plot_roofline


@pytest.fixture
def drawn(monkeypatch):
    """(figure, sentence) of each figure shown, each rendered, so that an error or a warning fails the test."""
    shown = []
    monkeypatch.setattr(look, "_show", lambda figure, alt: shown.append((look.png(figure) and figure, alt)))
    return shown


def test_points_lie_under_a_roof_with_a_ridge(drawn):
    points = {"eager": (0.1, 1e9), "fused": (0.5, 2e10)}
    peaks = {"matmul": 1e11, "convolution": 2e11}
    plot_roofline.roofline(points, bytes_per_s=4e10, peaks=peaks, title="This machine")
    figure, alt = drawn[0]
    roof, *others = figure.axes[0].lines
    assert list(roof.get_xdata()) == pytest.approx([0.05, 5, 100])
    assert list(roof.get_ydata()) == pytest.approx([2e9, 2e11, 2e11])
    levels = [line for line in others if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in levels] == pytest.approx([2.5, 5])
    dots = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in others if line not in levels}
    assert dots == points
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert texts == {"copy: 40 GB/s", "matmul: 100 GFLOP/s", "convolution: 200 GFLOP/s"}
    assert alt == "Figure: This machine. roofline with eager, fused."


def test_what_was_not_measured_is_named_and_not_drawn(drawn):
    points = {"eager": (0.1, 1e9), "compiled": None}
    plot_roofline.roofline(points, bytes_per_s=4e10, peaks={"matmul": 1e11})
    figure, alt = drawn[0]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["eager", "compiled (not measured)"]
    assert alt == "Figure: roofline with eager, compiled."


@pytest.mark.parametrize(
    ("points", "rate", "peaks"),
    [({}, 1e9, {"m": 1e9}), ({"a": (1, 1e9)}, 1e9, {}), ({"a": (0, 1e9)}, 1e9, {"m": 1e9})]
    + [({"a": None}, 1e9, {"m": 1e9}), ({"a": (1, 1e9)}, 0.0, {"m": 1e9})],
)
def test_what_cannot_be_drawn_is_refused(points, rate, peaks):
    with pytest.raises(ValueError, match="all of them above 0"):
        plot_roofline.roofline(points, bytes_per_s=rate, peaks=peaks)
