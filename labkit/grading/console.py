"""What `labkit grade` says: what is wrong with the places it was given, how far it is, and what came of it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tqdm import tqdm

from labkit.course import CourseError
from labkit.grading import lateness, review, submission, tables

STOPPED = "Stopped. Whoever is graded stays so: say it again, and it goes on with the others."
_FORM = "{n_fmt} of {total_fmt} students |{bar}| {per_minute} a minute, {left} left"


class Bar(tqdm):
    """A bar with students per minute and the time that is left; nothing is drawn but on a terminal.

    What is kept from an earlier run took no time, so it counts for the bar and not for the speed; nor does the time
    until the first student is done, most of which is the sandbox's start.
    """

    def __init__(self, total: int, **more: object) -> None:
        self.kept: int | None = None
        self._since = (0, 0.0)  # how many were done, and after how many seconds, when the first new one was
        super().__init__(**{"total": total, "disable": None, "bar_format": _FORM, "leave": False} | more)

    def more(self, n: int) -> None:
        """So many more are done; the first call tells of those that were kept."""
        if self.kept is None:
            self.kept = n
        elif not self._since[0]:
            self._since = (self.n + n, self.format_dict["elapsed"])
        self.update(n)

    @property
    def format_dict(self) -> dict:
        """What the bar's text is made of."""
        told = super().format_dict
        new, minutes = told["n"] - self._since[0], (told["elapsed"] - self._since[1]) / 60
        per_minute = new / minutes if self._since[0] and new > 0 and minutes > 0 else 0.0
        left = self.format_interval(60 * (told["total"] - told["n"]) / per_minute) if per_minute else "?"
        return told | {"per_minute": f"{per_minute:.0f}" if per_minute else "?", "left": left}


def students(folder: Path) -> list[Path]:
    """The students' folders, by name; what systems and editors put beside them is left out.

    CourseError: there is no such folder, or none for a student in it.
    """
    if not folder.is_dir():
        raise CourseError(f"{folder} is no folder of submissions.")
    names = sorted(each for each in folder.iterdir() if not each.name.startswith(".") and each.name != "__MACOSX")
    found = [each for each in names if each.is_dir() and not each.is_symlink()]
    if not found:
        there = "notebooks and no" if any(each.suffix == ".ipynb" for each in names) else "no"
        raise CourseError(f"{folder} holds {there} folder of a student: labkit collect {folder} --out DIR makes them.")
    return found


def refuse(folder: Path, out: Path, lesson: str) -> None:
    """CourseError: results of a lesson cannot go to `out`."""
    if out.exists() and not out.is_dir():
        raise CourseError(f"{out} is a file: give --out a folder.")
    if folder.resolve() in (out.resolve(), *out.resolve().parents):
        raise CourseError(f"{out} lies in {folder}, where it would be taken for a student: give --out another folder.")
    path = out / "run.json"
    there = json.loads(path.read_text(encoding="utf-8")).get("lesson") if path.is_file() else None
    if there and there != lesson:
        raise CourseError(f"{out} holds the grades of {there}: give --out another folder.")


def ending(rows: Sequence[Mapping], out: Path, kept: int) -> list[str]:
    """What came of it, a line each; kept: how many students were graded before."""
    counted = Counter(row["status"] for row in rows)
    found = tables.adjusted(out)
    totals = tables.totals(found)
    points, most = [one.points for one in totals.values()], max(one.max_points for one in totals.values())
    said = ", ".join(f"{counted[status]} {status}" for status in sorted(counted))
    lines = [f"{len(totals)} students, {len(rows)} exercises of theirs: {said}"]
    lines += [f"{kept} of them as they were graded before."] if kept else []
    lines.append(f"Points: median {median(points):g}, highest {max(points):g} of {most:g}.")
    lines += lateness.summary(out, set(totals))
    if eye := review.points(found, review.notes(out)):
        lines += ["For you to look at:", *(f"  {line}" for line in review.summary(eye))]
    lines.append(f"wrote {out}/grades.csv, {out}/class.html and a page for each student in {out}/feedback/")
    return lines


def strangers(rows: Sequence[Mapping], out: Path, lesson: str) -> str:
    """A sentence where notebooks were handed in and none holds a cell of the lesson; else nothing."""
    begins, looks = submission.STRANGE.format(lesson), submission.LOOKS_LIKE
    strange = {who: said for who, notes in review.notes(out).items() for said in notes if said.startswith(begins)}
    came = {row["student"] for row in rows if row["status"] != "unreadable" and row["message"] != submission.NOTHING}
    if not strange or came - strange.keys():
        return ""
    named = Counter(said.partition(looks)[2].rstrip(".") for said in strange.values() if looks in said)
    found = [f"{n} look{'s' * (n == 1)} like {name}" for name, n in named.most_common(3)]
    said = f"No notebook that was handed in holds a cell of {lesson}{': ' * bool(found)}{', '.join(found)}."
    return f"{said} Were other notebooks meant, or another lesson?"
