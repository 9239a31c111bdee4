"""Grades in the form that a grade book takes: Canvas and Moodle a table, Gradescope a file for each student."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from labkit import build
from labkit.course import CourseError
from labkit.grading import lateness, tables
from labkit.grading.lateness import Total
from labkit.grading.roster import Roster, identity

FORMS = ("csv", "canvas", "moodle", "gradescope")
_CANVAS = {"student": "Student", "id": "ID", "sis user id": "SIS User ID", "sis login id": "SIS Login ID"}
_CANVAS |= {"section": "Section"}
_MOODLE = {"identifier": "Identifier", "full name": "Full name", "id number": "ID number"}
_MOODLE |= {"email address": "Email address"}
_BESIDE = {"maximum grade": "Maximum Grade", "grade can be changed": "Grade can be changed"}
_BESIDE |= {"last modified (grade)": "Last modified (grade)"}  # what Moodle's worksheet has right of its Grade


def export(out: Path, form: str, to: Path, title: str, roster: Roster | None = None, column: str = "") -> list[Path]:
    """Write the grades of a graded class for a grade book; returns what was written.

    A grade is what is left of the points after a late deduction, of as much as the lesson is worth.
    csv: to a file, as grades.csv. canvas, moodle: to a file, with the columns of the roster that the grade book itself
    exported and one of grades; CourseError without that roster, or where it has none of those columns. gradescope: to a
    folder, a results.json for each student, as an autograder leaves it.
    column: of Canvas's table, the assignment that gets the grades; without it, it makes a new one of the title.
    Moodle's own worksheet comes back with its Grade filled in.
    """
    if form not in FORMS:
        raise CourseError(f"There is no form {form!r}: {', '.join(FORMS)}.")
    if column and form != "canvas":
        raise CourseError("--column is a column of Canvas's: leave it out.")
    rows = tables.adjusted(out)
    if is_ours(to, out):
        raise CourseError(f"{to} is where labkit grade keeps what it found: give --file another name.")
    if form == "gradescope":
        return [_gradescope(student, total, rows, to) for student, total in tables.totals(rows).items()]
    policy = lateness.load(out) is not None
    text = tables.as_csv(rows, policy) if form == "csv" else _table(rows, form, title, roster, column)
    build.write(to, text)
    return [to]


def is_ours(to: Path, out: Path) -> bool:
    """Whether a path is that of a graded class, or of what labkit has written there."""
    path, home = to.resolve(), out.resolve()
    ours = {"results.jsonl", "overrides.json", "grades.csv", "class.html", "feedback", "run.json", "kept", ".lock"}
    ours |= {lateness.FILE, tables.NAMES, "notes.json", "similar.html"}
    same = [path, *path.parents]
    return path == home or any(each.parent == home and each.name.casefold() in ours for each in same)


def _table(rows: Sequence[dict], form: str, title: str, roster: Roster | None, column: str) -> str:
    """Canvas's or Moodle's table: who is who as they wrote it, and a column of grades."""
    known = _CANVAS if form == "canvas" else _MOODLE
    if roster is None:
        raise CourseError(f"{form.capitalize()} knows its students by its own columns: give its export with --roster.")
    columns = [name for name in known if any(name in student.row for student in roster.students)]
    if not columns:
        raise CourseError(f"The roster has none of {form.capitalize()}'s columns: {', '.join(known.values())}.")
    totals = {identity(student): total for student, total in tables.totals(rows).items()}
    graded = {identity(row["student"]): row["student"] for row in rows}
    if twice := sorted({row["student"] for row in rows} - set(graded.values())):
        alike = graded[identity(twice[0])]
        raise CourseError(f"{twice[0]} and {alike} are one id to a grade book, and two folders were graded.")
    open_ = {identity(row["student"]) for row in rows if tables.waits(row)}
    most = next(iter(totals.values())).max_grade if totals else 0
    title, beside = (_assignment(column, roster) or title, []) if form == "canvas" else _worksheet(title, roster, most)
    lines = [[*(known[name] for name in columns), title, *(_BESIDE[name] for name in beside)]]
    if form == "canvas":  # its row of maxima
        lines.append(["    Points Possible", *[""] * (len(columns) - 1), most])
    for student in roster.students:
        if total := totals.get(identity(student.id)):
            who = [student.row.get(name, "") for name in columns]  # to the letter: by these it finds its students
            grade = "" if identity(student.id) in open_ else total.grade
            lines.append([*who, grade, *(student.row.get(name, "") for name in beside)])
    if missing := sorted(graded[who] for who in totals.keys() - {identity(one.id) for one in roster.students}):
        raise CourseError(f"The roster has no {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}.")
    return tables.lined(lines)


def _assignment(column: str, roster: Roster) -> str:
    """A column that Canvas's table has. CourseError: it has others."""
    headings = roster.students[0].row
    if column and identity(column) not in headings:
        there = ", ".join(name for name in headings if re.search(r"\(\d+\)$", name)) or "no assignment"
        raise CourseError(f"The roster has no column {column!r}: it has {there}.")
    return column


def _worksheet(title: str, roster: Roster, most: float) -> tuple[str, list[str]]:
    """The heading of grades in Moodle's table, and what of its worksheet stands beside them.

    CourseError: its maximum is another, so that a grade would mean another.
    """
    headings = roster.students[0].row
    if not {"identifier", "grade"} <= headings.keys():
        return title, []
    told = {student.row.get("maximum grade", "").replace(",", ".") for student in roster.students}
    for number in sorted(float(text) for text in told if re.fullmatch(r"\d+(\.\d+)?", text)):
        if number != most:
            way = f"say worth = {number:g} in the policy and grade again, or change it in Moodle"
            raise CourseError(f"Moodle's maximum grade is {number:g} and these grades are of {most:g}: {way}.")
    return "Grade", [name for name in _BESIDE if name in headings]


def _gradescope(student: str, total: Total, rows: Sequence[dict], to: Path) -> Path:
    """One student's results.json: a test for each exercise, and the grade that is made of them."""
    tests = [
        {
            "number": row["exercise"],
            "name": f"Exercise {row['exercise']}",
            **({} if tables.waits(row) else {"score": row["points"]}),
            "max_score": row["max_points"],
            "output": "\n".join(filter(None, [row["message"], row.get("why", "")])),
        }
        for row in rows
        if row["student"] == student
    ]
    path = to / student / "results.json"
    told = {"score": total.grade, "output": total.late, "tests": tests}
    build.write(path, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return path
