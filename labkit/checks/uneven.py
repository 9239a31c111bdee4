"""Exercise 13.4: one training step after another, on ranks that have different numbers of batches."""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

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


def alone(ranks: Sequence[Sequence[Batch]]) -> tuple[Float[Tensor, " N"], int]:
    """Weights and number of samples when one process trains on what all ranks together have in each step."""
    model, used = fresh(), 0
    for step in range(max(map(len, ranks))):
        x, y = (torch.cat([mine[step][i] for mine in ranks if step < len(mine)]) for i in range(2))
        model.zero_grad()
        (loss_of(model, (x, y)) / len(x)).backward()
        used += len(x)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= LR * weight.grad
    return nn.utils.parameters_to_vector(model.parameters()).detach(), used


def _train(fn: Callable, seed: int, sizes: Sequence[Sequence[int]]) -> tuple:
    """What a rank does: train on its own batches."""
    model, mine = fresh(), drawn(seed, sizes)[dist.get_rank()]
    with counting() as counted:
        used = fn(model, mine, LR)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), used, counted.n_bytes


def on_ranks(fn: Callable, seed: int, sizes: Sequence[Sequence[int]]) -> list[tuple]:
    """What fn leaves on each rank: weights, what it returns, and the bytes that it handed to collectives."""
    try:
        return run_ranks(_train, len(sizes), fn, seed, sizes, devices="cpu", timeout_s=TIMEOUT_S)
    except RankError as error:
        if "NotImplementedError: exercise " in str(error):
            raise NotImplementedError("exercise 13.4") from None
        raise


def trained(fn: Callable, seed: int, sizes: list[list[int]]) -> dict:
    """How train_uneven is used: on real ranks, each with its own number of batches. The reference has one process."""
    if fn is train_uneven:
        weights, used = alone(drawn(seed, sizes))
        return {"samples": [used] * len(sizes), "weights": [weights] * len(sizes)}
    ranks = on_ranks(fn, seed, sizes)
    return {"samples": [used for _, used, _ in ranks], "weights": [weights for weights, _, _ in ranks]}


def uneven_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One rank with a batch more, of two; then three ranks, batches of several sizes, one rank without any."""
    seed = lambda: int(torch.randint(1000, (), generator=rng))
    draw = lambda low, n: torch.randint(low, low + 4, (n,), generator=rng).tolist()
    more = [[4, 4, 4], [4, 4]]
    mixed = [draw(2, 2), draw(6, 5), []]
    return [(seed(), more), (seed(), mixed)]


def same_training(got: dict, expected: dict) -> str | None:
    """None where every rank has counted every sample and all weights are right, otherwise what is likely wrong."""
    if got["samples"] != expected["samples"]:
        return (
            "Each rank returns how many samples all ranks together have used, and none may be left out or used twice."
        )
    pairs = list(zip(got["weights"], expected["weights"], strict=True))
    if all(torch.allclose(mine, right, rtol=1e-4, atol=1e-5) for mine, right in pairs):
        return None
    if not all(torch.allclose(mine, got["weights"][0], rtol=1e-4, atol=1e-5) for mine, _ in pairs):
        return "The ranks end with different weights: all must take part in every step, those without a batch too."
    return "In each step, add up gradients and samples over all ranks, and divide one by the other."


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
