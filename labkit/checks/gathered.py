"""How a learner's ZeRO stage 3 is looked at, for lesson 14, in real ranks: what is whole, when, and what it costs."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from labkit.checks import sharded
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

    kept: where asked to look, what lives besides the parameters after the last forward and the last backward pass.
    """
    AdamW.made, kept = [], []
    flats, layers = _layers(sizes, seed)
    before = sharded.live_bytes(layers) - sum(flat.nbytes for flat in flats) if look else 0
    seen = [sharded.vector(layers)]
    run = stage(list(flats), AdamW)
    if any(p.untyped_storage().nbytes() == 0 for each in AdamW.made for p in each.params):
        return {"freed": True}
    start = [flat.untyped_storage().nbytes() for flat in flats]
    for which, layer in enumerate(layers):
        _hook(run, which, layer)
    for step in range(sharded.STEPS):
        with counting() as c:
            loss = _forward(run, layers, 10 * seed + step)
            whole = sum(flat.untyped_storage().nbytes() for flat in flats)
            last = look and step == sharded.STEPS - 1
            rest = before + sum(each.nbytes for each in seen)
            if last:
                kept.append(sharded.live_bytes(layers) - rest)
            loss.backward()
            if last:
                kept.append(sharded.live_bytes(layers) - rest)
            run.step()
        for which in range(len(layers)):
            run.gather(which)
        seen.append(sharded.vector(layers))
        for which in range(len(layers)):
            run.free(which)
    found = {"seen": torch.stack(seen), "start": start, "whole": whole, "kept": kept, "bytes": dict(c.bytes)}
    return found | sharded.given()


def drive_stage3(stage: Callable, world_size: int, sizes: _Sizes, seed: int) -> Finding:
    """`right`, or what is wrong with the parameters that world_size ranks train with a learner's stage 3."""
    if stage is GatheredStage3:
        return Finding("right")
    tasks = [(each, sizes, seed, False) for each in (GatheredStage3, stage)]
    look = _tasks(stage) if world_size == sharded.SIZES_BY else []
    right, ranks, *looks = sharded.launched("14.4", _trained, world_size, tasks + look)
    if any("freed" in each for each in ranks):
        return Finding("a shard is freed with its layer")
    if looks:
        sharded.keep_look(stage, looks)
    return Finding(sharded.wrong_with(ranks, right[0], sharded.parts(sizes, world_size)))


def _tasks(stage: Callable) -> list[sharded.Task]:
    """What is looked at: the trusted stage's memory, and that of a learner's."""
    return [(each, sharded.SIZES, 7, True) for each in (GatheredStage3, stage)]


_CAUSES = {
    "a shard is freed": "The shard is a view of the vector, whose memory free takes away: clone it first.",
    "wrong after the first": "gather fills the whole vector, in place, with the newest shard of each rank; a gradient "
    "is the mean over the ranks.",
    "wrong": "The first step is right. A gradient is dropped after its step; gather brings the newest shard of each "
    "rank; and the optimizer is made once.",
}


def stage3_cause(got: object, expected: object) -> str | None:
    """None where the training is right, otherwise the likely cause."""
    return sharded.cause_of(got, expected, _CAUSES)


def freed_between(stage: Callable) -> str | None:
    """None where layers are whole only between gather and free, and no more is sent than that needs; else what not."""
    world_size = sharded.SIZES_BY
    right, ranks = sharded.taken_look(stage, lambda: sharded.launched("14.4", _trained, world_size, _tasks(stage)))
    n, part, size = sum(sharded.SIZES), sharded.parts(sharded.SIZES, world_size), sharded.BYTES
    if whole := max(each["whole"] for each in ranks):
        return (
            f"All layers are freed after the forward pass, and {whole / size / n:.0%} of the parameters are still "
            "there: autograd and the parameters refer to the vector. Empty its storage, resize_(0)."
        )
    start = ranks[0]["start"]
    if any(start):
        which, n_bytes = next((which, n_bytes) for which, n_bytes in enumerate(start) if n_bytes)
        return f"After __init__ every layer is freed, and layer {which} still has {n_bytes:,} bytes."
    if max(each["given"] for each in ranks) > part * size:
        return f"A rank's optimizer was given more than its {part} of {n} numbers: its state is not a part."
    forward, backward = (
        max(mine["kept"][moment] - due["kept"][moment] for mine, due in zip(ranks, right, strict=True)) / size
        for moment in range(2)
    )
    if forward > 0.5 * part:
        likely = "Something whole is kept: parameters, or gradients."
        if forward < 1.5 * part:
            likely = "That is a rank's part: are the gradients dropped in step()?"
        return (
            f"After the forward pass a rank keeps {forward / n:.2f} numbers a parameter more than activations, shards "
            f"and their state. {likely}"
        )
    if backward > 0.5 * part:
        return (
            f"Before step() a rank keeps {backward / n:.2f} numbers a parameter more than shards, their gradients and "
            "state. Is a shard's gradient a view? It keeps all of the gradient alive: give it memory of its own."
        )
    due = {"all_gather": 2 * part * size, "reduce_scatter": world_size * part * size}
    for op, sent in ranks[0]["bytes"].items():
        if sent > due.get(op, 0) + sharded.FEW_BYTES:
            return f"A step hands {sent:,} bytes to {op}, {due.get(op, 0):,} are due: gather twice, scatter once."
    return None
