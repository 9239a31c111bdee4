"""Exercise 4.2, a guard against NaN that reads late: the trusted one, how it is driven, and what it may wait for."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from labkit.device_thread import ThreadDevice
from labkit.tasks import Task


class NanGuard:
    """Notes each loss on the device, and looks every so many steps at what it noted that many steps before.

    It stops at most 2 * every - 1 steps after the first loss that is NaN, and waits for nothing younger than `every`
    steps. A state counts as good once a loss computed from it was no NaN; states holds three, the first of them good.
    """

    def __init__(self, dev: object, model: nn.Module, every: int) -> None:
        self.dev, self.model, self.every, self.n_steps = dev, model, every, 0
        self.bad, self.flag = dev.put(torch.tensor(False), non_blocking=True), None
        self.states = [(0, self.state())]

    def state(self) -> list[Tensor]:
        """A copy of the weights, on the device."""
        return [p.detach().clone() for p in self.model.parameters()]

    def after_step(self, loss: Tensor) -> bool:
        """Note a loss that lies on the device; True when training must stop."""
        self.bad = self.bad | loss.detach().isnan()
        self.n_steps += 1
        if self.n_steps % self.every:
            return False
        if self.flag is not None and self.flag.get():
            return True
        self.flag = self.dev.fetch(self.bad)
        self.states = [*self.states[-2:], (self.n_steps, self.state())]
        return False

    def restore(self) -> int:
        """Put the good state back into the model; the number of steps that it has seen."""
        n_steps, state = self.states[0]
        with torch.no_grad():
            for p, kept in zip(self.model.parameters(), state, strict=True):
                p.copy_(kept)
        return n_steps


class _Watched(ThreadDevice):
    """A device thread that notes how many steps old the work was that the host waited for."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.step, self.ages, self._sent, self._gate = 0, [], {}, threading.Event()

    def _send(self, task: Task, started_s: float, **more: object) -> None:
        self._sent[task] = self.step
        super()._send(task, started_s, **more)

    def stand_still(self) -> None:
        """Do nothing more until the host waits for something: who only asks finds nothing done, however long."""
        self._send(Task(lambda: self._gate.wait(10) and None, [], {}, "stands still", None), 0.0)

    def _await(self, task: Task, why: str = "wait") -> None:
        self._gate.set()
        if why == "wait":
            self.ages.append(self.step - self._sent[task])
        super()._await(task, why)


def _weights() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of five weights."""
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 3.0, -4.0]]))
        model.bias.zero_()
    return model, torch.optim.SGD(model.parameters(), lr=0.02)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, planted: str) -> Tensor:
    """One step, its loss; planted: "loss" or "gradient", what is NaN in it."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss = loss * torch.nan if planted == "loss" else loss
    loss.backward()
    if planted == "gradient":
        model.bias.grad.mul_(torch.nan)
    optimizer.step()
    return loss.detach()


def _undisturbed(n_steps: int, x: Tensor) -> list[Tensor]:
    """The weights after 0, 1, 2 ... steps in which nothing went wrong, in one vector each."""
    model, optimizer = _weights()
    states = [nn.utils.parameters_to_vector(model.parameters()).detach().clone()]
    for _ in range(n_steps):
        _step(model, optimizer, x, "")
        states.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return states


def drive_guard(guard_class: Callable, kind: str, step: int, every: int, slow: bool) -> dict[str, bool]:
    """What a guard does in 40 steps, when in one of them (from 1) the loss or the gradient is NaN; kind "" plants none.

    slow: the device stands still until it is waited for, so that only who waits for its flag can hold the bound.
    """
    dev, n_steps = _Watched(), 40
    try:
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        states, (model, optimizer), there = _undisturbed(n_steps, x), _weights(), dev.put(x)
        dev.put(model)
        _rehearse(guard_class(dev, model, every), model, optimizer, there, kind, every)
        dev.step, stopped = 0, None
        with torch.no_grad():
            for p, start in zip(model.parameters(), (states[0][:4].view(1, 4), states[0][4:]), strict=True):
                p.copy_(dev.put(start.clone()))
        guard = guard_class(dev, model, every)
        if slow:
            dev._gate.clear()
            dev.stand_still()
        for dev.step in range(1, n_steps + 1):
            if guard.after_step(_step(model, optimizer, there, kind if dev.step == step else "")):
                stopped = dev.step
                break
        told = _told(guard, model, states, kind, step, every, stopped)
        return told | ({"stops": True} if slow else {})  # there who does not stop is late, and no more
    finally:
        dev._gate.set()
        dev.close()


def _rehearse(
    guard: object, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, kind: str, every: int
) -> None:
    """Steps that count for nothing: afterwards the device knows all shapes, and no launch waits to learn one."""
    for step in range(3 * every):
        guard.after_step(_step(model, optimizer, x, kind if step == 2 * every else ""))


def _told(
    guard: object, model: nn.Module, states: list, kind: str, step: int, every: int, stopped: int | None
) -> dict[str, bool]:
    """What of the guard's work is as it should be."""
    if not kind:
        return {"runs on where all is well": stopped is None}
    first = step + (kind == "gradient")  # the first loss that is NaN
    told = {"stops": stopped is not None}
    if stopped is None:
        return told | dict.fromkeys(list(_CAUSES)[2:], False)
    seen = int(guard.restore())
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    return told | {
        "at most 2 * every - 1 steps late": first <= stopped <= first + 2 * every - 1,
        "the state put back is finite": bool(weights.isfinite().all()),
        "it is that after the steps it says": 0 <= seen < len(states) and torch.equal(weights, states[seen]),
        "at most 4 * every steps are lost": seen >= stopped - 4 * every,
    }


_CAUSES = {
    "runs on where all is well": "No loss was NaN, and it stopped.",
    "stops": "It never stops: note each loss in self.bad, fetch that every `every` steps, look at it `every` steps "
    "later.",
    "at most 2 * every - 1 steps late": "It stops too late, or before anything was wrong. Look with get(), which "
    "waits for a flag that is `every` steps old: done() alone lets the loop run on when the device is slow.",
    "the state put back is finite": "The state it puts back holds NaN. Weights can be broken one step before the loss "
    "tells: a state is proven only by a later loss that was computed from it.",
    "it is that after the steps it says": "The state put back is not the one after so many steps. Copy the weights "
    "(self.state()), after the step, with the number of steps done.",
    "at most 4 * every steps are lost": "The state it puts back is too old: keep a new one every `every` steps.",
}


def guard_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A loss, then a gradient, that is NaN, at each place within `every` steps; nothing wrong; a slow device."""
    places = torch.randperm(8, generator=rng).tolist()
    listed = [("loss", 6, 4, False), ("", 0, 4, False), ("gradient", 8, 4, False), ("loss", 13, 5, True)]
    return [*listed, *(("gradient" if p % 2 else "loss", 9 + p, 4, False) for p in places), ("loss", 1, 3, False)]


def guard_faults(got: object, expected: object) -> str | None:
    """The cause of the first thing that is not as it should be."""
    wrong = [name for name, right in expected.items() if got[name] != right]
    return _CAUSES[wrong[0]] if wrong else None


def waits_for_old_work_only(guard_class: Callable) -> str | None:
    """Says so where the guard waits for work of the last `every` steps."""
    dev, every = _Watched(), 5
    try:
        model, optimizer = _weights()
        there = dev.put(torch.linspace(-1, 1, 12).reshape(3, 4))
        dev.put(model)
        guard = guard_class(dev, model, every)
        dev.ages.clear()
        for dev.step in range(1, 31):
            guard.after_step(_step(model, optimizer, there, ""))
        young = [age for age in dev.ages if age < every]
    finally:
        dev.close()
    if not young:
        return None
    return (
        f"In 30 steps with every=5 it waited {len(young)} times for work of the last {max(young) + 1} steps: each of "
        "those empties the queue. Look only at a flag that was fetched `every` steps ago."
    )
