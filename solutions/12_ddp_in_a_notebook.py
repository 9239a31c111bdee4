# title: DDP in a notebook
# minutes: 90
# cpu: everything, with two processes on the cores that there are
# gpu: the same; two ranks want two devices, so they stay on the cores
# gpu2: the same cells with a GPU a rank, whether two GPUs change the picture of the speed-up
#
# %% [markdown]
# # 12 · DDP in a notebook
#
# Ninety minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# You have one training loop and two devices: two cores, or two GPUs. *Distributed data parallel*, DDP, puts a copy of
# the model on each, gives each a share of every batch, and averages the gradients. **How do you get the same training
# as before, only sooner? And how do you notice when it is not the same?**

# %%
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from labkit import attempt, check, claim, hardware, models, predict, record, repro, reveal, table
from labkit.data import glyphs
from labkit.ranks import RankError, counting, device, run_ranks

# %% [markdown]
# `run_ranks(fn, 2)` runs a function of this notebook in two processes, the *ranks*, numbered from 0, and returns a list
# of what they return. Inside, `torch.distributed` is ready: `dist.get_rank()` says who one is. With two GPUs or more,
# each rank has one; else they share the cores.

# %%
torch.set_num_threads(1)

from labkit import plot, plot_timeline
from labkit.timeline import Span

FULL = repro.budget() == "full"  # else a preview in a few steps, which decides no claim
GPUS = hardware.tier() == "gpu2"
WORLD = torch.cuda.device_count() if GPUS else 2


def in_ranks(fn, *args):
    """What fn(*args) returns on each rank."""
    return run_ranks(fn, WORLD, *args, devices=None if GPUS else "cpu")


places = in_ranks(lambda: f"{device()}, {torch.get_num_threads()} thread(s)")
table(["rank", "is on"], list(enumerate(places)), varying=True)

# %% [markdown]
# ## Predict
#
# The same batch, in one process or shared by the ranks. How much sooner is a step over? And further down stand eight
# mistakes, each made by many people in real programs. Move both sliders first.

# %%
question = "How many times faster is a step in all ranks than in one process with one thread?"
predict("faster", question, default=2, low=0.2, high=8, unit="times")

# %%
question = "Of the eight mistakes to come, how many raise an error?"
predict("errors", question, default=4, low=0, high=8)

# %% [markdown]
# ## Build
#
# ### The smallest thing that runs
#
# Hugging Face's `accelerate` turns a loop for one process into one for many, in a few lines: make an `Accelerator`,
# `prepare` what you have, call its `backward`. First, is it installed here?

# %%
ACCELERATE = find_spec("accelerate") is not None
if not ACCELERATE:
    print("accelerate is not installed here: %pip install accelerate, then restart the kernel.")
    print("Without it the rest of the lesson runs, and the two claims about it stay undecided.")

# %% [markdown]
# The data are the printed characters of lesson 01, in double precision, so that rounding stays far below whatever is
# looked at here. A step's batch is that of all ranks together.

# %%
pictures = glyphs.load("train", size=24)
N_STEPS, PER_RANK = 8, 32
BATCH = WORLD * PER_RANK  # the whole batch, of all ranks together
x = pictures.inputs[: N_STEPS * BATCH].double()
y = pictures.targets[: N_STEPS * BATCH]


# %%
def network():
    """A small network with weights drawn at random."""
    layers = [nn.Linear(576, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)]
    return nn.Sequential(nn.Flatten(), *layers).double()


def in_one(model):
    """All weights, one after the other, on the CPU."""
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


# %% [markdown]
# The loop, nearly as the tutorials have it. One line is added: each rank draws its first weights with dice of its own,
# so that it shows whether anything brings them together.


# %%
def smallest(**options):
    from accelerate import Accelerator

    torch.manual_seed(dist.get_rank())
    accelerator = Accelerator(**options)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=PER_RANK)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    return len(loader), in_one(model)


# %% [markdown]
# It runs, without a word of complaint. Is it DDP? `counting` lists the collectives of a rank, the operations in which
# all ranks take part: which, how often, how many bytes it handed in. First as most tutorials have it, `Accelerator()`,
# on the cores.


# %%
def alone():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on a machine without a GPU
    with counting() as c:
        return *smallest(), c.n_bytes


def together():
    os.environ["OMP_NUM_THREADS"] = "1"  # else accelerate warns that it sets the threads
    with counting() as c:
        return *smallest(cpu=not GPUS), c.n_bytes


# %%
rows, agree, ways = [], {}, {}
if ACCELERATE:
    ways["Accelerator()"] = run_ranks(alone, WORLD, devices="cpu")
    ways["Accelerator(cpu=True)"] = in_ranks(together)
for name, ranks in ways.items():
    n_steps, weights, n_bytes = zip(*ranks, strict=True)
    agree[name] = all(torch.equal(weights[0], each) for each in weights)
    rows.append([name, n_steps[0], "yes" if agree[name] else "no", f"{n_bytes[0]:,}"])
table(["without a GPU", "steps of a rank", "ranks agree", "bytes sent"], rows, varying=True)

# %% [markdown]
# Without a GPU, `Accelerator()` looks for none of the other ranks: each one trains on *all* data, alone, a model of its
# own. Nothing says so. `cpu=True` is what makes it look. (With GPUs it is `Accelerator()` that is right; the second row
# then shows that.) Two things tell: do the ranks agree, and were bytes sent?

# %%
found = [(row[2], row[3] == "0") for row in rows]
claim(
    "without a GPU, Accelerator() trains every rank alone, and says nothing; cpu=True cures it",
    holds=found == [("no", True), ("yes", False)] if ACCELERATE else None,
    tier="accelerate",
    evidence=f"ranks agree: {agree}; bytes sent: {[row[3] for row in rows]}",
)

# %% [markdown]
# One more thing to see in that table: the steps. `prepare` deals the loader's batches out, so two ranks take half as
# many steps, and each step's batch is `PER_RANK` times the number of ranks. Your learning rate was tuned for another
# one. `Accelerator(split_batches=True)` keeps the batch, and splits it.

# %% [markdown]
# ### What a notebook adds: the launcher
#
# `accelerate` has a launcher for notebooks too, `notebook_launcher`. It *forks*: it clones this very process, with all
# that it has loaded. That is quick, and some things do not survive it. To see that safely, here is a program of its
# own, which kills itself and its children where it hangs.

# %%
PROGRAM = """
import os, threading, time
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on the cores, also where there is a GPU
import torch
from accelerate import notebook_launcher

def work(threads, fails):
    torch.set_num_threads(threads)
    a = torch.ones(512, 512, requires_grad=True)
    (a @ a).sum().backward()
    if fails and os.environ["RANK"] == "1":
        raise ValueError("a batch is empty")

def launch(name, threads, fails=False):
    print(name, "| does not end", flush=True)
    try:
        notebook_launcher(work, (threads, fails), num_processes=2)
        print(name, "| done", flush=True)
    except BaseException as error:
        cause = "ValueError: a batch is empty" in str(error)
        print(name, f"| {type(error).__name__}, names the cause: {cause}", flush=True)
"""

# %% [markdown]
# Four launches: fresh; with a rank that raises an error; and two after the program has used two of OpenMP's *threads*,
# helpers among which torch divides a large operation on a CPU. A fork clones the memory of the process, but only one
# thread. The helpers are gone, and torch waits for them.

# %%
PROGRAM += """
launch("fresh", 2)
launch("a rank raises", 2, fails=True)
torch.set_num_threads(2)
torch.ones(2000, 2000) + 1  # large enough for two threads
launch("threads used before, one in the ranks", 1)
threading.Timer(6, os.killpg, (os.getpid(), 9)).start()
launch("threads used before, two in the ranks", 2)
"""

# %%
with tempfile.TemporaryDirectory() as folder:
    where = {"env": {**os.environ, "TMPDIR": folder}, "start_new_session": True}
    quiet = {"stderr": subprocess.DEVNULL, "text": True, "errors": "replace"}
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=-1, **where, **quiet)
    try:
        said = program.communicate()[0]
    finally:  # also where this cell is interrupted
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
happened = dict(line.split(" | ") for line in said.splitlines() if " | " in line)
table(["notebook_launcher", "what happened"], list(happened.items()), varying=True)

# %% [markdown]
# The last one hangs: no error, no end, until the program kills itself. A kernel that has multiplied two large matrices
# is in that state. The cure is one thread in each rank, set before anything else. On CUDA, forking fails in another
# way: once the kernel has touched the GPU, its clones cannot use it.

# %%
claim(
    "notebook_launcher hangs once the kernel has used two threads, unless its ranks keep to one",
    holds=list(happened.values())[0::2] == ["done"] * 2
    and happened["threads used before, two in the ranks"] == "does not end"
    if ACCELERATE
    else None,
    tier="accelerate",
    evidence=str(happened),
)


# %% [markdown]
# `run_ranks` never forks the kernel. Ranks come from a small server process that has loaded torch and done nothing with
# it. So the same work runs here, in a kernel that has used its threads, and a rank's error comes back as what it was.


# %%
def work(fails):
    torch.set_num_threads(2)
    a = torch.ones(512, 512, requires_grad=True)
    (a @ a).sum().backward()
    if fails and dist.get_rank() == 1:
        raise ValueError("a batch is empty")
    return "done"


# %%
torch.set_num_threads(2)
torch.ones(2000, 2000) + 1
ended = run_ranks(work, 2, False, devices="cpu")
torch.set_num_threads(1)

# %% [markdown]
# And with the error. `RankError` tells which rank failed first, with that rank's own traceback, and where the others
# stood meanwhile. Lesson 13 is about what else can happen to ranks.

# %%
try:
    run_ranks(work, 2, True, devices="cpu")
    error = None
except RankError as caught:
    error = caught

# %%
claim(
    "run_ranks does the same work after threads were used, and names the rank and its error",
    holds=ended == ["done"] * 2 and error.rank == 1 and "a batch is empty" in str(error),
    evidence=f"{ended}\n{error}",
)

# %% [markdown]
# ### DDP by hand
#
# Two ideas are enough. **The same start**: rank 0 sends its weights to all, a *broadcast*. **The same step**: the mean
# gradient of a batch is the mean of its shares' mean gradients, if the shares are equally large. So sum the gradients
# over the ranks, an *all-reduce*, and divide by their number.


# %%
def same_start(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    return model


def averaged(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# %% [markdown]
# The loop around them. Each rank seeds itself with its own number, on purpose: were all seeded alike, nobody would
# notice a forgotten broadcast. `prepare` and `average` are arguments, so that other ways, right and wrong ones, can
# take their place. It returns the weights after each step.


# %%
def trained(prepare, average):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = prepare(network().to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for rows in torch.arange(N_STEPS * BATCH).split(BATCH):
        mine = rows.chunk(world)[rank]
        inputs, targets = x[mine].to(device()), y[mine].to(device())
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(inputs), targets).backward()
        average(model)
        optimizer.step()
        seen.append(in_one(model))
    return torch.stack(seen)


# %% [markdown]
# ## Measure
#
# ### Is it the same training?
#
# Three runs: one process on the whole batch; ours; and torch's own `DistributedDataParallel`, which does both ideas
# inside.

# %%
as_it_is = lambda model: model
nothing = lambda _: None
WAYS = {"by hand": (same_start, averaged), "torch's DDP": (DistributedDataParallel, nothing)}


def all_ways(ways):
    """The weights after each step, by way."""
    return {name: trained(*way) for name, way in ways.items()}


# %%
(one,) = run_ranks(trained, 1, as_it_is, nothing, devices=None if GPUS else "cpu")
by_rank = in_ranks(all_ways, WAYS)
hand, ddp = (by_rank[0][name] for name in WAYS)

# %% [markdown]
# Held against each other after every step, weight by weight. `apart` gives the largest difference in any weight, a
# number for each step.

# %%
apart = lambda a, b: (a - b).abs().amax(dim=-1)
steps = range(1, N_STEPS + 1)
columns = steps, apart(hand, one).tolist(), apart(hand, ddp).tolist()
rows = [[n, f"{a:.0e}", f"{b:.0e}"] for n, a, b in zip(*columns, strict=True)]
table(["after step", "by hand - one process", "by hand - torch's DDP"], rows, varying=True)

# %% [markdown]
# What is left is what rounding leaves in double precision: a sum of two halves is added up in another order than a sum
# of the whole. With two ranks ours and torch's agree to the last bit. With more, the order of the sum over ranks is up
# to the *backend*, the library that carries the messages: gloo between CPUs, NCCL between GPUs.

# %%
same_on_all = all(torch.equal(each[n], by_rank[0][n]) for each in by_rank for n in WAYS)
claim(
    "DDP by hand is one process on the whole batch, and torch's DDP, at every step, on every rank",
    holds=same_on_all and apart(hand, one).max() < 1e-12 and apart(hand, ddp).max() < 1e-12,
    evidence=f"apart by {apart(hand, one).max():.0e} and {apart(hand, ddp).max():.0e}",
)

# %% [markdown]
# ### What can go wrong
#
# Now the mistakes. Three of them leave out a piece of the loop above: no communication at all; no broadcast; the sum
# without its division. How would you notice?


# %%
def summed(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


WRONG = {
    "no communication": (as_it_is, nothing),
    "no broadcast": (as_it_is, averaged),
    "no division": (same_start, summed),
}
wrong = in_ranks(all_ways, WRONG)
mistakes = {}  # mistake -> what it gave, and whether that is wrong
for name in WRONG:
    ours, theirs = wrong[0][name], wrong[1][name]
    off, agree = apart(ours, one)[-1], "agree" if torch.equal(ours, theirs) else "differ"
    mistakes[name] = (f"off by {off:.0e}, ranks {agree}", off > 1e-6)

# %%
claim(
    "without communication, broadcast or division, the training is another one",
    holds=all(wrong_result for _, wrong_result in mistakes.values()),
    evidence="\n".join(f"{name}: {what}" for name, (what, _) in mistakes.items()),
)

# %% [markdown]
# "Ranks agree" is half a test: after a sum without division they agree on the wrong weights. (With Adam, which divides
# the gradient by its own size, you would hardly see it, until you clip gradients at a norm that only the sum exceeds.)
# The whole test is the one above: one process, the whole batch, every step, ranks seeded apart. It takes seconds.

# %% [markdown]
# ### When shares are not equal
#
# A mean of means is the mean only for equal shares. Text has none: targets that are padding do not count, so one rank
# may hold ninety tokens and the other ten. `cross_entropy` divides by *its own* count. Below, each rank adds up the
# gradients of two batches, its *micro-batches*, once as means and once as sums; targets of -100 do not count.


# %%
def token_gradients():
    """The gradient per batch and per token, by this rank, and the one of all tokens at once."""
    torch.manual_seed(0)
    model = nn.Linear(8, 5).double()
    inputs = torch.randn(2 * WORLD, 40, 8, dtype=torch.double)
    targets = torch.randint(5, (2 * WORLD, 40))
    for n, row in enumerate(targets):
        row[40 // (n + 1) :] = -100  # the first one is full, the others have less and less
    logits = lambda rows: model(inputs[rows]).flatten(0, 1)
    loss = lambda rows, **how: cross_entropy(logits(rows), targets[rows].flatten(), **how)
    gradient = lambda value: torch.autograd.grad(value, model.weight)[0]
    whole = gradient(loss(slice(None)))
    mine = range(2 * WORLD)[dist.get_rank() :: WORLD]  # two micro-batches
    per_batch = sum(gradient(loss([n])) for n in mine) / 2 / WORLD
    per_token = sum(gradient(loss([n], reduction="sum")) for n in mine) / (targets != -100).sum()
    for each in (per_batch, per_token):
        dist.all_reduce(each)
    return [float((each - whole).norm() / whole.norm()) for each in (per_batch, per_token)]


# %%
off, repaired = run_ranks(token_gradients, WORLD, devices="cpu")[0]
claim(
    "a mean of unequal batches' means is another gradient; sums, divided once, are right",
    holds=off > 0.05 and repaired < 1e-12,
    evidence=f"a mean a batch: {off:.0%} off; a sum over all tokens: {repaired:.0e} off",
)

# %% [markdown]
# The rule: add up *sums* of losses, count tokens, and divide once, by the count of all ranks and all micro-batches.
# Transformers' trainer had this wrong for gradient accumulation until October 2024.

# %% [markdown]
# ### Batch-norm, and dice
#
# A layer that looks at the whole batch sees only its share. *Batch-norm* subtracts the mean of the pictures at hand:
# on a rank, those of the rank. And random numbers: with the same seed on every rank, dropout drops the same units
# everywhere, and every rank crops its pictures alike.


# %%
def halves():
    """How far the averaged gradients are off, by kind of norm; and which units are dropped."""
    found = {}
    for name, norm in {"batch-norm": nn.BatchNorm1d(16), "layer-norm": nn.LayerNorm(16)}.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(576, 16), norm, nn.Linear(16, 32)).double()
        rows = range(BATCH), range(BATCH)[dist.get_rank() :: WORLD]
        losses = [cross_entropy(model(x[part]), y[part]) for part in rows]
        whole, mine = (torch.autograd.grad(loss, model[1].weight)[0] for loss in losses)
        dist.all_reduce(mine)
        found[name] = float((mine / WORLD - whole).norm() / whole.norm())
    return found, torch.nn.functional.dropout(torch.ones(64))  # all ranks drew alike until here


# %%
(found, mask), *others = run_ranks(halves, WORLD, devices="cpu")
alike = all(torch.equal(mask, each) for _, each in others)
mistakes["a mean a batch"] = (f"gradient off by {off:.0%}", off > 1e-6)
mistakes["batch-norm"] = (f"gradient off by {found['batch-norm']:.0%}", found["batch-norm"] > 1e-6)
mistakes["the same dice"] = (f"masks of all ranks are equal: {alike}", alike)
claim(
    "batch-norm makes DDP another training, layer-norm does not; equal seeds drop equal units",
    holds=found["batch-norm"] > 0.01 and found["layer-norm"] < 1e-12 and alike,
    evidence="; ".join(f"{name}: off by {off:.0e}" for name, off in found.items()),
)

# %% [markdown]
# That is what batch-norm makes of `PER_RANK` pictures a rank. With two it is far worse; further question 4 asks how
# many it takes. `nn.SyncBatchNorm` sums the statistics over ranks, on GPUs only. For the dice, seed the ranks apart
# *after* the model has been made, by `torch.manual_seed(seed + rank)`. Where they are seeded apart before, they draw
# different first weights, and the broadcast must bring these together.

# %% [markdown]
# ### Samplers
#
# `DistributedSampler` deals out a data set. All ranks must take equally many steps, so it *pads*: it deals some
# examples twice. Harmless in training, and wrong in evaluation. It also shuffles by a seed and an epoch, and the epoch
# is what you tell it by `set_epoch`. It needs no ranks to be looked at.

# %%
N_TEST = 4 * WORLD - 1 if WORLD > 2 else 7
dealt = [list(DistributedSampler(range(N_TEST), WORLD, r, shuffle=False)) for r in range(WORLD)]
right = torch.tensor([0.0] + [1.0] * (N_TEST - 1))  # suppose that only the first is wrong
padded, true = right[sum(dealt, [])].mean(), right.mean()
rows = [[rank, " ".join(map(str, each))] for rank, each in enumerate(dealt)]
table(["rank", "evaluates"], rows, varying=True)

# %%
sampler = DistributedSampler(range(100), WORLD, 0)
forgotten = list(sampler) == list(sampler)
sampler.set_epoch(1)
reshuffled = list(sampler) != list(DistributedSampler(range(100), WORLD, 0))
mistakes["padding"] = (f"accuracy {padded:.3f} for {true:.3f}", padded != true)
mistakes["no set_epoch"] = (f"the order of each epoch is the same: {forgotten}", forgotten)
claim(
    "the sampler counts an example twice, and without set_epoch every epoch has the same order",
    holds=len(sum(dealt, [])) > N_TEST and mistakes["padding"][1] and forgotten and reshuffled,
    evidence=f"{len(sum(dealt, []))} of {N_TEST}: accuracy {padded:.3f} for {true:.3f}",
)

# %% [markdown]
# Eight mistakes. Every one of them was run above, to its end. Six gave a wrong number; two, the same dice and the
# forgotten `set_epoch`, gave a training with less chance in it than was meant. How many raised an error?

# %%
reveal("errors", 8 - len(mistakes))
rows = [[name, what] for name, (what, _) in mistakes.items()]
table(["mistake", "what it gave"], rows, varying=True)

# %%
claim(
    "eight mistakes, none with an error: a result is wrong, or a training is not what was meant",
    holds=len(mistakes) == 8 and all(is_wrong for _, is_wrong in mistakes.values()),
    evidence="each ran to its end in the cells above",
)

# %% [markdown]
# ### How many messages
#
# `averaged` sends a message for every tensor of weights. One could as well put all gradients into one vector, and send
# that: the same bytes in one message. And torch's DDP?


# %%
def as_one(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    parts = (flat / dist.get_world_size()).split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts, strict=True):
        p.grad = part.view_as(p)


# %% [markdown]
# Counted in one step of a small network. Torch looks at the order of the gradients in its first step, and then arranges
# its messages anew. So it is a later step that counts.


# %%
def messages(prepare, average):
    """Calls and bytes of this rank in the fourth step of training."""
    model = prepare(models.convnet().to(device()))
    inputs, targets = x[:PER_RANK].float().to(device()), y[:PER_RANK].to(device())
    for _ in range(4):
        model.zero_grad()
        with counting() as c:
            cross_entropy(model(inputs), targets).backward()
            average(model)
    return c.calls["all_reduce"], c.bytes["all_reduce"]


# %%
three = WAYS | {"all in one": (same_start, as_one)}
sent = in_ranks(lambda: {name: messages(*way) for name, way in three.items()})[0]
same_bytes = {b for _, b in sent.values()} == {4 * models.count_parameters(models.convnet())}
rows = [[name, calls, f"{n_bytes:,}"] for name, (calls, n_bytes) in sent.items()]
table(["way", "calls", "bytes"], rows, varying=True)
record("12", "messages of a step", {f"calls, {name}": calls for name, (calls, _) in sent.items()})

# %% [markdown]
# The number that a network card cares about, bytes, is the same in all three rows: nobody can average gradients without
# sending them. What differs is how often somebody pays the fixed price of a message.

# %%
claim(
    "all ways hand in the bytes of the gradients, once; they differ in the number of calls",
    holds=same_bytes and sent["all in one"][0] == 1 < sent["by hand"][0],
    evidence="; ".join(f"{name}: {calls} calls, {b:,} bytes" for name, (calls, b) in sent.items()),
)

# %% [markdown]
# ### Accumulation, and no_sync
#
# Where memory is short, a batch is taken in *micro-batches*: several backward passes add up gradients, then comes one
# step. DDP does not know which pass is the last, so it averages after each, unless told otherwise: `with
# model.no_sync():` around all but the last. Forgetting it is no error, and the gradients are right.


# %%
def accumulated(quiet, n_micro=4):
    """The gradient of n_micro micro-batches, and the bytes that were sent for it."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network().to(device()))
    parts = x[: n_micro * BATCH].split(PER_RANK)[dist.get_rank() :: WORLD]
    with counting() as c:
        for n, part in enumerate(parts):
            with model.no_sync() if quiet and n < n_micro - 1 else nullcontext():
                (model(part.to(device())).square().mean() / n_micro).backward()
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters()]), c.bytes["all_reduce"]


both = in_ranks(lambda: [accumulated(quiet) for quiet in (False, True)])[0]
(loud, loud_bytes), (quiet, quiet_bytes) = both

# %%
record("12", "bytes of four micro-batches", {"forgotten": loud_bytes, "with no_sync": quiet_bytes})
claim(
    "without no_sync four micro-batches send four times the bytes, for the same gradient",
    holds=loud_bytes == 4 * quiet_bytes and torch.allclose(loud, quiet, rtol=0, atol=1e-12),
    evidence=f"{loud_bytes:,} and {quiet_bytes:,} bytes; apart by {apart(loud, quiet):.0e}",
)

# %% [markdown]
# ### While the backward pass runs
#
# The gradient of the last layer is there long before that of the first. A *hook* is a function that torch calls at a
# given moment: `register_post_accumulate_grad_hook` calls it when the gradient of a tensor has been added up. So the
# message can leave at once, `async_op=True`, and travel while the rest is computed.


# %%
def hooked(model, note):
    """Have each gradient leave as soon as it is there; a function that waits for all of them."""
    pending = []

    def send(p):
        p.grad /= dist.get_world_size()
        pending.append(dist.all_reduce(p.grad, async_op=True))
        note(pending[-1])

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(send)

    def wait():
        while pending:
            pending.pop().wait()

    return wait


# %% [markdown]
# Both ways side by side, in one step of a network of large layers, on rank 0: when was each gradient there, and how
# long was each message under way? A message is drawn from its call until it is done. This runs on cores, also where
# there are GPUs: there a hook is called when work is queued, not when it is done.


# %%
def watched(overlap, width=768 if FULL else 64):
    """Spans of the third step of rank 0: its backward pass layer by layer, and its messages."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6)))
    now, there, sent, notes = time.perf_counter, [], [], []

    def note(message):
        since = now()
        notes.append(message.get_future().then(lambda _: sent.append((since, now()))))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: there.append(now()))
    wait = hooked(model, note) if overlap else lambda: one_by_one(model, note)
    for _ in range(3):
        there.clear(), sent.clear(), model.zero_grad()
        loss = model(torch.randn(512, width)).square().mean()
        there.append(now())
        loss.backward()
        wait()
        torch.futures.wait_all(notes)  # a message is back before its note is written
    return spans(there, sent)


# %% [markdown]
# Without hooks the messages leave one by one, once the backward pass is through, as in `averaged`. `spans` puts both
# into the form in which lesson 05 kept its traces: what, from when, until when.


# %%
def one_by_one(model, note):
    for p in reversed(list(model.parameters())):
        message = dist.all_reduce(p.grad, async_op=True)
        note(message)
        message.wait()
        p.grad /= dist.get_world_size()


# %%
def spans(there, sent):
    layers = zip(there, there[1:], strict=False)
    rows = {("backward", "host"): layers, ("messages", "communication"): sent}
    return [
        Span(row=row, name=f"{6 - n}", kind=kind, start_s=since, end_s=until)
        for (row, kind), each in rows.items()
        for n, (since, until) in enumerate(sorted(each))
    ]


# %% [markdown]
# The upper row is the backward pass, a block for each layer, from the sixth to the first. The lower one is their
# messages, below one another where several are under way. Where they lie under the upper row, communication hides
# behind computation.

# %%
after, during = (run_ranks(watched, 2, way, devices="cpu")[0] for way in (False, True))
look = {"devices": [], "lanes": 6}  # room for all six messages at once
plot_timeline.timeline(after, title="Gradients averaged after the backward pass", **look)
plot_timeline.timeline(during, title="Each gradient leaves as soon as it is there", **look)
first_sent = [min(s.start_s for s in way if s.row == "messages") for way in (after, during)]
last_there = [max(s.end_s for s in way if s.row == "backward") for way in (after, during)]

# %%
claim(
    "with hooks the first message leaves before the last gradient is there, without them after it",
    holds=first_sent[0] >= last_there[0] and first_sent[1] < last_there[1],
    evidence=f"with hooks {1e3 * (last_there[1] - first_sent[1]):.1f} ms before it",
)

# %% [markdown]
# On a GPU the messages travel on wires of their own, and overlap hides them. Here the cores that compute also carry the
# messages, so the backward pass gets slower meanwhile. And a hook for every tensor makes many small messages. Hence
# *buckets*: gradients are collected until some megabytes are together, and leave as one. You build that in exercise
# 12.4.

# %% [markdown]
# ### Is it faster?
#
# The same batch in each arm, in turns, in the same processes: one rank alone, with the others waiting; all ranks, each
# with its share. *Silent* ranks do not communicate, so they train nothing useful, and show the price of messages.


# %%
def finish():
    """Wait until all ranks, and their GPUs, are here."""
    if device().type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


# %%
def in_turns(arms, n_rounds, n_steps):
    seconds = {name: [] for name in arms}
    for n in range(n_rounds + 1):  # the first round does not count
        for name, arm in arms.items():
            finish()
            begin = time.perf_counter()
            arm()
            finish()
            seconds[name] += [(time.perf_counter() - begin) / n_steps] * (n > 0)
    return seconds


# %% [markdown]
# The arms. `lonely` works on rank 0 alone, with one thread or with as many as there are cores; the others go
# straight on to the end of the turn, and wait there. `nothing` in place of an average is silence.


# %%
def race(large, n_rounds, n_steps, cores):
    """Seconds of a step in each round, by arm; large is the batch of all ranks."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(large, 1, 24, 24), torch.randint(32, (large,))
    inputs, targets, world = inputs.to(device()), targets.to(device()), dist.get_world_size()
    model = models.convnet().to(device())
    wrapped = DistributedDataParallel(models.convnet().to(device()))

    def steps(model, part, average=nothing):
        for _ in range(n_steps):
            model.zero_grad()
            cross_entropy(model(inputs[:part]), targets[:part]).backward()
            average(model)

    def lonely(n_threads):
        if dist.get_rank() == 0:
            torch.set_num_threads(n_threads)
            steps(model, large)
        torch.set_num_threads(max(1, cores // world))

    share = large // world
    arms = {"one process, one thread": lambda: lonely(1)}
    arms["one process, all cores"] = lambda: lonely(cores)
    arms["all ranks, silent"] = lambda: steps(model, share)
    arms["all ranks, a call a tensor"] = lambda: steps(model, share, averaged)
    arms["all ranks, all in one"] = lambda: steps(model, share, as_one)
    arms["all ranks, torch's DDP"] = lambda: steps(wrapped, share)
    return in_turns(arms, n_rounds, n_steps)


# %%
SIZE = (7, 3, hardware.cores()) if FULL else (1, 1, hardware.cores())
timed = in_ranks(race, (4096 if GPUS else 256) * WORLD, *SIZE)[0]
plot.samples(timed, title="One step with the same batch", xlabel="time of a step")
step_s = {name: statistics.median(each) for name, each in timed.items()}
ddp_s = step_s["all ranks, torch's DDP"]
reveal("faster", step_s["one process, one thread"] / ddp_s)
record("12", "a step, in ms", {name: 1e3 * each for name, each in step_s.items()})

# %% [markdown]
# Against *one thread*, ranks look good, and on a CPU that comparison is wrong: one process can use all cores by itself,
# with threads. That is the second row. On a quiet machine it is hard to beat. On a busy one it may be the worst of
# all, since threads wait for each other in every operation, and ranks once a step. There the rows scatter by more than
# the price of messages: silent ranks may even come out slower than those that talk.

# %%
gain = step_s["one process, all cores"] / ddp_s
compared = [name for name in step_s if name.startswith("one") or "tensor" in name]
rows = [[name, f"{step_s[name] / ddp_s:.2f}"] for name in compared]
table(["torch's DDP is faster by this factor than", "here"], rows, varying=True)

# %% [markdown]
# Why is a call a tensor slow? Its messages are small, and each has a fixed price. That price can be measured by itself:
# the gradients of a network of very many small tensors, without any backward pass, as single messages and as one.


# %%
def small_messages(n_rounds, n_layers=50):
    """Seconds for the gradients of many small layers in each round, by way."""
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(n_layers)))
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    ways = {"a message a tensor": averaged, "one message": as_one}
    return in_turns({name: lambda way=way: way(net) for name, way in ways.items()}, n_rounds, 1)


# %%
many, single = run_ranks(small_messages, 2, SIZE[0], devices="cpu")[0].values()
times = sorted(a / b for a, b in zip(many, single, strict=True))
claim(
    "on cores, a message for each of many small tensors takes over twice as long as one for all",
    holds=statistics.median(times) > 2,
    evidence=f"{statistics.median(times):.1f} times as long ({times[0]:.1f} to {times[-1]:.1f})",
)

# %% [markdown]
# Two GPUs are another matter: the second one is not taken from the first. There the question is only whether the share
# is large enough to keep a GPU busy, and the link quick enough.

# %%
claim(
    "on two GPUs a step is over in at most three quarters of the time of one",
    holds=gain > 4 / 3 if GPUS else None,
    tier="gpu2",
    evidence=f"{gain:.2f} times as fast" if GPUS else "here ranks share the cores of one process",
)

# %% [markdown]
# What else it costs: each rank holds the whole model, its gradients and the optimizer's state, so the memory of all
# ranks together doubles (lesson 14 takes that apart). The ranks of a notebook start in a fraction of a second, from a
# process that has loaded torch before; those of a program load it anew, for seconds. And a batch that is shared leaves
# each device less to do, which a large GPU does not like.

# %% [markdown]
# ## Change one thing
#
# How large should a bucket be? Torch's DDP takes `bucket_cap_mb`, 25 by default. Change `CAPS_MB` and look at calls and
# at the time of a step. The network has many layers, all equally large. Keep the smallest cap and the largest.

# %%
CAPS_MB = sorted((0.01, 0.1, 0.3, 1, 25))


# %%
def bucketed(caps_mb, n_rounds):
    """By cap: calls and bytes of a step, and its seconds in each round."""
    inputs, nets, counted = torch.randn(64, 176).to(device()), {}, {}
    step = lambda net: net(inputs).square().mean().backward()
    for cap in caps_mb:
        layers = nn.Sequential(*(nn.Linear(176, 176) for _ in range(16))).to(device())
        nets[cap] = DistributedDataParallel(layers, bucket_cap_mb=cap)
        for _ in range(3):
            with counting() as c:
                step(nets[cap])
        counted[cap] = c.calls["all_reduce"], c.bytes["all_reduce"]
    arms = {cap: lambda net=net: [step(net) for _ in range(5)] for cap, net in nets.items()}
    return counted, in_turns(arms, n_rounds, 5)


# %% [markdown]
# What do you expect: at which end of the scale is a step slowest, and why? The first cap is smaller than any
# matrix, the last larger than all of them together.

# %%
counted, seconds = in_ranks(bucketed, CAPS_MB, 7 if FULL else 1)[0]
line = (CAPS_MB, [statistics.median(seconds[cap]) for cap in CAPS_MB])
labels = {"xlabel": "bucket_cap_mb", "ylabel": "time of a step", "seconds_axis": "y"}
plot.lines({"a step": line}, **labels, log_x=True, markers=True, title="By the size of a bucket")

# %%
table(["bucket_cap_mb", "calls", "bytes"], [[c, *counted[c]] for c in CAPS_MB], varying=True)
calls, n_bytes = zip(*(counted[cap] for cap in CAPS_MB), strict=True)
fewer = sorted(calls, reverse=True) == list(calls) and calls[0] > calls[-1]
claim(
    "a larger bucket means fewer calls for the same bytes",
    holds=fewer and len(set(n_bytes)) == 1,
    evidence="; ".join(f"{cap} MB: {counted[cap][0]} calls" for cap in CAPS_MB),
)

# %% [markdown]
# Small buckets pay the fixed price of a message many times. One bucket for everything pays it once, but cannot leave
# before the last gradient is there: no overlap. On cores the largest usually wins, for overlap gains little where the
# same cores carry the messages. With a link of its own the best lies in between, and where depends on the price of a
# message and that of a byte, which lesson 11 measures.

# %% [markdown]
# ## Exercises
#
# Four pieces of a training run on many devices: its data, its evaluation, its loss, its gradients. Where you have not
# built one yet, the cells after it use the course's own. The checks run your code in real ranks; only `my_share`, which
# sends nothing, is called for one rank after the other, each with dice of its own.

# %% [markdown]
# ### Exercise 12.1 · A rank's share (10 min, easy)
#
# Which of `n` examples does a rank train on in an epoch? Return their numbers, a list of ints. All ranks together deal
# out each example once; parts differ in size by one at most; every epoch is shuffled anew, and so is every seed.
#
# The traps: each rank is a program of its own, with dice of its own, and yet all must shuffle alike; nobody pads; and
# whoever calls `torch.manual_seed` here, or `random.seed`, gives the dropout of all ranks the same dice.


# %%
def my_share(n, rank, world_size, epoch, seed):
    """The numbers of the examples that a rank trains on in an epoch."""
    ### BEGIN SOLUTION
    dice = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=dice).tolist()
    return order[rank::world_size]
    ### END SOLUTION


# %%
check(my_share)

# %% [markdown]
# Held against `DistributedSampler`, for a number that does not divide: how many examples are dealt out in all? (The
# sampler seeds its dice with seed + epoch, and you may. Then epoch 1 of seed 0 is epoch 0 of seed 1, so take seeds that
# lie further apart than the epochs are many.)

# %%
share, n = attempt(my_share), 10 * WORLD + 1
ours = [[share(n, rank, WORLD, epoch, seed=0) for rank in range(WORLD)] for epoch in range(2)]
theirs = [list(DistributedSampler(range(n), WORLD, rank)) for rank in range(WORLD)]
dealt, padded = sum(ours[0], []), sum(theirs, [])
claim(
    "a share deals out every example once, in a new order each epoch; the sampler pads",
    holds=sorted(dealt) == list(range(n)) and ours[0] != ours[1] and len(padded) > n,
    evidence=f"{len(dealt)} and {len(padded)} for {n} examples",
)

# %% [markdown]
# ### Exercise 12.2 · Evaluate together (10 min, easy)
#
# Every rank calls `shared_accuracy` with the same model and the whole test set. Each looks at its part only, and every
# one returns the accuracy over *all* examples, exactly. Send numbers, not predictions.
#
# The traps: the parts differ in size, so a mean of means is wrong; padding counts examples twice; and a set with fewer
# examples than ranks leaves a rank without any.


# %%
def shared_accuracy(model, inputs, targets):
    """The share of all examples that the model gets right, as a float."""
    ### BEGIN SOLUTION
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    n_right = (model(inputs[mine]).argmax(1) == targets[mine]).sum()
    dist.all_reduce(n_right)
    return n_right.item() / len(targets)
    ### END SOLUTION


# %%
check(shared_accuracy)

# %% [markdown]
# On pictures, with a network that has learnt nothing yet, and on the CPU: the same number on every rank, and in one
# process, to the last digit.

# %%
evaluate = attempt(shared_accuracy)


def evaluated(n):
    torch.manual_seed(0)
    with counting() as c:
        return evaluate(network(), x[:n], y[:n]), c.n_bytes


# %%
alone_is = run_ranks(evaluated, 1, 501, devices="cpu")[0][0]
shared = run_ranks(evaluated, WORLD, 501, devices="cpu")
claim(
    "a shared accuracy is that of one process, on every rank",
    holds=all(accuracy == alone_is for accuracy, _ in shared),
    evidence=f"{alone_is:.5f} in one process; accuracy and bytes, by rank: {shared}",
)

# %% [markdown]
# ### Exercise 12.3 · One loss for all tokens (15 min, medium)
#
# Each rank has a list of micro-batches, pairs of `inputs` and `targets`; targets of -100 do not count. Run them forward
# and backward, one at a time. At the end each `p.grad`, which is None before, holds the gradient of the mean over *all*
# tokens that count, of all micro-batches and ranks. Return that mean loss, a float, the same on all ranks. `model` is a
# plain one; it gives logits, the scores that `cross_entropy` takes, of shape (batch, token, class).

# %% [markdown]
# The traps: no rank knows the number of all tokens by itself; ranks have different numbers of micro-batches, so a
# message for each would wait for ever, and one may have none at all; in a micro-batch perhaps nothing counts. The
# gradients cross once.


# %%
def token_mean_backward(model, micro_batches):
    """The mean loss over all tokens of all ranks; its gradient is left in each p.grad."""
    ### BEGIN SOLUTION
    total = torch.zeros(2, dtype=torch.double)  # loss, tokens
    for inputs, targets in micro_batches:
        logits = model(inputs).flatten(0, 1)
        loss = cross_entropy(logits, targets.flatten(), reduction="sum")
        loss.backward()
        total += torch.stack([loss.detach(), (targets != -100).sum()])
    dist.all_reduce(total)
    for p in model.parameters():
        if p.grad is None:  # no micro-batch here
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= total[1]
    return float(total[0] / total[1])
    ### END SOLUTION


# %%
check(token_mean_backward)

# %% [markdown]
# Against one process that has all of it: sentences of which fewer and fewer tokens count, each a micro-batch, dealt to
# the ranks one at a time. Every rank adds up what it has; who has how many does not matter.

# %%
backward = attempt(token_mean_backward)


def sentences(world, rank):
    """Loss, and the norm of its gradient, where this rank has every world-th sentence."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(8, 5).double(), torch.randn(8, 1, 20, 8, dtype=torch.double)
    targets = torch.randint(5, (8, 1, 20))
    for n, each in enumerate(targets):
        each[:, 20 - 2 * n :] = -100
    loss = backward(model, list(zip(inputs, targets, strict=True))[rank::world])
    return loss, float(model.weight.grad.norm())


# %%
(all_at_once,) = run_ranks(lambda: sentences(1, 0), 1, devices="cpu")
dealt_out = run_ranks(lambda: sentences(2, dist.get_rank()), 2, devices="cpu")
off = max(abs(a - b) for each in dealt_out for a, b in zip(each, all_at_once, strict=True))
claim(
    "loss and gradient over ranks and micro-batches are those of one batch of all tokens",
    holds=off < 1e-12,
    evidence=f"loss and norm in one process: {all_at_once}; off by {off:.0e} at most",
)

# %% [markdown]
# ### Exercise 12.4 · DDP in buckets (30 min, hard)
#
# Put it together. `groups` lists what is trained, in lists of tensors, in the order in which their gradients come. Each
# group gets a *bucket*, one vector, in which its gradients live as views, so that nothing is kept twice. A hook of
# yours calls `ready(which)` for each gradient, with the number of its group. With the last one of the group the bucket
# leaves at once, by `async_op=True`, while the backward pass runs on.

# %% [markdown]
# The loop around it: `ddp.zero_grad()`; backward passes, with `ddp.sync = False` before all but the last, then True;
# `ddp.wait()`; the optimizer's step. While sync is False, gradients only add up, and nothing is sent.
#
# The traps: ranks start apart, in *buffers* and in weights, those that are not trained too; the sum is not the mean;
# `p.grad = None` would cut a gradient from its bucket; a hook made in a loop sees the loop's last variable; count and
# list of messages start anew after each step.


# %%
class Ddp:
    def __init__(self, model, groups):
        self.groups, self.sync = groups, True
        ### BEGIN SOLUTION
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.works = []
        self.buckets = [torch.cat([torch.zeros_like(p).flatten() for p in g]) for g in groups]
        for which, (params, bucket) in enumerate(zip(groups, self.buckets, strict=True)):
            parts = bucket.split([p.numel() for p in params])
            for p, part in zip(params, parts, strict=True):
                p.grad = part.view_as(p)
                p.register_post_accumulate_grad_hook(lambda _, which=which: self.ready(which))
        self.wait()
        ### END SOLUTION

    def ready(self, which):
        """One more gradient of a group is there."""
        ### BEGIN SOLUTION
        self.left[which] -= self.sync
        if self.left[which] == 0:
            self.buckets[which] /= dist.get_world_size()
            self.works.append(dist.all_reduce(self.buckets[which], async_op=True))
        ### END SOLUTION

    def wait(self):
        """Return when all buckets are back."""
        ### BEGIN SOLUTION
        while self.works:
            self.works.pop().wait()
        self.left = [len(params) for params in self.groups]
        ### END SOLUTION

    def zero_grad(self):
        ### BEGIN SOLUTION
        for bucket in self.buckets:
            bucket.zero_()
        ### END SOLUTION


# %%
check(Ddp)

# %% [markdown]
# In the loop from above, in place of torch's. `trained` sets gradients to zero and not to None, so they stay in their
# buckets. Groups are filled from the last layer to the first, for in that order the gradients come.

# %%
mine = attempt(Ddp)


def in_groups(model, bucket_bytes):
    groups, room = [], 0
    for p in reversed(list(model.parameters())):
        if room < p.nbytes:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(p)
        room -= p.nbytes
    return groups


# %% [markdown]
# `with_buckets` takes the place of `same_start`, and `wait` that of `averaged`. Everything else, the batches, the
# optimizer, the ranks that are seeded apart, is as it was.


# %%
def with_buckets(model):
    model.ddp = mine(model, in_groups(model, 10_000))
    return model


def steps_counted():
    with counting() as c:
        weights = trained(with_buckets, lambda model: model.ddp.wait())
    return weights, c.calls["all_reduce"] / N_STEPS, c.bytes["all_reduce"] / N_STEPS


# %%
yours, calls, n_bytes = in_ranks(steps_counted)[0]
claim(
    "buckets by hand train what torch's DDP trains, at every step, and send each gradient once",
    holds=apart(yours, ddp).max() < 1e-12 and n_bytes == 8 * models.count_parameters(network()),
    evidence=f"apart by {apart(yours, ddp).max():.0e}; {calls:g} calls, {n_bytes:,.0f} bytes",
)

# %% [markdown]
# ## Limits
#
# **When does DDP not help?** When the model does not fit on one device: each rank holds all of it, and lesson 14 is for
# that. When a step is short against its messages. When the batch cannot grow, and its share leaves a device idle. And
# on a CPU whose cores one process keeps busy by itself.

# %% [markdown]
# - A batch of all ranks that is larger than yours was is another training: fewer steps an epoch, and another learning
#   rate that is right. DDP is silent about it.
# - `ready` waits for every tensor of its group. A layer that a step does not use never reports, and the ranks hang;
#   torch has `find_unused_parameters=True` for that, at a price.

# %% [markdown]
# - Two ranks on two cores show what is sent and what is equal. They cannot show what a GPU gains, for cores compute and
#   carry messages at once. Where one GPU is all there is, the ranks of this lesson stay on the cores.
# - Equality to the last bit holds for two ranks here. With more, or with NCCL, the order of a sum is not yours.

# %% [markdown]
# - Gradients in half precision, compression of messages, and replicas that average only now and then are left out. So
#   is what happens when a rank is late or dies: lesson 13.

# %% [markdown]
# ## Further questions
#
# 1. Seed all ranks alike in `trained` and leave out the broadcast. Which test still notices?
# 2. Train with Adam and without the division. How far is it off? And with clipped gradients?
# 3. Let a group hold the first and the last layer. What becomes of the overlap?
# 4. With two pictures a rank, how far is batch-norm off? With how many is it below one per cent? (Take
#    `pictures.inputs`.)
# 5. Write `Ddp` so that a tensor without a gradient counts as zero.

# %% [markdown]
# ## Sources
#
# - Li et al., [PyTorch Distributed: Experiences on Accelerating Data Parallel
#   Training](https://arxiv.org/abs/2006.15704), VLDB 2020: hooks, buckets, no_sync.
# - PyTorch, [DistributedDataParallel](https://docs.pytorch.org/docs/stable/notes/ddp.html), design note.
# - PyTorch, [torch.utils.data.distributed.DistributedSampler](https://docs.pytorch.org/docs/stable/data.html), and its
#   source: padding, `set_epoch`.

# %% [markdown]
# - Hugging Face, [Launching distributed code from
#   notebooks](https://huggingface.co/docs/accelerate/basic_tutorials/notebook); accelerate 1.15, `state.py`,
#   `launchers.py`.
# - Hugging Face, [Fixing Gradient Accumulation](https://huggingface.co/blog/gradient_accumulation), October 2024.
# - Stanford CS336, assignment 2, [tests/test_ddp.py](https://github.com/stanford-cs336/assignment2-systems): ranks
#   against one process, seeded so that mistakes show.
