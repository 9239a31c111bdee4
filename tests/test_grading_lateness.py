"""Late deductions: reckoned once, shown apart, kept through a regrade and points set by hand."""

import csv
import io
import json
import zipfile
from datetime import datetime, timedelta, timezone

import pytest

from labkit import course
from labkit.grading import gradebook, lateness, release, roster, tables
from labkit.grading.handins import Handin
from labkit.grading.policy import Leave, Terms

DUE = datetime(2027, 3, 1, 23, 59, tzinfo=timezone.utc)
TERMS = Terms(due=DUE, grace_minutes=15, percent_per_day=10, most_percent=50)


def after(**late):
    return Handin(at=DUE + timedelta(**late))


def late(handin, terms=TERMS, **leave):
    found = lateness.applied(
        Terms(**vars(terms) | {"students": {"ann": Leave(**leave)} if leave else {}}), {"ann": handin}
    )
    return found.late.get("ann")


@pytest.mark.parametrize(
    ("handin", "percent", "said"),
    [
        (after(minutes=10), 0, "Handed in 10 min late: within the grace of 15 min."),
        (after(minutes=15), 0, "Handed in 15 min late: within the grace of 15 min."),
        (after(minutes=16), 10, "Handed in 16 min late: 10 % of what was reached is taken off."),
        (after(days=1, hours=2), 20, "Handed in 1 day 2 h late: 20 % of what was reached is taken off."),
        (after(days=30), 50, "Handed in 30 days late: 50 % of what was reached is taken off."),
        (after(seconds=5), 0, "Handed in 5 s late: within the grace of 15 min."),
        (Handin(late=True), 0, "Handed in late, by how much is not known: nothing is taken off."),
    ],
)
def test_what_is_taken_off_and_what_is_said(handin, percent, said):
    found = late(handin)
    assert (found.percent, found.said) == (percent, said)


@pytest.mark.parametrize("handin", [after(seconds=0), after(days=-3), Handin(), Handin(late_s=0)])
def test_nothing_is_said_of_work_in_time_or_of_which_no_time_is_known(handin):
    assert late(handin) is None


def test_a_platform_is_believed_only_where_no_due_time_of_ours_says_more():
    platform = Handin(late=True, late_s=90_000)
    assert late(platform, Terms(percent_per_day=10)).percent == 20
    assert late(platform).percent == 20  # no time of hand-in is known
    assert late(Handin(late=True, late_s=90_000, at=DUE - timedelta(days=1))) is None
    assert late(platform, due=DUE + timedelta(days=9)).late_s is None  # it knows nothing of this


def test_students_have_terms_of_their_own():
    assert late(after(days=2), due=DUE + timedelta(days=2)) is None
    assert late(after(minutes=50), grace_minutes=60).percent == 0
    assert late(after(minutes=10), grace_minutes=0).percent == 10
    assert late(after(days=2), excused=True).said == "Handed in 2 days late: excused."
    assert late(Handin(late=True), handed_in=DUE + timedelta(hours=25)).percent == 20
    assert late(Handin(late=True), handed_in=DUE) is None


# ---- points ---------------------------------------------------------------------------------------------------------


def row(student, exercise, points):
    both = {"student": student, "exercise": exercise, "status": "ok", "points": points}
    return both | {"max_points": 3, "seconds": 0.1, "message": "all right", "inside": False}


ROWS = [row(who, number, points) for who in ("Ann", "bob") for number, points in (("1.1", 3), ("1.2", 1))]


def total(terms, **handins):
    return lateness.totals(ROWS, lateness.applied(terms, handins))["Ann"]


def test_percent_of_what_was_reached_or_of_what_can_be_had():
    reached = total(TERMS, ann=after(hours=1))
    assert (reached.points, reached.deduction, reached.grade, reached.max_grade) == (4, 0.4, 3.6, 6)
    possible = total(Terms(**vars(TERMS) | {"of": "possible", "percent_per_day": 25}), ann=after(hours=30))
    assert (possible.deduction, possible.grade) == (3, 1)
    nothing_below_zero = total(Terms(due=DUE, percent_per_day=80, of="possible"), ann=after(hours=30))
    assert (nothing_below_zero.deduction, nothing_below_zero.grade) == (4, 0)


def test_weights_and_what_a_lesson_is_worth():
    found = total(Terms(weights={"1.2": 2}, worth=10))
    assert (found.points, found.max_points, found.grade, found.max_grade) == (5, 9, 5.56, 10)
    left_out = total(Terms(weights={"1.2": 0}))
    assert (left_out.points, left_out.max_points) == (3, 3)
    assert total(Terms(weights={"1.1": 0, "1.2": 0}, worth=10)).grade == 0


def test_without_a_policy_points_are_the_grade():
    found = lateness.totals(ROWS, None)
    assert list(found) == ["Ann", "bob"]
    assert (found["Ann"].points, found["Ann"].grade, found["Ann"].max_grade, found["Ann"].late) == (4, 4, 6, "")


# ---- what is written ------------------------------------------------------------------------------------------------


@pytest.fixture
def graded(tmp_path):
    """A graded class of two, one of whom was an hour late."""
    made = lateness.applied(TERMS, {"ann": after(hours=1), "bob": after(days=-1)})
    (tmp_path / lateness.FILE).write_text(lateness.keep(made))
    tables.write(ROWS, "Lesson 01", tmp_path)
    return tmp_path


def lines(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_deduction_stands_beside_the_points_and_is_taken_once(graded):
    for _ in range(3):
        ann, bob = lines((graded / "grades.csv").read_text())
        assert (ann["1.1"], ann["1.2"], ann["points"], ann["max_points"]) == ("3", "1", "4", "6")
        assert (ann["late_hours"], ann["deduction"], ann["grade"], ann["max_grade"]) == ("1", "0.4", "3.6", "6")
        assert (bob["late_hours"], bob["deduction"], bob["grade"]) == ("0", "0", "4")
        tables.refresh("Lesson 01", graded)
        tables.write(tables.results(graded), "Lesson 01", graded)  # as a regrade does
    assert all("total" not in one for one in tables.results(graded))


def test_weights_reach_the_pages_and_what_lateness_takes_off_is_reckoned_there(graded):
    made = lateness.applied(Terms(**vars(TERMS) | {"weights": {"1.2": 2}}), {"ann": after(hours=1)})
    (graded / lateness.FILE).write_text(lateness.keep(made))
    tables.refresh("Lesson 01", graded)
    html = (graded / "feedback" / "Ann.html").read_text()
    assert "<td>1.2</td><td>1 of 3</td><td>2</td><td>2 of 6</td>" in html
    assert "<td>what is left</td><td></td><td></td><td>4.5 of 9</td>" in html
    assert "1.2 counts 2 times." in (graded / "class.html").read_text()


def test_points_set_by_hand_are_points_and_the_deduction_is_of_them(graded):
    tables.override(graded, "Ann", "1.2", 3, "Right after all.")
    tables.refresh("Lesson 01", graded)
    ann, _ = lines((graded / "grades.csv").read_text())
    assert (ann["points"], ann["deduction"], ann["grade"]) == ("6", "0.6", "5.4")


def test_a_lateness_that_is_not_known_is_a_question_mark(graded):
    made = lateness.applied(TERMS, {"ann": Handin(late=True)})
    (graded / lateness.FILE).write_text(lateness.keep(made))
    tables.refresh("Lesson 01", graded)
    ann, _ = lines((graded / "grades.csv").read_text())
    assert (ann["late_hours"], ann["grade"]) == ("?", "4")


def test_grade_books_get_the_grade(graded):
    (graded / "roster.csv").write_text("Student,ID\nLovelace,Ann\nBuilder,bob\n")
    known = roster.load(graded / "roster.csv")
    [path] = gradebook.export(graded, "canvas", graded / "book.csv", "Lesson 01", known)
    assert path.read_text().splitlines()[1:] == ["    Points Possible,,6", "Lovelace,Ann,3.6", "Builder,bob,4"]
    gradebook.export(graded, "gradescope", graded / "scope", "Lesson 01")
    told = json.loads((graded / "scope" / "Ann" / "results.json").read_text())
    assert told["score"] == 3.6
    assert told["output"] == "Handed in 1 h late: 10 % of what was reached is taken off."
    assert [test["score"] for test in told["tests"]] == [3, 1]
    [path] = gradebook.export(graded, "csv", graded / "book.csv", "Lesson 01")
    assert path.read_text() == (graded / "grades.csv").read_text()


def test_whoever_graded_is_told_what_to_look_at(tmp_path):
    made = lateness.applied(
        Terms(due=DUE, percent_per_day=10, students={"eve": Leave(excused=True)}),
        {"ann": after(hours=1), "bob": Handin(late=True), "gone": after(hours=1)},
    )
    assert lateness.summary(tmp_path, ["Ann"]) == []
    (tmp_path / lateness.FILE).write_text(lateness.keep(made))
    assert lateness.summary(tmp_path, ["Ann", "bob"]) == [
        "1 late with a deduction, 1 late without: policy.json says why of each.",
        "Late by how much is not known, so nothing was taken off: bob.",
        "Give handed_in for them in the policy, under the lesson's students.",
        "The policy names students who are not there: eve.",
    ]
    (tmp_path / lateness.FILE).write_text(lateness.keep(lateness.applied(TERMS, {})))
    assert "No time of any hand-in is known" in lateness.summary(tmp_path, ["Ann"])[1]


@pytest.mark.slow
def test_from_gradescopes_zip_and_a_toml_to_a_deduction_that_stays(labkit, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "key_path", lambda: tmp_path / "config" / "release.key")
    lesson = course.find("01")
    table = "submission_7:\n  :submitters:\n  - :name: Ann\n    :sid: ann\n  :created_at: 2027-03-03 00:10:00.5 Z\n"
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.write(lesson.student, "export/submission_7/01.ipynb")
        archive.writestr("export/submission_metadata.yml", table)
    (tmp_path / "class.csv").write_text("SID,Name\nann,Ann\nbob,Bob Builder\n")
    labkit("collect", tmp_path / "export.zip", "--out", tmp_path / "in", "--roster", tmp_path / "class.csv")
    (tmp_path / "course.toml").write_text("[lessons.01]\ndue = 2027-03-01T23:59:00Z\npercent_per_dya = 25\n")
    grade = ("grade", tmp_path / "in", "--lesson", "01", "--out", tmp_path / "out", "--trusted")
    code, _, error = labkit(*grade, "--roster", tmp_path / "class.csv")
    assert (code, (tmp_path / "out").exists()) == (2, False)
    assert "course.toml, line 3: 'percent_per_dya' is not known here; did you mean percent_per_day?" in error
    (tmp_path / "course.toml").write_text("[lessons.01]\ndue = 2027-03-01T23:59:00Z\npercent_per_day = 25\n")
    code, said, _ = labkit(*grade, "--roster", tmp_path / "class.csv")
    assert code == 0
    assert "1 late with a deduction, 0 late without: policy.json says why of each." in said
    assert "<p>bob · Bob Builder: <b>" in (tmp_path / "out" / "feedback" / "bob.html").read_text()
    labkit("override", "ann", "1.1", "2", "--why", "Said in person.", "--out", tmp_path / "out")
    labkit(*grade)  # without the policy: it is kept with the grades
    ann = lines((tmp_path / "out" / "grades.csv").read_text())[0]
    assert (ann["points"], ann["late_hours"], ann["deduction"], ann["grade"]) == ("2", "24.18", "1", "1")
    page = (tmp_path / "out" / "feedback" / "ann.html").read_text()
    assert "Handed in 1 day 11 min late: 50 % of what was reached is taken off." in page
