"""Records of runs: what is in them, and how two are compared."""

import argparse
import json
import os

import numpy as np
import pytest
import torch
from recorded import SCRIPT, child, course, git, kept, script

from labkit.course import CourseError
from labkit.repro import capture, differ, patches, places, run, store


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A course under git with a script, and the current folder inside it."""
    monkeypatch.chdir(course(tmp_path))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return tmp_path


def test_a_run_is_kept_with_every_bit_of_its_metrics(place):
    measured = [0.1 + 0.2, float("nan"), float("inf"), -0.0, 5e-324]
    with run("mine", config={"lr": 0.1}, seeds=(1, 2)) as it:
        for step, value in enumerate(measured):
            it.log(step, loss=value)
        it.log(best=1.5)
        it.note(path=place, said=["a"])
    [record] = kept(place).all()
    rows = store.as_numbers(kept(place).metrics(record["id"]))
    assert [value.hex() for _, _, value in rows] == [value.hex() for value in [*measured, 1.5]]
    assert [step for step, _, _ in rows] == [0, 1, 2, 3, 4, None]
    assert (record["name"], record["status"]) == ("mine", "done")
    assert (record["config"], record["seeds"]) == ({"lr": 0.1}, [1, 2])
    assert record["results"] == {"path": str(place), "said": ["a"]}
    assert record["packages"]["torch"].startswith(torch.__version__[:4])
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
    (place / "large.bin").write_bytes(bytes(patches.KEPT_BYTES + 1))
    before = git(place, "status", "--porcelain"), git(place, "count-objects")
    revision, found = patches.code(place)
    assert revision == git(place, "rev-parse", "HEAD").strip()
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
    assert capture.digest(tensor) != capture.digest(tensor.reshape(2, 2))
    assert capture.digest(tensor) != capture.digest(tensor.view(torch.int32))
    assert capture.digest(one) == one
    with pytest.raises(CourseError, match=r"'data.txt' is no hash; give a path as Path\('data.txt'\)"):
        capture.digest("data.txt")
    with pytest.raises(CourseError, match="there is no"):
        capture.digest(place / "e")
    with pytest.raises(CourseError, match="int has no hash"):
        capture.digest(3)


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
    assert differ.parting(one, [[0, "loss", 3.0], *two[1:]]).unlike == ((0, "loss", 1.0, 3.0), (1, "loss", 4.0, 5.0))
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


def test_another_folder_by_name(place, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RUNS", str(tmp_path / "elsewhere"))
    with run("mine"):
        pass
    assert places.runs_folder() == tmp_path / "elsewhere"
    assert not (place / "runs").exists()
    assert os.listdir(tmp_path / "elsewhere")
    monkeypatch.setenv("LABKIT_RUNS", "elsewhere")
    with pytest.raises(CourseError, match="LABKIT_RUNS is 'elsewhere': give the whole path"):
        places.runs_folder()


def test_what_is_left_out_of_a_patch_takes_no_place_in_it(place, monkeypatch):
    monkeypatch.setattr(patches, "_MOST_BYTES", 100)
    status = [("a/", False), ("large", False), ("known", True)]
    for name, size in (("large", 60), ("known", 70)):
        (place / name).write_bytes(bytes(size))
    monkeypatch.setattr(patches, "KEPT_BYTES", 50)
    assert patches._sorted_out(status, place)[0] == ["known"]


def test_how_much_of_a_file_is_changed_whether_it_is_new_or_not(place):
    (place / "train.py").write_text(SCRIPT.replace('note(said="done")', 'note(said="more")'))
    (place / "new.py").write_text("x = 1\ny = 2\n")
    text = patches.code(place)[1]["text"]
    told = {name: differ._extent(part)[:22] for name, part in differ._by_file(text).items()}
    assert told == {"new.py": "2 lines added, 0 gone,", "train.py": "1 lines added, 1 gone,"}


def test_numbers_that_json_has_no_word_for_and_runs_of_less_than_a_millisecond(place, labkit):
    for value in (1.0, float("nan")):
        with run(f"of {value}") as it:
            it.log(0, loss=value)
    code, out, _ = labkit("runs", "compare", "of 1.0", "of nan", "--json")
    none = lambda word: pytest.fail(f"{word} is no JSON")
    assert (code, json.loads(out, parse_constant=none)["metrics"]["unlike"]) == (1, [[0, "loss", 1.0, "nan"]])
    assert all(0 < one["seconds"] != round(one["seconds"], 3) for one in kept(place).all())


def test_settings_that_decide_bits_on_a_gpu(place, monkeypatch):
    with run("before"):
        pass
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    asked = {"deterministic": True, "allow_tf32": not cudnn.allow_tf32}
    with cudnn.flags(enabled=cudnn.enabled, benchmark=cudnn.benchmark, **asked), run("after"):
        pass
    found = {one.what for one in differ.differences(kept(place).find("before"), kept(place).find("after"))}
    assert found == {"cudnn_deterministic", "cudnn_tf32", "CUBLAS_WORKSPACE_CONFIG"}


def test_a_rank_of_torchrun_is_no_script_that_runs_alone(place, monkeypatch):
    assert script(place, "3")["start"]["kind"] == "script"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert script(place, "3")["start"]["kind"] == "other"


def test_the_commands_start_without_torch(place):
    with run("mine"):
        pass
    code = "import sys; del sys.path[0]; from typer.testing import CliRunner; from labkit.runs_command import app\n"
    code += "for line in ([], ['show', 'mine'], ['compare', 'mine', 'mine']): CliRunner().invoke(app, line)\n"
    code += "print('labkit.repro.differ' in sys.modules, 'torch' in sys.modules)"
    assert child(place, code).communicate()[0] == "True False\n"


def test_what_looked_like_a_secret_is_counted_where_a_run_is_shown(place, labkit):
    (place / "train.py").write_text(SCRIPT + "password = 'words-of-mine'\n")
    with run("mine", config={"password": "words"}):
        pass
    out = labkit("runs", "show", "mine")[1]
    assert "with uncommitted changes of train.py" in out
    assert "2 places looked like a secret: it cannot be made again" in out


def test_numbers_of_every_kind_and_sets_are_recorded_alike(place):
    given = {"clip": float("inf"), "lr": np.float32(0.5), "on": {"b", "a", "c"}, "args": argparse.Namespace(n=3)}
    with run("mine", config=given, seeds=(3,)) as it:
        it.log(np.int64(2), loss=0.5)
        it.note(best=float("nan"))
    [record] = kept(place).all()
    assert record["config"] == {"clip": "inf", "lr": 0.5, "on": ["a", "b", "c"], "args": {"n": 3}}
    assert (record["seeds"], record["results"]) == ([3], {"best": "nan"})
    assert kept(place).metrics(it.id) == [[2, "loss", 0.5]]
