"""The checks of lesson 12: a rank's share of the data, evaluation by shares, a loss per token, and DDP by hand."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from labkit.checker import Exercise, close
from labkit.checks.buckets import ddp_cause, ddp_found, drive_ddp, in_buckets
from labkit.checks.replicas import Ddp, in_ranks, seeds, trusted
from labkit.checks.shares import drive_share, my_share, share_cases, share_cause
from labkit.checks.tokens import TOKEN_MISTAKES, drive_tokens, one_at_a_time, token_mean_backward
from labkit.ranks import counting

# ---- 12.2: evaluation by shares -------------------------------------------------------------------------------------


def shared_accuracy(model: nn.Module, inputs: Float[Tensor, "N F"], targets: Int[Tensor, "N"]) -> float:
    """The share of all examples that the model gets right; each rank looks at its part, and two counts are summed."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    n_right = (model(inputs[mine]).argmax(1) == targets[mine]).sum()
    dist.all_reduce(n_right)
    return n_right.item() / len(targets)


class _Watched(nn.Module):
    """A classifier that counts the examples that it is shown, or that a copy of it is."""

    n_seen = 0

    def __init__(self, dice: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(4, 4, generator=dice)).Q)

    def forward(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
        """Logits: the inputs, turned."""
        _Watched.n_seen += len(x)
        return x @ self.weight


def _evaluated(fn: Callable, n: int, seed: int) -> dict:
    """What fn gives on this rank, how many examples the model was shown, and what was sent."""
    dice = torch.Generator().manual_seed(seed)
    targets = torch.randint(4, (n,), generator=dice)
    model, logits = _Watched(dice), 0.7 * torch.eye(4)[targets] + torch.rand(n, 4, generator=dice)
    logits[0] = -logits[0]  # the first one, which padding would count twice, is as good as always wrong
    inputs, _Watched.n_seen = logits @ model.weight.detach().T, 0
    with counting() as c:
        accuracy = fn(model, inputs, targets)
    return {"accuracy": accuracy, "seen": _Watched.n_seen, "calls": c.n_calls, "bytes": c.n_bytes}


def _drive_accuracy(fn: Callable, n: int, world_size: int, seed: int) -> list:
    """The accuracy that each rank is told."""
    ask = trusted if fn is shared_accuracy else in_ranks
    return [rank["accuracy"] for rank in ask("12.2", _evaluated, world_size, fn, n, seed)]


def _by_shares(fn: Callable) -> str | None:
    """None where each rank looks at its part and sends a few numbers; otherwise what it does instead."""
    n, world_size, few_bytes = 1000, 3, 64
    ranks = in_ranks("12.2", _evaluated, world_size, fn, n, 3)
    seen, sent = [rank["seen"] for rank in ranks], max(rank["bytes"] for rank in ranks)
    if (most := max(seen)) > -(-n // world_size):
        return f"A rank's model was shown {most} of {n} examples: each of {world_size} ranks looks at its part only."
    if sum(seen) < n:
        return f"Of {n} examples the model was shown {sum(seen)} on all ranks together: call it on each rank's part."
    if not all(rank["calls"] for rank in ranks):
        return "A rank sent nothing to the others: the counts are summed over the ranks, dist.all_reduce(n_right)."
    if sent > few_bytes:
        return f"A rank handed in {sent:,} bytes: count first, then sum one or two numbers over the ranks."
    return None


def _accuracy_cases(rng: torch.Generator) -> list[tuple[int, int, int]]:
    """Examples, ranks and a seed: with a rest of one, twice; two ranks' worth for three; a rank without any."""
    few, more = torch.randint(3, 30, (2,), generator=rng).tolist()
    parts = ((2 * few + 1, 2), (3 * more + 1, 3), (4, 3), (1, 2))
    return [(n, w, seed) for (n, w), seed in zip(parts, seeds(rng, 4), strict=True)]


def _own_part(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """The mistake of not asking the others."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return float((model(inputs[mine]).argmax(1) == targets[mine]).double().mean())


def _mean_of_means(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """The mistake of averaging accuracies of parts that are not equally large."""
    accuracy = torch.tensor(_own_part(model, inputs, targets), dtype=torch.double)
    dist.all_reduce(accuracy)
    return float(accuracy) / dist.get_world_size()


def _padded(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """The mistake of DistributedSampler."""
    from torch.utils.data import DistributedSampler

    mine = list(DistributedSampler(range(len(inputs)), shuffle=False))
    counts = torch.tensor([(model(inputs[mine]).argmax(1) == targets[mine]).sum(), len(mine)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


_ACCURACY_MISTAKES = (
    ("Each rank tells the accuracy of its own part: sum the counts over the ranks.", _own_part),
    ("DistributedSampler pads: it deals some examples twice, and they count twice.", _padded),
    ("A mean of the parts' means: parts differ in size. Sum counts, and divide once, by all.", _mean_of_means),
)


EXERCISES = (
    Exercise(
        number="12.1",
        name="my_share",
        cases=share_cases,
        reference=my_share,
        compare=share_cause,
        drive=drive_share,
        points=2,
        hints=(
            "All ranks draw one order, from a generator that knows the seed and the epoch; each takes its part of it.",
            "dice = torch.Generator().manual_seed(seed + epoch); torch.randperm(n, generator=dice) is one order.",
            "order.tolist()[rank::world_size] deals it out like cards.",
        ),
    ),
    Exercise(
        number="12.2",
        name="shared_accuracy",
        cases=_accuracy_cases,
        reference=shared_accuracy,
        compare=close(1e-9, 1e-9, "The number of right answers of all ranks, divided by the number of all examples."),
        drive=_drive_accuracy,
        mechanism=_by_shares,
        mistakes=_ACCURACY_MISTAKES,
        points=3,
        hints=(
            "Each rank counts the right answers in its part; dist.all_reduce(n_right) adds up the counts.",
            "inputs[rank::world_size] is a part without padding. It may be empty, and all_reduce wants that rank too.",
            "n_right is a tensor: (model(part).argmax(1) == targets_of_part).sum(). Then .item() / len(targets).",
        ),
    ),
    Exercise(
        number="12.3",
        name="token_mean_backward",
        cases=lambda rng: list(zip((1, 2, 3), seeds(rng, 3), ((), (), (1,)), strict=True)),
        reference=token_mean_backward,
        compare=close(1e-9, 1e-12, "All losses added up, and divided once by the number of all tokens that count."),
        drive=drive_tokens,
        mechanism=one_at_a_time,
        mistakes=TOKEN_MISTAKES,
        points=4,
        hints=(
            "Add up sums: cross_entropy(..., reduction='sum') is 0 where no target counts; a mean would be NaN there.",
            "Backward each micro-batch's sum; the gradients add up in p.grad by themselves.",
            "Then all_reduce the gradients (zeros where p.grad is None), the sum of losses, the count; and divide.",
        ),
    ),
    Exercise(
        number="12.4",
        name="Ddp",
        cases=lambda rng: [(w, b, s) for w, b, s in zip((2, 3), (10**6, 3000), seeds(rng, 2), strict=True)],
        reference=Ddp,
        compare=ddp_cause,
        drive=drive_ddp,
        find=ddp_found,
        mechanism=in_buckets,
        points=6,
        hints=(
            "One group first: a vector, a count of gradients to come that starts anew in wait(), a message at zero.",
            "bucket.split([p.numel() for p in params]) gives parts of one vector; with p.grad = part.view_as(p) the "
            "gradient lives there, and backward() adds into it.",
            "In a loop that makes hooks, bind the loop's variable: lambda _, which=which: self.ready(which).",
        ),
    ),
)
