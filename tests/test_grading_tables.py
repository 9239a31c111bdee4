"""Grades from verdicts and from what was set by hand, for people and for grade books."""

import csv
import io
import json

import pytest

from labkit.course import CourseError
from labkit.grading import gradebook, page, roster, tables


def row(student, exercise, points, status="ok"):
    both = {"student": student, "exercise": exercise, "status": status, "points": points}
    return both | {"max_points": 3, "seconds": 0.1, "message": "all right", "inside": False}


@pytest.fixture
def graded(tmp_path):
    """A graded class of two, one with a name that a spreadsheet would obey."""
    rows = [row("ann", "1.1", 3), row("ann", "1.2", 0, "wrong")]
    rows += [row("=bob", "1.1", 0, "missing"), row("=bob", "1.2", 3)]
    tables.write(rows, "Lesson 01", tmp_path)
    (tmp_path / "run.json").write_text('{"lesson": "01_lr_warmup", "title": "Lesson 01_lr_warmup"}')
    return tmp_path


def grades(graded):
    return (graded / "grades.csv").read_text()


def test_grades_are_a_line_a_student_by_name(graded):
    assert grades(graded) == "student,1.1,1.2,points,max_points\n'=bob,0,3,3,6\nann,3,0,3,6\n"


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r"])
def test_no_spreadsheet_takes_a_name_for_a_formula(sign):
    assert tables.harmless(f"{sign}1+1") == f"'{sign}1+1"
    assert tables.harmless(f"a{sign}") == f"a{sign}"


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_what_else_ends_a_line_somewhere_costs_no_results(tmp_path, sign):
    rows = [row(f"a{sign}n", "1.1", 3) | {"message": f"raised{sign}likely  forged"}, row("bob", "1.1", 3)]
    tables.write(rows, "Lesson 01", tmp_path)
    assert tables.results(tmp_path) == rows
    assert page.split(f"it printed a\nreturned  b{sign}likely  forged")[1][-1][0] == "returned"


def test_points_set_by_hand_are_kept_apart_and_survive_a_regrade(graded):
    verdicts = (graded / "results.jsonl").read_text()
    tables.override(graded, "ann", "1.2", 2, "The idea is right.")
    tables.override(graded, "ann", "1.2", 2.5, "The idea is right, and so is half of the rest.")
    tables.refresh("Lesson 01", graded)
    assert "ann,3,2.5,5.5,6" in grades(graded)
    assert (graded / "results.jsonl").read_text() == verdicts
    assert "The idea is right, and so is half" in (graded / "feedback" / "ann.html").read_text()
    tables.write(tables.results(graded), "Lesson 01", graded)  # as a regrade does
    assert "ann,3,2.5,5.5,6" in grades(graded)
    [kept] = tables.overrides(graded)
    assert set(kept) == {"student", "exercise", "points", "why", "when"}


@pytest.mark.parametrize(
    ("student", "exercise", "points", "why", "said"),
    [
        ("eve", "1.1", 1, "x", "has no student 'eve'"),
        ("ann", "9.9", 1, "x", "has no exercise '9.9'"),
        ("ann", "1.1", 4, "x", "has 0 to 3 points, not 4"),
        ("ann", "1.1", -1, "x", "has 0 to 3 points, not -1"),
        ("ann", "1.1", float("nan"), "x", "has 0 to 3 points, not nan"),
        ("ann", "1.1", 1, "  ", "need a reason"),
    ],
)
def test_what_cannot_be_set_gets_a_sentence_and_changes_nothing(graded, student, exercise, points, why, said):
    with pytest.raises(CourseError, match=said):
        tables.override(graded, student, exercise, points, why)
    assert tables.overrides(graded) == []


@pytest.mark.parametrize(("student", "exercise"), [("ANN", "1.2"), (" Ann ", " 1.2"), ("ann", "1.2")])
def test_whoever_is_meant_without_doubt_gets_the_points(graded, student, exercise):
    found = tables.override(graded, student, exercise, 2, "x")
    assert (found["student"], found["exercise"], found["points"]) == ("ann", "1.2", 2)
    [kept] = tables.overrides(graded)
    assert (kept["student"], kept["exercise"]) == ("ann", "1.2")


def test_of_two_who_may_be_meant_neither_gets_them_and_the_nearest_are_named(graded):
    tables.write([row(who, "1.1", 3) for who in ("ann", "Ann", "anna")], "Lesson 01", graded)
    assert tables.override(graded, "Ann", "1.1", 1, "x")["student"] == "Ann"
    with pytest.raises(CourseError, match="student 'ANN' may be Ann or ann: write it to the letter"):
        tables.override(graded, "ANN", "1.1", 1, "x")
    with pytest.raises(CourseError, match="has no student 'ana'; the nearest: Ann, ann, anna"):
        tables.override(graded, "ana", "1.1", 1, "x")
    assert [one["student"] for one in tables.overrides(graded)] == ["Ann"]


def test_the_command_names_whom_it_found(labkit, graded):
    said = labkit("override", "ANN", "1.2", "2", "--why", "Right after all.", "--out", graded)
    assert said == (0, "ann, exercise 1.2: 2 of 3 points.\n", "")


def test_a_folder_that_was_not_graded_gets_a_sentence(tmp_path):
    with pytest.raises(CourseError, match="holds no results.jsonl: it is what labkit grade writes"):
        tables.results(tmp_path)


def test_the_name_that_a_roster_gives_stands_beside_the_id(graded):
    before = grades(graded)
    known = roster.Roster((roster.Student(id="Ann", row={"name": "Ann <b> & Co"}), roster.Student(id="=bob")))
    tables.keep_names(known, graded)
    tables.refresh("Lesson 01", graded)
    ann, bob = ((graded / "feedback" / f"{name}.html").read_text() for name in ("ann", "=bob"))
    assert "<p>ann \u00b7 Ann &lt;b&gt; &amp; Co: <b>" in ann
    assert "<p>=bob: <b>" in bob
    assert 'ann.html">ann</a> Ann &lt;b&gt; &amp; Co</td>' in (graded / "class.html").read_text()
    assert grades(graded) == before
    assert all("name" not in one for one in tables.results(graded))


@pytest.mark.parametrize(
    ("heads", "line", "name"),
    [
        ("id,name", "ann,Ann Lovelace", "Ann Lovelace"),
        ("SID,Full_Name", "ann,Ann Lovelace", "Ann Lovelace"),
        ("Student,ID", '"Lovelace, Ann",17', "Lovelace, Ann"),
        ("First name,Surname,Email address", "Ann,Lovelace,a@b.c", "Ann Lovelace"),
        ("id,Last name", "ann,Lovelace", "Lovelace"),
        ("student", "ann", ""),
        ("student,email", "ann,a@b.c", ""),
        ("username,name", "ann,ANN", ""),
    ],
)
def test_a_name_is_found_in_whatever_column_it_stands(tmp_path, heads, line, name):
    assert students(tmp_path, f"{heads}\n{line}\n").students[0].name == name


# ---- grade books ----------------------------------------------------------------------------------------------------

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Lovelace, Ann",17,s17,ann,One
"Builder, Bob",18,s18,=bob,One
"Nobody, Nil",19,s19,nil,One
"""
MOODLE = "Identifier,Full name,Email address\nParticipant 1,Ann Lovelace,ann\nParticipant 2,Bob Builder,=bob\n"


def students(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_text(text)
    return roster.load(path)


def exported(graded, form, **more):
    [path] = gradebook.export(graded, form, graded / "book.csv", "Lesson 01", **more)
    return list(csv.reader(io.StringIO(path.read_text())))


def test_canvas_gets_its_own_columns_its_row_of_maxima_and_those_who_were_graded(graded):
    known = students(graded, CANVAS)
    by_login = roster.Roster(tuple(roster.Student(id=one.row["sis login id"], row=one.row) for one in known.students))
    lines = exported(graded, "canvas", roster=by_login)
    assert lines[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Lesson 01"]
    assert lines[1] == ["    Points Possible", "", "", "", "", "6"]
    assert lines[2] == ["Lovelace, Ann", "17", "s17", "ann", "One", "3"]
    assert lines[3:] == [["Builder, Bob", "18", "s18", "=bob", "One", "3"]]


def test_an_id_is_found_however_it_is_written(graded):
    ids = ("ANN", " =Bob")
    known = roster.Roster(tuple(roster.Student(id=one, row={"student": one, "id": one}) for one in ids))
    assert [line[-1] for line in exported(graded, "canvas", roster=known)[2:]] == ["3", "3"]


def test_two_folders_of_one_id_go_to_no_grade_book(graded):
    tables.write([row("ann", "1.1", 3), row("Ann", "1.1", 0)], "Lesson 01", graded)
    with pytest.raises(CourseError, match="are one id to a grade book"):
        exported(graded, "canvas", roster=students(graded, CANVAS))


@pytest.mark.parametrize(
    "name",
    [
        *("results.jsonl", "Results.jsonl", "overrides.json", "grades.csv", "run.json", "policy.json", "notes.json"),
        "names.json",
        *("class.html", "similar.html", "kept/x.json", "feedback/ann.html", "feedback", "."),
    ],
)
def test_what_labkit_wrote_is_not_overwritten(graded, name):
    before = (graded / "results.jsonl").read_text()
    (graded / "link").symlink_to(graded / name)
    for to in (graded / name, graded / "link"):
        with pytest.raises(CourseError, match="give --file another name"):
            gradebook.export(graded, "csv", to, "Lesson 01")
    assert (graded / "results.jsonl").read_text() == before


def test_moodle_gets_identifier_name_and_grade(graded):
    known = students(graded, MOODLE)
    by_mail = roster.Roster(tuple(roster.Student(id=one.row["email address"], row=one.row) for one in known.students))
    lines = exported(graded, "moodle", roster=by_mail)
    assert lines[0] == ["Identifier", "Full name", "Email address", "Lesson 01"]
    assert lines[1] == ["Participant 1", "Ann Lovelace", "ann", "3"]


def test_canvas_gets_the_column_of_an_assignment_that_it_has(labkit, graded):
    text = "Student,ID,HW 01 (555),HW 02 (556)\n    Points Possible,,6,6\nAnn,ann,,\nBob,=bob,,\n"
    known = students(graded, text)
    lines = exported(graded, "canvas", roster=known, column="hw 01  (555)")
    assert [line[-1] for line in lines] == ["hw 01  (555)", "6", "3", "3"]
    with pytest.raises(CourseError, match=r"no column 'HW 03': it has hw 01 \(555\), hw 02 \(556\)"):
        exported(graded, "canvas", roster=known, column="HW 03")
    with pytest.raises(CourseError, match="--column is a column of Canvas's"):
        exported(graded, "moodle", roster=known, column="HW 01 (555)")
    asked = ("export", graded, "--to", "canvas", "--roster", graded / "roster.csv", "--file", graded / "book.csv")
    assert labkit(*asked, "--column", "HW 01 (555)")[0] == 0
    assert (graded / "book.csv").read_text().startswith("Student,ID,HW 01 (555)\n")


WORKSHEET = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,Last modified (grade)
Participant 1,Ann Lovelace,ann,Submitted,,"6,00",Yes,-
Participant 2,Bob Builder,=bob,Submitted,,"6,00",Yes,-
"""


def test_moodles_worksheet_comes_back_with_its_grades(graded):
    lines = exported(graded, "moodle", roster=students(graded, WORKSHEET))
    assert ",".join(lines[0]) == (
        "Identifier,Full name,Email address,Grade,Maximum Grade,Grade can be changed,Last modified (grade)"
    )
    assert lines[1] == ["Participant 1", "Ann Lovelace", "ann", "3", "6,00", "Yes", "-"]
    with pytest.raises(CourseError, match="Moodle's maximum grade is 100 and these grades are of 6: .* worth = 100"):
        exported(graded, "moodle", roster=students(graded, WORKSHEET.replace("6,00", "100.00")))


def test_gradescope_gets_a_file_for_each_student(graded):
    tables.override(graded, "ann", "1.2", 1, "A good start.")
    paths = gradebook.export(graded, "gradescope", graded / "scope", "Lesson 01")
    assert sorted(path.parent.name for path in paths) == ["=bob", "ann"]
    found = json.loads((graded / "scope" / "ann" / "results.json").read_text())
    assert [(test["score"], test["max_score"]) for test in found["tests"]] == [(3, 3), (1, 3)]
    assert "A good start." in found["tests"][1]["output"]


def test_a_plain_table_is_grades_csv(graded):
    gradebook.export(graded, "csv", graded / "book.csv", "Lesson 01")
    assert (graded / "book.csv").read_text() == grades(graded)


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("excel", None, "There is no form 'excel': csv, canvas, moodle, gradescope."),
        ("canvas", None, "Canvas knows its students by its own columns: give its export with --roster."),
        ("moodle", "username\nann\n=bob\n", "The roster has none of Moodle's columns"),
        ("canvas", "ID,Student\nann,Ann\n", "The roster has no =bob."),
    ],
)
def test_a_table_that_cannot_be_made_gets_a_sentence(graded, form, text, said):
    known = students(graded, text) if text else None
    with pytest.raises(CourseError, match=said):
        gradebook.export(graded, form, graded / "book.csv", "Lesson 01", roster=known)
    assert not (graded / "book.csv").exists()


def test_the_commands_say_what_they_did(labkit, graded):
    code, out, _ = labkit("override", "ann", "1.2", "2", "--why", "Right idea.", "--out", graded)
    assert (code, out) == (0, "ann, exercise 1.2: 2 of 3 points.\n")
    assert "ann,3,2,5,6" in grades(graded)
    code, out, _ = labkit("export", graded, "--to", "csv", "--file", graded / "book.csv")
    assert (code, out) == (0, f"wrote {graded / 'book.csv'}\n")
    code, out, error = labkit("override", "eve", "1.2", "2", "--why", "x", "--out", graded)
    assert (code, out) == (2, "")
    assert "has no student 'eve'" in error


def test_what_waits_for_a_person_is_empty_and_is_told(labkit, graded):
    rows = [row("ann", "1.1", 3), row("ann", "1.2", 0, "manual"), row("bob", "1.1", 0, "ungraded")]
    tables.write([*rows, row("bob", "1.2", 0, "manual")], "Lesson 01", graded)
    assert grades(graded) == "student,1.1,1.2,points,max_points\nann,3,,3,6\nbob,,,0,6\n"
    known = students(graded, CANVAS.replace("=bob", "bob").replace("17,s17,ann", "ann,s17,x").replace("18,", "bob,"))
    tables.override(graded, "ann", "1.2", 0, "Nothing was written.")
    assert [line[-1] for line in exported(graded, "canvas", roster=known)[2:]] == ["3", ""]
    code, out, _ = labkit("export", graded, "--to", "gradescope", "--file", graded / "scope")
    assert (code, out.splitlines()[-1]) == (
        0,
        "2 exercises of 1 student are still to be graded by hand. Their cells are empty.",
    )
    tests = json.loads((graded / "scope" / "bob" / "results.json").read_text())["tests"]
    assert [test.get("score") for test in tests] == [None, None]
