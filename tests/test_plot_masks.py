"""Masks as pictures: what is drawn of each, and what is refused."""

import pytest
import torch

from labkit import figure, plot_masks

CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were shown, each as (figure, the sentence in its place)."""
    shown = []
    monkeypatch.setattr(figure, "_show", lambda fig, alt: shown.append((fig, alt)))
    return shown


def test_each_mask_is_a_picture_under_its_name_with_a_line_at_each_end(drawn):
    plot_masks.masks({"one": CAUSAL, "two": CAUSAL.T}, ends=[2], title="Who sees whom")
    [(fig, alt)] = drawn
    assert [axes.get_title(loc="center") or axes.get_title(loc="left") for axes in fig.axes] == ["one", "two"]
    for axes, mask in zip(fig.axes, (CAUSAL, CAUSAL.T), strict=True):
        assert (axes.images[0].get_array() == mask.numpy()).all()
        assert len(axes.lines) == 2
    assert alt == "Figure: Who sees whom. attention masks: one, two."


def test_no_masks_are_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_masks.masks({})
