"""Bytes of the tensors that live at the peak of a training step, by torch's MemTracker, on tensors without data.

A fake tensor has a shape and a dtype and no memory, so a step of a large model is followed in seconds on any machine.
What is counted is live tensors: not the allocator's slack, not the device's context, not what a kernel uses inside.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Live bytes at a step's peak: in all, by category, in which phase; and the largest total of each phase.

    Phases are "forward: part", "backward: part" and "optimizer step"; part is the model's child whose work it is, "the
    model" between its children, "the loss" outside it. operation: what torch ran at the peak. Categories:
    parameters, buffers, gradients, activations, temporaries (of the backward pass), optimizer, other (tracked tensors).
    """

    total_bytes: int
    by_category: dict[str, int]
    phase: str
    phases: dict[str, int]
    operation: str


_CATEGORIES = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Activation": "activations",
    "Temp": "temporaries",
    "Optstate": "optimizer",
    "Other": "other",
}


class _Tracker(MemTracker):
    """MemTracker that also knows in which phase each total was reached."""

    def __init__(self):
        super().__init__()
        self.phases, self.peak = {}, Peak(total_bytes=0, by_category={}, phase="", phases={}, operation="")

    def _phase(self) -> str:
        """The optimizer's step, or forward or backward and the model's child whose work it is."""
        if self._in_opt:
            return "optimizer step"
        inside = [name.split(".") for name in self._mod_tracker.parents if name != "Global"]
        children = {parts[1] for parts in inside if len(parts) > 1}
        part = min(children) if children else "the model" if inside else "the loss"
        return f"{'backward' if self._mod_tracker.is_bw else 'forward'}: {part}"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Runs func, and looks at the total after it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        now, phase = self._curr_mem_snap.values(), self._phase()
        total = sum(device["Total"] for device in now)
        self.phases[phase] = max(total, self.phases.get(phase, 0))
        if total > self.peak.total_bytes:
            kinds = {_CATEGORIES[kind.value]: sum(device[kind] for device in now) for kind in self._ref_class}
            self.peak = Peak(
                total_bytes=total, by_category=kinds, phase=phase, phases=self.phases, operation=str(func)
            )
        return result


def peak(step: Callable[[], object], *tracked) -> Peak:
    """The peak of step(), where step has run before, so that the optimizer's state stands.

    tracked: the model, the optimizer, and tensors that live before the step begins; what is not named here and not made
    by step is not counted. Real tensors or, made within `fake()`, fake ones. Every device's bytes are added.
    """
    tracker = _Tracker()
    tracker.track_external(*tracked)
    with tracker:
        step()
    return tracker.peak


def fake() -> FakeTensorMode:
    """A context whose cpu tensors have no data: make the model, the optimizer and the batch in it."""
    return FakeTensorMode()
