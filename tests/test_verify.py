"""The estimate against measurement: a part of the grid in seconds, all of it as a slow test; what counts as a miss."""

from dataclasses import replace

import pytest

from labkit import verify, verify_grid
from labkit.states import Plan
from labkit.verify import live_row, misses
from labkit.verify_grid import Row, gpt_style, llama_style

QUICK = [
    ("tuned", gpt_style(), Plan(precision="autocast", batch=2, seq=64)),
    ("tuned", llama_style(), Plan(precision="mixed", batch=2, seq=64)),
    ("held out", llama_style(vocab=64), Plan(precision="bf16", batch=4, seq=128, recompute="full")),
    ("held out", gpt_style(vocab=64), Plan(precision="fp32", seq=256, attention="math", recompute="selective")),
    ("tuned", llama_style(), Plan(precision="mixed", batch=1, seq=32, fused=True)),
    ("tuned", gpt_style(width=512), Plan(precision="mixed", batch=1, seq=32, optimizer="momentum")),
    ("tuned", gpt_style(vocab=64), Plan(precision="fp32", seq=256, attention="math", recompute="selective")),
    ("tuned", llama_style(vocab=64), Plan(precision="bf16", batch=4, seq=256, attention="math", recompute="full")),
]


def test_a_part_of_the_grid_meets_its_bars():
    found = [live_row(*each) for each in QUICK]
    assert not misses(found), "\n".join(misses(found))
    assert len({row.phase for row in found}) > 1, "one phase alone would show little"


@pytest.mark.slow
def test_the_whole_live_grid_meets_its_bars():
    found = list(verify.live_rows())
    assert len(found) >= 40
    assert not misses(found), "\n".join(misses(found))


@pytest.mark.slow
def test_states_on_real_ranks_and_real_processes_are_near():
    from labkit.verify_real import process_rows, rest_rows

    at_rest = list(rest_rows())
    assert len(at_rest) == 12
    assert not misses(at_rest), "\n".join(misses(at_rest))
    assert all(0.8 < row.ratio < 1.25 for row in process_rows())


def test_the_grid_holds_out_what_the_form_was_not_written_beside():
    tuned, held_out = list(verify_grid.tuned()), list(verify_grid.held_out())
    assert len(tuned) + len(held_out) >= 40
    assert not {verify_grid.describe(*each) for each in tuned} & {verify_grid.describe(*each) for each in held_out}
    assert {plan.recompute for _, plan in tuned} == {"none"}
    assert {plan.recompute for _, plan in held_out} == {"none", "selective", "full"}


def test_a_miss_is_named_and_fails(monkeypatch, capsys):
    right = Row("tuned", "a", "loss", 1000, 1000)
    monkeypatch.setattr(verify, "rows", lambda: [right, right, replace(right, predicted=1040)])
    assert verify.main() == 0
    assert "tuned: 3 rows, median error 0.00%, worst 4.00%" in capsys.readouterr().out
    monkeypatch.setattr(verify, "rows", lambda: [right, right, replace(right, predicted=1060)])
    assert verify.main() == 1
    assert "tuned: worst error 6.0%, and 5.0% is allowed." in capsys.readouterr().out
    monkeypatch.setattr(verify, "rows", lambda: [right, *[replace(right, predicted=980)] * 2])
    assert verify.main() == 1
    assert "tuned: median error 2.0%, and 1.0% is allowed." in capsys.readouterr().out


def test_a_group_without_a_bar_is_shown_and_not_held_to_one():
    assert misses([Row("a process", "a", "loss", 1500, 1000)]) == []
