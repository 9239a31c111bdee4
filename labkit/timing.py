"""How a grader times an answer from outside: in turns with a baseline that is known to be slow, each in a process of
its own."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A bar on speed as a ratio of two runs that do the same work.

    inputs: what a run is given, plain data that a seed gives: another one for every run, so that no run can remember.
    run: run(fn, *inputs) -> plain data; run(baseline, *inputs) in the baseline's process.
    ready: called as run, with other inputs, before every run; it is not timed.
    then: then(value of run) -> plain data; in the baseline's process for both, and part of the time of both.
    fault: called with what the answer's run and the baseline's gave; None, or why these are not the same work.
    says: the sentences that fault may give. What an answer sends may hold hidden inputs, so no other text, and none of
        its numbers, is shown to who has written it.
    asked: how many times as fast as the baseline the answer must be.
    slow: the sentence for an answer that is not so fast.
    cpu: whether the processor's seconds count, and not the clock's: for work that never waits.
    """

    inputs: Callable[[int], tuple]
    run: Callable[..., object]
    baseline: Callable
    fault: Callable[[object, object], str | None]
    asked: float
    slow: str
    says: tuple[str, ...] = ()
    ready: Callable[..., object] | None = None
    then: Callable[[object], object] | None = None
    cpu: bool = False
