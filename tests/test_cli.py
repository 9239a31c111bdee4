"""The labkit command: what each mistake is answered with, and what the exit code says."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from labkit import __version__, cli, course, progress


def test_help_and_version(labkit):
    code, out, _ = labkit("--help")
    assert code == 0
    assert all(command in out for command in ("doctor", "run", "lab", "build", "progress"))
    assert labkit("--version") == (0, f"labkit {__version__}\n", "")


@pytest.mark.usefixtures("toy")
def test_the_installed_command_and_the_module_are_the_same():
    command = [sys.executable, "-I", "-m", "labkit.cli", "run", "42"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "There is no lesson '42'. There are: 01 (toy).\n")


@pytest.mark.parametrize("command", [("run", "42"), ("lab", "42"), ("build", "--execute", "42")])
@pytest.mark.usefixtures("toy")
def test_an_unknown_lesson_is_a_sentence(labkit, command):
    assert labkit(*command) == (2, "", "There is no lesson '42'. There are: 01 (toy).\n")


@pytest.mark.parametrize("command", [("nonsense",), ("run",), ("run", "--nonsense", "1"), ("build", "--execute")])
@pytest.mark.usefixtures("toy")
def test_wrong_usage_is_exit_code_2_without_a_traceback(labkit, command):
    code, _, error = labkit(*command)
    assert code == 2
    assert "Traceback" not in error
    assert error


def test_outside_a_course_there_is_a_sentence(labkit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course, "__file__", str(tmp_path / "site-packages" / "labkit" / "course.py"))
    code, _, error = labkit("run", "1")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("No course found")


@pytest.mark.usefixtures("toy")
def test_build_check_and_their_exit_codes(labkit):
    assert labkit("build", "--check")[0] == 1
    code, out, _ = labkit("build")
    assert code == 0
    assert out.splitlines()[:2] == ["wrote notebooks/01_toy.ipynb", "wrote solutions/01_toy.ipynb"]
    code, out, _ = labkit("build", "--check")
    assert (code, out) == (1, "solutions/01_toy.ipynb was never executed: run labkit build --execute 01.\n")


def test_a_broken_lesson_is_a_sentence(labkit, toy):
    toy.source.write_text(toy.text().replace("    ### END SOLUTION\n", ""), encoding="utf-8")
    code, _, error = labkit("build")
    assert (code, error.count("\n")) == (2, 1)
    assert "01_toy.py" in error


def test_a_broken_header_is_a_sentence(labkit, toy):
    toy.source.write_text("# title: Toy\n# %%\nx = 1\n", encoding="utf-8")
    code, _, error = labkit("run", "1")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("01_toy.py: its header needs a line '# minutes: ...'")


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "The disk is full"), (errno.EACCES, "Permission denied"), (errno.EROFS, "Permission denied")],
)
@pytest.mark.parametrize("command", [("build",), ("run", "1")])
@pytest.mark.usefixtures("toy")
def test_a_full_disk_or_a_locked_folder_is_a_sentence(labkit, monkeypatch, number, says, command):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number), "/some/place")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    code, _, error = labkit(*command)
    assert (code, error.count("\n")) == (2, 1)
    assert says in error
    assert "/some/place" in error


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user other than root")
def test_a_folder_without_write_permission_is_a_sentence(labkit, toy):
    toy.student.parent.chmod(0o500)
    try:
        code, _, error = labkit("build")
    finally:
        toy.student.parent.chmod(0o700)
    assert code == 2
    assert "Permission denied" in error


@pytest.mark.usefixtures("toy")
def test_ctrl_c_during_a_build(labkit, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    code, _, error = labkit("build")
    assert code == 130
    assert "Interrupted" in error


@pytest.mark.usefixtures("toy")
def test_lab_without_jupyter_and_lab_without_notebooks(labkit, monkeypatch):
    assert labkit("lab", "1") == (2, "", "notebooks/01_toy.ipynb is not there: run labkit build.\n")
    monkeypatch.setattr(cli, "find_spec", lambda _: None)
    code, _, error = labkit("lab", "1")
    assert (code, error.count("\n")) == (2, 1)
    assert "pip install -e '.[lab]'" in error


@pytest.mark.skipif(os.name == "nt", reason="needs exec, which replaces the process; Windows starts a child")
def test_lab_opens_the_students_notebook_in_the_course(labkit, toy, monkeypatch):
    calls = []

    def pretend(program, command):
        calls.append((program, command, Path.cwd()))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", pretend)
    labkit("build")
    root = course.root()
    monkeypatch.chdir(toy.student.parent)
    assert labkit("lab", "1", "--no-browser")[0] == 0
    options = [f"--ServerApp.root_dir={root}", "--LabApp.default_url=/lab/tree/notebooks/01_toy.ipynb", "--no-browser"]
    assert calls == [(sys.executable, [sys.executable, "-m", "jupyterlab", *options], root)]


@pytest.mark.usefixtures("toy")
def test_progress_lists_and_forgets(labkit, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    assert labkit("progress")[1].split() == ["01_toy", "0", "of", "1", "·", "1.1"]
    assert progress.record("1.1")
    assert labkit("progress")[1].split() == ["01_toy", "1", "of", "1", "✓", "1.1"]
    assert labkit("progress", "--reset")[1] == "Forgot 1 solved exercise.\n"
    assert labkit("progress", "--reset")[1] == "Forgot 0 solved exercises.\n"


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_progress_in_an_encoding_without_its_signs(tmp_path, encoding):
    environment = os.environ | {"LABKIT_HOME": str(tmp_path / "home"), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", "from labkit import cli, progress; progress.record('1.1'); cli.main()", "progress"]
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stdout.split()[-2:]) == (0, [b"v", b"1.1"]), done.stderr


@pytest.mark.usefixtures("toy")
def test_doctor_as_json_and_its_exit_code(labkit, monkeypatch, tmp_path):
    code, out, _ = labkit("doctor", "--json")
    report = json.loads(out)
    assert code == (0 if report["healthy"] else 1)
    assert report["lessons"][0]["lesson"] == "01_toy"
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "file"))
    assert labkit("doctor")[0] == 1
