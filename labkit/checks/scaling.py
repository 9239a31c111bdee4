"""Exercise 3.2, a loss scaler: how it is driven, its cases, and what is done wrong."""

from collections.abc import Callable, Sequence
from math import inf, nan

import torch
from torch import nn

from labkit.precision import LossScaler

_GOOD = [[0.5, 0.25], [1.0, -1.0], [-0.5, 0.75]]


def scaler_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Gradients of two weights, step by step, to a scaler with the given settings; then long random ones."""
    steps = [_GOOD[i % 3] for i in range(7)]
    bad = ([inf, 0.0], [0.0, nan], [0.0, inf])
    listed = [
        (steps[:2], 8.0, 100, False),
        *(([steps[0], each, steps[1], steps[2]], 8.0, 100, False) for each in bad),
        (steps, 8.0, 3, False),
        ([steps[0], steps[1], bad[0], *steps[:4]], 8.0, 3, False),
        (steps[:3], 8.0, 100, True),
        ([steps[0], bad[1], *steps[:3]], 16.0, 2, True),
    ]
    return [*listed, *(_random_steps(rng, unscale_first) for unscale_first in (False, True))]


def _random_steps(rng: torch.Generator, unscale_first: bool) -> tuple:
    """Forty steps, a fifth of them with inf or NaN."""
    kinds = torch.randint(0, 15, (40,), generator=rng).tolist()
    bad = ([inf, 0.0], [0.0, nan], [-inf, 1.0])
    return [bad[k] if k < 3 else _GOOD[k % 3] for k in kinds], 1024.0, 4, unscale_first


def drive_scaler(
    scaler_class: Callable, gradients: list, scale: float, growth_interval: int, unscale_first: bool
) -> dict:
    """What a scaler does with one gradient after the other: did it step, its scale, both weights, after each."""
    weights = [nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.5)
    scaler = scaler_class(scale=scale, growth_interval=growth_interval)
    found = {"stepped": [], "scale": [], "weights": []}
    for gradient in gradients:
        factor = float(scaler.scale_loss(torch.tensor(1.0)))
        for weight, value in zip(weights, gradient, strict=False):  # the third takes no part: its gradient is None
            weight.grad = torch.tensor(factor * value)
        if unscale_first:
            scaler.unscale(optimizer)
        found["stepped"].append(bool(scaler.step(optimizer)))
        found["scale"].append(float(scaler.scale))
        found["weights"].append([float(weight.detach()) for weight in weights])
    return found


def _mistaken_scaler(
    *, skip_resets: bool = True, growth_resets: bool = True, once: bool = True, forgets: bool = True, skips: bool = True
) -> type:
    """A scaler with one fault: what does not reset the count, unscaling at every call or only once, no skipping."""

    class Mistaken(LossScaler):
        def unscale(self, optimizer):
            self.unscaled = self.unscaled and once
            super().unscale(optimizer)

        def step(self, optimizer):
            counted, scale = self.good_steps, self.scale
            finite = super().step(optimizer)
            if not finite and not skips:
                for weight in [each for group in optimizer.param_groups for each in group["params"]]:
                    weight.grad = None if weight.grad is None else torch.zeros_like(weight)
                optimizer.step()
            if not finite and not skip_resets:
                self.good_steps = counted
            if self.scale > scale and not growth_resets:
                self.good_steps = self.growth_interval - 1
            self.unscaled = not forgets
            return finite

    return Mistaken


class _OneLate(LossScaler):
    """Grows one step too late."""

    def __init__(self, scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        super().__init__(scale, growth_interval=growth_interval + 1)


SCALER_MISTAKES = (
    ("A skipped step breaks the row of good ones: count from 0 again.", _mistaken_scaler(skip_resets=False)),
    ("After it has grown, it counts from 0 again; else it grows at every step.", _mistaken_scaler(growth_resets=False)),
    ("unscale ran before step, and again inside it: the second must change nothing.", _mistaken_scaler(once=False)),
    ("After a step there are new, scaled gradients: set self.unscaled to False.", _mistaken_scaler(forgets=False)),
    ("A skipped step leaves optimizer.step() out: momentum moves weights even where gradients are zero.",)
    + (_mistaken_scaler(skips=False),),
    ("It grows with the growth_interval-th good step in a row, not with the one after.", _OneLate),
)
