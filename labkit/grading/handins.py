"""When a student handed in, as far as a platform says so: a time, a lateness of its own reckoning, or a mark."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from labkit.course import CourseError
from labkit.grading.roster import Roster, identity

REPORT = "collected.json"
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)")
_TIMES = ("submission time", "submitted at", "handed in")  # headings of a roster; the first is Gradescope's
_TIMES += ("last modified (submission)",)  # of Moodle's worksheet, in the words and the zone of whoever exported it
_LATENESS = ("lateness (h:m:s)", "lateness")


@dataclass(frozen=True, kw_only=True)
class Handin:
    """late: a platform's mark; at: when; late_s: how late, as a platform reckons with its own extensions."""

    late: bool = False
    at: datetime | None = None
    late_s: int | None = None


def moment(text: str) -> datetime | None:
    """A time with its zone, in ISO's way or as Gradescope writes it; None where it is none or has no zone."""
    found = _MOMENT.fullmatch(text.strip())
    if not found:
        return None
    zone = "+00:00" if found[3] in ("Z", "UTC") else found[3] if ":" in found[3] else f"{found[3][:3]}:{found[3][3:]}"
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}").astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def lateness_s(text: str) -> int | None:
    """Seconds in hours, minutes and seconds; None where the text is something else."""
    found = re.fullmatch(r"(\d{1,5}):(\d\d):(\d\d)", text.strip())
    return 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3]) if found else None


def of_row(row: Mapping[str, str]) -> Handin:
    """What a row of a roster says, such as of the scores that Gradescope exports."""
    at = next(filter(None, (moment(row.get(name, "")) for name in _TIMES)), None)
    late = [found for name in _LATENESS if (found := lateness_s(row.get(name, ""))) is not None]
    return Handin(at=at, late_s=late[0] if late else None, late=bool(late and late[0]))


def unread(roster: Roster | None) -> list[str]:
    """Which times of a roster were not read and why, as sentences."""
    said = []
    for name in _TIMES:
        texts = [student.row.get(name, "") for student in roster.students] if roster else []
        if odd := [text for text in texts if text not in ("", "-") and not moment(text)]:
            n_times, were = ("1 time", "was") if len(odd) == 1 else (f"{len(odd)} times", "were")
            times = f"{n_times} in the roster's {name!r} {were} not read"
            why = "a time is read as 2027-03-01 23:59:00 +0100, with its zone; give handed_in in the policy instead"
            said.append(f"{times}, such as {odd[0][:60]!r}: {why}.")
    return said


def of_class(folder: Path, roster: Roster | None) -> dict[str, Handin]:
    """What is known of each student, by identity: what collecting found, else what the roster says.

    CourseError: collecting was not finished there.
    """
    found = {identity(student.id): of_row(student.row) for student in roster.students} if roster else {}
    collected = [one for one in _reported(folder) if one["status"] == "collected"]
    known = {identity(one["student"]): _told(one) for one in collected}
    return {who: _both(found.get(who, Handin()), known.get(who, Handin())) for who in found.keys() | known.keys()}


def without_notebook(folder: Path) -> dict[str, str]:
    """By id, whom collecting knew and had no notebook of, and what it said of that; empty where nothing came.

    CourseError: as of_class.
    """
    missing = [one for one in _reported(folder) if one["status"] != "collected" and one.get("known", True)]
    return {one["student"]: " ".join(one.get("sentences", ())) for one in missing}


def _reported(folder: Path) -> list[dict]:
    """What collecting says of each student; nothing where nobody collected."""
    path = folder / REPORT
    if not path.is_file():
        return []
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        unfinished, students = report.get("unfinished"), report["students"]
        sound = all(isinstance(one["student"], str) and isinstance(one["status"], str) for one in students)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        sound = unfinished = False
    if unfinished:
        raise CourseError(f"{folder} is half collected: labkit collect was ended there. Collect again.")
    if not sound:
        raise CourseError(f"{path} cannot be read: it is what labkit collect writes. Collect again.")
    return students


def _told(one: Mapping) -> Handin:
    """What a student's entry in collect's report says."""
    return Handin(late=bool(one["late"]), at=moment(one.get("handed_in") or ""), late_s=one.get("late_s"))


def _both(roster: Handin, collected: Handin) -> Handin:
    """What collecting found, and where it found nothing what the roster says."""
    late_s = roster.late_s if collected.late_s is None else collected.late_s
    return Handin(late=roster.late or collected.late, at=collected.at or roster.at, late_s=late_s)
