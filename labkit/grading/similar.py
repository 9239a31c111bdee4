"""Who wrote alike: pairs of students whose own code shares more than the lesson and its solution give to everybody.

A review aid and no evidence: people learn together, and a task may leave few ways. What counts is the learner's own
code, as shingles of tokens, without those of the notebook that was given out and of the course's own answers. A shingle
that many have counts little. Two are a pair only where some cell shares so much that they cannot both have found the
shortest answer: that is held against the length of the course's own.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy

from labkit import build
from labkit.course import Lesson
from labkit.grading import console, submission
from labkit.grading.release import Release
from labkit.grading.shingles import Shingle, shingles

LEAST_SHARED = 45  # shingles of a cell, some 56 tokens in a row: of shorter pieces there are only so many
MOST_NEEDED = 80  # of an exercise with a long answer
_PART = 0.75  # of the course's own answer, which is short: whoever finds a shorter one may well not be alone
LEAST_OVERLAP = 0.25
_WHOLE = 0.9  # of a cell's shingles
_AT_A_TIME = 4_096


@dataclass(frozen=True)
class Part:
    """A cell of a student's own; exercise: its number, empty for what stands beside the answers.

    least: from how many shared shingles on it is striking that another has them too.
    """

    exercise: str
    source: str
    own: tuple[Shingle, ...]
    least: int


@dataclass(frozen=True)
class Work:
    """All that a student wrote."""

    student: str
    parts: tuple[Part, ...]

    @property
    def own(self) -> set[bytes]:
        """The hashes of its shingles."""
        return {one.sha for part in self.parts for one in part.own}


@dataclass(frozen=True)
class Pair:
    """Two students; overlap: the part of the shorter one's own code that is in the other's too, from 0 to 1.

    shared: the hashes that both have; weight: how many they are, those that many have counting less.
    """

    one: Work
    other: Work
    overlap: float
    weight: float
    shared: frozenset[bytes]


def works(folder: Path, release: Release, lesson: Lesson) -> list[Work]:
    """What each student of a folder wrote, by name. CourseError: there is no such folder."""
    given = build.convert(lesson)
    common = {one.sha for cell in given for text in (cell.student, cell.solution) for one in shingles(text)}
    least = {number: _least(number, given) for number in release.exercises}
    read = (submission.read_folder(each, release) for each in console.students(folder))
    return [Work(one.student, tuple(_parts(one, common, least))) for one in read]


def _least(number: str, given: Sequence[build.Converted]) -> int:
    """From how many shared shingles on an answer to an exercise is striking, by the length of the course's own."""
    stub = f'raise NotImplementedError("exercise {number}")'
    longest = max((len(shingles(cell.solution)) for cell in given if stub in cell.student), default=0)
    return min(max(LEAST_SHARED, round(_PART * longest)), MOST_NEEDED)


def _parts(read: submission.Submission, common: set[bytes], least: Mapping[str, int]) -> Iterable[Part]:
    """The cells of a notebook that the learner wrote."""
    seen = set()
    for cell in read.cells:
        answers = cell.kind == "exercise" and cell.exercise not in read.untouched
        if cell.index not in seen and (answers or cell.kind in ("added", "changed")):
            seen.add(cell.index)
            own = tuple(one for one in shingles(cell.source) if one.sha not in common)
            yield Part(cell.exercise or "", cell.source, own, least.get(cell.exercise or "", LEAST_SHARED))


def pairs(found: Sequence[Work]) -> list[Pair]:
    """Pairs that share a good deal, the largest overlap first."""
    weights = _weights(found)
    totals = [sum(weights[sha] for sha in one.own) for one in found]
    shared = _shared(found)
    half = _weight(max(2, len(found) // 2), len(found))
    made = []
    for a, b in combinations(range(len(found)), 2):
        if shared[a, b] > LEAST_SHARED and (
            pair := _pair(found[a], found[b], weights, (totals[a], totals[b]), half)
        ):
            made.append(pair)
    return sorted(made, key=lambda pair: (-round(pair.overlap, 6), -pair.weight, pair.one.student, pair.other.student))


def _weights(found: Sequence[Work]) -> dict[bytes, float]:
    """What each shingle counts: 1 for one that two have, less the more have it, little for one that all have."""
    have = Counter(sha for one in found for sha in one.own)
    return {sha: _weight(count, len(found)) for sha, count in have.items()}


def _weight(count: int, n_students: int) -> float:
    """What a shingle counts that so many students have."""
    n = max(n_students, 2)
    return min(1.0, math.log2(2 * n / count) / math.log2(n))


def _shared(found: Sequence[Work]) -> numpy.ndarray:
    """How many shingles each two share, as a matrix over students."""
    have = Counter(sha for one in found for sha in one.own)
    columns = {sha: number for number, sha in enumerate(sha for sha, count in have.items() if count > 1)}
    total = numpy.zeros((len(found), len(found)), dtype=numpy.float32)
    mine = [numpy.array([columns[sha] for sha in one.own if sha in columns], dtype=int) for one in found]
    for start in range(0, len(columns), _AT_A_TIME):
        there = numpy.zeros((len(found), min(_AT_A_TIME, len(columns) - start)), dtype=numpy.float32)
        for row, numbers in enumerate(mine):
            there[row, numbers[(numbers >= start) & (numbers < start + _AT_A_TIME)] - start] = 1
        total += there @ there.T
    return total


def _pair(
    one: Work, other: Work, weights: dict[bytes, float], totals: tuple[float, float], least: float
) -> Pair | None:
    """What two share; None where that is much in no cell of theirs, or little of what they have."""
    shared = one.own & other.own
    weight = sum(weights[sha] for sha in shared)
    overlap = weight / min(totals)
    striking = all(_is_much(each, shared, weights, least) for each in (one, other))
    return Pair(one, other, overlap, weight, frozenset(shared)) if striking and overlap >= LEAST_OVERLAP else None


def _is_much(one: Work, shared: set[bytes], weights: dict[bytes, float], least: float) -> bool:
    """Whether some cell of a student has more of what is shared than a short answer could.

    Where nearly the whole cell is shared, and no more than half of the class have it, it counts in full: what a group
    hands round is no less striking for the group's size. What most have may have stood on a board.
    """
    for part in one.parts:
        own = {each.sha for each in part.own}
        both = own & shared
        group = sum(weights[sha] >= least for sha in both)
        if sum(weights[sha] for sha in both) > part.least or group > max(part.least, _WHOLE * len(own)):
            return True
    return False
