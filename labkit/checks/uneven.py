"""Exercise 13.4: one training step after another, on ranks that have different numbers of batches."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from labkit.checks.replicas import seeds
from labkit.ranks import RankError, counting, run_ranks

Batch = tuple[Float[Tensor, "_ 3"], Float[Tensor, "_ 1"]]
LR, TIMEOUT_S = 0.05, 4.0


def fresh() -> nn.Module:
    """A small network, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The sum, not the mean, of the squared errors of a batch."""
    x, y = batch
    return ((model(x) - y) ** 2).sum()


def train_uneven(model: nn.Module, batches: Sequence[Batch], lr: float) -> int:
    """Train in place until no rank has a batch left; returns the number of samples that all ranks have used."""
    used = 0
    for step in itertools.count():
        model.zero_grad()
        weights = list(model.parameters())
        n_samples = weights[0].new_zeros(())
        if step < len(batches):
            loss_of(model, batches[step]).backward()
            n_samples += len(batches[step][0])
        dist.all_reduce(n_samples)
        if n_samples == 0:
            return used
        used += int(n_samples)
        for weight in weights:
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(grad)
            weight.data -= lr * grad / n_samples
    raise AssertionError  # never: count does not end


def drawn(seed: int, sizes: Sequence[Sequence[int]]) -> list[list[Batch]]:
    """For each rank, its batches; `sizes` says how many samples each holds."""
    dice = torch.Generator().manual_seed(seed)
    draw = lambda n: (torch.randn(n, 3, generator=dice), torch.randn(n, 1, generator=dice))
    return [[draw(n) for n in mine] for mine in sizes]


@dataclass(frozen=True, kw_only=True)
class OneProcess:
    """Training by one process on what all ranks have in each step: rightly, or with a mistake.

    reset: gradients begin at zero in each step. in_place: where they do not, sums over ranks are kept, not own ones.
    mean: each rank's loss is the mean over its batch. divide: the sum over ranks is divided by the `samples`, the
    `ranks`, those `left` in this step, or `nothing`.
    """

    reset: bool = True
    in_place: bool = False
    mean: bool = False
    divide: str = "samples"

    def __call__(self, ranks: Sequence[Sequence[Batch]]) -> list[Float[Tensor, " N"]]:
        """The weights before the first step and after each."""
        model = fresh()
        path, kept = [weights_of(model)], [torch.zeros(())] * len(ranks)
        for step in range(max(map(len, ranks))):
            sizes = [len(mine[step][0]) for mine in ranks if step < len(mine)]
            own = [self._gradient(model, mine[step : step + 1]) for mine in ranks]
            kept = own if self.reset else [old + new for old, new in zip(kept, own, strict=True)]
            total = sum(kept)
            kept = [total] * len(ranks) if self.in_place else kept
            by = {"samples": sum(sizes), "ranks": len(ranks), "left": len(sizes), "nothing": 1}[self.divide]
            path.append(path[-1] - LR * total / by)
            nn.utils.vector_to_parameters(path[-1], model.parameters())
        return path

    def _gradient(self, model: nn.Module, batches: Sequence[Batch]) -> Float[Tensor, " N"]:
        """The gradient of one batch, or of none."""
        model.zero_grad(set_to_none=False)
        for batch in batches:
            (loss_of(model, batch) / (len(batch[0]) if self.mean else 1)).backward()
        grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]
        return nn.utils.parameters_to_vector(grads).clone()


def weights_of(model: nn.Module) -> Float[Tensor, " N"]:
    """A copy of all weights, in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


_MEANS = "The mean over all samples is not the mean of means, in which a small batch weighs as much as a large one"
UNEVEN_MISTAKES = (
    ("Gradients add up from step to step: set them to zero before each one.", OneProcess(reset=False)),
    ("Gradients add up from step to step: set them to zero before each one.", OneProcess(reset=False, in_place=True)),
    (
        "It divides twice: `mean()` has divided by the size of the batch. Add up squared errors, with `sum()`.",
        OneProcess(mean=True),
    ),
    (
        f"{_MEANS} (as with DDP under `join`), and one without a batch counts. Divide by the samples.",
        OneProcess(mean=True, divide="ranks"),
    ),
    (f"{_MEANS} (as with DDP under `join`). Divide by the samples.", OneProcess(mean=True, divide="left")),
    ("Sums are not divided: divide the summed gradient by the summed number of samples.", OneProcess(divide="nothing")),
    (
        "The sum is divided by the number of ranks: divide it by the summed number of samples.",
        OneProcess(divide="ranks"),
    ),
)


def _train(fn: Callable, seed: int, sizes: Sequence[Sequence[int]]) -> tuple:
    """What a rank does: train on its own batches. The weights before each forward pass tell the step."""
    model, mine, path = fresh(), drawn(seed, sizes)[dist.get_rank()], []
    model.register_forward_pre_hook(lambda *_: path.append(weights_of(model)))
    with counting() as counted:
        used = fn(model, mine, LR)
    return [*path, weights_of(model)], used, counted.n_bytes


def on_ranks(fn: Callable, seed: int, sizes: Sequence[Sequence[int]]) -> list[tuple]:
    """What fn leaves on each rank: its path of weights, what it returns, the bytes that it handed to collectives."""
    try:
        return run_ranks(_train, len(sizes), fn, seed, sizes, devices="cpu", timeout_s=TIMEOUT_S)
    except RankError as error:
        if "NotImplementedError: exercise " in str(error):
            raise NotImplementedError("exercise 13.4") from None
        raise


def trained(fn: Callable, seed: int, sizes: list[list[int]]) -> dict:
    """How train_uneven is used: on real ranks, each with its own number of batches. The reference has one process."""
    fn = OneProcess() if fn is train_uneven else fn
    if isinstance(fn, OneProcess):
        path = fn(drawn(seed, sizes))
        ranks = [(path, sum(map(sum, sizes)), 0)] * len(sizes)
    else:
        ranks = on_ranks(fn, seed, sizes)
    paths = [torch.stack(path) for path, _, _ in ranks]
    return {
        "samples": [used for _, used, _ in ranks],
        "weights": [path[-1] for path in paths],
        # Of any length, for a model may be asked more than once a step.
        "paths": [path.numpy().tobytes() for path in paths],
    }


def _paths(trained_ones: dict) -> list[list[Tensor]]:
    """The weights before each forward pass of each rank, and at the end."""
    shape = (-1, *trained_ones["weights"][0].shape)
    dtype = trained_ones["weights"][0].dtype
    return [list(torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)) for raw in trained_ones["paths"]]


def uneven_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One rank with a batch more, of two; then three ranks, batches of several sizes, one rank without any."""
    draw = lambda low, n: torch.randint(low, low + 4, (n,), generator=rng).tolist()
    more = [[4, 4, 4], [4, 4]]
    mixed = [draw(2, 2), draw(6, 5), []]
    first, second = seeds(rng, 2)
    return [(first, more), (second, mixed)]


def same_training(got: dict, expected: dict) -> str | None:
    """None where every rank has counted every sample and all weights are right, otherwise what is likely wrong."""
    if got["samples"] != expected["samples"]:
        return (
            "Each rank returns how many samples all ranks together have used, and none may be left out or used twice."
        )
    paths, right = _paths(got), _paths(expected)[0]
    if all(_near(path[-1], right[-1]) for path in paths):
        return None
    off = f"{_where_off(paths, right)} " if len(right) > 1 else ""
    if not all(_near(path[-1], paths[0][-1]) for path in paths):
        cause = "The ranks end with different weights: all must take part in every step, those without a batch too."
        return off + cause
    return f"{off}In each step, add up gradients and samples over all ranks, and divide one by the other."


def _near(mine: Tensor, right: Tensor) -> bool:
    """Whether weights are equal but for rounding."""
    return torch.allclose(mine, right, rtol=1e-4, atol=1e-5)


def _where_off(paths: Sequence[list[Tensor]], right: list[Tensor]) -> str:
    """The first step after which a rank's weights are wrong, as far as its forward passes show; otherwise the end."""
    seen = [
        (step, rank)
        for rank, path in enumerate(paths)
        for step, weights in enumerate(path[: min(len(path) - 1, len(right))])
        if not _near(weights, right[step])
    ]
    seen += [(len(right) - 1, rank) for rank, path in enumerate(paths) if not _near(path[-1], right[-1])]
    step, rank = min(seen)
    mine = paths[rank][step] if step < len(paths[rank]) - 1 else paths[rank][-1]
    off = float((mine - right[step]).abs().max())
    return f"After step {step} of {len(right) - 1} a weight of rank {rank} is off by {off:.1g}."


def few_bytes(fn: Callable) -> str | None:
    """None unless ranks hand out more than their gradients and a little: data should stay where it is."""
    sizes = [[64] * 6, [64] * 5]
    n_weights = sum(weight.numel() for weight in fresh().parameters())
    handed = max(n_bytes for _, _, n_bytes in on_ranks(fn, 5, sizes))
    allowed = 7 * (4 * n_weights + 64)
    if handed <= allowed:
        return None
    return (
        f"A rank handed {handed:,} bytes to collectives in 6 steps; the gradients and a few numbers are {allowed:,} at "
        "most. Batches stay on their rank."
    )
