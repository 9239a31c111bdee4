"""Optimizers as a `Plan` names them, with a master copy of the weights in 32 bits where the plan has one."""

from collections.abc import Iterable

import torch
from torch import nn

from labkit.states import Plan


def _of(parameters: Iterable[nn.Parameter], name: str, fused: bool = False) -> list[torch.optim.Optimizer]:
    """torch's optimizers of this name: on all parameters at once ("foreach") where they can be, or fused."""
    parameters, how = list(parameters), {"fused": True} if fused else {"foreach": True}
    if name in ("sgd", "momentum"):
        return [torch.optim.SGD(parameters, lr=1e-3, momentum=0.9 if name == "momentum" else 0.0, **how)]
    if name == "adam":
        return [torch.optim.AdamW(parameters, lr=1e-3, **how)]
    if name == "adafactor":
        return [torch.optim.Adafactor(parameters, lr=1e-3, foreach=True)]
    if name != "muon":
        raise ValueError(f"torch has no optimizer {name!r}")
    by_muon = [p for p in parameters if getattr(p, "in_block", False) and p.ndim == 2]
    rest = [p for p in parameters if not any(p is other for other in by_muon)]
    found = [torch.optim.Muon(by_muon, lr=1e-3)] if by_muon else []
    return found + ([torch.optim.AdamW(rest, lr=1e-3, **how)] if rest else [])


class Optimizer:
    """A plan's optimizer: steps on the weights, or on master copies in 32 bits that the weights are then set to.

    "mixed": each 16-bit gradient is copied to 32 bits for the step, and freed. "mixed-fp32-grads": it is copied, and
    freed, as soon as the backward pass has made it. Muon is for the matrices of model.blocks, or all but embeddings
    where a model has no such part; AdamW for the rest. fused: one kernel a tensor; "mixed" widens, steps and frees
    one gradient at a time, and the 16-bit ones stay. ValueError: an optimizer that torch has not.
    """

    def __init__(self, model: nn.Module, plan: Plan):
        self.weights = [p for p in model.parameters() if p.requires_grad]
        ends = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        blocks = {id(p) for p in getattr(model, "blocks", model).parameters()} - ends
        self.masters = self.weights
        if plan.precision.startswith("mixed"):
            self.masters = [nn.Parameter(p.detach().float()) for p in self.weights]
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.in_block = id(weight) in blocks
            if plan.precision == "mixed-fp32-grads":
                weight.register_post_accumulate_grad_hook(lambda w, master=master: self._move(w, master))
        self.one_by_one = plan.fused and plan.precision == "mixed"
        groups = [[master] for master in self.masters] if self.one_by_one else [self.masters]
        self.inner = [each for group in groups for each in _of(group, plan.optimizer, plan.fused)]

    @staticmethod
    def _move(weight: nn.Parameter, master: nn.Parameter) -> None:
        """A weight's gradient becomes its master's, in 32 bits, added to what is there."""
        if master.grad is None:
            master.grad = weight.grad.float()
        else:
            master.grad += weight.grad
        weight.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients are dropped."""
        for p in (*self.weights, *self.masters):
            p.grad = None if set_to_none or p.grad is None else p.grad.zero_()

    def step(self) -> None:
        """Weights move; gradients stay until zero_grad, in the width that the step used, or as they came if fused."""
        if self.one_by_one:
            self._step_one_by_one()
            return
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight and weight.grad is not None:
                self._move(weight, master)
        for optimizer in self.inner:
            optimizer.step()
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                weight.data.copy_(master.data)

    def _step_one_by_one(self) -> None:
        """Each gradient is widened for its own step alone."""
        for weight, master, optimizer in zip(self.weights, self.masters, self.inner, strict=True):
            if weight.grad is not None:
                master.grad = weight.grad.float()
                optimizer.step()
                master.grad = None
                weight.data.copy_(master.data)
