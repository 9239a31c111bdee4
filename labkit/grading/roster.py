"""Who the students are: a CSV of the instructor's own, or the grade book that Canvas, Moodle or Gradescope exports.

One column holds the id that everything goes by. The others that tell people apart (name, email, the platform's numbers)
lead to it, as long as only one student has that value.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.course import CourseError

MAX_BYTES = 20_000_000
MAX_ID_BYTES = 100
_ID_COLUMNS = ("student_id", "id", "sid", "username", "login", "id number", "student id", "student", "email")
_ID_COLUMNS += ("email address", "identifier")
_FULL = ("full name", "name", "student name", "display name", "student")
_FIRST, _LAST = ("first name", "firstname", "given name"), ("last name", "lastname", "surname", "family name")
_TELLING = re.compile(r"\b(id|sid|name|email|e-mail|login|user|username|student|surname|identifier|number)\b")
_SEPARATOR = re.compile(r"sep=([,;\t])\r?\n", re.IGNORECASE)
_SHORTENED = re.compile(r"\d([.,]\d+)?E\+\d+")  # 1.23457E+11, of which nobody can tell what it was
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


@dataclass(frozen=True, kw_only=True)
class Student:
    """A row of the roster: the id, and the whole row by heading in small letters."""

    id: str
    row: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the roster calls the student beside the id; empty where it does not."""
        row = {heading.replace("_", " "): value for heading, value in self.row.items()}
        halves = " ".join(filter(None, (_first(row, _FIRST), _first(row, _LAST))))
        found = _first(row, _FULL[:-1]) or halves or _first(row, _FULL[-1:])
        return "" if identity(found) == identity(self.id) else found


def identity(text: str) -> str:
    """What two ways to write one name have in common: NFKC, small letters, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


def fault(student_id: str) -> str:
    """Why a text cannot be a student's id, which is a folder's name too; empty where it can."""
    if not student_id or student_id != student_id.strip():
        return "an id is not empty and does not begin or end with a space"
    if len(student_id.encode("utf-8", "replace")) > MAX_ID_BYTES:
        return f"an id has at most {MAX_ID_BYTES} bytes"
    if not student_id.isprintable() or any(sign in '/\\:*?"<>|' for sign in student_id):
        return "an id holds only what a folder's name may hold"
    if student_id[0] in ".-~" or student_id[-1] == "." or student_id.split(".")[0].casefold() in _RESERVED:
        return "an id does not begin with a dot, a dash or a tilde, and is no name that a system keeps for itself"
    return ""


class Roster:
    """The students, by id and by whatever else tells them apart."""

    def __init__(self, students: tuple[Student, ...]) -> None:
        self.students = students
        self._by_id = {identity(student.id): student for student in students}
        self._exact: dict[str, set[str]] = {}
        self._by_key: dict[str, set[str]] = {}
        for student in students:
            for kind, keys in ((self._exact, _exact(student.row)), (self._by_key, _keys(student.row))):
                for key in keys:
                    kind.setdefault(key, set()).add(student.id)

    def find(self, key: str) -> Student | None:
        """The student whose id `key` is, else the only one with such a name, email or number.

        Of two whose names are one turned round, it is the one whose name stands in this order.
        """
        key = identity(key)
        exact, turned = self._exact.get(key, set()), self._by_key.get(key, set())
        found = exact if len(exact) == 1 else turned or self._by_key.get(_squeezed(key), set())
        return self._by_id.get(key) or (self._by_id[identity(next(iter(found)))] if len(found) == 1 else None)


def load(path: Path) -> Roster:
    """The roster in a CSV file. CourseError: no column of ids, an id that is there twice or cannot be one."""
    headings, rows, lines = _rows(path)
    columns = [name for name in _ID_COLUMNS if name in headings]
    if not columns:
        there = ", ".join(filter(None, headings)) or "no row"
        raise CourseError(f"{path} has no column of ids, such as {_ID_COLUMNS[0]} or email: it has {there[:200]}.")
    if twice := [name for name in columns if headings.count(name) > 1]:
        raise CourseError(f"{path} has more than one column {twice[0]!r}: leave the one that holds the ids.")
    students: dict[str, Student] = {}
    for row, line in zip(rows, lines, strict=True):
        student_id = unicodedata.normalize("NFC", row[columns[0]])
        if not student_id and (not any(row.values()) or "points possible" in " ".join(row.values()).lower()):
            continue  # Canvas puts a row of maxima below the headings
        if _SHORTENED.fullmatch(student_id):
            told = "is a number that a spreadsheet has cut short: make the column text there, and export again"
            raise CourseError(f"{path}, line {line}: {student_id!r} {told}.")
        if why := fault(student_id):
            raise CourseError(f"{path}, line {line}: {student_id[:40]!r} is no id of a student: {why}.")
        if known := students.get(identity(student_id)):
            raise CourseError(f"{path}, line {line}: {student_id!r} is there before, as {known.id!r}.")
        students[identity(student_id)] = Student(id=student_id, row=row)
    if not students:
        raise CourseError(f"{path} names no student.")
    return Roster(tuple(students.values()))


def _rows(path: Path) -> tuple[list[str], list[dict[str, str]], list[int]]:
    """A CSV's headings in small letters, its rows by them, and the line of each; any usual encoding and separator."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CourseError(f"{path} has more than {MAX_BYTES / 1e6:.0f} MB: it is no roster.")
        text = _decoded(path.read_bytes())
    except FileNotFoundError:
        raise CourseError(f"{path} is not there.") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be read as a roster: {error.strerror}.") from None
    told = _SEPARATOR.match(text)  # Excel's own first line
    text = text[told.end() :] if told else text
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=told[1] if told else _separator(text))
    above = 1 if told else 0
    try:
        headings = [identity(name) for name in next(reader, [])]
        found = [(dict(zip(headings, map(str.strip, row), strict=False)), reader.line_num) for row in reader if row]
    except csv.Error as error:
        raise CourseError(f"{path}, line {reader.line_num + above}: {error}.") from None
    rows = [{name: row.get(name, "") for name in headings} for row, _ in found]
    return headings, rows, [line + above for _, line in found]


def _separator(text: str) -> str:
    """The sign that stands most often between headings: one within quotes separates nothing."""
    head = re.sub(r'"[^"]*"', "", text).split("\n", 1)[0]
    return max(",;\t", key=head.count)


def _decoded(data: bytes) -> str:
    """The text of a CSV: UTF-8 with or without a mark, UTF-16, else what Excel writes in the west."""
    encodings = ["utf-16"] if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "cp1252", "latin-1"]
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise CourseError("The roster is cut off in the middle of a character: export it again.")


def _squeezed(text: str) -> str:
    """Letters and digits alone, which is what Canvas makes of a name."""
    return "".join(sign for sign in text if sign.isalnum())


def _exact(row: Mapping[str, str]) -> set[str]:
    """What leads to a student with first and last name in the roster's own order."""
    found = _written(row)
    in_order = {identity(f"{b} {a}") for a, comma, b in (one.partition(",") for one in found) if comma}
    return found | in_order | {_squeezed(one) for one in found if "@" not in one} - {""}


def _written(row: Mapping[str, str]) -> set[str]:
    """Telling cells as they are, first and last name together."""
    found = {identity(value) for name, value in row.items() if value and _TELLING.search(name.replace("_", " "))}
    first, last = _first(row, _FIRST), _first(row, _LAST)
    if first and last:
        found -= {identity(first), identity(last)}
        found |= {identity(f"{first} {last}"), identity(f"{last}, {first}")}
    return found


def _first(row: Mapping[str, str], headings: Sequence[str]) -> str:
    """The first of these cells that is not empty."""
    return next((row[name] for name in headings if row.get(name)), "")


def _keys(row: Mapping[str, str]) -> set[str]:
    """All that leads to a student: telling cells, names in either order, a number after `Participant`."""
    found = _written(row)
    found |= {identity(f"{b} {a}") for a, comma, b in (one.partition(",") for one in found) if comma}
    found |= {number[1] for one in found if (number := re.fullmatch(r"participant (\d+)", one))}
    words = [one.split() for one in found]
    found |= {" ".join([*each[-1:], *each[:-1]]) for each in words if len(each) > 1}  # Lovelace Ada
    return found | {_squeezed(one) for one in found if "@" not in one} - {""}
