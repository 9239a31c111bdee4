"""A training step in a narrow format: autocast, a loss scaler, and the formats that this machine lacks, emulated."""

import copy
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from labkit.formats import Format, round_to, scaled_round
from labkit.train import mean_cross_entropy


class LossScaler:
    """Multiplies the loss so that small gradients survive a narrow format, and finds the factor by trying.

    A step whose gradients hold inf or NaN is skipped and the factor reduced; after growth_interval good steps in a row
    it grows. Each step waits for the device, to look at the gradients. Equals torch.amp.GradScaler, of which it is the
    plain form: it serves one optimizer, the first it is given, and does not support sparse gradients.
    ValueError: a second optimizer. Source: Micikevicius et al., Mixed Precision Training (ICLR 2018), section 3.2.
    """

    def __init__(
        self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, growth_interval: int = 2000
    ) -> None:
        self.scale, self.growth, self.backoff, self.growth_interval = scale, growth, backoff, growth_interval
        self.good_steps = 0
        self.unscaled = False
        self.optimizer: Optimizer | None = None

    def scale_loss(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The loss times the factor: what backward is called on."""
        return loss * self.scale

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the factor, in place; a second call before `step` changes nothing."""
        if self.optimizer not in (None, optimizer):
            raise ValueError("a LossScaler serves one optimizer; make another scaler for the second")
        self.optimizer = optimizer
        if not self.unscaled:
            for gradient in _gradients(optimizer):
                gradient /= self.scale
        self.unscaled = True

    def step(self, optimizer: Optimizer) -> bool:
        """Unscale, step where every gradient is finite, set the factor anew; whether the optimizer stepped."""
        self.unscale(optimizer)
        finite = all(bool(gradient.isfinite().all()) for gradient in _gradients(optimizer))
        if finite:
            optimizer.step()
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps == self.growth_interval:
            self.good_steps = 0
            self.scale = self.scale * self.growth if math.isfinite(self.scale * self.growth) else self.scale
        self.unscaled = False
        return finite


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    """The gradients of all parameters that have one."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def mixed_step(dtype: torch.dtype | None, scaler: LossScaler | None = None) -> Callable[..., Tensor]:
    """A step for `train.fit`: forward under autocast to dtype (None: no autocast), the loss scaled where asked.

    Weights, their gradients and the optimizer stay in float32.
    """

    def step(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: Optimizer) -> Float[Tensor, ""]:
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype is not None):
            loss = mean_cross_entropy(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale_loss(loss).backward()
            scaler.step(optimizer)
        return loss.detach().float()

    return step


class _Rounded(torch.autograd.Function):
    """A tensor rounded to a format, on the way forward and its gradient on the way back."""

    @staticmethod
    def forward(ctx, x: Tensor, to: Format) -> Tensor:
        """The tensor, rounded."""
        ctx.to = to
        return _rounded(x, to)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """Its gradient, rounded."""
        return _rounded(gradient, ctx.to), None


def _rounded(x: Tensor, to: Format) -> Tensor:
    """`round_to`, by torch's cast where that is the same and a hundred times faster."""
    return x.to(to.dtype).to(x.dtype) if to.dtype and to.infinite else round_to(x, to)


class _RoundedWeight(nn.Module):
    """A weight as its layer sees it."""

    def __init__(self, to: Format) -> None:
        super().__init__()
        self.to_format = to

    def forward(self, weight: Tensor) -> Tensor:
        """The weight, rounded; its gradient is rounded on the way back."""
        return _Rounded.apply(weight, self.to_format)


def _rounded_by(layer: nn.Module, x: object, to: Format) -> Tensor:
    """What a layer was given or returned, rounded. TypeError: something else than a tensor."""
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        raise TypeError(f"emulate rounds single tensors; {type(layer).__name__} is given or returns a {kind}")
    return _Rounded.apply(x, to)


def emulate(model: nn.Module, to: Format) -> nn.Module:
    """The model, changed in place to work as under autocast to a format, on a machine without that format's units.

    Weights of linear and convolution layers, and what every layer is given and returns, are rounded, and so are their
    gradients; sums inside a layer are in float32, as tensor cores have them. Make the optimizer afterwards. Ignores
    rounding inside normalisation and attention. As slow as float32 or slower.
    TypeError, when the model is run: a layer that is given or returns anything but tensors, as nn.LSTM returns a tuple.
    """
    for layer in [each for each in model.modules() if not list(each.children())]:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            for name, _ in list(layer.named_parameters()):
                parametrize.register_parametrization(layer, name, _RoundedWeight(to))
        layer.register_forward_pre_hook(lambda layer, given: tuple(_rounded_by(layer, x, to) for x in given))
        layer.register_forward_hook(lambda layer, _given, out: _rounded_by(layer, out, to))
    return model


def gradients_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Float[Tensor, "N"]:
    """The gradients that flow back through the model: of the mean loss by every layer's output, in one vector.

    The gradients of its weights are added to theirs, as by any backward.
    """
    caught = []

    def keep(_layer: nn.Module, _given: tuple, out: Tensor) -> None:
        out.register_hook(caught.append)

    layers = [layer for layer in model.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    mean_cross_entropy(model(inputs), targets).backward()
    for hook in hooks:
        hook.remove()
    return torch.cat([gradient.flatten() for gradient in caught])


def rounded_weights(model: nn.Module, to: Format, *, block: int | None = None, scales: str = "fp32") -> nn.Module:
    """A copy of the model whose linear and convolution weights went through `scaled_round`.

    Each output's weights are one row, padded with zeros to whole blocks.
    """
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            rows = layer.weight.detach().flatten(1)
            padded = functional.pad(rows, (0, -rows.shape[1] % (block or 1)))
            back = scaled_round(padded, to, block=block, scales=scales)[:, : rows.shape[1]]
            layer.weight.data.copy_(back.reshape(layer.weight.shape))
    return model
