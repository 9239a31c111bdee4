"""ZeRO by hand, for lesson 14: the trusted stages, and an AdamW that starts quickly."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from labkit.collectives import all_gather, reduce_scatter


class AdamW:
    """Adam with decoupled weight decay, as torch.optim.AdamW, which would load its compiler into every rank.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization (ICLR 2019), algorithm 2.
    """

    made: list["AdamW"] = []

    def __init__(self, params: Sequence[Tensor], eps: float = 1e-8) -> None:
        self.params, self.n_steps, self.eps = list(params), 0, eps
        self.state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.params]
        AdamW.made.append(self)

    @torch.no_grad()
    def step(self) -> None:
        """Update what was given, in place, by its gradients; without a gradient nothing changes."""
        self.n_steps += 1
        for p, (mean, square) in zip(self.params, self.state, strict=True):
            if p.grad is None:
                continue
            p *= 1 - 0.01 * 0.1
            mean.lerp_(p.grad, 0.1)
            square.lerp_(p.grad.square(), 0.001)
            size = (square / (1 - 0.999**self.n_steps)).sqrt() + self.eps
            p -= 0.01 * mean / (1 - 0.9**self.n_steps) / size

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for p in self.params:
            p.grad = None


class FlatStage1:
    """ZeRO stage 1: one padded vector of all parameters, of which each rank updates an equal part.

    Source: Rajbhandari et al., ZeRO (SC 2020), section 5.1.
    """

    def __init__(self, params: list[nn.Parameter], make_optimizer: Callable) -> None:
        self.params, self.world = params, dist.get_world_size()
        flat = torch.cat([p.detach().flatten() for p in params])
        self.flat = pad(flat, (0, -len(flat) % self.world))
        dist.broadcast(self.flat, src=0)
        parts = self.flat[: len(flat)].split([p.numel() for p in params])
        for p, part in zip(params, parts, strict=True):
            p.data = part.view(p.shape)
        self.shard = nn.Parameter(self.flat.chunk(self.world)[dist.get_rank()])
        self.optimizer = make_optimizer([self.shard])

    def step(self) -> None:
        """Average the gradients, update this rank's part, and gather all parts."""
        flat = torch.cat([p.grad.flatten() for p in self.params])
        self.shard.grad = torch.empty_like(self.shard)
        reduce_scatter(self.shard.grad, pad(flat, (0, len(self.flat) - len(flat))))
        self.shard.grad /= self.world
        self.optimizer.step()
        self.shard.grad = None
        all_gather(self.flat, self.shard.detach())


class ClippedStage2:
    """ZeRO stage 2 with accumulation and clipping: of a gradient, a rank keeps its part alone.

    Source: Rajbhandari et al., ZeRO (SC 2020), section 5.2.
    """

    def __init__(self, flats: list[Tensor], make_optimizer: Callable) -> None:
        self.flats, self.world = flats, dist.get_world_size()
        self.shards = [nn.Parameter(flat.chunk(self.world)[dist.get_rank()]) for flat in flats]
        self.optimizer = make_optimizer(self.shards)

    def ready(self, which: int, gradient: Float[Tensor, "N"]) -> None:
        """Add this rank's part of the mean of a layer's gradient to what is there from earlier micro-batches."""
        shard = self.shards[which]
        part = torch.empty_like(shard)
        reduce_scatter(part, gradient)
        part /= self.world
        shard.grad = part if shard.grad is None else shard.grad + part

    def step(self, max_norm: float) -> None:
        """Clip the gradients to a norm of max_norm over all ranks and layers, update, and gather all parts."""
        square = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(square)
        factor = (max_norm / square.sqrt()).clamp(max=1)
        for shard in self.shards:
            shard.grad *= factor
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class GatheredStage3:
    """ZeRO stage 3: a rank keeps its part of the parameters as well; a layer is whole between gather and free.

    Source: Rajbhandari et al., ZeRO (SC 2020), section 5.3.
    """

    def __init__(self, flats: list[Tensor], make_optimizer: Callable) -> None:
        self.flats, self.world = flats, dist.get_world_size()
        self.shards = [nn.Parameter(flat.chunk(self.world)[dist.get_rank()].clone()) for flat in flats]
        self.optimizer = make_optimizer(self.shards)
        for which in range(len(flats)):
            self.free(which)

    def gather(self, which: int) -> None:
        """Give a layer's vector its memory, and all numbers."""
        flat = self.flats[which]
        flat.untyped_storage().resize_(flat.nbytes)
        all_gather(flat, self.shards[which].detach())

    def free(self, which: int) -> None:
        """Take a layer's memory away; whoever refers to the vector goes on doing so."""
        self.flats[which].untyped_storage().resize_(0)

    def ready(self, which: int, gradient: Float[Tensor, "N"]) -> None:
        """Keep this rank's part of the mean of a layer's gradient."""
        part = torch.empty_like(self.shards[which])
        reduce_scatter(part, gradient)
        self.shards[which].grad = part / self.world

    def step(self) -> None:
        """Update this rank's parts, and drop their gradients."""
        self.optimizer.step()
        for shard in self.shards:
            shard.grad = None
