"""The capstone's comparison: clocks, ratios, records, reports, and the cheats that it finds."""

import ast
import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import capstone_toys as toys
import numpy as np
import pytest

from labkit.capstone import changes, children, contest, doubts, recorded, report, running, task, waterfall
from labkit.capstone.children import run_child
from labkit.course import CourseError

SILENT = lambda _line: None
BASELINE = contest.BASELINE_SHA256


def written(folder, name, text):
    """A submission's folder."""
    place = folder / name
    place.mkdir()
    (place / "train.py").write_text(text)
    return place


def held(tmp_path, text, pairs=1, name="mine"):
    """The contest of a script against the slow toy."""
    slow = written(tmp_path, f"slow {name}", toys.SLOW) / "train.py"
    mine = written(tmp_path, name, text)
    return contest.contest(toys.task(), mine, baseline=slow, pairs=pairs, say=SILENT)


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The toy's baseline counts as the course's own."""
    monkeypatch.setattr(contest, "BASELINE_SHA256", hashlib.sha256(toys.SLOW.encode()).hexdigest())


@pytest.mark.slow
def test_a_faster_script_is_told_with_its_ratio_accuracy_changes_and_record(tmp_path):
    found = held(tmp_path, toys.RECORDED, pairs=2)
    assert all(one.reached for one in (*found.baseline, *found.submission))
    assert found.ratio.low <= found.ratio.value <= found.ratio.high
    assert found.cpu_ratio.value > 1
    assert found.test[0] == found.test[1] > 0.8
    assert found.record.same, found.record.said
    assert "3 values, all alike" in found.record.said
    assert found.changes.changed == ("main",)
    assert "labkit.repro.run" in found.changes.imports
    assert doubts.doubts(found) == []
    idle = dataclasses.replace(found.baseline[0], wall_s=100.0)
    assert "no processor for 9" in doubts.remarks(dataclasses.replace(found, baseline=(idle,)))[0]
    told = json.loads(report.as_json(found))
    assert told["ratio"]["value"] == found.ratio.value
    assert "Nothing was seen" in report.text(found)
    assert "<h1>mine</h1>" in report.html(found)


@pytest.mark.slow
def test_a_record_that_does_not_make_the_run_again_and_none_at_all(tmp_path):
    parted = held(tmp_path, toys.UNSEEDED, name="unseeded").record
    assert parted.same is False
    assert "0 of 3 values are alike, from loss at step 0 on" in parted.said
    none = held(tmp_path, toys.FAST, name="unrecorded").record
    assert none.same is None
    assert "left no record" in none.said


@pytest.mark.slow
@pytest.mark.parametrize("name", toys.CHEATS)
def test_a_cheat_is_seen(tmp_path, name):
    text = toys.CHEATS[name].replace("KEPT", str(tmp_path / "kept.npy"))
    found = held(tmp_path, text, pairs=2 if "between" in name else 1)
    assert toys.SAID[name] in " ".join(doubts.doubts(found))


def test_a_run_that_misses_the_target_is_no_speed(tmp_path):
    found = held(tmp_path, toys.CHEATS["writes results and trains nothing"])
    assert found.ratio == contest.Ratio(value=0.0, low=0.0, high=0.0)


@pytest.mark.slow
def test_a_script_that_fails_or_answers_wrongly_says_why(tmp_path):
    given = toys.task()
    failed = written(tmp_path, "failed", toys.script("raise SystemExit('no reason')\n"))
    assert "no reason" in running.once(given, failed, tmp_path / "a", seed=1, secret=1).why
    short = written(tmp_path, "short", toys.FAST + "\ndef predict(out, pixels):\n    return np.zeros(3)\n")
    assert "predict gave an array of shape (3,)" in running.once(given, short, tmp_path / "b", seed=1, secret=1).why
    silent = written(tmp_path, "silent", toys.FAST + "\ndef predict(out, pixels):\n    os._exit(0)\n")
    assert "shape (0,)" in running.once(given, silent, tmp_path / "d", seed=1, secret=1).why
    reader = 'assert not list(Path(out).parent.glob("*/validation.npz"))'
    looks = written(
        tmp_path,
        "looks",
        toys.FAST
        + f"\nonce = predict\ndef predict(*given):\n    out, _ = given\n    {reader}\n    return once(*given)\n",
    )
    assert running.once(given, looks, tmp_path / "e", seed=1, secret=1).reached
    slow = written(tmp_path, "endless", toys.script("time.sleep(60)\n"))
    assert "stopped after 1 s" in running.once(given, slow, tmp_path / "c", seed=1, secret=1, limit_s=1.0).why
    with pytest.raises(CourseError, match="a submission is a train.py"):
        running.script_of(tmp_path)
    (failed / "large.bin").write_bytes(bytes(running.MOST_BYTES + 1))
    with pytest.raises(CourseError, match="hand in code only"):
        running.script_of(failed)
    with pytest.raises(ValueError, match="compare nothing"):
        contest.contest(given, short, baseline=short / "train.py", pairs=0)


def test_classes_are_numbered_anew_and_wrong_names_touch_the_validation_labels_only(tmp_path):
    given = toys.task()
    one, two = (task.numbering(given, seed) for seed in (1, 2))
    assert sorted(one) == sorted(two) == list(range(8))
    assert list(one) != list(two)
    task.hand_out(given, tmp_path, one, validation=np.zeros(200, int))
    with np.load(tmp_path / "train.npz") as train, np.load(tmp_path / "validation.npz") as validation:
        assert (train["labels"] == one[given.train.labels]).all()
        assert not validation["labels"].any()
        assert set(validation.files) == {"pixels", "labels"}
    wrong = task.misnamed(given, one, 5)
    assert not (wrong == one[given.validation.labels]).any()
    assert len(set(zip(wrong, given.validation.labels, strict=True))) == 8  # one wrong name for each class


def test_the_median_of_ratios_and_its_interval():
    found = contest.bootstrapped([4.0, 5.0, 6.0, 4.5, 5.5])
    assert (found.value, found.low, found.high) == (5.0, 4.0, 6.0)
    assert contest.bootstrapped([3.0]) == contest.Ratio(value=3.0, low=3.0, high=3.0)
    assert contest.bootstrapped([]).value == 0
    many = contest.bootstrapped(list(np.random.default_rng(0).normal(5, 1, 400)))
    assert 4.7 < many.low < many.value < many.high < 5.2


def test_the_chance_of_so_many_or_more():
    assert doubts.at_least(0, 10, 0.5) == 1
    assert doubts.at_least(10, 10, 0.5) == pytest.approx(0.5**10)
    assert doubts.at_least(6, 10, 0.5) == pytest.approx(386 / 1024)


def test_seconds_are_of_the_process_and_its_children(tmp_path):
    busy = "import time\nwhile time.process_time() < 0.5: pass\n"
    nested = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])"
    ended = run_child([sys.executable, "-c", nested], folder=tmp_path, home=tmp_path / "h", limit_s=60)
    assert ended.cpu_s >= 0.5
    assert ended.wall_s >= 0.5
    assert (ended.why, ended.left) == ("", False)


def test_an_interruption_ends_the_child_too(tmp_path):
    child = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(120)"
    code = f"""
import pathlib, sys
from labkit.capstone.children import run_child
here = pathlib.Path(sys.argv[1])
run_child([sys.executable, "-c", {child!r}], folder=here, home=here / "h", limit_s=100)
"""
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(timeout=60) != 0
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_another_baseline_is_doubted_and_other_ends_of_line_are_not(tmp_path):
    for ends, own in (("\n", True), ("\r\n", True), ("\n\n", False)):
        script = tmp_path / "train.py"
        script.write_bytes(toys.SLOW.replace("\n", ends).encode())
        assert contest.is_ours(script) is own
    assert doubts.doubts(toys.told()) == []
    assert "not the course's own" in doubts.doubts(toys.told(baseline_is_ours=False))[0]


def test_a_run_that_failed_is_told_and_has_no_test_accuracy():
    ended = toys.told().baseline[0]
    failed = running.Outcome(wall_s=1.0, cpu_s=1.0, why="no reason")
    found = toys.told(baseline=(ended, failed, failed), submission=(ended, ended, failed))
    assert found.test == (0.9, 0.9)
    assert "in 2 of 3 runs (baseline 1 of 3)" in report.text(found)
    assert "test accuracy              0.000 (baseline 0.900)" in report.text(toys.told(submission=(failed,)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not show states")
def test_a_process_that_has_ended_and_was_not_asked_for_is_not_left_behind():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    assert children._group_lives(child.pid)
    child.stdin.close()
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)
    assert not children._group_lives(child.pid)
    child.wait()


def test_predict_meets_no_name_that_tells_the_numbering(tmp_path):
    told = "    assert not (Path(out).parents[1] / f'{0xabcdef:x}').exists()\n"
    asks = toys.FAST.replace("def predict(out, pixels):\n", "def predict(out, pixels):\n" + told)
    ended = running.once(toys.task(), written(tmp_path, "asks", asks), tmp_path / "runs" / "a", seed=1, secret=0xABCDEF)
    assert (ended.why, ended.reached) == ("", True)


def test_an_answer_that_is_an_archive_is_none(tmp_path):
    np.savez(tmp_path / "answer.npz", a=np.zeros(3))
    assert running._answer(tmp_path / "answer.npz").shape == (0,)
    (tmp_path / "broken").write_bytes(b"PK\x03\x04 and no more")
    assert running._answer(tmp_path / "broken").shape == (0,)


def test_a_hook_of_the_user_s_commits_is_not_asked_about_a_submission(tmp_path, monkeypatch):
    hook = tmp_path / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    (tmp_path / "config").write_text(f"[core]\nhooksPath = {hook.parent}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    assert recorded.lay_out_recorded(written(tmp_path, "mine", toys.FAST), tmp_path / "place")


@pytest.mark.slow
def test_a_run_that_takes_for_ever_when_made_again_is_ended_and_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    waits = "if 'labkit-remake-' in os.environ['LABKIT_RUNS']:\n    time.sleep(600)\n"
    mine = written(
        tmp_path, "mine", toys.RECORDED.replace("    args.out", textwrap.indent(waits, "    ") + "    args.out")
    )
    assert recorded.lay_out_recorded(mine, tmp_path / "runs" / "a")
    assert running.once(toys.task(), mine, tmp_path / "runs" / "a", seed=1, secret=1).reached
    monkeypatch.setattr(recorded, "_LIMIT_S", 3.0)
    found = recorded.made_again(tmp_path / "runs" / "a")
    assert (found.same, found.said) == (False, "Made again, it was not done after 3 s.")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_submission_that_cannot_be_judged_does_not_keep_the_others_from_their_rank(tmp_path, labkit, monkeypatch):
    def held(_task, submission, **_more):
        if submission.name == "broken":
            raise PermissionError("no rights")
        return toys.told(name=submission.name)

    monkeypatch.setattr(task, "glyphs_task", toys.task)
    monkeypatch.setattr(contest, "contest", held)
    for name in ("broken", "first", "second"):
        written(tmp_path, name, toys.FAST)
    code, out, err = labkit("leaderboard", tmp_path)
    assert (code, [line.split()[1] for line in out.splitlines()]) == (0, ["first", "second"])
    assert "broken: PermissionError('no rights')" in err
    assert "first: 2.00 times (2.00 to 2.00)" in err


def test_the_result_is_printed_where_the_page_cannot_be_written(tmp_path, labkit, monkeypatch):
    monkeypatch.setattr(task, "glyphs_task", toys.task)
    monkeypatch.setattr(contest, "contest", lambda *_given, **_more: toys.told())
    code, out, err = labkit("capstone", tmp_path, "--html", tmp_path / "none" / "page.html")
    assert (code, "2.00 times" in out, "page.html" in err) == (2, True, True)


def test_the_waterfall_command(labkit, monkeypatch):
    row = {"kind": "alone", "changes": "none", "runs": 3, "wall_s": [2.0] * 3, "cpu_s": [1.0] * 3, "test": 0.9}
    asked = []
    monkeypatch.setattr(waterfall, "measured", lambda rounds, **_more: asked.append(rounds) or [row])
    assert "3 of 3" in labkit("capstone", "--waterfall", "--pairs", "3")[1]
    assert json.loads(labkit("capstone", "--waterfall", "--json")[1])["arms"] == [row]
    assert asked == [3, 5]


def test_what_was_changed():
    found = changes.changes("def a():\n  return 1\ndef b(): pass\n", "import os\ndef a():\n  return 2\ndef c(): pass\n")
    assert (found.new, found.dropped, found.changed, found.imports) == (("c",), ("b",), ("a",), ("os",))
    assert (found.added, found.gone) == (3, 2)
    assert changes.changes("x = 1", "not python (").new == ()


@pytest.mark.slow
def test_a_leaderboard_ranks_by_ratio_and_gives_no_rank_where_there_are_doubts(tmp_path):
    honest = held(tmp_path, toys.FAST, name="honest")
    cheat = held(tmp_path, toys.CHEATS["makes data of its own"], name="cheat")
    assert [one.name for one in report.ranked([cheat, honest])] == ["honest", "cheat"]
    first, second, third = report.leaderboard([cheat, honest]).splitlines()
    assert first.split()[:2] == ["1", "honest"]
    assert second.split()[:2] == ["-", "cheat"]
    assert "look at" in third


@pytest.mark.slow
def test_the_waterfall_runs_each_change_alone_and_in_order(tmp_path):
    script = written(tmp_path, "mine", toys.FAST) / "train.py"
    found = waterfall.measured(1, task=toys.task(), script=script, order=("a", "b", "c"), say=SILENT)
    assert [row["changes"] for row in found] == ["none", "a", "b", "c", "a,b", "a,b,c", "a,b,c,compile"]
    assert all(len(row["wall_s"]) == len(row["cpu_s"]) == 1 for row in found)
    assert waterfall.text(found).count("1 of 1") == 7
    missed = [found[0] | {"wall_s": [], "cpu_s": []}, found[1]]
    assert waterfall.text(missed).count(" - ") >= 1


def test_the_courses_baseline_is_the_one_that_labkit_knows_and_takes_the_arguments():
    from labkit.capstone.contest import baseline_script

    path = baseline_script()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == BASELINE
    for script in (path, waterfall.solution_script()):
        names = {node.name for node in ast.parse(script.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert {"main", "predict"} <= names
        assert all(f'"--{name}"' in script.read_text() for name in ("data", "out", "target", "seed"))


@pytest.mark.slow
def test_the_commands(tmp_path, labkit, monkeypatch):
    monkeypatch.setattr(task, "glyphs_task", lambda *_: toys.task())
    slow = written(tmp_path, "slow", toys.SLOW) / "train.py"
    monkeypatch.setattr(contest, "baseline_script", lambda: slow)
    places = tmp_path / "handed in"
    places.mkdir()
    mine = written(places, "mine", toys.FAST)
    code, out, err = labkit("capstone", mine, "--pairs", "1", "--json", "--html", tmp_path / "page.html")
    assert (code, json.loads(out)["name"]) == (0, "mine")
    assert "pair 1: baseline" in err
    assert (tmp_path / "page.html").read_text().startswith("<!")
    large = written(places, "large", toys.FAST)
    (large / "large.bin").write_bytes(bytes(running.MOST_BYTES + 1))
    code, out, err = labkit("leaderboard", places, "--pairs", "1")
    assert ("large: " in err, out.count("times")) == (True, 1)
    assert labkit("leaderboard", tmp_path / "none")[0] == 2
    assert "Name a submission" in labkit("capstone")[2]
    assert labkit("capstone", "--data", tmp_path / "data")[0] == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["train.npz", "validation.npz"]
