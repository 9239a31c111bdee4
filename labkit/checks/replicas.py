"""Data parallelism by hand, for lesson 12: the trusted form, a network for it, and real ranks for the checks.

The ranks of a check run on the CPU and are seeded apart, so that a forgotten broadcast shows.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from labkit.ranks import RankError, run_ranks

WIDTH, _N_LAYERS = 16, 4
# So long a collective may stay incomplete. A receiver that waits for ever is ended by gloo half as late again, and then
# too something is left of the time that a learner's code has in all.
_WAIT_S = 4.0


def seeds(rng: torch.Generator, n: int) -> list[int]:
    """Seeds for ranks, which cannot share a generator; too many for one rank to try what another one was given."""
    return torch.randint(2**31, (n,), generator=rng).tolist()


def in_ranks(number: str, trial: Callable, world_size: int, *args: object) -> list:
    """What trial(*args) returns by rank, on the CPU; the stub of exercise `number` raises here what it raised there."""
    try:
        return run_ranks(_quietly, world_size, trial, *args, devices="cpu", timeout_s=_WAIT_S)
    except RankError as error:
        if f"NotImplementedError: exercise {number}" in str(error):
            raise NotImplementedError(f"exercise {number}") from None
        raise


def _quietly(trial: Callable, *args: object) -> object:
    """What trial(*args) returns; what torch warns of in a learner's line would be shown for each rank of each case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trial(*args)


trusted = cache(in_ranks)
"""`in_ranks` for the course's own functions, asked once."""


def in_groups(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """What is trained in a model, from the last tensor to the first, in groups of at most bucket_bytes.

    A tensor larger than that has a group of its own.
    """
    groups, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if room < p.nbytes:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(p)
        room -= p.nbytes
    return groups


class Ddp:
    """Averages a model's gradients over the ranks, a group at a time, while the backward pass runs.

    Gradients are views into one bucket a group. While `sync` is False they are only added up.
    Source: Li et al., PyTorch Distributed (VLDB 2020), section 3.2.
    """

    def __init__(self, model: nn.Module, groups: list[list[nn.Parameter]]) -> None:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.groups, self.sync = groups, True
        self.works: list = []
        self.buckets = [torch.cat([torch.zeros_like(p).flatten() for p in params]) for params in groups]
        for which, (params, bucket) in enumerate(zip(groups, self.buckets, strict=True)):
            for p, part in zip(params, bucket.split([p.numel() for p in params]), strict=True):
                p.grad = part.view_as(p)
                p.register_post_accumulate_grad_hook(lambda _, which=which: self.ready(which))
        self.wait()

    def ready(self, which: int) -> None:
        """One more gradient of a bucket is there; with the last one it leaves."""
        self.left[which] -= self.sync
        if self.left[which] == 0:
            self.buckets[which] /= dist.get_world_size()
            self.works.append(dist.all_reduce(self.buckets[which], async_op=True))

    def wait(self) -> None:
        """Return when all buckets have come back."""
        while self.works:
            self.works.pop().wait()
        self.left = [len(params) for params in self.groups]

    def zero_grad(self) -> None:
        """Set the gradients to zero, in their buckets."""
        for bucket in self.buckets:
            bucket.zero_()


class Net(nn.Module):
    """A small network in double precision with a buffer that counts, and a first layer that is not trained."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(_N_LAYERS)]
        layers[0].requires_grad_(False)
        self.layers = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).double()
        self.register_buffer("offset", torch.randn(width, dtype=torch.double))

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Logits."""
        return self.layers(x + self.offset)
