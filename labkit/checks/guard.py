"""Exercise 4.2, a guard against NaN that reads late: the trusted one, how it is driven, and what it may wait for."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from labkit.device_thread import Handle, ThreadDevice
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


class Watched(ThreadDevice):
    """A device thread that notes of each wait how many steps old the work was, and what the code asked for."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.step, self.ages, self._sent, self._gate = 0, [], {}, threading.Event()

    def _send(self, task: Task, started_s: float, **more: object) -> None:
        self._sent[task] = self.step
        super()._send(task, started_s, **more)

    def young(self, n_steps: int) -> Counter:
        """How often the host waited for work of the last n_steps steps, by what the code asked for."""
        return Counter(name for age, name in self.ages if age < n_steps)

    def stand_still(self) -> None:
        """Do nothing more until the host waits for something: who only asks finds nothing done, however long."""
        self._send(Task(lambda: self._gate.wait(10) and None, [], {}, "stands still", None), 0.0)

    def _await(self, task: Task, why: str = "wait") -> None:
        self._gate.set()
        if why == "wait" and (task.name != "copy to host" or task.finished.locked()):  # what is there is not waited for
            self.ages.append((self.step - self._sent[task], task.name))
        super()._await(task, why)


def _weights() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of five weights."""
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 3.0, -4.0]]))
        model.bias.zero_()
    return model, torch.optim.SGD(model.parameters(), lr=0.02)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, planted: str) -> Tensor:
    """One step, its loss; planted: what is NaN in it: "loss", "gradient", or "told", only the loss that is returned."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss = loss * torch.nan if planted == "loss" else loss
    loss.backward()
    if planted == "gradient":
        model.bias.grad.mul_(torch.nan)
    optimizer.step()
    return loss.detach() * torch.nan if planted == "told" else loss.detach()


def _undisturbed(n_steps: int, x: Tensor) -> list[Tensor]:
    """The weights after 0, 1, 2 ... steps in which nothing went wrong, in one vector each."""
    model, optimizer = _weights()
    states = [nn.utils.parameters_to_vector(model.parameters()).detach().clone()]
    for _ in range(n_steps):
        _step(model, optimizer, x, "")
        states.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return states


RIGHT = "as it should"


def drive_guard(guard_class: Callable, kind: str, step: int, every: int, slow: bool) -> str:
    """What is wrong with a guard in 40 steps, when in one of them (from 1) something is NaN; kind "": in none.

    kind: what `_step` plants. slow: the device stands still until it is waited for, so that only who waits for its flag
    can hold the bound.
    """
    dev, n_steps = Watched(), 40
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
        dev.ages.clear()
        if slow:
            dev._gate.clear()
            dev.stand_still()
        for dev.step in range(1, n_steps + 1):
            answer = guard.after_step(_step(model, optimizer, there, kind if dev.step == step else ""))
            if wrong := _no_answer(answer):
                return wrong
            if answer:
                stopped = dev.step
                break
        waited, wrong = _young(dev, every), _stops_wrongly(kind, step, every, stopped, slow)
        wrong = wrong or _restores_wrongly(guard, model, states, stopped, every)
        return waited if wrong and waited else wrong or RIGHT
    finally:
        dev._gate.set()
        dev.close()


def _no_answer(answer: object) -> str:
    """What is wrong with an answer that is neither True nor False, also as a tensor that lies on the host."""
    if isinstance(answer, Handle):
        return "after_step returned a tensor on the device"
    if isinstance(answer, (bool, Tensor)):
        return ""
    return "after_step returned None" if answer is None else "after_step returned neither True nor False"


def _rehearse(
    guard: object, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, kind: str, every: int
) -> None:
    """Steps that count for nothing: afterwards the device knows all shapes, and no launch waits to learn one."""
    for step in range(3 * every):
        guard.after_step(_step(model, optimizer, x, kind if step == 2 * every else ""))


def _stops_wrongly(kind: str, step: int, every: int, stopped: int | None, slow: bool) -> str:
    """What is wrong with the step after which a guard stopped."""
    if not kind:
        return "" if stopped is None else f"stopped where all was well: after step {stopped}"
    first = step + (kind == "gradient")  # the first loss that is NaN
    planted = f"loss {first} was the first that was NaN, every={every}"
    if stopped is None and kind == "told":
        return f"forgot: {planted}, later losses and the weights were fine, and it never stopped"
    if stopped is None and not slow:
        return f"never stopped: {planted}"
    if stopped is None or not first <= stopped < first + 2 * every:
        return f"stopped too late or too early: after step {stopped or 40}; {planted}"
    return ""


def _restores_wrongly(guard: object, model: nn.Module, states: list, stopped: int | None, every: int) -> str:
    """What is wrong with the state that a guard that has stopped puts back."""
    if stopped is None:
        return ""
    next(model.parameters())._home.synchronize()  # before that there may be no memory to look at
    live = [p._box.held.data_ptr() for p in model.parameters()]
    if any(isinstance(t, Handle) and t._box.held.data_ptr() in live for _, state in guard.states for t in state):
        return "kept no copy: a state that it keeps is the memory of the live weights"
    seen = int(guard.restore())
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    if not weights.isfinite().all():
        return f"put back NaN: the state after {seen} steps, when it stopped after {stopped}"
    if not (0 <= seen < len(states) and torch.equal(weights, states[seen])):
        return f"put back another state: not that after the {seen} steps it says"
    if seen < stopped - 4 * every:
        return f"put back too old a state: that after {seen} steps, when it stopped after {stopped}, every={every}"
    return ""


def _young(dev: Watched, every: int) -> str:
    """Says so where the host waited for work of the last `every` steps, and for which kind of question."""
    waited = dev.young(every)
    if not waited:
        return ""
    age, asked = max(age for age, _ in dev.ages if age < every), waited.most_common(1)[0][0]
    of = f"at most {age} steps old" if age else "of the very same step"
    return f"waited for young work: {waited.total()} times in {dev.step} steps, in `{asked}`, for what was {of}"


_ASKS = {
    "bool": "`if`, `or`, `and` and `not` ask a tensor for its value, and that empties the queue; `|` does not.",
    "copy to host": "That empties the queue. Look only at a flag that was fetched `every` steps ago.",
}
_CAUSES = {
    "stopped where all was well": "No loss was NaN. Look at what the flag held, not at whether there is one.",
    "forgot": "It forgets: keep the old flag, self.bad | loss.isnan(), at each step, and look at the losses only.",
    "never stopped": "Note each loss in self.bad, fetch that every `every` steps, look at it `every` steps later.",
    "stopped too late or too early": "Look with get(), which waits for a flag that is `every` steps old: done() alone "
    "lets the loop run on when the device is slow.",
    "kept no copy": "detach() alone is no copy: keep what self.state() returns, which clones.",
    "put back NaN": "Weights can be broken one step before the loss tells: a state is proven only by a later loss that "
    "was computed from it.",
    "put back another state": "Copy the weights (self.state()), after the step, with the number of steps done.",
    "put back too old a state": "Keep a new one every `every` steps.",
    "after_step returned None": "It must return True or False after each step. Is a `return False` missing?",
    "after_step returned a tensor on the device": "Who looks at it waits. Return what a flag said that was fetched "
    "`every` steps ago, else False.",
    "after_step returned neither True nor False": "It must return True or False after each step.",
}


def guard_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A loss that is NaN, the weights unharmed or not, then a gradient, at each place; nothing wrong; a slow device."""
    places = torch.randperm(8, generator=rng).tolist()
    listed = [("loss", 6, 4, False), ("", 0, 4, False), ("told", 5, 4, False), ("gradient", 8, 4, False)]
    kinds = ("loss", "gradient", "told")
    drawn = [(kinds[p % 3], 9 + p, 4, False) for p in places]
    return [*listed, ("loss", 13, 5, True), *drawn, ("loss", 1, 3, False)]


def guard_faults(got: object, expected: object) -> str | None:
    """The likely cause of what is wrong."""
    if got == expected:
        return None
    what = str(got).split(":")[0]
    return _waiting_cause(str(got)) if what == "waited for young work" else _CAUSES[what]


def _waiting_cause(waited: str) -> str:
    """What makes a guard wait, by what `_young` said."""
    asked = waited.split("`")[1]
    return _ASKS.get(asked, "That empties the queue: in each step only launch, and look at old flags only.")


def waits_for_old_work_only(guard_class: Callable) -> str | None:
    """Says so where the guard waits for work of the last `every` steps."""
    dev, every = Watched(), 5
    try:
        model, optimizer = _weights()
        there = dev.put(torch.linspace(-1, 1, 12).reshape(3, 4))
        dev.put(model)
        guard = guard_class(dev, model, every)
        dev.ages.clear()
        for dev.step in range(1, 31):
            guard.after_step(_step(model, optimizer, there, ""))
        waited = _young(dev, every)
    finally:
        dev.close()
    return f"With every={every} it {waited}. {_waiting_cause(waited)}" if waited else None
