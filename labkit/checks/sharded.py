"""How a learner's ZeRO is looked at, for lesson 14, in real ranks: what they train, keep and send.

The ranks of a check run on the CPU and are seeded apart, so that a forgotten broadcast shows.
"""

import gc
import time
from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from labkit.checks.replicas import in_ranks
from labkit.checks.zero import AdamW, ClippedStage2, FlatStage1
from labkit.compare import Finding
from labkit.ranks import counting

BYTES = 8  # everything is in double precision
FEW_BYTES = 64
STEPS, _MICRO = 3, 2
_MAX_NORMS = (0.5, 500.0, 2.0)  # of each step: the second clips nothing

# ---- what both stages are tried on ----------------------------------------------------------------------------------

Shapes = tuple[tuple[int, ...], ...]


def _parameters(shapes: Shapes, seed: int) -> list[nn.Parameter]:
    """Parameters of a rank, drawn with dice of its own."""
    dice = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return [nn.Parameter(torch.randn(shape, generator=dice, dtype=torch.double)) for shape in shapes]


def _loss(params: Sequence[Tensor], seed: int) -> Tensor:
    """A loss of this rank's own data, whose gradient depends on the parameters."""
    dice = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    targets = [torch.randn(p.shape, generator=dice, dtype=torch.double) for p in params]
    pairs = zip(params, targets, strict=True)
    return sum((p.sin() * target).sum() + (p - target).square().mean() for p, target in pairs)


def vector(tensors: Sequence[Tensor]) -> Float[Tensor, "P"]:
    """All numbers of some tensors, copied."""
    return torch.cat([each.detach().flatten() for each in tensors])


def live_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the tensors that this process holds, gradients of the given ones too, each storage once.

    A backend's thread lets go of what it has sent a moment after the collective has returned: the least of some looks.
    """
    gc.collect()
    looks = [_held_now(tensors)]
    for _ in range(2):
        time.sleep(0.02)
        looks.append(_held_now(tensors))
    return min(looks)


def _held_now(tensors: Sequence[Tensor]) -> int:
    """Those that it holds at this moment."""
    found = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    found += [each.grad for each in (*found, *tensors) if each.is_leaf and each.grad is not None]
    held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
    return sum(held.values())


def _on_rings(c: object) -> float:
    """Times that the whole vectors cross the ring: an all_reduce twice, any other collective once."""
    world = dist.get_world_size()
    weight = {"all_reduce": 2, "all_gather": world, "gather": world, "all_to_all": 1}
    return sum(n * weight.get(op, 1) for op, n in c.bytes.items())


def given_bytes() -> int:
    """Bytes of what the optimizers of this rank were given."""
    return sum(p.nbytes for each in AdamW.made for p in each.params)


# ---- stage 1 --------------------------------------------------------------------------------------------------------


def _trained1(stage: Callable, shapes: Shapes, seed: int, look: bool = False) -> dict:
    """A rank's parameters at the start and after each step, what it sent; where asked to look, what it keeps."""
    AdamW.made = []
    params = _parameters(shapes, seed)
    before = live_bytes(params) if look else 0
    run = stage(list(params), AdamW)
    seen = [vector(params)]
    for step in range(STEPS):
        for p in params:
            p.grad = None
        _loss(params, 10 * seed + step).backward()
        with counting() as c:
            run.step()
        seen.append(vector(params))
    kept = live_bytes(params) - before - sum(each.nbytes for each in seen) if look else 0
    return {
        "seen": torch.stack(seen),
        "given": given_bytes(),
        "kept": kept,
        "state": sum(mean.nbytes + square.nbytes for each in AdamW.made for mean, square in each.state),
        "bytes": dict(c.bytes),
        "ring": _on_rings(c),
    }


def drive_stage1(stage: Callable, world_size: int, shapes: Shapes, seed: int) -> Finding:
    """`right`, or what is wrong with the parameters that world_size ranks train with a learner's stage 1."""
    right = _right1(world_size, shapes, seed)
    ranks = right if stage is FlatStage1 else in_ranks("14.2", _trained1, world_size, stage, shapes, seed)
    return Finding(wrong_with(ranks, right[0]["seen"]))


@cache
def _right1(world_size: int, shapes: Shapes, seed: int) -> list:
    """What the course's own stage 1 does in each rank."""
    return in_ranks("14.2", _trained1, world_size, FlatStage1, shapes, seed)


def wrong_with(ranks: list[dict], right: Tensor) -> str:
    """`right`, or what is wrong with what ranks ended with."""
    same = lambda a, b: torch.allclose(a, b, rtol=0, atol=1e-11)
    seen = [each["seen"] for each in ranks]
    if not any(each["bytes"] for each in ranks):
        return "nothing is sent in a step"
    if not all(torch.equal(each[0], right[0]) for each in seen):
        return "ranks start apart"
    if all(torch.equal(each[0], each[-1]) for each in seen):
        return "the parameters stay as they were"
    if not all(same(each[1:], seen[0][1:]) for each in seen):
        return "ranks end apart"
    if not same(seen[0][1], right[1]):
        return "wrong after the first step"
    return "right" if same(seen[0], right) else "wrong after a later step"


CAUSES = {
    "nothing is sent in a step": "Each rank has the gradient of its own data, and its own part of the update: both "
    "must travel.",
    "ranks start apart": "Each rank drew parameters of its own: broadcast those of rank 0 first.",
    "the parameters stay as they were": "What is updated are not the parameters: let each p.data be a view of the "
    "vector, or copy the gathered numbers back into it.",
    "ranks end apart": "After the step every rank must have all new parts, in the same place: all_gather them, and do "
    "not leave out the last numbers where the ranks do not divide them.",
}


def stage1_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    wrong = "The mean of the gradients over the ranks: summed, and divided by their number once. The optimizer is made "
    wrong += "once, its state stays with the same numbers."
    return None if got == expected else CAUSES.get(str(got), wrong)


_LOOKED_AT: Shapes = ((33, 31), (31,), (17, 30), (9, 11))


def in_shards(stage: Callable) -> str | None:
    """None where a rank's state is a part, and no more is sent than by DDP; else what is not so."""
    world_size = 3
    n = sum(map(prod, _LOOKED_AT))
    ranks = in_ranks("14.2", _trained1, world_size, stage, _LOOKED_AT, 5, True)
    part, padded = -(-n // world_size), world_size * -(-n // world_size)
    given = max(each["given"] for each in ranks) // BYTES
    if given > part:
        return f"A rank's optimizer was given {given} of {n} numbers; with {world_size} ranks {part} are its part."
    ring = max(each["ring"] for each in ranks)
    if ring > 2.02 * padded * BYTES + FEW_BYTES:
        ops = ", ".join(sorted(op for op, n_bytes in ranks[0]["bytes"].items() if n_bytes))
        return (
            f"A step sends {ring / (2 * n * BYTES):.2f} times what DDP sends ({ops}). An all-reduce brings each rank "
            "the mean of everything: a rank needs that of its part, a reduce_scatter, and then one all_gather."
        )
    state = max(each["state"] for each in ranks)
    kept = max(each["kept"] for each in ranks)
    if state > 2 * part * BYTES or kept > (n + 3.5 * part) * BYTES:
        return (
            f"Between steps a rank keeps {kept / BYTES / n:.2f} numbers a parameter beside the parameters: gradients "
            f"and its part of the state are {1 + 2 / world_size:.2f}. Something is kept whole that could be a part."
        )
    return None


# ---- stage 2 --------------------------------------------------------------------------------------------------------


def _trained2(stage: Callable, sizes: tuple[int, ...], seed: int, look: bool = False) -> dict:
    """As _trained1, for layers that are vectors already; `early` is what is kept between two backward passes."""
    AdamW.made = []
    world = dist.get_world_size()
    dice = torch.Generator().manual_seed(seed)
    flats = [torch.randn(n + -n % world, generator=dice, dtype=torch.double) for n in sizes]
    layers = [nn.Parameter(flat[:n]) for flat, n in zip(flats, sizes, strict=True)]
    before = live_bytes(layers) if look else 0
    run = stage(list(flats), AdamW)
    seen, kept, early = [vector(layers)], 0, []
    for step in range(STEPS):
        with counting() as c:
            for micro in range(_MICRO):
                _loss(layers, 100 * seed + 10 * step + micro).backward()
                for which in reversed(range(len(layers))):
                    calls = c.n_calls
                    run.ready(which, pad(layers[which].grad, (0, -sizes[which] % world)))
                    layers[which].grad = None
                    early.append(c.n_calls > calls)
            if look and step == STEPS - 1:
                kept = live_bytes(layers) - before - sum(each.nbytes for each in seen)
            run.step(_MAX_NORMS[step])
        seen.append(vector(layers))
    return {
        "seen": torch.stack(seen),
        "given": given_bytes(),
        "kept": kept,
        "early": all(early),
        "bytes": dict(c.bytes),
        "sizes": [(event.op, event.n_bytes) for event in c.events],
    }


def drive_stage2(stage: Callable, world_size: int, sizes: tuple[int, ...], seed: int) -> Finding:
    """`right`, or what is wrong with the parameters that world_size ranks train with a learner's stage 2."""
    right = _right2(world_size, sizes, seed)
    ranks = right if stage is ClippedStage2 else in_ranks("14.3", _trained2, world_size, stage, sizes, seed)
    return Finding(wrong_with(ranks, right[0]["seen"]))


@cache
def _right2(world_size: int, sizes: tuple[int, ...], seed: int) -> list:
    """What the course's own stage 2 does in each rank."""
    return in_ranks("14.3", _trained2, world_size, ClippedStage2, sizes, seed)


def stage2_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    wrong = "The gradient of a step: the mean over ranks, added up over micro-batches. Its norm is that of all numbers "
    wrong += "of all layers and ranks: squares are summed over the ranks, then the root, and it never lengthens."
    return None if got == expected else CAUSES.get(str(got), wrong)


def gradients_in_shards(stage: Callable) -> str | None:
    """None where gradients are scattered as they come and a part of them is kept; else what is not so."""
    world_size, sizes = 3, (1000, 700, 1300)
    ranks = in_ranks("14.3", _trained2, world_size, stage, sizes, 7, True)
    n, part = sum(sizes), sum(-(-size // world_size) for size in sizes)
    large = [n_bytes for op, n_bytes in ranks[0]["sizes"] if op in ("all_reduce", "broadcast") and n_bytes > FEW_BYTES]
    if large:
        return (
            f"A step hands {sum(large):,} bytes to all_reduce or broadcast, which bring every rank everything: it "
            "needs its part, by reduce_scatter. Only the square of the norm, one number, is summed for all."
        )
    given = max(each["given"] for each in ranks) // BYTES
    if given > part:
        return f"A rank's optimizer was given {given} of {n} numbers; with {world_size} ranks {part} are its part."
    kept = max(each["kept"] for each in ranks) / BYTES
    if kept > 3.5 * part:
        return (
            f"After the backward passes a rank keeps {kept / n:.2f} numbers a parameter beside the parameters; parts "
            f"of gradients and state are {3 * part / n:.2f}. A whole gradient is kept: scatter it in ready, and let go."
        )
    if not all(each["early"] for each in ranks):
        return "A gradient was ready and nothing left: call reduce_scatter in ready, not in step."
    due = {"reduce_scatter": _MICRO * BYTES * world_size * part, "all_gather": BYTES * part}
    for op, n_bytes in due.items():
        if (sent := max(each["bytes"].get(op, 0) for each in ranks)) > 1.01 * n_bytes:
            return f"A step hands {sent:,} bytes to {op}; {n_bytes:,} are enough: a layer once a pass or step."
    return None
