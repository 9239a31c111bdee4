"""Figures: contrast on light and dark pages, what is drawn where, and that nothing stays open or shows twice."""

import base64
import io
import math
import subprocess
import sys

import pytest
import torch
from matplotlib.colors import to_rgb

from labkit import figure as look
from labkit import plot
from labkit.data import Split
from labkit.measure import Bench


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_wcags():
    assert _contrast("#000000", "#ffffff") == pytest.approx(21)
    assert _contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("colour", [*look.COLOURS, look.OCHRE])
def test_every_colour_keeps_three_to_one(colour, page):
    assert _contrast(colour, page) >= 3


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("key", ["text.color", "axes.labelcolor", "xtick.color", "ytick.color"])
def test_text_keeps_four_to_one(key, page):
    assert _contrast(look.STYLE[key], page) >= 4


def test_colours_are_okabe_and_itos_and_never_the_only_difference():
    assert set(look.COLOURS) <= {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442", look.GREY}
    looks = [(str(look.DASHES[i]), plot._look(i)["linewidth"], look.MARKERS[i]) for i in range(len(look.COLOURS))]
    assert len(set(looks)) == len({marker for *_, marker in looks}) == len(look.COLOURS)


@pytest.fixture
def drawn(monkeypatch):
    """(figure, sentence) of each figure shown, each rendered, so that an error or a warning fails the test."""
    shown = []
    monkeypatch.setattr(look, "_show", lambda figure, alt: shown.append((look.png(figure) and figure, alt)))
    return shown


def _texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


BENCH = Bench(
    seconds={"slow": (3e-3, 2e-3, 9e-3), "fast": (1e-6, 1e-6, 1e-6)}, calls={"slow": 1, "fast": 9}, device="cpu"
)


@pytest.mark.parametrize("log", [True, False])
def test_samples_draws_every_sample_and_the_median(drawn, log):
    plot.samples(BENCH, title="Two", log=log)
    alt, axes = drawn[0][1], drawn[0][0].axes[0]
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[3e-3, 2e-3, 9e-3], [1e-6] * 3]
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "|"] == [[3e-3], [1e-6]]
    assert {"slow", "fast", "median 3 ms", "median 1 µs"} <= set(_texts(axes))
    assert axes.get_xscale() == ("log" if log else "linear")
    assert alt == "Figure: Two. timing samples: slow, 3 samples, fast, 3 samples."
    assert axes.get_xlabel()


def test_samples_takes_plain_lists_and_even_a_single_sample(drawn):
    plot.samples({"once": [0.5]})
    assert "median 500 ms" in _texts(drawn[0][0].axes[0])


def test_ticks_of_time_read_with_their_unit(drawn):
    plot.samples({"a": [0.0101, 0.0102]})
    labels = [tick.get_text() for tick in drawn[0][0].axes[0].get_xticklabels()]
    assert labels[0] == "0"
    assert all(label.endswith(" ms") for label in labels[1:])


def test_in_order_counts_calls_from_one(drawn):
    plot.in_order({"a": [3.0, 1.0, 2.0]})
    line = drawn[0][0].axes[0].lines[0]
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == [3.0, 1.0, 2.0]


def test_in_order_draws_each_call_at_its_place_in_the_row(drawn):
    plot.in_order({"a": [1.0, 3.0], "b": [2.0]}, row=["a", "b", "a"], marks={"wakes": 1.5})
    axes = drawn[0][0].axes[0]
    assert [list(line.get_xdata()) for line in axes.lines[:3]] == [[1, 3], [2], [1.5, 1.5]]
    assert "wakes" in _texts(axes)


def test_in_order_refuses_a_row_that_names_other_calls():
    with pytest.raises(ValueError, match="'b' has 2 values of x and 1 of y"):
        plot.in_order({"a": [1.0], "b": [2.0]}, row=["a", "b", "b"])


def test_the_bar_of_the_middle_half_lies_above_the_dots(drawn):
    plot.samples({"a": [float(i) for i in range(1, 50)]})
    lines = drawn[0][0].axes[0].lines
    dots = next(line for line in lines if line.get_marker() == "o")
    bar = next(line for line in lines if len(line.get_xdata()) == 2)
    assert list(bar.get_xdata()) == [13, 37]
    assert bar.get_ydata()[0] < min(dots.get_ydata()) - 0.1  # rows are counted from the top


def test_lines_labels_axes_levels_and_series(drawn):
    plot.lines(
        {"a": ([0, 1], [1, 2]), "b": ([0, 1], [2, 1])}, xlabel="step", ylabel="loss (nats)", levels={"chance": 3.5}
    )
    axes = drawn[0][0].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss (nats)")
    assert {"a", "b", "chance"} <= set(_texts(axes))


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_line_that_diverges_is_marked_where_it_was_last_finite(drawn, lost):
    plot.lines({"a": ([0, 1, 2, 3], [1.0, 5.0, lost, lost])}, xlabel="step", ylabel="loss (nats)")
    axes = drawn[0][0].axes[0]
    crosses = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines if line.get_marker() == "X"]
    assert crosses == [([1], [5.0])]
    assert "diverged" in _texts(axes)


def _saying_diverged(figure):
    """The boxes of the words `diverged` as they are drawn, and the box of the axes, in pixels."""
    axes = figure.axes[0]
    words = [text for text in axes.texts if text.get_text() == "diverged"]
    return [word.get_window_extent() for word in words], axes.get_window_extent()


@pytest.mark.parametrize("last", [0, 1, 10, 18])
@pytest.mark.parametrize("peak", [1.0, 9.0])
def test_the_word_diverged_stays_inside_the_axes(drawn, last, peak):
    lost = [peak] * (last + 1) + [math.nan] * (19 - last)
    plot.lines({"a": (range(20), lost), "b": (range(20), [float(i) / 2 for i in range(20)])}, xlabel="x", ylabel="y")
    (word,), axes = _saying_diverged(drawn[0][0])
    assert axes.x0 <= word.x0 < word.x1 <= axes.x1
    assert axes.y0 <= word.y0 < word.y1 <= axes.y1


def test_ticks_stand_at_the_points_in_digits(drawn):
    plot.lines({"a": ([16, 64, 1024], [1, 2, 4])}, xlabel="x", ylabel="y", log_x=True, log_y=True, ticks="xy")
    axes = drawn[0][0].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64", "1,024"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "4"]
    assert not [*axes.get_xticks(minor=True), *axes.get_yticks(minor=True)]


def test_lines_that_diverge_together_say_so_once_and_others_apart(drawn):
    together, later = [1.0, 5.0, math.nan, math.nan], [1.0, 1.0, 1.0, math.nan]
    series = {"a": (range(4), together), "b": (range(4), together), "c": (range(4), later)}
    plot.lines(series, xlabel="step", ylabel="loss (nats)")
    (one, other), _ = _saying_diverged(drawn[0][0])
    assert not one.overlaps(other)


def test_a_line_without_one_finite_value_is_said_to_be_so(drawn):
    plot.lines({"a": ([0, 1], [math.nan] * 2), "b": ([0, 1], [1, 2])}, xlabel="step", ylabel="loss (nats)", log_y=True)
    assert "a (no finite value)" in _texts(drawn[0][0].axes[0])


def test_labels_never_overlap_and_keep_their_order():
    placed = plot._spread([0.5, 0.5, 0.1, 0.51, 1.0], 0.1)
    ordered = sorted(placed)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(ordered, ordered[1:], strict=False))
    assert placed[2] == min(placed)
    assert placed[4] == max(placed) < 1, "the title stands above 1"


def test_runs_draws_the_median_seed_and_the_range(drawn):
    arm = [([1.0, 2.0], [0.1, 0.5]), ([1.2, 2.2], [0.3, 0.6]), ([9.0, 9.9], [0.2, 0.9])]
    plot.runs({"arm": arm}, xlabel="time (s)", ylabel="accuracy")
    axes = drawn[0][0].axes[0]
    assert list(axes.lines[0].get_xdata()) == [1.2, 2.2]
    assert list(axes.lines[0].get_ydata()) == [0.2, 0.6]
    assert axes.collections[0].get_datalim(axes.transData).extents == pytest.approx([1.2, 0.1, 2.2, 0.9])


def test_runs_of_which_most_diverge_diverge(drawn):
    arm = [([0, 1], [1.0, math.nan]), ([0, 1], [1.0, 0.5]), ([0, 1], [1.0, math.nan])]
    plot.runs({"arm": arm}, xlabel="step", ylabel="loss (nats)")
    assert "diverged" in _texts(drawn[0][0].axes[0])


def test_sharpness_is_drawn_against_two_over_the_rate(drawn):
    plot.sharpness([0, 1, 2, 3], [100.0, 50.0, 20.0, 5.0], [0.0, 0.1, 0.4, 0.0])
    axes = drawn[0][0].axes[0]
    edge = next(line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_marker() == "s")
    assert list(edge.get_xdata()) == [1, 2]
    assert list(edge.get_ydata()) == pytest.approx([20, 5])
    assert "diverged" not in _texts(axes)
    assert axes.get_yscale() == "log"


@pytest.mark.parametrize("channels", [1, 3])
def test_images_stand_under_their_classes_and_short_sheets_stay_blank(drawn, channels):
    inputs = torch.rand(5, channels, 8, 8)
    split = Split(name="s", inputs=inputs, targets=torch.tensor([0, 1, 0, 1, 1]), classes=("cat", "dog"), sha256="")
    plot.images(split, rows=2, columns=3)
    panels = drawn[0][0].axes
    assert [panel.get_title() for panel in panels] == ["cat", "dog", "cat", "dog", "dog", ""]
    assert [len(panel.images) for panel in panels] == [1] * 5 + [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot.samples({}), "samples needs at least one candidate"),
        (lambda: plot.lines({}, xlabel="x", ylabel="y"), "lines needs at least one series"),
        (lambda: plot.lines({"a": ([0], [0])}, xlabel="", ylabel="y"), "an axis without a label"),
        (lambda: plot.lines({"a": ([0, 1], [0])}, xlabel="x", ylabel="y"), "'a' has 2 values of x and 1 of y"),
        (lambda: plot.runs({"a": [([0], [0]), ([0, 1], [0, 1])]}, xlabel="x", ylabel="y"), "the runs of 'a' differ"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_background_is_transparent_and_the_bytes_repeat(drawn):
    from matplotlib import image

    for _ in range(2):
        plot.samples(BENCH)
    first, second = (look.png(figure) for figure, _ in drawn)
    assert first == second
    assert b"Software" not in first
    opacity = image.imread(io.BytesIO(first))[..., 3]
    assert (opacity == 0).mean() > 0.8


def test_in_a_notebook_it_is_displayed_once_with_its_sentence(monkeypatch):
    shown = []
    monkeypatch.setattr(look, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    assert plot.samples(BENCH) is None
    ((data, options),) = shown
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["text/plain"] == options["metadata"]["image/png"]["alt"]
    assert options["raw"]


def test_outside_a_notebook_a_sentence_is_printed_and_pyplot_never_loaded(tmp_path):
    code = (
        "from labkit import plot; import sys; plot.samples({'a': [1, 2, 3]}); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["[Figure: timing samples: a, 3 samples.]", "False"], done.stderr
    assert not done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("drawn")
def test_the_style_does_not_leak_into_the_readers_own_figures():
    from matplotlib import rcParams, rcParamsDefault

    plot.samples(BENCH)
    assert {key: rcParams[key] for key in look.STYLE} == {key: rcParamsDefault[key] for key in look.STYLE}
