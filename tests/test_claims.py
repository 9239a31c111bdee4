"""Claims: a stable line, marked figures, never a pass by default. Predictions: the guess as it stands when shown."""

import re
import sys

import numpy as np
import pytest
import torch

from labkit import hardware, repro, show, widgets
from labkit.claims import ClaimRefuted, Result, claim, predict, results, reveal

MODULE = sys.modules[claim.__module__]
MARKED = re.compile(f"{re.escape(show.VARYING_OPEN)}.*?{re.escape(show.VARYING_CLOSE)}", re.DOTALL)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No claims and guesses of other tests, and a full, forgiving run on a machine without a GPU."""
    monkeypatch.setattr(MODULE, "_results", {})
    monkeypatch.setattr(MODULE, "_guesses", {})
    monkeypatch.setattr(hardware, "tier", lambda: "cpu")
    for name in ("LABKIT_BUDGET", "LABKIT_STRICT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook would be given to display."""
    shown = []
    for module in (show, MODULE, widgets):
        monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data) if raw else None)
    return shown


def stable(text):
    """What stays of an output when the marked parts are taken out."""
    return re.sub(r"^    · .*\n?", "", MARKED.sub("", text), flags=re.MULTILINE)


def test_a_claim_is_a_stable_line_and_marked_figures(capsys):
    claim("b is faster", holds=True, evidence="3.1x\nmedians of 9")
    claim("b is small", holds=False, evidence="7 MB", cause="Padding.")
    claim("c is faster", holds=None, evidence="no GPU here", tier="gpu")
    claim("d is faster", holds=None, evidence="one GPU", tier="gpu2", needs="2 GPUs with NVLink")
    assert capsys.readouterr().out == (
        "✓ b is faster\n    · 3.1x\n    · medians of 9\n"
        "✗ b is small\n  likely cause: Padding.\n    · 7 MB\n"
        "– c is faster · needs: 1 GPU\n    · no GPU here\n    · not yet recorded on a machine that can decide it\n"
        "– d is faster · needs: 2 GPUs with NVLink\n    · one GPU\n"
        "    · not yet recorded on a machine that can decide it\n"
    )
    assert [one.status for one in results()] == ["held", "refuted", "undecided", "undecided"]


@pytest.mark.parametrize("holds", [True, np.True_, torch.tensor(True), np.array(True)])
def test_any_bool_decides(holds):
    claim("it holds", holds=holds, evidence="1")
    claim("it does not", holds=not holds, evidence="1")
    assert [one.status for one in results()] == ["held", "refuted"]


def test_a_claim_about_compiled_code_waits_for_a_compiler(monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_STRICT", "1")
    monkeypatch.setattr(MODULE.hardware, "missing_to_compile", lambda on_gpu: "a C compiler" if on_gpu else "")
    with pytest.raises(ValueError, match="'compiler': this machine must decide"):
        claim("fused is faster", holds=None, evidence="1", tier="compiler")
    monkeypatch.setattr(MODULE.hardware, "missing_to_compile", lambda **_: "Python's header files")
    with pytest.raises(ValueError, match="which this machine has not"):
        claim("fused is faster", holds=True, evidence="1", tier="compiler")
    claim("fused is faster", holds=None, evidence="not measured", tier="compiler")
    assert capsys.readouterr().out.startswith("– fused is faster · needs: Python's header files\n")


def test_a_claim_about_accelerate_waits_for_the_package(monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_STRICT", "1")
    monkeypatch.setattr(MODULE, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match="'accelerate': this machine must decide"):
        claim("it trains alone", holds=None, evidence="1", tier="accelerate")
    claim("it trains alone", holds=True, evidence="1", tier="accelerate")
    monkeypatch.setattr(MODULE, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="which this machine has not"):
        claim("it trains alone", holds=True, evidence="1", tier="accelerate")
    claim("it trains alone", holds=None, evidence="not run", tier="accelerate")
    assert "– it trains alone · needs: accelerate (pip install accelerate)\n" in capsys.readouterr().out


def test_a_machine_too_busy_to_decide_is_no_error_in_class(monkeypatch, capsys):
    monkeypatch.delenv("LABKIT_STRICT", raising=False)
    claim("A is faster", holds=None, evidence="0.9 to 1.3 times")
    assert capsys.readouterr().out.startswith("– A is faster · needs: a quieter machine\n")
    assert [one.status for one in results()] == ["undecided"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"holds": None}, "this machine must decide"),
        ({"holds": None, "needs": "a quiet machine"}, "this machine must decide"),
        ({"holds": True, "evidence": " "}, "no evidence"),
        ({"holds": 1}, "True, False or None"),
        ({"holds": torch.tensor([True, False])}, "True, False or None"),
        ({"holds": np.array([])}, "True, False or None"),
        ({"holds": torch.ones((), dtype=torch.bool, device="meta")}, "True, False or None"),
        ({"holds": True, "evidence": None}, "evidence is text"),
        ({"holds": True, "evidence": 3.0}, "evidence is text"),
        ({"holds": "yes"}, "True, False or None"),
        ({"holds": True, "tier": "gpu"}, "which this machine has not"),
        ({"holds": True, "tier": "tpu"}, "'cpu', 'compiler', 'accelerate', 'amx', 'gpu', 'gpu2'"),
    ],
)
def test_a_badly_made_claim_is_an_error_and_no_result(options, said, monkeypatch):
    monkeypatch.setenv("LABKIT_STRICT", "1")
    with pytest.raises(ValueError, match=said):
        claim("text", **{"evidence": "1"} | options)
    assert results() == []


@pytest.mark.parametrize("holds", [None, True, False, np.False_])
def test_a_smoke_budget_decides_no_claim(holds, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_BUDGET", "smoke")
    monkeypatch.setenv("LABKIT_STRICT", "1")
    assert repro.budget() == "smoke"
    claim("b is faster", holds=holds, evidence="one repeat only")
    assert capsys.readouterr().out.startswith("– b is faster · needs: the full budget\n")
    claim("a GPU is faster", holds=None, evidence="none here", tier="gpu")
    assert capsys.readouterr().out.startswith("– a GPU is faster · needs: 1 GPU\n")


def test_a_refuted_claim_raises_in_a_strict_run_after_it_was_shown(monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_STRICT", "1")
    claim("it holds", holds=True, evidence="1")
    claim("it cannot be decided", holds=None, evidence="1", tier="gpu")
    with pytest.raises(ClaimRefuted, match="b is faster: 0.9x"):
        claim("b is faster", holds=False, evidence="0.9x")
    assert "✗ b is faster" in capsys.readouterr().out
    assert results()[-1] == Result(text="b is faster", status="refuted", evidence="0.9x")


def test_a_claim_made_again_replaces_its_earlier_result():
    claim("b is faster", holds=False, evidence="0.9x")
    claim("another", holds=True, evidence="1")
    claim("b is faster", holds=True, evidence="2x")
    assert [(one.text, one.status, one.evidence) for one in results()] == [
        ("b is faster", "held", "2x"),
        ("another", "held", "1"),
    ]


def test_in_html_held_and_undecided_compare_equal_and_refuted_does_not(displayed):
    claim("b < c", holds=True, evidence="3 & more")
    claim("b < c", holds=None, evidence="recorded", tier="gpu")
    claim("b < c", holds=False, evidence="0.9x")
    held, undecided, refuted = (stable(one["text/html"]) for one in displayed)
    assert held == undecided
    assert "b &lt; c" in held
    assert "refuted" in refuted
    assert "0.9x" not in refuted
    assert [one["text/html"].count("<div") - one["text/html"].count("</div>") for one in displayed] == [0, 0, 0]


def test_a_guess_is_compared_with_what_is_measured(capsys):
    predict("s", "How many times faster?", default=3, unit="x", low=1, high=10)
    assert capsys.readouterr().out == "? How many times faster?\n  The guess is 3 x unless you change it.\n"
    for measured, said in [
        (6, "The measurement is 2 times the guess."),
        (1, "The guess is 3 times the measurement."),
        (np.float64(3), "The guess is right."),
        (torch.tensor(-1.0), "The measurement lies 4 below the guess."),
        (float("nan"), "not a finite number"),
        (None, "not measured here"),
    ]:
        reveal("s", measured)
        out = capsys.readouterr().out
        assert said in out
        assert "default guess, left as it was: 3 x" in out
        assert stable(out) == "= How many times faster?\n"


def test_what_cannot_be_measured_here_is_compared_with_what_others_measured(capsys):
    predict("s", "How many times faster?", default=3, unit="x", low=1, high=10)
    elsewhere = {"Tesla T4, 2026-11-30": 6}
    capsys.readouterr()
    reveal("s", None, elsewhere=elsewhere)
    out = capsys.readouterr().out
    assert "not measured here" in out
    assert "on Tesla T4, 2026-11-30: 6 x. The measurement is 2 times the guess." in out
    assert stable(out) == "= How many times faster?\n"
    reveal("s", 3, elsewhere=elsewhere)
    assert "Tesla" not in capsys.readouterr().out, "what is measured here is what counts"


@pytest.mark.parametrize(("how", "noun"), [("counted", "count"), ("computed", "computed figure")])
def test_what_was_not_measured_is_not_called_a_measurement(capsys, how, noun):
    predict("s", "How many times faster?", default=3, unit="x", low=1, high=10)
    for figure in (6, 1, -1, float("nan"), None):
        reveal("s", figure, how=how)
    out = capsys.readouterr().out
    assert f"{how}: 6 x" in out
    assert f"The {noun} is 2 times the guess." in out
    assert f"The guess is 3 times the {noun}." in out
    assert f"not {how} here" in out
    assert "measure" not in out
    with pytest.raises(ValueError, match="'s' may be 'measured', 'counted', 'computed', and not 'guessed'"):
        reveal("s", 6, how="guessed")


def test_a_reveal_without_a_guess_is_a_sentence(capsys):
    reveal("s", 1.0)
    assert "Run the cell with predict('s', ...) first." in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, 3, " "])
def test_a_claim_without_words_is_an_error(text):
    with pytest.raises(ValueError, match="A claim is a sentence, not"):
        claim(text, holds=True, evidence="1")
    assert results() == []


@pytest.mark.parametrize("measured", [[1.0], [1.0, 2.0], torch.ones(2), "fast", {}])
def test_what_is_no_number_cannot_be_revealed(measured):
    predict("s", "?", default=3)
    with pytest.raises(ValueError, match="'s' was guessed as a number, and is measured as"):
        reveal("s", measured)


def test_a_default_outside_the_bounds_is_an_error():
    with pytest.raises(ValueError, match="does not lie between"):
        predict("s", "?", default=30, low=1, high=10)


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [((), "FloatText"), ((0, 30), "IntSlider"), ((1, 100), "IntSlider"), ((0, 99.5), "FloatSlider")]
    + [((0, 1000), "FloatSlider"), ((1, 1000), "FloatLogSlider")],
)
def test_in_a_notebook_the_guess_is_a_labelled_control_read_when_revealed(displayed, bounds, kind):
    controls = MODULE._guesses
    predict("s", "How <many>?", default=5, unit="x", **dict(zip(("low", "high"), bounds, strict=False)))
    data = displayed.pop()
    assert data["text/plain"] == "? How <many>?\n  The guess is 5 x unless you change it."
    assert "How &lt;many&gt;?" in data["text/html"]
    assert "model" not in data["text/plain"] + data["text/html"]
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"]
    control = controls["s"].control
    assert type(control).__name__ == kind
    assert control.description == "Your guess"
    assert control.style.description_width == "initial"
    reveal("s", 10.0)
    assert "default guess, left as it was: 5 x" in displayed.pop()["text/plain"]
    control.value = 20.0
    reveal("s", 10.0)
    text = displayed.pop()["text/plain"]
    assert "your guess: 20 x" in text
    assert "The guess is 2 times the measurement." in text
    predict("s", "How <many>?", default=5, unit="x", **dict(zip(("low", "high"), bounds, strict=False)))
    assert controls["s"].value() == pytest.approx(20.0), "running the cell again keeps the guess"


def test_without_ipywidgets_a_sentence_says_what_to_do(displayed, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    predict("s", "How many?", default=5)
    assert "change default= in this cell" in displayed[0]["text/plain"]
    assert list(displayed[0]) == ["text/plain", "text/html"]
    reveal("s", 10)
    assert "The measurement is 2 times the guess." in displayed[1]["text/plain"]


@pytest.mark.notebook
def test_in_a_real_kernel_outputs_are_the_same_twice_without_the_widget_views():
    import nbclient
    import nbformat

    sources = (
        "from labkit.claims import claim, predict, reveal\nimport time",
        "predict('s', 'How many seconds?', default=3, unit='s', low=1, high=1000)",
        "reveal('s', time.time())",
        "claim('time passes', holds=True, evidence=f'{time.time()} s')",
    )
    runs = []
    for _ in range(2):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        outputs = [output["data"] for cell in notebook.cells for output in cell.outputs]
        runs.append([(stable(data["text/plain"]), stable(data["text/html"])) for data in outputs])
    assert len(runs[0]) == 3
    assert runs[0] == runs[1]
