"""Seeds, manifests and recordings."""

import json
import random
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from labkit import course, hardware, repro


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty course under git, and the current folder inside it."""
    for name in ("solutions", "labkit"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _commit(folder):
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "m"],
    ):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def test_seed_all_repeats_every_generator():
    def draw():
        repro.seed_all(7)
        return random.random(), np.random.rand(), torch.rand(3).tolist()

    first = draw()
    assert draw() == first
    repro.seed_all(8)
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) != first


def test_budget_is_full_or_smoke(monkeypatch):
    monkeypatch.delenv("LABKIT_BUDGET", raising=False)
    assert repro.budget() == "full"
    monkeypatch.setenv("LABKIT_BUDGET", "smoke")
    assert repro.budget() == "smoke"
    monkeypatch.setenv("LABKIT_BUDGET", "somke")
    with pytest.raises(course.CourseError, match="'somke'"):
        repro.budget()


def test_the_manifest_names_code_data_and_hardware(folder):
    _commit(folder)

    @dataclass
    class Config:
        peak: float = 0.1

    clean = repro.manifest(config=Config(), data={"glyphs": "ab12"}, seeds=(1, 2))
    assert len(clean["revision"]) == 40
    assert clean["diff_sha256"] is None
    assert (clean["config"], clean["data"], clean["seeds"]) == ({"peak": 0.1}, {"glyphs": "ab12"}, [1, 2])
    assert clean["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    (folder / "file.txt").write_text("two")
    changed = repro.manifest()["diff_sha256"]
    (folder / "file.txt").write_text("three")
    assert len({changed, repro.manifest()["diff_sha256"], None}) == 3
    json.dumps(clean)


@pytest.mark.usefixtures("folder")
def test_a_folder_without_git_has_no_revision():
    assert repro.manifest()["revision"] is None


def test_the_revision_of_a_repository_around_the_course_is_not_its_own(folder, monkeypatch):
    inner = folder / "unpacked"
    for name in ("solutions", "labkit"):
        (inner / name).mkdir(parents=True)
    (inner / ".gitignore").write_text("*")
    _commit(folder)
    (folder / "file.txt").write_text("two")
    monkeypatch.chdir(inner)
    made = repro.manifest()
    assert (made["revision"], made["diff_sha256"]) == (None, None)


@pytest.mark.usefixtures("folder")
def test_a_recording_comes_back_as_it_was_written():
    path = repro.write_recording("01_lr_warmup", {"loss": [1.0, 0.5]}, repro.manifest(seeds=(3,)))
    (recording,) = repro.recordings("01_lr_warmup")
    assert recording.results == {"loss": [1.0, 0.5]}
    assert recording.manifest["seeds"] == [3]
    assert recording.date == recording.manifest["date"][:10]
    assert path.parent.name == hardware.machine().slug
    assert [file.name for file in path.parent.iterdir()] == ["01_lr_warmup.json"]
    assert repro.recordings("02_progressive_resizing") == []


@pytest.mark.usefixtures("folder")
def test_a_figure_that_json_cannot_hold_leaves_the_old_recording():
    repro.write_recording("01_x", {"loss": 1.0}, repro.manifest())
    with pytest.raises(ValueError, match="JSON"):
        repro.write_recording("01_x", {"loss": float("nan")}, repro.manifest())
    assert repro.recordings("01_x")[0].results == {"loss": 1.0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"results": {}}', '{"manifest": {"date": 3}, "results": {}}'])
def test_a_broken_recording_is_named(folder, text):
    path = folder / "datasets" / "recorded" / "cpu" / "01_x.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(course.CourseError, match="cpu/01_x.json is not a recording"):
        repro.recordings("01_x")
