"""Notebooks from sources: what is cut out, what is byte for byte the same, what is noticed, what survives a failure."""

import errno
import json
import os
import re

import fabricated
import nbformat
import pytest

from labkit import build, course
from labkit.course import CourseError


def edit(lesson, old, new):
    text = lesson.text()
    assert old in text
    lesson.source.write_text(text.replace(old, new), encoding="utf-8")


def pretend_executed(lesson):
    """Store outputs as execute would."""
    cells = build.convert(lesson)
    outputs = [[{"name": "stdout", "output_type": "stream", "text": [f"{i}\n"]}] for i in range(3)]
    build.write(lesson.student, build.student_notebook(cells))
    build.write(lesson.solution, build.solution_notebook(cells, outputs, build.code_sha256(cells)))


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_the_student_sees_a_stub_and_the_solution_keeps_its_code(toy):
    build.build([toy])
    student, solution = ("".join(cells_of(path)[3]["source"]) for path in (toy.student, toy.solution))
    head = 'def double(x):\n    """Twice x."""\n'
    assert student == head + '    raise NotImplementedError("exercise 1.1")'
    assert solution == head + "    y = x + x\n    return y"
    space = {}
    exec(student, space)
    with pytest.raises(NotImplementedError, match=r"exercise 1\.1"):
        space["double"](3)


def test_notebooks_are_valid_and_written_as_jupyter_writes_them(toy):
    build.build([toy])
    for path in (toy.student, toy.solution):
        text = path.read_text(encoding="utf-8")
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
        assert nbformat.writes(notebook) + "\n" == text
        assert text.endswith("}\n")
        ids = [cell["id"] for cell in cells_of(path)]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[a-z0-9]{12}", one) for one in ids)


def test_the_bytes_depend_on_the_source_alone(toy, tmp_path, monkeypatch):
    build.build([toy])
    before = [path.read_bytes() for path in (toy.student, toy.solution)]
    assert build.build([toy])[:-1] == []
    monkeypatch.chdir(fabricated.course(tmp_path / "elsewhere"))
    other = course.find("01")
    build.build([other])
    assert [path.read_bytes() for path in (other.student, other.solution)] == before


def test_the_student_notebook_does_not_tell_the_solution_not_even_by_a_hash(toy):
    before = build.student_notebook(build.convert(toy))
    edit(toy, "y = x + x", "y = 2 * x")
    assert build.student_notebook(build.convert(toy)) == before


def test_equal_cells_get_different_ids(toy):
    edit(toy, "x = 2\n", "x = 2\n\n# %%\nx = 2\n\n# %%\nx = 2\n")
    notebook = json.loads(build.student_notebook(build.convert(toy)))
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_every_solved_line_knows_its_line_in_the_source(toy):
    source = toy.text().splitlines()
    for cell in build.convert(toy):
        if cell.kind == "code":
            assert [source[line - 1] for line in cell.lines] == cell.solution.splitlines()


MARKDOWN = "\n# %% [markdown]\n"
BEGIN, END = "    ### BEGIN SOLUTION\n", "    ### END SOLUTION\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (END, "", r"cell at line 20: '### BEGIN SOLUTION' is never closed"),
        (BEGIN, "", r"line 24: '### END SOLUTION' without"),
        ("    y = x + x\n", BEGIN, r"line 23: '### BEGIN SOLUTION' inside another"),
        ("Exercise 1.1 · Double", "Double", r"line 22: a solution region needs a heading 'Exercise"),
        (BEGIN, BEGIN.lower(), r"line 22: write the marker exactly as"),
        (BEGIN, "    # BEGIN SOLUTION\n", r"line 22: write the marker exactly as"),
        (
            "# Double it.",
            "# Double it.\n\n# %% [markdown]\n# ## Limits\n",
            r"line 26: a solution region needs a heading",
        ),
        (
            "# Double it.",
            "# Double it.\n\n# %% [markdown]\n# ### Exercise 1.1 · Again\n",
            r"exercise 1\.1 is already there",
        ),
        ("# Some prose.", "Some prose.", r"01_toy\.py: Line 9: a markdown cell has a line that is not a comment"),
    ],
)
def test_a_mistake_in_the_source_is_named_with_its_line(toy, old, new, says):
    edit(toy, old, new)
    with pytest.raises(CourseError, match=says) as caught:
        build.convert(toy)
    assert "01_toy.py" in str(caught.value)


def test_a_solution_outside_a_function_would_stop_run_all(toy):
    edit(toy, "x = 2\n", "x = 2\n")
    edit(toy, "try:\n", "### BEGIN SOLUTION\ntry:\n")
    with pytest.raises(CourseError, match="must lie inside a function"):
        build.convert(toy)


def test_an_untouched_build_is_clean_and_everything_else_is_named(toy):
    assert build.check() == [
        "notebooks/01_toy.ipynb is missing: run labkit build.",
        "solutions/01_toy.ipynb is missing: run labkit build.",
    ]
    build.build([toy])
    assert build.check() == ["solutions/01_toy.ipynb was never executed: run labkit build --execute 01."]
    pretend_executed(toy)
    assert build.check() == []


def test_stale_notebooks_are_named(toy):
    pretend_executed(toy)
    edit(toy, "Some prose", "Other prose")
    assert [line.split(",")[0] for line in build.check()] == [
        "notebooks/01_toy.ipynb is stale",
        "solutions/01_toy.ipynb is stale",
    ]
    edit(toy, "x = 2", "x = 3")
    assert "solutions/01_toy.ipynb has outputs that belong to an older source" in build.check()[1]


@pytest.mark.parametrize(
    ("name", "old"),
    [("student", "Some prose."), ("student", "x is"), ("solution", "Some prose."), ("solution", "x is")]
    + [("solution", '"stdout"')],  # outputs; the student's notebook has none
)
def test_hand_edits_are_named_and_never_overwritten_unasked(toy, name, old):
    pretend_executed(toy)
    path = getattr(toy, name)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, old.replace("s", "z", 1)), encoding="utf-8")
    assert [line.split(":")[0] for line in build.check()] == [f"{path.parent.name}/01_toy.ipynb was edited by hand"]
    before = path.read_bytes()
    with pytest.raises(CourseError, match="Edited by hand"):
        build.build([toy])
    assert path.read_bytes() == before
    build.build([toy], force=True)
    assert not any("by hand" in line for line in build.check())


def test_a_learners_outputs_count_as_work_and_a_mere_save_does_not(toy):
    pretend_executed(toy)
    notebook = json.loads(toy.student.read_text(encoding="utf-8"))
    notebook["metadata"]["language_info"]["version"] = "3.12.1"
    toy.student.write_text(json.dumps(notebook), encoding="utf-8")
    assert "saved by another tool" in build.check()[0]
    assert build.build([toy]) == ["wrote notebooks/01_toy.ipynb"]
    notebook["cells"][1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": ["2"]}]
    toy.student.write_text(json.dumps(notebook), encoding="utf-8")
    with pytest.raises(CourseError, match="notebooks/01_toy"):
        build.build([toy])


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", '{"cells": 3, "metadata": {}}', '{"cells": [3], "metadata": {}}']
)
def test_a_file_that_is_no_notebook_counts_as_edited(toy, text):
    pretend_executed(toy)
    toy.solution.write_text(text)
    assert "edited by hand" in build.check()[0]


def test_orphans_are_named_in_both_folders(toy):
    pretend_executed(toy)
    for folder in (toy.student.parent, toy.solution.parent):
        (folder / "02_gone.ipynb").write_text("{}")
    checkpoints = toy.student.parent / ".ipynb_checkpoints"
    checkpoints.mkdir()
    (checkpoints / "01_toy-checkpoint.ipynb").write_text("{}")
    assert [line.split(" has")[0] for line in build.check()] == ["notebooks/02_gone.ipynb", "solutions/02_gone.ipynb"]


def test_outputs_outlive_prose_and_not_code(toy):
    pretend_executed(toy)
    edit(toy, "Some prose", "Other prose")
    assert build.build([toy]) == ["wrote notebooks/01_toy.ipynb", "wrote solutions/01_toy.ipynb"]
    assert cells_of(toy.solution)[1]["outputs"]
    assert build.check() == []
    edit(toy, "x = 2", "x = 3")
    assert build.build([toy])[-1] == "solutions/01_toy.ipynb has no outputs: run labkit build --execute 01"
    assert not any(cell.get("outputs") for cell in cells_of(toy.solution))


def test_an_interrupted_build_leaves_the_old_file_and_the_next_starts_clean(toy, monkeypatch):
    pretend_executed(toy)
    before = toy.student.read_bytes()
    edit(toy, "Some prose", "Other prose")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.build([toy])
    monkeypatch.undo()
    monkeypatch.chdir(toy.source.parents[1])
    assert toy.student.read_bytes() == before
    left = toy.student.parent / ".labkit-draft-killed"  # a kill leaves what an exception would have removed
    left.touch()
    build.build([toy])
    assert not left.exists()
    assert sorted(os.listdir(toy.student.parent)) == ["01_toy.ipynb"]
    assert build.check() == []


def test_a_full_disk_leaves_the_old_file(toy, monkeypatch):
    pretend_executed(toy)
    before = toy.student.read_bytes()
    edit(toy, "Some prose", "Other prose")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="No space"):
        build.build([toy])
    monkeypatch.undo()
    assert toy.student.read_bytes() == before
    assert sorted(os.listdir(toy.student.parent)) == ["01_toy.ipynb"]


def test_the_real_notebooks_are_what_their_sources_make():
    assert build.check() == []


@pytest.mark.usefixtures("toy")
def test_a_source_whose_name_is_no_lessons_is_reported():
    build.build(course.lessons())
    names = ["02_Caps.py", "1_one_digit.py", "003_three.py", "notes.py"]
    for name in names:
        (course.root() / "solutions" / name).write_text(fabricated.HEADER, encoding="utf-8")
    reported = [line for line in build.check() if "is no lesson" in line]
    assert [line.split()[0] for line in reported] == sorted(f"solutions/{name}" for name in names)
