"""`labkit grade`, as an instructor says it."""

import json
import shutil

import pytest

from labkit import course
from labkit.grading import box, grade, release
from labkit.grading.box import available

LESSON = course.find("01")


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    """A key of this test's own."""
    monkeypatch.setattr(release, "key_path", lambda: tmp_path / "config" / "release.key")


def test_a_folder_that_is_not_there_gets_a_sentence(labkit, tmp_path):
    code, out, error = labkit("grade", tmp_path / "none", "--lesson", "01", "--out", tmp_path / "out", "--trusted")
    assert (code, out) == (2, "")
    assert "none is no folder of submissions." in error


def test_without_a_sandbox_grading_is_refused_and_says_how_to_get_one(labkit, tmp_path, monkeypatch):
    monkeypatch.setattr(box, "available", lambda: "There is no bubblewrap: sudo apt-get install bubblewrap.")
    code, out, error = labkit("grade", tmp_path, "--lesson", "01", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert error == "There is no bubblewrap: sudo apt-get install bubblewrap.\n"
    assert not (tmp_path / "out").exists()


def test_the_private_seed_is_the_same_each_time_and_another_for_another_key(tmp_path):
    made = release.from_course(LESSON)
    first = grade.private_seed(made)
    assert grade.private_seed(made) == first
    (tmp_path / "config" / "release.key").unlink()
    assert grade.private_seed(made) != first


def test_similar_says_that_an_instructors_notebook_is_no_lesson(labkit, tmp_path):
    run = {"lesson": "hw1", "advisory": True, "title": "hw1", "submissions": str(tmp_path)}
    (tmp_path / "run.json").write_text(json.dumps(run))
    code, out, error = labkit("similar", tmp_path)
    assert (code, out) == (2, "")
    assert error.endswith("was graded by an instructor's notebook: labkit similar compares lessons alone.\n")


@pytest.mark.skipif(bool(available()), reason=f"needs a sandbox: {available()}")
@pytest.mark.slow
def test_a_class_of_two(labkit, tmp_path):
    for student, notebook in (("ann", LESSON.solution), ("bob", LESSON.student)):
        (tmp_path / "in" / student).mkdir(parents=True)
        shutil.copy(notebook, tmp_path / "in" / student / "01.ipynb")
    asked = ("grade", tmp_path / "in", "--lesson", "01", "--out", tmp_path / "out")
    code, out, _ = labkit(*asked)
    assert code == 0
    assert out.startswith("2 students, 6 exercises of theirs: 3 not-attempted, 3 ok\n")
    code, out, _ = labkit(*asked, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["student"], row["status"]) for row in rows] == [("ann", "ok")] * 3 + [("bob", "not-attempted")] * 3
    keys = {"student", "exercise", "status", "points", "max_points", "seconds", "message"}
    assert all(keys <= set(row) for row in rows)
    assert "ann" in (tmp_path / "out" / "feedback" / "ann.html").read_text()


@pytest.mark.slow
def test_a_class_that_handed_in_another_lesson_is_told_so_and_ends_with_a_code(labkit, tmp_path):
    for student in ("ann", "bob"):
        (tmp_path / "in" / student).mkdir(parents=True)
        shutil.copy(course.find("02").student, tmp_path / "in" / student / "01.ipynb")
    asked = ("grade", tmp_path / "in", "--lesson", "01", "--out", tmp_path / "out", "--trusted")
    code, out, error = labkit(*asked)
    assert code == 1
    assert error.startswith("No notebook that was handed in holds a cell of 01_lr_warmup: 2 look like 02_prog")
    assert out.startswith("2 students, 6 exercises of theirs: 6 missing\n")
    code, out, error = labkit(*asked, "--json")
    assert (code, error.count("\n")) == (1, 1)
    assert all(json.loads(line)["status"] == "missing" for line in out.splitlines())
    (tmp_path / "in" / "cleo").mkdir()
    shutil.copy(LESSON.student, tmp_path / "in" / "cleo" / "01.ipynb")
    assert labkit(*asked)[::2] == (0, "")
