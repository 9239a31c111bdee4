"""The checks of lesson 04: does a call wait, a guard against NaN that reads late, and a loop without needless waits."""

import time
from collections.abc import Callable, Sequence

import torch

from labkit.checker import Exercise, exact
from labkit.checks.guard import NanGuard, drive_guard, guard_cases, guard_faults, waits_for_old_work_only
from labkit.checks.waitless import (
    FASTER,
    NOT_FASTER,
    OTHER_RUN,
    drive_loop,
    is_faster,
    loop_cases,
    loop_faults,
    loop_found,
    quick_loop,
    quick_run,
    same_run,
    slow_loop,
    waits_seldom,
)
from labkit.timing import Timing

# ---- 4.1: does a call wait? -----------------------------------------------------------------------------------------


def waits_for_device(dev: object, keep_busy: Callable, call: Callable) -> bool:
    """Whether `call` waits for the device: work launched before it is done when it returns.

    keep_busy: launches work for a while and returns a tensor of it at once.
    """
    call()
    dev.synchronize()
    marker = dev.fetch(keep_busy())
    call()
    waited = marker.done()
    dev.synchronize()
    return waited


class _Paper:
    """A device on paper: its queue moves only when somebody waits, so a check of it needs no luck."""

    def __init__(self) -> None:
        self.n_launched = self.n_done = 0

    def launch(self) -> int:
        """The place in the queue of what was launched."""
        self.n_launched += 1
        return self.n_launched

    def synchronize(self) -> None:
        """Do all that was launched."""
        self.n_done = self.n_launched

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"the check's device, which is of paper, has fetch and synchronize, and no {name}")

    def fetch(self, place: object) -> "_PaperPending":
        """What asks whether the device has got there."""
        if type(place) is not int:
            raise ValueError("fetch takes a tensor on the device: what keep_busy() returned")
        return _PaperPending(self, place)


class _PaperPending:
    """A place in the queue of a `_Paper`."""

    def __init__(self, dev: _Paper, place: int) -> None:
        self._dev, self._place = dev, place

    def done(self) -> bool:
        """Whether the device has got there."""
        return self._dev.n_done >= self._place

    def get(self) -> int:
        """Wait until it has."""
        self._dev.n_done = max(self._dev.n_done, self._place)
        return self._place


def _drive_call(fn: Callable, kind: str, n_queued: int) -> object:
    """What fn says of a call of this kind, on a device that has so many launches in its queue."""
    dev, n_calls = _Paper(), 0
    for _ in range(n_queued):
        dev.launch()

    def call() -> None:
        nonlocal n_calls
        n_calls += 1
        dev.launch()
        if kind == "takes the host a while":
            time.sleep(0.05)
        if kind == "waits" or kind == "waits the first time only" and n_calls == 1:
            dev.synchronize()

    return fn(dev, dev.launch, call)


def _call_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Each kind of call, on a device that is idle and on ones with work in their queue, in an order that is drawn."""
    kinds = ["launches", "waits", "waits the first time only", "takes the host a while"]
    queued = (0, 3, *torch.randint(1, 9, (2,), generator=rng).tolist())
    first, *others = ((kind, n_queued) for n_queued in queued for kind in kinds)
    drawn = [(kinds[i], n_queued) for i, n_queued in torch.randint(4, (8, 2), generator=rng).tolist()]
    return [first, *(others[i] for i in torch.randperm(len(others), generator=rng)), *drawn]


def _without_a_first_call(dev: object, keep_busy: Callable, call: Callable) -> bool:
    """The mistake of trusting the first call."""
    dev.synchronize()
    marker = dev.fetch(keep_busy())
    call()
    return marker.done()


def _asks_too_late(dev: object, keep_busy: Callable, call: Callable) -> bool:  # noqa: ARG001
    """The mistake of waiting for the device before asking."""
    return True


def _asks_too_early(dev: object, keep_busy: Callable, call: Callable) -> bool:  # noqa: ARG001
    """The mistake of asking before the call, or a clock."""
    return False


EXERCISES = (
    Exercise(
        number="4.1",
        name="waits_for_device",
        cases=_call_cases,
        reference=waits_for_device,
        compare=exact,
        drive=_drive_call,
        mistakes=(
            ("It trusts the first call, which may wait for reasons of its own: call it once before.",)
            + (_without_a_first_call,),
            (
                "It says yes where the call does not wait. A clock does so, where the host is slow; else it asks when "
                "all is done already (ask right after the call, before anything waits), or the wrong way round.",
                _asks_too_late,
            ),
            ("It says no where the call waits: put work in front, call, then ask marker.done(), not a clock.",)
            + (_asks_too_early,),
        ),
        points=2,
        hints=(
            "True for every call: the marker was asked after synchronize(), or there was no work in front.",
            "Five lines: call(), synchronize, fetch the tensor of keep_busy(), call() again, and ask done().",
            "marker = dev.fetch(keep_busy()) stands behind the work; marker.done() never waits.",
        ),
    ),
    Exercise(
        number="4.2",
        name="NanGuard",
        cases=guard_cases,
        reference=NanGuard,
        compare=guard_faults,
        drive=drive_guard,
        mechanism=waits_for_old_work_only,
        points=5,
        hints=(
            "It waits in each step: `if loss.isnan()` needs the value. self.bad | loss.isnan() stays on the device.",
            "Every `every` steps: first look at the old flag with get(), then fetch a new one and keep a new state.",
            "NaN in what it puts back: keep the last three states, [*self.states[-2:], new]; the first is proven.",
        ),
    ),
    Exercise(
        number="4.3",
        name="quick_loop",
        cases=loop_cases,
        reference=quick_loop,
        compare=loop_faults,
        drive=drive_loop,
        find=loop_found,
        mechanism=waits_seldom,
        bar=is_faster,
        timing=Timing(
            inputs=lambda seed: (seed,),
            ready=lambda fn, seed: quick_run(fn, seed, 20),
            run=quick_run,
            baseline=lambda *given: slow_loop(*given[:4]),
            fault=same_run,
            asked=FASTER,
            slow=NOT_FASTER,
            says=(OTHER_RUN,),
        ),
        points=5,
        hints=(
            "Losses missing: look after the last batch too, when the number of steps is no multiple of `every`.",
            "Collect loss.detach() in a list; torch.stack(list).tolist() is one wait for all of them.",
            "n_right can be a tensor on the device all along: n_right + (...).sum(), and int(n_right) at the end.",
        ),
    ),
)
