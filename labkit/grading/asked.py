"""A function that is in the box, as one that can be called here: requests go in, replies come out as plain data."""

import inspect
import re
import time
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from labkit.deadline import Ended
from labkit.exercise import Exercise
from labkit.grading import watch
from labkit.grading.wire import TooMuch, WireError, decode, encode

MOST_PRINTED = 2000  # characters, of at most four bytes each
_STORY = "Traceback (most recent call last):"
_MOST_PARAMETERS, _LONGEST_NAME, _LONGEST_TEXT = 50, 100, 1000  # of what a stranger says, for a message to be read


@runtime_checkable
class Answering(Protocol):
    """What answers calls of a learner's functions: a `labkit.grading.session.Session`."""

    outcomes: list

    def call(self, name: str, payload: bytes, timeout_s: float) -> object:
        """An answer with a status, an output and, where the status is ok, a payload; else what is `said` of output."""


_HOW = {
    "timeout": "did not return within {limit_s:g} s, all cases together",
    "memory": "took more memory than there is for it",
    "died": "ended the process that it ran in",
    "output-limit": "printed or returned more than is taken",
    "tampered": "answered with what the grader's part of the process never sends",
}


class BoxError(Ended):
    """The box ended or refused a call; its text is for the student."""


class Asked:
    """A function in the box, as one that can be called here.

    ended: the status that a call of it ended with, where that was not ok; line: of the learner's, where that raised.
    printed: the output of all calls; said: of one that ended the session, how much that was, and its last line.
    seconds: of the last one, from the request to the reply.
    """

    def __init__(self, session: Answering, exercise: Exercise, time_limit_s: float) -> None:
        self.__name__ = exercise.name
        self._session, self._name, self._left_s = session, exercise.name, time_limit_s
        self._limit_s = time_limit_s
        self.ended, self.line, self.printed, self.seconds = "", 0, bytearray(), 0.0
        self.kind, self.callable, self.said = "", False, ""

    def look(self) -> None:
        """Find out what the name stands for. Raises as `ask` does."""
        look = self.ask({"do": "look"})
        self.kind, self.callable = str(look.get("kind"))[:_LONGEST_NAME], look.get("callable") is True
        if isinstance(listed := look.get("parameters"), list):
            self.__signature__ = _signature(listed)

    def ask(self, request: dict) -> dict:
        """The reply to a request. Raises what the learner's code raised, under its name, or BoxError."""
        payload, began_s = encode(request), time.monotonic()
        found = self._session.call(self._name, payload, max(self._left_s, 0.1))
        self.seconds = time.monotonic() - began_s
        self._left_s -= self.seconds
        self.printed += found.output[: 4 * MOST_PRINTED - len(self.printed)]
        if found.status != "ok":
            self.said = found.said
            raise self._over(found.status)
        try:
            reply = decode(found.payload)
            if not isinstance(reply, dict):
                raise WireError("The answer is none.")
        except TooMuch as error:
            self.ended = "error"
            raise BoxError(str(error)) from None
        except WireError:
            raise self._over("tampered") from None
        if "raised" in reply:
            raised = _raised(reply["raised"])
            self.ended, self.line = watch.status_of(type(raised).__name__, str(raised)), _line(reply["raised"])
            raise raised
        return reply

    def _over(self, status: str) -> BoxError:
        """That the call has ended with a status, which is remembered."""
        self.ended = status
        return BoxError(_HOW.get(status, "ended with: {status}").format(limit_s=self._limit_s, status=status))

    def __call__(self, *args: object) -> object:
        """The value for plain arguments; what the function changed in place is changed here as well."""
        reply = self.ask({"do": "call", "args": list(args)})
        if "value" not in reply or not isinstance(reply.get("args"), list):
            raise self._over("tampered")
        for mine, after in zip(args, reply["args"], strict=False):
            _put_back(mine, after)
        return reply["value"]


def _signature(listed: list) -> inspect.Signature:
    """A signature from the box: names, kinds and whether there is a default. What is none is taken for any."""
    try:
        if len(listed) > _MOST_PARAMETERS or any(len(name) > _LONGEST_NAME for name, _, _ in listed):
            raise ValueError
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
    name, said, line = (str(told.get(key, ""))[:_LONGEST_TEXT] for key in ("type", "said", "line"))
    if told.get("stub") is True:
        return NotImplementedError(f"exercise {said}")
    name = name if name.isidentifier() and len(name) <= _LONGEST_NAME else "Error"
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
