"""A page for each student to read: what is right, and of what is not what it was asked, gave, printed and raised."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit import build
from labkit.exercise import Exercise
from labkit.grading import classroom, review
from labkit.grading.lateness import Total, number
from labkit.grading.page import SAID, kind, split, table, text, whole

_INSIDE = "How it works was measured while it ran, beside your own code."
_ADVISORY = "The tests ran beside the notebook's own code: the points are advisory."
_RULE = "An exercise has all its points or none. A case that is shown is one that check shows in the notebook as well."
_COMMAND = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # of a terminal: colours and the like


def write(rows: Sequence[Mapping], exercises: Sequence[Exercise], title: str, out: Path) -> None:
    """A page for each student under out/feedback, and out/class.html; rows: as of results.jsonl."""
    folder = out / "feedback"
    students: dict[str, list[Mapping]] = {}
    for row in rows:
        students.setdefault(row["student"], []).append(row)
    for stale in set(folder.glob("*.html")) - {folder / f"{student}.html" for student in students}:
        stale.unlink()  # of somebody who was graded here before
    noted = review.notes(out)
    for student, mine in students.items():
        page = student_page(student, mine, exercises, title, noted.get(student, ()))
        build.write(folder / f"{student}.html", page)
    build.write(out / "class.html", classroom.page(rows, exercises, title, review.points(rows, noted)))


def student_page(
    student: str, rows: Sequence[Mapping], exercises: Sequence[Exercise], title: str, noted: Sequence[str] = ()
) -> str:
    """One student's page: each exercise's points, what is wrong in a case of class, and the first hint.

    noted: what was odd about the notebook, such as which of two was graded.
    """
    known = {one.number: one for one in exercises}
    called = " · ".join(filter(None, (student, rows[0].get("name"))))
    parts = [f"<h1>{text(title)}</h1><p>{text(called)}: {_sum(rows)}"]
    parts += [f"<p>{text(said)}</p>" for said in noted]
    parts += [_exercise(row, known.get(row["exercise"])) for row in rows]
    parts += [] if any(row.get("advisory") for row in rows) else [f"<p><small>{_RULE}</small></p>"]
    return whole(f"{title}: {student}", "".join(parts))


def _sum(rows: Sequence[Mapping]) -> str:
    """The rest of a paragraph, and more: points, what lateness takes off them, the grade where it is another number."""
    right = f"{sum(row['status'] == 'ok' for row in rows)} of {len(rows)} exercises right"
    if not (total := rows[0].get("total")):
        points, most = (sum(row[key] for row in rows) for key in ("points", "max_points"))
        return f"<b>{_of(points, most)} points</b>, {right}</p>"
    said = f"<b>{_of(total.points, total.max_points)} points</b>, {right}"
    off = f" ({total.deduction:g} points)" if total.deduction else ""
    said += f'</p><p class="late">{text(total.late)}{off}' if total.late else ""
    same = (total.grade, total.max_grade) == (total.points, total.max_points)
    said += "" if same else f"</p><p>Grade: <b>{_of(total.grade, total.max_grade)}</b>"
    return f"{said}</p>{_reckoned(rows, total)}"


def _reckoned(rows: Sequence[Mapping], total: Total) -> str:
    """How the grade came about, line by line; nothing where it is the sum of the exercises' points."""
    weighted = [(row.get("weight", 1), row["points"], row["max_points"]) for row in rows]
    same = (total.grade, total.max_grade) == (total.points, total.max_points)
    if same and all(weight == 1 for weight, _, _ in weighted):
        return ""
    lines = [
        [text(row["exercise"]), _of(points, most), f"{weight:g}", _of(number(weight * points), number(weight * most))]
        for row, (weight, points, most) in zip(rows, weighted, strict=True)
    ]
    lines.append(["together", "", "", _of(total.points, total.max_points)])
    if total.deduction:
        left = number(total.points - total.deduction)
        lines.append(["taken off for lateness", "", "", f"{total.deduction:g}"])
        lines.append(["what is left", "", "", _of(left, total.max_points)])
    if total.max_grade != total.max_points:
        scale = f"{total.max_grade:g} / {total.max_points:g}"
        lines.append([f"the lesson is worth {total.max_grade:g}", "", scale, _of(total.grade, total.max_grade)])
    return table(["", "points", "times", "counts"], lines)


def _of(points: float, most: float) -> str:
    """Points of the most that there are."""
    return f"{points:g} of {most:g}"


def _exercise(row: Mapping, exercise: Exercise | None) -> str:
    """One exercise as a section; None for one that is not of the course."""
    points = f"{_of(row['points'], row['max_points'])} point{'s' * (row['max_points'] != 1)}"
    said = "points set by hand" if row.get("why") else SAID[row["status"]]
    parts = [f"<h2>{text(f'{exercise.number} · {exercise.name}' if exercise else row['exercise'])}</h2>"]
    parts += [f'<p class="said">{text(said)} · {points}</p>', _message(row["message"], exercise)]
    parts += [f"<p>In your cell:</p><pre>{text(row['code'])}</pre>"] if row.get("code") else []
    if row.get("why"):
        parts.insert(2, f"<p>{text(row['why'])}</p>")
    if exercise and exercise.hints and row["status"] == "wrong":
        parts.append(f"<details><summary>A hint for this exercise</summary><p>{text(exercise.hints[0])}</p></details>")
    if printed := _plain(row.get("printed", "")):
        told = "What your code printed, in the cases of class"
        parts.append(f"<details><summary>{told}</summary><pre>{text(printed)}</pre></details>")
    parts += [f"<small>{_ADVISORY if row.get('advisory') else _INSIDE}</small>"] if row.get("inside") else []
    return f'<section class="{kind(row["status"])}">{"".join(parts)}</section>'


def _message(message: str, exercise: Exercise | None) -> str:
    """A verdict's message: its headline, and below it each line with its label.

    What an exercise says of every wrong result is a hint there, and no likely cause of this one.
    """
    headline, lines = split(message)
    general = getattr(exercise and exercise.compare, "why", "")
    named = [("hint" if (label, said) == ("likely", general) else label, said) for label, said in lines]
    listed = "".join(f"<dt>{text(label)}</dt><dd>{text(said)}</dd>" for label, said in named)
    return f"<p>{text(headline)}</p>{f'<dl>{listed}</dl>' if listed else ''}"


def _plain(printed: str) -> str:
    """What a terminal would show of it in the end: without colours, of a line that was written over the last state."""
    lines = _COMMAND.sub("", printed).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")
