"""A loss per token over ranks and micro-batches, for lesson 12: the trusted form, and how a learner's is looked at."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.checks.replicas import in_ranks, trusted
from labkit.ranks import counting

_IGNORED = -100
_FEW_BYTES = 64


def token_mean_backward(model: nn.Module, micro_batches: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The mean loss over the tokens of all micro-batches of all ranks; its gradient is left in each p.grad.

    Sums of losses and counts of tokens are added up, and divided once.
    """
    total = torch.zeros(2, dtype=torch.double)  # loss, tokens
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        loss.backward()
        total += torch.stack([loss.detach(), (targets != _IGNORED).sum()])
    dist.all_reduce(total)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= total[1]
    return float(total[0] / total[1])


def _given(seed: int) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of this rank: one more than its number plus one, with ever fewer tokens that count."""
    rank = dist.get_rank()
    dice = torch.Generator().manual_seed(97 * seed + rank)
    batches = []
    for n in range(rank + 2):
        inputs = torch.randn(2, 10, 6, generator=dice, dtype=torch.double)
        targets = torch.randint(5, (2, 10), generator=dice)
        targets[:, 10 // (1 + n + 2 * rank) :] = _IGNORED
        batches.append((inputs, targets))
    if rank:
        batches[0][1][:] = _IGNORED  # a micro-batch in which nothing counts has no mean
    return batches


def _tried(fn: Callable, seed: int) -> tuple[float, Tensor, list, int]:
    """What fn gives on this rank: loss, gradients, what it sent, and the bytes of the gradients."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    with counting() as c:
        loss = fn(model, _given(seed))
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    sent = [(event.op, event.n_bytes) for event in c.events]
    return loss, torch.cat([each.flatten() for each in gradients]), sent, sum(p.nbytes for p in model.parameters())


def drive_tokens(fn: Callable, world_size: int, seed: int) -> dict:
    """Loss and gradients by rank, where fn is called in each of world_size ranks."""
    ask = trusted if fn is token_mean_backward else in_ranks
    ranks = ask("12.3", _tried, world_size, fn, seed)
    return {"loss": [rank[0] for rank in ranks], "gradients": [rank[1] for rank in ranks]}


def sent_once(fn: Callable) -> str | None:
    """None where the gradients cross once, and little else does; otherwise what was sent."""
    _, _, sent, n_bytes = in_ranks("12.3", _tried, 2, fn, 5)[1]
    whole = sum(each for _, each in sent)
    if whole <= n_bytes + _FEW_BYTES:
        return None
    ops = ", ".join(sorted({op for op, _ in sent}))
    return (
        f"A rank with three micro-batches handed in {whole:,} bytes ({ops}); the gradients have {n_bytes:,}, loss "
        "and count are two numbers. Add up over the micro-batches first, then sum over the ranks, once."
    )


def _reduced(model: nn.Module, divide: Callable[[], object]) -> None:
    """Sum the gradients over the ranks, and divide them."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= divide()


def _a_mean_a_batch(model: nn.Module, micro_batches: list) -> float:
    """The mistake of means of means."""
    total = torch.zeros((), dtype=torch.double)
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    _reduced(model, dist.get_world_size)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _own_count(model: nn.Module, micro_batches: list) -> float:
    """The mistake of dividing by the count of the own rank, and averaging over the ranks."""
    n_tokens = sum((targets != _IGNORED).sum() for _, targets in micro_batches)
    total = torch.zeros((), dtype=torch.double)
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum") / n_tokens
        loss.backward()
        total += loss.detach()
    _reduced(model, dist.get_world_size)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _own_gradient(model: nn.Module, micro_batches: list) -> float:
    """The mistake of communicating nothing."""
    n_tokens = sum((targets != _IGNORED).sum() for _, targets in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum") / n_tokens
        loss.backward()
        total += float(loss)
    return total


TOKEN_MISTAKES = (
    ("These are means of means: a batch of few tokens counts as much as one of many. Add up sums.", _a_mean_a_batch),
    ("Each rank divides by its own count of tokens: the count must be summed over the ranks, too.", _own_count),
    ("Each rank has a loss or a gradient of its own: nothing was summed over the ranks.", _own_gradient),
)
