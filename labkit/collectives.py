"""Two collectives on vectors, each under one name: torch 2.13 has renamed both, and warns of the old names."""

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

_RENAMED = hasattr(dist, "reduce_scatter_single")
_SCATTER = dist.reduce_scatter_single if _RENAMED else dist.reduce_scatter_tensor
_GATHER = dist.all_gather_single if _RENAMED else dist.all_gather_into_tensor


def reduce_scatter(shard: Shaped[Tensor, "N"], flat: Shaped[Tensor, "M"]) -> None:
    """Fill shard with this rank's part of the sum of flat over the ranks; rank r has the r-th of R equal parts.

    ValueError: flat is not R times as long as shard.
    """
    _fits(shard, flat)
    _SCATTER(shard, flat)


def all_gather(flat: Shaped[Tensor, "M"], shard: Shaped[Tensor, "N"]) -> None:
    """Fill flat with the shards of all ranks, in their order; shard may be this rank's own part of flat.

    ValueError: flat is not R times as long as shard.
    """
    _fits(shard, flat)
    _GATHER(flat, shard)


def _fits(shard: Tensor, flat: Tensor) -> None:
    """ValueError unless the vector holds a shard a rank; the backend would end the process."""
    ranks = dist.get_world_size()
    if len(flat) != ranks * len(shard):
        raise ValueError(f"{ranks} ranks with a shard of {len(shard)} numbers each, and a vector of {len(flat)}.")
