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
        if p.grad is None:  # a rank without micro-batches
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= total[1]
    return float(total[0] / total[1])


def _given(seed: int, without: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of this rank: one more than its number plus one, with ever fewer tokens that count; or none."""
    rank = dist.get_rank()
    if rank in without:
        return []
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


def _watched(model: nn.Module) -> dict[str, int]:
    """The rows of the largest batch that a model is shown, and how many graphs wait for their backward pass at most."""
    seen, waiting = {"rows": 0, "graphs": 0, "calls": 0}, set()

    def shown(_: nn.Module, given: tuple, output: Tensor) -> None:
        call = seen["calls"] = seen["calls"] + 1
        if output.requires_grad:
            waiting.add(call)
            output.register_hook(lambda _: waiting.discard(call))
        seen.update(rows=max(seen["rows"], len(given[0])), graphs=max(seen["graphs"], len(waiting)))

    model.register_forward_hook(shown)
    return seen


def _tried(fn: Callable, seed: int, without: tuple[int, ...]) -> dict:
    """What fn gives on this rank: loss, gradients, their bytes, what it sent, and how the model was used."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    watched = _watched(model)
    with counting() as c:
        loss = fn(model, _given(seed, without))
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return {
        "loss": loss,
        "gradients": torch.cat([each.detach().flatten() for each in gradients]),
        "n_bytes": sum(p.nbytes for p in model.parameters()),
        "sent": [(event.op, event.n_bytes) for event in c.events],
        **watched,
    }


def drive_tokens(fn: Callable, world_size: int, seed: int, without: tuple[int, ...]) -> dict:
    """Loss and gradients by rank, where fn is called in each of world_size ranks; some are without micro-batches."""
    ask = trusted if fn is token_mean_backward else in_ranks
    ranks = ask("12.3", _tried, world_size, fn, seed, without)
    return {what: [rank[what] for rank in ranks] for what in ("loss", "gradients")}


def one_at_a_time(fn: Callable) -> str | None:
    """None where each micro-batch has its backward pass before the next, and the gradients cross once; else what."""
    first, second = in_ranks("12.3", _tried, 2, fn, 5, ())
    if first["rows"] > 2 or first["graphs"] > 1:
        return (
            "Micro-batches are there because memory is short, and here all of them are in it together: call the model "
            "and backward() for one, then for the next."
        )
    return _sent_more(second["sent"], second["n_bytes"])


def _sent_more(sent: list[tuple[str, int]], n_bytes: int) -> str | None:
    """What was sent, where it is more than the gradients and a few numbers."""
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
        total += loss.item()
    return total


TOKEN_MISTAKES = (
    ("These are means of means: a batch of few tokens counts as much as one of many. Add up sums.", _a_mean_a_batch),
    ("Each rank divides by its own count of tokens: the count must be summed over the ranks, too.", _own_count),
    ("Each rank has a loss or a gradient of its own: nothing was summed over the ranks.", _own_gradient),
)
