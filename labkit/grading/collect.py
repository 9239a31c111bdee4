"""Collecting what was handed in: a folder, a zip of a platform, or one file each, into a folder for each student.

Names are chosen here and never taken over: from outside come the bytes of notebooks, and what is in them is not looked
at. A student's fault is a sentence about that student; the rest goes on.
"""

import contextlib
import json
import re
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit import build
from labkit.course import CourseError
from labkit.grading import arrivals, handins, layouts, nested
from labkit.grading.arrivals import Entry, shown
from labkit.grading.handins import REPORT
from labkit.grading.layouts import Handed, Owner
from labkit.grading.notebook import MAX_BYTES
from labkit.grading.roster import Roster, fault, identity

PATTERN = r"\w[\w.@+-]*"
MAX_FILES = 20  # of one student
MAX_STUDENT_BYTES = 4 * MAX_BYTES
MAX_TOTAL_BYTES = 20_000_000_000
_NOTEBOOK = re.compile(r"(.+)\.ipynb(\.txt|\.json)?", re.IGNORECASE | re.DOTALL)  # browsers add the second ending


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What became of one student; status: `collected`, `refused`, `nothing` (no notebook) or `absent` (of the roster).

    files: names in the student's folder; sentences: what was refused or is odd.
    late: the platform says so; handed_in: when, in ISO's way, as far as it says; late_s: how late, as it reckons.
    student: the id, or where none was found, so that it is not `known`, the name that the file came with.
    """

    student: str
    status: str
    files: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    late: bool = False
    handed_in: str = ""
    late_s: int | None = None
    known: bool = True


def collect(source: Path, out: Path, pattern: str | None = None, roster: Roster | None = None) -> list[Collected]:
    """Bring the notebooks in `source` to out/<student>/; returns what became of each student, by id.

    pattern: what the whole of an id looks like, its group `id` being the id where it has one; by default letters,
    digits, and `_ . @ + -`. roster: who may hand in, and by which names.
    CourseError: a source that is none, a folder `out` with other things in it, a pattern that is none.
    """
    allowed = _compiled(pattern or PATTERN if pattern or roster is None else ".*")
    _prepare(source, out)
    work = _Collection(out, allowed, roster)
    with _entries(source) as entries:
        work.sort(entries)
        _report(out, source, unfinished=True)  # one that is killed from here on can be told and cleared away
        found = work.write()
    _report(out, source, found)
    return found


def _report(out: Path, source: Path, found: Sequence[Collected] = (), **more: bool) -> None:
    """Write what became of each student."""
    report = {"source": source.name, **more, "students": [asdict(one) for one in found]}
    build.write(out / REPORT, json.dumps(report, indent=1, ensure_ascii=True) + "\n")


def _compiled(pattern: str) -> re.Pattern:
    """The pattern. CourseError: it is none."""
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise CourseError(f"--pattern {pattern!r} is no regular expression: {error}.") from None


def _prepare(source: Path, out: Path) -> None:
    """Make `out`, and clear it of what was collected before. CourseError: it holds or is anything else."""
    if not source.exists():
        raise CourseError(f"{source} is not there.")
    here, there = source.resolve(), out.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise CourseError(f"{out} and {source} lie one in the other: give --out a folder elsewhere.")
    if out.exists() and not out.is_dir():
        raise CourseError(f"{out} is a file: give --out a folder.")
    for draft in out.glob(f"{build.DRAFT}*"):  # of a report that was not finished
        draft.unlink()
    if out.exists() and any(out.iterdir()):
        _clear(out)
    out.mkdir(parents=True, exist_ok=True)


def _clear(out: Path) -> None:
    """Delete the notebooks that an earlier collection put there, nothing else. CourseError: other things are there."""
    try:
        report = json.loads((out / REPORT).read_text(encoding="utf-8"))
        listed = [(str(one["student"]), str(name)) for one in report["students"] for name in one["files"]]
        if report.get("unfinished"):
            listed = [(path.parent.name, path.name) for path in out.glob("*/*") if path.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CourseError(f"{out} is not empty: give --out a new or empty folder.") from None
    for student, name in listed:
        folder = out / student
        if not fault(student) and name == _file_name(name) and not folder.is_symlink():
            (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
    if others := sorted(path.name for path in out.iterdir() if path.name != REPORT):
        raise CourseError(
            f"{out} holds other things ({', '.join(map(shown, others[:3]))}): give --out an empty folder."
        )


@contextlib.contextmanager
def _entries(source: Path) -> Iterator[list[Entry]]:
    """The entries of a source, for as long as it is open. CourseError: it is neither folder, zip nor notebook."""
    if source.is_dir():
        yield arrivals.in_folder(source)
    elif _NOTEBOOK.fullmatch(source.name):
        yield arrivals.one_file(source)
    else:
        with arrivals.Zipped(open(source, "rb", buffering=0)) as file:
            try:
                archive = arrivals.archive(file)
            except (zipfile.BadZipFile, ValueError, NotImplementedError):
                raise CourseError(f"{source} is no zip: give a folder, a zip or a notebook.") from None
            with archive:
                yield arrivals.in_zip(source, archive)


def _file_name(name: str) -> str:
    """The name that a file gets here: letters, digits and a few signs, one ending."""
    match = _NOTEBOOK.fullmatch(name)
    stem = unicodedata.normalize("NFC", match[1] if match else name)
    stem = re.sub(r"[^\w ()+,=@-]", "_", stem).strip(" _-")[:80].strip()
    return f"{stem or 'notebook'}.ipynb"


class _Collection:
    """Files by student, sorted first and written after: a clash of names is only known once all are seen."""

    def __init__(self, out: Path, allowed: re.Pattern, roster: Roster | None) -> None:
        self.out, self.allowed, self.roster = out, allowed, roster
        self.files: dict[str, list[tuple[Owner, Entry]]] = defaultdict(list)  # by identity
        self.ids: dict[str, str] = {}
        self.marks: dict[str, set[str]] = defaultdict(set)
        self.said: dict[str, list[str]] = defaultdict(list)
        self.unknown: dict[str, list[str]] = defaultdict(list)
        self.left_bytes = MAX_TOTAL_BYTES

    def sort(self, entries: Sequence[Entry]) -> None:
        """Find out whose each entry is."""
        sound = [entry for entry in entries if not entry.fault]
        known = {entry.parts[0] for entry in sound if self.roster and self.roster.find(entry.parts[0])}
        depth = layouts.common_folder(sound, known)
        table = _table(sound, depth)
        for entry in filter(layouts.is_kept, entries):
            parts = entry.parts[depth:]
            for owner in layouts.owners(parts, table) if parts else ():
                self._sort(entry, owner)
            if not parts:
                self.unknown[entry.name].append(f"{shown(entry.name)} {entry.fault}.")

    def _sort(self, entry: Entry, owner: Owner) -> None:
        """Note an entry for its owner, or why it has none here."""
        key, student = self._student(owner)
        if not student:
            name = owner.keys[-1] if owner.mark else owner.keys[0]
            self.unknown[name].append(
                f"{shown(entry.name)} {entry.fault}." if entry.fault else self._no_one(entry, owner)
            )
            return
        who = identity(student)
        self.ids.setdefault(who, student)
        self.marks[who].add(owner.mark or key)
        if entry.fault:
            self.said[who].append(f"{shown(entry.name)} {entry.fault}.")
        else:
            self.files[who].append((owner, entry))

    def _student(self, owner: Owner) -> tuple[str, str]:
        """The key that tells whose it is, and the id; both empty where it is nobody's."""
        for key in owner.keys:
            match = self.allowed.fullmatch(unicodedata.normalize("NFC", key))
            named = (match.groupdict().get("id") or match[0]) if match else ""
            student = self.roster.find(named) if self.roster and named else None
            found = student.id if student else "" if self.roster else named
            if found and not fault(found) and identity(found) != REPORT:
                return key, found
        return "", ""

    def _no_one(self, entry: Entry, owner: Owner) -> str:
        """Why a file is nobody's."""
        tried = " or ".join(shown(key) for key in owner.keys[:3])
        if self.roster:
            return f"{shown(entry.name)}: {tried} is not on the roster."
        return f"{shown(entry.name)}: {tried} is no id that the pattern {self.allowed.pattern} allows."

    def write(self) -> list[Collected]:
        """Write what is good and say of each student what became of it."""
        found = [self._write(who) for who in sorted(self.ids)]
        found += [
            Collected(student=shown(name), status="refused", sentences=tuple(said), known=False)
            for name, said in sorted(self.unknown.items())
        ]
        absent = [one.id for one in self.roster.students if identity(one.id) not in self.ids] if self.roster else []
        return found + [Collected(student=student, status="absent") for student in sorted(absent)]

    def _write(self, who: str) -> Collected:
        """One student's files."""
        student, said = self.ids[who], list(self.said[who])
        if len(self.marks[who]) > 1 and not self.roster:
            marks = ", ".join(shown(ascii(mark)) for mark in sorted(self.marks[who]))
            said.append(f"{marks} are one name here, and may be two people: none of it was collected.")
            return Collected(student=student, status="refused", sentences=tuple(said))
        files = nested.opened(self.files[who], nested.Room(MAX_STUDENT_BYTES), said)
        notebooks = [(owner, entry) for owner, entry in files if _NOTEBOOK.fullmatch(owner.file)]
        if not notebooks:
            others = ", ".join(shown(owner.file) for owner, _ in self.files[who][:5])
            said += [f"{student} handed in {others}, and no notebook."] if others else []
            return Collected(student=student, status="refused" if not others else "nothing", sentences=tuple(said))
        if len(notebooks) > MAX_FILES:
            said.append(f"{student} handed in {len(notebooks)} notebooks: the first {MAX_FILES} were looked at.")
        names = self._copy(self.out / student, notebooks[:MAX_FILES], said)
        status = "collected" if names else "refused"
        more = self._when(student, [owner for owner, _ in notebooks])
        return Collected(student=student, status=status, files=names, sentences=tuple(said), **more)

    def _when(self, student: str, owners: Sequence[Owner]) -> dict:
        """When a student handed in, the last time counting, and whether that was late."""
        known = self.roster.find(student) if self.roster else None
        told = handins.of_row(known.row) if known else handins.Handin()
        last = max((owner.handed_in for owner in owners if owner.handed_in), default=told.at)
        late = told.late or any(owner.late for owner in owners)
        return {"late": late, "handed_in": last.isoformat() if last else "", "late_s": told.late_s}

    def _copy(self, folder: Path, notebooks: Sequence[tuple[Owner, Entry]], said: list[str]) -> tuple[str, ...]:
        """Write notebooks into a student's folder, each under a name of its own; returns the names."""
        names: dict[str, str] = {}
        left_bytes = MAX_STUDENT_BYTES
        for owner, entry in notebooks:
            if min(left_bytes, self.left_bytes) <= 0:
                said.append(f"{shown(entry.name)} is beyond what is collected of one student, or of all.")
                continue
            try:
                data = entry.read(min(MAX_BYTES, left_bytes, self.left_bytes))
            except ValueError as fault_found:
                said.append(f"{shown(entry.name)} {fault_found}.")
                continue
            name = _unused(_file_name(owner.file), names)
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
            names[identity(name)] = name
            left_bytes, self.left_bytes = left_bytes - len(data), self.left_bytes - len(data)
        return tuple(names.values())


def _unused(name: str, taken: dict[str, str]) -> str:
    """The name, or with a number the first one that no file here has, on any system."""
    stem, number = name.removesuffix(".ipynb"), 2
    while identity(name) in taken:
        name, number = f"{stem}-{number}.ipynb", number + 1
    return name


def _table(entries: Sequence[Entry], depth: int) -> dict[str, Handed]:
    """Gradescope's table of who handed in what, where there is one that can be read."""
    for entry in entries:
        if entry.parts[depth:] == (layouts.METADATA,):
            with contextlib.suppress(ValueError):
                return layouts.gradescope(entry.read(MAX_BYTES).decode("utf-8", "replace"))
    return {}
