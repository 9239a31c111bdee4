"""How a learner's data parallelism in buckets is looked at, for lesson 12, in real ranks."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.checks.replicas import WIDTH, Ddp, Net, in_groups, in_ranks
from labkit.compare import Finding
from labkit.ranks import counting

_BYTES = 8
_STEPS, _LR = 3, 0.2
_BLOCKED_S, _AHEAD_S = 2.5, 0.2  # how long ranks wait for the one ahead to compute, and to be rash


def _vector(tensors: Iterable[Tensor]) -> Float[Tensor, "P"]:
    """All numbers of some tensors."""
    return torch.cat([each.detach().flatten() for each in tensors])


def _drawn(seed: int, rank: int) -> Net:
    """A rank's network, drawn with dice of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + 7 * rank + seed)
        return Net()


def _batch(seed: int, step: int, last: bool) -> int:
    """The seed of a micro-batch."""
    return 10 * seed + 2 * step + last


def _descend(params: Iterable[Tensor], lr: float) -> None:
    """A step against the gradients: an optimizer of torch's would load its compiler into each rank, two seconds."""
    with torch.no_grad():
        for p in params:
            p -= lr * p.grad


def _backward(model: nn.Module, seed: int, rank: int) -> None:
    """Add the gradients of half a batch of a rank."""
    dice = torch.Generator().manual_seed(1000 * seed + rank)
    inputs = torch.randn(4, WIDTH, generator=dice, dtype=torch.double)
    targets = torch.randint(WIDTH, (4,), generator=dice)
    (cross_entropy(model(inputs), targets) / 2).backward()


def _staggered(ddp: object, model: nn.Module, folder: str, patience_s: float) -> dict[str, bool]:
    """A step in which rank 0 is ahead of the others, which start once it has computed, or their patience is at an end.

    blocked: its backward pass waited for them. rash: its wait() returned before they had sent anything.
    """
    computed, returned = Path(folder, "computed"), Path(folder, "returned")
    ddp.zero_grad()
    ddp.sync, found = True, {"blocked": False, "rash": False}
    if dist.get_rank():
        found["blocked"] = not _appears(computed, patience_s)
        found["rash"] = not found["blocked"] and _appears(returned, _AHEAD_S)
    _backward(model, 0, dist.get_rank())
    computed.touch()
    ddp.wait()
    returned.touch()
    return found


def _appears(path: Path, seconds: float) -> bool:
    """Whether a file is there before so many seconds are over."""
    until_s = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.005)
    return path.exists()


def _trained(ddp_class: Callable, bucket_bytes: int, seed: int, folder: str) -> dict:
    """A rank's weights and buffers at the start, its weights after each of three steps of two micro-batches, and hints.

    sent: messages in each step. moved: a gradient is no longer where it was at the start. too_soon: hooks of the kind
    that torch calls before it adds up.
    """
    model = _drawn(seed, dist.get_rank())
    ddp = ddp_class(model, in_groups(model, bucket_bytes))
    trainable = [p for p in model.parameters() if p.requires_grad]
    start, seen, sent = {"weights": _vector(model.parameters()), "buffers": model.offset.clone()}, [], []
    places = _places(trainable)
    for step in range(_STEPS):
        with counting() as c:
            ddp.zero_grad()
            for last in (False, True):
                ddp.sync = last
                _backward(model, _batch(seed, step, last), dist.get_rank())
            ddp.wait()
        sent.append(c.calls["all_reduce"])
        if lost := sum(p.grad is None for p in trainable):
            return {"lost": lost}
        _descend(trainable, _LR)
        seen.append(_vector(model.parameters()))
    hints = {"sent": sent, "moved": places != _places(trainable), "too_soon": any(p._backward_hooks for p in trainable)}
    return {**start, "after": torch.stack(seen), **hints, **_staggered(ddp, model, folder, _AHEAD_S)}


def _places(params: Iterable[Tensor]) -> list[int]:
    """Where the gradients lie in memory; 0 for one that is not there."""
    return [0 if p.grad is None else p.grad.data_ptr() for p in params]


def drive_ddp(ddp_class: Callable, world_size: int, bucket_bytes: int, seed: int) -> list[dict]:
    """What each of world_size ranks does under a learner's class; the trusted one has none."""
    ran = _due if ddp_class is Ddp else partial(_in_ranks, ddp_class)
    return ran(world_size, bucket_bytes, seed)


def _in_ranks(ddp_class: Callable, world_size: int, bucket_bytes: int, seed: int) -> list[dict]:
    """What a class does in each rank."""
    with tempfile.TemporaryDirectory() as folder:
        return in_ranks("12.4", _trained, world_size, ddp_class, bucket_bytes, seed, folder)


def _due(world_size: int, bucket_bytes: int, seed: int) -> list[dict]:
    """What each rank should do: what one process trains on the data of all, and a message for each group."""
    model = _drawn(seed, rank=0)
    start, seen = {"weights": _vector(model.parameters()), "buffers": model.offset.clone()}, []
    trainable = [p for p in model.parameters() if p.requires_grad]
    for step in range(_STEPS):
        model.zero_grad()
        for rank in range(world_size):
            for last in (False, True):
                _backward(model, _batch(seed, step, last), rank)
        _descend(trainable, _LR / world_size)
        seen.append(_vector(model.parameters()))
    hints = {"sent": [len(in_groups(model, bucket_bytes))] * _STEPS, "moved": False, "too_soon": False}
    return [{**start, "after": torch.stack(seen), **hints, "blocked": False, "rash": False}] * world_size


def ddp_found(got: Sequence, expected: Sequence, *_case: object) -> Finding:
    """`right`, or what is wrong with what ranks did."""
    return Finding(_wrong_with([each for each, _ in zip(got, expected, strict=True)], expected[0]))


def _wrong_with(ranks: list[dict], right: dict) -> str:
    """`right`, or what is wrong with what ranks did."""
    if any("lost" in each for each in ranks):
        return "gradients lost"
    for name in ("weights", "buffers"):
        if not all(torch.equal(each[name], right[name]) for each in ranks):
            return f"{name} differ at the start"
    if not all(_near(each["after"], ranks[0]["after"], 1e-12) for each in ranks):
        return _why_apart(ranks[-1], right["sent"])
    if any(each["rash"] for each in ranks):
        return "wait() returns too early"
    if not _near(ranks[0]["after"], right["after"], 1e-10):
        return "ranks agree on wrong weights"
    return "right"


def _near(mine: Tensor, other: Tensor, atol: float) -> bool:
    """Whether numbers are as many, and as large."""
    return mine.shape == other.shape and torch.allclose(mine, other, rtol=0, atol=atol)


def _why_apart(rank: dict, due: list[int]) -> str:
    """What is wrong where ranks end with different weights, from what one of them did; due: messages of each step."""
    sent = rank["sent"]
    if not any(sent):
        return "no gradient is sent"
    if rank["too_soon"]:
        return "hooks come too soon"
    if sent[0] == due[0] and sent[-1] < due[-1]:
        return "later steps send less than the first"
    if rank["moved"]:
        return "gradients leave their buckets"
    if sent[0] < due[0]:
        return "some groups are never sent"
    return "wait() returns too early" if rank["rash"] else "ranks drift apart"


_CAUSES = {
    "gradients lost": "After wait() some p.grad is None. Keep the views: set buckets to zero, do not drop gradients.",
    "weights differ at the start": "Each rank drew weights of its own: in __init__, broadcast all those of rank 0.",
    "buffers differ at the start": "model.parameters() leaves out buffers, which are drawn too: state_dict() has both.",
    "wait() returns too early": "Rank 0 returned from wait() before the others had computed anything: wait() for "
    "every Work that all_reduce(..., async_op=True) gives.",
    "no gradient is sent": "No message leaves: each bucket must be summed over all ranks, by a hook that calls ready.",
    "hooks come too soon": "register_hook calls before the gradient is added up, so it is not in the bucket yet: "
    "register_post_accumulate_grad_hook.",
    "later steps send less than the first": "Were the gradients counted anew? After each step a group waits for all of "
    "its gradients again.",
    "gradients leave their buckets": "A p.grad is no longer the view that it was at the start: its bucket does not "
    "hold the new gradient. Set buckets to zero, do not drop gradients.",
    "some groups are never sent": "Fewer messages than groups: does each tensor report its own group? A hook made in a "
    "loop sees the loop's last variable.",
    "ranks drift apart": "The ranks' gradients differ after wait(), though a message left for each group: what left "
    "must be the bucket with its last gradient in it, and what came back must be in p.grad.",
    "ranks agree on wrong weights": "Divide the sum by the number of ranks, once. And the gradient of the micro-batch "
    "with sync=False must be in what is averaged, once: no message before the last one, no bucket set to zero.",
}


def ddp_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    return None if got == expected else _CAUSES.get(str(got), "")


def _looked_at(ddp_class: Callable, bucket_bytes: int, folder: str) -> dict:
    """What a rank does in the third step of two micro-batches: messages, and the bytes of what it keeps."""
    model = Net()
    trainable = [p for p in model.parameters() if p.requires_grad]
    early, counted, items = [], [], []
    trainable[0].register_post_accumulate_grad_hook(lambda _: early.append(counted[-1].n_calls if counted else 0))
    before = _live_bytes(model)
    ddp = ddp_class(model, in_groups(model, bucket_bytes))
    for _ in range(3):
        with counting() as silent:
            ddp.zero_grad()
            ddp.sync = False
            _backward(model, 0, dist.get_rank())
        ddp.sync = True
        with counting() as c:
            counted.append(c)
            _backward(model, 1, dist.get_rank())
            kept = _live_bytes(model) - before if len(counted) == 3 else 0
            ddp.wait()
        items.append(_n_items(vars(ddp)))
    return {
        "piles_up": items[0] < items[1] < items[2],
        "silent": silent.n_calls,
        "sizes": [event.n_bytes for event in c.events],
        "others": sorted({event.op for event in c.events} - {"all_reduce"}),
        "early": early[-1],
        "kept": kept,
        "gradients": sum(p.nbytes for p in trainable),
        "groups": [sum(p.nbytes for p in params) for params in in_groups(model, bucket_bytes)],
        **_staggered(ddp, model, folder, _BLOCKED_S),  # last, for it has a backward pass of its own
    }


def _n_items(value: object) -> int:
    """How many things are in lists, sets and dictionaries, and in those within them."""
    if not isinstance(value, (list, tuple, set, dict)):
        return 0
    return len(value) + sum(_n_items(each) for each in (value.values() if isinstance(value, dict) else value))


def _live_bytes(model: nn.Module) -> int:
    """Bytes of the tensors that this process holds, each storage once."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(held.values())


def in_buckets(ddp_class: Callable) -> str | None:
    """None where gradients leave in buckets, once, during the backward pass, and are kept once; else what is not so."""
    bucket_bytes = 2 * (WIDTH * WIDTH + WIDTH) * _BYTES - 1  # one layer fits, two do not
    with tempfile.TemporaryDirectory() as folder:
        seen, other = in_ranks("12.4", _looked_at, 2, ddp_class, bucket_bytes, folder)
    sizes, gradients = seen["sizes"], seen["gradients"]
    if seen["silent"]:
        return f"{seen['silent']} messages left while sync was False, or in zero_grad(): only the last pass sends."
    if seen["others"] or sum(sizes) != gradients:
        named = f" by {', '.join(seen['others'])} too" if seen["others"] else ""
        return f"A step handed in {sum(sizes):,} bytes{named}; the gradients have {gradients:,}, to be sent once each."
    if sorted(sizes) != sorted(seen["groups"]):
        return f"{len(sizes)} messages of {max(sizes):,} bytes at most, for {len(seen['groups'])} groups: one for each."
    if not seen["early"]:
        return "No message had left when the last gradient came: send a full bucket from the hook, with async_op=True."
    if other["blocked"]:
        return (
            "Rank 0 stood still in its backward pass until the others came. Let the message leave, with async_op=True, "
            "and wait for it in wait()."
        )
    if seen["piles_up"]:
        return "With each step the object holds more: wait() must drop the messages that have come back."
    if seen["kept"] > 1.5 * gradients:
        return (
            f"After the backward pass {seen['kept'] / gradients:.1f} times the bytes of the gradients are kept: each "
            "gradient, and a copy of it in a bucket. Let p.grad be a view into the bucket."
        )
    return None
