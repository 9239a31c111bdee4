"""Records of runs: what is in them, how two are compared, and one made again."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest
import torch

from labkit.course import CourseError
from labkit.repro import capture, differ, run, store, tracking

SCRIPT = """
import sys
import torch
from labkit.repro import run, seed_all
seed = int(sys.argv[1])
if seed:
    seed_all(seed)
with run("train", config={"lr": 0.1, "password": "words"}, data={"x": torch.arange(4.0)}, seeds=(seed,)) as it:
    weight = torch.randn(10)
    for step in range(5):
        weight = weight * 0.9
        it.log(step, loss=weight.pow(2).sum())
    it.note(said="done")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A course under git with a script, and the current folder inside it."""
    for name in ("solutions", "labkit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".keep").touch()
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / ".gitignore").write_text("/runs/\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"]):
        git(tmp_path, *arguments)
    return tmp_path


def git(place, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    command = ["git", "-C", str(place), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kept(place):
    return store.Store(place / "runs")


def script(place, *arguments):
    subprocess.run([sys.executable, "train.py", *arguments], cwd=place, check=False)
    return kept(place).all()[-1]


def test_a_run_is_kept_with_every_bit_of_its_metrics(place):
    measured = [0.1 + 0.2, float("nan"), float("inf"), -0.0, 5e-324]
    with run("mine", config={"lr": 0.1}, seeds=(1, 2)) as it:
        for step, value in enumerate(measured):
            it.log(step, loss=value)
        it.log(best=1.5)
        it.note(path=place, said=["a"])
    [record] = kept(place).all()
    rows = store.values(kept(place).metrics(record["id"]))
    assert [value.hex() for _, _, value in rows] == [value.hex() for value in [*measured, 1.5]]
    assert [step for step, _, _ in rows] == [0, 1, 2, 3, 4, None]
    assert (record["name"], record["status"]) == ("mine", "done")
    assert (record["config"], record["seeds"]) == ({"lr": 0.1}, [1, 2])
    assert record["results"] == {"path": str(place), "said": ["a"]}
    assert record["packages"]["torch"].startswith("2.")
    beside = json.loads((place / "runs" / f"{record['id']}.json").read_text())
    assert beside.pop("metrics") == kept(place).metrics(record["id"])
    assert beside == record


def test_how_a_run_ended_and_that_the_exception_goes_on(place):
    for error in (ValueError("bad"), KeyboardInterrupt(), SystemExit(0), SystemExit(3)):
        with pytest.raises(type(error)), run("mine"):
            raise error
    ended = [(one["status"], one["why"]) for one in kept(place).all()]
    assert sorted(ended) == [
        ("done", ""),
        ("failed", "SystemExit: 3"),
        ("failed", "ValueError: bad"),
        ("interrupted", "KeyboardInterrupt: "),
    ]


def test_uncommitted_changes_are_a_patch_and_the_repository_stays_as_it_was(place):
    (place / "train.py").write_text(SCRIPT + "# more\n")
    (place / "new file.py").write_text("x = 1\n")
    (place / "large.bin").write_bytes(bytes(capture.KEPT_BYTES + 1))
    before = git(place, "status", "--porcelain"), git(place, "count-objects")
    found = capture.patch(git(place, "rev-parse", "HEAD").strip())
    assert (git(place, "status", "--porcelain"), git(place, "count-objects")) == before
    assert "+# more" in found["text"]
    assert "+x = 1" in found["text"]
    assert [one["path"] for one in found["left_out"]] == ["large.bin"]
    assert found["removed"] == 0


def test_the_environment_is_not_recorded_nor_what_looks_like_a_secret(place, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "words-that-are-secret")
    monkeypatch.setenv("HARMLESS", "of-the-environment")
    (place / "train.py").write_text(SCRIPT + "key('words-that-are-secret')\n")
    with run("mine", config={"a": "words-that-are-secret"}) as it:
        it.note(b="words-that-are-secret")
    with pytest.raises(ValueError, match="words"), run("mine"):
        raise ValueError("words-that-are-secret")
    raw = (place / "runs" / "runs.sqlite").read_bytes() + b"".join(p.read_bytes() for p in place.glob("runs/*.json"))
    assert b"words-that-are-secret" not in raw
    assert b"of-the-environment" not in raw
    assert kept(place).all()[0]["patch"]["removed"] == 1


def test_hashes_of_data(place):
    tensor = torch.arange(4.0)
    assert capture.digest(tensor) == capture.digest(tensor.numpy()) == capture.digest(torch.arange(8.0)[::1][:4])
    assert capture.digest(tensor.bfloat16()) != capture.digest(tensor)
    (place / "d").mkdir()
    (place / "d" / "a").write_text("one")
    one = capture.digest(place / "d")
    (place / "d" / "a").rename(place / "d" / "b")
    assert capture.digest(place / "d") != one
    assert capture.digest("abc") == "abc"
    with pytest.raises(CourseError, match="there is no"):
        capture.digest(place / "e")
    with pytest.raises(CourseError, match="int has no hash"):
        capture.digest(3)


def test_a_run_made_again_is_alike_where_it_was_seeded_and_parts_where_it_was_not(place, labkit):
    (place / "train.py").write_text(SCRIPT.replace("0.9", "0.8"))
    seeded, unseeded = script(place, "3"), script(place, "0")
    (place / "train.py").write_text("raise SystemExit('another text')")
    code, out, _ = labkit("runs", "remake", seeded["id"])
    assert (code, out.splitlines()[-1].partition(": ")[2]) == (0, "5 values, all alike to the last bit.")
    code, out, _ = labkit("runs", "remake", unseeded["id"])
    assert code == 1
    assert "0 of 5 values are alike. They part at step 0 in loss" in out
    assert [one.get("remakes") for one in kept(place).all()][2:] == [seeded["id"], unseeded["id"]]
    assert git(place, "worktree", "list").count("\n") == 1
    assert not (place / "runs" / "code").exists()


def test_a_run_that_cannot_be_made_again_says_why(place, labkit):
    (place / "train.py").write_text(SCRIPT + "sys.exit(7)\n")
    record = script(place, "3")
    code, out, _ = labkit("runs", "remake", record["id"])
    assert code == 0
    assert "It ended with exit code 7" in out
    with run("typed"):
        pass
    typed = kept(place).find("typed") | {"start": {"kind": "other", "folder": "."}}
    kept(place).put(typed)
    code, _, err = labkit("runs", "remake", "typed")
    assert (code, "no command can be run" in err) == (2, True)
    kept(place).put(typed | {"revision": "0" * 40})
    assert "is not in this repository" in labkit("runs", "remake", "typed")[2]
    kept(place).put(typed | {"revision": None})
    assert "outside of git" in labkit("runs", "remake", "typed")[2]


def test_two_runs_compared_what_usually_matters_first(place, labkit):
    one = script(place, "3")
    two = script(place, "4")
    packages = two["packages"] | {"torch": "0.1", "zz": "1"}
    changed = two | {"config": {"lr": 0.2, "deep": {"er": 1}}, "packages": packages}
    found = [(each.kind, each.what) for each in differ.differences(one, changed)]
    assert found == [
        ("configuration", "lr"),
        ("configuration", "password"),
        ("configuration", "deep.er"),
        ("seeds", "seeds"),
        ("code", "command"),
        ("version", "torch"),
        ("package", "zz"),
    ]
    code, out, _ = labkit("runs", "compare", one["id"], two["id"])
    assert code == 1
    assert "seeds: seeds: [3] | [4]" in out
    code, out, _ = labkit("runs", "compare", one["id"], one["id"], "--json")
    assert (code, json.loads(out)["metrics"]["equal"]) == (0, 5)


def test_where_metrics_part():
    one = [[0, "loss", 1.0], [1, "loss", 2.0], [1, "loss", 4.0], [2, "acc", "nan"]]
    two = [[0, "loss", 1.0], [1, "loss", 2.0], [1, "loss", 5.0], [2, "acc", "nan"], [3, "more", 1.0]]
    found = differ.parting(one, two)
    assert (found.compared, found.equal, found.at) == (4, 3, (1, "loss", 4.0, 5.0))
    assert (found.relative, found.worst, found.only, found.same) == (0.2, 0.2, ("more",), False)
    assert differ.parting(one, one).same
    assert not differ.parting([], []).same
    assert not differ.parting([[0, "a", 0.0]], [[0, "a", -0.0]]).same


def test_the_list_and_what_is_shown_of_one(place, labkit):
    assert "No run is recorded" in labkit("runs")[1]
    record = script(place, "3")
    assert record["id"] in labkit("runs")[1]
    out = labkit("runs", "show", record["id"][-6:])[1]
    assert "loss = " in out
    assert "words" not in out
    assert json.loads(labkit("runs", "--json")[1])[0]["id"] == record["id"]
    code, _, err = labkit("runs", "show", "nothing")
    assert (code, "No run with 'nothing'" in err) == (2, True)


def test_a_process_that_was_killed_leaves_what_it_had_logged(place):
    code = "import os\nfrom labkit.repro import run\nwith run('k') as it:\n  it.log(0, a=1)\n  os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], cwd=place, check=False)
    [record] = kept(place).all()
    assert record["status"] == "ended without a word"
    assert kept(place).metrics(record["id"]) == [[0, "a", 1.0]]
    assert json.loads((place / "runs" / f"{record['id']}.json").read_text())["metrics"] == [[0, "a", 1.0]]


def test_a_broken_file_is_made_anew_from_what_stands_beside_it(place):
    with run("first") as it:
        it.log(0, loss=0.1)
    (place / "runs" / "other.json").write_text("[]")
    for path in place.glob("runs/runs.sqlite*"):
        path.write_bytes(b"not a database" * 100)
    with run("second"):
        pass
    assert [one["name"] for one in kept(place).all()] == ["first", "second"]
    assert kept(place).metrics(kept(place).find("first")["id"]) == [[0, "loss", 0.1]]
    assert list(place.glob("runs/broken-*"))


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_computed(place):
    (place / "runs").write_text("a file")
    with pytest.raises(CourseError, match="LABKIT_RUNS names another folder"), run("mine"):
        pytest.fail("was computed")


def test_a_disk_that_becomes_full_does_not_end_the_run_and_what_did_not_fit_is_written_later(place, monkeypatch):
    with run("mine") as it:
        log = store.Store.log

        def full(*_arguments):
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(store.Store, "log", full)
        with pytest.warns(RuntimeWarning, match="is not recorded whole"):
            it.log(0, loss=1.0)
        it.log(1, loss=2.0)
        monkeypatch.setattr(store.Store, "log", log)
    assert kept(place).metrics(it.id) == [[0, "loss", 1.0], [1, "loss", 2.0]]


def test_another_folder_by_name(place, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RUNS", str(tmp_path / "elsewhere"))
    with run("mine"):
        pass
    assert tracking.folder() == tmp_path / "elsewhere"
    assert not (place / "runs").exists()
    assert os.listdir(tmp_path / "elsewhere")
