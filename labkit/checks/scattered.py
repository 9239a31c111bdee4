"""How a learner's ZeRO stage 2 is looked at, for lesson 14, in real ranks: gradients that leave as they come."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from labkit.checks import looks, sharded, undivided
from labkit.checks.sharded import BYTES
from labkit.checks.zero import AdamW, ClippedStage2
from labkit.compare import Finding
from labkit.ranks import counting

_MICRO = 2
_EPS = 1.0  # so large that an update grows with its gradient: Adam's own is the same for a gradient and for twice it
_MAX_NORMS = (inf, inf, 0.5, 2.0)  # of each step: the first two clip nothing, so that a fault shows where it is


def _layers(sizes: Sequence[int], seed: int, world_size: int) -> tuple[list[Tensor], list[nn.Parameter]]:
    """Padded vectors, the same on all ranks, and the parameters that are views of them."""
    dice = torch.Generator().manual_seed(seed)
    flats = [torch.randn(n + -n % world_size, generator=dice, dtype=torch.double) for n in sizes]
    return flats, [nn.Parameter(flat[:n]) for flat, n in zip(flats, sizes, strict=True)]


def _loss(layers: Sequence[Tensor], seed: int, step: int, micro: int, rank: int) -> Tensor:
    """The loss of a rank's micro-batch in a step."""
    return sharded.loss(layers, 100 * seed + 10 * step + micro, rank)


def _trained(stage: Callable, sizes: tuple[int, ...], seed: int, look: bool = False) -> dict:
    """As for stage 1, of layers that are vectors already; `early` is what is kept between two backward passes."""
    AdamW.made = []
    world, rank = dist.get_world_size(), dist.get_rank()
    flats, layers = _layers(sizes, seed, world)
    before = sharded.live_bytes(layers) if look else 0
    run = stage(list(flats), partial(AdamW, eps=_EPS))
    seen, kept, early = [sharded.vector(layers)], 0, []
    for step, max_norm in enumerate(_MAX_NORMS):
        with counting() as c:
            for micro in range(_MICRO):
                _loss(layers, seed, step, micro, rank).backward()
                for which in reversed(range(len(layers))):
                    calls = c.n_calls
                    run.ready(which, pad(layers[which].grad, (0, -sizes[which] % world)))
                    layers[which].grad = None
                    early.append(c.n_calls > calls)
            if look and step == len(_MAX_NORMS) - 1:
                kept = sharded.live_bytes(layers) - before - sum(each.nbytes for each in seen)
            run.step(max_norm)
        seen.append(sharded.vector(layers))
    return {
        "seen": torch.stack(seen),
        **sharded.given(),
        "kept": kept,
        "early": all(early),
        "bytes": dict(c.bytes),
        "sizes": [(event.op, event.n_bytes) for event in c.events],
    }


def drive_stage2(stage: Callable, world_size: int, sizes: tuple[int, ...], seed: int) -> Sequence:
    """What each of world_size ranks trains with a learner's stage 2; the trusted has none."""
    return _due(world_size, sizes, seed) if stage is ClippedStage2 else _in_ranks(stage, world_size, sizes, seed)


def _in_ranks(stage: Callable, world_size: int, sizes: tuple[int, ...], seed: int) -> Sequence[dict]:
    """What each rank has trained and sent."""
    look = [(stage, sharded.SIZES, 7, True)] if world_size == sharded.SIZES_BY else []
    ranks, *seen = looks.launched("14.3", _trained, world_size, [(stage, sizes, seed, False), *look])
    if seen:
        looks.keep(stage, seen)
    return ranks


def _due(world_size: int, sizes: tuple[int, ...], seed: int) -> list[dict]:
    """What each rank should have trained."""
    _, layers = _layers(sizes, seed, world_size)
    loss_of = lambda step, rank: sum(_loss(layers, seed, step, micro, rank) for micro in range(_MICRO))
    seen = undivided.path(layers, loss_of, world_size, _MAX_NORMS, eps=_EPS)
    return undivided.by_rank(seen, world_size, sharded.parts(sizes, world_size))


def stage2_found(got: Sequence, expected: Sequence, world_size: int, sizes: tuple[int, ...], _seed: int) -> Finding:
    """`right`, or what is wrong with what ranks trained."""
    part = sharded.parts(sizes, world_size)
    return Finding(sharded.wrong_with(got, expected, part, atol=1e-6))  # torch's own clipping adds 1e-6 to a norm


_CAUSES = {
    "parameters are not finite": "The first steps have a max_norm of inf: a factor above 1 would lengthen, so it is 1 "
    "at most.",
    "wrong after the first": "The first step clips nothing. Its gradient is the mean over the ranks, summed over the "
    "passes: divided by the ranks' number alone, and a later pass is added to an earlier one.",
    "wrong after the second": "The first step is right, and the second clips nothing either: are the gradients of the "
    "first one dropped in step()? And the optimizer is made once.",
    "wrong": "The first steps, which clip nothing, are right. The norm is that of all numbers of all layers and ranks: "
    "squares are summed over both, then comes one root, and one factor for all.",
}


def stage2_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    return sharded.cause_of(got, expected, _CAUSES)


def gradients_in_shards(stage: Callable) -> str | None:
    """None where gradients are scattered as they come and a part of them is kept; else what is not so."""
    world_size, task = sharded.SIZES_BY, (stage, sharded.SIZES, 7, True)
    (ranks,) = looks.taken(stage, lambda: looks.launched("14.3", _trained, world_size, [task]))
    n, part = sum(sharded.SIZES), sharded.parts(sharded.SIZES, world_size)
    to_all = sum(n_bytes for op, n_bytes in ranks[0]["sizes"] if op in ("all_reduce", "broadcast"))
    if to_all > BYTES:
        return (
            f"A step hands {to_all:,} bytes to all_reduce or broadcast, which bring every rank everything: it needs "
            "its part, by reduce_scatter. One number alone, 8 bytes, is summed for all: the squares of all layers."
        )
    if too_much := sharded.given_too_much(ranks, n, part):
        return too_much
    kept = max(each["kept"] for each in ranks) / BYTES
    if kept > 4.5 * part:  # a copy of a part is allowed
        return (
            f"After the backward passes a rank keeps {kept / n:.2f} numbers a parameter beside the parameters; parts "
            f"of gradients and state are {3 * part / n:.2f}. Something whole is kept, as a gradient of which a shard's "
            "is a view: scatter it in ready, into memory of its own, and let go."
        )
    if not all(each["early"] for each in ranks):
        return "A gradient was ready and nothing left: call reduce_scatter in ready, not in step."
    due = {"reduce_scatter": _MICRO * BYTES * world_size * part, "all_gather": BYTES * part}
    for op, n_bytes in due.items():
        if (sent := max(each["bytes"].get(op, 0) for each in ranks)) > 1.01 * n_bytes:
            return f"A step hands {sent:,} bytes to {op}; {n_bytes:,} are enough: a layer once a pass or step."
    return None
