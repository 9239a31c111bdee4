"""Wrong answers that learners of lesson 14 would give, each with a part of the message that must meet it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from labkit.checks.zero import ClippedStage2, FlatStage1, GatheredStage3
from labkit.collectives import all_gather, reduce_scatter


def forgets_the_master_copy(layers, stage, ranks, precision):
    whole, part = sum(layers), sum(-(-n // ranks) for n in layers)
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 8)}[precision]
    sizes = [part if stage >= since else whole for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def pads_once_for_all(layers, stage, ranks, precision):
    whole, part = sum(layers), -(-sum(layers) // ranks)
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    sizes = [part if stage >= since else whole for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def divides_without_rounding(layers, stage, ranks, precision):
    whole, part = sum(layers), sum(layers) / ranks
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    sizes = [part if stage >= since else whole for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def splits_only_its_own_kind(layers, stage, ranks, precision):
    whole, part = sum(layers), sum(-(-n // ranks) for n in layers)
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    sizes = [part if stage == since else whole for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def splits_everything(layers, stage, ranks, precision):
    part = sum(-(-n // ranks) for n in layers)
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    return {"parameters": weight * part, "gradients": gradient * part, "optimizer": state * part}


def divides_the_sum(layers, stage, ranks, precision):
    whole, part = sum(layers), sum(layers) // ranks
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    sizes = [part if stage >= since else whole for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def pads_what_is_whole(layers, stage, ranks, precision):
    part = sum(-(-n // ranks) for n in layers)
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    sizes = [part if stage >= since else part * ranks for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def gives_floats(layers, stage, ranks, precision):
    whole, part = float(sum(layers)), float(sum(-(-n // ranks) for n in layers))
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    sizes = [part if stage >= since else whole for since in (3, 2, 1)]
    return {"parameters": weight * sizes[0], "gradients": gradient * sizes[1], "optimizer": state * sizes[2]}


def gives_the_total(layers, stage, ranks, precision):
    return 16 * sum(layers)


# ---- 14.2 -----------------------------------------------------------------------------------------------------------


class NoCommunication(FlatStage1):
    def step(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        self.shard.grad = pad(flat, (0, len(self.flat) - len(flat))).chunk(self.world)[dist.get_rank()]
        self.optimizer.step()


class WholeState:
    """Plain data parallelism: the same result, and each rank keeps everything."""

    def __init__(self, params, make_optimizer):
        self.params = params
        for p in params:
            dist.broadcast(p.data, src=0)
        self.optimizer = make_optimizer(params)

    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()


class WholeStateBesideIt(FlatStage1):
    """Its own shard's optimizer, and another one over everything."""

    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        self.all = torch.zeros(2, len(self.flat), dtype=self.flat.dtype)


class AllReduces(FlatStage1):
    def step(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        flat = pad(flat, (0, len(self.flat) - len(flat)))
        dist.all_reduce(flat)
        self.shard.grad = flat.chunk(self.world)[dist.get_rank()] / self.world
        self.optimizer.step()
        self.shard.grad = None
        all_gather(self.flat, self.shard.detach())


class ByOwners:
    """Whole tensors have owners, who send them to all."""

    def __init__(self, params, make_optimizer):
        self.params = params
        for p in params:
            dist.broadcast(p.data, src=0)
        self.optimizer = make_optimizer(params[dist.get_rank() :: dist.get_world_size()])

    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()
        for n, p in enumerate(self.params):
            dist.broadcast(p.data, src=n % dist.get_world_size())


class NoBroadcast(FlatStage1):
    def __init__(self, params, make_optimizer):
        self.params, self.world = params, dist.get_world_size()
        flat = torch.cat([p.detach().flatten() for p in params])
        self.flat = pad(flat, (0, -len(flat) % self.world))
        parts = self.flat[: len(flat)].split([p.numel() for p in params])
        for p, part in zip(params, parts, strict=True):
            p.data = part.view(p.shape)
        self.shard = nn.Parameter(self.flat.chunk(self.world)[dist.get_rank()])
        self.optimizer = make_optimizer([self.shard])


class NeverDivides(FlatStage1):
    def step(self):
        for p in self.params:
            p.grad *= self.world
        super().step()


class NoGather(FlatStage1):
    def step(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        self.shard.grad = torch.empty_like(self.shard)
        reduce_scatter(self.shard.grad, pad(flat, (0, len(self.flat) - len(flat))))
        self.shard.grad /= self.world
        self.optimizer.step()


class NoPadding(FlatStage1):
    def __init__(self, params, make_optimizer):
        self.params, self.world = params, dist.get_world_size()
        self.flat = torch.cat([p.detach().flatten() for p in params])
        dist.broadcast(self.flat, src=0)
        parts = self.flat.split([p.numel() for p in params])
        for p, part in zip(params, parts, strict=True):
            p.data = part.view(p.shape)
        self.shard = nn.Parameter(self.flat.chunk(self.world)[dist.get_rank()])
        self.optimizer = make_optimizer([self.shard])


class UpdatesACopy(FlatStage1):
    def __init__(self, params, make_optimizer):
        self.params, self.world = params, dist.get_world_size()
        for p in params:
            dist.broadcast(p.data, src=0)
        flat = torch.cat([p.detach().flatten() for p in params])
        self.flat = pad(flat, (0, -len(flat) % self.world))
        self.shard = nn.Parameter(self.flat.chunk(self.world)[dist.get_rank()])
        self.optimizer = make_optimizer([self.shard])


class NeverShowsTheVector(FlatStage1):
    """Broadcasts, and leaves the parameters where they were."""

    def __init__(self, params, make_optimizer):
        self.params, self.world = params, dist.get_world_size()
        flat = torch.cat([p.detach().flatten() for p in params])
        self.flat = pad(flat, (0, -len(flat) % self.world))
        dist.broadcast(self.flat, src=0)
        self.shard = nn.Parameter(self.flat.chunk(self.world)[dist.get_rank()])
        self.optimizer = make_optimizer([self.shard])


class OptimizerOfEverything(FlatStage1):
    """The optimizer is made of the parameters, not of the shard: it updates what is not gathered."""

    def __init__(self, params, make_optimizer):
        super().__init__(params, lambda _: make_optimizer(params))


class ANewOptimizerEachStep(FlatStage1):
    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        self.make = make_optimizer

    def step(self):
        self.optimizer = self.make([self.shard])
        super().step()


class SecondCopy(UpdatesACopy):
    """The vector and the parameters both stay, and numbers are copied from one to the other."""

    def step(self):
        super().step()
        sizes = [p.numel() for p in self.params]
        for p, part in zip(self.params, self.flat[: sum(sizes)].split(sizes), strict=True):
            p.data.copy_(part.view(p.shape))
        self.before = self.flat.clone()


# ---- 14.3 -----------------------------------------------------------------------------------------------------------


class Silent2(ClippedStage2):
    def ready(self, which, gradient):
        shard = self.shards[which]
        part = gradient.chunk(self.world)[dist.get_rank()].clone()
        shard.grad = part if shard.grad is None else shard.grad + part

    def step(self, max_norm):
        square = sum(shard.grad.square().sum() for shard in self.shards)
        for shard in self.shards:
            shard.grad *= (max_norm / square.sqrt()).clamp(max=1)
        self.optimizer.step()
        for shard in self.shards:
            shard.grad = None


class AllReduces2(ClippedStage2):
    def ready(self, which, gradient):
        shard = self.shards[which]
        dist.all_reduce(gradient)
        part = gradient.chunk(self.world)[dist.get_rank()] / self.world
        shard.grad = part if shard.grad is None else shard.grad + part


class KeepsWholeGradients(ClippedStage2):
    """Adds up whole gradients, and scatters them before the step."""

    def ready(self, which, gradient):
        if not hasattr(self, "whole"):
            self.whole = {}
        self.whole[which] = gradient.clone() + self.whole.get(which, 0)

    def step(self, max_norm):
        for which, gradient in self.whole.items():
            super().ready(which, gradient)
        self.whole = {}
        super().step(max_norm)


class LeavesThemLying(ClippedStage2):
    """Scatters in time, and holds on to what it was given."""

    def ready(self, which, gradient):
        self.given = [*getattr(self, "given", []), gradient]
        super().ready(which, gradient)

    def step(self, max_norm):
        super().step(max_norm)
        self.given = []


class SquaresOfEachLayer(ClippedStage2):
    """The right norm, for which a number a layer is all-reduced."""

    def step(self, max_norm):
        squares = torch.stack([shard.grad.square().sum() for shard in self.shards])
        dist.all_reduce(squares)
        for shard in self.shards:
            shard.grad *= (max_norm / squares.sum().sqrt()).clamp(max=1)
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class GradientIsAView(ClippedStage2):
    """Scatters in time, and into a view of the whole gradient, which stays alive with it."""

    def ready(self, which, gradient):
        shard, part = self.shards[which], gradient.chunk(self.world)[dist.get_rank()]
        reduce_scatter(part, gradient.clone())
        part /= self.world
        shard.grad = part if shard.grad is None else part.add_(shard.grad)


class Lengthens(ClippedStage2):
    def step(self, max_norm):
        square = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(square)
        for shard in self.shards:
            shard.grad *= max_norm / square.sqrt()
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class DividedByPasses(ClippedStage2):
    def ready(self, which, gradient):
        super().ready(which, gradient / 2)


class LastMicroBatchOnly(ClippedStage2):
    def ready(self, which, gradient):
        self.shards[which].grad = None
        super().ready(which, gradient)


class OwnNorm(ClippedStage2):
    def step(self, max_norm):
        square = sum(shard.grad.square().sum() for shard in self.shards)
        for shard in self.shards:
            shard.grad *= (max_norm / square.sqrt()).clamp(max=1)
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class NormOfEachLayer(ClippedStage2):
    def step(self, max_norm):
        for shard in self.shards:
            square = shard.grad.square().sum()
            dist.all_reduce(square)
            shard.grad *= (max_norm / square.sqrt()).clamp(max=1)
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class NeverClips(ClippedStage2):
    def step(self, max_norm):
        super().step(1e9)


class SumsNorms(ClippedStage2):
    def step(self, max_norm):
        norm = sum(shard.grad.square().sum() for shard in self.shards).sqrt()
        dist.all_reduce(norm)
        for shard in self.shards:
            shard.grad *= (max_norm / norm).clamp(max=1)
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class KeepsAddingUp(ClippedStage2):
    def step(self, max_norm):
        square = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(square)
        for shard in self.shards:
            shard.grad *= (max_norm / square.sqrt()).clamp(max=1)
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            all_gather(flat, shard.detach())


class SumsAndNeverDivides(ClippedStage2):
    def ready(self, which, gradient):
        super().ready(which, gradient * self.world)


class WholeState2(ClippedStage2):
    """The optimizer is given everything; gradients are gathered for it."""

    def __init__(self, flats, make_optimizer):
        self.flats, self.world = flats, dist.get_world_size()
        self.params = [nn.Parameter(flat) for flat in flats]
        self.shards = [nn.Parameter(flat.chunk(self.world)[dist.get_rank()]) for flat in flats]
        self.optimizer = make_optimizer(self.params)

    def step(self, max_norm):
        square = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(square)
        for p, shard in zip(self.params, self.shards, strict=True):
            p.grad = torch.empty_like(p)
            all_gather(p.grad, shard.grad * (max_norm / square.sqrt()).clamp(max=1))
            shard.grad = None
        self.optimizer.step()
        for p in self.params:
            p.grad = None


# ---- 14.4 -----------------------------------------------------------------------------------------------------------


class KeepsWhole3(GatheredStage3):
    """Nothing is freed: right, and as large as stage 2."""

    def free(self, which):
        pass


class NotFreedAtFirst3(GatheredStage3):
    """All layers stay whole until the first forward pass has used them."""

    def __init__(self, flats, make_optimizer):
        self.flats, self.world = flats, dist.get_world_size()
        self.shards = [nn.Parameter(flat.chunk(self.world)[dist.get_rank()].clone()) for flat in flats]
        self.optimizer = make_optimizer(self.shards)


class GradientIsAView3(GatheredStage3):
    """A shard's gradient is a view of the whole one, which stays alive until the step."""

    def ready(self, which, gradient):
        part = gradient.chunk(self.world)[dist.get_rank()]
        reduce_scatter(part, gradient.clone())
        self.shards[which].grad = part.div_(self.world)


class NeverDrops3(GatheredStage3):
    def step(self):
        self.optimizer.step()


class KeepsWholeGradients3(GatheredStage3):
    """Scatters as asked, and holds on to what it was given."""

    def ready(self, which, gradient):
        self.given = {**getattr(self, "given", {}), which: gradient}
        super().ready(which, gradient)


class ForgetsTheName3(GatheredStage3):
    """Free by name: the vector is dropped here, while autograd and the parameters go on holding it."""

    def __init__(self, flats, make_optimizer):
        self.all = list(flats)
        self.flats, self.world = list(flats), dist.get_world_size()
        self.shards = [nn.Parameter(flat.chunk(self.world)[dist.get_rank()].clone()) for flat in flats]
        self.optimizer = make_optimizer(self.shards)

    def gather(self, which):
        self.flats[which] = self.all[which]
        all_gather(self.flats[which], self.shards[which].detach())

    def free(self, which):
        self.flats[which] = None


class WholeCopy3(GatheredStage3):
    """Gathers from a whole copy that it keeps, which it refreshes once a step."""

    def __init__(self, flats, make_optimizer):
        self.copies = [flat.clone() for flat in flats]
        super().__init__(flats, make_optimizer)

    def gather(self, which):
        flat = self.flats[which]
        flat.untyped_storage().resize_(flat.nbytes)
        flat.copy_(self.copies[which])

    def step(self):
        super().step()
        for copy, shard in zip(self.copies, self.shards, strict=True):
            all_gather(copy, shard.detach())


class NeverAsks3(GatheredStage3):
    """No communication: a rank puts back what it had, and updates its own part of it."""

    def __init__(self, flats, make_optimizer):
        self.copies = [flat.clone() for flat in flats]
        super().__init__(flats, make_optimizer)

    def gather(self, which):
        flat = self.flats[which]
        flat.untyped_storage().resize_(flat.nbytes)
        flat.copy_(self.copies[which])
        flat.chunk(self.world)[dist.get_rank()].copy_(self.shards[which].detach())

    def ready(self, which, gradient):
        self.shards[which].grad = gradient.chunk(self.world)[dist.get_rank()].clone()


class AllReduces3(GatheredStage3):
    def ready(self, which, gradient):
        dist.all_reduce(gradient)
        self.shards[which].grad = gradient.chunk(self.world)[dist.get_rank()] / self.world


class ShardIsAView3(GatheredStage3):
    def __init__(self, flats, make_optimizer):
        self.flats, self.world = flats, dist.get_world_size()
        self.shards = [nn.Parameter(flat.chunk(self.world)[dist.get_rank()]) for flat in flats]
        self.optimizer = make_optimizer(self.shards)
        for which in range(len(flats)):
            self.free(which)


class SumsAndNeverDivides3(GatheredStage3):
    def ready(self, which, gradient):
        super().ready(which, gradient * (1 + which) * self.world)


class KeepsAddingUp3(GatheredStage3):
    def ready(self, which, gradient):
        shard = self.shards[which]
        before, _ = shard.grad, super().ready(which, gradient)
        shard.grad += 0 if before is None else before

    def step(self):
        self.optimizer.step()


class WholeState3(GatheredStage3):
    """Parameters come and go, and the optimizer has them all."""

    def __init__(self, flats, make_optimizer):
        super().__init__(flats, make_optimizer)
        self.whole = []
        for which, flat in enumerate(flats):
            self.gather(which)
            self.whole.append(nn.Parameter(flat.clone()))
            self.free(which)
        self.other = make_optimizer(self.whole)


# ---- 14.5, 14.6 -----------------------------------------------------------------------------------------------------


def looks_at_rest(layers, ranks, room_bytes):
    whole, part = sum(layers), sum(-(-n // ranks) for n in layers)
    needs = [16 * whole, 4 * whole + 12 * part, 2 * whole + 14 * part, 16 * part]
    return next((stage for stage, n in enumerate(needs) if n <= room_bytes), None)


def gathers_parameters_only(layers, ranks, room_bytes):
    whole, part, largest = sum(layers), sum(-(-n // ranks) for n in layers), max(layers)
    needs = [16 * whole, 4 * whole + 12 * part, 2 * whole + 14 * part + 2 * largest, 16 * part + 2 * largest]
    return next((stage for stage, n in enumerate(needs) if n <= room_bytes), None)


def leaves_a_byte_free(layers, ranks, room_bytes):
    whole, part, largest = sum(layers), sum(-(-n // ranks) for n in layers), max(layers)
    needs = [16 * whole, 4 * whole + 12 * part, 2 * whole + 14 * part + 2 * largest, 16 * part + 4 * largest]
    return next((stage for stage, n in enumerate(needs) if n < room_bytes), None)


def always_shards_everything(layers, ranks, room_bytes):
    part, largest = sum(-(-n // ranks) for n in layers), max(layers)
    return 3 if 16 * part + 4 * largest <= room_bytes else None


def counts_logits_once(batch, seq, vocab, kept_bytes):
    return 4 * batch * seq * vocab


def counts_kept_logits_only(batch, seq, vocab, kept_bytes):
    return kept_bytes * batch * seq * vocab


def counts_two_copies(batch, seq, vocab, kept_bytes):
    return (8 + kept_bytes) * batch * seq * vocab


def forgets_what_is_kept(batch, seq, vocab, kept_bytes):
    return 12 * batch * seq * vocab


def counts_numbers(batch, seq, vocab, kept_bytes):
    return (3 + bool(kept_bytes)) * batch * seq * vocab


def forgets_the_batch(batch, seq, vocab, kept_bytes):
    return (12 + kept_bytes) * seq * vocab


WRONG = {
    "14.1": [
        ("forgets the master copy", forgets_the_master_copy, "master copy of the weights"),
        ("pads once for all", pads_once_for_all, "padded one by one"),
        ("divides without rounding", divides_without_rounding, "whole numbers"),
        ("splits only its own kind", splits_only_its_own_kind, "those before it split"),
        ("splits everything", splits_everything, "wrong result"),
        ("divides the sum", divides_the_sum, "layer by layer"),
        ("pads what is whole", pads_what_is_whole, "Only what a stage splits"),
        ("gives floats", gives_floats, "Bytes are whole numbers"),
        ("gives the total", gives_the_total, "wrong type"),
    ],
    "14.2": [
        ("no communication", NoCommunication, "nothing is sent in a step(.|\n)*both must travel"),
        ("whole state", WholeState, "not in the way asked for(.|\n)*optimizer was given"),
        ("whole state beside it", WholeStateBesideIt, "not in the way asked for(.|\n)*kept whole"),
        ("all-reduces", AllReduces, "not in the way asked for(.|\n)*1.50 times what DDP sends"),
        ("by owners", ByOwners, "not in the way asked for(.|\n)*optimizer was given"),
        ("no broadcast", NoBroadcast, "ranks start apart"),
        ("never shows the vector", NeverShowsTheVector, "let each p.data show"),
        ("optimizer of everything", OptimizerOfEverything, "an optimizer was given"),
        ("never divides", NeverDivides, "divided by their number once"),
        ("no gather", NoGather, "ranks end apart"),
        ("no padding", NoPadding, "ranks with a shard of . numbers? each|tuple index out of range"),
        ("updates a copy", UpdatesACopy, "stay as they were"),
        ("a new optimizer each step", ANewOptimizerEachStep, "made once"),
        ("a second copy", SecondCopy, "not in the way asked for(.|\n)*kept whole"),
    ],
    "14.3": [
        ("no communication", Silent2, "nothing is sent in a step|ranks"),
        ("all-reduces", AllReduces2, "not in the way asked for(.|\n)*to all_reduce"),
        ("keeps whole gradients", KeepsWholeGradients, "not in the way asked for(.|\n)*Something whole is kept"),
        ("leaves them lying", LeavesThemLying, "not in the way asked for(.|\n)*Something whole is kept"),
        ("a gradient is a view", GradientIsAView, "not in the way asked for(.|\n)*is a view"),
        ("squares of each layer", SquaresOfEachLayer, "not in the way asked for(.|\n)*One number alone"),
        ("lengthens", Lengthens, "a factor above 1"),
        ("divided by passes", DividedByPasses, "summed over the passes"),
        ("last micro-batch only", LastMicroBatchOnly, "pass is added"),
        ("its own norm", OwnNorm, "norm is that of all numbers"),
        ("a norm a layer", NormOfEachLayer, "norm is that of all numbers"),
        ("never clips", NeverClips, "norm is that of all numbers"),
        ("sums norms", SumsNorms, "squares are summed"),
        ("keeps adding up", KeepsAddingUp, "dropped in step"),
        ("sums and never divides", SumsAndNeverDivides, "mean over the ranks"),
        ("whole state", WholeState2, "not in the way asked for(.|\n)*optimizer was given"),
    ],
    "14.4": [
        ("keeps whole parameters", KeepsWhole3, "not in the way asked for(.|\n)*100% of the parameters"),
        ("not freed at first", NotFreedAtFirst3, "not in the way asked for(.|\n)*layer 0 still has 8,016 bytes"),
        ("a gradient is a view", GradientIsAView3, "not in the way asked for(.|\n)*Before step(.|\n)*a view"),
        ("never drops gradients", NeverDrops3, "not in the way asked for(.|\n)*dropped in step"),
        ("keeps whole gradients", KeepsWholeGradients3, "not in the way asked for(.|\n)*Something whole"),
        ("frees a name", ForgetsTheName3, "not in the way asked for(.|\n)*100% of the parameters"),
        ("keeps a whole copy", WholeCopy3, "not in the way asked for(.|\n)*Something whole"),
        ("no communication", NeverAsks3, "nothing is sent in a step"),
        ("all-reduces", AllReduces3, "not in the way asked for(.|\n)*to all_reduce"),
        ("the shard is a view", ShardIsAView3, "clone it first"),
        ("sums and never divides", SumsAndNeverDivides3, "wrong|mean over"),
        ("keeps adding up", KeepsAddingUp3, "dropped after its step"),
        ("whole state", WholeState3, "not in the way asked for(.|\n)*optimizer was given"),
    ],
    "14.5": [
        ("looks at rest", looks_at_rest, "between steps"),
        ("gathers parameters only", gathers_parameters_only, "its gradient as well"),
        ("leaves a byte free", leaves_a_byte_free, "Exactly full"),
        ("always shards everything", always_shards_everything, "wrong result"),
    ],
    "14.6": [
        ("counts logits once", counts_logits_once, "wrong result"),
        ("counts kept logits only", counts_kept_logits_only, "logits alone"),
        ("counts two copies", counts_two_copies, "backward pass has one more"),
        ("forgets what is kept", forgets_what_is_kept, "as well"),
        ("counts numbers", counts_numbers, "Each number has bytes"),
        ("forgets the batch", forgets_the_batch, "wrong result"),
    ],
}
