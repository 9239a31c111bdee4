"""Pages to read: one for each student, and one of the whole class. Self-contained, for a phone as for a desk."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from labkit import build
from labkit.judge import Exercise

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 0 auto; padding: 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 1.5em 0 .3em; }
section { border-left: .4em solid #888; padding: .1em 0 .1em .8em; margin: 1em 0; }
section.ok { border-color: #2a7d46; } section.not { border-color: #b3541e; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3em 0; font-size: .9em; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .2em .6em .2em 0; vertical-align: top; }
small { opacity: .8; }
"""
SAID = {
    "ok": "right",
    "wrong": "not right yet",
    "error": "raised an error",
    "timeout": "took too long",
    "memory": "took too much memory",
    "died": "ended its own process",
    "output-limit": "printed too much",
    "missing": "missing",
    "not-attempted": "not attempted",
    "unreadable": "the notebook cannot be read",
    "ungraded": "not graded: a fault of the grader",
}
"""Each status, as a student reads it."""
_INSIDE = "Some of this was measured in the notebook's own process."


def write(rows: Sequence[Mapping], exercises: Sequence[Exercise], title: str, out: Path) -> None:
    """A page for each student under out/feedback, and out/class.html; rows: as of results.jsonl."""
    folder = out / "feedback"
    students: dict[str, list[Mapping]] = {}
    for row in rows:
        students.setdefault(row["student"], []).append(row)
    for student, mine in students.items():
        build.write(folder / f"{student}.html", student_page(student, mine, exercises, title))
    build.write(out / "class.html", class_page(rows, exercises, title))


def student_page(student: str, rows: Sequence[Mapping], exercises: Sequence[Exercise], title: str) -> str:
    """One student's page: each exercise's points, what is wrong in a case of class, and the first hint."""
    known = {one.number: one for one in exercises}
    points, most = (sum(row[key] for row in rows) for key in ("points", "max_points"))
    parts = [f"<h1>{escape(title)}</h1><p>{escape(student)}: <b>{points} of {most} points</b></p>"]
    parts += [_exercise(row, known[row["exercise"]]) for row in rows]
    return _page(f"{title}: {student}", "".join(parts))


def _exercise(row: Mapping, exercise: Exercise) -> str:
    """One exercise as a section."""
    status = row["status"]
    head = f"Exercise {exercise.number} · {exercise.name} · {row['points']} of {row['max_points']} points"
    hint = exercise.hints[0] if exercise.hints and status in ("wrong", "error") else ""
    hint = f"<details><summary>A hint</summary>{escape(hint)}</details>" if hint else ""
    why = f"<p><small>{escape('Points set by hand: ' + row['why'])}</small></p>" if row.get("why") else ""
    inside = f"<small>{_INSIDE}</small>" if row.get("inside") else ""
    said = escape(f"{SAID[status]}\n{row['message']}" if status != "ok" else row["message"])
    kind = "ok" if status == "ok" else "not"
    return f'<section class="{kind}"><h2>{escape(head)}</h2><pre>{said}</pre>{why}{hint}{inside}</section>'


def class_page(rows: Sequence[Mapping], exercises: Sequence[Exercise], title: str) -> str:
    """The class: of each exercise how many were right, what else happened, and the commonest messages."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for one in exercises:
        mine = [row for row in rows if row["exercise"] == one.number]
        statuses = Counter(row["status"] for row in mine)
        right = f"{statuses['ok']} of {len(mine)} right"
        others = ", ".join(f"{n} {SAID[status]}" for status, n in sorted(statuses.items()) if status != "ok")
        messages = Counter(_kind(row["message"]) for row in mine if row["status"] in ("wrong", "error"))
        lines = "".join(f"<tr><td>{n}</td><td>{escape(said)}</td></tr>" for said, n in _commonest(messages))
        table = f"<table><tr><th>times</th><th>what was said</th></tr>{lines}</table>" if lines else ""
        parts.append(f"<h2>{escape(f'{one.number} · {one.name}')}</h2><p>{escape(right)}; {escape(others)}</p>{table}")
    return _page(title, "".join(parts))


def _kind(message: str) -> str:
    """What wrong answers of a kind have in common: the headline without the case's number, and the likely cause."""
    lines = message.splitlines() or [""]
    likely = next((line.partition(" ")[2].strip() for line in lines if line.startswith("likely")), "")
    return f"{lines[0].partition(' (case')[0]}. {likely}".strip()


def _commonest(messages: Counter) -> list[tuple[str, int]]:
    """The five commonest, of equals the first by its text, so that the page is the same each time."""
    return sorted(messages.items(), key=lambda pair: (-pair[1], pair[0]))[:5]


def _page(title: str, body: str) -> str:
    """A whole page that fetches nothing."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    return (
        f"<!doctype html><html lang=en><head>{head}{policy}<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )
