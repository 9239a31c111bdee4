"""One plain training step, one loop, and learning-rate schedules: functions from a step's number to a rate.

A later lesson's idea plugs in as a plain callable: `batches` may change size, `step` may change precision.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from labkit import repro
from labkit.show import in_notebook

Schedule = Callable[[int], float]
_STEPS_BETWEEN_LOOKS = 10  # reading a loss makes the device wait, so divergence is looked for this often


def constant(peak: float, n_steps: int) -> Schedule:  # noqa: ARG001 - all schedules are made alike
    """The same rate, peak, at every step, whatever their number."""
    return lambda _step: peak


def step_decay(peak: float, n_steps: int, *, at: tuple[float, ...] = (0.5, 0.8), factor: float = 0.1) -> Schedule:
    """The rate peak, multiplied by factor when each share of the steps in `at` has passed."""
    drops = [round(share * n_steps) for share in at]
    return lambda step: peak * factor ** sum(step >= drop for drop in drops)


def _warmed(step: int, peak: float, n_warmup: int) -> float:
    """The rate during linear warm-up: peak / n_warmup at step 0, peak at the last step of warm-up and after it."""
    return peak * min(1.0, (step + 1) / max(1, n_warmup))


def warmup_constant(peak: float, n_steps: int, *, warmup_share: float = 0.1) -> Schedule:
    """A linear rise to peak over a share of the steps, then peak."""
    n_warmup = round(warmup_share * n_steps)
    return lambda step: _warmed(step, peak, n_warmup)


def one_cycle(peak: float, n_steps: int, *, warmup_share: float = 0.3) -> Schedule:
    """A linear rise to peak over a share of the steps, then half a cosine down, almost to zero at the last step.

    Source: Smith and Topin, Super-convergence (2018), with the cosine of Loshchilov and Hutter, SGDR (ICLR 2017).
    """
    n_warmup = round(warmup_share * n_steps)

    def rate(step: int) -> float:
        down = max(0.0, (step + 1 - n_warmup) / (n_steps + 1 - n_warmup))
        return _warmed(step, peak, n_warmup) * (1 + math.cos(math.pi * down)) / 2

    return rate


def warmup_stable_decay(
    peak: float, n_steps: int, *, warmup_share: float = 0.1, decay_share: float = 0.3
) -> Schedule:
    """A linear rise to peak, a plateau, and a linear fall over the last share of the steps, almost to zero.

    Source: Hu et al., MiniCPM (2024), section 4; Hägele et al., Scaling laws beyond fixed durations (NeurIPS 2024).
    """
    n_warmup, n_decay = round(warmup_share * n_steps), round(decay_share * n_steps)
    return lambda step: _warmed(step, peak, n_warmup) * min(1.0, (n_steps - step) / max(1, n_decay))


def shuffled(
    inputs: Shaped[Tensor, "M ..."], targets: Int[Tensor, "M"], *, batch_size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end, in a new order each epoch; the fewer than batch_size left at an epoch's end sit it out.

    The order comes from a generator of its own, so that what the model draws does not change it.
    ValueError: a batch_size larger than the data.
    """
    if not 1 <= batch_size <= len(inputs):
        raise ValueError(f"batches of {batch_size} cannot be drawn from {len(inputs)} examples")
    order = torch.Generator().manual_seed(seed)
    while True:
        shuffle = torch.randperm(len(inputs), generator=order).to(inputs.device)
        for chosen in shuffle.split(batch_size):
            if len(chosen) == batch_size:
                yield inputs[chosen], targets[chosen]


def windows(
    tokens: Int[Tensor, "M"], *, batch_size: int, context: int, seed: int
) -> Iterator[tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]]:
    """Batches of text without end: windows from random places, and the same windows one token later.

    ValueError: a text shorter than one window and the token after it.
    """
    if len(tokens) <= context:
        raise ValueError(f"a window of {context} tokens and the next one do not fit into {len(tokens)} tokens")
    place = torch.Generator().manual_seed(seed)
    offsets_T = torch.arange(context)
    while True:
        starts_B = torch.randint(len(tokens) - context, (batch_size,), generator=place)
        index_BT = (starts_B[:, None] + offsets_T).to(tokens.device)
        yield tokens[index_BT], tokens[index_BT + 1]


def mean_cross_entropy(logits: Float[Tensor, "*S N"], targets: Int[Tensor, "*S"]) -> Float[Tensor, ""]:
    """Cross-entropy in nats, averaged over images or over tokens alike."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def train_step(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: Optimizer) -> Float[Tensor, ""]:
    """Change the model once; the loss before the change, still on the device."""
    optimizer.zero_grad()
    loss = mean_cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def as_function(
    model: nn.Module, inputs: Tensor, targets: Tensor
) -> tuple[Callable[[Float[Tensor, "P"]], Float[Tensor, ""]], Float[Tensor, "P"]]:
    """(loss_at, w): the model's loss on these examples as a function of all its weights in one vector, and that vector.

    The model keeps its own weights, and its mode: in training mode a batch-norm sees the batch's statistics.
    """
    names, weights = zip(*model.named_parameters(), strict=True)

    def loss_at(w: Float[Tensor, "P"]) -> Float[Tensor, ""]:
        parts = w.split([weight.numel() for weight in weights])
        shaped = {name: part.view_as(weight) for name, part, weight in zip(names, parts, weights, strict=True)}
        return mean_cross_entropy(torch.func.functional_call(model, shaped, inputs), targets)

    return loss_at, nn.utils.parameters_to_vector(weights).detach()


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well a model predicts: mean loss in nats, and the share it gets right."""

    loss: float
    accuracy: float


@torch.no_grad()
def score(model: nn.Module, inputs: Tensor, targets: Tensor, *, batch_size: int = 500) -> Score:
    """Loss and accuracy of the model, set to evaluate, on images and classes or on windows and next tokens."""
    was_training = model.training
    model.eval()
    loss = correct = torch.zeros((), dtype=torch.float64, device=targets.device)
    for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
        logits = model(x)
        loss = loss + mean_cross_entropy(logits, y) * y.numel()
        correct = correct + (logits.argmax(-1) == y).sum()
    model.train(was_training)
    return Score(loss=loss.item() / targets.numel(), accuracy=correct.item() / targets.numel())


@dataclass(frozen=True, kw_only=True)
class History:
    """What a run did: rate and loss at every step, scores at some, and the seconds of training until each score.

    eval_steps counts the steps done before each score; the seconds leave scoring out, by the wall clock (eval_wall_s)
    and by the processor's (eval_cpu_s). diverged: a loss stopped being a finite number.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    diverged: bool
    eval_steps: tuple[int, ...] = ()
    eval_losses: tuple[float, ...] = ()
    eval_accuracies: tuple[float, ...] = ()
    eval_wall_s: tuple[float, ...] = ()
    eval_cpu_s: tuple[float, ...] = ()

    @property
    def steps(self) -> range:
        """The numbers of the steps done, from 0."""
        return range(len(self.losses))

    def first(self, accuracy: float) -> int | None:
        """Which evaluation was the first at `accuracy` or above: its place in eval_steps and the others, or None."""
        return next((i for i, reached in enumerate(self.eval_accuracies) if reached >= accuracy), None)


class _Stopwatch:
    """Seconds of training by the wall's and the processor's clock, the parts under `paused` left out."""

    def __init__(self, device: torch.device):
        self.device = device
        self.wall_s = self.cpu_s = 0.0
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Seconds spent inside do not count."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # until here the work was only queued
        self.wall_s += time.perf_counter() - self._wall
        self.cpu_s += time.process_time() - self._cpu
        yield
        self._start()


def _bar(n_steps: int, wanted: bool):
    """A progress bar for a terminal or a notebook; a silent one in tests and where output goes to a file."""
    from tqdm.auto import tqdm

    seen = wanted and not repro.quiet() and (in_notebook() or sys.stderr.isatty())
    return tqdm(total=n_steps, disable=not seen, leave=False, unit="step")


def _any_lost(losses: list[Tensor]) -> bool:
    """Whether one of the losses is no longer a finite number; the device is waited for."""
    return not torch.stack(losses).isfinite().all().item()


def fit(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    n_steps: int,
    optimizer: Optimizer,
    lr: Schedule,
    evaluate: Callable[[nn.Module], Score] | None = None,
    evaluate_every: int | None = None,
    step: Callable[..., Tensor] = train_step,
    on_step: Callable[[int, nn.Module], None] | None = None,
    stop_when_diverged: bool = True,
    progress: bool = True,
) -> History:
    """Train the model, in place, for n_steps and tell what happened.

    evaluate runs every evaluate_every steps and after the last one; on_step(number, model) runs before each step; the
    seconds of History contain neither. A run that diverges is given up at most ten steps later.
    ValueError: batches that end too early.
    """
    every = evaluate_every or n_steps
    clock = _Stopwatch(next(model.parameters()).device)
    lrs, losses, scores, diverged = [], [], [], False
    model.train()
    with _bar(n_steps, progress) as bar:
        for number, (inputs, targets) in zip(range(n_steps), batches, strict=False):
            if on_step:
                with clock.paused():
                    on_step(number, model)
            rate = lr(number)
            for group in optimizer.param_groups:
                group["lr"] = rate
            lrs.append(rate)
            losses.append(step(model, inputs, targets, optimizer))
            done = number + 1
            if done % _STEPS_BETWEEN_LOOKS == 0 or done == n_steps:
                diverged = diverged or _any_lost(losses[-_STEPS_BETWEEN_LOOKS:])
                bar.update(done - bar.n)
                if diverged and stop_when_diverged:
                    bar.total = bar.n  # a bar that ends full is cleared away
                    break
            if evaluate and (done % every == 0 or done == n_steps):
                with clock.paused():
                    scores.append((done, clock.wall_s, clock.cpu_s, evaluate(model)))
    if len(losses) < n_steps and not diverged:
        raise ValueError(f"the batches ended after {len(losses)} of {n_steps} steps")
    return _history(lrs, losses, scores, diverged)


def _history(lrs: list[float], losses: list[Tensor], scores: list[tuple], diverged: bool) -> History:
    """The record of a run from what its loop collected; the losses are read from the device here, all at once."""
    steps, wall_s, cpu_s, measured = zip(*scores, strict=True) if scores else ((), (), (), ())
    return History(
        lrs=tuple(lrs),
        losses=tuple(torch.stack(losses).tolist()),
        diverged=diverged,
        eval_steps=steps,
        eval_losses=tuple(each.loss for each in measured),
        eval_accuracies=tuple(each.accuracy for each in measured),
        eval_wall_s=wall_s,
        eval_cpu_s=cpu_s,
    )
