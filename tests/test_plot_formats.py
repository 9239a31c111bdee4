"""The figure of sizes against ranges: what is counted, and where each format's bar lies."""

import pytest
import torch

from labkit import figure as look
from labkit import plot_formats
from labkit.formats import BF16, E4M3, FP16


@pytest.fixture
def drawn(monkeypatch):
    """(figure, sentence) of each figure shown, each rendered, so that an error or a warning fails the test."""
    shown = []
    monkeypatch.setattr(look, "_show", lambda figure, alt: shown.append((look.png(figure) and figure, alt)))
    return shown


def test_every_power_of_two_gets_its_share():
    places, shares = plot_formats._shares(torch.tensor([0.0, 0.25, -0.3, 1.0, 1.999]))
    assert places == [-2, -1, 0, 1]
    assert shares == [0.5, 0.0, 0.5, 0.0]


def test_bars_lie_where_the_formats_numbers_do(drawn):
    values = {"small": torch.tensor([2.0**-30, 2.0**-20]), "large": torch.tensor([2.0**-14, 1.0])}
    plot_formats.ranges(values, [FP16, E4M3, BF16], title="Sizes")
    figure, alt = drawn[0]
    sizes, spans = figure.axes
    bars = [(line.get_xdata()[0], line.get_xdata()[-1], line.get_linewidth()) for line in spans.lines]
    assert bars[0][:2] == pytest.approx((-24, 16), abs=0.001)
    assert bars[1][:2] == pytest.approx((-14, 16), abs=0.001)
    assert bars[2][:2] == pytest.approx((-9, 8.81), abs=0.01)
    assert [line.get_marker() for line in spans.lines if line.get_marker() in "<>"] == ["<", ">"]
    assert [text.get_text() for text in spans.get_yticklabels()] == ["fp16", "e4m3", "bf16"]
    assert [text.get_text() for text in sizes.get_legend().get_texts()] == ["small", "large"]
    assert alt == "Figure: Sizes. sizes of small, large above the ranges of fp16, e4m3, bf16."


def test_nothing_to_draw_is_refused():
    for values in ({}, {"zeros": torch.zeros(3)}):
        with pytest.raises(ValueError, match="nothing to draw"):
            plot_formats.ranges(values, [FP16])
