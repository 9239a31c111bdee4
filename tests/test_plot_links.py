"""The figure of links: where the dots and the lines lie, and what is refused."""

import pytest

from labkit import figure as look
from labkit import plot_links


@pytest.fixture
def drawn(monkeypatch):
    """(figure, sentence) of each figure shown, each rendered, so that an error or a warning fails the test."""
    shown = []
    monkeypatch.setattr(look, "_show", lambda figure, alt: shown.append((look.png(figure) and figure, alt)))
    return shown


def test_a_dot_a_link_and_a_line_a_step(drawn):
    takes = {"wide": {"wire": 1e-3, "ocean": 1.0}, "narrow": {"wire": 1e-6, "ocean": 0.3}}
    plot_links.times(takes, steps={"wide": 0.1, "narrow": 0.2}, title="Links")
    figure, alt = drawn[0]
    lines = {line.get_label(): list(line.get_xdata()) for line in figure.axes[0].lines}
    assert lines["wide: all-reduce"] == [1e-3, 1.0]
    assert lines["narrow: computing a step"] == [0.2, 0.2]
    dots = [line for line in figure.axes[0].lines if "all-reduce" in line.get_label()]
    assert [round(float(line.get_ydata()[1])) for line in dots] == [1, 1], "both in the row of the second link"
    assert {text.get_text() for text in figure.axes[0].texts} == {"wire", "ocean"}
    assert alt == "Figure: Links. seconds over wire, ocean for wide, narrow, beside a step of each."


@pytest.mark.parametrize(
    ("takes", "steps"),
    [({}, {}), ({"a": {"wire": 1.0}}, {}), ({"a": {"wire": 0.0}}, {"a": 1.0}), ({"a": {"wire": 1.0}}, {"a": 0.0})],
)
def test_what_cannot_be_drawn_is_refused(takes, steps):
    with pytest.raises(ValueError, match="times above 0"):
        plot_links.times(takes, steps=steps)
