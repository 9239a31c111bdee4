"""Exercise 3.2, a loss scaler: how it is driven, its cases, and what is done wrong."""

from collections.abc import Callable, Sequence
from math import inf, nan

import torch
from jaxtyping import Float
from torch import Tensor, nn

from labkit.precision import LossScaler

_GOOD = [[0.5, 0.25], [1.0, -1.0], [-0.5, 0.75]]


def scaler_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Gradients of two weights, step by step, to a scaler with the given settings; then long random ones.

    Growth and back-off differ from what they are by default, first one, then the other.
    """
    steps = [_GOOD[i % 3] for i in range(7)]
    bad = ([inf, 0.0], [0.0, nan], [0.0, inf])
    listed = [
        (steps[:2], 8.0, 2.0, 0.5, 100, False),
        *(([steps[0], each, steps[1], steps[2]], 8.0, 2.0, 0.25, 100, False) for each in bad),
        (steps, 8.0, 3.0, 0.5, 3, False),
        ([steps[0], steps[1], bad[0], *steps[:4]], 8.0, 3.0, 0.25, 3, False),
        (steps[:3], 8.0, 2.0, 0.5, 100, True),
        ([steps[0], bad[1], *steps[:3]], 16.0, 2.0, 0.5, 2, True),
    ]
    return [*listed, (*_random(rng), 2.0, 0.5, 4, False), (*_random(rng), 3.0, 0.25, 4, True)]


def _random(rng: torch.Generator) -> tuple:
    """Forty steps, a fifth of them with inf or NaN, and the scale to start with."""
    kinds = torch.randint(0, 15, (40,), generator=rng).tolist()
    bad = ([inf, 0.0], [0.0, nan], [-inf, 1.0])
    return [bad[k] if k < 3 else _GOOD[k % 3] for k in kinds], 1024.0


def drive_scaler(
    scaler_class: Callable,
    gradients: list,
    scale: float,
    growth: float,
    backoff: float,
    growth_interval: int,
    unscale_first: bool,
) -> dict:
    """What a scaler does with one gradient after the other: did it step, its scale, the weights, after each.

    The weights lie in two groups, as they often do, and the third takes no part: its gradient is None. Also kept:
    whether scale_loss left its argument alone, and where unscale is called before step, the gradients then.
    """
    weights = [nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))]
    groups = [{"params": weights[::2]}, {"params": weights[1:2], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.5)
    scaler = scaler_class(scale=scale, growth=growth, backoff=backoff, growth_interval=growth_interval)
    found = {"loss_kept": [], "gradients": [], "stepped": [], "scale": [], "weights": []}
    for gradient in gradients:
        optimizer.zero_grad()
        loss = _loss(weights, gradient)
        before = loss.detach().clone()
        scaled = scaler.scale_loss(loss)
        if getattr(scaled, "requires_grad", False):  # else no gradient arrives, and the weights stay where they are
            scaled.backward()
        found["loss_kept"].append(loss.detach().equal(before) or bool(before.isnan()))
        if unscale_first:
            scaler.unscale(optimizer)
            found["gradients"].append([0.0 if each.grad is None else float(each.grad) for each in weights])
        found["stepped"].append(bool(scaler.step(optimizer)))
        found["scale"].append(float(scaler.scale))
        found["weights"].append([float(weight.detach()) for weight in weights])
    return found


def _loss(weights: list, gradient: list) -> Float[Tensor, ""]:
    """A finite loss whose gradients by the first weights are the given ones, inf and NaN too."""
    terms = [weight * 1.0 for weight, _ in zip(weights, gradient, strict=False)]
    for term, value in zip(terms, gradient, strict=True):
        term.register_hook(lambda flowing, value=value: flowing * value)
    return sum(terms)


def _mistaken_scaler(
    *,
    skip_resets: bool = True,
    growth_resets: bool = True,
    once: bool = True,
    forgets: Callable[[bool], bool] = lambda _finite: True,
    skips: bool = True,
) -> type:
    """A scaler with one fault: what does not reset the count, unscaling at every call or only once, no skipping.

    forgets: whether it sets self.unscaled to False after a step, given whether the gradients were finite.
    """

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
            self.unscaled = not forgets(finite)
            return finite

    return Mistaken


class _OneLate(LossScaler):
    """Grows one step too late."""

    def __init__(self, *, growth_interval: int, **settings: float) -> None:
        super().__init__(growth_interval=growth_interval + 1, **settings)


class _DefaultsOnly(LossScaler):
    """Doubles and halves, whatever it is told."""

    def __init__(self, *, scale: float, growth_interval: int, **_settings: float) -> None:
        super().__init__(scale, growth_interval=growth_interval)


class _FirstGroup(LossScaler):
    """Unscales the gradients of the first group only."""

    def unscale(self, optimizer):
        """Divides, and takes it back for the other groups."""
        parameters = [each for group in optimizer.param_groups[1:] for each in group["params"]]
        others = [] if self.unscaled else [each.grad for each in parameters]
        super().unscale(optimizer)
        for gradient in others:
            gradient *= self.scale


class _NotInPlace(LossScaler):
    """Divides copies of the gradients."""

    def unscale(self, optimizer):  # noqa: ARG002
        """Changes no gradient."""
        self.unscaled = True


class _NoGraph(LossScaler):
    """Scales the number, not the tensor."""

    def scale_loss(self, loss):
        """A number that backward cannot start from."""
        return loss.detach() * self.scale


class _LossInPlace(LossScaler):
    """Changes the loss that it was given."""

    def scale_loss(self, loss):
        """The same tensor, multiplied."""
        return loss.mul_(self.scale)


_FORGET = "After a step there are new, scaled gradients: set self.unscaled to False"
SCALER_MISTAKES = (
    ("No gradient arrives: scale_loss returns no tensor that backward can start from. Return loss * self.scale.",)
    + (_NoGraph,),
    ("scale_loss changes the loss itself, in place, which others still report: return loss * self.scale.",)
    + (_LossInPlace,),
    ("unscale changes the gradients themselves, in place: `g = g / self.scale` makes new ones that nobody uses.",)
    + (_NotInPlace,),
    ("Only the first of optimizer.param_groups is looked at: go through all of them.", _FirstGroup),
    ("growth and backoff are given; 2 and 0.5 are only what they are by default.", _DefaultsOnly),
    ("A skipped step breaks the row of good ones: count from 0 again.", _mistaken_scaler(skip_resets=False)),
    ("After it has grown, it counts from 0 again; else it grows at every step.", _mistaken_scaler(growth_resets=False)),
    ("unscale ran before step, and again inside it: the second must change nothing.", _mistaken_scaler(once=False)),
    (f"{_FORGET}.", _mistaken_scaler(forgets=lambda _finite: False)),
    (f"{_FORGET}, after a skipped one too.", _mistaken_scaler(forgets=lambda finite: finite)),
    (f"{_FORGET}, not only after a skipped one.", _mistaken_scaler(forgets=lambda finite: not finite)),
    ("A skipped step leaves optimizer.step() out: momentum moves weights even where gradients are zero.",)
    + (_mistaken_scaler(skips=False),),
    ("It grows with the growth_interval-th good step in a row, not with the one after.", _OneLate),
)
