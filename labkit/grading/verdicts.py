"""The verdict on a boxed answer, reached outside: the reference, the inputs and the comparison never enter the box.

An exercise whose inputs are plain data is asked for one call at a time. One whose inputs are modules or functions, or
that is driven, has a slice of its checks run in the box, case by case, and only the results come out; what such a slice
says of *how* an answer came about was measured in the learner's own process, and is marked so: code that changes what
counts there is believed, though never on results, which are compared here, nor on time, which is taken here. So is it
asked there, and marked, whether an answer uses one that labkit has.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache

from labkit import checks
from labkit.borrowed import answers, its_own, not_yours
from labkit.describe import describe_error, parameters
from labkit.exercise import Exercise, Verdict
from labkit.grading import bars
from labkit.grading.asked import MOST_PRINTED, Answering, Asked
from labkit.grading.slices import Slice, sliced
from labkit.grading.wire import encode
from labkit.judge import generator_for, verdict

PUBLIC_SEED = 0  # that of `check` in class
AGAIN, ALONE = "to be timed again", "timed again, alone"
_LONGEST_NAME = 100  # of a function of labkit's
_LATER_S = 90.0  # the box keeps the time; were the judge's clock first, it would leave a call that nobody waits for
_STATUSES = {"passed": "ok", "failed": "wrong", "not attempted": "not-attempted"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One exercise of one student. message: what the student may read, no hidden input in it.

    status: ok, wrong, error, timeout, memory, died, output-limit, tampered, missing or not-attempted; of what could not
    be judged unreadable or ungraded. inside: whether some of it was measured in the learner's own process. line: of the
    learner's cell, where something was raised; 0 for none. printed: by the learner's own cell and by the calls of
    class, at most 2000 characters; of private calls nothing. code: the learner's lines around `line`, numbered, where
    they are known. near: of a bar that was missed by little, or met with the help of other processes: `to be timed
    again` or `timed again, alone`, for a person to look at.
    """

    exercise: str
    status: str
    points: int
    max_points: int
    seconds: float
    message: str
    inside: bool = False
    line: int = 0
    printed: str = ""
    code: str = ""
    near: str = ""


class Judging:
    """One exercise of one student on its way to a result: the cases of class, then those of the private seed.

    Those of class come first for all exercises of a session: what its process is asked there may be told to the learner
    in full, and by then it has not seen a hidden input of any exercise. After that its code can choose no more of what
    the learner reads than the status and one of a few sentences; the seconds, which it can choose too, are on no page
    of a learner's. cell: the name under which the session has run the learner's own cell, whose output is part of the
    result. beside: opens a session in which nothing of the learner's has run, for the baseline of a bar; None: bars are
    left out. alone: nothing else is being graded.
    """

    def __init__(
        self,
        session: Answering,
        exercise: Exercise,
        *,
        seed: int,
        time_limit_s: float = 30.0,
        cell: str = "",
        beside: Callable[[], AbstractContextManager] | None = None,
        alone: bool = False,
    ) -> None:
        self._session, self._exercise, self._seed, self._limit_s = session, exercise, seed, time_limit_s
        self._beside, self._alone = beside, alone
        self._seconds = 0.0
        self._outputs = [one.output for one in session.outcomes if one.name == cell]

    @property
    def _inside(self) -> bool:
        """Whether some of it is measured in the learner's own process."""
        return self._is_sliced or bool(self._answers)

    @property
    def _is_sliced(self) -> bool:
        """Whether a slice of the checks runs there."""
        return not _is_plain(self._exercise)

    @property
    def _answers(self) -> list[list[str]]:
        """Module and name of what labkit has, in the box too, that answers the exercise."""
        return [[each.__module__, each.__qualname__] for each in answers(self._exercise) if _is_boxed(each)]

    def public(self) -> Result | None:
        """The result, where the cases of class settle it; a case that fails is told in full."""
        with self._clock():
            fn, found, message = self._cases(PUBLIC_SEED)
            if found == "ok" and self._answers:
                found, message = self._own(fn)
        self._outputs.append(fn.printed)
        message += f"\nprinted  {fn.said}" if fn.said else ""
        return None if found == "ok" else self._result(found, message, line=fn.line)

    def private(self) -> Result:
        """The result, where those are right; of other cases it is only told that there is one that fails."""
        with self._clock():
            _, status, message = self._cases(self._seed)
            if status != "ok":
                return self._result(status, "right on the cases of class, and not on others of the same kind")
            if not self._exercise.timing or not self._beside:
                return self._result("ok", message)
            with self._beside() as other:
                bar = bars.timed(self._session, other, self._exercise, seed=self._seed, alone=self._alone)
        if bar.status == "ok":
            return self._result("ok", f"{message}, within its bar", near=bar.near)
        return self._result(bar.status, f"right results, but short of the bar\ntimed  {bar.cause}", near=bar.near)

    def _cases(self, seed: int) -> tuple[Asked, str, str]:
        """The function as it was asked, the status that the cases of a seed give it, and what the judge says."""
        fn = Asked(self._session, self._exercise, self._limit_s)
        part = sliced(self._exercise) if self._is_sliced else None
        try:
            fn.look()
            if part and fn.callable:
                fn.ask({"do": "load", "modules": part.modules})
        except Exception as error:  # of the box, or of a name that only the learner's code knows
            return fn, fn.ended or "error", describe_error(error)
        if not fn.callable:
            what = "is not defined" if fn.kind == "None" else f"is {fn.kind}"
            return fn, "missing", f"{self._exercise.name} {what}."
        found = _verdict(fn, self._exercise, part, seed, self._limit_s)
        status = _STATUSES[found.status]
        return fn, fn.ended if status == "wrong" and fn.ended else status, found.message

    def _own(self, fn: Asked) -> tuple[str, str]:
        """Status and message by whether a right answer is the learner's own."""
        try:
            told = fn.ask({"do": "borrowed", "answers": self._answers})
        except Exception as error:
            return fn.ended or "error", describe_error(error)
        if told.get("ours") is True:
            return "wrong", its_own(self._exercise.name)
        used = str(told.get("used", ""))[:_LONGEST_NAME]
        return ("wrong", not_yours(used)) if used else ("ok", "")

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """A block whose seconds count."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began_s

    def _result(self, status: str, message: str, *, line: int = 0, near: bool = False) -> Result:
        """The result with this status."""
        printed = b"".join(self._outputs)[: 4 * MOST_PRINTED].decode(errors="replace")[:MOST_PRINTED]
        return Result(
            exercise=self._exercise.number,
            status=status,
            points=self._exercise.points if status == "ok" else 0,
            max_points=self._exercise.points,
            seconds=round(self._seconds, 3),
            message=message,
            inside=self._inside,
            line=line if status in ("error", "memory") else 0,
            printed=printed,
            near="" if not near else ALONE if self._alone else AGAIN,
        )


def _verdict(fn: Asked, exercise: Exercise, part: Slice | None, seed: int, time_limit_s: float) -> Verdict:
    """The judge's verdict on a boxed function; bars are left out, for their clock would be the learner's."""
    generator = generator_for(exercise, seed)
    asked = replace(exercise, bar=None)
    if part:
        asked = _driven_inside(fn, asked, {"home": part.home, "seed": generator.initial_seed()})
    return verdict(fn, asked, generator=generator, time_limit_s=time_limit_s + _LATER_S)


def _is_boxed(fn: Callable) -> bool:
    """Whether a function is one of labkit's that are in the box, as its checks are not."""
    return fn.__module__.startswith("labkit.") and not fn.__module__.startswith(checks.__name__)


@cache
def _is_plain(exercise: Exercise) -> bool:
    """Whether all that an exercise hands in and looks at can cross the wire."""
    if exercise.drive or exercise.mechanism:
        return False
    cases = exercise.cases(generator_for(exercise, PUBLIC_SEED))
    return not any(b'"odd"' in encode(list(case)) for case in cases)


def _driven_inside(fn: Asked, exercise: Exercise, home: dict) -> Exercise:
    """The exercise with its drive and mechanism run in the box for the boxed function; for others, here as before."""
    index = iter(range(10**6))

    def drive(asked: Callable, *case: object) -> object:
        if asked is not fn:
            return exercise.run(asked, case)
        reply = fn.ask({"do": "drive", "index": next(index), "driven": exercise.drive is not None, **home})
        told = reply.get("changed", [])
        changed = [name for i, name in enumerate(exercise.names()) if i in told and name not in exercise.may_change]
        if changed and not exercise.drive:
            raise type("InputChanged", (Exception,), {})(f"An operation in place: {changed[0]} is no longer as it was.")
        return reply.get("value")

    def mechanism(asked: Callable) -> str | None:
        said = asked.ask({"do": "mechanism", **home}).get("value")
        return said if said is None else str(said)[:500]

    names = ["fn", *(exercise.names() or parameters(exercise.reference))]
    drive.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names])
    return replace(exercise, drive=drive, mechanism=mechanism if exercise.mechanism else None)
