"""The verdict on one function: right, not attempted, or wrong in exactly this way. Pure: it prints and records nothing.

Used by `check` in a notebook, by the tests and by a grader. The cases are drawn three times from one generator: once
for the reference, once for the learner, once to see afterwards whether the learner's function changed what it was
given. Drawing again, where a deep copy would cut a closure off from the tensors that it closes over, is always right.
"""

import hashlib
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from labkit.ambient import settle, settled
from labkit.compare import Finding, Tolerance, Unfit, changed, close, fit, leaves, same
from labkit.deadline import DeadlineExceeded, Ended, checked, within
from labkit.describe import call_text, describe, describe_error, learner_line, parameters
from labkit.exercise import Exercise, Verdict
from labkit.repro import budget


class _Wrong(Exception):
    """What is wrong, as a headline and labelled lines; never seen outside this module."""

    def __init__(self, headline: str, **lines: str) -> None:
        super().__init__(headline)
        self.headline, self.lines = headline, {label: text for label, text in lines.items() if text}


class _NotAttempted(Exception):
    """The stub's own NotImplementedError; never seen outside this module."""


_BAR_LIMIT_S = 120.0
_INCOMPARABLE = "gave what cannot be compared:"
_NOT_ATTEMPTED = "not attempted yet\nReplace each line that raises NotImplementedError with your own."


@contextmanager
def _learners() -> Iterator[None]:
    """Around every look at the learner's function and answer: whatever goes wrong there is a verdict, never raised."""
    try:
        yield
    except (_Wrong, _NotAttempted, DeadlineExceeded, KeyboardInterrupt):
        raise
    except BaseException as error:
        wrong = _Wrong("gave what cannot be looked at", error=describe_error(error))
    else:
        return
    raise wrong from None


class _Clock:
    """Runs the learner's code; all of it together may take limit_s."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = self.left_s = checked(limit_s)

    def run(self, call: Callable[[], object], failing: str = "raised") -> object:
        """What `call` returns; _Wrong or _NotAttempted where it does not. The user's KeyboardInterrupt passes."""
        started_s = time.monotonic()
        try:
            return within(max(self.left_s, 0.0), call)
        except KeyboardInterrupt:
            raise
        except DeadlineExceeded as error:
            likely = "A loop that never ends, or far too much work."
            late = f"did not return within {self.limit_s:g} s, all cases together"
            wrong = _Wrong(late, interrupted=learner_line(error), likely=likely)
        except Ended as error:
            wrong = _Wrong(str(error))
        except BaseException as error:
            if isinstance(error, NotImplementedError) and str(error).startswith("exercise "):
                raise _NotAttempted from None
            wrong = _Wrong(f"{failing} {type(error).__name__}", error=describe_error(error), where=learner_line(error))
        finally:
            self.left_s -= time.monotonic() - started_s
        raise wrong from None


def generator_for(exercise: Exercise, seed: int) -> torch.Generator:
    """The generator that a seed gives an exercise: another one for each, the same on every machine."""
    digest = hashlib.sha256(f"{seed}:{exercise.number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def verdict(fn: Callable, exercise: Exercise, *, generator: torch.Generator, time_limit_s: float = 10.0) -> Verdict:
    """The verdict on fn; time_limit_s bounds the learner's own code, all cases together. Global state is put back."""
    judged = partial(Verdict, exercise=exercise)
    state, n_cases, clock = generator.get_state(), 0, _Clock(time_limit_s)
    with settled():
        try:
            draws = [_draw(exercise, generator, state) for _ in range(3)]
            n_cases = len(draws[0])
            for i, case in enumerate(zip(*draws, strict=True)):
                again = lambda i=i: _draw(exercise, generator, state)[i]
                _judge_case(fn, exercise, clock, case, f"case {i + 1} of {n_cases}", again)
            ways = _judge_ways(fn, exercise, clock)
        except _NotAttempted:
            return judged(status="not attempted", message=_NOT_ATTEMPTED, n_cases=n_cases)
        except _Wrong as wrong:
            return judged(status="failed", message=_message(wrong), n_cases=n_cases)
    right = "its case is right" if n_cases == 1 else f"all {n_cases} cases right"
    return judged(status="passed", message=", ".join([right, *ways]), n_cases=n_cases)


def _message(wrong: _Wrong) -> str:
    """Headline, then one indented line for each label."""
    width = max(map(len, wrong.lines), default=0) + 2
    lines = [f"{label:<{width}}{' '.join(text.splitlines())}" for label, text in wrong.lines.items()]
    return "\n".join([wrong.headline, *lines])


def _draw(exercise: Exercise, generator: torch.Generator, state: torch.Tensor) -> list[tuple]:
    """The cases as `state` gives them."""
    generator.set_state(state)
    settle()
    return [tuple(case) for case in exercise.cases(generator)]


def _judge_case(fn: Callable, exercise: Exercise, clock: _Clock, case: tuple, label: str, again: Callable) -> None:
    """Raise _Wrong unless fn answers one case, given as (for the reference, for the learner, untouched)."""
    trusted, given, untouched = case
    asked = _asked(exercise, untouched)
    try:
        settle()
        expected = exercise.run(exercise.reference, trusted)
        with _learners():
            _fits_signature(fn, exercise, given)
            settle()
            got = clock.run(lambda: exercise.run(fn, given))
            settle()  # it may have left torch on another device or dtype, in which nothing could be compared
            _unchanged(exercise, given, untouched)
            _right(*_found(got, expected, exercise, clock, untouched), exercise, clock, again)
    except _Wrong as wrong:
        raise _Wrong(f"{wrong.headline} ({label})", **asked, **wrong.lines) from None


def _asked(exercise: Exercise, case: tuple) -> dict[str, str]:
    """A case as a labelled line: the call, or where a drive makes other calls, what they are made from."""
    if exercise.tell:
        return exercise.tell(*case)
    names = exercise.names()
    if names == parameters(exercise.reference)[: len(names)]:
        return {"call": call_text(exercise.name, names, case)}
    return {"tried": call_text("", names, case)[1:-1]}


def _fits_signature(fn: Callable, exercise: Exercise, case: tuple) -> None:
    """Raise _Wrong where fn cannot take as many arguments as a case has."""
    if exercise.drive:
        return
    try:
        inspect.signature(fn).bind(*case)
    except ValueError:
        return  # Python knows no signature of some functions written in C
    except TypeError as error:
        takes = f"({', '.join(parameters(fn))})"
        needs = f"({', '.join(exercise.names())})"
        raise _Wrong("wrong arguments", takes=takes, needs=needs, likely=f"{error}.".capitalize()) from None


def _unchanged(exercise: Exercise, given: tuple, untouched: tuple) -> None:
    """Raise _Wrong where an argument is no longer what it was."""
    for name, after, before in zip(exercise.names(), given, untouched, strict=False):
        if name not in exercise.may_change and not same(before, after):
            cause = f"An operation in place. Work on a copy of {name}: its owner still needs it as it was."
            place, old, new = changed(before, after)
            told = {"place": f"{name}{place}" if place else "", "before": describe(old), "after": describe(new)}
            raise _Wrong(f"changes its input {name}", **told, likely=cause)


def _found(got: object, expected: object, exercise: Exercise, clock: _Clock, case: tuple) -> tuple[object, object]:
    """What is compared, of what fn and the reference gave."""
    if not exercise.find or got is None:  # nothing was returned: that needs no looking at
        return got, expected
    found = clock.run(lambda: exercise.find(got, expected, *case), _INCOMPARABLE)
    return found, exercise.find(expected, expected, *case)


def _right(got: object, expected: object, exercise: Exercise, clock: _Clock, again: Callable) -> None:
    """Raise _Wrong unless `got` is the answer."""
    try:
        fitted = fit(got, expected, strict_dtype=exercise.strict_dtype)
    except Unfit as unfit:
        known = _known_mistake(lambda value: _alike(got, value, exercise.compare), exercise, again)
        likely = " ".join(filter(None, (unfit.cause, known)))
        raise _Wrong(unfit.what, returned=describe(got), expected=describe(expected), likely=likely) from None
    cause = clock.run(lambda: exercise.compare(fitted, expected), _INCOMPARABLE)
    if cause is not None:
        given = lambda value: exercise.compare(fitted, fit(value, fitted)) is None
        cause = _known_mistake(given, exercise, again) or cause
        raise _Wrong("wrong result", **_differences(fitted, expected, exercise.compare), likely=cause)


def _alike(got: object, value: object, compare: Callable) -> bool:
    """Whether two values are the same, where neither need have the form of the answer, which others compare by."""
    return isinstance(compare, Tolerance) and compare(fit(got, value), value) is None


def _known_mistake(given: Callable[[object], bool], exercise: Exercise, again: Callable[[], tuple]) -> str:
    """The cause of the first known mistake that gives what was `given` as well, or nothing."""
    for cause, mistaken in exercise.mistakes:
        case = again()
        settle()
        try:
            if given(exercise.run(mistaken, case)):
                return cause
        except (Unfit, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
            continue  # a mistake need not give anything for every case
    return ""


def _differences(got: object, expected: object, compare: Callable) -> dict[str, str]:
    """Both values in words, of large ones the first element that differs and how many do; a finding as it is."""
    if isinstance(expected, Finding):
        return {"found": str(got)}
    tolerance = compare if isinstance(compare, Tolerance) else close()
    parts = leaves(expected)
    if any(place for place, _ in parts) and sum(part.numel() for _, part in parts) <= 8:
        return {"returned": describe(got), "expected": describe(expected)}
    for (place, mine), (_, right) in zip(leaves(got), parts, strict=False):
        wrong = tolerance.differs(mine, right) if mine.shape == right.shape else torch.tensor(False)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            count = f"{int(wrong.sum())} of {wrong.numel()} values" if wrong.numel() > 8 else ""
            if place:
                return {"returned": f"{place}: {describe(mine, at)}", "expected": f"{place}: {describe(right, at)}"}
            return {"returned": describe(got, at), "expected": describe(expected, at), "differing": count}
    return {"returned": describe(got), "expected": describe(expected)}


def _judge_ways(fn: Callable, exercise: Exercise, clock: _Clock) -> list[str]:
    """What to say of how fn works, once its results are right; _Wrong where it works in the wrong way."""
    said = []
    for name, judge in (("mechanism", exercise.mechanism), ("bar", exercise.bar)):
        if judge is None:
            continue
        if name == "bar" and budget() == "smoke":
            said.append("its bar is left for a full run")
            continue
        settle()
        own = _Clock(_BAR_LIMIT_S) if name == "bar" else clock  # a bar also times the course's own work
        with _learners():
            cause = own.run(lambda judge=judge: judge(fn))
        if cause is not None:
            missed = {"mechanism": "not in the way asked for", "bar": "short of the bar"}[name]
            raise _Wrong(f"right results, but {missed}", likely=cause)
        said.append({"mechanism": "in the way asked for", "bar": "within its bar"}[name])
    return said
