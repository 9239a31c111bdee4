"""How a learner's ZeRO is looked at, for lesson 14, in real ranks: what they train, keep and send.

The ranks of a check run on the CPU and are seeded apart, so that a forgotten broadcast shows.
"""

import gc
import time
from collections.abc import Callable, Sequence
from math import inf, prod

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from labkit.checks import looks, undivided
from labkit.checks.zero import AdamW, FlatStage1
from labkit.compare import Finding
from labkit.ranks import counting

BYTES = 8  # everything is in double precision
FEW_BYTES = 64
STEPS = 3
_ORDINALS = ("first", "second", "third", "fourth")

# ---- what stages are tried on, and looked at -------------------------------------------------------------------------

Shapes = tuple[tuple[int, ...], ...]


def _parameters(shapes: Shapes, seed: int, rank: int) -> list[nn.Parameter]:
    """Parameters of a rank, drawn with dice of its own."""
    dice = torch.Generator().manual_seed(100 * seed + rank)
    return [nn.Parameter(torch.randn(shape, generator=dice, dtype=torch.double)) for shape in shapes]


def loss(params: Sequence[Tensor], seed: int, rank: int) -> Tensor:
    """A loss of a rank's own data, whose gradient depends on the parameters."""
    dice = torch.Generator().manual_seed(1000 * seed + rank)
    targets = [torch.randn(p.shape, generator=dice, dtype=torch.double) for p in params]
    pairs = zip(params, targets, strict=True)
    return sum((p.sin() * target).sum() + (p - target).square().mean() for p, target in pairs)


def vector(tensors: Sequence[Tensor]) -> Float[Tensor, "P"]:
    """All numbers of some tensors, copied."""
    return torch.cat([each.detach().flatten() for each in tensors])


def live_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the tensors that this process holds, gradients of the given ones too, each storage once.

    A backend's thread lets go of what it has sent a moment after the collective has returned: the least of some.
    """
    gc.collect()
    held = [_held_now(tensors)]
    for _ in range(2):
        time.sleep(0.02)
        held.append(_held_now(tensors))
    return min(held)


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


def given() -> dict[str, int]:
    """Bytes of what the optimizers of this rank were given: all of them, and the one that was given most."""
    each = [sum(p.nbytes for p in optimizer.params) for optimizer in AdamW.made]
    return {"given": sum(each), "most": max(each, default=0)}


SIZES, SIZES_BY = (1000, 700, 1300), 3
"""The layers whose memory is looked at in stages 2 and 3, and by how many ranks."""


def parts(sizes: Sequence[int], world_size: int) -> int:
    """A rank's part of layers that are padded one by one."""
    return sum(-(-size // world_size) for size in sizes)


# ---- stage 1 --------------------------------------------------------------------------------------------------------


def _trained(stage: Callable, shapes: Shapes, seed: int, look: bool = False) -> dict:
    """A rank's parameters at the start and after each step, what it sent; where asked to look, what it keeps."""
    AdamW.made = []
    rank = dist.get_rank()
    params = _parameters(shapes, seed, rank)
    before = live_bytes(params) if look else 0
    run = stage(list(params), AdamW)
    seen = [vector(params)]
    for step in range(STEPS):
        for p in params:
            p.grad = None
        loss(params, 10 * seed + step, rank).backward()
        with counting() as c:
            run.step()
        seen.append(vector(params))
    kept = live_bytes(params) - before - sum(each.nbytes for each in seen) if look else 0
    return {
        "seen": torch.stack(seen),
        **given(),
        "kept": kept,
        "state": sum(mean.nbytes + square.nbytes for each in AdamW.made for mean, square in each.state),
        "bytes": dict(c.bytes),
        "ring": _on_rings(c),
    }


def drive_stage1(stage: Callable, world_size: int, shapes: Sequence[Shapes], seed: int) -> list:
    """What each of world_size ranks trains with a learner's stage 1, for each of some shapes; the trusted has none."""
    return _due(world_size, shapes, seed) if stage is FlatStage1 else _in_ranks(stage, world_size, shapes, seed)


def _in_ranks(stage: Callable, world_size: int, shapes: Sequence[Shapes], seed: int) -> list[tuple]:
    """By shapes, what each rank has trained and sent."""
    tasks = [(stage, one, seed, False) for one in shapes]
    if world_size != _LOOKED_AT_BY:
        return looks.launched("14.2", _trained, world_size, tasks)
    *found, last = looks.launched("14.2", _trained, world_size, [*tasks, (stage, _LOOKED_AT, 5, True)])
    looks.keep(stage, [last])
    return found


def _due(world_size: int, shapes: Sequence[Shapes], seed: int) -> list[list]:
    """By shapes, what ranks should have trained."""
    found = []
    for one in shapes:
        params = _parameters(one, seed, rank=0)
        loss_of = lambda step, rank, params=params: loss(params, 10 * seed + step, rank)
        seen = undivided.path(params, loss_of, world_size, [inf] * STEPS)
        found.append(undivided.by_rank(seen, world_size, _part(one, world_size)))
    return found


def _part(shapes: Shapes, world_size: int) -> int:
    """A rank's part of parameters that are padded once for all."""
    return -(-sum(map(prod, shapes)) // world_size)


def stage1_found(got: Sequence, expected: Sequence, world_size: int, shapes: Sequence[Shapes], _seed: int) -> Finding:
    """`right`, or what is wrong with what ranks trained, and for which shapes."""
    for one, ranks, due in zip(shapes, got, expected, strict=True):
        wrong = wrong_with(ranks, due, _part(one, world_size))
        if wrong != "right":
            return Finding(f"{wrong}, with parameters of {', '.join(map(str, one))}")
    return Finding("right")


def wrong_with(ranks: Sequence[dict], due: Sequence[dict], part: int, atol: float = 1e-11) -> str:
    """`right`, or what is wrong with what ranks ended with; part: the numbers that are an optimizer's due."""
    same = lambda a, b: a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=atol)
    seen, right = [each["seen"] for each, _ in zip(ranks, due, strict=True)], due[0]["seen"]
    if not any(each["bytes"] for each in ranks):
        return "nothing is sent in a step"
    if not all(torch.equal(each[0], right[0]) for each in seen):
        return "ranks start apart"
    found = "right"
    if all(torch.equal(each[0], each[-1]) for each in seen):
        found = "the parameters stay as they were"
    elif not all(each.isfinite().all() for each in seen):
        found = "parameters are not finite"
    elif not all(same(each[1:], seen[0][1:]) for each in seen):
        found = "ranks end apart"
    else:
        steps = [same(*each) for each in zip(seen[0][1:], right[1:], strict=True)]
        found = "right" if all(steps) else f"wrong after the {_ORDINALS[steps.index(False)]} step"
    given_most = max(each["most"] for each in ranks) // BYTES
    if found != "right" and given_most > part:
        return f"an optimizer was given {given_most} numbers, {part} are its part"
    return found


def cause_of(found: object, right: object, causes: dict[str, str]) -> str | None:
    """None where a drive found all right, otherwise the cause whose key its finding begins with."""
    known = CAUSES | causes
    return None if found == right else next(known[key] for key in known if str(found).startswith(key))


CAUSES = {
    "nothing is sent in a step": "Each rank has the gradient of its own data, and its own part of the update: both "
    "must travel.",
    "ranks start apart": "Each rank drew parameters of its own: broadcast those of rank 0 first, and let each p.data "
    "show them.",
    "an optimizer was given": "An optimizer gets this rank's shards, and no parameter: what it updates beside them is "
    "not gathered, and its state is not a part.",
    "the parameters stay as they were": "What is updated are not the parameters: let each p.data be a view of the "
    "vector, or copy the gathered numbers back into it.",
    "parameters are not finite": "Something is divided by nothing, or is used before it was filled.",
    "ranks end apart": "After the step every rank must have all new parts, in the same place: all_gather them, and do "
    "not leave out the last numbers where the ranks do not divide them.",
}
_CAUSES = {
    "wrong after the first": "The mean of the gradients over the ranks: summed, and divided by their number once.",
    "wrong": "The first step is right. The optimizer is made once, its state stays with the same numbers; and each "
    "step takes the gradients of this step alone.",
}


def stage1_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    return cause_of(got, expected, _CAUSES)


_LOOKED_AT: Shapes = ((33, 31), (31,), (17, 30), (9, 11))
_LOOKED_AT_BY = 3  # ranks


def in_shards(stage: Callable) -> str | None:
    """None where a rank's state is a part, and no more is sent than by DDP; else what is not so."""
    world_size, n = _LOOKED_AT_BY, sum(map(prod, _LOOKED_AT))
    task = (stage, _LOOKED_AT, 5, True)
    (ranks,) = looks.taken(stage, lambda: looks.launched("14.2", _trained, world_size, [task]))
    part, padded = -(-n // world_size), world_size * -(-n // world_size)
    if too_much := given_too_much(ranks, n, part):
        return too_much
    ring = max(each["ring"] for each in ranks)
    if ring > 2.02 * padded * BYTES + FEW_BYTES:
        ops = ", ".join(sorted(op for op, n_bytes in ranks[0]["bytes"].items() if n_bytes))
        return (
            f"A step sends {ring / (2 * n * BYTES):.2f} times what DDP sends ({ops}). An all-reduce brings each rank "
            "the mean of everything: a rank needs that of its part, a reduce_scatter, and then one all_gather."
        )
    state = max(each["state"] for each in ranks)
    kept = max(each["kept"] for each in ranks)
    if state > 2 * part * BYTES or kept > (n + 4.5 * part) * BYTES:  # a copy of a part is allowed
        return (
            f"Between steps a rank keeps {kept / BYTES / n:.2f} numbers a parameter beside the parameters: gradients "
            f"and its part of the state are {1 + 2 / world_size:.2f}. Something is kept whole that could be a part."
        )
    return None


def given_too_much(ranks: Sequence[dict], n: int, part: int) -> str:
    """A sentence where a rank's optimizers were given more than its part of n numbers."""
    numbers = max(each["given"] for each in ranks) // BYTES
    said = f"A rank's optimizer was given {numbers} of {n} numbers; with {len(ranks)} ranks {part} are its part."
    return said if numbers > part else ""
