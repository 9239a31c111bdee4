"""A small course of its own: recorded there, nothing is left here."""

import json

import pytest

from labkit import course, scratch

TRAIN = """
import sys
from labkit.repro import run
with run("train", config={"n": len(sys.argv)}) as it:
    it.log(0, loss=0.5)
"""


def test_a_run_is_recorded_compared_and_made_again_and_nothing_is_left_here(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_RUNS", str(tmp_path / "mine"))
    small = scratch.Scratch({"train.py": TRAIN})
    small.python("train.py")
    small.write("train.py", TRAIN.replace("0.5", "0.25"))
    small.python("train.py", "more")
    one, two = (each["id"] for each in json.loads(small.labkit("runs", "--json")))
    told = json.loads(small.labkit("runs", "compare", one, two, "--json"))
    assert told["metrics"]["unlike"] == [[0, "loss", 0.5, 0.25]]
    small.write("train.py", "another text")
    assert json.loads(small.labkit("runs", "remake", two, "--json"))["same"]
    assert not (tmp_path / "mine").exists()
    place = small.path
    del small
    assert not place.exists()


def test_what_fails_says_so(monkeypatch):
    small = scratch.Scratch({})
    with pytest.raises(RuntimeError, match="exit code 3"):
        small.python("-c", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="holds no run|No run with"):
        small.labkit("runs", "show", "nothing")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(course.CourseError, match="git cannot be run"):
        scratch.Scratch({})
