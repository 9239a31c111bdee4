"""What is kept of a student: under another name as soon as anything is different that it depends on."""

import os
from dataclasses import asdict, replace

import pytest

from labkit import course
from labkit.grading import grade, kept, release, review, submission, tables

BATCH = grade.Batch(release=release.from_course(course.find("01")), seed=7)


@pytest.fixture
def folder(tmp_path):
    """A student's folder."""
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "answer.ipynb").write_text("{}")
    return tmp_path / "ann"


def test_the_name_tells_everything_apart_that_verdicts_depend_on(folder, tmp_path):
    limits = replace(BATCH.limits, cell_s=1.0)
    others = [replace(BATCH, seed=8), replace(BATCH, trusted=True), replace(BATCH, limits=limits)]
    names = [kept.path(folder, each, tmp_path) for each in (BATCH, *others)]
    (folder / "answer.ipynb").write_text("[]")
    names.append(kept.path(folder, BATCH, tmp_path))
    assert len(set(names)) == 5
    assert kept.path(folder, replace(BATCH, alone=True), tmp_path) == names[-1]


def test_a_file_too_large_to_be_a_notebook_is_not_read(folder, tmp_path, monkeypatch):
    (folder / "answer.ipynb").write_text("x" * 2000)
    monkeypatch.setattr(kept, "MAX_BYTES", 1000)
    monkeypatch.setattr(type(folder), "read_bytes", None)
    assert kept.path(folder, BATCH, tmp_path)


def test_only_results_without_a_fault_of_the_grader_stand(tmp_path):
    file = tmp_path / "kept.json"
    assert not kept.stands(file)
    for status, stands in (("wrong", True), ("ungraded", False)):
        found = {"results": [{"status": "ok"}, {"status": status}], "notes": []}
        kept.write(file, found)
        assert kept.read(file) == found
        assert kept.stands(file) == stands


def test_what_was_changed_while_it_was_graded_does_not_stand(folder, tmp_path, monkeypatch):
    def judged(folders, *_more):
        for each in folders:
            (each / "answer.ipynb").write_text("[]")
            yield each, {"results": [asdict(one) for one in unreadable], "notes": []}

    unreadable = [grade.unrun(one, "unreadable", "why") for one in BATCH.exercises]
    monkeypatch.setattr(grade.side_by_side, "graded", judged)
    before = kept.path(folder, BATCH, tmp_path / "out" / "kept")
    inside = tmp_path / "in"
    inside.mkdir()
    folder = folder.rename(inside / folder.name)
    for stands in (False, True):  # the second time it is as it was when the name was taken
        grade.grade(inside, BATCH, tmp_path / "out")
        noted = review.notes(tmp_path / "out").get("ann", [])
        assert ("It was changed while it was graded: grade again." in noted) is not stands
        assert kept.stands(before) is False
    assert kept.stands(kept.path(folder, BATCH, before.parent))


def test_an_odd_path_costs_nobody_else(tmp_path, monkeypatch):
    names = [os.fsdecode(b"caf\xe9"), os.fsdecode(b"caf\xe8"), "ann", "gone"]
    for name in names:
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / os.fsdecode(b"b\xe9.ipynb")).write_text("{")
    paths = submission.notebooks
    more = lambda at: [*paths(at), *([at / "vanished.ipynb"] if at.name == "gone" else [])]
    monkeypatch.setattr(submission, "notebooks", more)
    judged = lambda folders, batch, _jobs: ((each, batch.judge(each, None)) for each in folders)
    monkeypatch.setattr(grade.side_by_side, "graded", judged)
    rows = grade.grade(tmp_path / "in", BATCH, tmp_path / "out", students=["Ann", "eve"])
    assert {row["student"] for row in rows} == {"caf\\udce9", "caf\\udce8", "ann", "gone", "eve"}
    assert {row["status"] for row in rows} == {"unreadable", "missing"}
    assert tables.results(tmp_path / "out") == rows
    assert "ann" not in review.notes(tmp_path / "out")  # the roster's Ann
