"""What the notebook, the tests and the grader know about an exercise, and what they say of an answer to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from labkit.describe import parameters
from labkit.timing import Timing


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise: what the notebook, the tests and the grader know about it.

    cases: argument tuples, smallest first, drawn from the generator and from nothing else.
    compare: called with (got, expected); None where the answer is right, otherwise the likely cause.
    mechanism: called with the function once its results are right; None, or what is wrong with *how* it gets them.
    bar: as mechanism, for speed or memory against a baseline timed in the same run; not judged under a smoke budget.
    timing: the bar, as a grader measures it from outside.
    mistakes: (cause, function) pairs; the cause is named where the function gives what the learner's gave.
    drive: how a class (or a function that returns one) is used: drive(fn, *case) -> the result that is compared.
    find: where a drive gives more than a message should show: find(got, expected, *case) of what it gave for the
        learner's function and for the reference -> what is compared and shown, such as a Finding; without mistakes.
    tell: called with a case, gives labelled lines for a learner to make it again, where its call alone does not tell.
    may_change: names of parameters that the function is meant to change in place.
    strict_dtype: whether float64 for float32 is wrong; float for int always is.
    library: what labkit has that answers the exercise, beside the reference: to call it is no answer.
    """

    number: str
    name: str
    cases: Callable[[torch.Generator], Sequence[tuple]]
    reference: Callable
    compare: Callable[[object, object], str | None]
    mechanism: Callable[[Callable], str | None] | None = None
    bar: Callable[[Callable], str | None] | None = None
    timing: Timing | None = None
    points: int = 1
    hints: tuple[str, ...] = ()
    mistakes: tuple[tuple[str, Callable], ...] = ()
    drive: Callable | None = None
    find: Callable | None = None
    tell: Callable[..., dict[str, str]] | None = None
    may_change: tuple[str, ...] = ()
    strict_dtype: bool = False
    library: tuple[Callable, ...] = ()

    def run(self, fn: Callable, case: tuple) -> object:
        """What `fn` gives for one case."""
        return self.drive(fn, *case) if self.drive else fn(*case)

    def names(self) -> list[str]:
        """What the parts of a case are called."""
        return parameters(self.drive)[1:] if self.drive else parameters(self.reference)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`passed`, `failed` or `not attempted`; the message's first line is a headline, the others say more."""

    exercise: Exercise
    status: str
    message: str
    n_cases: int
