"""Two collectives on vectors: real ranks, the names of the torch at hand, and a sentence where sizes do not fit."""

import torch
import torch.distributed as dist

from labkit.collectives import all_gather, reduce_scatter
from labkit.ranks import counting, run_ranks


def _both(n: int):
    """Reduce-scatter and all-gather, what was counted, and what is said of a vector that the ranks do not divide."""
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = torch.zeros(n)
    with counting() as c:
        reduce_scatter(shard, torch.arange(float(n * world)) + rank)
        flat = torch.zeros(n * world)
        flat.chunk(world)[rank].copy_(shard)
        all_gather(flat, flat.chunk(world)[rank])  # a shard that is a part of the vector itself
    said = []
    for call in (lambda: reduce_scatter(shard, torch.zeros(n * world + 1)), lambda: all_gather(torch.zeros(1), shard)):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return shard, flat, dict(c.bytes), said


def test_parts_are_summed_and_handed_round():
    for world in (2, 3):
        total = sum(torch.arange(4.0 * world) + rank for rank in range(world))
        for rank, (shard, flat, n_bytes, said) in enumerate(run_ranks(_both, world, 4, devices="cpu")):
            assert torch.equal(shard, total.chunk(world)[rank])
            assert torch.equal(flat, total)
            assert n_bytes == {"reduce_scatter": 16 * world, "all_gather": 16}
            assert said == [
                f"{world} ranks with a shard of 4 numbers each, and a vector of {4 * world + 1}.",
                f"{world} ranks with a shard of 4 numbers each, and a vector of 1.",
            ]
