"""The figure of memory: how the bars stack, what stands on them, and what is refused."""

import math

import pytest
from matplotlib.colors import to_rgb

from labkit import figure as look
from labkit import plot_memory

DDP = {"parameters": 20, "gradients": 20, "optimizer": 60}
ZERO = {"parameters": 20, "optimizer": 15, "logits": 5}


@pytest.fixture
def drawn(monkeypatch):
    """(figure, sentence) of each figure shown, each rendered, so that an error or a warning fails the test."""
    shown = []
    monkeypatch.setattr(look, "_show", lambda figure, alt: shown.append((look.png(figure) and figure, alt)))
    return shown


def test_parts_stack_up_to_the_total_and_keep_their_colours(drawn):
    plot_memory.bars({"DDP": DDP, "ZeRO": ZERO}, title="Memory")
    figure, alt = drawn[0]
    patches = [(patch.get_x(), patch.get_width(), patch.get_facecolor()[:3]) for patch in figure.axes[0].patches]
    colours = [to_rgb(colour) for colour, *_ in plot_memory.LOOKS]
    ddp, zero = patches[:4], patches[4:]
    assert ddp == [(0, 20, colours[0]), (20, 20, colours[1]), (40, 60, colours[2]), (100, 0, colours[4])]
    assert zero == [(0, 20, colours[0]), (20, 0, colours[1]), (20, 15, colours[2]), (35, 5, colours[4])]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"DDP", "ZeRO", "100 B", "40 B", "60 B"} <= set(texts)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*DDP, "logits"]
    assert alt == (
        "Figure: Memory. memory of one rank: DDP: 100 B (parameters 20 B, gradients 20 B, optimizer 60 B); "
        "ZeRO: 40 B (parameters 20 B, optimizer 15 B, logits 5 B)."
    )


def test_a_part_has_the_same_look_in_every_figure_whatever_stands_beside_it(drawn):
    fewer = {"gradients": 1, "activations": 2, "temporaries": 3, "other": 4}
    for bars in ({"a": {"logits": 5, **fewer}}, {"b": fewer}, {"c": dict.fromkeys(plot_memory.PARTS, 1) | fewer}):
        plot_memory.bars(bars, xlabel="memory of one card")
    legends = [
        {p.get_label(): (p.get_facecolor(), p.get_hatch()) for p in f.legends[0].get_patches()} for f, _ in drawn
    ]
    for part in fewer:
        assert len({each[part] for each in legends}) == 1
    assert all(len(set(each.values())) == len(each) for each in legends)
    assert {figure.axes[0].get_xlabel() for figure, _ in drawn} == {"memory of one card"}
    assert "memory of one card: b: 10 B" in drawn[1][1]


@pytest.mark.parametrize("capacity", [0, 30, 80, 1000])
def test_the_cards_line_stands_at_its_memory_and_says_what_is_too_much(drawn, capacity):
    plot_memory.bars({"DDP": DDP, "ZeRO": ZERO}, capacity)
    axes = drawn[0][0].axes[0]
    (line,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert set(line.get_xdata()) == {capacity}
    assert capacity <= axes.get_xlim()[1]
    texts = " | ".join(text.get_text() for text in axes.texts)
    assert ("100 B\n" in texts) == (capacity < 100)
    assert (f"{100 - capacity} B too much" in texts) == (capacity < 100)
    assert (f"{40 - capacity} B too much" in texts) == (capacity < 40)
    assert f"the card has {plot_memory.format_bytes(capacity)}" in drawn[0][1]


def _figure_boxes(figure):
    """What is written on bars: (text, left, right), in pixels, the box behind it included."""
    written = [text for text in figure.axes[0].texts if text.get_bbox_patch()]
    boxes = [(text.get_text(), text.get_bbox_patch().get_window_extent()) for text in written]
    return [(text, box.x0, box.x1) for text, box in boxes]


@pytest.mark.parametrize("wide", range(20, 130, 5))
def test_a_figure_stands_within_its_part_or_below_the_bar(drawn, wide):
    plot_memory.bars({"a longer label": {"wide": wide, "other": 1000 - wide, "none": 0}})
    figure, alt = drawn[0]
    first, second = (patch.get_window_extent() for patch in figure.axes[0].patches[:2])
    texts = {text: (low, high) for text, low, high in _figure_boxes(figure)}
    name, below = f"{wide} B", [text.get_text() for text in figure.axes[0].texts]
    if name in texts:
        assert first.x0 <= texts[name][0] < texts[name][1] <= first.x1
    else:
        assert f"wide {wide} B" in below
    assert second.x0 <= texts[f"{1000 - wide} B"][0]
    assert f"wide {wide} B" in alt


def test_both_places_of_a_figure_occur(drawn):
    plot_memory.bars({"a": {"wide": 30, "other": 970}, "b": {"wide": 130, "other": 870}})
    names = {text for text, *_ in _figure_boxes(drawn[0][0])}
    assert "30 B" not in names
    assert "130 B" in names


@pytest.mark.parametrize("capacity", range(10, 1000, 45))
def test_the_cards_line_crosses_no_figure(drawn, capacity):
    plot_memory.bars({"a": {"one": 400, "two": 580, "three": 20}, "b": {"one": 20, "two": 10}}, capacity)
    axes = drawn[0][0].axes[0]
    line = next(line for line in axes.lines if line.get_linestyle() == "--")
    x = axes.transData.transform((capacity, 0))[0]
    assert not [text for text, low, high in _figure_boxes(drawn[0][0]) if low < x < high]
    below = [text for text in axes.texts if text.get_text() in ("three 20 B", "one 20 B, two 10 B")]
    assert len(below) == 2
    heights = line.get_ydata()
    for text in below:
        box = text.get_window_extent().transformed(axes.transData.inverted())
        high, low = sorted((box.y0, box.y1))
        spans = [(a, b) for a, b in zip(heights, heights[1:], strict=False) if not math.isnan(a + b)]
        assert box.x1 < capacity or all(b <= high or a >= low for a, b in spans)


def test_ticks_keep_apart(drawn):
    for most in (99, 186e9, 1.99e12, 128e9):
        plot_memory.bars({"a": {"b": most}})
        figure = drawn[-1][0]
        boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels() if label.get_text()]
        inside = [box for box in boxes if box.x1 < figure.bbox.width]
        assert all(first.x1 + 4 < second.x0 for first, second in zip(inside, inside[1:], strict=False))


def _luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("which", plot_memory.LOOKS, ids=lambda which: which[0] + which[1])
def test_figures_on_the_bars_can_be_read(which):
    colour, _, ink = which
    high, low = sorted((_luminance(colour), _luminance(ink)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_no_two_parts_look_alike():
    assert len({which[:2] for which in plot_memory.LOOKS}) == len(plot_memory.LOOKS)


@pytest.mark.parametrize(
    ("given", "capacity", "message"),
    [
        ({}, None, "needs at least one bar"),
        ({"a": {}}, None, "needs at least one bar"),
        ({"a": {str(i): 1 for i in range(9)}}, None, "8 parts apart at most, and these are 9"),
        ({"a": {"b": -1}}, None, "'b' of 'a' is -1"),
        ({"a": {"b": math.nan}}, None, "'b' of 'a' is nan"),
        ({"a": {"b": 1}}, math.inf, "the capacity is inf"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(given, capacity, message):
    with pytest.raises(ValueError, match=message):
        plot_memory.bars(given, capacity)


def test_bars_of_nothing_are_drawn(drawn):
    plot_memory.bars({"a": {"b": 0}})
    assert "0 B" in drawn[0][1]
