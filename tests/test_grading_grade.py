"""A batch: every student's results whatever one of them does, kept as they come, the same however they are made."""

import json
import linecache
import shutil
from dataclasses import replace
from types import SimpleNamespace

import nbformat
import pytest

from labkit import course
from labkit.course import CourseError
from labkit.grading import collect, grade, harness, release, review, submission, verdicts
from labkit.grading import jobs as jobs_module
from labkit.grading.box import available
from labkit.judge import generator_for

needs_box = pytest.mark.skipif(bool(available()), reason=f"needs a sandbox: {available()}")
LESSON = course.find("01")
RELEASE = release.from_course(LESSON)
BATCH = grade.Batch(release=RELEASE, seed=7)
RIGHT_11 = """def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return peak * min(1.0, up, down)"""
RIGHT_12 = """def pick_rate(rates, losses):
    import math
    finite = [(loss, rate) for rate, loss in zip(rates, losses) if math.isfinite(loss)]
    return min(finite)[1] / 10"""


def answered(folder, **answers):
    """A student's folder with lesson 01's notebook, in which the stubs of some exercises are replaced."""
    notebook = nbformat.read(LESSON.student, as_version=4)
    for cell in notebook.cells:
        for name, source in answers.items():
            if cell.cell_type == "code" and f"def {name}(" in cell.source and "NotImplementedError" in cell.source:
                cell.source = source
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / "answer.ipynb")
    return submission.read_folder(folder, RELEASE)


class Session:
    """As a box's: runs cells here; one that calls die() ends it, and so does a call of a function that does."""

    def __init__(self, cells):
        self.over, self.outcomes, self.namespace = "", [], {"die": self.die}
        for name, source in cells:
            error = None
            try:
                linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # as IPython does
                exec(compile(source, name, "exec"), self.namespace)
            except Exception as raised:
                error = SimpleNamespace(type=type(raised).__name__, message=str(raised), line=1)
            self.outcomes.append(SimpleNamespace(name=name, error=error, output=b""))
            if self.over:
                return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = "died"

    def die(self, status):
        self.over = status
        raise KeyboardInterrupt  # nothing that a cell catches

    def helpers(self):
        return self.namespace.get("left_behind", [])

    def call(self, name, payload, timeout_s):  # noqa: ARG002
        reply = harness.answer(self.namespace, name, payload)
        return SimpleNamespace(status=self.over or "ok", payload=b"" if self.over else reply, output=b"", said="")


class HereBox:
    """Makes such sessions, and counts them."""

    def __init__(self):
        self.n_sessions = 0

    def run(self, cells, ranks):
        assert ranks is None  # lesson 01 has none
        self.n_sessions += 1
        try:
            return Session(cells)
        except KeyboardInterrupt:
            ended = Session([])
            ending = ["die(" in source for _, source in cells].index(True)
            error = SimpleNamespace(message="it took longer than 60 s")
            ended.over = "timeout"
            ended.outcomes = [SimpleNamespace(error=error, said="9 B before it was ended, and last 'x'")] * (1 + ending)
            return ended


def found(read, box=None):
    return {one.exercise: (one.status, one.points) for one in grade.results(read, BATCH, box or HereBox())}


def test_each_exercise_has_its_own_result(tmp_path):
    one = "def pick_rate(rates, losses):\n    return 1.0"
    read = answered(tmp_path / "ann", warmup_stable_decay=RIGHT_11, pick_rate=one)
    assert found(read) == {"1.1": ("ok", 3), "1.2": ("wrong", 0), "1.3": ("not-attempted", 0)}


def test_a_call_that_ends_the_process_costs_its_own_exercise(tmp_path):
    dying = "def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):\n    die('memory')"
    box = HereBox()
    read = answered(tmp_path / "ann", warmup_stable_decay=dying, pick_rate=RIGHT_12)
    assert found(read, box) == {"1.1": ("memory", 0), "1.2": ("ok", 2), "1.3": ("not-attempted", 0)}
    assert box.n_sessions == 2


def test_a_cell_that_ends_the_process_costs_its_own_exercise(tmp_path):
    dying = f"{RIGHT_11}\ndie('timeout')"
    read = answered(tmp_path / "ann", warmup_stable_decay=dying, pick_rate=RIGHT_12)
    assert found(read) == {"1.1": ("timeout", 0), "1.2": ("ok", 2), "1.3": ("not-attempted", 0)}
    told = "The cell ended the process that ran it: it took longer than 60 s."
    printed = "printed  9 B before it was ended, and last 'x'"
    assert grade.results(read, BATCH, HereBox())[0].message == f"{told}\n{printed}"


def test_a_cell_that_fails_before_it_defines_anything_is_told_so(tmp_path):
    read = answered(tmp_path / "ann", warmup_stable_decay=f"1 / 0\n{RIGHT_11}")
    [result, *_] = grade.results(read, BATCH, HereBox())
    assert (result.status, result.points, result.line) == ("error", 0, 1)
    assert result.message == "The cell raised ZeroDivisionError: division by zero (line 1)"
    assert result.code.startswith(">   1  1 / 0\n    2  def warmup_stable_decay(")


def test_who_handed_in_no_notebook_has_a_row_with_what_collecting_said(tmp_path):
    source, collected = tmp_path / "in", tmp_path / "collected"
    answered(source / "ann")
    for student in ("bob", "eve!"):
        (source / student).mkdir()
        (source / student / "answer.py").write_text("x = 1\n")
    collect.collect(source, collected)
    batch = replace(BATCH, trusted=True)
    rows = grade.grade(collected, batch, tmp_path / "out")
    assert [row["student"] for row in rows] == ["ann"] * 3 + ["bob"] * 3
    assert {(row["status"], row["message"]) for row in rows[3:]} == {
        ("unreadable", "bob handed in answer.py, and no notebook.")
    }
    assert "bob,0,0,0," in (tmp_path / "out" / "grades.csv").read_text()
    rows = grade.grade(collected, batch, tmp_path / "out", students=["ann", "BOB", "cleo"])
    assert {row["student"]: row["message"] for row in rows}["cleo"] == "Nothing was handed in."
    assert {row["student"]: row["message"] for row in rows}["bob"] == "bob handed in answer.py, and no notebook."


def test_who_handed_in_another_lesson_is_told_so_on_every_row(tmp_path):
    (tmp_path / "ann").mkdir()
    shutil.copy(course.find("02").student, tmp_path / "ann" / "01.ipynb")
    read = submission.read_folder(tmp_path / "ann", RELEASE)
    said = "No cell of 01_lr_warmup is in it: it looks like the notebook of 02_progressive_resizing."
    assert [(one.status, one.message) for one in grade.results(read, BATCH, HereBox())] == [("missing", said)] * 3


def test_a_line_that_raised_is_shown_as_it_stands_in_the_learners_cell(tmp_path):
    raising = RIGHT_12.replace("/ 10", "/ {}[0]")
    [_, result, _] = grade.results(answered(tmp_path / "ann", pick_rate=raising), BATCH, HereBox())
    assert result.status == "error"
    assert result.code.endswith(">   4      return min(finite)[1] / {}[0]")
    assert result.code.startswith("    2      import math\n")


def test_a_line_of_another_cell_is_not_looked_up_in_the_answers(tmp_path):
    calling = "def pick_rate(rates, losses):\n    return helper()"
    read = answered(tmp_path / "ann", pick_rate=calling, warmup_stable_decay="def helper():\n\n    return 1 / 0")
    [_, result, _] = grade.results(read, BATCH, HereBox())
    assert result.status == "error"
    assert "return 1 / 0" not in result.code


def test_a_cell_that_answers_two_exercises_and_ends_the_process_costs_both(tmp_path):
    both = f"{RIGHT_11}\n{RIGHT_12}\ndie('memory')"
    read = answered(tmp_path / "ann", warmup_stable_decay=both, pick_rate="# above")
    assert found(read) == {"1.1": ("timeout", 0), "1.2": ("timeout", 0), "1.3": ("not-attempted", 0)}
    fine = answered(tmp_path / "bob", warmup_stable_decay=f"{RIGHT_11}\n{RIGHT_12}", pick_rate="# above")
    assert found(fine) == {"1.1": ("ok", 3), "1.2": ("ok", 2), "1.3": ("not-attempted", 0)}


def test_a_failed_call_that_leaves_processes_behind_costs_the_session(tmp_path):
    leaving = "def warmup_stable_decay(*given):\n    left_behind.append(1)\n    return {} / 0"
    read = answered(tmp_path / "ann", warmup_stable_decay=f"left_behind = []\n{leaving}", pick_rate=RIGHT_12)
    box = HereBox()
    assert found(read, box) == {"1.1": ("error", 0), "1.2": ("ok", 2), "1.3": ("not-attempted", 0)}
    assert box.n_sessions == 2
    there_before = "left_behind = [1]\ndef warmup_stable_decay(*given):\n    return {} / 0"
    box = HereBox()
    found(answered(tmp_path / "bob", warmup_stable_decay=there_before, pick_rate=RIGHT_12), box)
    assert box.n_sessions == 1


def test_a_fault_of_the_grader_passes_for_nobodys(tmp_path, monkeypatch):
    read = answered(tmp_path / "ann", warmup_stable_decay=RIGHT_11)
    for phase in ("public", "private"):
        with monkeypatch.context() as patch:
            patch.setattr(grade.Judging, phase, lambda *_: 1 / 0)
            [result, *_] = grade.results(read, BATCH, HereBox())
        assert (result.status, result.points) == ("ungraded", 0)
        assert "The grader failed: ZeroDivisionError" in result.message


def test_no_hidden_input_of_one_exercise_can_be_told_by_another(tmp_path):
    keeping = RIGHT_11.replace(":\n", ":\n    spied.append(step)\n", 1)
    telling = "def pick_rate(rates, losses):\n    raise ValueError(f'seen {len(spied)}')"
    read = answered(tmp_path / "ann", warmup_stable_decay=f"spied = []\n{keeping}", pick_rate=telling)
    right, told, _ = grade.results(read, BATCH, HereBox())
    [exercise] = [one for one in BATCH.exercises if one.number == "1.1"]
    n_public = len(exercise.cases(generator_for(exercise, verdicts.PUBLIC_SEED)))
    assert (right.status, told.status) == ("ok", "error")
    assert f"seen {n_public}\n" in f"{told.message}\n"


def test_a_release_with_exercises_that_are_not_known_here_gets_a_sentence():
    cells = tuple(replace(cell, exercise="1.9") if cell.exercise == "1.3" else cell for cell in RELEASE.cells)
    with pytest.raises(CourseError, match=r"no check of exercise 1\.9"):
        _ = replace(BATCH, release=replace(RELEASE, cells=cells)).exercises
    with pytest.raises(CourseError, match="has no exercises"):
        _ = replace(BATCH, release=replace(RELEASE, cells=())).exercises


def test_a_fault_of_the_grader_before_any_verdict_costs_one_student_and_not_the_batch(tmp_path):
    class Faulty:
        def run(self, *_, **__):
            raise OverflowError("odd")

    answered(tmp_path / "ann", warmup_stable_decay=RIGHT_11)
    found = BATCH.judge(tmp_path / "ann", Faulty())["results"]
    assert {row["status"] for row in found} == {"ungraded"}
    assert found[0]["message"] == "The grader failed: OverflowError: odd"


def test_a_fault_of_the_grader_is_judged_anew_without_being_asked_to(tmp_path, monkeypatch):
    calls = []

    def graded(folders, batch, _jobs):
        for each in folders:
            calls.append(each.name)
            rows = batch.nothing()
            if calls.count("ann") == 1 and each.name == "ann":
                rows[0]["status"] = "ungraded"
            yield each, {"results": rows, "notes": []}

    for name in ("ann", "bob"):
        answered(tmp_path / "in" / name)
    monkeypatch.setattr(grade.side_by_side, "graded", graded)
    for status in ("ungraded", "missing", "missing"):
        counted = []
        rows = grade.grade(tmp_path / "in", BATCH, tmp_path / "out", progress=counted.append)
        assert rows[0]["status"] == status
        assert sum(counted) == 2
    assert calls == ["ann", "bob", "ann"]


def test_no_folder_gets_a_sentence(tmp_path):
    with pytest.raises(CourseError, match="is no folder of submissions"):
        grade.grade(tmp_path / "none", BATCH, tmp_path / "out")


# ---- the whole, in a sandbox ----------------------------------------------------------------------------------------


def class_of(folder):
    """Six students: right, wrong, untouched, no notebook, no JSON, and one whose cell never ends."""
    answered(folder / "ann", warmup_stable_decay=RIGHT_11, pick_rate=RIGHT_12)
    answered(folder / "=bob", warmup_stable_decay="def warmup_stable_decay(*given):\n    return 0.0")
    answered(folder / "cleo")
    (folder / "dan").mkdir()
    (folder / "eve").mkdir()
    (folder / "eve" / "answer.ipynb").write_text("{")
    answered(folder / "fay", warmup_stable_decay=RIGHT_11, pick_rate="import os\nos._exit(0)")
    return folder


EXPECTED = """student,1.1,1.2,1.3,points,max_points
'=bob,0,0,0,0,10
ann,3,2,0,5,10
cleo,0,0,0,0,10
dan,0,0,0,0,10
eve,0,0,0,0,10
fay,3,0,0,3,10
gil,0,0,0,0,10
"""


@needs_box
@pytest.mark.slow
def test_a_class_is_graded_once_and_the_same_whatever_the_jobs(tmp_path, monkeypatch):
    folder = class_of(tmp_path / "in")
    for jobs in (1, 2):
        out = tmp_path / f"out{jobs}"
        counted = []
        rows = grade.grade(folder, BATCH, out, jobs=jobs, students=["ann", "gil"], progress=counted.append)
        assert (out / "grades.csv").read_text() == EXPECTED
        assert sum(counted) == 6
        statuses = {row["student"]: row["status"] for row in rows if row["exercise"] == "1.2"}
        assert statuses["eve"] == statuses["dan"] == "unreadable"
        assert (statuses["fay"], statuses["gil"]) == ("died", "missing")
        assert len((out / "results.jsonl").read_text().splitlines()) == 3 * 7
        assert review.notes(out)["cleo"] == ["Nobody of this name is on the roster."]
        assert "ann" not in review.notes(out)
    monkeypatch.setattr(jobs_module, "ProcessPoolExecutor", None)  # unchanged: nothing is run
    grade.grade(folder, BATCH, tmp_path / "out1", students=["ann", "gil"])
    assert (tmp_path / "out1" / "grades.csv").read_text() == EXPECTED
    assert json.loads((tmp_path / "out1" / "run.json").read_text())["sandbox"] is True
