"""The page of a class, for whoever teaches it: what to look at, which exercise failed how often, and in which way."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from urllib.parse import quote

from labkit.exercise import Exercise
from labkit.grading.page import SAID, UNTRIED, kind, split, table, text, whole
from labkit.grading.review import KINDS, Point

_LOOKS = ("ok", "not", "other")
_MOST_KINDS, _MOST_POINTS, _LONGEST = 5, 20, 300


def page(rows: Sequence[Mapping], exercises: Sequence[Exercise], title: str, found: Sequence[Point]) -> str:
    """The page as HTML; rows: as of results.jsonl; found: what is to be looked at."""
    students: dict[str, list[Mapping]] = {}
    for row in rows:
        students.setdefault(row["student"], []).append(row)
    totals = [_total(mine) for mine in students.values()] or [(0, 0)]
    points = [points for points, _ in totals]
    head = f"{len(students)} students; median {median(points):g}, highest {max(points):g} of {totals[0][1]:g} points."
    parts = [f"<h1>{text(title)}</h1><p>{head}</p>{_weighed(rows)}", _to_look_at(found, students)]
    names = {one.number: f"{one.number} · {one.name}" for one in exercises}
    for number in dict.fromkeys(row["exercise"] for row in rows):
        parts.append(_exercise(names.get(number, number), [row for row in rows if row["exercise"] == number]))
    parts.append(_students(students))
    return whole(title, "".join(parts))


def _total(rows: Sequence[Mapping]) -> tuple[float, float]:
    """A student's points and the most that there are, weighted where a policy gives weights."""
    if total := rows[0].get("total"):
        return total.points, total.max_points
    return sum(row["points"] for row in rows), sum(row["max_points"] for row in rows)


def _weighed(rows: Sequence[Mapping]) -> str:
    """How points weigh and what a grade is of them; nothing where neither is out of the ordinary."""
    weights = {row["exercise"]: row.get("weight", 1) for row in rows}
    said = [f"{text(name)} counts {weight:g} times." for name, weight in weights.items() if weight != 1]
    total = rows[0].get("total") if rows else None
    if total and total.max_grade != total.max_points:
        share = f"{total.max_grade:g} / {total.max_points:g} of what lateness leaves of the points"
        said.append(f"The lesson is worth {total.max_grade:g}: a grade is {share}.")
    return f"<p>{' '.join([*said, 'Each page of a student reckons it line by line.'])}</p>" if said else ""


def _to_look_at(found: Sequence[Point], students: Mapping[str, Sequence[Mapping]]) -> str:
    """What needs a person's eye, by kind; nothing where there is nothing."""
    parts = []
    for name, meaning in KINDS.items():
        mine = [one for one in found if one.kind == name]
        links = [_link(one.student, students.get(one.student, ())) for one in mine]
        lines = [[link, text(one.exercise), text(_cut(one.said))] for link, one in zip(links, mine, strict=True)]
        shown = table(["student", "exercise", "what"], lines)
        about = text(f"{len(mine)} {name}: {meaning}")
        opened = " open" if len(mine) <= _MOST_POINTS else ""
        parts += [f"<details{opened}><summary>{about}</summary>{shown}</details>"] if mine else []
    return f'<section class="not"><h2>For you to look at</h2>{"".join(parts)}</section>' if parts else ""


def _exercise(name: str, rows: Sequence[Mapping]) -> str:
    """One exercise: how many were right, what else happened, how long it took, and the commonest wrong answers."""
    statuses = Counter(row["status"] for row in rows)
    others = ", ".join(f"{n} {SAID[status]}" for status, n in sorted(statuses.items()) if status != "ok")
    said = f"{statuses['ok']} of {len(rows)} right{f'; {others}' if others else ''}"
    ran_s = [row["seconds"] for row in rows if row["status"] not in UNTRIED]
    took = f'<p class="soft">Median {median(ran_s):.2g} s, longest {max(ran_s):.2g} s.</p>' if ran_s else ""
    head = f"<h2>{text(name)}</h2><p>{text(said)}</p>"
    return f"<section>{head}{_bar(statuses)}{took}{_commonest(rows)}</section>"


def _bar(statuses: Counter) -> str:
    """A bar of which a part is right, a part not, and a part was not tried; the text beside it says the same."""
    parts = Counter()
    for status, n in statuses.items():
        parts[kind(status)] += n
    return f'<div class="bar">{"".join(f"<i class={name} style=flex:{parts[name]}></i>" for name in _LOOKS)}</div>'


def _commonest(rows: Sequence[Mapping]) -> str:
    """A table of the commonest ways to be wrong, each with the output that was commonest among them."""
    ways: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] not in ("ok", *UNTRIED):
            ways.setdefault(_way(row["message"]), []).append(row["message"])
    order = sorted(ways.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_MOST_KINDS]
    lines = [[str(len(messages)), text(_cut(way)), _example(messages)] for way, messages in order]
    return table(["times", "what was said", "most often"], lines)


def _way(message: str) -> str:
    """What wrong answers of a kind have in common: the headline without the case's number, and why."""
    headline, lines = split(message)
    known = dict(lines)
    why = next((known[label] for label in ("likely", "timed", "error") if label in known), "")
    return f"{headline.partition(' (case')[0].rstrip('.')}. {why}".strip()


def _example(messages: Sequence[str]) -> str:
    """Call, output and error of the commonest of some messages; of equals the first by its text."""
    message = min(Counter(messages).items(), key=lambda pair: (-pair[1], pair[0]))[0]
    lines = [(label, said) for label, said in split(message)[1] if label in ("call", "tried", "returned", "expected")]
    return "<br>".join(f'<span class="soft">{text(label)}</span> {text(_cut(said))}' for label, said in lines)


def _students(students: Mapping[str, Sequence[Mapping]]) -> str:
    """Every student with points and statuses, and the way to the student's page."""
    numbers = list(dict.fromkeys(row["exercise"] for mine in students.values() for row in mine))
    lines = []
    for student, mine in sorted(students.items()):
        found = {row["exercise"]: "set by hand" if row.get("why") else SAID[row["status"]] for row in mine}
        cells = [found.get(number, "") for number in numbers]
        lines.append([_link(student, mine), _points(mine), *map(text, cells)])
    return f"<h2>Students</h2>{table(['student', 'points', *map(text, numbers)], lines)}"


def _points(rows: Sequence[Mapping]) -> str:
    """A student's points, below them the grade where that is another number, and what is said of lateness."""
    said, total = [f"{_total(rows)[0]:g}"], rows[0].get("total")
    if total and (total.grade, total.max_grade) != (total.points, total.max_points):
        said.append(f"<small>grade {total.grade:g} of {total.max_grade:g}</small>")
    return "<br>".join([*said, *([f"<small>{text(total.late)}</small>"] if total and total.late else [])])


def _link(student: str, rows: Sequence[Mapping]) -> str:
    """A student's id, which leads to the student's page, and the name where a roster gave one."""
    name = rows[0].get("name") if rows else ""
    return f'<a href="feedback/{quote(student, safe="")}.html">{text(student)}</a>{f" {text(name)}" if name else ""}'


def _cut(said: str) -> str:
    """A text that leaves room for others."""
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"
