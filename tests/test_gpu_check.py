"""make gpu-check from end to end on this machine's tier, with a Python that has no Jupyter and little else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fabricated
import pytest

from labkit import gpu_check, hardware

# What a machine with torch may lack: importing any of it fails there as it would if it were not installed.
ABSENT = (
    *("IPython", "ipykernel", "ipywidgets", "jupyterlab", "jupyter_client", "nbformat", "nbclient", "nbval"),
    *("accelerate", "hypothesis", "platformdirs", "playwright", "rich", "sklearn", "typer"),
)
BLOCK = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

class Without:  # an object and not a function, for pytest keeps what it finds here as an attribute of a class
    def __call__(self, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT!r} else find(name, path, target)

PathFinder.find_spec = Without()
"""
LESSON = """# %% [markdown]
# # 01 · Toy
#
# ## Question

# %%
import torch
from labkit import claim, record
{body}
"""
GOOD = """
record("01", "the race", {"ratio": 1.5})
claim("one", holds=True, evidence="1")
claim("two", holds=None, evidence="1", tier="gpu2")
"""
SECOND = GOOD.replace('"01"', '"02"')
TEST = """
import pytest

@pytest.mark.gpu
def test_nothing():
    assert {truth}
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Make a course of the lessons given, with a test that is marked gpu, and stand in its folder."""

    def make(truth=True, **bodies):
        root = fabricated.course(tmp_path / "course", **{k: LESSON.format(body=body) for k, body in bodies.items()})
        (root / "tests").mkdir()
        (root / "tests" / "test_marked.py").write_text(TEST.format(truth=truth))
        (root / "tests" / "test_other.py").write_text("import playwright\n")
        (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['gpu: one', 'gpu2: two']\n")
        monkeypatch.chdir(root)
        return root

    return make


def check(tmp_path, root, **more):
    """The whole of it in a Python that lacks much; returns exit code, stdout, stderr."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "sitecustomize.py").write_text(BLOCK)
    env = {name: value for name, value in os.environ.items() if name != "LABKIT_CACHE"} | more
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "block"), str(fabricated.ROOT)])
    command = [sys.executable, "-m", "labkit.gpu_check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=500, env=env)
    return done.returncode, done.stdout, done.stderr


def rows(out):
    """The table at the end: name -> (tier, claims held, seconds)."""
    table = out[out.rindex("\nIn ") :].splitlines()[3:]
    return {line.split()[0]: re.split(r"  +", line)[1:] for line in table}


def test_it_runs_the_tests_and_the_lessons_records_them_and_ends_with_a_table(tmp_path, course):
    root = course(n01_good=GOOD, n02_bad=SECOND + 'claim("three", holds=False, evidence="1")', n03_lost="1 / 0")
    code, out, error = check(tmp_path, root)
    assert code == 1, error
    found = rows(out)
    tier = hardware.tier()
    assert found["01_good"][:2] == [tier, "1 of 2, 1 undecided"]
    assert found["02_bad"][:2] == [tier, "1 of 3, 1 undecided, 1 refuted"]
    assert found["03_lost"][:2] == [tier, "ZeroDivisionError in cell 1 of 1 (Question), line 11"]
    assert found["tests"][0] == tier
    folder = root / "datasets" / "recorded" / hardware.machine().slug
    assert sorted(path.name for path in folder.iterdir()) == ["01_good.json", "02_bad.json"]
    assert json.loads((folder / "01_good.json").read_text())["results"]["figures"] == {"the race": {"ratio": 1.5}}


def test_all_well_is_exit_code_0(tmp_path, course):
    code, out, error = check(tmp_path, course(n01_good=GOOD))
    assert code == 0, error + out


def test_a_gpu_test_that_fails_is_said(tmp_path, course):
    code, out, _ = check(tmp_path, course(truth=False, n01_good=GOOD))
    assert code == 1
    assert rows(out)["tests"][1] == "failed: pytest's exit code 1"


def test_a_smoke_budget_records_nothing(tmp_path, course):
    root = course(n01_good=GOOD)
    code, out, error = check(tmp_path, root, LABKIT_BUDGET="smoke")
    assert (code, rows(out)["01_good"][1]) == (0, "0 of 2, 2 undecided"), error
    assert not (root / "datasets").exists()


@pytest.fixture
def here(monkeypatch):
    """For main() in this very process: what it sets in the environment is put back."""
    for name in ("LABKIT_STRICT", "LABKIT_QUIET", "LABKIT_HOME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.usefixtures("here")
def test_a_lesson_that_does_not_end_is_ended_and_the_others_still_run(course, monkeypatch, capsys):
    course(n01_endless="import time\ntime.sleep(600)", n02_good=SECOND)
    monkeypatch.setattr(gpu_check, "_LESSON_S", 8.0)
    assert gpu_check.main() == 1
    found = rows(capsys.readouterr().out)
    assert re.match(r"ended after \d+ s, its limit, in cell 1 of 1", found["01_endless"][1])
    assert found["02_good"][1].startswith("1 of 2")


@pytest.mark.usefixtures("here")
def test_when_its_time_is_up_what_is_left_is_said_to_be_left(course, monkeypatch, capsys):
    course(n01_good=GOOD)
    monkeypatch.setattr(gpu_check, "_tests", lambda _left_s: (("tests", "cpu", "passed", "0.0"), 0))
    monkeypatch.setattr(gpu_check, "LIMIT_S", 0.5)
    assert gpu_check.main() == 1
    assert rows(capsys.readouterr().out)["01_good"][1] == "not run: no time was left"


@pytest.mark.usefixtures("here")
def test_tests_that_do_not_end_are_ended(course, monkeypatch, capsys):
    root = course()
    (root / "solutions" / "01_toy.py").unlink()
    endless = "import pytest, time\npytestmark = pytest.mark.gpu\ntime.sleep(600)\n"
    (root / "tests" / "test_marked.py").write_text(endless)
    monkeypatch.setattr(gpu_check, "_TESTS_S", 3.0)
    assert gpu_check.main() == 1
    assert rows(capsys.readouterr().out)["tests"][1] == "ended at their limit"


@pytest.mark.usefixtures("here")
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
def test_what_a_hung_test_has_started_is_ended_too(course, monkeypatch, tmp_path):
    root = course()
    (root / "solutions" / "01_toy.py").unlink()
    note = tmp_path / "pid"
    body = f"child = subprocess.Popen(['sleep', '600'])\nopen({str(note)!r}, 'w').write(str(child.pid))\nchild.wait()\n"
    (root / "tests" / "test_marked.py").write_text(f"import pytest, subprocess\npytestmark = pytest.mark.gpu\n{body}")
    monkeypatch.setattr(gpu_check, "_TESTS_S", 3.0)
    assert gpu_check.main() == 1
    stat = Path(f"/proc/{note.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.usefixtures("here")
def test_a_mark_in_a_comment_or_in_another_encoding_is_no_fault(course, capsys):
    root = course(n01_good=GOOD)
    (root / "tests" / "test_marked.py").write_bytes(b"# pytest.mark.gpu \xff\n")
    assert gpu_check.main() == 0
    assert rows(capsys.readouterr().out)["tests"][1] == "there are none"


@pytest.mark.usefixtures("here")
def test_ctrl_c_leaves_the_table_of_what_was_done(course, monkeypatch, capsys):
    course(n01_good=GOOD, n02_good=SECOND)
    real = gpu_check._lesson

    def second_interrupted(lesson, record, left_s):
        if lesson.number == "02":
            raise KeyboardInterrupt
        return real(lesson, record, left_s)

    monkeypatch.setattr(gpu_check, "_lesson", second_interrupted)
    assert gpu_check.main() == 130
    said = capsys.readouterr()
    assert set(rows(said.out)) == {"tests", "01_good"}
    assert "what is not in the table was not run" in said.err


@pytest.mark.usefixtures("here")
def test_what_is_missing_is_a_sentence(course, monkeypatch, capsys):
    course(n01_good=GOOD)
    monkeypatch.setattr(gpu_check, "_NEEDED", ("torch", "nonsense_package"))
    assert gpu_check.main() == 2
    assert "This needs nonsense_package: " in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_without_a_course_it_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check.course, "__file__", str(tmp_path / "labkit" / "course.py"))
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main() == 2
    assert capsys.readouterr().err.startswith("No course found")


@pytest.mark.slow
@pytest.mark.notebook
def test_every_lesson_of_the_course_runs_without_jupyter(tmp_path):
    """The real lessons and the real GPU tests; a smoke budget, for the solutions are run in full elsewhere."""
    cache = {"LABKIT_CACHE": str(hardware.cache_folder())}
    code, out, error = check(tmp_path, fabricated.ROOT, LABKIT_BUDGET="smoke", **cache)
    assert code == 0, error[-3000:]
    assert {name for name in rows(out) if name != "tests"} == {
        path.stem for path in (fabricated.ROOT / "solutions").glob("[0-9]*.py")
    }
