"""The estimate against measurement: a part of the grid in seconds, all of it as a slow test; what counts as a miss."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import verify, verify_grid, verify_real
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
    processes = list(process_rows())
    assert len(processes) == 3 or not Path("/proc/self/status").exists()
    assert not misses(processes), "\n".join(misses(processes))


def test_the_grid_holds_out_what_the_form_was_not_written_beside():
    tuned, held_out = list(verify_grid.tuned()), list(verify_grid.held_out())
    assert len(tuned) + len(held_out) >= 40
    assert not {verify_grid.describe(*each) for each in tuned} & {verify_grid.describe(*each) for each in held_out}
    assert {plan.recompute for _, plan in tuned} == {"none"}
    assert {plan.recompute for _, plan in held_out} == {"none", "selective", "full"}


def test_a_miss_is_named_and_fails(monkeypatch, capsys):
    right = Row("tuned", "a", "loss", 1000, 1000)
    others = [replace(right, group=group) for group in ("held out", "at rest")]
    monkeypatch.setattr(verify, "rows", lambda: [right, right, replace(right, predicted=1040), *others])
    assert verify.main() == 0
    assert "tuned: 3 rows, median error 0.00%, worst 4.00%" in capsys.readouterr().out
    monkeypatch.setattr(verify, "rows", lambda: [right, right, replace(right, predicted=1060), *others])
    assert verify.main() == 1
    assert "tuned: worst error 6.0%, and 5.0% is allowed." in capsys.readouterr().out
    monkeypatch.setattr(verify, "rows", lambda: [right, *[replace(right, predicted=980)] * 2, *others])
    assert verify.main() == 1
    assert "tuned: median error 2.0%, and 1.0% is allowed." in capsys.readouterr().out


def _peak_of_a_child(before_bytes: int) -> list[int]:
    """What a child that allocates 64 MB sees, by getrusage and by resident_bytes, when its parent once had so much."""
    code = f"""
import subprocess, sys
big = bytearray({before_bytes})
big[::4096] = b"x" * len(big[::4096])
del big
child = '''
import resource
from labkit.verify_real import resident_bytes
old = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
gone = bytearray(200_000_000)
gone[::4096] = b"x" * len(gone[::4096])
del gone
before = resident_bytes(anew=True)
here = bytearray(64_000_000)
here[::4096] = b"x" * len(here[::4096])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - old, resident_bytes() - before)
'''
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux's /proc")
def test_a_process_is_measured_by_itself_whatever_its_parent_once_took():
    by_usage, own = _peak_of_a_child(600_000_000)
    assert by_usage < 1e6, "getrusage carries the parent's peak over, and sees nothing"
    assert own == pytest.approx(64e6, rel=0.05)


def test_where_the_peak_cannot_be_set_back_the_one_so_far_is_taken(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    12 kB\nVmRSS:\t    10 kB\n", encoding="ascii")
    monkeypatch.setattr(verify_real, "_STATUS", status)
    monkeypatch.setattr(verify_real, "_RESET", tmp_path / "none" / "clear_refs")
    assert verify_real.resident_bytes(anew=True) == 12 * 1024
    monkeypatch.setattr(verify_real, "_STATUS", tmp_path / "none")
    assert list(verify_real.process_rows()) == []
    assert "Real processes are not measured" in verify_real.not_measured()[0]


def test_what_measured_nothing_or_was_not_measured_is_no_success(monkeypatch, capsys):
    right = Row("tuned", "a", "loss", 1000, 1000)
    monkeypatch.setattr(verify, "rows", lambda: [right, replace(right, group="held out")])
    assert verify.main() == 1
    assert "at rest: nothing was measured." in capsys.readouterr().out
    nothing = Row("a process", "a", "loss", 1000, 0)
    assert nothing.ratio == float("inf")
    assert misses([nothing])


@pytest.mark.parametrize("group", verify.BARS)
def test_every_group_has_a_bar_that_can_be_missed(group):
    assert misses([Row(group, "a", "loss", 12_000, 1000)])
    assert not misses([Row(group, "a", "loss", 1000, 1000)])


def test_what_ranks_hold_at_rest_is_exact():
    assert misses([Row("at rest", "a", "at rest", 1_000_001, 1_000_000)])
