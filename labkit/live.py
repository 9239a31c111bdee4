"""Bytes of the tensors that live at the peak of a training step, by torch's MemTracker, on tensors without data.

A fake tensor has a shape and a dtype and no memory, so a step of a large model is followed in seconds on any machine.
What is counted is live tensors: not the allocator's slack, not the device's context, not what a kernel uses inside.
"""

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from labkit import lm
from labkit.architecture import Architecture
from labkit.optimizers import Optimizer
from labkit.states import Plan, check


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
        self.after_backward = False
        self.phases, self.peak = {}, Peak(total_bytes=0, by_category={}, phase="", phases={}, operation="")

    def _phase(self) -> str:
        """The optimizer's step, or forward or backward and the model's child whose work it is.

        What runs outside the model after a backward pass is the optimizer's, such as gradients that it widens.
        """
        inside = [name.split(".") for name in self._mod_tracker.parents if name != "Global"]
        self.after_backward = self._mod_tracker.is_bw or (self.after_backward and not inside)
        if self._in_opt or (self.after_backward and not self._mod_tracker.is_bw):
            return "optimizer step"
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
            self.peak = Peak(total_bytes=total, by_category=kinds, phase=phase, phases=self.phases, operation=str(func))
        return result


def peak(step: Callable[[], object], *tracked) -> Peak:
    """The peak of step(), where step has run before, so that the optimizer's state stands.

    tracked: the model, the optimizer, and tensors that live before the step begins; what is not named here and not made
    by step is not counted. Real tensors or, made within `fake()`, fake ones. Every device's bytes are added.
    """
    tracker = _Tracker()
    tracker.track_external(*tracked)
    with tracker, warnings.catch_warnings():
        # A hook that takes a gradient away leaves none for MemTracker to look at, which it says each time.
        warnings.filterwarnings("ignore", "Expected a tensor or a traceable wrapper-subclass")
        step()
    return tracker.peak


def training_peak(arch: Architecture, plan: Plan) -> Peak:
    """The peak of a reference model's step by this plan, on one rank: the measured counterpart of labkit.estimate.

    Adafactor reads its numbers, so its step runs on real tensors, and the model must be small. ValueError: what one
    rank cannot show (several ranks, adapters), experts, or an optimizer that torch has not.
    """
    if plan.ranks > 1 or plan.lora:
        raise ValueError("a step on one rank shows neither several ranks nor adapters")
    check(arch, plan)
    with nullcontext() if plan.optimizer == "adafactor" else fake():
        return _peak(lm.build(arch, attention=plan.attention, recompute=plan.recompute), plan)


def module_peak(model: nn.Module, plan: Plan) -> Peak:
    """The peak of a step of any model from tokens to logits (or to an object that has them), as it is, on one rank.

    The model is not touched and its weights are not copied. Of the plan, precision, optimizer, batch and seq count.
    """
    with fake():
        memo = {}
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            del name
            made = torch.empty(each.shape, dtype=each.dtype)
            memo[id(each)] = nn.Parameter(made, each.requires_grad) if isinstance(each, nn.Parameter) else made
        return _peak(copy.deepcopy(model, memo), plan)


def _peak(model: nn.Module, plan: Plan) -> Peak:
    """The peak of the second step of a model in 32 bits, set to the plan's precision first."""
    if plan.precision in ("bf16", "mixed", "mixed-fp32-grads"):
        for weight in model.parameters():
            weight.data = weight.data.bfloat16()
    optimizer = Optimizer(model, plan)
    tokens = torch.zeros(plan.batch, plan.seq + 1, dtype=torch.int64)
    step = lambda: lm.train_step(model, optimizer, tokens, autocast=plan.precision == "autocast")
    step()
    copies = [] if optimizer.masters is optimizer.weights else optimizer.masters
    return peak(step, model, copies, *optimizer.inner, tokens)


@contextmanager
def fake() -> Iterator[FakeTensorMode]:
    """A context whose cpu tensors have no data: make the model, the optimizer and the batch in it.

    Where transformers is imported, it is told that no row is packed of several sequences. It cannot see that without
    data, and would write out masks, batch x 1 x seq x seq, that the same step with data has not.
    """
    masking = sys.modules.get("transformers.masking_utils")
    looks = getattr(masking, _LOOKS, None)
    if looks:
        setattr(masking, _LOOKS, lambda position_ids: None)  # noqa: ARG005 - as it is called
    try:
        with FakeTensorMode() as mode:
            yield mode
    finally:
        if looks:
            setattr(masking, _LOOKS, looks)


_LOOKS = "find_packed_sequence_indices"
