"""What is taken off for late work, and how points become a grade: kept beside the verdicts, never in them.

OUT/policy.json says what the course's policy made of each student's time. Points are reckoned from it whenever tables
and pages are made, so nothing is taken off twice, and a regrade or points set by hand change nothing of it.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from labkit.grading.handins import Handin
from labkit.grading.policy import DAY_S, Leave, Terms
from labkit.grading.roster import identity

FILE = "policy.json"


@dataclass(frozen=True, kw_only=True)
class Late:
    """One student's lateness; late_s: None where it is not known; percent: taken off; said: a sentence to read."""

    late_s: int | None
    percent: float
    said: str
    excused: bool = False


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a policy makes of a class: `late` by identity, of those alone of whom there is something to say.

    named: students with terms of their own; timed: whether it is known of anybody when they handed in.
    """

    of: str = "reached"
    worth: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, Late] = field(default_factory=dict)
    named: Sequence[str] = ()
    timed: bool = True


@dataclass(frozen=True, kw_only=True)
class Total:
    """A student's points, weighted; what is taken off them for lateness; the grade, of as much as the lesson is worth.

    late: why anything is taken off or is not, as a sentence; empty for work in time.
    """

    points: float
    max_points: float
    grade: float
    max_grade: float
    deduction: float = 0
    late_s: int | None = 0
    late: str = ""


def applied(terms: Terms, handins: Mapping[str, Handin]) -> Applied:
    """What a policy makes of a class; handins: by identity."""
    everybody = sorted(handins.keys() | terms.students.keys())
    found = {who: _late(terms, handins.get(who, Handin()), terms.students.get(who, Leave())) for who in everybody}
    late = {who: one for who, one in found.items() if one}
    given = [*handins.values(), *(Handin(at=leave.handed_in) for leave in terms.students.values())]
    timed = any(one.at or one.late_s is not None for one in given)
    more = {"late": late, "named": sorted(terms.students), "timed": timed}
    return Applied(of=terms.of, worth=terms.worth, weights=terms.weights, **more)


def _late(terms: Terms, handin: Handin, leave: Leave) -> Late | None:
    """A student's lateness; None for work in time, and where nobody says that it was late."""
    at, due = leave.handed_in or handin.at, leave.due or terms.due
    if at and due:
        late_s = max(0, int((at - due).total_seconds()))
    elif leave.due or leave.handed_in or handin.late_s is None:  # a platform knows nothing of what was granted here
        late_s = None if handin.late else 0
    else:
        late_s = handin.late_s
    if late_s == 0:
        return None
    grace_minutes = terms.grace_minutes if leave.grace_minutes is None else leave.grace_minutes
    when = f"Handed in {duration(late_s)} late" if late_s else "Handed in late, by how much is not known"
    if leave.excused:
        return Late(late_s=late_s, percent=0, said=f"{when}: excused.", excused=True)
    if late_s is None:  # nothing is guessed at a student's cost
        return Late(late_s=None, percent=0, said=f"{when}: nothing is taken off.")
    if late_s <= 60 * grace_minutes:
        return Late(late_s=late_s, percent=0, said=f"{when}: within the grace of {duration(int(60 * grace_minutes))}.")
    percent = terms.percent_off(late_s)
    of = "what was reached" if terms.of == "reached" else "what can be had"
    return Late(late_s=late_s, percent=percent, said=f"{when}: {percent:g} % of {of} is taken off.")


def duration(seconds: int) -> str:
    """A time such as 1 day 2 h; seconds only below a minute."""
    if seconds < 60:
        return f"{seconds} s"
    days, rest = divmod(seconds, DAY_S)
    parts = [(days, "days" if days > 1 else "day"), (rest // 3600, "h"), (rest % 3600 // 60, "min")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def keep(made: Applied) -> str:
    """The text of policy.json."""
    return json.dumps(asdict(made), indent=1, ensure_ascii=False) + "\n"


def load(out: Path) -> Applied | None:
    """What a policy made of a graded class; None where it was graded without one."""
    path = out / FILE
    if not path.is_file():
        return None
    told = json.loads(path.read_text(encoding="utf-8"))
    late = {who: Late(**one) for who, one in told.pop("late").items()}
    return Applied(**told, late=late)


def summary(out: Path, students: Collection[str]) -> list[str]:
    """Lines for whoever graded: how many were late, of whom that is not known, and whom a policy names in vain."""
    made = load(out)
    if not made:
        return []
    known = {identity(student): student for student in students}
    late = {known[who]: one for who, one in made.late.items() if who in known}
    off = sorted(student for student, one in late.items() if one.percent)
    open_ = sorted(student for student, one in late.items() if one.late_s is None and not one.excused)
    lines = [f"{len(off)} late with a deduction, {len(late) - len(off)} late without: {FILE} says why of each."]
    if open_:
        lines.append(f"Late by how much is not known, so nothing was taken off: {_some(open_)}.")
        lines.append("Give handed_in for them in the policy, under the lesson's students.")
    if strangers := sorted(set(made.named) - set(known)):
        lines.append(f"The policy names students who are not there: {_some(strangers)}.")
    if not made.timed:
        lines.append("No time of any hand-in is known: labkit collect finds them where a platform gives them.")
    return lines


def _some(names: Sequence[str], most: int = 10) -> str:
    """The first of some names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def totals(rows: Sequence[Mapping], made: Applied | None) -> dict[str, Total]:
    """Each student's total, in the order of their names; rows: verdicts with points as set by hand."""
    by_student: dict[str, list[Mapping]] = {}
    for row in rows:
        by_student.setdefault(row["student"], []).append(row)
    return {student: _total(student, mine, made or Applied()) for student, mine in sorted(by_student.items())}


def _total(student: str, rows: Iterable[Mapping], made: Applied) -> Total:
    """One student's total."""
    weighted = [(made.weights.get(row["exercise"], 1), row) for row in rows]
    points = sum(weight * row["points"] for weight, row in weighted)
    most = sum(weight * row["max_points"] for weight, row in weighted)
    late = made.late.get(identity(student), Late(late_s=0, percent=0, said=""))
    off = min(points, late.percent / 100 * (points if made.of == "reached" else most))
    scale = made.worth / most if made.worth and most else 1
    return Total(
        points=number(points),
        max_points=number(most),
        deduction=number(off),
        grade=number(scale * (points - off)),
        max_grade=number(scale * most),
        late_s=late.late_s,
        late=late.said,
    )


def number(value: float) -> float:
    """Points as they are written: two places at most, and none for whole ones."""
    value = round(value, 2)
    return int(value) if value == int(value) else value
