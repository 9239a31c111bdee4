"""What the stages of ZeRO train, for lesson 14, without ranks: one process with whole parameters on everybody's data.

What a learner's ranks train is held against it, so it is never where their code runs.
"""

from collections.abc import Callable, Sequence
from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from labkit.checks.zero import AdamW

BYTES = 8


def path(
    params: Sequence[Tensor], loss_of: Callable, world_size: int, max_norms: Sequence[float], eps: float = 1e-8
) -> Float[Tensor, "S P"]:
    """All parameters at the start and after each step; there is a step for each of max_norms.

    loss_of: loss_of(step, rank) is the loss of a rank's own data in a step.
    """
    optimizer, seen = AdamW(params, eps), [_vector(params)]
    AdamW.made.remove(optimizer)
    for step, max_norm in enumerate(max_norms):
        optimizer.zero_grad()
        (sum(loss_of(step, rank) for rank in range(world_size)) / world_size).backward()
        if max_norm < inf:
            factor = min(1.0, max_norm / _vector([p.grad for p in params]).norm())
            for p in params:
                p.grad *= factor
        optimizer.step()
        seen.append(_vector(params))
    return torch.stack(seen)


def _vector(tensors: Sequence[Tensor]) -> Float[Tensor, "P"]:
    """All numbers of some tensors, copied."""
    return torch.cat([each.detach().flatten() for each in tensors])


def by_rank(seen: Float[Tensor, "S P"], world_size: int, part: int) -> list[dict]:
    """The same for each rank, with what is its due: an optimizer for a part, and a part sent in a step."""
    return [{"seen": seen, "most": part * BYTES, "bytes": {"all_gather": part * BYTES}}] * world_size
