"""Exercise 11.3, one ring for all gradients: run in real ranks, its means compared, its messages and bytes counted."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checker import close
from labkit.cost import ring_all_reduce_bytes
from labkit.ranks import counting, run_ranks

Shapes = tuple[tuple[int, ...], ...]
_WAIT_S = 4.0  # a check may take 10 s in all: a message that never comes must be told before
_EVEN: Shapes = ((5,), (2, 3), (7,), (1,), (3, 2, 2), (1,))  # 32 numbers, for four ranks
same_means = close(1e-6, 1e-6, "Each tensor given must hold the mean over all ranks, in place.")


def ring_mean(tensors: list[Tensor]) -> None:
    """Replace each tensor by its mean over all ranks, with one ring for all of them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    chunks = flat.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(take)
        receives = dist.P2POp(dist.irecv, arrived, (rank - 1) % world_size)
        sends = dist.P2POp(dist.isend, give, (rank + 1) % world_size)
        for under_way in dist.batch_isend_irecv([receives, sends]):
            under_way.wait()
        take.copy_(take + arrived if step < world_size - 1 else arrived)
    flat /= world_size
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def ring_shapes(rng: torch.Generator) -> Sequence[tuple]:
    """Two ranks and one tensor; three ranks and a total that three does not divide; three, drawn at random."""
    draw = lambda: int(torch.randint(1, 6, (), generator=rng))
    drawn = tuple((draw(), draw()) for _ in range(3))
    return [(2, ((4,),), 0), (3, ((3,), (2, 2)), 1), (3, (*drawn, (7,)), draw())]


def averaged(fn: Callable, world_size: int, shapes: Shapes, seed: int) -> dict:
    """How `fn` is used: each rank's tensors, in one vector, after fn was called with them."""
    ranks = (_expected if fn is ring_mean else _ran)(fn, world_size, shapes, seed)
    return {f"rank {rank}": each["means"] for rank, each in enumerate(ranks)}


def _ran(fn: Callable, world_size: int, shapes: Shapes, seed: int) -> list[dict]:
    """What each rank holds after fn, and what it sent; NotImplementedError where fn is a stub."""
    ranks = run_ranks(_in_a_rank, world_size, fn, shapes, seed, devices="cpu", timeout_s=_WAIT_S)
    for each in ranks:
        if "stub" in each:
            raise NotImplementedError(each["stub"])
    return ranks


_expected = cache(_ran)


def _in_a_rank(fn: Callable, shapes: Shapes, seed: int) -> dict:
    """One rank: whole numbers of its own, fn, and what was counted."""
    dice = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    tensors = [torch.randint(-20, 20, shape, generator=dice).float() for shape in shapes]
    with counting() as seen:
        try:
            fn(tensors)
        except NotImplementedError as stub:
            return {"stub": str(stub)}
    calls, n_bytes = Counter(seen.calls), Counter(seen.bytes)
    means = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return {"means": means, "calls": dict(calls), "bytes": dict(n_bytes)}


def ring_of_all(fn: Callable) -> str | None:
    """Whether fn works by messages alone, and by no more of them and of bytes than a ring of all gradients needs."""
    world_size, ranks = 4, _ran(fn, 4, _EVEN, 7)
    own = {op for each in ranks for op, n in each["calls"].items() if n} - {"send", "recv"}
    if own:
        return f"It calls {', '.join(sorted(own))}: the ring is to be made of messages, isend and irecv."
    most = {what: max(each[what].get("send", 0) for each in ranks) for what in ("calls", "bytes")}
    if most["calls"] > 2 * (world_size - 1):
        return (
            f"A rank sends {most['calls']} messages for {len(_EVEN)} tensors on {world_size} ranks; "
            f"{2 * (world_size - 1)} are enough: one vector of all gradients goes round, not each by itself."
        )
    ring_bytes = ring_all_reduce_bytes(4 * sum(map(prod, _EVEN)), world_size)
    if most["bytes"] > ring_bytes:
        return (
            f"With {world_size} ranks one of them sends {most['bytes']} bytes; in a ring of all gradients each sends "
            f"{ring_bytes:.0f}. Send chunks, and not whole vectors."
        )
    return None
