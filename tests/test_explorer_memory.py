"""The explorer of memory: what it draws and says, its controls used as a front end would, how soon it answers."""

import asyncio
import json
import re
import subprocess
import sys
from statistics import median

import ipywidgets
import pytest

from labkit import explorer_memory, show
from labkit.cards import card
from labkit.memory_report import report
from labkit.plot_memory import PARTS
from labkit.presets import preset
from labkit.states import Plan
from labkit.units import format_bytes

MODULE = sys.modules["labkit.explorer_memory"]
LLAMA = preset("llama-3-8b")
AT_ONCE_S = 0.1  # what a person takes for at once: Nielsen, Usability Engineering (1993), section 5.5


@pytest.fixture
def box():
    """The explorer's knobs by their labels, what it shows, and what it advises."""
    made = explorer_memory.controls(ipywidgets, "llama-3-8b", "A100-80", Plan(ranks=8, seq=2048))
    knobs, shown, advised = made.children
    return {knob.description: knob for knob in knobs.children}, shown, advised


def words(html):
    """The text of a piece of HTML."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_each_stage_is_the_reports_and_the_chosen_one_is_marked():
    plan, a100 = Plan(ranks=8, zero=1, seq=2048), card("A100-80")
    rows = explorer_memory.compared(LLAMA, plan, a100)
    assert list(rows) == ["ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3"]
    assert [each.plan.zero for each in rows.values()] == [0, 1, 2, 3]
    drawn = explorer_memory.html(rows, report(LLAMA, plan, a100))
    for label, each in rows.items():
        bar = drawn.split(f'aria-label="{label}: ')[1].split("</div></div>")[0]
        widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", bar)]
        shares = [size / each.total_bytes for size in each.parts.values()]
        assert [width / sum(widths) for width in widths] == pytest.approx(shares, abs=1e-3)
        assert bar.startswith(format_bytes(each.total_bytes))
        assert all(f"{part} {format_bytes(each.parts[part])}" in bar for part in PARTS)
    rows_of_table = words(drawn.split("<table")[1].split("</table>")[0])
    for label, each in rows.items():
        assert " ".join([label, *map(format_bytes, each.parts.values())]) in rows_of_table
    assert drawn.count("<b>▸ ZeRO 1</b>") == drawn.count("▸") == 1


def test_the_cards_line_stands_at_the_same_place_in_every_bar():
    rows = explorer_memory.compared(LLAMA, Plan(ranks=8), card("A100-80"))
    drawn = explorer_memory.html(rows, rows["ZeRO 0"])
    (place,) = set(re.findall(r"left: ([\d.]+)%; border-left", drawn))
    widest = max(each.total_bytes for each in rows.values())
    assert float(place) == pytest.approx(100 * card("A100-80").memory_bytes / (1.01 * widest), abs=0.01)


def test_without_a_front_end_it_is_the_same_as_text(capsys):
    explorer_memory.explore("llama-3-8b", "A100-80", ranks=8, zero=1, seq=2048)
    said = capsys.readouterr().out
    found = report(LLAMA, Plan(ranks=8, zero=1, seq=2048), card("A100-80"))
    assert [line[:8] for line in said.splitlines()[1:5]] == ["  ZeRO 0", "* ZeRO 1", "  ZeRO 2", "  ZeRO 3"]
    assert f"* ZeRO 1: {format_bytes(found.total_bytes)}: parameters 16.1 GB, " in said
    assert ("It fits: A100-80" in said) == found.fits
    assert "<" not in said


def test_alone_it_starts_where_zero_has_something_to_share(capsys):
    explorer_memory.explore()
    totals = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()[1:5]]
    assert len(set(totals)) == 4


@pytest.mark.parametrize("given", [{"model": "gpt5"}, {"card": "X"}, {"zero": 9}, {"tp": 3, "ranks": 3}])
def test_what_is_impossible_from_the_start_is_a_sentence(given):
    with pytest.raises(ValueError, match=r"There is no|must be one of|does not divide"):
        explorer_memory.explore(**given)


def test_every_knob_changes_what_is_shown(box):
    knobs, shown, _ = box
    changes = {
        **{"Model": "llama-2-7b", "Card": "T4", "Trained": (16, 4), "Ranks": 64, "ZeRO stage": 3, "Tensor parallel": 2},
        **{"Batch a rank": 4, "Tokens": 8192, "Recomputation": "full", "Precision": "fp32", "Optimizer": "adam-8bit"},
        **{"Attention": "math", "Fused optimizer": True},
    }
    assert changes.keys() == knobs.keys()
    for name, value in changes.items():
        before, was = shown.value, knobs[name].value
        knobs[name].value = value
        assert shown.value != before, name
        knobs[name].value = was
        assert shown.value == before, name


def test_it_says_what_to_change_first_and_the_change_is_enough(box):
    knobs, shown, advised = box
    assert "It does not fit" in shown.value
    stage = re.search(r"Change first: ZeRO stage (\d)", advised.value)[1]
    knobs["ZeRO stage"].value = int(stage)
    assert "It fits" in shown.value
    assert advised.value == ""


def test_with_a_loop_the_advice_waits_until_the_knobs_rest(box, monkeypatch):
    knobs, shown, advised = box
    sought = []
    monkeypatch.setattr(MODULE, "_advice", lambda found: sought.append(found.plan.ranks) or f"{found.plan.ranks} ranks")

    async def turn():
        for ranks in (1, 2, 4):
            knobs["Ranks"].value = ranks
            assert f"{ranks}" in shown.value
            assert "Looking for" in advised.value
        await asyncio.sleep(3 * MODULE._PAUSE_S)

    asyncio.run(turn())
    assert sought == [4], "only of the last"
    assert "4 ranks" in advised.value


def test_an_impossible_combination_is_a_sentence_and_the_way_back_is_open(box):
    knobs, shown, _ = box
    before = shown.value
    knobs["Model"].value = "gpt2"
    assert "gpt2 has 1024 positions, too few for sequences of 2048" in shown.value
    knobs["Model"].value = "llama-3-8b"
    assert shown.value == before
    knobs["Optimizer"].value = "adafactor"
    assert "not possible" in shown.value, "the stages that cannot be done, beside the one that can"
    knobs["ZeRO stage"].value = 2
    assert "▸" not in shown.value
    assert "ZeRO 2" in shown.value


def test_what_no_menu_has_is_kept():
    plan = Plan(ranks=48, pp=2, seq=3000, lora=5, batch=7)
    made = explorer_memory.controls(ipywidgets, "LLAMA-3-8B", "H100", plan)
    knobs = {knob.description: knob for knob in made.children[0].children}
    assert [knobs[name].value for name in ("Ranks", "Tokens", "Batch a rank", "Trained")] == [48, 3000, 7, (5, 16)]
    found = report(LLAMA, plan, card("H100"))
    assert f"{format_bytes(found.total_bytes)}, " in words(made.children[1].value)


def test_knobs_have_names_and_text_has_the_themes_colour(box):
    knobs, shown, _ = box
    assert all(knobs)
    assert "color: var(--jp-content-font-color1, inherit)" in shown.value
    pieces = re.findall(r"background-color: (#\w+); color: (\w+)", shown.value)
    assert len(pieces) == 4 * len(PARTS), "whatever stands on a colour has its own"


def test_in_a_notebook_all_forms_are_given(monkeypatch):
    given = []
    for module in (show, MODULE):
        monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, **_: given.append(data))
    explorer_memory.explore()
    assert {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"} <= given[0].keys()
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    explorer_memory.explore()
    assert given[1].keys() == {"text/plain", "text/html"}


_TURN = """
import asyncio, json, sys, time
import ipywidgets
from labkit import explorer_memory
from labkit.states import Plan

async def turned(model):
    box = explorer_memory.controls(ipywidgets, model, "A100-80", Plan(ranks=8, seq=2048))
    (knob,) = [knob for knob in box.children[0].children if knob.description == "Ranks"]
    for ranks in (1, 2, 4, 16, 32, 64, 128):
        start_s = time.thread_time()
        knob.value = ranks
        yield time.thread_time() - start_s

async def main():
    return [[seconds async for seconds in turned(model)] for model in sys.argv[1:]]

print(json.dumps(asyncio.run(main())))
"""


def test_a_change_is_answered_at_once():
    """In a process of its own, as a reader has it, without this run's checks of types; in the time of its one thread.

    Whatever other processes do meanwhile does not count.
    """
    models = ("llama-3-8b", "llama-3.1-405b", "mixtral-8x22b", "megatron-1t")
    done = subprocess.run([sys.executable, "-c", _TURN, *models], capture_output=True, text=True, check=True)
    taken_s = {model: median(each) for model, each in zip(models, json.loads(done.stdout), strict=True)}
    assert max(taken_s.values()) < AT_ONCE_S, taken_s
