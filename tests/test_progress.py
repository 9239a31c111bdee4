"""Solved exercises: kept one file each, never in the way of a check."""

import json
import os
import sys
import types

import pytest

from labkit import hardware, progress


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home, and a process that has said nothing yet; returns the home."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(progress, "_state", {"recording": True, "warned": False})
    return tmp_path / "home"


def test_what_is_recorded_is_solved_until_it_is_forgotten(home):
    assert progress.solved() == set()
    assert progress.record("1.2")
    assert progress.record("0.1")
    assert progress.record("1.2")
    assert progress.solved() == {"0.1", "1.2"}
    assert sorted(os.listdir(home / "progress")) == ["0.1.json", "1.2.json"]
    assert json.loads((home / "progress" / "1.2.json").read_text())["exercise"] == "1.2"
    assert progress.reset() == 2
    assert progress.solved() == set()
    assert progress.reset() == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"exercise": 3}', '{"exercise": "../x"}', '{"other": "1.2"}', "\udcff"]
)
def test_a_file_that_cannot_be_read_is_left_out_with_a_sentence(home, capsys, text):
    progress.record("1.1")
    path = home / "progress" / "1.2.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert progress.solved() == {"1.1"}
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert str(path) in out


def test_a_folder_that_cannot_be_written_warns_once_and_breaks_nothing(home, capsys):
    home.write_text("a file where the folder should be")
    assert not progress.record("1.1")
    assert not progress.record("1.2")
    out = capsys.readouterr().out
    assert out.startswith(f"Solved exercises cannot be noted in {home}")
    assert out.count("\n") == 1
    assert progress.solved() == set()


def test_a_full_disk_leaves_no_draft(home, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    progress.record("1.1")
    monkeypatch.setattr(progress.json, "dump", full)
    assert not progress.record("1.2")
    assert os.listdir(home / "progress") == ["1.1.json"]
    assert "No space left" in capsys.readouterr().out


def test_nothing_is_recorded_while_recording_is_off():
    progress.recording(False)
    assert not progress.record("1.1")
    progress.recording(True)
    assert progress.record("1.1")


def test_the_reference_solves_nothing(tmp_path, monkeypatch):
    """A solved notebook under Jupyter, under nbval (told by its folder), and a source run as a program."""
    folder = tmp_path / "solutions"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(hardware, "notebook_path", lambda: str(folder / "01_toy.ipynb"))
        assert not progress.record("1.1")
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        assert not progress.record("1.1")
    with monkeypatch.context() as patch:
        main = types.ModuleType("__main__")
        main.__file__ = str(folder / "01_toy.py")
        patch.setitem(sys.modules, "__main__", main)
        assert not progress.record("1.1")
    with monkeypatch.context() as patch:
        patch.setattr(hardware, "notebook_path", lambda: str(tmp_path / "notebooks" / "01_toy.ipynb"))
        assert progress.record("1.1")
