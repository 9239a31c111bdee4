"""Data parallelism by hand, for lesson 12: the trusted form, and what is looked at in a learner's, in real ranks.

The ranks of a check run on the CPU and are seeded apart, so that a forgotten broadcast shows.
"""

import gc
from collections.abc import Callable, Iterable
from functools import cache

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.ranks import RankError, counting, run_ranks

_WIDTH, _N_LAYERS, _BYTES = 16, 4, 8
_WAIT_S = 8.0  # so long a collective may stay incomplete; less than the time that a learner's code has in all


def in_ranks(number: str, trial: Callable, world_size: int, *args: object) -> list:
    """What trial(*args) returns by rank, on the CPU; the stub of exercise `number` raises here what it raised there."""
    try:
        return run_ranks(trial, world_size, *args, devices="cpu", timeout_s=_WAIT_S)
    except RankError as error:
        if f"NotImplementedError: exercise {number}" in str(error):
            raise NotImplementedError(f"exercise {number}") from None
        raise


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

    def __init__(self, width: int = _WIDTH) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(_N_LAYERS)]
        layers[0].requires_grad_(False)
        self.layers = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).double()
        self.register_buffer("offset", torch.randn(width, dtype=torch.double))

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Logits."""
        return self.layers(x + self.offset)


def _vector(tensors: Iterable[Tensor]) -> Float[Tensor, "P"]:
    """All numbers of some tensors."""
    return torch.cat([each.detach().flatten() for each in tensors])


def _backward(model: nn.Module, seed: int) -> None:
    """Add the gradients of half a batch of this rank."""
    dice = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    inputs = torch.randn(4, _WIDTH, generator=dice, dtype=torch.double)
    targets = torch.randint(_WIDTH, (4,), generator=dice)
    (cross_entropy(model(inputs), targets) / 2).backward()


def _trained(ddp_class: Callable, bucket_bytes: int, seed: int) -> dict:
    """A rank's weights and buffers at the start, and its weights after each of three steps of two micro-batches."""
    torch.manual_seed(1000 + 7 * dist.get_rank() + seed)
    model = Net()
    ddp = ddp_class(model, in_groups(model, bucket_bytes))
    trainable = [p for p in model.parameters() if p.requires_grad]
    start, seen = {"weights": _vector(model.parameters()), "buffers": model.offset.clone()}, []
    for step in range(3):
        ddp.zero_grad()
        for last in (False, True):
            ddp.sync = last
            _backward(model, 10 * seed + 2 * step + last)
        ddp.wait()
        if lost := sum(p.grad is None for p in trainable):
            return {"lost": lost}
        with torch.no_grad():  # an optimizer of torch's would load its compiler into each rank: two seconds
            for p in trainable:
                p -= 0.2 * p.grad
        seen.append(_vector(model.parameters()))
    return {**start, "after": torch.stack(seen)}


def drive_ddp(ddp_class: Callable, world_size: int, bucket_bytes: int, seed: int) -> str:
    """`right`, or what is wrong with the training of world_size ranks under a learner's class."""
    ask = trusted if ddp_class is Ddp else in_ranks
    ranks = ask("12.4", _trained, world_size, ddp_class, bucket_bytes, seed)
    right = trusted("12.4", _trained, world_size, Ddp, bucket_bytes, seed)[0]
    if any("lost" in each for each in ranks):
        return "gradients lost"
    for name in ("weights", "buffers"):
        if not all(torch.equal(each[name], right[name]) for each in ranks):
            return f"{name} differ at the start"
    if not all(torch.allclose(each["after"], ranks[0]["after"], rtol=0, atol=1e-12) for each in ranks):
        return "ranks drift apart"
    if not torch.allclose(ranks[0]["after"], right["after"], rtol=0, atol=1e-10):
        return "ranks agree on wrong weights"
    return "right"


_CAUSES = {
    "gradients lost": "After wait() some p.grad is None. Keep the views: set buckets to zero, do not drop gradients.",
    "weights differ at the start": "Each rank drew weights of its own: in __init__, broadcast all those of rank 0.",
    "buffers differ at the start": "model.parameters() leaves out buffers, which are drawn too: state_dict() has both.",
    "ranks drift apart": "The ranks' gradients differ after wait(): each bucket must be summed over all ranks, and "
    "wait() must return only when all have come back. Were the gradients counted anew for each step?",
    "ranks agree on wrong weights": "Divide the sum by the number of ranks, once. And the gradient of the micro-batch "
    "with sync=False must be in what is averaged, once: no message before the last one, no bucket set to zero.",
}


def ddp_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    return None if got == expected else _CAUSES.get(str(got), "")


def _looked_at(ddp_class: Callable, bucket_bytes: int) -> dict:
    """What a rank does in one step of two micro-batches: messages, and the bytes of what it keeps."""
    model = Net()
    trainable = [p for p in model.parameters() if p.requires_grad]
    early, counted = [], []
    trainable[0].register_post_accumulate_grad_hook(lambda _: early.append(counted[0].n_calls if counted else 0))
    before = _live_bytes(model)
    ddp = ddp_class(model, in_groups(model, bucket_bytes))
    ddp.zero_grad()
    ddp.sync = False
    with counting() as silent:
        _backward(model, 0)
    ddp.sync = True
    with counting() as c:
        counted.append(c)
        _backward(model, 1)
        kept = _live_bytes(model) - before
        ddp.wait()
    return {
        "silent": silent.n_calls,
        "sizes": [event.n_bytes for event in c.events],
        "others": sorted({event.op for event in c.events} - {"all_reduce"}),
        "early": early[-1],
        "kept": kept,
        "gradients": sum(p.nbytes for p in trainable),
        "groups": [sum(p.nbytes for p in params) for params in in_groups(model, bucket_bytes)],
    }


def _live_bytes(model: nn.Module) -> int:
    """Bytes of the tensors that this process holds, each storage once."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(held.values())


def in_buckets(ddp_class: Callable) -> str | None:
    """None where gradients leave in buckets, once, during the backward pass, and are kept once; else what is not so."""
    bucket_bytes = 2 * (_WIDTH * _WIDTH + _WIDTH) * _BYTES - 1  # one layer fits, two do not
    seen = in_ranks("12.4", _looked_at, 2, ddp_class, bucket_bytes)[0]
    sizes, gradients = seen["sizes"], seen["gradients"]
    if seen["silent"]:
        return f"{seen['silent']} messages left while sync was False: a micro-batch that is not the last sends nothing."
    if seen["others"] or sum(sizes) != gradients:
        named = f" by {', '.join(seen['others'])} too" if seen["others"] else ""
        return f"A step handed in {sum(sizes):,} bytes{named}; the gradients have {gradients:,}, to be sent once each."
    if sorted(sizes) != sorted(seen["groups"]):
        return f"{len(sizes)} messages of {max(sizes):,} bytes at most, for {len(seen['groups'])} groups: one for each."
    if not seen["early"]:
        return "No message had left when the last gradient came: send a full bucket from the hook, with async_op=True."
    if seen["kept"] > 1.5 * gradients:
        return (
            f"After the backward pass {seen['kept'] / gradients:.1f} times the bytes of the gradients are kept: each "
            "gradient, and a copy of it in a bucket. Let p.grad be a view into the bucket."
        )
    return None
