"""How a learner's ZeRO stage 3 is looked at, for lesson 14, in real ranks: what is whole, when, and what it costs."""

from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from labkit.checks import sharded
from labkit.checks.replicas import in_ranks
from labkit.checks.zero import AdamW, GatheredStage3
from labkit.compare import Finding
from labkit.ranks import counting

_Sizes = tuple[int, ...]


def _layers(sizes: _Sizes, seed: int) -> tuple[list[Tensor], list[nn.Parameter]]:
    """Padded vectors, the same on all ranks, and the parameters that are views of them."""
    dice, world = torch.Generator().manual_seed(seed), dist.get_world_size()
    flats = [torch.randn(n + -n % world, generator=dice, dtype=torch.double) for n in sizes]
    layers = [nn.Parameter(torch.empty(n, dtype=torch.double)) for n in sizes]
    for layer, flat in zip(layers, flats, strict=True):
        layer.data = flat[: len(layer)]  # and not Parameter(flat[:n]), in which autograd would see every gather
    return flats, layers


def _hook(run: object, which: int, layer: nn.Parameter) -> None:
    """Have a layer's gradient handed over as soon as it is there, and the layer freed."""
    padding = -len(layer) % dist.get_world_size()

    def there(p: Tensor) -> None:
        gradient, p.grad = pad(p.grad, (0, padding)), None
        run.ready(which, gradient)
        run.free(which)

    layer.register_post_accumulate_grad_hook(there)


def _forward(run: object, layers: list[nn.Parameter], seed: int) -> Tensor:
    """A loss of this rank's own data; each layer is gathered, used and freed, and gathered again backward."""
    dice = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    x = torch.ones((), dtype=torch.double, requires_grad=True)
    for which, layer in enumerate(layers):
        run.gather(which)
        data = torch.randn(len(layer), generator=dice, dtype=torch.double)
        x = (layer * x).mul(data).sin().mean() + x  # for the gradient of x, autograd saves the layer
        run.free(which)
        x.register_hook(lambda _, which=which: run.gather(which))
    return x


def _trained(stage: Callable, sizes: _Sizes, seed: int, look: bool = False) -> dict:
    """A rank's parameters at the start and after each step, what it sends, and what is whole after a forward pass.

    kept: where asked to look, what lives at that moment besides activations.
    """
    AdamW.made, kept = [], 0
    flats, layers = _layers(sizes, seed)
    before = sharded.live_bytes(layers) - sum(flat.nbytes for flat in flats) if look else 0
    seen = [sharded.vector(layers)]
    run = stage(list(flats), AdamW)
    if any(p.untyped_storage().nbytes() == 0 for each in AdamW.made for p in each.params):
        return {"freed": True}
    for which, layer in enumerate(layers):
        _hook(run, which, layer)
    for step in range(sharded.STEPS):
        with counting() as c:
            loss = _forward(run, layers, 10 * seed + step)
            whole = sum(flat.untyped_storage().nbytes() for flat in flats)
            if look and step == sharded.STEPS - 1:
                kept = sharded.live_bytes(layers) - before - sum(each.nbytes for each in seen)
            loss.backward()
            run.step()
        for which in range(len(layers)):
            run.gather(which)
        seen.append(sharded.vector(layers))
        for which in range(len(layers)):
            run.free(which)
    given = sharded.given_bytes()
    return {"seen": torch.stack(seen), "whole": whole, "kept": kept, "given": given, "bytes": dict(c.bytes)}


@cache
def _right(world_size: int, sizes: _Sizes, seed: int, look: bool = False) -> list:
    """What the course's own stage 3 does in each rank."""
    return in_ranks("14.4", _trained, world_size, GatheredStage3, sizes, seed, look)


def drive_stage3(stage: Callable, world_size: int, sizes: _Sizes, seed: int) -> Finding:
    """`right`, or what is wrong with the parameters that world_size ranks train with a learner's stage 3."""
    right = _right(world_size, sizes, seed)
    ranks = right if stage is GatheredStage3 else in_ranks("14.4", _trained, world_size, stage, sizes, seed)
    if any("freed" in each for each in ranks):
        return Finding("a shard is freed with its layer")
    return Finding(sharded.wrong_with(ranks, right[0]["seen"]))


def stage3_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    if got == "a shard is freed with its layer":
        return "The shard is a view of the vector, whose memory free takes away: clone it first."
    wrong = "gather fills the whole vector, in place, with the newest shard of each rank; a gradient is the mean over "
    wrong += "the ranks, and is dropped after the step."
    return None if got == expected else sharded.CAUSES.get(str(got), wrong)


def freed_between(stage: Callable) -> str | None:
    """None where layers are whole only between gather and free, and no more is sent than that needs; else what not."""
    world_size, sizes = 3, (1000, 700, 1300)
    ranks = in_ranks("14.4", _trained, world_size, stage, sizes, 7, True)
    n, part, size = sum(sizes), sum(-(-each // world_size) for each in sizes), sharded.BYTES
    if whole := max(each["whole"] for each in ranks):
        return (
            f"All layers are freed after the forward pass, and {whole / size / n:.0%} of the parameters are still "
            "there: autograd and the parameters refer to the vector. Empty its storage, resize_(0)."
        )
    if max(each["given"] for each in ranks) > part * size:
        return f"A rank's optimizer was given more than its {part} of {n} numbers: its state is not a part."
    kept, due_bytes = (max(each["kept"] for each in by) for by in (ranks, _right(world_size, sizes, 7, True)))
    if kept > due_bytes + 0.5 * part * size:
        return (
            f"After the forward pass a rank keeps {(kept - due_bytes) / size / n:.2f} numbers a parameter more than "
            f"activations, shards and their state. A whole copy of the parameters is kept somewhere else."
        )
    due = {"all_gather": 2 * part * size, "reduce_scatter": world_size * part * size}
    for op, sent in ranks[0]["bytes"].items():
        if sent > due.get(op, 0) + sharded.FEW_BYTES:
            return f"A step hands {sent:,} bytes to {op}, {due.get(op, 0):,} are due: gather twice, scatter once."
    return None
