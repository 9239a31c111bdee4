"""The verdict on a boxed answer, reached outside: the reference, the inputs and the comparison never enter the box.

An exercise whose inputs are plain data is asked for one call at a time. One whose inputs are modules or functions, or
that is driven, has a slice of its checks run in the box, case by case, and only the results come out; what such a slice
says of *how* an answer came about was measured in the learner's own process, and is marked so.
"""

import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from labkit.describe import describe_error, parameters
from labkit.grading.slices import Slice, sliced
from labkit.grading.wire import WireError, decode, encode
from labkit.judge import Exercise, Verdict, generator_for, verdict

PUBLIC_SEED = 0  # that of `check` in class
_LATER_S = 90.0  # the box keeps the time; were the judge's clock first, it would leave a call that nobody waits for
_MOST_PRINTED = 2000  # characters, of at most four bytes each
_STORY = "Traceback (most recent call last):"
_STATUSES = {"passed": "ok", "failed": "wrong", "not attempted": "not-attempted"}


@runtime_checkable
class Answering(Protocol):
    """What answers calls of a learner's functions: a `labkit.grading.session.Session`."""

    outcomes: list

    def call(self, name: str, payload: bytes, timeout_s: float) -> object:
        """An answer with a status, an output and, where the status is ok, a payload."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One exercise of one student. message: what the student may read, no hidden input in it.

    status: ok, wrong, error, timeout, memory, died, output-limit, missing or not-attempted. inside: whether some of it
    was measured in the learner's own process. line: of the learner's cell, where something was raised; 0 for none.
    printed: by the learner's own cell and by the calls of class, at most 2000 characters; of private calls nothing.
    code: the learner's lines around `line`, numbered, where they are known.
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


class BoxError(Exception):
    """The box ended or refused a call; its text is for the student."""


class _Asked:
    """A function in the box, as one that can be called here.

    ended: the status that a call of it ended with, where that was not ok; line: of the learner's, where that raised.
    printed: the output of all calls.
    """

    def __init__(self, session: Answering, exercise: Exercise, time_limit_s: float) -> None:
        self.__name__ = exercise.name
        self._session, self._name, self._left_s = session, exercise.name, time_limit_s
        self.ended, self.line, self.printed = "", 0, bytearray()
        self.kind, self.callable = "", False

    def look(self) -> None:
        """Find out what the name stands for. Raises as `ask` does."""
        look = self.ask({"do": "look"})
        self.kind, self.callable = str(look.get("kind")), look.get("callable") is True
        if isinstance(listed := look.get("parameters"), list):
            self.__signature__ = _signature(listed)

    def ask(self, request: dict) -> dict:
        """The reply to a request. Raises what the learner's code raised, under its name, or BoxError."""
        began_s = time.monotonic()
        found = self._session.call(self._name, encode(request), max(self._left_s, 0.1))
        self._left_s -= time.monotonic() - began_s
        self.printed += found.output[: 4 * _MOST_PRINTED - len(self.printed)]
        if found.status != "ok":
            self.ended = found.status
            raise BoxError(f"The box ended with: {found.status}.")
        try:
            reply = decode(found.payload)
            if not isinstance(reply, dict):
                raise WireError("The answer is none.")
        except WireError as error:
            self.ended = "error"
            raise BoxError(f"What came back cannot be read. {error}") from None
        if "raised" in reply:
            self.ended, self.line = "error", _line(reply["raised"])
            raise _raised(reply["raised"])
        return reply

    def __call__(self, *args: object) -> object:
        """The value for plain arguments; what the function changed in place is changed here as well."""
        reply = self.ask({"do": "call", "args": list(args)})
        if "value" not in reply or not isinstance(reply.get("args"), list):
            raise BoxError("The answer is none.")
        for mine, after in zip(args, reply["args"], strict=False):
            _put_back(mine, after)
        return reply["value"]


def _signature(listed: list) -> inspect.Signature:
    """A signature from the box: names, kinds and whether there is a default. What is none is taken for any."""
    try:
        kinds = list(inspect._ParameterKind)
        default = lambda has: None if has else inspect.Parameter.empty
        found = [inspect.Parameter(name, kinds[kind], default=default(has)) for name, kind, has in listed]
        return inspect.Signature(found)
    except (TypeError, ValueError, IndexError):
        anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return inspect.Signature([inspect.Parameter(f"any{kind}", kind) for kind in anything])


def _raised(told: object) -> Exception:
    """The exception that a reply tells of: of a class with its name, its text and the learner's line."""
    told = told if isinstance(told, dict) else {}
    name, said, line = (str(told.get(key, "")) for key in ("type", "said", "line"))
    if told.get("stub") is True:
        return NotImplementedError(f"exercise {said}")
    name = name if name.isidentifier() else "Error"
    said = said.removeprefix(name).removeprefix(": ")
    number, _, source = line.removeprefix("line ").partition(": ")
    story = f'\n{_STORY}\n  File "cell", line {number}, in it\n    {source}\n' if number.isdigit() else ""
    return type(name, (Exception,), {})(said + story)


def _line(told: object) -> int:
    """The number of the learner's line in what a reply tells of an exception, 0 where there is none."""
    said = str(told.get("line", "")) if isinstance(told, dict) else ""
    found = re.match(r"line ([0-9]{1,6})(?![0-9])", said)
    return int(found[1]) if found else 0


def _put_back(mine: object, after: object) -> None:
    """Make an argument what the boxed function left of it."""
    if isinstance(mine, Tensor) and isinstance(after, Tensor):
        with torch.no_grad():
            mine.copy_(after) if mine.shape == after.shape and mine.dtype == after.dtype else mine.set_(after)
    elif isinstance(mine, np.ndarray) and isinstance(after, np.ndarray) and mine.shape == after.shape:
        mine[...] = after
    elif isinstance(mine, list) and isinstance(after, list):
        mine[:] = after
    elif isinstance(mine, dict) and isinstance(after, dict):
        mine.clear()
        mine.update(after)


def judged(session: Answering, exercise: Exercise, *, seed: int, time_limit_s: float = 30.0, cell: str = "") -> Result:
    """The result of one exercise: the cases of class first, then those of the private seed.

    A case of class that fails is told in full; of another one only that there is one. cell: the name under which the
    session has run the learner's own cell, whose output is part of the result.
    """
    began_s = time.monotonic()
    inside = not _is_plain(exercise)
    outputs = [one.output for one in session.outcomes if one.name == cell]

    def result(status: str, message: str, line: int = 0) -> Result:
        printed = b"".join(outputs)[: 4 * _MOST_PRINTED].decode(errors="replace")[:_MOST_PRINTED]
        told = {"points": exercise.points if status == "ok" else 0, "max_points": exercise.points, "inside": inside}
        told |= {"message": message, "line": line if status == "error" else 0, "printed": printed}
        seconds = round(time.monotonic() - began_s, 3)
        return Result(exercise=exercise.number, status=status, seconds=seconds, **told)

    part = sliced(exercise) if inside else None
    for private in (False, True):
        fn = _Asked(session, exercise, time_limit_s)
        outputs += [] if private else [fn.printed]
        try:
            fn.look()
            if part and fn.callable:
                fn.ask({"do": "load", "modules": part.modules})
        except Exception as error:  # of the box, or of a name that only the learner's code knows
            return result(fn.ended or "error", describe_error(error), 0 if private else fn.line)
        if not fn.callable:
            return result("missing", f"{exercise.name} {'is not defined' if fn.kind == 'None' else f'is {fn.kind}'}.")
        found = _verdict(fn, exercise, part, seed if private else PUBLIC_SEED, time_limit_s)
        status = _STATUSES[found.status]
        if status != "ok":
            status = fn.ended if status == "wrong" and fn.ended else status
            hidden = "right on the cases of class, and not on others of the same kind"
            return result(status, *((hidden,) if private else (found.message, fn.line)))
    return result("ok", found.message)


def _verdict(fn: _Asked, exercise: Exercise, part: Slice | None, seed: int, time_limit_s: float) -> Verdict:
    """The judge's verdict on a boxed function; bars are left out, for their clock would be the learner's."""
    generator = generator_for(exercise, seed)
    asked = replace(exercise, bar=None)
    if part:
        asked = _driven_inside(fn, asked, {"home": part.home, "seed": generator.initial_seed()})
    return verdict(fn, asked, generator=generator, time_limit_s=time_limit_s + _LATER_S)


@cache
def _is_plain(exercise: Exercise) -> bool:
    """Whether all that an exercise hands in and looks at can cross the wire."""
    if exercise.drive or exercise.mechanism:
        return False
    cases = exercise.cases(generator_for(exercise, PUBLIC_SEED))
    return not any(b'"odd"' in encode(list(case)) for case in cases)


def _driven_inside(fn: _Asked, exercise: Exercise, home: dict) -> Exercise:
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
