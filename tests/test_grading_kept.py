"""What is kept of a student: under another name as soon as anything is different that it depends on."""

from dataclasses import replace

import pytest

from labkit import course
from labkit.grading import grade, kept, release

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
