# title: ZeRO and memory math
# minutes: 130
# cpu: everything; bytes are counted, so they are those of any machine
# gpu: the same, and a step's peak on the GPU beside the estimate
# gpu2: the same cells, whose ranks stay on the cores: bytes do not depend on the device
#
# %% [markdown]
# # 14 · ZeRO and memory math
#
# Two hours and a little more with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# A model that does not fit on one GPU does not fit on eight either, if each of them holds all of it, as in lesson 12.
# **What does a rank hold during training, byte by byte? What of it could the others keep, and what does it cost to ask
# them for it?**

# %%
import dataclasses
import gc
import statistics
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from labkit import attempt, check, claim, cost, hardware, predict, record, repro, reveal, table
from labkit.allocations import allocations
from labkit.collectives import all_gather, reduce_scatter
from labkit.estimate import estimate
from labkit.explorer_memory import explore
from labkit.ranks import counting, run_ranks
from labkit.states import Plan, states

# %% [markdown]
# `run_ranks(fn, 2)` runs a function of this notebook in two processes, the *ranks*, and returns what they return. They
# stay on the cores here, also where there are GPUs: a byte counted is the same byte there, and a core has no rounding
# up to blocks.

# %%
torch.set_num_threads(1)

from labkit import architecture, cards, live, lm, plot, plot_memory, presets, traffic

FULL = repro.budget() == "full"  # else a preview in a few steps, which decides no claim
WORLD = 2


def in_ranks(fn, *args):
    """What fn(*args) returns on each rank."""
    return run_ranks(fn, WORLD, *args, devices="cpu")


# %% [markdown]
# ## Predict
#
# Three guesses, before you see anything. Weights in fp32, the usual 32-bit numbers, take four bytes each. Adam is the
# optimizer. Stage 3, the last of ZeRO, is the one in which no rank holds the whole model any more.

# %%
question = "How many bytes does training keep for each parameter, in fp32, between two steps?"
predict("bytes", question, default=8, low=4, high=32, unit="bytes")

# %%
question = "How many times as much as plain data parallelism does stage 3 send?"
predict("volume", question, default=3, low=1, high=8, unit="times")

# %% [markdown]
# The third one is about Qwen 2.5, a language model of half a billion parameters with a large vocabulary. Its last layer
# gives a score, a *logit*, to each word of the vocabulary, for each token of the batch: four sequences of 1024 tokens.

# %%
question = "Of a training step's memory at its peak, what share is logits and their gradients?"
predict("logits", question, default=5, low=0, high=100, unit="%")

# %% [markdown]
# ## Build
#
# ### What a step keeps
#
# Four kinds of bytes: the *parameters*; a *gradient* for each; the *optimizer's state*, which for Adam is two running
# averages for each; and *activations*, what the forward pass leaves for the backward pass. The first three outlive a
# step. A network to count on, its layers odd in size on purpose, and AdamW: Adam with weight decay.

# %%
WIDTH, LAYERS, PER_RANK, N_STEPS = 255, 5, 8, 4


def network():
    """Equal layers, each a norm, a matrix and a tanh, with weights drawn at random."""
    matrix = lambda: nn.Linear(WIDTH, WIDTH, bias=False)
    layers = [nn.Sequential(nn.LayerNorm(WIDTH), matrix(), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


# %%
def adamw(params):
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)


LAYER = sum(p.numel() for p in network()[0].parameters())
P = LAYERS * LAYER  # parameters of the network

# %% [markdown]
# How to count? Not by a formula, since a formula counts what should be there. Each tensor lies in a *storage*, a piece
# of memory that views of it share. So: the storages behind what a rank holds, each one once.


# %%
def held(tensors):
    """Bytes of the memory behind some tensors, each piece of it counted once."""
    local = lambda t: t.to_local() if hasattr(t, "to_local") else t  # of a tensor cut by torch
    storages = [local(t).untyped_storage() for t in tensors if t is not None]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


# %%
def at_rest(run):
    """Bytes by kind, of what a run names; Adam's counters of steps, 4 bytes a tensor, left out."""
    optimizer = getattr(run.optimizer, "optim", run.optimizer)  # of torch's ZeRO-1, the one inside
    state = [t for each in optimizer.state.values() for t in each.values() if t.dim()]
    gradients = [p.grad for p in run.params]
    return {"parameters": held(run.params), "gradients": held(gradients), "optimizer": held(state)}


# %% [markdown]
# A *run* is a model, its optimizer and a `step`, and every way of sharing memory in this lesson is one. The first is
# alone: no ranks, nothing shared.


# %%
class Alone:
    """One process that holds everything."""

    def __init__(self, model, make_optimizer):
        self.model, self.params = model, list(model.parameters())
        self.optimizer = make_optimizer(self.params)

    def step(self):
        self.optimizer.step()

    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


# %% [markdown]
# The loop, for all of them. Each rank takes its share of a batch; each draws its first weights with dice of its own, so
# that a forgotten exchange shows. `look` says what to keep after each step, while the gradients are still there. `note`
# marks moments, for later.


# %%
def trained(way, look, dtype=torch.double, note=str):
    """What look(run) gives after each step, and the collectives of the last step."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(rank if world > 1 else 0)
    run, seen = way(network().to(dtype), adamw), []
    dice = torch.Generator().manual_seed(1)
    for _ in range(N_STEPS):
        whole = torch.randn(2, WORLD * PER_RANK, WIDTH, generator=dice).to(dtype)
        inputs, targets = (each.chunk(world)[rank] for each in whole)
        for p in run.params:
            p.grad = None
        with counting() as sent:
            note("forward")
            loss = (run.model(inputs) - targets).square().mean()
            note("backward")
            loss.backward()
            note("step")
            run.step()
        note("rest")
        seen.append(look(run))
    return seen, sent


# %% [markdown]
# Alone, in fp32, after the last step: what lies behind the parameters, behind their gradients, behind the state of the
# optimizer, and how much of it is there for each parameter?

# %%
kept = trained(Alone, at_rest, torch.float)[0][-1]
table(["kept in fp32", "bytes", "a parameter"], [[k, f"{n:,}", n / P] for k, n in kept.items()])
reveal("bytes", sum(kept.values()) / P, how="counted")

# %%
claim(
    "in fp32 with Adam a parameter takes 16 bytes between steps: 4 itself, 4 its gradient, 8 state",
    holds=[n / P for n in kept.values()] == [4, 4, 8],
    evidence=f"{sum(kept.values()):,} bytes for {P:,} parameters",
)

# %% [markdown]
# "Four times the weights", the rule on many a napkin, comes from here. It holds for fp32 and Adam, for what is kept
# *between* steps. Lesson 10 shows where it misleads.
#
# ### Data parallelism, counted
#
# Now two ranks with torch's DDP, each with half of the batch and all of the model. What does one of them hold?


# %%
class Ddp(Alone):
    def __init__(self, model, make_optimizer, **options):
        super().__init__(DistributedDataParallel(model, **options), make_optimizer)


class DdpView(Ddp):
    def __init__(self, model, make_optimizer):
        super().__init__(model, make_optimizer, gradient_as_bucket_view=True)


# %% [markdown]
# `at_rest` looks where a program knows to look. `allocations()` looks everywhere: it follows every storage from the
# operation that made it to its release, whoever holds on to it. Both, after the last step:


# %%
def counted(way):
    """Of a rank in fp32: bytes at rest by kind, the log of all storages, what a step sent."""
    gc.collect()
    with allocations() as log:
        rests, sent = trained(way, at_rest, torch.float, log.mark)
    return {"rest": rests[-1], "log": log, "sent": sent}


# %%
DDPS = {"DDP": Ddp, "DDP, bucket views": DdpView}
plain = in_ranks(lambda: {name: counted(way) for name, way in DDPS.items()})
by_name = [sum(each["rest"].values()) / P for each in plain[0].values()]
in_log = [each["log"].at("rest") / P for each in plain[0].values()]
rows = [[name, f"{n:.1f}", f"{m:.1f}"] for name, n, m in zip(DDPS, by_name, in_log, strict=True)]
table(["bytes a parameter, each rank", "by name", "in the log"], rows, varying=["in the log"])

# %% [markdown]
# Where does DDP's other copy come from? It collects gradients in *buckets*, vectors of its own, and leaves `p.grad`
# beside them. No name of the program leads there. With `gradient_as_bucket_view=True` the gradients live in the
# buckets. So a count by names may be wrong, and silent: from here on, the log stands beside it.

# %%
claim(
    "by name DDP keeps 16 bytes a parameter; its buckets are 4 more, unless gradients live there",
    holds=by_name == [16, 16] and 20 <= in_log[0] < 20.3 and 16 <= in_log[1] < 16.3,
    evidence=f"by name {by_name[0]:.1f} and {by_name[1]:.1f}; in the log {in_log[0]:.2f} and "
    f"{in_log[1]:.2f}, the batch of the step included",
)

# %% [markdown]
# Every rank keeps all of it. What for? Each computes the same update of the same weights from the same gradients. The
# *Zero Redundancy Optimizer*, ZeRO, takes that apart in three stages.
#
# ### Stage 1: the state of the optimizer
#
# Let each tensor have an owner. Gradients are averaged as before, an *all-reduce*; only the owner keeps Adam's averages
# and updates the tensor; then it sends it to all, a *broadcast*.


# %%
class Owners(Alone):
    """Stage 1, tensor by tensor: an owner keeps the optimizer's state and does the update."""

    def __init__(self, model, make_optimizer):
        self.model, self.params = model, list(model.parameters())
        for p in self.params:
            dist.broadcast(p.data, src=0)
        mine = self.params[dist.get_rank() :: dist.get_world_size()]
        self.optimizer = make_optimizer(mine)

    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()
        for n, p in enumerate(self.params):
            dist.broadcast(p.data, src=n % dist.get_world_size())


# %%
owned = in_ranks(counted, Owners)
rows = [[r, *(f"{n / P:.2f}" for n in each["rest"].values())] for r, each in enumerate(owned)]
heads = ["rank", "parameters", "gradients", "optimizer"]
table(heads, rows, caption="Bytes a parameter, by owners")

# %% [markdown]
# Two things are not right yet. The ranks are not equal, because tensors are not: whoever has most decides what fits.
# And it sends too much, for a rank that needs the mean gradient of *its* tensors gets that of all.
#
# ### Flat shards
#
# Both go away if the ranks share out numbers, not tensors: put all of a layer into one vector, *pad* it with zeros
# until the ranks divide it, and give each a *shard*, its part of the vector.


# %%
def packed(tensors):
    """Some tensors as one vector, padded so that the ranks divide it."""
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return pad(flat, (0, -len(flat) % dist.get_world_size()))


# %%
def unpacked(flat, tensors):
    """Views of a vector, in the shapes of some tensors; the padding is left over."""
    sizes = [t.numel() for t in tensors]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def mine(flat):
    """This rank's shard of a vector."""
    return flat.chunk(dist.get_world_size())[dist.get_rank()]


# %% [markdown]
# Lesson 11 made an all-reduce of two halves: a *reduce-scatter*, after which each rank has the finished sum of one
# part, and an *all-gather*, which hands the parts round. Here they come apart: the optimizer's step goes between them.


# %%
def averaged(flat):
    """This rank's shard of the mean over all ranks."""
    shard = torch.empty_like(mine(flat))
    reduce_scatter(shard, flat)
    return shard.div_(dist.get_world_size())


# %% [markdown]
# ### Stage 2: the gradients
#
# With shards, a rank needs the mean gradient of its shard only. So a layer's gradients leave as soon as they are there,
# and are dropped: what stays is a shard. Parameters become views of the layer's vector, and the shard, another view, is
# what the optimizer is given. A *hook* is a function that torch calls at a given moment, here when a gradient is
# complete.


# %%
class Unit:
    """A layer as one vector; its gradients are scattered as soon as they are there."""

    def __init__(self, layer):
        self.params = list(layer.parameters())
        self.left = len(self.params)
        self.flat = packed(self.params)
        dist.broadcast(self.flat, src=0)
        for p, part in zip(self.params, unpacked(self.flat, self.params), strict=True):
            p.data = part
            p.register_post_accumulate_grad_hook(self.ready)
        self.shard = nn.Parameter(mine(self.flat))

    def ready(self, _):
        self.left -= 1
        if self.left == 0:
            self.shard.grad = averaged(packed([p.grad for p in self.params]))
            for p in self.params:
                p.grad = None
            self.left = len(self.params)

    def gather(self):
        all_gather(self.flat, self.shard.detach())


# %% [markdown]
# Around the units: one optimizer, which sees nothing but shards and need not know. AdamW works number by number, so a
# part of the numbers gets the same update as it would in the whole. After its step each unit gathers the new parts.


# %%
class Stage2(Alone):
    unit = Unit

    def __init__(self, model, make_optimizer):
        self.model, self.units = model, [self.unit(layer) for layer in model]
        shards = [unit.shard for unit in self.units]
        self.params = [*model.parameters(), *shards]
        self.optimizer = make_optimizer(shards)

    def step(self):
        self.optimizer.step()
        for unit in self.units:
            unit.gather()


# %% [markdown]
# ### Stage 3: the parameters, done wrong
#
# A layer's parameters are needed while the layer computes, forward and backward, and at no other time. So: gather
# before, free after. Freeing is easy in Python: let the parameters point to something empty. Done so, on purpose.
# (A tensor's `register_hook` is called when the backward pass reaches it, here before its layer's turn. A tensor on the
# device `meta` is a shape without memory.)


# %%
class Pointing(Unit):
    """Stage 3 by names: outside its layer a parameter points to an empty tensor."""

    def __init__(self, layer):
        super().__init__(layer)
        self.shard.data = self.shard.data.clone()  # a view would keep the whole vector alive
        layer.register_forward_pre_hook(lambda *_: self.gather())
        layer.register_forward_hook(self.after)
        self.shapes = [torch.empty(p.shape, device="meta") for p in self.params]
        self.free()

    def gather(self):
        flat = self.shard.new_empty(len(self.shard) * dist.get_world_size())
        all_gather(flat, self.shard.detach())
        for p, part in zip(self.params, unpacked(flat, self.shapes), strict=True):
            p.data = part

    def free(self):
        self.flat = None
        for p in self.params:
            p.data = self.shard.new_empty(0)

    def after(self, _layer, _inputs, output):
        self.free()
        output.register_hook(lambda _: self.gather())  # before this layer's backward pass

    def ready(self, _):
        super().ready(_)
        if self.left == len(self.params):
            self.free()


# %%
class Stage3Pointing(Stage2):
    unit = Pointing

    def step(self):
        self.optimizer.step()

    def weights(self):
        for unit in self.units:
            unit.gather()
        whole = super().weights()
        for unit in self.units:
            unit.free()
        return whole


# %% [markdown]
# By name, all is well: between steps a rank's parameters are its shards and nothing else. The log, at the moment when
# the forward pass has ended and the backward pass begins:

# %%
pointing = in_ranks(counted, Stage3Pointing)[0]
growth = lambda got: (got["log"].at("backward") - got["log"].at("forward")) / P
rows = [["parameters by name, between steps", f"{pointing['rest']['parameters'] / P:.2f}"]]
rows += [["what the forward pass added, in the log", f"{growth(pointing):.2f}"]]
table(["stage 3 by names", "bytes a parameter"], rows, varying=True)

# %% [markdown]
# The forward pass freed every layer after its use, and yet all the matrices are still there. *Autograd*, which computes
# the backward pass, has saved each matrix: it needs it for the gradient of the layer's input. Memory is freed when
# *nobody* refers to it any more. A parameter that points elsewhere frees nothing.

# %% [markdown]
# ### Stage 3, repaired
#
# So leave all references as they are, and take away the storage behind them. `resize_(0)` empties it; before the
# backward pass it is filled again, in place, and autograd finds the matrix where it saved it.


# %%
class Sharded(Pointing):
    """Stage 3: outside its layer the vector of parameters has no memory behind it."""

    def gather(self):
        self.flat.untyped_storage().resize_(self.flat.nbytes)
        all_gather(self.flat, self.shard.detach())

    def free(self):
        self.flat.untyped_storage().resize_(0)


class Stage3(Stage3Pointing):
    unit = Sharded


# %% [markdown]
# The same run, the same look at the log. How many bytes a parameter are the matrices that autograd saved, all of them,
# and how many did the forward pass add this time?

# %%
repaired = in_ranks(counted, Stage3)[0]
MATRICES = 4 * LAYERS * WIDTH * WIDTH / P  # bytes a parameter that autograd saved
added = {"all matrices": MATRICES, "added, by names": growth(pointing)}
added["added, repaired"] = growth(repaired)
rows = [[name, f"{n:.2f}"] for name, n in added.items()]
table(["forward pass", "bytes a parameter"], rows, varying=True)

# %%
gone = growth(pointing) > MATRICES > growth(repaired) + 0.9 * MATRICES
by_names = f"{sum(repaired['rest'].values()):,} bytes"
both = f"{growth(pointing):.2f} and then {growth(repaired):.2f} bytes a parameter"
claim(
    "a parameter pointed elsewhere stays: autograd refers to it; its storage emptied, it is freed",
    holds=gone and pointing["rest"] == repaired["rest"],
    evidence=f"the forward pass added {both}; by name both keep {by_names}",
)

# %% [markdown]
# ## Measure
#
# ### The same training?
#
# All ways at once, in double precision, each against one process on the whole batch, after every step. Beside ours
# stand torch's own: `ZeroRedundancyOptimizer`, which is stage 1 by owners, and `fully_shard`, called FSDP2, which is
# stage 3. It can keep the parameters from the forward to the backward pass (`reshard_after_forward=False`), which saves
# a gather.


# %%
class TorchZero1(Ddp):
    def __init__(self, model, _):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        how = {"optimizer_class": torch.optim.AdamW, "lr": 0.01, "weight_decay": 0.1}
        owned = lambda params: ZeroRedundancyOptimizer(params, **how)
        super().__init__(model, owned, gradient_as_bucket_view=True)


# %%
class Fsdp(Alone):
    reshard = True

    def __init__(self, model, make_optimizer):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
        for part in (*model, model):
            fully_shard(part, mesh=mesh, reshard_after_forward=self.reshard)
        super().__init__(model, make_optimizer)

    def weights(self):
        return torch.cat([p.detach().full_tensor().flatten() for p in self.params])


class FsdpKept(Fsdp):
    reshard = False


# %% [markdown]
# And ours, with the parameters kept in the same way: `after` neither frees the vector, nor asks for it to be gathered
# before the backward pass, for it is still there.


# %%
class Kept(Sharded):
    def after(self, *_):
        pass


class Stage3Kept(Stage3):
    unit = Kept


# %%
OURS = {
    "stage 1, owners": Owners,
    "stage 2": Stage2,
    "stage 3": Stage3,
    "stage 3, kept": Stage3Kept,
}
TORCHS = {"torch's ZeRO-1": TorchZero1, "FSDP2": Fsdp, "FSDP2, kept": FsdpKept}
WAYS = DDPS | OURS | TORCHS


# %% [markdown]
# Each way runs twice: in double precision, where its weights after each step are kept, and in fp32, where its bytes are
# counted, those that it keeps and those that it sends.


# %%
def weights_of(way):
    """The weights after each step, in double precision."""
    return torch.stack(trained(way, lambda run: run.weights())[0])


def everything():
    both = {name: (weights_of(way), counted(way)) for name, way in WAYS.items()}
    return [dict(zip(both, each, strict=True)) for each in zip(*both.values(), strict=True)]


one = weights_of(Alone)

# %%
ran = in_ranks(everything)
apart = {n: max(float((rank[0][n] - one).abs().max()) for rank in ran) for n in WAYS}
groups = {"DDP": DDPS, "ours": OURS, "torch's": TORCHS}
rows = [[g, len(ways), f"{max(apart[n] for n in ways):.0e}"] for g, ways in groups.items()]
table(["", "ways", "from one process, at most, in any step"], rows, varying=True)

# %% [markdown]
# What is left is rounding: the sum of two halves of a batch is added up in another order than that of the whole. Adam
# works number by number, so cutting the numbers into shards changes nothing.

# %%
claim(
    "every stage trains what one process trains, at every step, on every rank; so do torch's own",
    holds=set(apart) == {*DDPS, *OURS, *TORCHS} and max(apart.values()) < 1e-12,
    evidence=f"{len(apart)} ways; apart by {max(apart.values()):.0e} in any weight, step and way",
)

# %% [markdown]
# ### Bytes at rest, beside the closed form
#
# `states` is the formula: four bytes for this, eight for that, divided by the ranks where a stage divides it. It is
# told how shards are padded: ours layer by layer, FSDP2's along the first dimension of each tensor, while torch's
# ZeRO-1 gives whole tensors away. Counted bytes are those of the rank that has most.


# %%
def form(model, **plan):
    """The closed form's bytes by kind."""
    found = states(model, Plan(precision="fp32", ranks=WORLD, **plan))
    return [found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes]


def by_layer(**plan):
    return [LAYERS * n for n in form(LAYER, **plan)]


# %%
shapes = [tuple(p.shape) for p in network().parameters()]
rows_of = form(shapes, zero=3, layout="rows")
FORMS = {"DDP, bucket views": form(P), "torch's ZeRO-1": form(shapes, zero=1, layout="whole")}
FORMS |= {"stage 2": by_layer(zero=2), "stage 3": by_layer(zero=3), "FSDP2": rows_of}

# %% [markdown]
# Beside it, counted: parameters, gradients and state by name, the whole in the log, and the formula's sum. Every figure
# is in bytes a parameter.

# %%
most = {}  # way -> bytes by kind, of the rank that has most
for name in WAYS:
    each = [rank[1][name]["rest"] for rank in ran]
    most[name] = [max(rest[kind] for rest in each) for kind in each[0]]
record("14", "bytes a parameter at rest", {name: sum(n) / P for name, n in most.items()})

# %%
rows = []
for name, counts in most.items():
    logged = max(rank[1][name]["log"].at("rest") for rank in ran)
    formula = f"{sum(FORMS[name]) / P:.2f}" if name in FORMS else ""
    rows.append([name, *(f"{n / P:.2f}" for n in counts), f"{logged / P:.2f}", formula])
heads = ["bytes a parameter", "parameters", "gradients", "state", "in the log", "formula"]
table(heads, rows, varying=["in the log"])

# %% [markdown]
# To the byte? Kept in vectors, the whole parameters of stage 2 have their padding as well, which the formula leaves
# out: where the ranks do not divide a layer, a number or so for each.

# %%
claim(
    "bytes at rest are the closed form's, to the byte; stage 2 pads a number a layer besides",
    holds=all(most[name] == formula for name, formula in FORMS.items() if name != "stage 2")
    and sum(most["stage 2"]) - sum(FORMS["stage 2"]) == 4 * LAYERS * (-LAYER % WORLD),
    evidence="; ".join(f"{name}: {sum(most[name]):,} and {sum(n):,}" for name, n in FORMS.items()),
)

# %% [markdown]
# The log finds a little more than the names do, everywhere the same: the step's own batch. Only plain DDP hides more.
# What would many ranks keep? A formula that has been held against real ranks may be asked. *Mixed precision*, which
# `Plan` takes unless told otherwise, is counted as in the ZeRO paper: weights and gradients in 16 bits, and in the
# optimizer's keep a *master copy* of the weights in 32 bits, with Adam's two averages.

# %%
BIG, KEPT = presets.preset("llama-3-8b"), ("parameters", "gradients", "optimizer")
big_bars = {}
for zero in range(4):
    each = states(BIG, Plan(zero=zero, ranks=64))
    big_bars[f"stage {zero}"] = {kind: getattr(each, f"{kind}_bytes") for kind in KEPT}

# %%
A100 = cards.card("A100-80").memory_bytes
plot_memory.bars(big_bars, A100, title="Llama 3 8B between steps, 64 ranks, mixed precision")

# %% [markdown]
# Still 16 bytes a parameter, as in fp32, but 12 of them are the optimizer's: so stage 1 alone does most of the work.
# (The card's 80 GB are counted in powers of 1024, the bars in powers of ten.)
#
# ### The peak
#
# Between steps is not when memory runs out. The log has every change of the last step; drawn is what rank 0 holds, from
# the start of its forward pass to the end of the step, each phase equally wide.


# %%
def by_phase(log):
    """Places of all changes, a phase from one whole number to the next, and bytes a parameter."""
    x, y = [], []
    for n, phase in enumerate(pairwise(("forward", "backward", "step", "rest"))):
        each = log.between(*phase)
        x += [n + i / len(each) for i in range(len(each))]
        y += [n_bytes / P for n_bytes in each]
    return x, y


# %%
logs = {name: each["log"] for name, each in ran[0][1].items()}
lines = {name: by_phase(logs[name]) for name in ("DDP, bucket views", "stage 2", "stage 3")}
axes = {"xlabel": "forward pass, backward pass, optimizer's step", "ylabel": "bytes a parameter"}
axes["marks"] = {"forward": 1, "backward": 2}
plot.lines(lines, **axes, title="What rank 0 holds during a step")

# %% [markdown]
# The same in figures, for all ways: what a rank holds once the step is over, and the most that it held on the way
# there, of the rank that has most.

# %%
of_ranks = {n: [rank[1][n]["log"] for rank in ran] for n in WAYS}
rests = {n: max(log.at("rest") for log in each) / P for n, each in of_ranks.items()}
top = lambda log: max(log.between("forward", "rest")) / P
tops = {n: max(map(top, each)) for n, each in of_ranks.items()}
rows = [[n, f"{rests[n]:.2f}", f"{tops[n]:.2f}"] for n in WAYS]
table(["bytes a parameter", "at rest", "at the peak"], rows, varying=True)
record("14", "bytes a parameter at the peak", tops)

# %% [markdown]
# Two things show. Stage 3 rises above its rest by what is gathered at a time, by a layer's whole gradient, by the
# packed copy of it that is scattered, and by activations. And AdamW's step adds humps: on cores it goes tensor by
# tensor, with two temporaries as large as each. The form usual on GPUs, `foreach`, takes all tensors at once: a
# mountain. Whoever measures at rest sees none of it.

# %%
layer_bytes = 8 * LAYER  # a layer's parameters and gradients, whole
above = (tops["stage 3"] - rests["stage 3"]) * P
claim(
    "a rank of stage 3 peaks above its rest by a gathered layer and its whole gradient, at least",
    holds=above > 0.9 * layer_bytes and tops["stage 3"] < tops["DDP, bucket views"],
    evidence=f"above by {above / P:.2f} bytes a parameter; layer and gradient "
    f"{layer_bytes / P:.2f}, the packed copy {4 * LAYER / P:.2f}",
)

# %% [markdown]
# ### What it sends
#
# `counting` has the bytes that a rank handed to each collective. To compare different collectives, take each as a ring
# (lesson 11): a reduce-scatter or an all-gather of a vector carries (R-1)/R of it per rank, and an all-reduce is both.
# A broadcast carries as much, on average over the ranks.


# %%
def on_rings(sent):
    """Bytes that a rank sends in a step, every collective made as a ring."""
    whole = {op: n * (WORLD if op == "all_gather" else 1) for op, n in sent.items()}
    halves = sum(n * (2 if op == "all_reduce" else 1) for op, n in whole.items())
    return halves * (WORLD - 1) / WORLD


# %%
sent = {name: each["sent"].bytes for name, each in ran[0][1].items()}
times = {name: on_rings(each) / on_rings(sent["DDP"]) for name, each in sent.items()}
calls = {name: each["sent"].n_calls for name, each in ran[0][1].items()}
rows = [[n, calls[n], f"{on_rings(sent[n]):,.0f}", f"{times[n]:.2f}"] for n in sent]
table(["way", "calls", "bytes of a rank, on rings", "times DDP"], rows)
reveal("volume", times["stage 3"], how="counted")

# %% [markdown]
# `traffic` is the formula for it: the bytes that a rank hands to each collective. They should be the bytes that were
# counted, each collective by itself.

# %%
by_form = {}
for name, zero in {"DDP": 0, "stage 2": 2, "stage 3": 3}.items():
    each = traffic.communication_bytes(LAYER, Plan(precision="fp32", ranks=WORLD, zero=zero))
    by_form[name] = {op: LAYERS * n for op, n in each.items()}
near = lambda value, right: abs(value / right - 1) < 0.01  # the rest is padding
half_more = {"stage 1, owners", "stage 3", "torch's ZeRO-1", "FSDP2"}

# %%
claim(
    "stage 2 sends what DDP sends; stage 3, and stage 1 by owners, half as much again",
    holds=all(sent[name] == each for name, each in by_form.items())
    and all(near(each, 1.5 if name in half_more else 1) for name, each in times.items()),
    evidence="; ".join(f"{name}: {n:.3f}" for name, n in times.items()),
)

# %% [markdown]
# Half of an all-reduce is a reduce-scatter, the other half an all-gather; stage 2 does nothing but put the optimizer's
# step between the two. Stage 3 gathers twice: forward and backward. Kept from one to the other, parameters are gathered
# once, and a rank holds all of them when it can least afford it, at the end of the forward pass.

# %% [markdown]
# ### Activations, and computing them again
#
# The fourth kind of bytes is not divided by any stage: each rank has the activations of its own share. *Recomputation*
# (or *checkpointing*) keeps the input of each block only, and runs the block again in the backward pass. *Selective*:
# only the core of attention is run again, from scores to weighted sum, whose results are large and cheap. A small
# language model, its attention scores written out:

# %%
SIZES = {"width": 128, "layers": 6, "heads": 4, "kv_heads": 4, "head_width": 32, "hidden": 512}
SIZES |= {"gated": False, "norm": "layer", "positions": 256, "context": 256, "tied": True}
SMALL = architecture.Architecture(name="small", vocab=512, **SIZES)
SETTING = {"batch": 8, "seq": 256, "attention": "math"}


# %%
def training(arch, batch, seq, recompute="none", attention="flash"):
    """A step that has run once, and the tensors that live before it."""
    model = lm.build(arch, recompute=recompute, attention=attention)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(arch.vocab, (batch, seq + 1))
    step = lambda: lm.train_step(model, optimizer, tokens)
    step()
    return step, model, optimizer, tokens


# %% [markdown]
# Three instruments. `live.peak` follows a step on *fake* tensors, which have shapes and no numbers, so that any model
# fits. Torch's `FlopCounterMode` counts the arithmetic of matrix products as they run. And a clock, in turns.

# %%
KINDS = ("none", "selective", "full")
peaks, flops, steps = {}, {}, {}
for kind in KINDS:
    with live.fake():
        peaks[kind] = live.peak(*training(SMALL, recompute=kind, **SETTING))
    steps[kind], *_ = training(SMALL, recompute=kind, **SETTING)
    with FlopCounterMode(display=False) as counter:
        steps[kind]()
    flops[kind] = counter.get_total_flops()

# %%
seconds = {kind: [] for kind in KINDS}
for _ in range(9 if FULL else 1):
    for kind, step in steps.items():
        begin = time.perf_counter()
        step()
        seconds[kind].append(time.perf_counter() - begin)
middle = {kind: statistics.median(each) for kind, each in seconds.items()}

# %% [markdown]
# Bytes at the peak, and the moment when it is; FLOPs counted, FLOPs by the textbook's formula, and seconds, these three
# against those without recomputation.

# %%
again, times_of = [], lambda each, kind: f"{each[kind] / each['none']:.2f}"
textbook = {kind: cost.step_flops(SMALL, batch=8, seq=256, recompute=kind) for kind in KINDS}
for kind in KINDS:
    row = [kind, f"{peaks[kind].total_bytes / 1e6:.0f}", peaks[kind].phase]
    again.append(row + [times_of(each, kind) for each in (flops, textbook, middle)])

# %%
heads = ["recomputation", "MB at the peak", "phase", "FLOPs", "by the formula", "time"]
table(heads, again, varying=["time"])
record("14", "time with recomputation, times", {k: middle[k] / middle["none"] for k in KINDS[1:]})

# %% [markdown]
# The textbook says a third more: one forward pass, beside one forward and two backward. Its formula says less, as the
# head is not run again. Counted, it is less still: torch stops a block's second run as soon as the last saved tensor is
# back, so its last matrix product is left out; of attention's core, the weighted sum. A clock also has what is no
# matrix product, norms and copies, and need not follow the count.

# %%
more, less = flops["full"] / flops["none"], peaks["full"].total_bytes / peaks["none"].total_bytes
claim(
    "full recomputation: under half of the bytes at the peak, for less than a third more FLOPs",
    holds=less < 1 / 2 and 1.1 < more < 4 / 3,
    evidence=f"{less:.2f} of the bytes, {more:.3f} times the FLOPs",
)

# %% [markdown]
# ### The forgotten line
#
# Now a real model, Qwen 2.5 with half a billion parameters, four sequences of 1024 tokens, in autocast: matrix products
# in 16 bits. On fake tensors its step can be followed anywhere. A mark before the head, the last layer, tells apart
# what was there before the logits, and what came with them.

# %%
QWEN = presets.preset("qwen-2.5-0.5b")
with live.fake(), allocations() as log:
    model = lm.build(QWEN)
    model.head.register_forward_pre_hook(lambda *_: log.mark("head"))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(QWEN.vocab, (4, 1025))
    for _ in range(2):
        lm.train_step(model, optimizer, tokens, autocast=True)
    log.mark("rest")

# %%
peak = max(log.between("head", "rest"))
with_logits = (peak - log.at("head")) / peak
reveal("logits", 100 * with_logits, how="counted")

# %% [markdown]
# For comparison, the size of one copy: a score in fp32 for each word of the vocabulary, for each of the four times 1024
# tokens.

# %%
one_copy = 4 * 4 * 1024 * QWEN.vocab
claim(
    "logits take over a quarter of the peak of a small model with a large vocabulary",
    holds=0.25 < with_logits < 0.9,
    evidence=f"{with_logits:.0%} of {peak / 1e9:.1f} GB; one fp32 copy is {one_copy / 1e9:.2f} GB",
)

# %% [markdown]
# Why so much? Every token has a score for each word of the vocabulary, in 16 bits, then in 32 for the loss, then as
# log-probabilities; and the backward pass makes their gradients. No table of "bytes a parameter" has this line.
# Exercise 14.6 counts the copies.
#
# ### The estimate, held against measurement
#
# `estimate` adds all lines: states, activations, logits, by a model's sizes alone. How near does it come to the live
# bytes of `live.peak`?

# %%
WIDE = dataclasses.replace(SMALL, name="large vocabulary", vocab=8192)
LONG = {"batch": 2, "seq": 256, "attention": "flash"}
CASES = {f"small, {kind}": (SMALL, SETTING | {"recompute": kind}) for kind in KINDS}
CASES |= {
    "large vocabulary": (WIDE, LONG),
    "large vocabulary, full": (WIDE, LONG | {"recompute": "full"}),
}

# %%
rows, ratios = [], []
for name, (arch, setting) in CASES.items():
    with live.fake():
        measured = live.peak(*training(arch, **setting)).total_bytes
    predicted = estimate(arch, Plan(precision="fp32", **setting), overhead=False).total_bytes
    ratios.append(predicted / measured)
    rows.append([name, f"{predicted / 1e6:.1f}", f"{measured / 1e6:.1f}", f"{ratios[-1]:.3f}"])
table(["model and recomputation", "estimated, MB", "measured, MB", "ratio"], rows, varying=True)

# %% [markdown]
# The two come to it by different ways. `live.peak` follows every tensor of a step that is run. The estimate is the one
# that could be wrong: it knows sizes, and no tensor.

# %%
record("14", "estimate over measurement", {"lowest": min(ratios), "highest": max(ratios)})
claim(
    "the estimate is within a tenth of the bytes that live at the peak",
    holds=all(0.9 < ratio < 1.1 for ratio in ratios),
    evidence=", ".join(f"{ratio:.3f}" for ratio in ratios),
)

# %% [markdown]
# What lives is not what the driver shows: the allocator keeps freed blocks for later, and the device's own context
# takes room before the first tensor. That is why `estimate` has a line of its own for it, left out here. With a GPU,
# its own allocator may be asked for the peak:


# %%
def peak_on_gpu():
    """Bytes allocated at the peak of a step on the GPU."""
    with torch.device("cuda"):
        step, *_ = training(SMALL, **SETTING)
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated()


on_gpu = peak_on_gpu() if hardware.tier() != "cpu" else None
ratio = peaks["none"].total_bytes / on_gpu if on_gpu else None
claim(
    "on a GPU the peak of its allocator is within a tenth of the live bytes counted without it",
    holds=0.9 < ratio < 1.1 if on_gpu else None,
    tier="gpu",
    evidence=f"{ratio:.3f} of {on_gpu:,} bytes" if on_gpu else "no GPU here",
)

# %% [markdown]
# ### LoRA's share
#
# *LoRA* freezes the model and trains two thin matrices beside each large one. Gradients and state shrink with what is
# trained; the frozen weights stay, in 16 bits, or in 4 with *QLoRA*. One rank, a batch of one, each plan at its own
# worst moment: with all weights the optimizer's step, when activations and logits are gone; with adapters the backward
# pass of the loss. (`fused`: an optimizer that widens one gradient at a time to 32 bits, not all of them.)

# %%
LLAMA = presets.preset("llama-3-8b")
ADAPTED = {"all weights": {}, "LoRA": {"lora": 16}, "QLoRA": {"lora": 16, "base_bits": 4}}

# %%
common = {"seq": 2048, "recompute": "full", "fused": True}
tuned = {n: estimate(LLAMA, Plan(**common, **how)) for n, how in ADAPTED.items()}
held_at = lambda each: {k: getattr(each, f"{k}_bytes") for k in plot_memory.PARTS}
tuned_bars = {f"{n}\nin {each.phase}": held_at(each) for n, each in tuned.items()}
SMALL_CARD = cards.card("RTX-4090").memory_bytes
plot_memory.bars(tuned_bars, SMALL_CARD, title="Fine-tuning Llama 3 8B, 2048 tokens, at the peak")

# %% [markdown]
# The parameters' bar grows a little, by the adapters. What shrinks is what comes with training: gradients, and in the
# optimizer's keep the master copy and the two averages.

# %%
trained_bytes = {n: each.gradients_bytes + each.optimizer_bytes for n, each in tuned.items()}
needs = {n: each.total_bytes for n, each in tuned.items()}
claim(
    "LoRA saves gradients and state, and no frozen weight; QLoRA fits a small card",
    holds=trained_bytes["LoRA"] < trained_bytes["all weights"] / 10
    and tuned["LoRA"].parameters_bytes >= tuned["all weights"].parameters_bytes
    and needs["QLoRA"] < SMALL_CARD < needs["all weights"],
    evidence="; ".join(f"{n}: {n_bytes / 1e9:.1f} GB" for n, n_bytes in needs.items()),
)

# %% [markdown]
# ### The explorer
#
# All of it at once: choose a model, a card, ranks, stage, precision, tokens, recomputation, and see what a rank needs
# against what the card has. Each row stands at its own worst moment. Turn recomputation off: then that is the loss's
# backward pass, when all activations are there and no gradient is yet, and stage 2 saves nothing over stage 1. Move one
# control at a time, and guess first. (Without widgets the same stands here as text.)

# %%
explore("llama-3-8b", ranks=8, zero=2, seq=4096, recompute="full", fused=True)

# %% [markdown]
# ## Change one thing
#
# How much should be gathered at a time? A unit was one layer. Change `LAYERS_A_UNIT`; all layers in one unit are
# allowed. What do you expect of the peak, of the number of calls, of the bytes sent? Keep one layer, and all of them.

# %%
LAYERS_A_UNIT = sorted({1, 2, LAYERS})


def in_units(n):
    """Stage 3 with n layers in a unit."""

    class Grouped(Stage3):
        def __init__(self, model, make_optimizer):
            groups = [nn.Sequential(*model[i : i + n]) for i in range(0, LAYERS, n)]
            super().__init__(nn.Sequential(*groups), make_optimizer)

    return Grouped


# %% [markdown]
# Peak, calls and bytes of a step, on one rank, for each size of a unit. It is the same training every time; only what
# is gathered at once differs.

# %%
grouped = in_ranks(lambda: {n: counted(in_units(n)) for n in LAYERS_A_UNIT})[0]

# %%
peak_of = {n: top(e["log"]) for n, e in grouped.items()}
calls_of = {n: e["sent"].n_calls for n, e in grouped.items()}
sent_of = {n: on_rings(e["sent"].bytes) for n, e in grouped.items()}
rows = [[n, f"{peak_of[n]:.2f}", calls_of[n], f"{sent_of[n]:,.0f}"] for n in grouped]
heads = ["layers a unit", "peak, bytes a parameter", "calls", "bytes of a rank, on rings"]
table(heads, rows, varying=True)
both_ends = {1, LAYERS} <= set(grouped)
claim(
    "larger units mean fewer calls and a higher peak; the bytes sent are the same but for padding",
    holds=peak_of[1] + 1 < peak_of[LAYERS]
    and calls_of[1] == LAYERS * calls_of[LAYERS]
    and near(sent_of[1], sent_of[LAYERS])
    if both_ends
    else None,
    needs="one layer a unit, and all of them",
    evidence="peaks " + ", ".join(f"{n}: {peak:.2f}" for n, peak in peak_of.items()),
)

# %% [markdown]
# With everything in one unit stage 3 holds all parameters at its peak, all gradients, and the packed copy of these that
# is scattered: more than DDP. So `fully_shard` has to be called for each block, and for the model only then. The other
# end, a unit a tensor, pays a message's price for each.

# %% [markdown]
# ## Exercises
#
# Six pieces: the closed form, three stages as code, the choice of a stage, and the line that estimates forget. Where
# you have not built one yet, the cells after it use the course's own. The checks of 14.2 to 14.4 run your code in real
# ranks, and count what it keeps and sends.

# %% [markdown]
# ### Exercise 14.1 · Bytes by stage (10 min, easy)
#
# `layers` lists the numbers of parameters of each layer. What does a rank keep between steps, with Adam? Return a dict
# with the keys `parameters`, `gradients` and `optimizer`, in bytes, whole numbers. `precision` is `"fp32"`, or
# `"mixed"` as the ZeRO paper has it: 16-bit weights and gradients, a master copy in 32 bits.
#
# The traps: whose is the master copy? What a stage splits is split layer by layer, each one padded until the ranks
# divide it; what it leaves whole is not padded.


# %%
def bytes_per_rank(layers, stage, ranks, precision):
    """Bytes that a rank keeps between steps, by kind."""
    ### BEGIN SOLUTION
    whole, part = sum(layers), sum(-(-n // ranks) for n in layers)
    weight, gradient, state = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}[precision]
    return {
        "parameters": weight * (part if stage >= 3 else whole),
        "gradients": gradient * (part if stage >= 2 else whole),
        "optimizer": state * (part if stage >= 1 else whole),
    }
    ### END SOLUTION


# %%
check(bytes_per_rank)

# %% [markdown]
# Held against what the ranks of this lesson kept: stage 3, byte by byte. And the ZeRO paper's table: a model of 7.5
# billion parameters on 64 ranks, in GB.

# %%
closed = attempt(bytes_per_rank)
paper = [sum(closed([7_500_000_000], n, 64, "mixed").values()) for n in range(4)]
table(["stage", "GB a rank"], [[n, f"{each / 1e9:.1f}"] for n, each in enumerate(paper)])

# %%
claim(
    "your closed form is what real ranks keep in stage 3",
    holds=list(closed([LAYER] * LAYERS, 3, WORLD, "fp32").values()) == most["stage 3"],
    evidence=", ".join(f"{n:,}" for n in most["stage 3"]) + " bytes in the ranks",
)

# %% [markdown]
# ### Exercise 14.2 · Stage 1, in flat shards (20 min, medium)
#
# `Owners` sends half as much again as DDP, and its ranks are unequal. Repair both, without hooks. `FlatStage1(params,
# make_optimizer)` puts all parameters into one padded vector of which each rank owns a shard; `make_optimizer([shard])`
# makes the optimizer. Before `step()` each `p.grad` holds the gradient of this rank's share; after it, each parameter
# has the new numbers, on all ranks.

# %% [markdown]
# The traps: ranks start apart; the ranks need not divide the numbers, and there may be fewer numbers than ranks; an
# all-reduce brings more than a rank needs; a second whole copy of anything, kept between steps, is memory lost.
#
# `reduce_scatter(shard, flat)` and `all_gather(flat, shard)` are imported from `labkit.collectives`, and torch's own do
# as well.


# %%
class FlatStage1:
    def __init__(self, params, make_optimizer):
        ### BEGIN SOLUTION
        self.params, self.world = params, dist.get_world_size()
        flat = torch.cat([p.detach().flatten() for p in params])
        self.flat = pad(flat, (0, -len(flat) % self.world))
        dist.broadcast(self.flat, src=0)
        parts = self.flat[: len(flat)].split([p.numel() for p in params])
        for p, part in zip(params, parts, strict=True):
            p.data = part.view(p.shape)
        self.shard = nn.Parameter(self.flat.chunk(self.world)[dist.get_rank()])
        self.optimizer = make_optimizer([self.shard])
        ### END SOLUTION

    def step(self):
        """Average the gradients, update this rank's shard, gather all shards."""
        ### BEGIN SOLUTION
        flat = torch.cat([p.grad.flatten() for p in self.params])
        self.shard.grad = torch.empty_like(self.shard)
        reduce_scatter(self.shard.grad, pad(flat, (0, len(self.flat) - len(flat))))
        self.shard.grad /= self.world
        self.optimizer.step()
        self.shard.grad = None
        all_gather(self.flat, self.shard.detach())
        ### END SOLUTION


# %%
check(FlatStage1)

# %% [markdown]
# In the loop from above, beside the other ways: it should be the same training, with an evenly shared state and with
# the bytes that DDP sends.

# %%
yours = attempt(FlatStage1)


class Stage1(Alone):
    def __init__(self, model, make_optimizer):
        self.model, self.params = model, list(model.parameters())

        def made(shards):
            self.optimizer = make_optimizer(shards)  # looked at here, whatever you call it
            return self.optimizer

        self.inner = yours(self.params, made)

    def step(self):
        self.inner.step()


# %%
weights, flat = in_ranks(lambda: (weights_of(Stage1), counted(Stage1)))[0]
per_parameter = {kind: n / P for kind, n in flat["rest"].items()}
claim(
    "stage 1 in flat shards is the same training, shares the state evenly, sends what DDP sends",
    holds=float((weights - one).abs().max()) < 1e-12
    and near(per_parameter["optimizer"], 8 / WORLD)
    and near(on_rings(flat["sent"].bytes) / on_rings(sent["DDP"]), 1),
    evidence=", ".join(f"{kind} {n:.2f}" for kind, n in per_parameter.items())
    + f" bytes a parameter; sent {on_rings(flat['sent'].bytes):,.0f} bytes",
)

# %% [markdown]
# ### Exercise 14.3 · Stage 2, accumulated and clipped (25 min, hard)
#
# Two things that real training adds. *Accumulation*: several backward passes for one step, whose gradients add up.
# *Clipping*: if the norm of all gradients, the root of the sum of their squares, is above `max_norm`, all are scaled
# down to it. `flats` are the layers' vectors, padded already, and already the same on all ranks.

# %% [markdown]
# A hook of ours calls `ready(which, gradient)` whenever a layer's whole gradient of one pass is there, as a padded
# vector, which is dropped when you return. `step(max_norm)` comes after the last pass of a step; with a `max_norm` of
# `inf` it clips nothing.
#
# The traps: a rank keeps its part of a gradient, and never the whole; a later pass must not overwrite an earlier one;
# no rank knows the norm alone, yet all must scale alike; and nothing but one number may be all-reduced.


# %%
class ClippedStage2:
    def __init__(self, flats, make_optimizer):
        ### BEGIN SOLUTION
        self.flats, self.world = flats, dist.get_world_size()
        self.shards = [nn.Parameter(f.chunk(self.world)[dist.get_rank()]) for f in flats]
        self.optimizer = make_optimizer(self.shards)
        ### END SOLUTION

    def ready(self, which, gradient):
        """Add this rank's part of the mean of a layer's gradient."""
        ### BEGIN SOLUTION
        shard = self.shards[which]
        part = torch.empty_like(shard)
        reduce_scatter(part, gradient)
        part /= self.world
        shard.grad = part if shard.grad is None else shard.grad + part
        ### END SOLUTION

    def step(self, max_norm):
        """Clip, update, gather, and drop the gradients."""
        ### BEGIN SOLUTION
        square = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(square)
        for shard in self.shards:
            shard.grad *= (max_norm / square.sqrt()).clamp(max=1)
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.grad = None
            all_gather(flat, shard.detach())
        ### END SOLUTION


# %%
check(ClippedStage2)

# %% [markdown]
# On one layer, against torch's `clip_grad_norm_` in one process that has the data of all ranks. The gradients are given
# here: rank 0 has ones in its first pass, rank 1 twos, and so on.

# %%
stage2 = attempt(ClippedStage2)


def clipped(max_norm):
    """The numbers of a layer after one step of two passes, and what was handed in."""
    rank, world = dist.get_rank(), dist.get_world_size()
    flat = torch.ones(4 * world, dtype=torch.double)
    run = stage2([flat], lambda params: torch.optim.SGD(params, lr=1.0))
    with counting() as c:
        for n in range(2):
            run.ready(0, torch.full_like(flat, rank + 1 + n))
        run.step(max_norm)
    return flat, dict(c.bytes)


# %%
together, handed_in = in_ranks(clipped, 1.0)[0]
alone = nn.Parameter(torch.ones(4 * WORLD, dtype=torch.double))
mean = sum(rank + 1 + n for rank in range(WORLD) for n in range(2)) / WORLD
alone.grad = torch.full_like(alone, mean)
nn.utils.clip_grad_norm_([alone], 1.0)
right = alone.detach() - alone.grad
claim(
    "clipped over shards is clipped at once; one number is all-reduced",
    holds=float((together - right).abs().max()) < 1e-6 and handed_in["all_reduce"] == 8,
    evidence=f"apart by {float((together - right).abs().max()):.0e}; handed in {handed_in}",
)

# %% [markdown]
# ### Exercise 14.4 · Stage 3, gathered and freed (20 min, medium)
#
# `flats` are the layers' vectors again, the same on all ranks; the parameters are views of them. Autograd and the
# parameters refer to these vectors throughout. `__init__` frees every layer. Hooks of ours call
# `gather(which)` before a layer's forward and backward pass and `free(which)` after, then `ready(which, gradient)` once
# a step, then `step()`.

# %% [markdown]
# Between `gather` and `free` a vector has all its numbers, in place; otherwise it has no memory. You have seen a way to
# free that frees nothing.
#
# The traps: a shard that is a view goes with its vector; a gradient that is a view keeps the whole one alive; a whole
# copy kept elsewhere is as large as what was freed; the numbers gathered are those of the newest step, from all ranks.


# %%
class GatheredStage3:
    def __init__(self, flats, make_optimizer):
        ### BEGIN SOLUTION
        self.flats, self.world = flats, dist.get_world_size()
        own = [flat.chunk(self.world)[dist.get_rank()].clone() for flat in flats]
        self.shards = [nn.Parameter(each) for each in own]
        self.optimizer = make_optimizer(self.shards)
        for which in range(len(flats)):
            self.free(which)
        ### END SOLUTION

    def gather(self, which):
        ### BEGIN SOLUTION
        flat = self.flats[which]
        flat.untyped_storage().resize_(flat.nbytes)
        all_gather(flat, self.shards[which].detach())
        ### END SOLUTION

    def free(self, which):
        ### BEGIN SOLUTION
        self.flats[which].untyped_storage().resize_(0)
        ### END SOLUTION

    def ready(self, which, gradient):
        """Keep this rank's part of the mean of a layer's gradient."""
        ### BEGIN SOLUTION
        part = torch.empty_like(self.shards[which])
        reduce_scatter(part, gradient)
        self.shards[which].grad = part / self.world
        ### END SOLUTION

    def step(self):
        """Update the shards, drop their gradients."""
        ### BEGIN SOLUTION
        self.optimizer.step()
        for shard in self.shards:
            shard.grad = None
        ### END SOLUTION


# %%
check(GatheredStage3)

# %% [markdown]
# A vector of sixty-four numbers in fp32, on each rank, before and after: what is behind it when it is freed, and when
# it is gathered? And is anything lost on the way?

# %%
stage3 = attempt(GatheredStage3)


def there_and_back():
    """Bytes behind a vector that is freed and gathered, and whether its numbers come back."""
    flat = torch.arange(64.0)
    run = stage3([flat], lambda params: torch.optim.SGD(params, lr=1.0))
    freed = held([flat])
    run.gather(0)
    return freed, held([flat]), torch.equal(flat, torch.arange(64.0))


freed, gathered, same = in_ranks(there_and_back)[0]
claim(
    "a freed layer has no byte, and comes back whole from the shards of all ranks",
    holds=(freed, gathered, same) == (0, 256, True),
    evidence=f"{freed} bytes freed, {gathered} gathered",
)

# %% [markdown]
# ### Exercise 14.5 · The smallest stage that fits (10 min, medium)
#
# Each stage costs something: code, calls, from 3 on bytes sent. So take the smallest that fits. Mixed precision, as in
# 14.1; `room_bytes` is what activations and all else leave free. Return 0, 1, 2 or 3, or None where none fits.
#
# The trap: between steps is not the worst moment. In stages 2 and 3 a layer's gradient is whole before it is scattered,
# and in stage 3 so are its parameters, both in 16 bits. Count the largest layer so, besides what is kept.


# %%
def smallest_stage(layers, ranks, room_bytes):
    """The smallest ZeRO stage whose states fit at their worst moment; None where none does."""
    ### BEGIN SOLUTION
    whole, part = sum(layers), sum(-(-n // ranks) for n in layers)
    largest = max(layers)
    needs = [16 * whole, 4 * whole + 12 * part]
    needs += [2 * whole + 14 * part + 2 * largest, 16 * part + 4 * largest]
    return next((stage for stage, n in enumerate(needs) if n <= room_bytes), None)
    ### END SOLUTION


# %%
check(smallest_stage)

# %% [markdown]
# For a real model, layer by layer: Llama 3 8B with three quarters of a card for its states, of an A100 of 80 GB and of
# a card for games with 24 GB. Its largest "layer" is the embedding. Compare what stage 3 keeps between steps with the
# room: where does the moment decide?

# %%
choose = attempt(smallest_stage)
of = architecture.parameters(LLAMA)
block = (architecture.count(LLAMA) - of["embedding"] - of["head"]) // LLAMA.layers
llama_layers = [of["embedding"], *[block] * LLAMA.layers, of["head"]]
rooms = [int(0.75 * memory) for memory in (A100, SMALL_CARD)]

# %%
rows = []
for ranks in (1, 2, 4, 8, 16, 64):
    rest = sum(closed(llama_layers, 3, ranks, "mixed").values())
    rows.append([ranks, f"{rest / 1e9:.1f}", *(choose(llama_layers, ranks, n) for n in rooms)])
heads = ["ranks", "stage 3 between steps, GB", *(f"smallest in {n / 1e9:.1f} GB" for n in rooms)]
table(heads, rows)

# %% [markdown]
# ### Exercise 14.6 · The forgotten line (15 min, medium)
#
# An estimate has states and the activations of all blocks, and the measured peak is higher. How much is missing, and
# what does it depend on? The table tries some sizes: `missing` is the log's peak less what lived before the last layer.
# `kept` says whether a name still held the logits during the backward pass, as `logits = model(x)` in a loop does, and
# how many bytes each has.


# %%
def missing(batch, seq, vocab, width, dtype=torch.float, kept=False):
    """Bytes at the peak of a head and its loss, beyond what was there before."""
    hidden = torch.randn(batch, seq, width, dtype=dtype, requires_grad=True)
    head = torch.randn(vocab, width, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocab, (batch * seq,))
    with allocations() as log:
        logits = hidden @ head.T
        loss = cross_entropy(logits.float().flatten(0, 1), targets)
        if not kept:
            del logits
        loss.backward()
    return log.peak_bytes


# %%
TRIED = [(2, 32, 1000, 16, False), (4, 32, 1000, 16, False), (2, 64, 1000, 16, False)]
TRIED += [(2, 32, 3000, 16, False), (2, 32, 1000, 32, False), (2, 32, 1000, 16, True)]
heads = ["batch", "seq", "vocab", "width", "kept", "missing, bytes"]
table(heads, [[*each, f"{missing(*each[:4], kept=each[4]):,}"] for each in TRIED])

# %% [markdown]
# Write the missing line. `kept_bytes` is 0 where no name holds the logits, otherwise the bytes of each: 4, or 2 where
# they are in 16 bits. The loss computes in 32 bits in all cases. (The last few bytes, of the loss itself, do not
# count.)


# %%
def forgotten_bytes(batch, seq, vocab, kept_bytes):
    """Bytes of logits, log-probabilities and their gradients at the peak of the loss."""
    ### BEGIN SOLUTION
    return (12 + kept_bytes) * batch * seq * vocab
    ### END SOLUTION


# %%
check(forgotten_bytes)

# %% [markdown]
# Against the log, in 32 and in 16 bits, kept and not, at sizes that are not in the table:

# %%
line, size = attempt(forgotten_bytes), (3, 40, 2500)
rows, off = [], []
for dtype, kept in [(d, k) for d in (torch.float, torch.bfloat16) for k in (False, True)]:
    counted_bytes = missing(*size, 16, dtype, kept)
    formula = line(*size, dtype.itemsize * kept)
    off.append(abs(counted_bytes / formula - 1))
    rows.append([str(dtype).removeprefix("torch."), kept, f"{counted_bytes:,}", f"{formula:,.0f}"])
table(["logits", "kept", "in the log", "your line"], rows)
claim(
    "the forgotten line is in the log, in 16 bits as in 32",
    holds=max(off) < 0.01,
    evidence=f"off by {max(off):.2%} at most",
)

# %% [markdown]
# ## Limits
#
# **When does ZeRO not help?** When activations or logits are what does not fit: no stage divides them; recomputation,
# shorter sequences or a loss in pieces do. When the model fits as it is: stage 3 then sends half as much again for
# nothing. And where the link is slow, lesson 11 says how slow.

# %% [markdown]
# - Two ranks on cores show bytes and equality. They do not show the time that a gather takes, nor how FSDP2 hides it
#   behind the layer before by fetching the next one early, which holds two layers at once.
# - The log sees tensors. What an operation needs inside itself, the driver, NCCL's buffers and the allocator's slack
#   are more, on a GPU by a gigabyte or two.

# %% [markdown]
# - Our stages hold no mixed precision, no offload, no tensors that two layers share, and no optimizer that looks at a
#   whole matrix, such as Muon or Adafactor: a flat shard cuts matrices anywhere.
# - The estimate is right for the model of `labkit.lm`, line by line. Another implementation of the same architecture
#   keeps other activations.

# %% [markdown]
# ## Further questions
#
# 1. Let stage 3 fetch the next layer while this one computes (`async_op=True`). What becomes of the peak?
# 2. The last layer is freed after its forward pass, and gathered again at once. Leave it. What does it save: bytes
#    sent, or held at the peak?
# 3. With SGD and momentum, what is left to save for stage 1? With Adam in 8 bits?
# 4. Compute the loss in four pieces, each with a backward pass of its own. What becomes of the forgotten line?

# %% [markdown]
# ## Sources
#
# - Rajbhandari et al., [ZeRO: Memory Optimizations Toward Training Trillion Parameter
#   Models](https://arxiv.org/abs/1910.02054), SC 2020: the stages, the table, the volume.
# - Zhao et al., [PyTorch FSDP](https://arxiv.org/abs/2304.11277), VLDB 2023; PyTorch's
#   [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) and its source.

# %% [markdown]
# - Korthikanti et al., [Reducing Activation Recomputation in Large Transformer
#   Models](https://arxiv.org/abs/2205.05198), MLSys 2023; Chen et al., [Training Deep Nets with Sublinear Memory
#   Cost](https://arxiv.org/abs/1604.06174), 2016.
# - Hu et al., [LoRA](https://arxiv.org/abs/2106.09685), ICLR 2022; Dettmers et al.,
#   [QLoRA](https://arxiv.org/abs/2305.14314), NeurIPS 2023.
