"""How a learner's ZeRO stage 3 is looked at, for lesson 14, in real ranks: what is whole, when, and what it costs."""

from collections.abc import Callable, Sequence
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from labkit.checks import looks, sharded, undivided
from labkit.checks.zero import AdamW, GatheredStage3
from labkit.compare import Finding
from labkit.ranks import counting

_Sizes = tuple[int, ...]


def _layers(sizes: _Sizes, seed: int, world: int) -> tuple[list[Tensor], list[nn.Parameter]]:
    """Padded vectors, the same on all ranks, and the parameters that are views of them."""
    dice = torch.Generator().manual_seed(seed)
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
    dice, x = _start(seed, dist.get_rank())
    for which, layer in enumerate(layers):
        run.gather(which)
        x = _through(layer, x, dice)
        run.free(which)
        x.register_hook(lambda _, which=which: run.gather(which))
    return x


def _start(seed: int, rank: int) -> tuple[torch.Generator, Tensor]:
    """The dice of a rank's own data, and what enters the first layer."""
    return torch.Generator().manual_seed(1000 * seed + rank), torch.ones((), dtype=torch.double, requires_grad=True)


def _through(layer: Tensor, x: Tensor, dice: torch.Generator) -> Tensor:
    """What leaves a layer; for the gradient of x, autograd saves the layer."""
    data = torch.randn(len(layer), generator=dice, dtype=torch.double)
    return (layer * x).mul(data).sin().mean() + x


class _Whole:
    """A stage that divides nothing: every layer is there."""

    def gather(self, which: int) -> None:
        """Nothing."""

    free = gather


def _activations(layers: list[nn.Parameter]) -> int:
    """Bytes that a forward pass keeps for the backward one, beside the layers."""
    before = sharded.live_bytes(layers)
    loss = _forward(_Whole(), layers, 0)
    return sharded.live_bytes([*layers, loss]) - before


def _trained(stage: Callable, sizes: _Sizes, seed: int, look: bool = False) -> dict:
    """A rank's parameters at the start and after each step, what it sends, and what is whole after a forward pass.

    Where asked to look, activations: the bytes of these; kept: what lives besides the parameters after the last forward
    and the last backward pass.
    """
    AdamW.made, kept = [], []
    flats, layers = _layers(sizes, seed, dist.get_world_size())
    activations = _activations(layers) if look else 0
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
    return found | sharded.given() | {"activations": activations}


def drive_stage3(stage: Callable, world_size: int, sizes: _Sizes, seed: int) -> Sequence:
    """What each of world_size ranks trains with a learner's stage 3; the trusted has none."""
    return _due(world_size, sizes, seed) if stage is GatheredStage3 else _in_ranks(stage, world_size, sizes, seed)


def _in_ranks(stage: Callable, world_size: int, sizes: _Sizes, seed: int) -> Sequence[dict]:
    """What each rank has trained and sent."""
    look = [_look(stage)] if world_size == sharded.SIZES_BY else []
    ranks, *seen = looks.launched("14.4", _trained, world_size, [(stage, sizes, seed, False), *look])
    if seen:
        looks.keep(stage, seen)
    return ranks


def _look(stage: Callable) -> looks.Task:
    """The task in which a stage's memory is looked at."""
    return (stage, sharded.SIZES, 7, True)


def _due(world_size: int, sizes: _Sizes, seed: int) -> list[dict]:
    """What each rank should have trained."""
    _, layers = _layers(sizes, seed, world_size)

    def loss_of(step: int, rank: int) -> Tensor:
        dice, x = _start(10 * seed + step, rank)
        for layer in layers:
            x = _through(layer, x, dice)
        return x

    seen = undivided.path(layers, loss_of, world_size, [inf] * sharded.STEPS)
    return undivided.by_rank(seen, world_size, sharded.parts(sizes, world_size))


def stage3_found(got: Sequence, expected: Sequence, world_size: int, sizes: _Sizes, _seed: int) -> Finding:
    """`right`, or what is wrong with what ranks trained."""
    if any("freed" in each for each in got):
        return Finding("a shard is freed with its layer")
    return Finding(sharded.wrong_with(got, expected, sharded.parts(sizes, world_size)))


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
    (ranks,) = looks.taken(stage, lambda: looks.launched("14.4", _trained, world_size, [_look(stage)]))
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
    shards, their_gradients = 3 * part * size, part * size  # with the state, which is two parts
    forward = max(each["kept"][0] - each["activations"] - shards for each in ranks) / size
    backward = max(each["kept"][1] - shards - their_gradients for each in ranks) / size
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
