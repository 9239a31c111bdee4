"""What of a graded class a person has to look at, and what the grader noted of a notebook on the way.

A note says what was odd and cost nothing: two cells that define one name, another notebook that lay beside it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit import build
from labkit.grading import submission

KINDS = {
    "ungraded": "not graded: a fault of the grader, which a regrade may mend",
    "tampered": "the process changed what reports to the grader",
    "unreadable": "no notebook that can be read",
    "manual": "for a person to grade: labkit override STUDENT ID POINTS --why TEXT --out DIR",
    "near": "nearly right, or right with help from outside the answer: points by hand may be fair",
    "several": "several notebooks, of which one was graded: take the others away where it is the wrong one",
    "noted": "odd, and nothing was taken off for it",
}
"""Each reason to look, the gravest first."""
_NEAR = ("right on the cases of class", "right results, but")  # as the judge's and the grader's headlines begin


@dataclass(frozen=True, kw_only=True)
class Point:
    """One thing to look at; exercise is empty where it is about the whole notebook."""

    kind: str
    student: str
    exercise: str
    said: str


def points(rows: Sequence[Mapping], noted: Mapping[str, Sequence[str]]) -> list[Point]:
    """What is to be looked at, the gravest first, then by student; what was set by hand has been looked at."""
    found = []
    for row in rows:
        why = _kind(row)
        if why and not row.get("why"):
            whole = why == "unreadable"
            found.append(
                Point(kind=why, student=row["student"], exercise="" if whole else row["exercise"], said=row["message"])
            )
    for who, every in noted.items():
        for said in every:
            why = "several" if submission.SEVERAL in said else "noted"
            found.append(Point(kind=why, student=who, exercise="", said=said))
    order = list(KINDS)
    return sorted(dict.fromkeys(found), key=lambda one: (order.index(one.kind), one.student, one.exercise))


def _kind(row: Mapping) -> str:
    """Why a result wants looking at; empty where it does not."""
    if row["status"] in KINDS:
        return row["status"]
    return "near" if row.get("near") or row["status"] != "ok" and row["message"].startswith(_NEAR) else ""


def summary(found: Sequence[Point], most: int = 5) -> list[str]:
    """Lines for a terminal: of each kind how many there are, and the first of them."""
    lines = []
    for name, meaning in KINDS.items():
        mine = [one for one in found if one.kind == name]
        lines += [f"{len(mine)} {name}: {meaning}"] if mine else []
        lines += [f"    {_shown(one)}" for one in mine[:most]]
        lines += [f"    and {len(mine) - most} more"] if len(mine) > most else []
    return lines


def _shown(one: Point) -> str:
    """One of them as a line: a stranger's signs cannot do anything to a terminal."""
    line = f"{one.student} {one.exercise}".strip() + f": {one.said.splitlines()[0] if one.said else ''}"
    safe = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    return safe if len(safe) <= 160 else f"{safe[:159]}…"


def keep(out: Path, noted: Mapping[str, Sequence[str]]) -> None:
    """Write down the notes, by student, for pages that are made later."""
    told = {student: list(notes) for student, notes in noted.items() if notes}
    build.write(out / "notes.json", json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def notes(out: Path) -> dict[str, list[str]]:
    """The notes that were kept; none where there is no such file."""
    path = out / "notes.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
