"""The checks of lesson 14: right answers written in another way pass, and the trusted ones are what they should be."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from labkit import states
from labkit.allocations import allocations
from labkit.checker import find, generator_for, verdict
from labkit.checks import nb14, zero
from labkit.collectives import all_gather, reduce_scatter
from labkit.ranks import run_ranks


class SlicesOfAList:
    """Stage 1 with the list forms of the collectives, a shard of its own, numbers copied into the parameters."""

    def __init__(self, params, make_optimizer):
        self.params = params
        for p in params:
            dist.broadcast(p.data, src=0)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.per_rank = -(-sum(p.numel() for p in params) // self.world)
        self.own = self.padded([p.data for p in params])[self.rank].clone().requires_grad_()
        self.optimizer = make_optimizer([self.own])

    def padded(self, tensors):
        flat = torch.cat([each.reshape(-1) for each in tensors])
        whole = flat.new_zeros(self.world * self.per_rank)
        whole[: len(flat)] = flat
        return list(whole.split(self.per_rank))

    def step(self):
        pieces = self.padded([p.grad for p in self.params])
        mean = torch.empty_like(pieces[0])
        dist.reduce_scatter(mean, pieces)
        self.own.grad = mean / self.world
        self.optimizer.step()
        self.own.grad = None
        dist.all_gather(pieces, self.own.detach())
        whole, start = torch.cat(pieces), 0
        for p in self.params:
            with torch.no_grad():
                p.copy_(whole[start : start + p.numel()].view_as(p))
            start += p.numel()


class DividedBeforeTheSum(zero.FlatStage1):
    """Gradients are divided before they are summed, in place of after."""

    def step(self):
        for p in self.params:
            p.grad /= 2 * self.world
            p.grad += p.grad.clone()
        self.world, world = 1, self.world
        super().step()
        self.world = world


class KeepsAClone(zero.FlatStage1):
    """Its shard is a copy of its part, whose gradient stays until the next step; the vector is refilled."""

    def __init__(self, params, make_optimizer):
        super().__init__(params, lambda _: None)
        self.shard = nn.Parameter(self.shard.detach().clone())
        self.engine = make_optimizer([self.shard])
        del self.optimizer

    def step(self):
        flat = nn.functional.pad(torch.cat([p.grad.flatten() for p in self.params]), (0, -self.n % self.world))
        self.shard.grad = torch.empty_like(self.shard)
        reduce_scatter(self.shard.grad, flat)
        self.shard.grad /= self.world
        self.engine.step()
        all_gather(self.flat, self.shard.detach())

    @property
    def n(self):
        return sum(p.numel() for p in self.params)


class TorchsRule(zero.ClippedStage2):
    """Shards are copies; the norm is taken in fp32, and torch's 1e-6 is added to it."""

    def __init__(self, flats, make_optimizer):
        super().__init__(flats, lambda _: None)
        self.shards = [nn.Parameter(shard.detach().clone()) for shard in self.shards]
        self.optimizer = make_optimizer(self.shards)

    def step(self, max_norm):
        square = sum(shard.grad.float().square().sum() for shard in self.shards)
        dist.all_reduce(square)
        factor = min(1.0, max_norm / (float(square.sqrt()) + 1e-6))
        for shard in self.shards:
            shard.grad *= factor
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())


class AddedInPlace:
    """Stage 2 whose shards have a gradient from the start; the norm by torch's own function, of parts and ranks."""

    def __init__(self, flats, make_optimizer):
        self.world, self.rank, self.flats = dist.get_world_size(), dist.get_rank(), flats
        self.shards = [flat.view(self.world, -1)[self.rank].detach().requires_grad_() for flat in flats]
        self.optimizer = make_optimizer(self.shards)
        self.zero()

    def zero(self):
        for shard in self.shards:
            shard.grad = torch.zeros_like(shard)

    def ready(self, which, gradient):
        part = torch.empty_like(self.shards[which])
        dist.reduce_scatter(part, list((gradient / self.world).chunk(self.world)))
        self.shards[which].grad += part

    def step(self, max_norm):
        own = torch.linalg.vector_norm(torch.cat([shard.grad for shard in self.shards]))
        norms = [torch.zeros_like(own) for _ in range(self.world)]
        dist.all_gather(norms, own)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if norm > max_norm:
            for shard in self.shards:
                shard.grad *= max_norm / norm
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            dist.all_gather(list(flat.chunk(self.world)), shard.detach().clone())
        self.zero()


class PiecesInPlace:
    """Stage 3 with the list forms, gradients divided before they are summed, and a dict of shards."""

    def __init__(self, flats, make_optimizer):
        self.world, self.flats = dist.get_world_size(), flats
        own = {i: flat.view(self.world, -1)[dist.get_rank()].clone() for i, flat in enumerate(flats)}
        self.own = {i: each.requires_grad_() for i, each in own.items()}
        self.optimizer = make_optimizer(list(self.own.values()))
        for which in self.own:
            self.free(which)

    def gather(self, which):
        flat = self.flats[which]
        flat.untyped_storage().resize_(flat.numel() * flat.element_size())
        dist.all_gather(list(flat.chunk(self.world)), self.own[which].detach())

    def free(self, which):
        self.flats[which].untyped_storage().resize_(0)

    def ready(self, which, gradient):
        part = torch.empty_like(self.own[which])
        dist.reduce_scatter(part, list((gradient / self.world).chunk(self.world)))
        self.own[which].grad = part

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def table_of_stages(layers, stage, ranks, precision):
    split = {0: (0, 0, 0), 1: (0, 0, 1), 2: (0, 1, 1), 3: (1, 1, 1)}[stage]
    sizes = [4, 4, 8] if precision == "fp32" else [2, 2, 4 + 4 + 4]
    part = sum((n + ranks - 1) // ranks for n in layers)
    counts = [size * (part if each else sum(layers)) for size, each in zip(sizes, split, strict=True)]
    return dict(zip(("optimizer", "gradients", "parameters"), reversed(counts), strict=True))


def from_the_last_stage(layers, ranks, room_bytes):
    n, m, top = sum(layers), sum(-(-each // ranks) for each in layers), max(layers)
    best = None
    for stage, need in ((3, 16 * m + 4 * top), (2, 2 * n + 14 * m + 2 * top), (1, 4 * n + 12 * m), (0, 16 * n)):
        best = stage if need <= room_bytes else best
    return best


def gathers_the_padding(layers, ranks, room_bytes):
    n, m, top = (
        sum(layers),
        sum(-(-each // ranks) for each in layers),
        max(-(-each // ranks) * ranks for each in layers),
    )
    needs = [16 * n, 4 * n + 12 * m, 2 * n + 14 * m + 2 * top, 16 * m + 4 * top]
    return next((stage for stage, need in enumerate(needs) if need <= room_bytes), None)


def three_copies(batch, seq, vocab, kept_bytes):
    return batch * seq * vocab * (3 * torch.float32.itemsize) + kept_bytes * vocab * batch * seq


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("bytes_per_rank", table_of_stages),
        ("FlatStage1", SlicesOfAList),
        ("FlatStage1", DividedBeforeTheSum),
        ("FlatStage1", KeepsAClone),
        ("ClippedStage2", AddedInPlace),
        ("ClippedStage2", TorchsRule),
        ("GatheredStage3", PiecesInPlace),
        ("smallest_stage", from_the_last_stage),
        ("smallest_stage", gathers_the_padding),
        ("forgotten_bytes", three_copies),
    ],
)
def test_a_right_answer_written_another_way_passes(name, answer):
    exercise = find(name)
    for seed in (0, 1):
        found = verdict(answer, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
        assert found.status == "passed", found.message


def test_a_stage_that_has_changed_is_looked_at_anew():
    class Changed(zero.GatheredStage3):
        keeps = False

        def ready(self, which, gradient):
            super().ready(which, gradient)
            if self.keeps:
                self.kept = {**getattr(self, "kept", {}), which: gradient}

    exercise, found = find("GatheredStage3"), []
    for Changed.keeps in (False, True, False):
        found.append(verdict(Changed, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0).status)
    assert found == ["passed", "failed", "passed"]


def test_the_quick_adamw_is_torchs():
    dice = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.double)) for _ in range(2))
    quick = zero.AdamW([ours])
    slow = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for _ in range(5):
        ours.grad = torch.randn(7, generator=dice, dtype=torch.double)
        theirs.grad = ours.grad.clone()
        quick.step()
        slow.step()
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)


def _gradient(rank, step, n):
    """The gradient of a rank in a step."""
    return torch.randn(n, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.double)


def _stage(name, n, max_norm):
    """The numbers of a layer after three steps under one of the trusted stages."""
    world = dist.get_world_size()
    if name == "FlatStage1":
        params = [nn.Parameter(torch.ones(n, dtype=torch.double))]
        run = zero.FlatStage1(params, zero.AdamW)
        for step in range(3):
            params[0].grad = _gradient(dist.get_rank(), step, n)
            run.step()
        return params[0].detach()
    flat = torch.ones(n + -n % world, dtype=torch.double)
    run = zero.ClippedStage2([flat], zero.AdamW)
    for step in range(3):
        run.ready(0, nn.functional.pad(_gradient(dist.get_rank(), step, n), (0, -n % world)))
        run.step(max_norm)
    return flat[:n]


@pytest.mark.parametrize(("name", "max_norm"), [("FlatStage1", 1e9), ("ClippedStage2", 1e9), ("ClippedStage2", 0.3)])
@pytest.mark.parametrize("world", [2, 3])
def test_the_trusted_stages_are_torchs_adamw_in_one_process(name, max_norm, world):
    n = 10
    alone = nn.Parameter(torch.ones(n, dtype=torch.double))
    optimizer = torch.optim.AdamW([alone], lr=0.01, weight_decay=0.1)
    for step in range(3):
        alone.grad = sum(_gradient(rank, step, n) for rank in range(world)) / world
        nn.utils.clip_grad_norm_([alone], max_norm)
        optimizer.step()
    for each in run_ranks(_stage, world, name, n, max_norm, devices="cpu"):
        assert torch.allclose(each, alone.detach(), rtol=0, atol=1e-7)  # clip_grad_norm_ adds 1e-6 to the norm


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_the_closed_form_is_that_of_states(stage, precision):
    plan = states.Plan(precision=precision, zero=stage, ranks=6)
    ours = [nb14.bytes_per_rank([1001], stage, 6, precision)]
    found = states.states(1001, plan)
    assert list(ours[0].values()) == [found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes]


def test_the_closed_form_gives_the_papers_table():
    """Rajbhandari et al., figure 1: 7.5 billion parameters on 64 ranks, in GB."""
    totals = [sum(nb14.bytes_per_rank([7_500_000_000], stage, 64, "mixed").values()) / 1e9 for stage in range(4)]
    assert [round(each, 1) for each in totals] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [False, True])
def test_the_forgotten_line_is_what_the_log_counts(dtype, kept):
    batch, seq, vocab, width = 2, 30, 2000, 8
    hidden, head = torch.randn(batch, seq, width, dtype=dtype), torch.randn(vocab, width, dtype=dtype)
    hidden.requires_grad_(), head.requires_grad_()
    targets = torch.randint(vocab, (batch * seq,))
    with allocations() as log:
        logits = hidden @ head.T
        loss = cross_entropy(logits.float().flatten(0, 1), targets)
        if not kept:
            del logits
        loss.backward()
    formula = nb14.forgotten_bytes(batch, seq, vocab, dtype.itemsize * kept)
    assert log.peak_bytes == pytest.approx(formula, abs=16)
