"""Bars on speed, timed from outside: an answer in turns with a baseline that does the same work in another process.

The clocks are the grader's: the wall's from a request to its reply, or what the kernel says of the processor. Every run
has inputs of its own, sent with the request that is timed, and its result is held against the baseline's: to remember,
to guess or to do nothing gains nothing. While the baseline runs, all that the learner has started stands still.

What is said of an answer is one of a few sentences: it has seen hidden inputs by now, so neither an error's text nor a
number that it has a part in may reach who has written it. Which sentence, and which status, it can still choose.

What is left: on a machine with too much to do a ratio says less, and processes that keep waking up can get an answer
more than its share; one that has such helpers is timed again alone, and a person is told. The answer can also do the
work in another way than asked for, which is the mechanism's business, and that is looked at in the learner's process.
"""

import hashlib
import math
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from labkit.exercise import Exercise
from labkit.grading import watch
from labkit.grading.asked import Answering, Asked
from labkit.grading.slices import BASELINE, TIMED, sliced

# Of what the bar asks for beyond the baseline's speed: short of it by less than this may be the machine's doing, and is
# timed again; from this on no more rounds are needed.
_NEAR, _SURE = 0.4, 1.25
_LIMIT_S = 120.0  # of either side, for all its rounds
_ENOUGH_S = 60.0  # after so long, no more rounds
_ENDED = "It was right on its cases, and gave nothing in the longer run that is timed."
OTHER = "In the run that is timed it did other work than the baseline, or gave what cannot be compared."
_ROUNDS, _ROUNDS_ALONE = (2, 2, 4), (4, 4, 8, 8)


@runtime_checkable
class Timeable(Answering, Protocol):
    """What can be timed: a `labkit.grading.session.Session`."""

    def held(self) -> AbstractContextManager:
        """A block in which nothing of it runs."""

    def pids(self) -> list[int]:
        """Its processes."""

    def helpers(self) -> list[int]:
        """Those that the learner's code has started."""


@dataclass(frozen=True)
class Timed:
    """status: ok, wrong, or how the answer ended its run. cause: what is wrong, "" within the bar; a fixed sentence.

    ratio: how many times as fast as the baseline the answer is. near: whether a machine with less to do might say
    otherwise, as it is short of the bar by little, or has processes that help it.
    """

    status: str
    ratio: float
    cause: str = ""
    near: bool = False


class _Side:
    """The answer or the baseline, each in its own session."""

    def __init__(self, session: Timeable, exercise: Exercise, baseline: bool) -> None:
        self.asked = Asked(session, exercise, _LIMIT_S)
        self._session, self._timing, self._baseline = session, exercise.timing, baseline
        part = sliced(exercise, TIMED + BASELINE if baseline else TIMED)
        self._home = part.home
        self.asked.ask({"do": "load", "modules": part.modules})

    def do(self, part: str, *given: object) -> tuple[object, float]:
        """What a part of the measurement gives, and the seconds that it took."""
        request = {"do": "time", "home": self._home, "part": part, "given": list(given), "baseline": self._baseline}
        before_s = watch.cpu_s(self._session.pids()) if self._timing.cpu else 0.0
        value = self.asked.ask(request).get("value")
        after_s = watch.cpu_s(self._session.pids()) if self._timing.cpu else self.asked.seconds
        return value, after_s - before_s

    def run(self, ready: int, seed: int) -> tuple[object, float]:
        """One round with the inputs of a seed, after those of another: what came of it, and its seconds."""
        if self._timing.ready:
            self.do("READY", *self._timing.inputs(ready))
        return self.do("RUN", *self._timing.inputs(seed))


class _Race:
    """Both sides, and the quickest round of each in seconds; cause: why a run was none."""

    def __init__(self, mine: Timeable, other: Timeable, exercise: Exercise) -> None:
        self._mine, self.timing = mine, exercise.timing
        self.answer, self.baseline = _Side(mine, exercise, False), _Side(other, exercise, True)
        self._answers_s = self._baselines_s = math.inf
        self.cause = None

    @property
    def ratio(self) -> float:
        """How many times as fast as the baseline the answer is."""
        return self._baselines_s / max(self._answers_s, 1e-9) if self._answers_s < math.inf else 0.0

    def round(self, ready: int, seed: int) -> None:
        """The baseline once, then the answer, with the same inputs."""
        with self._mine.held():
            expected, seconds = self._finished(*self.baseline.run(ready, seed))
        self._baselines_s = min(self._baselines_s, seconds)
        value, seconds = self.answer.run(ready, seed)
        try:  # whatever a learner's process has sent must not stop the grader
            got, seconds = self._finished(value, seconds)
            cause = self.timing.fault(got, expected)
            self.cause = cause if cause is None or cause in self.timing.says else OTHER
        except Exception:
            self.cause = OTHER
        self._answers_s = min(self._answers_s, seconds)

    def _finished(self, value: object, seconds: float) -> tuple[object, float]:
        """What comes of a run's result, which is the baseline's process to find out; the seconds of both together."""
        if not self.timing.then:
            return value, seconds
        value, more_s = self.baseline.do("THEN", value)
        return value, seconds + more_s


def _drawn(exercise: Exercise, seed: int, name: str) -> int:
    """The seed of one run, which none that is sent to a learner's process gives away. 31 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{exercise.number}:{name}".encode()).digest()[:4], "big") >> 1


def timed(mine: Timeable, other: Timeable, exercise: Exercise, *, seed: int, alone: bool = False) -> Timed:
    """How an answer stands to its bar; other: a session in which nothing of the learner's has run.

    The quickest round of each counts, for what other programs take from a run only ever adds to it; where the two come
    close to the bar, there are more rounds, and more still where nothing else is graded (alone).
    """
    race, number, began_s = _Race(mine, other, exercise), 0, time.monotonic()
    asked = race.timing.asked
    near, sure = (1 + share * (asked - 1) for share in (_NEAR, _SURE))
    for n_rounds in _ROUNDS_ALONE if alone else _ROUNDS:
        for _ in range(n_rounds):
            number += 1
            try:
                race.round(*(_drawn(exercise, seed, f"{kind} {number}") for kind in ("ready", "run")))
            except Exception:
                if not (status := race.answer.asked.ended):
                    raise  # the baseline's fault, which is the grader's
                return Timed(status, race.ratio, _ENDED)
            if race.cause:
                return Timed("wrong", race.ratio, race.cause)
        late = time.monotonic() - began_s > _ENOUGH_S
        if late or not near < race.ratio < sure:
            break
    if race.ratio >= asked:
        return Timed("ok", race.ratio, near=bool(mine.helpers()))
    return Timed("wrong", race.ratio, race.timing.slow, near=race.ratio > near)
