"""What a course says about late work and weights: a TOML file, read strictly, with a sentence for whatever is wrong.

[late]                                   # for every lesson; a lesson's own table comes before it
grace_minutes = 15                       # forgiven; beyond it, lateness counts from the due time
percent_per_day = 10                     # for each day begun; or steps = [{after_hours = 0, percent = 10}, ...]
most_percent = 50
of = "reached"                           # or "possible": of what the percent are

[late.students.ann]                      # also under a lesson: due, grace_minutes, handed_in, excused
grace_minutes = 120

[lessons.01]
due = 2027-03-01T23:59:00+01:00
worth = 10                               # what the whole lesson counts for in the end
weights = {"1.2" = 2}                    # an exercise's points count twice
"""

import difflib
import itertools
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit import course
from labkit.course import CourseError
from labkit.grading.roster import identity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "course.toml"
MAX_BYTES = 1_000_000
DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Leave:
    """What holds for one student: another due time or grace, a time of hand-in that is known better, or all excused."""

    due: datetime | None = None
    grace_minutes: float | None = None
    handed_in: datetime | None = None
    excused: bool = False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a course says about one lesson; students: by identity."""

    due: datetime | None = None
    grace_minutes: float = 0
    percent_per_day: float = 0
    steps: tuple[tuple[float, float], ...] = ()
    most_percent: float = 100
    of: str = "reached"
    worth: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    students: Mapping[str, Leave] = field(default_factory=dict)

    def percent_off(self, late_s: float) -> float:
        """Percent taken off for work that is so late, any grace being over: by days begun, or by the last step."""
        if late_s <= 0:
            return 0
        reached = [percent for after_hours, percent in self.steps if late_s > after_hours * 3600]
        percent = max(reached, default=0) if self.steps else math.ceil(late_s / DAY_S) * self.percent_per_day
        return min(percent, self.most_percent)


class _Fault(Exception):
    """What is wrong, and at which key."""

    def __init__(self, at: tuple[str, ...], sentence: str) -> None:
        super().__init__(sentence)
        self.at = at


def find(path: Path | None, roster: Path | None) -> Path | None:
    """The policy that is named, else the one that lies beside the roster, else none."""
    beside = roster.parent / NAME if roster else None
    return path or (beside if beside and beside.is_file() else None)


def load(path: Path, lesson: str, exercises: Collection[str]) -> Terms:
    """What a policy says about a lesson, by its name. CourseError: whatever is wrong anywhere in it, with the line.

    exercises: those of the lesson; a weight of any other is a mistake.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CourseError(f"{path} has more than {MAX_BYTES / 1e6:.0f} MB: it is no policy.")
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        said = tomllib.loads(text)
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise CourseError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CourseError(f"{path} is no valid TOML: {error}.") from None
    try:
        return _terms(said, lesson, exercises)
    except _Fault as fault:
        raise CourseError(f"{path}, line {line_of(text, fault.at)}: {fault}") from None


def line_of(text: str, at: tuple[str, ...]) -> int:
    """The line of a TOML text where a key stands, or what is nearest around it and has a line; 1 without any."""
    table: tuple[str, ...] = ()
    best, line_found = 0, 1
    for number, line in enumerate(text.split("\n"), 1):
        head = line.strip().startswith("[")
        try:
            made = tomllib.loads(line if head else f"{line.split('=', 1)[0]}=0" if "=" in line else "")
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        keys = _only_path(made)
        table = keys if head else table
        here = table if head else (*table, *keys)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(here, at, strict=False)))
        if keys and shared > best:
            best, line_found = shared, number
    return line_found


def _only_path(made: Any) -> tuple[str, ...]:
    """The keys of nested tables that hold one thing each."""
    keys = []
    while made and isinstance(made, (dict, list)):
        if isinstance(made, list):
            made = made[0]
        else:
            [(key, made)] = made.items()
            keys.append(key)
    return tuple(keys)


def _terms(said: Mapping[str, Any], lesson: str, exercises: Collection[str]) -> Terms:
    """What holds for a lesson; every other lesson is read as well, so that its mistakes are found today."""
    _known(said, (), {"late", "lessons"})
    late = _late(_table(said.get("late", {}), ("late",)), ("late",), set())
    found, seen = late, {}
    for key, each in _table(said.get("lessons", {}), ("lessons",)).items():
        at = ("lessons", key)
        try:
            name = lesson if key == lesson else course.find(key).name  # a notebook of another's making has its own name
        except CourseError as error:
            raise _Fault(at, str(error)) from None
        _once(seen, name, at)
        mine = _late(_table(each, at), at, {"due", "worth", "weights"})
        if name == lesson:
            _known(mine.get("weights", {}), (*at, "weights"), set(exercises))
            found = _over(late, mine)
    return Terms(**found | {"students": {who: Leave(**fields) for who, fields in found.get("students", {}).items()}})


def _over(late: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """A lesson's terms over the general ones: of steps and percent per day the lesson's own is the one that counts."""
    rest = {key: value for key, value in late.items() if not (key in _WAYS and _WAYS & mine.keys())}
    general, own = (each.get("students", {}) for each in (late, mine))
    return rest | mine | {"students": {who: general.get(who, {}) | own.get(who, {}) for who in general.keys() | own}}


def _late(said: Mapping[str, Any], at: tuple[str, ...], more: set[str]) -> dict[str, Any]:
    """The fields of Terms that a table sets; those of students as dictionaries still."""
    own = {"grace_minutes", "percent_per_day", "steps", "most_percent", "of", "students"} | more
    _known(said, at, own)
    if said.keys() >= _WAYS:
        raise _Fault((*at, "steps"), "give steps or percent_per_day, not both.")
    found = {key: _value(key, value, (*at, key)) for key, value in said.items() if key in _VALUES}
    if "weights" in said:
        found["weights"] = _weights(_table(said["weights"], (*at, "weights")), (*at, "weights"))
    if "steps" in said:
        found["steps"] = _steps(said["steps"], (*at, "steps"))
    if "students" in said:
        students, seen = _table(said["students"], (*at, "students")), {}
        for key in students:
            _once(seen, identity(key), (*at, "students", key))
        found["students"] = {
            identity(key): _student(value, (*at, "students", key)) for key, value in students.items()
        }  # fmt: skip
    return found


def _once(seen: dict[str, str], what: str, at: tuple[str, ...]) -> None:
    """Note what a key names. _Fault: another key names the same, and nobody could tell which of them holds."""
    if what in seen:
        raise _Fault(at, f"{at[-1]!r} is there before, as {seen[what]!r}.")
    seen[what] = at[-1]


def _student(said: Any, at: tuple[str, ...]) -> dict[str, Any]:
    """The fields of Leave that a student's table sets."""
    _known(_table(said, at), at, {"due", "grace_minutes", "handed_in", "excused"})
    return {key: _value(key, value, (*at, key)) for key, value in said.items()}


def _weights(said: Mapping[str, Any], at: tuple[str, ...]) -> dict[str, float]:
    """Weights by exercise."""
    for key, value in said.items():
        if isinstance(value, dict):
            raise _Fault((*at, key), f'an exercise\'s number stands in quotes: "{key}.{next(iter(value), 1)}" = 2.')
        if not _within(0, 1000)(value):
            raise _Fault((*at, key), f"{_shown(value)} is no weight: give a number from 0 to 1000.")
    return dict(said)


def _steps(said: Any, at: tuple[str, ...]) -> tuple[tuple[float, float], ...]:
    """Steps as pairs, in the order of their hours."""
    wanted = "steps is a list such as [{after_hours = 0, percent = 10}, {after_hours = 24, percent = 30}]."
    if not isinstance(said, list) or not said:
        raise _Fault(at, wanted)
    for one in said:
        if not isinstance(one, dict) or one.keys() != {"after_hours", "percent"}:
            raise _Fault(at, wanted)
        for key, value in one.items():
            _value(key, value, at)
    steps = sorted((one["after_hours"], one["percent"]) for one in said)
    for (hours, percent), (later, less) in itertools.pairwise(steps):
        if later == hours or less < percent:
            told = f"{percent:g} % after {hours:g} hours and {less:g} % after {later:g}"
            raise _Fault(at, f"{told}: give each step once, and no less for what is later.")
    return tuple(steps)


def _table(said: Any, at: tuple[str, ...]) -> Mapping[str, Any]:
    """A table. _Fault: it is something else."""
    if not isinstance(said, dict):
        raise _Fault(at, f"{at[-1]} is a table: write [{'.'.join(at)}] above what belongs to it.")
    return said


def _known(said: Mapping[str, Any], at: tuple[str, ...], known: set[str]) -> None:
    """_Fault: a key that means nothing here; a policy that is not understood must not look as if it were."""
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), 1, 0.5)
            meant = f"did you mean {near[0]}?" if near else f"there may be {', '.join(sorted(known))}."
            raise _Fault((*at, key), f"{key!r} is not known here; {meant}")


def _value(key: str, value: Any, at: tuple[str, ...]) -> Any:
    """A value that is what its key wants. _Fault: it is not."""
    test, wanted = _VALUES[key]
    if not test(value):
        raise _Fault(at, f"{key} = {_shown(value)} will not do: give {wanted}.")
    return value


def _shown(value: Any) -> str:
    """A value as it may be printed."""
    text = value.isoformat() if hasattr(value, "isoformat") else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _within(least: float, most: float) -> Callable[[Any], bool]:
    """A test for a number from `least` to `most`."""
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _is_moment(value: Any) -> bool:
    """Whether a value is a date and time with its zone."""
    return isinstance(value, datetime) and value.tzinfo is not None


_MOMENT = (_is_moment, "a date and a time with its zone, such as 2027-03-01T23:59:00+01:00")
_PERCENT = (_within(0, 100), "a number from 0 to 100")
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "due": _MOMENT,
    "handed_in": _MOMENT,
    "grace_minutes": (_within(0, 1e6), "a number of minutes"),
    "percent_per_day": _PERCENT,
    "most_percent": _PERCENT,
    "percent": _PERCENT,
    "after_hours": (_within(0, 1e5), "a number of hours"),
    "of": (lambda value: value in ("reached", "possible"), '"reached" or "possible"'),
    "worth": (lambda value: _within(0, 1e6)(value) and value > 0, "a number above 0"),
    "excused": (lambda value: isinstance(value, bool), "true or false"),
}
_WAYS = {"steps", "percent_per_day"}
