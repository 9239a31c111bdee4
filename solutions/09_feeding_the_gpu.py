# title: Feeding the GPU
# minutes: 90
# cpu: everything, measured; the compiled loop needs a C++ compiler
# gpu: the same cells, with pinned memory and copies that the device does not wait for
#
# %% [markdown]
# # 09 · Feeding the GPU
#
# Ninety minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# A device computes on rectangles of numbers. Your data are texts of any length, in files larger than memory, read by
# Python. So a device may be busy all day and do little: it multiplies padding, waits for a file, or for another device.
# **How much of its work is useful, and what does it cost to feed it better?**

# %%
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from labkit import attempt, bench, check, claim, predict, record, repro, reveal, table

# %% [markdown]
# The data: the documentation strings of Python's own standard library, one by one. A token is a character here. What is
# longer than `ROW` is cut into pieces, as one does for training; no token is lost. Measurements use a part of them, the
# same in each run.

# %%
torch.set_num_threads(1)

from labkit import models, packing, plot, plot_masks
from labkit.data import docs
from labkit.hardware import device

# %%
FULL = repro.budget() == "full"  # else a preview in a few steps, which decides no claim
ROW, BATCH = 1024, 16
train = packing.cut(docs.documents("train"), ROW)
lengths = packing.lengths_of(train)

# %% [markdown]
# How uneven are they? The *median* is the length in the middle, when all are sorted: half of the documents are shorter
# than that. A few long ones pull the mean far above it.

# %%
MEDIAN = statistics.median(lengths)
table(
    ["documents", "tokens", "median length", "mean length", "longest", "in a batch"],
    [[len(train), sum(lengths), MEDIAN, round(statistics.mean(lengths)), max(lengths), BATCH]],
    varying=True,
)

# %% [markdown]
# ## Predict
#
# `BATCH` of these documents make a batch: a row for each, all as wide as the longest of them needs. The rest of a row
# is filled up with *padding*, zeros that mean nothing. Later several documents share a row, which is called *packing*.
# Move both sliders before you go on.

# %%
question = "What share of the places of such batches is padding?"
predict("waste", question, default=20, low=0, high=100, unit="%")

# %%
question = "How many times more useful tokens per second does training get from packing?"
predict("gain", question, default=1.2, low=0.5, high=10, unit="times")

# %% [markdown]
# ## Build
#
# ### From text to numbers, three times
#
# A step that many pipelines have: text is made uniform, here lower case. A token is a whole number of 8 bytes, since an
# embedding wants it so, and `a` stands 32 places after `A`. First a loop over tokens, as one would say it.

# %%
A, Z = docs.CLASSES.index("A"), docs.CLASSES.index("Z")
raw = torch.cat(train[:3000] if FULL else train[:40]).to(device())


def by_loop(tokens):
    return torch.tensor([token + 32 if A <= token <= Z else token for token in tokens.tolist()])


# %% [markdown]
# The first meaning of *vectorised*: one call for all tokens. The loop is still there, but in C, inside each operation.
# Every operation goes over the whole text and writes a new one: two comparisons, *and*, a product, a sum.


# %%
def by_array(tokens):
    upper = (tokens >= A) & (tokens <= Z)
    return tokens + 32 * upper


same = torch.equal(by_loop(raw), by_array(raw).cpu())

# %% [markdown]
# The second meaning is about the processor. One instruction works on a *vector*, some 16 to 64 bytes at a time. A
# compiler can write one loop that does all five operations on such a vector before it goes on. The first call waits for
# the compiler, up to half a minute on a busy machine.

# %%
from labkit import compilation

LACKS = compilation.lacks() or ("" if FULL else "the full budget")
ways = {"loop over tokens": lambda: by_loop(raw), "one call for all": lambda: by_array(raw)}
if not LACKS:
    compiled = torch.compile(by_array)
    same = same and torch.equal(compiled(raw), by_array(raw))
    ways["compiled"] = lambda: compiled(raw)

# %%
clock = time.process_time_ns if device() == "cpu" else time.perf_counter_ns
lowered = bench(ways, repeats=7 if FULL else 5, warmup=1, clock=clock)
rows = [[name, f"{len(raw) / s / 1e6:,.0f}"] for name, s in lowered.median_s.items()]
table(["lower case", "million tokens a second"], rows, varying=True)

# %% [markdown]
# `clock` is the processor's own on a CPU, which leaves out what other programs do meanwhile. `bench` calls the ways in
# turns, and `ratio` compares them turn by turn: its middle value, the smallest and the largest.

# %%
gain = lowered.ratio("loop over tokens", "one call for all")
claim(
    "one call for all tokens is over five times faster than a loop, for the same text",
    holds=bool(same) and gain.low > 5,
    evidence=f"{gain.value:.0f} times ({gain.low:.0f} to {gain.high:.0f})",
)

# %%
more = None if LACKS else lowered.ratio("one call for all", "compiled")
claim(
    "compiled into one loop, the five operations are faster again",
    holds=more and more.low > 1.2,
    evidence=f"{more.value:.1f} times, at least {more.low:.1f}" if more else f"lacks {LACKS}",
    tier="compiler",
)
record(
    "09", "tokens in lower case a second", {k: len(raw) / s for k, s in lowered.median_s.items()}
)

# %% [markdown]
# ### A batch is a rectangle
#
# Now the batches. A *plan* says which documents stand in which row of which batch, and labkit lays them out. Padding:
# one document a row, in random order. How much of it is useful?

# %%
plans = {"padded": packing.padded(lengths, BATCH, seed=0)}
waste = {"padded": packing.wasted(lengths, plans["padded"])}
reveal("waste", 100 * waste["padded"], how="counted")

# %% [markdown]
# The longest of a batch decides for all. The second way, *bucketing*: take a *pool*, as many documents as `pool`
# batches hold; sort it by length, cut it into batches, and shuffle these. So documents of like length meet. The third,
# *packing*: fill rows of `ROW` places with as many documents as fit. A batch then has fewer rows, for each holds
# several documents.

# %%
plans["bucketed"] = packing.bucketed(lengths, BATCH, seed=0, pool=16)
plans["packed"] = packing.packed(lengths, BATCH // 4, seed=0, capacity=ROW)
waste = {name: packing.wasted(lengths, plan) for name, plan in plans.items()}
rows = [[name, len(plans[name]), f"{share:.1%}"] for name, share in waste.items()]
table(["layout", "batches", "places wasted"], rows, varying=True)

# %%
record("09", "share of places wasted", {name: round(share, 4) for name, share in waste.items()})
claim(
    "padding wastes over half of the places, bucketing less than a quarter, packing less than 2 %",
    holds=waste["padded"] > 0.5 and 0.02 < waste["bucketed"] < 0.25 and waste["packed"] < 0.02,
    evidence=", ".join(f"{name}: {share:.1%}" for name, share in waste.items()),
)

# %% [markdown]
# ### Packing, done wrong
#
# A row now holds several documents, and the model does not know. To see what that does, it takes a model that has
# learned something: a small *decoder*, which guesses each next character from those before it. It is trained on packed
# rows, rightly; how, comes in a moment.

# %%
torch.manual_seed(0)
model = models.gpt(vocab=len(docs.CLASSES), layers=2, context=ROW).to(device())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

# %% [markdown]
# Three helpers, used throughout. `lay_out` makes a `batch` of a plan's rows: tokens, and beside each the *target*,
# which is the token after it. `logits_of` gives what the model says of each place, one number for each possible next
# token. `token_loss` is the mean of -log(probability of the target), over all places that have one.


# %%
def learn(batch):
    optimizer.zero_grad()
    packing.token_loss(packing.logits_of(model, batch), batch).backward()
    optimizer.step()


for rows in plans["packed"][: 30 if FULL else 2]:
    learn(packing.lay_out(train, rows).to(device()))

# %% [markdown]
# The yardstick: documents that were not trained on, each alone in a batch of its own. Nothing can go wrong there.
# `losses` gives that same mean for each document by itself, in *nats*, the unit that the natural logarithm gives.

# %%
held_out = packing.cut(docs.documents("validation"), ROW)[: 200 if FULL else 60]
theirs = packing.lengths_of(held_out)
alone = packing.losses(model, held_out, [[[number]] for number in range(len(held_out))])
in_rows = packing.packed(theirs, 4, seed=0, capacity=ROW)

# %% [markdown]
# Two things go wrong unless somebody acts. *Attention*: a token looks at all tokens before it in its row, so at the
# documents before its own too. *Positions*: the model adds a learned vector for each place, and a document in the
# middle of a row seems to begin there. `masked` and `reset` put each right.


# %%
def losses_of(masked, reset):
    """The loss of each document, in packed rows."""
    found = {}
    for rows in in_rows:
        batch = packing.lay_out(held_out, rows).to(device())
        with torch.no_grad():
            positions = batch.positions if reset else None
            logits = model(batch.tokens, positions, batch.mask() if masked else None)
        found |= packing.document_losses(logits, batch)
    return found


# %%
WAYS = {"neither": (False, False), "positions reset": (False, True)}
WAYS |= {"attention masked": (True, False), "both": (True, True)}
packed_losses = {name: losses_of(*way) for name, way in WAYS.items()}
off = {name: sorted(abs(each[n] - alone[n]) for n in alone) for name, each in packed_losses.items()}

# %% [markdown]
# How far is each document from its loss alone? The documents are sorted by that, for each way anew. The first in each
# row has nothing before it, and is right in all ways. Zero has no place on this axis: documents with *equal* losses, to
# the last bit, lie on the line that says so.

# %%
share_of = [n / len(alone) for n in range(1, len(alone) + 1)]
EQUAL = min(each for found in off.values() for each in found if each) / 10  # below all others
plot.lines(
    {name: (share_of, [each or EQUAL for each in found]) for name, found in off.items()},
    title="Packed documents against the same ones alone",
    xlabel="share of documents, sorted by how far off they are",
    ylabel="off by, nats",
    log_y=True,
    levels={"a hundred-thousandth": 1e-5, "equal": EQUAL},
)

# %% [markdown]
# No error and no warning, and most documents are off. But training shows a *mean* over many documents. Compare how far
# the mean has moved with how far the worst document has. The last column tells how many documents have a *lower* loss
# than alone, and so hide others in the mean.

# %%
mean = lambda found: statistics.mean(found.values())
rows = [["each alone", f"{mean(alone):.3f}", "", ""]]
for name, each in packed_losses.items():
    lower = sum(each[n] < alone[n] - 1e-5 for n in alone)
    worst = off[name][-1]
    rows.append([name, f"{mean(each):.3f}", f"{worst:.1e}", f"{lower} of {len(alone)}"])
table(["in packed rows", "mean loss", "worst off by", "lower than alone"], rows, varying=True)

# %%
claim(
    "without the mask or without positions that start anew, documents have other losses",
    holds=all(off[name][-1] > 0.01 for name in list(WAYS)[:3]),
    evidence=", ".join(f"{name}: {each[-1]:.2g}" for name, each in off.items()),
)

# %% [markdown]
# With both, nothing of a document's neighbours is left but rounding: numbers are added up in another order. That is the
# test to write for any packing, one's own or a library's: the loss of each document, against the same one alone.

# %%
claim(
    "with both, each packed document has the loss that it has alone, within a hundred-thousandth",
    holds=off["both"][-1] <= 1e-5,
    evidence=f"{len(alone)} documents, the worst off by {off['both'][-1]:.1e}",
)
record("09", "worst document off by, nats", {name: each[-1] for name, each in off.items()})

# %% [markdown]
# ### What the mask says
#
# The mask is True where a place may see another. A *causal* one is a triangle: each place sees all before it. The right
# one is *block-diagonal*: a small triangle for each document, and nothing outside. Positions count from 0 in each.

# %%
row = next(row for rows in in_rows for row in rows if len(row) >= 3)[:6]
batch = packing.lay_out(held_out, [row])
ends = torch.tensor([theirs[number] for number in row]).cumsum(0).tolist()
causal = torch.ones_like(batch.mask()[0]).tril()
plot_masks.masks(
    {"causal: one long document": causal, "block-diagonal": batch.mask()[0]},
    ends,
    title="Who sees whom in a row",
)

# %% [markdown]
# ### One mean, and three ways to miss it
#
# The loss that training wants is the mean over all tokens that have a next one. With rows of uneven length there are
# other means near by, and each is a mistake that people make. One averages documents, so a token in a short one counts
# more. One averages batches, though some hold fewer tokens. One counts padding, which is easy to guess.

# %%
counts = {number: len(document) - 1 for number, document in enumerate(held_out)}
right = sum(alone[n] * counts[n] for n in alone) / sum(counts.values())
means = {"over tokens": right, "over documents": mean(alone)}
batches = packing.bucketed(theirs, BATCH, seed=0, pool=8)
laid = [packing.lay_out(held_out, rows).to(device()) for rows in batches]
with torch.no_grad():
    of_batch = [packing.token_loss(packing.logits_of(model, each), each).item() for each in laid]
means["over batches"] = statistics.mean(of_batch)

# %% [markdown]
# And padding as a token like any other, which is what happens where targets are filled up with zeros, and nobody says
# that these do not count.

# %%
with torch.no_grad():
    logits = [packing.logits_of(model, each).flatten(0, 1) for each in laid]
blind = [each.targets.clamp(min=0).flatten() for each in laid]  # padding, as a token like any other
means["padding counted"] = cross_entropy(torch.cat(logits), torch.cat(blind)).item()
rows = [[name, f"{each:.4f}", f"{each - right:+.4f}"] for name, each in means.items()]
table(["mean loss of one model", "nats", "off by"], rows, varying=True)

# %%
claim(
    "one model, the same documents, four mean losses; the one over tokens is the one that is meant",
    holds=all(abs(each - right) > 1e-3 for name, each in means.items() if name != "over tokens"),
    evidence=", ".join(f"{name}: {each:.4f}" for name, each in means.items()),
)

# %% [markdown]
# `cross_entropy` leaves out targets of -100, and labkit puts that where there is nothing to predict: in padding, and at
# each document's last token, for what comes after it is another document. Over several batches add up sums and counts,
# and divide once. Lesson 12 does that over ranks.

# %% [markdown]
# ## Measure
#
# ### Useful tokens per second
#
# The same documents in each layout, forward and backward, in turns. Only tokens of documents count as work done. The
# sample is small, or this would take minutes: a few padded batches. For bucketing it is less than one pool, so all of
# it is sorted; compare its waste with that of all documents above.

# %%
sample = train[:: len(train) // (4 * BATCH)][: 4 * BATCH] if FULL else train[:24]
sizes = packing.lengths_of(sample)
layouts = {
    "padded": packing.padded(sizes, BATCH, seed=0),
    "bucketed": packing.bucketed(sizes, BATCH, seed=0, pool=8),
    "packed": packing.packed(sizes, BATCH // 4, seed=0, capacity=ROW),
}


def a_pass(plan):
    model.zero_grad()
    for rows in plan:
        batch = packing.lay_out(sample, rows).to(device())
        loss = packing.token_loss(packing.logits_of(model, batch), batch)
        (loss * (batch.targets >= 0).sum()).backward()  # sums over tokens add up to one gradient


# %%
passes = {name: lambda plan=plan: a_pass(plan) for name, plan in layouts.items()}
took = bench(passes, repeats=5, warmup=1, clock=clock)
useful = {name: sum(sizes) / s for name, s in took.median_s.items()}
empty = {name: packing.wasted(sizes, plan) for name, plan in layouts.items()}
faster = {name: f"{took.ratio('padded', name).value:.2f}" for name in useful}
rows = [[k, f"{empty[k]:.0%}", f"{useful[k]:,.0f}", faster[k]] for k in useful]
table(["layout", "wasted", "useful tokens a second", "times padded"], rows, varying=True)

# %% [markdown]
# The ratio is taken round by round, so that a slow minute of the machine touches both layouts alike; the claim is about
# the median of the rounds and their smallest. It is made for a CPU: a GPU may spend its time on starting so small a
# model's many operations, and packing saves few of these.

# %%
ratio = took.ratio("padded", "packed")
reveal("gain", ratio.value)
if device() == "cpu":
    claim(
        "packing trains at least twice as many useful tokens a second as padding, 1.4 in any round",
        holds=ratio.value >= 2 and ratio.low > 1.4,
        evidence=f"{ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})",
    )
record("09", "useful tokens a second", {name: round(rate) for name, rate in useful.items()})

# %% [markdown]
# Is it the same training? The gradient of a pass is a sum over all tokens, so it must not depend on the layout. This
# compares the layouts' gradients, relative to their size.

# %%
gradients = {}
for name, plan in layouts.items():
    a_pass(plan)
    gradients[name] = torch.cat([p.grad.flatten().cpu() for p in model.parameters()])
norm = gradients["padded"].norm()
apart = {k: float((each - gradients["padded"]).norm() / norm) for k, each in gradients.items()}
claim(
    "all layouts give the same gradient for the same documents",
    holds=max(apart.values()) < 1e-4,
    evidence=", ".join(f"{name}: {each:.0e}" for name, each in apart.items()),
)

# %% [markdown]
# Two things to see. Packing does not win by as much as the waste promises, for its mask costs: attention computes all
# pairs of a row and then hides most. And bucketing, which wastes more and needs no mask, may be as quick or quicker:
# that varies with the machine and the lengths, and the table says how it is here. Its price comes below: which
# documents meet is no longer random.

# %% [markdown]
# ### Workers, and their dice
#
# A `DataLoader` can have *workers*: processes that make batches while the device computes. Each has a copy of the data
# set, of everything in it. This one draws a random number for each sample, as augmentation does, from dice of its own.
# The seed is fixed, for the run is to be repeatable.

# %%
import multiprocessing
import warnings

import numpy as np
from torch.utils.data import DataLoader, Dataset, get_worker_info

warnings.filterwarnings("ignore", message="This DataLoader will create")  # eight, on purpose
warnings.filterwarnings("ignore", message=".*fork")  # of threads; a worker starts none
FORK = "fork" in multiprocessing.get_all_start_methods()  # else a worker cannot find this class


class Noisy(Dataset):
    def __init__(self, wait_s=0.0):
        self.dice, self.wait_s = np.random.default_rng(0), wait_s

    def __len__(self):
        return 32

    def __getitem__(self, number):
        time.sleep(self.wait_s)  # as for a disk, or for a network
        return self.dice.random()


# %%
def loader(n_workers, wait_s=0.0, **options):
    context = "fork" if n_workers else None
    how = {
        "num_workers": n_workers,
        "multiprocessing_context": context,
        "timeout": 60 * (n_workers > 0),
    }
    return DataLoader(Noisy(wait_s), batch_size=4, **how, **options)


def different(loader):
    """How many different numbers two epochs bring."""
    return len({x for _ in range(2) for part in loader for x in part.tolist()})


# %% [markdown]
# Two epochs of 32 samples should bring 64 different numbers. Count them: without workers; with two; and with two whose
# dice are set anew in each worker, from the seed that the loader gives it, another one for each worker and epoch.


# %%
def own_dice(_):
    me = get_worker_info()
    me.dataset.dice = np.random.default_rng(me.seed)


found = {"no workers": different(loader(0))}
if FORK:
    found["two workers"] = different(loader(2))
    found["two workers, dice of their own"] = different(loader(2, worker_init_fn=own_dice))
table(["64 samples", "different numbers"], list(found.items()), varying=True)

# %% [markdown]
# With two workers only a quarter is left: both throw the same dice, and in the second epoch new copies of the old dice
# throw the same numbers again. Nothing looks wrong; the augmentation is only poorer than you believe. torch's own dice,
# Python's and NumPy's global ones are set by the loader. Those in your data set are not.

# %%
claim(
    "two workers with copies of one generator bring a quarter of the numbers; own seeds, all",
    holds=list(found.values()) in ([64, 16, 64], [64]),
    evidence=", ".join(f"{name}: {count}" for name, count in found.items()),
)

# %% [markdown]
# How many workers? Here a sample is waited for, and no core is needed for that, so many workers can wait at once. What
# needs a core is to start them. The seconds of one epoch each, with the start; measured once, so take small differences
# for chance:

# %%
seconds = {}
for n_workers in (0, 2, 8) if FORK else (0,):
    begin = time.perf_counter()
    list(loader(n_workers, 0.03 if FULL else 0.001))
    seconds[f"{n_workers} workers"] = time.perf_counter() - begin
table(["32 samples", "seconds"], [[k, f"{s:.2f}"] for k, s in seconds.items()], varying=True)
record("09", "seconds of an epoch that waits", {k: round(s, 2) for k, s in seconds.items()})

# %% [markdown]
# What many workers need beyond their share of the waiting is the price of their start. Not measured here are
# samples that are *computed*: these need cores, and workers beyond the cores add none. So start with none, look
# whether the device waits (lesson 05), and add workers until it does not.

# %% [markdown]
# ### Fetch the next while the device computes
#
# One batch ahead is often enough, and needs no process. The host hands the device its work, which returns at once, and
# gets the next batch meanwhile. On a CPU the device is lesson 04's worker thread. A sleep stands for the disk, and
# products of matrices stand for the model:

# %%
from labkit import device_thread

dev = device_thread.open()
weights = dev.put(torch.randn(384, 384))
ready = torch.randn(384, 384)
ready = ready.pin_memory() if device() == "cuda" else ready  # else a copy to the GPU is waited for


# %%
def fetched():
    time.sleep(0.03)  # a disk
    return ready


def work(x):
    for _ in range(20):
        x = torch.tanh(x @ weights)
    return x


# %% [markdown]
# Two loops over the same steps, with as many reads. In the first the device is idle while the host reads. In the second
# the host reads while the device is at work, and only then waits for it. Its very first read hides behind nothing.


# %%
def one_after_the_other(n_steps):
    for _ in range(n_steps):
        work(dev.put(fetched(), non_blocking=True))
        dev.synchronize()


def one_ahead(n_steps):
    following = fetched()
    for left in reversed(range(n_steps)):
        work(dev.put(following, non_blocking=True))
        following = fetched() if left else None  # while the device computes
        dev.synchronize()


# %% [markdown]
# *Pinned* memory stays at its place, so a GPU can copy from it by itself while the host goes on. That is the line with
# `pin_memory`; a CPU has no use for it.

# %%
READS = 4 if FULL else 2
both = {"in turn": lambda: one_after_the_other(READS), "one ahead": lambda: one_ahead(READS)}
ahead = bench(both, repeats=5, warmup=1)
rows = [[name, f"{1e3 * s / READS:.1f}", ""] for name, s in ahead.median_s.items()]
rows[0][2] = str(ahead.ratio("in turn", "one ahead"))
table(["a step", "ms", "times one ahead"], rows, varying=True)

# %% [markdown]
# What can be saved is the shorter of the two, of reading or of computing. Where one of them is far shorter, or where
# others use the machine, the gain drowns in what a step varies by anyhow; the table says `cannot be told apart` then.

# %% [markdown]
# ### Stop in the middle, and go on
#
# A run that is stopped should go on with the *next* batch, and not with the first: a loader must remember where it is.
# torch's own cannot; the one of `torchdata` can, with the same arguments. It is used here, and not written anew.

# %%
from importlib.util import find_spec

warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # in torchdata, of torch
TORCHDATA = find_spec("torchdata") is not None
if not TORCHDATA:
    print("torchdata is not installed here: %pip install torchdata, then restart the kernel.")


# %%
def resumable():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(range(40), batch_size=4, shuffle=True)


# %% [markdown]
# The first loader deals four batches; then `state_dict()` tells where it is, as a model's tells its weights. What it
# would have dealt after that is noted, for the comparison.

# %%
if TORCHDATA:
    torch.manual_seed(0)
    first = resumable()
    begun = iter(first)
    seen = [next(begun).tolist() for _ in range(4)]
    kept = first.state_dict()
    expected = [part.tolist() for part in begun]

# %% [markdown]
# Another process would have dice of its own, so they are thrown away here before the second loader is made. It is given
# the state that was kept, and nothing else.

# %%
if TORCHDATA:
    torch.manual_seed(123)  # as another process would be
    second = resumable()
    second.load_state_dict(kept)
    rest = [part.tolist() for part in second]

# %% [markdown]
# The new loader takes the state and goes on, as after a checkpoint was read. Together the two must have dealt each
# sample once, and in the order that the first would have gone on in.

# %%
if TORCHDATA:
    claim(
        "a stateful loader, stopped in an epoch, goes on with the batches that were to come",
        holds=rest == expected and sorted(sum(seen + rest, [])) == list(range(40)),
        evidence=f"{len(seen)} batches before, {len(rest)} after, the first of them {rest[0]}",
    )

# %% [markdown]
# ### A file larger than memory
#
# A file can be *mapped*: it looks like an array, and the system reads a *page*, some thousand bytes, when somebody
# touches it. Here a sample is some tokens, a byte each, so a page holds many. A file larger than memory would take
# minutes, so a small one gets a memory that is smaller still, `memory_bytes`: once as much was read, all of it is given
# back to the system.

# %%
from labkit import blocks

SAMPLE, NEIGHBOURS = 64, 256
folder = tempfile.TemporaryDirectory()
file_path = Path(folder.name) / "tokens"
n_bytes = blocks.write(file_path, [torch.cat(train)[: 300_000 if FULL else 40_000]])
MEMORY = n_bytes // 8
n = n_bytes // SAMPLE

# %% [markdown]
# Four orders for an epoch. Of the file, from start to end. A full shuffle, sample by sample. And two *block shuffles*:
# runs of neighbours are read in one go, in random order; some of them are in memory together, and their samples are
# mixed: one at a time, or four.

# %%
dice = torch.Generator().manual_seed(0)
orders = {
    "as in the file": torch.arange(n),
    "blocks, one at a time": blocks.block_order(n, NEIGHBOURS, 1, seed=0),
    "blocks, four mixed": blocks.block_order(n, NEIGHBOURS, 4, seed=0),
    "full shuffle": torch.randperm(n, generator=dice),
}


def samples_of(name, file):
    """The samples of the file in one of the orders."""
    if name.startswith("blocks"):
        return blocks.stream(file, NEIGHBOURS, 1 if "one" in name else 4, seed=0)
    if name == "full shuffle":
        return (file[number] for number in orders[name].tolist())
    return (sample for at in range(0, n, NEIGHBOURS) for sample in file.read(at, at + NEIGHBOURS))


def read_all(name):
    """Tokens of an epoch, bytes of the pages that it asked for, and its seconds."""
    begin = time.perf_counter()
    with blocks.TokenFile(file_path, SAMPLE, memory_bytes=MEMORY) as file:
        tokens = sum(len(sample) for sample in samples_of(name, file))
        return tokens, file.asked_bytes, time.perf_counter() - begin


# %% [markdown]
# How much shuffle is left? `neighbour_share` looks into batches of 32: what share of the pairs in a batch were
# neighbours in the file, at most `NEIGHBOURS` apart? All of them in the order of the file; as good as none after a full
# shuffle.

# %%
read = {name: read_all(name) for name in orders}
left = {name: blocks.neighbour_share(order, 32, NEIGHBOURS) for name, order in orders.items()}
rows = [[k, f"{b / n_bytes:.2f}", f"{s:.3f}", f"{left[k]:.1%}"] for k, (_, b, s) in read.items()]
headings = ["order", "bytes asked for, times the file", "seconds", "pairs that were neighbours"]
table(headings, rows, varying=True)
record("09", "bytes asked for, times the file", {k: b / n_bytes for k, (_, b, _) in read.items()})

# %%
asked = {name: each[1] for name, each in read.items()}
claim(
    "a full shuffle asks for over ten times the bytes of a block shuffle, for the same samples",
    holds=len({each[0] for each in read.values()}) == 1
    and asked["full shuffle"] > 10 * asked["blocks, four mixed"],
    evidence=f"bytes of a file of {n_bytes:,}, by order: {asked}",
)

# %% [markdown]
# The price of reading whole blocks: neighbours stay together, unless several blocks are mixed. With that many in
# memory at a time, a pair in a batch comes from the same one about one time in as many.

# %%
claim(
    "mixing four blocks leaves a quarter of the neighbours together, one at a time nearly all",
    holds=0.2 < left["blocks, four mixed"] < 0.35 and left["blocks, one at a time"] > 0.9,
    evidence=", ".join(f"{name}: {share:.1%}" for name, share in left.items()),
)

# %% [markdown]
# Bytes are counted when a page is asked for, whether it is still in memory or not: a page holds many samples, so a full
# shuffle asks for that many times the file. So `memory_bytes` does not enter the count, which is the worst case; of a
# file larger than memory some pages would still be there. It enters the seconds, and these tell little: the file is
# young, and the system keeps it for itself, whatever is given back.

# %% [markdown]
# Does it matter for what is learned? The file has one module's documents after another's, so neighbours are alike. A
# very small model goes through the file once, in each order, with three seeds, and is then asked about held-out text.

# %%
with blocks.TokenFile(file_path, SAMPLE) as file:
    everything = file.read(0, n).long()
asked_about = docs.load("validation").inputs[: 256 * SAMPLE].view(-1, SAMPLE).to(device())


def next_loss(net, rows):
    logits = net(rows[:, :-1]).flatten(0, 1)
    return cross_entropy(logits, rows[:, 1:].flatten())


# %%
def learned(order, seed):
    """The held-out loss after one pass in an order; the rate falls to a twentieth on the way."""
    torch.manual_seed(seed)
    net = models.gpt(vocab=len(docs.CLASSES), width=32, layers=1, context=SAMPLE).to(device())
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    rows = everything[order].to(device()).split(64)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1, 0.05, len(rows))
    for part in rows:
        adam.zero_grad()
        next_loss(net, part).backward()
        adam.step()
        falling.step()
    with torch.no_grad():
        return next_loss(net, asked_about).item()


# %% [markdown]
# The orders are drawn anew for each seed, but for that of the file, of which there is one. The seed sets the first
# weights too. The *spread* is the standard deviation between seeds, as a few of them estimate it (n - 1 in place of n).

# %%
SEEDS = range(3 if FULL else 1)
drawn = {
    "as in the file": lambda _: orders["as in the file"],
    "blocks, four mixed": lambda seed: blocks.block_order(n, NEIGHBOURS, 4, seed),
    "full shuffle": lambda seed: torch.randperm(n, generator=torch.Generator().manual_seed(seed)),
}
after = {name: [learned(draw(seed), seed) for seed in SEEDS] for name, draw in drawn.items()}
means_of = {name: statistics.mean(each) for name, each in after.items()}
by_seed = {name: " ".join(f"{loss:.3f}" for loss in each) for name, each in after.items()}
deviation = {name: statistics.stdev(each) if FULL else 0.0 for name, each in after.items()}
rows = [[k, f"{means_of[k]:.3f}", f"{deviation[k]:.3f}", by_seed[k]] for k in after]
table(["order", "held-out loss, mean", "spread", "by seed"], rows, varying=True)

# %%
record("09", "held-out loss after one pass", means_of)
claim(
    "in every seed a full shuffle learns more from one pass than the order of the file",
    holds=max(after["full shuffle"]) < min(after["as in the file"]),
    evidence="; ".join(f"{name}: {each}" for name, each in by_seed.items()),
)

# %% [markdown]
# Where do four mixed blocks lie? Compare their distance from the other two means with their spread: with so few seeds
# it says little, so nothing is claimed of them. Whoever wants more shuffle mixes more blocks; the price is memory.

# %% [markdown]
# ### The others wait for the slowest
#
# Now several devices. Each rank takes its share of a step's documents, and at the end of the step all wait for each
# other, to average gradients. So the rank with the most tokens sets the pace: the *straggler*. Two ways to deal the
# same documents:


# %%
def like_cards(step, world):
    return [step[rank::world] for rank in range(world)]


def sorted_runs(step, world):
    """By length, cut into runs: each rank has documents of like length, as many as the others."""
    by_length = torch.tensor(sorted(step, key=lambda number: lengths[number]))
    return [run.tolist() for run in by_length.tensor_split(world)]


# %% [markdown]
# *Sorted runs* are the mistake: whoever has learned that like lengths pad little may deal so. One rank gets all that is
# short, and waits. Count first: by how much is the fullest rank of each step, added up, above an even share? The first
# step is left out, here as in the measurement that follows, where things are made ready in it.

# %%
PER_STEP, WORLD, N_STEPS = 16, 2, 8 if FULL else 2
order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).tolist()
steps = list(zip(*[iter(order)] * PER_STEP, strict=False))[:N_STEPS]
tokens_of = lambda share: sum(lengths[number] for number in share)


def over_even(dealt):
    loads = [list(map(tokens_of, step)) for step in dealt[1:]]
    return sum(WORLD * max(load) for load in loads) / sum(map(sum, loads)) - 1


# %%
dealt = {deal.__name__: [deal(step, WORLD) for step in steps] for deal in (like_cards, sorted_runs)}
over = {name: over_even(each) for name, each in dealt.items()}

# %% [markdown]
# Then on real ranks, two processes. Each packs its share of a step into rows, computes gradients, and waits at a
# *barrier* until the other is there too. The stopwatch tells how long each worked; how long the other stood follows.

# %%
import torch.distributed as dist

from labkit.ranks import run_ranks


def walk(dealt, documents):
    """Processor seconds that this rank worked in each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, worked = models.gpt(vocab=len(docs.CLASSES), layers=1, context=ROW), []
    for step in dealt:
        mine = [documents[number] for number in step[dist.get_rank()]]
        rows = packing.first_fit_decreasing(packing.lengths_of(mine), ROW)
        begin = time.process_time()
        for row in rows:
            batch = packing.lay_out(mine, [row])
            packing.token_loss(packing.logits_of(net, batch), batch).backward()
        worked.append(time.process_time() - begin)
        dist.barrier()
    return worked


# %%
# Copies: a slice of a tensor, sent to another process, takes all of the tensor along.
needed = {number: train[number].clone() for step in steps for number in step}


def waits(dealt):
    """The share of the ranks' time spent waiting, where the slowest of each step sets the pace."""
    pairs = list(zip(*run_ranks(walk, WORLD, dealt, needed, devices="cpu"), strict=True))[1:]
    return 1 - sum(map(sum, pairs)) / sum(WORLD * max(pair) for pair in pairs)


waiting = {name: waits(each) for name, each in dealt.items()}
rows = [[name, f"{over[name]:.0%}", f"{waiting[name]:.0%}"] for name in dealt]
headings = ["dealt", "fullest rank above an even share", "of the ranks' time is waiting"]
table(headings, rows, varying=True)

# %% [markdown]
# Work is told in the processor's own time, and waiting from it: on a machine shared with others a rank also stands
# because somebody else is at work, which is not what is asked here.

# %%
record("09", "share of the ranks' time spent waiting", waiting)
claim(
    "sorted runs make the fullest rank carry over a third more than an even share",
    holds=over["sorted_runs"] > 1 / 3 and over["sorted_runs"] > over["like_cards"],
    evidence=", ".join(f"{name}: {each:.0%}" for name, each in over.items()),
)

# %%
claim(
    "the tokens tell the time: with sorted runs real ranks wait over a fifth of it",
    holds=waiting["sorted_runs"] > 0.2,
    evidence=", ".join(f"{name}: {each:.0%} waiting" for name, each in waiting.items()),
)

# %% [markdown]
# ## Change one thing
#
# How large must the pool of a bucket be? One batch is plain padding. All batches at once is a sorted data set, in which
# the documents that meet are the same in every epoch. In between: the waste, and how much the lengths in a batch
# differ, as the variance of their logarithms there, over that of all documents. Chance gives 1.

# %%
pools = (1, 2, 4, 8, 16, 32, 64) if FULL else (1, 8)
spread, wasted = [], []
log_lengths = torch.tensor(lengths).double().log2()
for pool in pools:
    plan = packing.bucketed(lengths, BATCH, seed=0, pool=pool)
    wasted.append(packing.wasted(lengths, plan))
    within = [log_lengths[[row[0] for row in rows]].var() for rows in plan if len(rows) > 1]
    spread.append(float(sum(within) / len(within) / log_lengths.var()))

# %%
plot.lines(
    {"places wasted": (pools, wasted), "lengths' spread within a batch": (pools, spread)},
    title="A larger pool wastes less, and shuffles less",
    xlabel="batches in a pool",
    ylabel="share",
    log_x=True,
    markers=True,
    ticks="x",
)

# %% [markdown]
# Both fall, and the spread falls first: two batches in a pool already take most of it, for a small part of the waste.
# Batches of like lengths and a free choice of company exclude each other.

# %%
claim(
    "sixteen batches in a pool already save over two thirds of what the largest pool saves",
    holds=len(pools) > 2 and wasted[0] - wasted[4] > 2 / 3 * (wasted[0] - wasted[-1]),
    evidence=", ".join(f"{pool}: {share:.0%}" for pool, share in zip(pools, wasted, strict=True)),
)

# %% [markdown]
# So a pool buys speed with shuffle, and soon most of the shuffle is spent. Change `pool` where `layouts` is made to 1
# or 2, run that cell and the one that measures tokens a second. Packing pays too: it looks at lengths
# alone, so the same documents share a row in every epoch. Who minds packs within a pool that is shuffled anew.

# %% [markdown]
# ## Exercises
#
# ### Exercise 9.1 · The mask and the positions (10 min, easy)
#
# A row of `capacity` places holds documents of these `lengths`, one after the other, then padding. Return two tensors:
# the mask, True where the place of a row may see that of a column; and the positions, whole numbers from 0 in each
# document.

# %% [markdown]
# The traps: each token sees itself and what comes before it, in its own document alone; padding must see something,
# for a softmax over nothing is not a number; and documents and padding do not see each other. Which padding sees which
# is up to you, and so are positions there, from 0 to capacity - 1.


# %%
def mask_and_positions(lengths, capacity):
    """The mask, (capacity, capacity), of True and False; and the positions, (capacity,)."""
    ### BEGIN SOLUTION
    pieces = [*lengths, capacity - sum(lengths)]
    numbers = torch.arange(len(pieces)).repeat_interleave(torch.tensor(pieces))
    mask = (numbers[:, None] == numbers[None, :]).tril()
    return mask, torch.cat([torch.arange(n) for n in pieces])
    ### END SOLUTION


# %%
check(mask_and_positions)

# %% [markdown]
# With yours, in the model that was trained above: the row of the figure, once packed by you, and each of its documents
# alone.

# %%
in_row = [theirs[number] for number in row]
mask, positions = attempt(mask_and_positions)(in_row, sum(in_row))
with torch.no_grad():
    of_row = model(batch.tokens, positions[None].to(device()), mask[None].to(device()))
mine = packing.document_losses(of_row, batch)
claim(
    "packed with your mask and positions, each document of the row has its loss alone",
    holds=max(abs(mine[n] - alone[n]) for n in row) <= 1e-5,
    evidence=", ".join(f"{mine[n]:.4f} ({alone[n]:.4f} alone)" for n in row),
)

# %% [markdown]
# ### Exercise 9.2 · A packer (15 min, medium)
#
# Pack documents of these `lengths` into rows of `capacity` places. Return the rows, each a list of the documents'
# numbers. Each document is in one row; none is cut. The fewest rows are hard to find, but a *lower bound* is not, a
# number that no packing can go below. You must stay within 2 % of it.

# %% [markdown]
# *First-fit decreasing* does: the longest first, each into the first row that has room, or into a new one. The traps:
# in the order in which they come it is too many rows; looking at the last row alone is far too many; and what is
# returned are numbers, not lengths.


# %%
def pack_rows(lengths, capacity):
    """Rows of document numbers, at most `capacity` tokens in each."""
    ### BEGIN SOLUTION
    rows, room = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        for at in range(len(rows)):
            if lengths[number] <= room[at]:
                break
        else:
            at = len(rows)
            rows.append([])
            room.append(capacity)
        rows[at].append(number)
        room[at] -= lengths[number]
    return rows
    ### END SOLUTION


# %%
check(pack_rows)

# %% [markdown]
# On the real text, with its lower bound. Real lengths are kind: there are short documents enough to fill every gap. So
# the bar was set on lengths that are not.

# %%
some = lengths[:1500] if FULL else lengths[:50]
rows_used, fewest = len(attempt(pack_rows)(some, ROW)), packing.lower_bound(some, ROW)
claim(
    "on the shipped text your packer is within 2 % of the fewest rows that there could be",
    holds=rows_used <= 1.02 * fewest,
    evidence=f"{rows_used} rows for {len(some)} documents; at least {fewest}",
)

# %% [markdown]
# ### Exercise 9.3 · A balanced sampler (20 min, hard)
#
# Deal an epoch to ranks: `steps[step][rank]` is a list of document numbers. Each step has `per_step` documents, the
# last one the rest; which, is shuffled anew in each epoch. Within a step the ranks get as many *tokens* as can be: over
# an epoch the fullest ranks may carry 2 % more than even shares.

# %% [markdown]
# The traps: no document may be lost, and none repeated; the last step may have fewer documents than ranks, and still
# needs a list for each, or a rank is missing where all must meet; every rank makes this plan for itself, so the dice
# must be your own, and hang on nothing but `seed` and `epoch`. Not on Python's `hash` of a text, for one: it differs
# from process to process, which a check in one process does not see.


# %%
def balanced_batches(lengths, world_size, per_step, epoch, seed):
    """For each step a list for each rank: the numbers of its documents."""
    ### BEGIN SOLUTION
    dice = torch.Generator().manual_seed(seed + epoch)
    order, steps = torch.randperm(len(lengths), generator=dice).tolist(), []
    for start in range(0, len(order), per_step):
        ranks, loads = [[] for _ in range(world_size)], [0] * world_size
        for number in sorted(order[start : start + per_step], key=lambda number: -lengths[number]):
            emptiest = loads.index(min(loads))
            ranks[emptiest].append(number)
            loads[emptiest] += lengths[number]
        steps.append(ranks)
    return steps
    ### END SOLUTION


# %%
check(balanced_batches)

# %% [markdown]
# And on the ranks. The documents are those of the two deals above, only met in other steps, so all three can be
# compared.

# %%
numbers = sorted(needed)
local = attempt(balanced_batches)([lengths[number] for number in numbers], WORLD, PER_STEP, 0, 0)
yours = [[[numbers[i] for i in rank] for rank in step] for step in local]
over["yours"], waiting["yours"] = over_even(yours), waits(yours)
rows = [[name, f"{over[name]:.1%}", f"{waiting[name]:.0%}"] for name in over]
table(headings, rows, varying=True)

# %%
claim(
    "dealt the longest first, the fullest rank carries at most 5 % more than an even share",
    holds=over["yours"] < 0.05,
    evidence=", ".join(f"{name}: {each:.1%}" for name, each in over.items()),
)

# %% [markdown]
# ## Limits
#
# **When does none of this help?** Where samples have one size, as most pictures do. Where the device is the bottleneck
# already: a faster loader then fills a queue. And where documents are longer than a row, packing has nothing to pack.

# %% [markdown]
# - A dense mask computes every pair of places and then hides most. Kernels that skip the hidden ones exist for GPUs
#   (FlexAttention, variable-length FlashAttention); on a CPU of today they do not train.
# - Packing changes what shares a step, and so the noise of gradients; that the sum over documents is the same was
#   shown, and no more.

# %% [markdown]
# - Tokens are not time. Attention grows with the square of a document's length, and at rows of thousands of tokens the
#   longest-first deal should weigh that.
# - The file here is small, and a system with memory to spare keeps it all. What a disk takes is not measured.
# - Two ranks on two cores, and waiting told from the processor's time: on GPUs use a profiler's timeline, lesson 05.

# %% [markdown]
# ## Further questions
#
# 1. Train with `neither`, in place of both, for some hundred steps. Does the model learn to ignore its neighbours?
# 2. Lower `ROW` to 128. What becomes of the padding, of the packing, and of their ratio?
# 3. Let the packer keep documents in order, to stream a file, and look at the last row alone. How many rows?
# 4. With eight ranks, how many documents must a step have before dealing like cards is good enough?

# %% [markdown]
# ## Sources
#
# - Krell et al., [Efficient sequence packing without cross-contamination](https://arxiv.org/abs/2107.02027), 2021:
#   masks, positions, packers.
# - Johnson, Near-optimal bin packing algorithms, MIT, 1973; Dósa, The tight bound of first fit decreasing, ESCAPE 2007.
# - Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969: longest first.

# %% [markdown]
# - PyTorch, [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html): workers, their seeds, pinned memory.
# - PyTorch,
#   [scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html):
#   what True in a mask means.
# - Martello and Toth, Lower bounds and reduction procedures for the bin packing problem, Discrete Appl. Math. 28, 1990.
