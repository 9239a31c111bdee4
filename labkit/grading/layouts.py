"""Whose a file is: Canvas, Moodle and Gradescope each name what they export in their own way, and people do as well."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from labkit.grading.arrivals import Entry
from labkit.grading.handins import moment

METADATA = "submission_metadata.yml"  # Gradescope's table of who handed in what
_CANVAS = re.compile(r"(?P<name>[^_]+)_(?P<late>LATE_)?(?P<user>\d+)_(?P<submission>\d+)_(?P<file>.+)", re.DOTALL)
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_(?P<kind>[a-z]+)_?(?P<file>.*)", re.DOTALL)
_LESSON = re.compile(r"[ _-]\d\d_[a-z0-9_]+.*$")
_EDITORS = ("__MACOSX", ".ipynb_checkpoints", ".git", ".DS_Store", "Thumbs.db", "desktop.ini", METADATA)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose a file may be: one of these keys tells. `mark` is one for all files of one person, empty where unknown.

    late, handed_in: a platform's mark, and the time that it gives.
    """

    mark: str
    keys: tuple[str, ...]
    file: str
    late: bool = False
    handed_in: datetime | None = None


@dataclass(kw_only=True)
class Handed:
    """A submission in Gradescope's table: the keys of each submitter, and when it came."""

    submitters: list[tuple[str, ...]] = field(default_factory=list)
    at: datetime | None = None


def is_kept(entry: Entry) -> bool:
    """Whether an entry is what a person handed in, and not what a system or an editor put beside it."""
    return not any(part in _EDITORS or part.startswith("._") for part in entry.parts)


def common_folder(entries: Sequence[Entry], known: Collection[str]) -> int:
    """How many folders around all of it say nothing about whose it is: 0 or 1.

    A single folder around everything is a student's where `known` has it, or where it holds anything but folders.
    """
    kept = [entry.parts for entry in entries if entry.parts and is_kept(entry)]
    tops = {parts[0] for parts in kept}
    if len(tops) != 1 or tops & set(known) or any(len(parts) == 1 for parts in kept):
        return 0
    if any(entry.parts[1:] == (METADATA,) for entry in entries):
        return 1
    named = [_by_platform(parts[1]) for parts in kept]
    folders = all(len(parts) > 2 or name for parts, name in zip(kept, named, strict=True))
    return int(folders and (len({parts[1] for parts in kept}) > 1 or bool(named[0])))


def _by_platform(name: str) -> re.Match | None:
    """The match of a name that only a platform gives."""
    return _MOODLE.fullmatch(name) or _CANVAS.fullmatch(name)


def owners(parts: Sequence[str], table: Mapping[str, Handed]) -> list[Owner]:
    """Whose an entry is: several for a group in Gradescope, none for what is no file of a student."""
    top, file = parts[0], parts[-1]
    if moodle := _MOODLE.fullmatch(top):
        if moodle["kind"] != "file":
            return []  # the text that a student typed in beside the file
        return [Owner(mark=moodle["number"], keys=(moodle["number"], moodle["name"]), file=moodle["file"] or file)]
    if top in table:
        return [Owner(mark=keys[0], keys=keys, file=file, handed_in=table[top].at) for keys in table[top].submitters]
    if len(parts) > 1:
        return [Owner(mark=top, keys=(top,), file=file)]
    if canvas := _CANVAS.fullmatch(top):
        keys, late = (canvas["user"], canvas["name"]), bool(canvas["late"])
        return [Owner(mark=canvas["user"], keys=keys, file=canvas["file"], late=late)]
    stem = re.sub(r"(\.ipynb)?(\.\w+)?$", "", top, flags=re.IGNORECASE)
    cuts = [found.start() for found in re.finditer(r"[ _-]", stem)]
    keys = dict.fromkeys([_LESSON.sub("", stem), stem, *(stem[:cut] for cut in reversed(cuts))])
    return [Owner(mark="", keys=tuple(key for key in keys if key), file=top)]


def gradescope(text: str) -> dict[str, Handed]:
    """By folder of Gradescope's export, when it came, and the keys of each submitter: sid, email, name.

    Read line by line: the file is YAML with Ruby's symbols, and holds names that students chose for themselves.
    """
    found: dict[str, list[dict[str, str]]] = {}
    times: dict[str, datetime | None] = {}
    name, folder, section = "", None, ""
    for line in text.replace("\r\n", "\n").split("\n"):  # a name may hold what else splitlines() ends a line at
        if head := re.fullmatch(r"([\w.-]+):\s*", line):
            name, section = head[1], ""
            folder = found.setdefault(name, [])
        elif part := re.match(r"  :?(\w+):\s*(.*)", line):
            section = part[1]
            if folder is not None and section == "created_at":
                times.setdefault(name, moment(_scalar(part[2].strip())))
        value = re.fullmatch(r"\s+(- )?:?(name|sid|email):\s*(.*?)\s*", line)
        if folder is None or section != "submitters" or not value:
            continue
        if value[1]:
            folder.append({})
        if folder and value[2] not in folder[-1]:
            folder[-1][value[2]] = _scalar(value[3])
    keys = {name: [_telling(person) for person in people] for name, people in found.items()}
    return {name: Handed(submitters=list(filter(None, each)), at=times.get(name)) for name, each in keys.items()}


def _telling(person: Mapping[str, str]) -> tuple[str, ...]:
    """What tells a submitter apart, the surest first."""
    return tuple(person[part] for part in ("sid", "email", "name") if person.get(part))


def _scalar(text: str) -> str:
    """A plain or quoted YAML scalar."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1].replace("''", "'") if quoted else "" if text in ("null", "~") else text
