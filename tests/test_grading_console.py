"""What `labkit grade` says before, while and after it grades."""

import io
import json
import re

import pytest
from test_grading_feedback import row

from labkit.course import CourseError
from labkit.grading import console, review, tables


def test_students_are_folders_and_not_what_systems_put_beside_them(tmp_path):
    for name in ("bob", "=ann", ".git", "__MACOSX", ".ipynb_checkpoints"):
        (tmp_path / name).mkdir()
    (tmp_path / "collected.json").touch()
    (tmp_path / "link").symlink_to(tmp_path / "bob")
    assert [path.name for path in console.students(tmp_path)] == ["=ann", "bob"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({}, "is no folder of submissions"),
        ({"in": None}, "holds no folder of a student: labkit collect .* makes them"),
        ({"in/01.ipynb": ""}, "holds notebooks and no folder of a student"),
    ],
)
def test_a_folder_without_students_gets_a_sentence(tmp_path, made, said):
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(CourseError, match=said):
        console.students(tmp_path / "in")


def test_a_place_for_results_that_is_none_gets_a_sentence(tmp_path):
    (tmp_path / "in" / "ann").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text(json.dumps({"lesson": "02_other"}))
    for out, said in (("file", "is a file"), ("in/out", "taken for a student"), ("in", "taken"), ("old", "02_other")):
        with pytest.raises(CourseError, match=said):
            console.refuse(tmp_path / "in", tmp_path / out, "01_this")
    console.refuse(tmp_path / "in", tmp_path / "old", "02_other")
    console.refuse(tmp_path / "in", tmp_path, "01_this")


class Terminal(io.StringIO):
    """A stream that a bar takes for a terminal."""

    def isatty(self):
        return True


def test_the_bar_tells_students_a_minute_and_the_time_left_without_those_that_were_kept():
    shown = Terminal()
    with console.Bar(100, file=shown, mininterval=0, ncols=100) as bar:
        bar.more(40)
        assert "? a minute, ? left" in str(bar)
        bar._time = lambda: bar.start_t + 50  # seconds since the start
        bar.more(1)
        assert "41 of 100 students" in str(bar)
        assert "? a minute, ? left" in str(bar)  # of the first most was the sandbox's start
        bar._time = lambda: bar.start_t + 80
        bar.more(19)
        assert re.search(r"60 of 100 students .* 38 a minute, 01:03 left", str(bar))
    assert bar.kept == 40
    assert "students" in shown.getvalue()


def test_nothing_is_drawn_where_nobody_watches():
    shown = io.StringIO()
    with console.Bar(2, file=shown) as bar:
        bar.more(0)
        bar.more(2)
    assert shown.getvalue() == ""


def test_the_end_says_what_came_of_it_and_what_to_look_at(tmp_path):
    rows = [row("ann", status="ok", points=3), row("ann", "1.2", status="ungraded", message="The grader failed: X")]
    rows += [row("bob", status="ok", points=3), row("bob", "1.2", "wrong", message="wrong result")]
    tables.write(rows, "Lesson 01", tmp_path)
    review.keep(tmp_path, {"bob": ["Cells 3, 4 both define f."]})
    lines = console.ending(rows, tmp_path, kept=1)
    assert lines[0] == "2 students, 4 exercises of theirs: 2 ok, 1 ungraded, 1 wrong"
    assert lines[1:3] == ["1 of them as they were graded before.", "Points: median 3, highest 3 of 6."]
    assert "For you to look at:" in lines
    assert "      ann 1.2: The grader failed: X" in lines
    assert "      bob: Cells 3, 4 both define f." in lines
    assert lines[-1].startswith(f"wrote {tmp_path}/grades.csv")
    assert "For you to look at:" not in console.ending(rows[2:], _clean(tmp_path, rows[2:]), kept=0)


def _clean(out, rows):
    """The same folder, graded anew without anything odd."""
    tables.write(rows, "Lesson 01", out)
    review.keep(out, {})
    return out


SECOND = "No cell of 01_this is in it: it looks like the notebook of 02_other."
FIRST = "No cell of 01_this is in it: it is perhaps the notebook of another lesson."


@pytest.mark.parametrize(
    ("statuses", "notes", "said"),
    [
        ({"ann": "missing"}, {"ann": [SECOND]}, "holds a cell of 01_this: 1 looks like 02_other. Were"),
        (dict.fromkeys("abc", "missing"), {"a": [SECOND], "b": [FIRST], "c": [SECOND]}, "2 look like 02_other"),
        ({"ann": "missing"}, {"ann": [FIRST]}, "Were other notebooks meant, or another lesson?"),
        ({"ann": "missing", "bob": "unreadable", "eve": "missing"}, {"ann": [SECOND]}, "1 looks like 02_other"),
        ({"ann": "missing", "bob": "not-attempted"}, {"ann": [SECOND]}, ""),
        ({"ann": "missing", "bob": "missing"}, {"ann": [SECOND]}, ""),
        ({"bob": "unreadable"}, {}, ""),
        ({"ann": "ok"}, {"ann": ["Cells 3, 4 both define f."]}, ""),
    ],
)
def test_a_class_with_another_lessons_notebooks_is_told_so(tmp_path, statuses, notes, said):
    rows = [row(who, status=how, message="Nothing was handed in." * (who == "eve")) for who, how in statuses.items()]
    review.keep(tmp_path, notes)
    found = console.strangers(rows, tmp_path, "01_this")
    assert said in found
    assert bool(found) == bool(said)
