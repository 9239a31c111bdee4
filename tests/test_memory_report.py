"""The report on memory: what is counted, what is said of it, and that it reads well in any terminal."""

import json
from dataclasses import replace

import pytest

from labkit import memory_report
from labkit.cards import CARDS, card
from labkit.estimate import estimate
from labkit.memory_report import ASCII, BLOCKS, report
from labkit.plot_memory import PARTS
from labkit.presets import preset
from labkit.states import Plan

LLAMA, GPT2 = preset("llama-3-8b"), preset("gpt2")
PLAN = Plan(ranks=8, zero=1, seq=4096, batch=2)


def test_every_figure_is_the_estimates():
    found, guess = report(LLAMA, PLAN, card("H100")), estimate(LLAMA, PLAN)
    assert found.parts == {part: getattr(guess, f"{part}_bytes") for part in PARTS}
    assert (found.total_bytes, found.phase, found.stage) == (guess.total_bytes, guess.phase, guess.stage)
    assert found.fits == (guess.total_bytes <= CARDS["H100"].memory_bytes)


def test_as_json_its_parts_add_up():
    read = json.loads(memory_report.as_json(report(LLAMA, PLAN, card("H100"))))
    assert sum(read[f"{part}_bytes"] for part in PARTS) == read["total_bytes"]
    assert (read["fits"], read["states_only"], read["gpu"]["name"]) == (False, False, "H100")
    assert read["phases_bytes"][read["phase"]] == read["total_bytes"] == max(read["phases_bytes"].values())
    assert (read["plan"]["ranks"], read["model"]["name"]) == (8, "llama-3-8b")
    assert json.loads(memory_report.as_json(report(GPT2, PLAN.__class__())))["fits"] is None


def test_the_states_at_rest_are_said_beside_the_peak():
    found = report(preset("llama-2-7b"), Plan(ranks=8, zero=2), card("A100-80"))
    size = 6_738_415_616  # as its makers' checkpoint has them
    rest = json.loads(memory_report.as_json(found))["at_rest"]
    assert rest == {"parameters_bytes": 2 * size, "gradients_bytes": size // 4, "optimizer_bytes": 12 * size // 8}
    said = " ".join(memory_report.text(found).split())
    assert "Its states at rest take 25.3 GB: parameters 13.5 GB, gradients 1.68 GB, optimizer 10.1 GB." in said


def test_what_the_step_of_the_optimizer_takes_is_said_and_a_fused_one_does_without():
    """Llama-2-7B by mixed Adam: 16 bytes a parameter at rest, 6 more while torch's default steps."""
    arch, size = preset("llama-2-7b"), 6_738_415_616
    default, fused = (report(arch, Plan(fused=each), card("H200")) for each in (False, True))
    assert default.total_bytes - default.parts["overhead"] == pytest.approx(22 * size, rel=1e-3)
    assert fused.total_bytes - fused.parts["overhead"] == pytest.approx(16 * size + 4 * 32000 * 4096, rel=1e-3)
    said = "40.4 GB of it are temporaries of that step, most of which a fused optimizer does without."
    assert said in memory_report.moment(default)
    assert "524 MB of it are temporaries of that step." in memory_report.moment(fused)
    assert memory_report.advice(default)[0].changes == ("a fused optimizer",)
    assert "optimizer fused adam" in memory_report.headline(fused)
    elsewhere = report(GPT2, Plan(batch=64))
    assert elsewhere.phase != "optimizer step"
    assert memory_report.moment(elsewhere) == f"The peak is in this moment: {elsewhere.phase}."


def test_of_a_bare_number_only_the_states_are_known():
    found = report(7_500_000_000, Plan(ranks=64, zero=3), card("T4"))
    read = json.loads(memory_report.as_json(found))
    assert [read[f"{part}_bytes"] for part in PARTS] == [234_375_000, 234_375_000, 1_406_250_000, None, None, None]
    assert (read["total_bytes"], read["states_only"], read["fits"]) == (1_875_000_000, True, True)
    said = " ".join(memory_report.text(found).split())
    assert "States only:" in said
    assert "What is known fits: T4" in said
    assert "activations come on top" in said
    assert said.count("not known") == 3
    over = " ".join(memory_report.text(report(7_500_000_000, Plan(ranks=64), card("T4"))).split())
    assert "What is known does not fit" in over
    assert "Change first: ZeRO stage" in over


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("name", ["H100", None])
@pytest.mark.parametrize("model", [LLAMA, GPT2, 10**18], ids=["llama", "gpt2", "huge"])
def test_no_line_is_wider_than_the_terminal(columns, name, model):
    found = report(model, Plan(zero=1, ranks=8), None if name is None else card(name))
    said = memory_report.text(found, columns=columns, signs=ASCII)
    assert max(map(len, said.splitlines())) <= max(columns, memory_report.NARROWEST)
    assert said.isascii()
    assert memory_report.text(found, columns=columns, signs=BLOCKS).translate(str.maketrans(BLOCKS, ASCII)) == said


@pytest.mark.parametrize("columns", [48, 80, 133])
def test_the_bar_is_to_scale(columns):
    parts = {"parameters": 20, "gradients": 20, "optimizer": 40, "activations": None, "logits": 0, "overhead": 20}
    drawn, ruler = memory_report.bar(parts, 50, columns, ASCII).split("\n")
    assert len(drawn) == columns
    counted = [drawn.count(sign) / columns for sign in ASCII]
    assert counted == pytest.approx([0.2, 0.2, 0.4, 0, 0, 0.2], abs=1 / columns)
    assert drawn == "".join(sorted(drawn, key=ASCII.index)), "in the order of the table"
    assert ruler.rindex("|") + 1 == columns // 2
    assert "50 B on the card" in ruler
    drawn, ruler = memory_report.bar(parts, 200, columns, ASCII).split("\n")
    assert (len(drawn), len(ruler)) == (columns // 2, columns)


def test_a_card_that_is_nothing_beside_the_need_still_has_its_mark():
    parts = dict.fromkeys(PARTS, 10**12)
    assert memory_report.bar(parts, 1, 80, ASCII).split("\n")[1] == "| 1 B on the card"


def test_the_table_holds_every_byte_and_every_sign():
    found = report(LLAMA, PLAN, card("H100"))
    lines = memory_report.text(found).splitlines()
    for sign, part in zip(BLOCKS, PARTS, strict=True):
        (line,) = [line for line in lines if line.startswith(f"{sign} {part}")]
        assert f"{found.parts[part]:,}" in line
    assert any(f"{found.total_bytes:,}" in line and line.endswith("100.0%") for line in lines)


def test_what_does_not_fit_comes_with_a_change_that_was_computed():
    found = report(LLAMA, PLAN, card("H100"))
    over = found.total_bytes - CARDS["H100"].memory_bytes
    assert over > 0
    said = " ".join(memory_report.text(found).split())
    assert f"It does not fit: {memory_report.format_bytes(over)} too much for H100" in said
    best, *_ = memory_report.advice(found)
    assert f"{best.changes[0]} (" in said
    assert report(LLAMA, best.plan, found.card).fits
    assert f"It then takes {memory_report.format_bytes(report(LLAMA, best.plan).total_bytes)}, " in said


def test_several_changes_that_cost_less_than_the_one_are_said_too():
    found = report(7_500_000_000, Plan(optimizer="momentum"), card("H100"))
    first, cheaper = memory_report.advice(found)
    assert first.changes == ("pure bf16",)
    assert cheaper.changes == ("ZeRO stage 1", "2 ranks, not 1")
    assert "Costs less, but needs 2 changes: ZeRO stage 1 + 2 ranks, not 1 (" in memory_report.change(found)


def test_what_nothing_helps_is_said():
    said = memory_report.change(report(preset("megatron-1t"), Plan(seq=2048, batch=64), card("T4")))
    assert said == "No combination of up to 4 changes makes it fit."


@pytest.mark.parametrize(("precision", "bits"), [("fp32", 32), ("autocast", 32), ("mixed", 16), ("bf16", 16)])
def test_a_frozen_base_is_called_as_wide_as_it_is_counted(precision, bits):
    plan = Plan(precision=precision, lora=8)
    found = report(LLAMA, plan)
    assert f"frozen base of {bits} bits" in memory_report.headline(found)
    assert found.rest.parameters_bytes == pytest.approx(8.03e9 * bits / 8, rel=0.01)
    assert "frozen base of 4 bits" in memory_report.headline(report(LLAMA, Plan(lora=8, base_bits=4)))


def test_a_models_name_gives_a_terminal_no_orders():
    said = memory_report.headline(report(replace(LLAMA, name="a\x1b[2Jb\nc"), Plan()))
    assert said.startswith("a?[2Jb?c, ")


def test_the_smallest_card_that_takes_it_is_named():
    found = report(GPT2, Plan(batch=64), card("T4"))
    larger = [each for each in CARDS.values() if each.memory_bytes >= found.total_bytes]
    assert not found.fits
    smallest = min(larger, key=lambda each: each.memory_bytes)
    assert f"As it is, it fits on {smallest.name} (" in memory_report.change(found)


def test_the_headline_names_what_was_asked_for():
    plan = Plan(ranks=16, tp=2, pp=2, zero=1, lora=8, base_bits=4, seq=9000)
    said = memory_report.headline(report(LLAMA, plan))
    for each in (
        "llama-3-8b",
        "8,030,261,248",
        "tp 2, pp 2, 4 data-parallel",
        "LoRA of rank 8",
        "4 bits",
        "9,000 tokens",
    ):
        assert each in said
    assert "more tokens than the 8,192 that llama-3-8b was made for" in said
    assert "of pipeline stage" in memory_report.moment(report(LLAMA, plan))
