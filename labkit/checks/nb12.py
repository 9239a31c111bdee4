"""The checks of lesson 12: a rank's share of the data, evaluation by shares, a loss per token, and DDP by hand."""

from collections.abc import Callable, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from labkit.checker import Exercise, close
from labkit.checks.replicas import Ddp, ddp_cause, drive_ddp, in_buckets, in_ranks, trusted
from labkit.checks.tokens import TOKEN_MISTAKES, drive_tokens, sent_once, token_mean_backward
from labkit.ranks import counting

# ---- 12.1: a rank's share -------------------------------------------------------------------------------------------


def my_share(n: int, rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    """The examples, of n, that a rank trains on in an epoch: shuffled alike on all ranks, anew in each epoch."""
    dice = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=dice).tolist()[rank::world_size]


def _drive_share(fn: Callable, n: int, world_size: int, seed: int) -> str:
    """`right`, or what is wrong with the shares that fn deals out."""
    epochs = []
    for epoch in range(3):
        shares = []
        for rank in range(world_size):
            torch.manual_seed(100 * rank + epoch)  # ranks are different programs, with dice of their own
            state = torch.get_rng_state()
            share = fn(n, rank, world_size, epoch, seed)
            if not isinstance(share, list) or not all(type(each) is int for each in share):
                return "no list of whole numbers"
            if not torch.equal(state, torch.get_rng_state()):
                return "torch's own dice were used"
            shares.append(share)
        if fault := _dealt_wrongly(shares, n):
            return fault
        epochs.append(shares)
    if epochs[0] == epochs[1] or epochs[1] == epochs[2]:
        return "the same order in each epoch"
    if fn(n, 0, world_size, 0, seed) != epochs[0][0]:
        return "another order when asked again"
    return "right" if fn(n, 0, world_size, 0, seed + 1000) != epochs[0][0] else "the same order for every seed"


def _dealt_wrongly(shares: list[list[int]], n: int) -> str:
    """What is wrong with the shares of one epoch; nothing where each example is dealt once, and sizes are even."""
    dealt = sorted(chain(*shares))
    if any(not 0 <= each < n for each in dealt):
        return "examples that are not there"
    if len(set(dealt)) < len(dealt):
        return "an example dealt twice"
    if dealt != list(range(n)):
        return "an example dealt to nobody"
    sizes = [len(share) for share in shares]
    return "sizes differ by more than one" if max(sizes) - min(sizes) > 1 else ""


_SHARE_CAUSES = {
    "no list of whole numbers": "Return a list of Python's ints, such as tensor.tolist() gives.",
    "torch's own dice were used": "Draw from a torch.Generator() of your own. torch.manual_seed here would give the "
    "dropout of all ranks the same dice, and without any seed every rank shuffles in an order of its own.",
    "examples that are not there": "The examples are numbered from 0 to n - 1.",
    "an example dealt twice": "Ranks must shuffle alike, so with a seed that does not hang on the rank, and nothing is "
    "padded: order[rank::world_size] of one order.",
    "an example dealt to nobody": "Where n is no multiple of world_size, some ranks get one more: cut nothing off.",
    "sizes differ by more than one": "Deal one at a time, order[rank::world_size]: the rest must not fall on one rank.",
    "the same order in each epoch": "The epoch must change the seed: seed + epoch.",
    "another order when asked again": "The order hangs on more than the arguments: seed the generator in each call.",
    "the same order for every seed": "The seed must count too: seed + epoch.",
}

# ---- 12.2: evaluation by shares -------------------------------------------------------------------------------------


def shared_accuracy(model: nn.Module, inputs: Float[Tensor, "N F"], targets: Int[Tensor, "N"]) -> float:
    """The share of all examples that the model gets right; each rank looks at its part, and two counts are summed."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    n_right = (model(inputs[mine]).argmax(1) == targets[mine]).sum()
    dist.all_reduce(n_right)
    return n_right.item() / len(targets)


class _Watched(nn.Module):
    """A classifier that counts the examples it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.n_seen = 0

    def forward(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
        """The inputs, as logits."""
        self.n_seen += len(x)
        return x


def _evaluated(fn: Callable, n: int, seed: int) -> dict:
    """What fn gives on this rank, how many examples the model was shown, and what was sent."""
    dice = torch.Generator().manual_seed(seed)
    targets = torch.randint(4, (n,), generator=dice)
    model, inputs = _Watched(), 0.7 * torch.eye(4)[targets] + torch.rand(n, 4, generator=dice)
    inputs[0] = -inputs[0]  # the first one, which padding would count twice, is as good as always wrong
    with counting() as c:
        accuracy = fn(model, inputs, targets)
    return {"accuracy": accuracy, "seen": model.n_seen, "bytes": c.n_bytes}


def _drive_accuracy(fn: Callable, n: int, world_size: int, seed: int) -> list:
    """The accuracy that each rank is told."""
    ask = trusted if fn is shared_accuracy else in_ranks
    return [rank["accuracy"] for rank in ask("12.2", _evaluated, world_size, fn, n, seed)]


def _by_shares(fn: Callable) -> str | None:
    """None where each rank looks at its part and sends a few numbers; otherwise what it does instead."""
    n, world_size, few_bytes = 1000, 3, 64
    ranks = in_ranks("12.2", _evaluated, world_size, fn, n, 3)
    seen, sent = max(rank["seen"] for rank in ranks), max(rank["bytes"] for rank in ranks)
    if seen > -(-n // world_size):
        return f"A rank's model was shown {seen} of {n} examples: each of {world_size} ranks looks at its part only."
    if sent > few_bytes:
        return f"A rank handed in {sent:,} bytes: count first, then sum one or two numbers over the ranks."
    return None


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
    return (counts[0] / counts[1]).item()


_ACCURACY_MISTAKES = (
    ("Each rank tells the accuracy of its own part: sum the counts over the ranks.", _own_part),
    ("DistributedSampler pads: it deals some examples twice, and they count twice.", _padded),
    ("A mean of the parts' means: parts differ in size. Sum counts, and divide once, by all.", _mean_of_means),
)


def _named(fault: Callable | dict[str, str]) -> Callable:
    """A comparison of `right` with a fault's name, which gives its cause."""
    return lambda got, expected: None if got == expected else fault.get(str(got), "")


def _seeds(rng: torch.Generator, n: int) -> list[int]:
    """Seeds for ranks, which cannot share a generator."""
    return torch.randint(1, 1000, (n,), generator=rng).tolist()


def _share_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Even, with a rest, one rank, more; then larger ones."""
    small = [(12, 2, 0), (13, 2, 0), (17, 4, 3), (9, 1, 0)]
    n, more, seed, other = torch.randint(20, 300, (4,), generator=rng).tolist()
    return [*small, (n, 3, seed), (more, 8, other)]


EXERCISES = (
    Exercise(
        number="12.1",
        name="my_share",
        cases=_share_cases,
        reference=my_share,
        compare=_named(_SHARE_CAUSES),
        drive=_drive_share,
        points=2,
        hints=(
            "An example dealt twice: all ranks must draw the same order, so the rank must not be in the seed.",
            "dice = torch.Generator().manual_seed(seed + epoch); torch.randperm(n, generator=dice) is one order.",
            "order.tolist()[rank::world_size] deals it out like cards.",
        ),
    ),
    Exercise(
        number="12.2",
        name="shared_accuracy",
        cases=lambda rng: [(n, w, s) for (n, w), s in zip([(7, 2), (10, 3)], _seeds(rng, 2), strict=True)],
        reference=shared_accuracy,
        compare=close(1e-9, 1e-9, "The number of right answers of all ranks, divided by the number of all examples."),
        drive=_drive_accuracy,
        mechanism=_by_shares,
        mistakes=_ACCURACY_MISTAKES,
        points=3,
        hints=(
            "Every rank is told something else: a sum over the ranks is missing, dist.all_reduce(n_right).",
            "inputs[rank::world_size] is a part without padding; the parts may differ in size by one.",
            "n_right is a tensor: (model(part).argmax(1) == targets_of_part).sum(). Then .item() / len(targets).",
        ),
    ),
    Exercise(
        number="12.3",
        name="token_mean_backward",
        cases=lambda rng: [(w, s) for w, s in zip((1, 2), _seeds(rng, 2), strict=True)],
        reference=token_mean_backward,
        compare=close(1e-9, 1e-12, "All losses added up, and divided once by the number of all tokens that count."),
        drive=drive_tokens,
        mechanism=sent_once,
        mistakes=TOKEN_MISTAKES,
        points=4,
        hints=(
            "NaN: a micro-batch in which no target counts has no mean. cross_entropy(..., reduction='sum') has a sum.",
            "Backward each micro-batch's sum; the gradients add up in p.grad by themselves.",
            "Then all_reduce three things: the gradients, the sum of losses, the count; and divide by the count.",
        ),
    ),
    Exercise(
        number="12.4",
        name="Ddp",
        cases=lambda rng: [(w, b, s) for w, b, s in zip((2, 3), (10**6, 3000), _seeds(rng, 2), strict=True)],
        reference=Ddp,
        compare=ddp_cause,
        drive=drive_ddp,
        mechanism=in_buckets,
        points=6,
        hints=(
            "Ranks drift apart: does each bucket's count start anew in wait(), and does wait() wait for all?",
            "bucket.split([p.numel() for p in params]) gives parts of one vector; with p.grad = part.view_as(p) the "
            "gradient lives there, and backward() adds into it.",
            "In a loop that makes hooks, bind the loop's variable: lambda _, which=which: self.ready(which).",
        ),
    ),
)
