"""A folder of submissions, graded: each student's answers run in a box, are judged outside, and are kept as they come.

What was found for a student is written at once under a name that says what it depends on: the notebook, the release,
labkit's own code and the seed. So a grader that is killed goes on where it stopped, and a second run on unchanged
submissions is answered from what is there. Tables and pages are made at the end, in the order of students.
"""

import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import labkit
from labkit import build, checks, hardware
from labkit.course import CourseError
from labkit.describe import describe_error
from labkit.exercise import Exercise
from labkit.grading import console, handins, kept, lateness, release, review, submission, tables, verdicts
from labkit.grading import jobs as side_by_side
from labkit.grading.box import Limits, Refused
from labkit.grading.cells import needed
from labkit.grading.lateness import Applied
from labkit.grading.release import Release
from labkit.grading.roster import identity
from labkit.grading.slices import sliced
from labkit.grading.submission import Cell, Submission
from labkit.grading.verdicts import Judging, Result

_KEPT = "kept"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What every verdict of a run depends on, beside the notebook; trusted: without a sandbox.

    alone: it is the only one that is being graded, so that a bar may be timed for longer.
    """

    release: Release
    seed: int
    trusted: bool = False
    limits: Limits = Limits()
    alone: bool = False

    @property
    def exercises(self) -> list[Exercise]:
        """The lesson's exercises, in its order. CourseError: there are none, or this labkit has no check of one."""
        known = {one.number: one for one in checks.exercises()}
        if not self.release.exercises:
            raise CourseError(f"{self.release.lesson} has no exercises: there is nothing to grade.")
        if unknown := ", ".join(number for number in self.release.exercises if number not in known):
            raise CourseError(f"This labkit has no check of exercise {unknown}; released by {self.release.version}.")
        return [known[number] for number in self.release.exercises]

    @property
    def title(self) -> str:
        """What was handed in, for pages."""
        return f"Lesson {self.release.lesson}"

    def told(self) -> dict:
        """What verdicts depend on, for run.json."""
        told = {"lesson": self.release.lesson, "release": self.release.sha256, "signed": self.release.signed}
        return told | {"seed": self.seed}

    def judge(self, folder: Path, box: Any) -> dict:
        """One student's results, a dictionary each, and what was noted of the notebook."""
        read = submission.read_folder(folder, self.release)
        try:
            found = results(read, self, box)
        except (OSError, Refused):  # there is no sandbox any more
            raise
        except Exception as error:  # a fault of ours must cost neither the batch nor the student
            told = f"The grader failed: {describe_error(error)}"
            found = [unrun(one, "ungraded", told) for one in self.exercises]
        return {"results": [asdict(one) for one in found], "notes": list(read.notes)}

    def nothing(self) -> list[dict]:
        """The results of a student who handed in nothing."""
        return [asdict(unrun(one, "missing", submission.NOTHING)) for one in self.exercises]


@runtime_checkable
class Graded(Protocol):
    """What can be graded: a lesson of the course, or an instructor's notebook; all of it as in Batch."""

    limits: Limits
    trusted: bool
    title: str

    def told(self) -> dict:
        """What verdicts depend on."""

    def judge(self, folder: Path, box: Any) -> dict:
        """One student's results and notes."""

    def nothing(self) -> list[dict]:
        """The results of who handed in nothing."""


def private_seed(made: Release) -> int:
    """The seed of a release that only this instructor's key gives: the same each time, and nobody else's to guess."""
    found = hmac.new(release.key(), f"seed of {made.sha256}".encode(), hashlib.sha256).digest()
    return int.from_bytes(found[:6], "big")


def grade(
    folder: Path,
    batch: Graded,
    out: Path,
    *,
    jobs: int = 1,
    students: Sequence[str] = (),
    regrade: bool = False,
    policy: Applied | None = None,
    progress: Callable[[int], object] = lambda _n: None,
) -> list[dict]:
    """The results of every student, by student and exercise; under out the tables, run.json, and pages to read.

    folder: one folder a student. students: those on a roster; who handed in nothing has nothing but `missing`.
    regrade: what is kept is not believed, as is never done where a fault of the grader is in it; points set by hand
    stay. policy: what is taken off for lateness; None leaves that as it was when this was graded before.
    progress: called with how many more students are done, first with those that were kept.
    CourseError: there is no such folder, or the system has ended a job.
    """
    folders, told = console.students(folder), handins.without_notebook(folder)
    everybody = {identity(each): each for each in (*students, *told)}
    place = out / _KEPT
    place.mkdir(parents=True, exist_ok=True)
    work = {each: kept.path(each, batch, place) for each in folders}
    ours = [each for each, file in work.items() if regrade or not kept.stands(file)]
    progress(len(folders) - len(ours))
    for each, found in side_by_side.graded(ours, batch, min(jobs, len(ours))):
        kept.write(work[each], found, kept.path(each, batch, place) == work[each])
        progress(1)
    near = [each for each, file in work.items() if _is_near(kept.read(file))]
    for each, found in side_by_side.graded(near, replace(batch, alone=True) if near else batch, min(1, len(near))):
        kept.write(work[each], found, kept.path(each, batch, place) == work[each])
    done = {kept.name(each): kept.read(file) for each, file in work.items()}
    rows = [{"student": name, **row} for name, found in done.items() for row in found["results"]]
    there, listed = ({identity(each) for each in names} for names in (done, students))
    rows += _without(batch, {one: each for one, each in everybody.items() if one not in there}.values(), told)
    build.write(out / "run.json", _run(folder, batch))
    if policy:
        build.write(out / lateness.FILE, lateness.keep(policy))
    stranger = ["Nobody of this name is on the roster."] if students else []
    review.keep(out, {each: done[each]["notes"] + (stranger if identity(each) not in listed else []) for each in done})
    tables.write(rows, batch.title, out)
    return rows


def _without(batch: Graded, students: Iterable[str], told: Mapping[str, str]) -> list[dict]:
    """The rows of students who have no folder; told: what collecting said of what they handed in instead."""
    rows = []
    for name in sorted(students):
        said = {"status": "unreadable", "message": told[name]} if told.get(name) else {}
        rows += [{"student": name, **row, **said} for row in batch.nothing()]
    return rows


def _is_near(found: dict) -> bool:
    """Whether a bar was met or missed in such a way that it is timed again, once the others are done."""
    return any(row.get("near") == verdicts.AGAIN for row in found["results"])


def results(read: Submission, batch: Batch, box: Any) -> list[Result]:
    """One student's results, in the lesson's order; box: a Box, or what runs cells as one does.

    A crash, a hang or a kill costs the exercise in whose cell or call it happened; the others are run anew without it.
    """
    student = _Student(read, batch, box)
    while student.left():
        student.session()
    return [student.found[one.number] for one in batch.exercises]


def unrun(exercise: Exercise, status: str, message: str) -> Result:
    """The result of an exercise of which nothing was run."""
    both = {"exercise": exercise.number, "max_points": exercise.points}
    return Result(status=status, points=0, seconds=0.0, message=message, **both)


def _in_ranks(exercises: Sequence[Exercise]) -> bool:
    """Whether the checks of these themselves start ranks, for which a box can have a process ready."""
    with contextlib.suppress(ValueError):  # one that cannot be sliced is not run either
        return any("run_ranks" in source for one in exercises for source in sliced(one).modules.values())
    return True


class _Student:
    """One student's results so far, and the cells that cannot be run with the rest."""

    def __init__(self, read: Submission, batch: Batch, box: Any) -> None:
        self._read, self._batch, self._box = read, batch, box
        self._dropped: set[int] = set()
        self.found: dict[str, Result] = {}
        for one in batch.exercises:
            if read.status != "ok":
                self.found[one.number] = unrun(one, "unreadable", read.why)
            elif one.number in read.missing:
                self.found[one.number] = unrun(one, "missing", read.other or f"No cell defines {one.name}.")
            elif one.number in read.untouched:
                self.found[one.number] = unrun(one, "not-attempted", "The cell is as it was given out.")

    def left(self) -> list[Exercise]:
        """The exercises without a result."""
        return [one for one in self._batch.exercises if one.number not in self.found]

    def session(self) -> None:
        """Run the cells that are needed; judge exercise after exercise, or up to the one that ends the session.

        Whatever may be told to the learner comes first: no exercise has seen a hidden input by then.
        """
        left = self.left()
        wanted = [c for c in needed(self._read, [one.number for one in left]) if c.index not in self._dropped]
        cells = [(f"cell {cell.index}", cell.source) for cell in wanted]
        ranks = _in_ranks(left)
        with self._box.run(cells, ranks=ranks or None) as session:
            if session.over:
                self._drop(wanted[max(len(session.outcomes), 1) - 1], session)
                return
            judging = {one.number: self._judging(one, session) for one in left}
            n_helpers = len(session.helpers()) + ranks  # whose tracker of resources stays
            for phase in (Judging.public, Judging.private):
                for one in self.left():
                    if result := self._judged(one, session, partial(phase, judging[one.number])):
                        self.found[one.number] = result
                    failed = result is not None and result.status != "ok"
                    if session.over or failed and len(session.helpers()) > n_helpers:  # it may keep the machine busy
                        return

    def _drop(self, cell: Cell, session: Any) -> None:
        """Leave out a cell that ended its session; it costs the exercises that it answers."""
        self._dropped.add(cell.index)
        told = "The cell ended the process that ran it"
        for last in session.outcomes[-1:]:
            told += f": {last.error.message}" if last.error else ""
            told += f".\nprinted  {last.said}" if last.said else "."
        for one in self.left():
            if self._index(one) == cell.index:
                self.found[one.number] = unrun(one, session.over, told)

    def _index(self, one: Exercise) -> int | None:
        """The index of the cell that answers an exercise; one cell may answer two."""
        cell = self._read.answer(one.number)
        return cell.index if cell else None

    def _judging(self, one: Exercise, session: Any) -> Judging:
        """What will judge an exercise."""
        asked = {"seed": self._batch.seed, "time_limit_s": self._batch.limits.calls_s}
        asked |= {"cell": f"cell {self._index(one)}", "alone": self._batch.alone}
        return Judging(session, one, **asked, beside=partial(self._box.run, []))

    def _judged(self, one: Exercise, session: Any, judge: Callable[[], Result | None]) -> Result | None:
        """The verdict, if there is one; where the name is missing because its cell failed, that is the message."""
        try:
            result = judge()
        except Exception as error:  # a fault of ours must not cost the batch, nor pass for the student's
            return unrun(one, "ungraded", f"The grader failed: {describe_error(error)}")
        cell = self._read.answer(one.number)
        failed = [each for each in session.outcomes if each.name == f"cell {cell.index}" and each.error]
        if result is None:
            return None
        if result.status != "missing" or not failed:
            known = result.line and _line(cell.source, result.line) in result.message
            return replace(result, code=_around(cell.source, result.line)) if known else result
        error = failed[0].error
        said = re.sub(r" \(<ipython-input-[^)]*\)$", "", error.message[:300])
        told = f"The cell raised {error.type}: {said} (line {error.line})"
        return replace(result, status="error", message=told, line=error.line, code=_around(cell.source, error.line))


def _line(source: str, number: int) -> str:
    """The beginning of a line of a cell, which a message may have cut; empty where there is no such line."""
    return "".join(source.split("\n")[number - 1 : number]).strip()[:80]


def _around(source: str, number: int) -> str:
    """A line of a cell with its number, marked, and two lines before and one after it."""
    lines = list(enumerate(source.split("\n"), 1))[max(number - 3, 0) : number + 1]
    return "\n".join(f"{'>' if at == number else ' '}{at:4}  {line[:160]}" for at, line in lines) if number else ""


def _run(folder: Path, batch: Graded) -> str:
    """run.json: what the verdicts of a run depend on."""
    told = {"submissions": str(folder.absolute()), "title": batch.title}
    told |= batch.told() | {"labkit": labkit.__version__, "sandbox": not batch.trusted}
    return json.dumps(told | {"hardware": hardware.machine().name}, indent=1) + "\n"
