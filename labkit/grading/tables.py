"""What a graded class leaves behind: results, grades, pages, and points that an instructor has set by hand.

results.jsonl holds verdicts and nothing else; overrides.json holds what was set by hand, and why; policy.json what is
taken off for lateness and how points weigh. Grades and pages are made of all three, so a regrade changes the first and
leaves the others.
"""

import csv
import difflib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from labkit import build, checks
from labkit.course import CourseError
from labkit.grading import feedback, lateness
from labkit.grading.lateness import Total
from labkit.grading.roster import Roster, identity

NAMES = "names.json"


def write(rows: Sequence[dict], title: str, out: Path) -> None:
    """Write the verdicts, and what is made of them."""
    build.write(out / "results.jsonl", "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    refresh(title, out)


def refresh(title: str, out: Path) -> None:
    """Make grades.csv and the pages anew, of the verdicts and of what was set by hand."""
    rows = adjusted(out)
    build.write(out / "grades.csv", as_csv(rows, lateness.load(out) is not None))
    feedback.write(rows, checks.exercises(), title, out)


def results(out: Path) -> list[dict]:
    """The verdicts of a graded class. CourseError: there are none."""
    path = out / "results.jsonl"
    if not path.is_file():
        raise CourseError(f"{out} holds no results.jsonl: it is what labkit grade writes.")
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also end a line within what is quoted
    return [json.loads(line) for line in lines if line]


def adjusted(out: Path) -> list[dict]:
    """The verdicts with points as set by hand, where they were; such a row has the reason under `why`.

    Each has under `total` the student's Total and under `name` what a roster calls the student, the same for all of a
    student's rows, and its own `weight` in that total.
    """
    by_hand = {(one["student"], one["exercise"]): one for one in overrides(out)}
    rows = results(out)
    for row in rows:
        if one := by_hand.get((row["student"], row["exercise"])):
            row |= {"points": one["points"], "why": one["why"]}
    policy = lateness.load(out)
    weights, found = policy.weights if policy else {}, lateness.totals(rows, policy)
    names = _names(out)
    return [
        row
        | {"total": found[row["student"]], "weight": weights.get(row["exercise"], 1)}
        | {"name": names.get(identity(row["student"]), "")}
        for row in rows
    ]


def keep_names(known: Roster, out: Path) -> None:
    """Write down what a roster calls its students, for the pages; ids stay what everything goes by."""
    names = {identity(student.id): student.name for student in known.students if student.name}
    build.write(out / NAMES, json.dumps(names, indent=1, ensure_ascii=False) + "\n")


def _names(out: Path) -> dict[str, str]:
    """The names that were written down, by identity; none where nobody did."""
    path = out / NAMES
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def overrides(out: Path) -> list[dict]:
    """What was set by hand: student, exercise, points, why, when; of one exercise the latest."""
    path = out / "overrides.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def override(out: Path, student: str, exercise: str, points: float, why: str) -> dict:
    """Set the points of one exercise of one student by hand; returns the row as it stands then.

    Ids may differ from those of the results in case and spaces, where only one can be meant.
    CourseError: no such student or exercise, points that it cannot have, or no reason.
    """
    rows = {(row["student"], row["exercise"]): row for row in results(out)}
    student = _meant(student, {name for name, _ in rows}, out, "student")
    exercise = _meant(exercise, {number for name, number in rows if name == student}, out, "exercise")
    row = rows[student, exercise]
    if not 0 <= points <= row["max_points"]:
        raise CourseError(f"Exercise {exercise} has 0 to {row['max_points']} points, not {points:g}.")
    if not why.strip():
        raise CourseError("Points set by hand need a reason: --why TEXT.")
    points = int(points) if points == int(points) else points
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    one = {"student": student, "exercise": exercise, "points": points, "why": why.strip(), "when": when}
    others = [each for each in overrides(out) if (each["student"], each["exercise"]) != (student, exercise)]
    build.write(out / "overrides.json", json.dumps([*others, one], indent=1, ensure_ascii=False) + "\n")
    return row | {"points": points, "why": one["why"]}


def _meant(given: str, known: Collection[str], out: Path, what: str) -> str:
    """Which of the known ids is meant: the same to the letter, else the only one that is the same but for case, spaces.

    CourseError: there is none, or it could be more than one.
    """
    same = [given] if given in known else sorted(one for one in known if identity(one) == identity(given))
    if len(same) == 1:
        return same[0]
    if same:
        raise CourseError(f"The {what} {given!r} may be {' or '.join(same)}: write it to the letter.")
    alike = difflib.get_close_matches(identity(given), {identity(one) for one in known}, 3, 0.5)
    near = ", ".join(sorted(one for one in known if identity(one) in alike))
    raise CourseError(f"{out} has no {what} {given!r}{f'; the nearest: {near}' * bool(near)}.")


def totals(rows: Sequence[dict]) -> dict[str, Total]:
    """Each student's total, in the order of their names; rows: as `adjusted` gives them."""
    return dict(sorted((row["student"], row["total"]) for row in {row["student"]: row for row in rows}.values()))


def as_csv(rows: Sequence[dict], policy: bool) -> str:
    """grades.csv: a line a student, a column an exercise, in the lesson's order, then points, and most that there are.

    policy: what a policy takes off and makes of the points has columns too, beside them; lateness in hours, `?` where
    it is not known. What waits for a person is empty, and so is the grade then; the points are those so far.
    """
    numbers = list(dict.fromkeys(row["exercise"] for row in rows))
    advisory = {row["exercise"] for row in rows if row.get("advisory")}
    heads = [f"{number} (advisory)" if number in advisory else number for number in numbers]
    points = {(row["student"], row["exercise"]): "" if waits(row) else row["points"] for row in rows}
    open_ = {row["student"] for row in rows if waits(row)}
    more = ["late_hours", "deduction", "grade", "max_grade"] if policy else []
    lines = [["student", *heads, "points", "max_points", *more]]
    for student, total in totals(rows).items():
        hours = "?" if total.late_s is None else lateness.number(total.late_s / 3600)
        grade = "" if student in open_ else total.grade
        more = [hours, total.deduction, grade, total.max_grade] if policy else []
        mine = [points[student, number] for number in numbers]
        lines.append([harmless(student), *mine, total.points, total.max_points, *more])
    return lined(lines)


def waits(row: Mapping) -> bool:
    """Whether a row of `adjusted` has no points yet: a person is to grade it, or the grader failed."""
    return row["status"] in ("manual", "ungraded") and not row.get("why")


def still_open(rows: Sequence[Mapping]) -> str:
    """How many exercises have no points yet, as a sentence; empty where there is none."""
    found = [row["student"] for row in rows if waits(row)]
    exercises = f"{len(found)} exercise{'s' * (len(found) != 1)}"
    students = f"{len(set(found))} student{'s' * (len(set(found)) != 1)}"
    are = "is" if len(found) == 1 else "are"
    return f"{exercises} of {students} {are} still to be graded by hand." if found else ""


def lined(lines: Sequence[Sequence]) -> str:
    """Rows as CSV."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(lines)
    return made.getvalue()


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
