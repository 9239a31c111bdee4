# title: Capstone
# minutes: 120
# cpu: everything
# gpu: not needed; the script trains on the processor
#
# %% [markdown]
# # 21 · Four times faster, and the record that proves it
#
# Two hours: forty-five minutes for this notebook and its three exercises, the rest for your own script. The cells
# alone run in well under a minute.
#
# ## Question
#
# Here is a training script as people write them. It is right in the end, it takes about a minute, and no two runs of
# it are alike. **Make it at least four times faster to the same accuracy, and prove it. What would you change
# first?**

# %%
import importlib.util
import inspect
import itertools
import math
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from labkit import attempt, bench, check, claim, course, predict, record, repro, reveal, table
from labkit.data import glyphs
from labkit.models import resnet

# %% [markdown]
# The script is a file of the course, `datasets/capstone/train.py`. Below it is loaded as a module, so that its parts
# can be called and timed one by one. It trains on 6048 pictures of characters; a tenth of them is enough for a look.

# %%
torch.set_num_threads(1)  # on a busy machine, two threads wait for each other

from labkit import hardware, plot

FULL = repro.budget() == "full"  # else a preview in a few steps, which decides no claim

spec = importlib.util.spec_from_file_location("slow", course.root() / "datasets/capstone/train.py")
slow = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slow)

# %%
folder = tempfile.TemporaryDirectory()
split, n_pictures = glyphs.load("train", size=48), 640 if FULL else 128
pixels = ((split.inputs[:n_pictures, 0] * glyphs.STD + glyphs.MEAN) * 255).round().byte().numpy()
labels = split.targets[:n_pictures].numpy()
np.savez(Path(folder.name) / "train.npz", pixels=pixels, labels=labels)
data = slow.Pictures(Path(folder.name) / "train.npz", training=True)

# %% [markdown]
# This is how a picture is *augmented*, that is, changed a little each time it is shown, so that the network cannot
# learn it by heart. `affine_grid` says for each pixel where it comes from, `grid_sample` fetches it.

# %%
print(inspect.getsource(slow.augment))

# %% [markdown]
# And this is an epoch, one pass over all pictures. Much of what the lessons before this one warned of is in these two
# functions. The rest is in `accuracy`, which reads a value for each picture, and in how the two are called.

# %%
print(inspect.getsource(slow.train_epoch))

# %% [markdown]
# ## Predict
#
# The script stops when the network is right on the target's share of the *validation pictures*, which it does not
# train on. So a run takes a start, and then the seconds of an epoch and its validation, times the number of epochs.
# First the seconds of a step, on one thread.

# %%
question = "What share of a training step goes into loading and augmenting its pictures?"
predict("share", question, default=60, low=0, high=100, unit="%")

# %%
question = "If the pictures came for nothing, how many times faster would a step be?"
predict("free", question, default=2.5, low=1, high=10, unit="times")

# %% [markdown]
# The course has a fast script of its own, the same network with six changes. The changes were also measured each
# alone, in whole runs to the target.

# %%
question = "The six changes together: how many times faster to the target?"
predict("all", question, default=4, low=1, high=20, unit="times")

# %% [markdown]
# ## Build
#
# ### Many operations, or much time?
#
# The eye is drawn to `augment`: a dozen small operations, for one picture at a time, in Python. A *dispatch mode*
# sees each operation that torch carries out, so they can be counted.


# %%
class Count(TorchDispatchMode):
    """Counts the operations within a `with` block."""

    n = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.n += 1
        return operation(*args, **(kwargs or {}))


# %% [markdown]
# One step has two halves: the loader makes a batch, and the network learns from it. The lines are those of the script
# but for its counting and printing, taken apart so that each half can be called alone.


# %%
def batches():
    """Batches as the script's loader makes them, without end."""
    while True:
        yield from DataLoader(data, batch_size=32, shuffle=True)


def learn(model, optimizer, pictures, labels):
    """One step of training; the loss."""
    loss = F.cross_entropy(model(pictures).float(), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# %%
def fresh(seed=0, lr=0.01):
    """A new network and its optimizer, as in the script."""
    torch.manual_seed(seed)
    model = resnet()
    settings = {"lr": lr, "momentum": 0.9, "weight_decay": 5e-4}
    return model, torch.optim.SGD(model.parameters(), **settings)


# %% [markdown]
# Both halves once, each under a counter of its own. The network's half is its way forward, the way back for the
# gradients, and the optimizer.

# %%
model, optimizer = fresh()
stream, loading, network = batches(), Count(), Count()
with loading:
    batch = next(stream)
with network:
    learn(model, optimizer, *batch)
rows = [["loading and augmentation", loading.n], ["network", network.n]]
table(["half of a step", "operations"], rows)

# %% [markdown]
# If time went with the number of operations, most of it would be the loader's. That is the measurement done
# wrong: an operation on one small picture and a convolution over a whole batch count the same. Now with a clock.


# %%
def halves(n_steps):
    """Seconds of each half, step by step."""
    seconds = {"loading and augmentation": [], "network": []}
    for _ in range(n_steps):
        times = [time.perf_counter()]
        pictures, labels = next(stream)
        times.append(time.perf_counter())
        learn(model, optimizer, pictures, labels)
        times.append(time.perf_counter())
        for name, (begin, end) in zip(seconds, itertools.pairwise(times), strict=True):
            seconds[name].append(end - begin)
    return seconds


# %%
model.train()
seconds = halves(20 if FULL else 3)
plot.samples(seconds, title="The two halves of a step", xlabel="time of a step")

# %% [markdown]
# A dot is a step, the tick is the median. From the two medians comes the loader's share, which was the first question.

# %%
made, learned = (statistics.median(each) for each in seconds.values())
share = made / (made + learned)
reveal("share", 100 * share)
claim(
    "most operations are in the loader, and most of the time is in the network",
    holds=loading.n > network.n and share < 0.5,
    evidence=f"operations {loading.n} and {network.n}; time {share:.0%} and {1 - share:.0%}",
)
record("21", "a step of the slow script", {"loading": made, "network": learned})

# %% [markdown]
# ### What a part can give
#
# A part that takes a share of the time can at most save that share. With the loader gone altogether, what remains is
# the network. This is *Amdahl's law*: the whole becomes 1 / (1 - share) times faster at most, however clever the work
# on that part.

# %%
reveal("free", 1 / (1 - share), how="computed")
shares = [i / 100 for i in range(0, 91)]
bound = [1 / (1 - each) for each in shares]
look = {"xlabel": "share of the time that is removed", "ylabel": "times faster"}
asked = {"four times": 0.75}
plot.lines({"at most": (shares, bound)}, **look, marks=asked, title="Amdahl's law")

# %% [markdown]
# To be four times faster, three quarters of all seconds must go. The loader does not hold that much. So the
# network must become cheaper, or the number of epochs smaller.

# %% [markdown]
# ## Measure
#
# ### A cheaper network
#
# Four ways to spend less on a picture. Smaller pictures: 24 pixels a side have a quarter of the pixels of 48. Larger
# batches: fewer steps. *Channels last*: the numbers of a pixel lie side by side in memory, as convolutions like it.
# And bf16, 16-bit numbers, where the processor multiplies them.

# %%
pictures, its_labels = next(stream)
fours = torch.cat([pictures] * 4), torch.cat([its_labels] * 4)
small = F.interpolate(pictures, size=(24, 24), mode="area")


def stepping(pictures, labels, *, last=False, bf16=False):
    """A function that takes one step; last: channels last."""
    model, optimizer = fresh()
    layout = torch.channels_last if last else torch.contiguous_format
    model, pictures = model.to(memory_format=layout), pictures.contiguous(memory_format=layout)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            learn(model, optimizer, pictures, labels)

    return step


# %%
arms = {
    "as it is": stepping(pictures, its_labels),
    "channels last": stepping(pictures, its_labels, last=True),
    "channels last, bf16": stepping(pictures, its_labels, last=True, bf16=True),
    "24 pixels": stepping(small, its_labels),
    "four times the batch": stepping(*fours),
}
found = bench(arms, repeats=7 if FULL else 5)

# %% [markdown]
# The larger batch has four times the pictures, so the fair figure is time for each picture. Whether bf16 pays hangs
# on the processor: some multiply it in hardware, others emulate it, and then it costs.

# %%
features = set(hardware.machine().cpu_features)
multiplies = bool(features & {"avx512_bf16", "amx_bf16"})
shown = {name: 128 if name == "four times the batch" else 32 for name in arms}
ms = {name: 1e3 * s / shown[name] for name, s in found.median_s.items()}
rows = [[name, f"{each:.2f}", f"{ms['as it is'] / each:.2f}"] for name, each in ms.items()]
note = f"This processor multiplies bf16: {'yes' if multiplies else 'no'}."
headings = ["step", "ms a picture", "times faster"]
table(headings, rows, varying=headings[1:], notes=[note])
record("21", "a picture, times faster", {name: ms["as it is"] / each for name, each in ms.items()})

# %%
smaller = found.ratio("as it is", "24 pixels")
claim(
    "a step on 24 pixels takes less than two thirds as long as one on 48",
    holds=smaller.value > 1.5,
    evidence=f"{smaller}, for a quarter of the pixels",
)

# %% [markdown]
# ### Faster steps are not a faster run
#
# Pictures a second is what is easy to measure, and the second measurement done wrong. The same pictures, three
# recipes, each at 24 pixels: small batches as in the script, batches four times as large, and these with a larger
# rate too.

# %%
RECIPES = {"32 a batch": (32, 0.01), "128": (128, 0.01), "128, ten times the rate": (128, 0.1)}
tiny = glyphs.load("train", size=24)
n_tiny, n_epochs = (1536, 4) if FULL else (128, 1)
tiny_x, tiny_y = tiny.inputs[:n_tiny], tiny.targets[:n_tiny]


def losses(batch_size, lr, seed=0):
    """(seconds so far, mean loss) at the end of each epoch."""
    (model, optimizer), told, start = fresh(seed, lr), ([], []), time.perf_counter()
    for _ in range(n_epochs):
        order = torch.randperm(n_tiny).split(batch_size)
        mean = statistics.fmean(learn(model, optimizer, tiny_x[i], tiny_y[i]) for i in order)
        told[0].append(time.perf_counter() - start)
        told[1].append(mean)
    return told


# %%
learning = {name: losses(*recipe) for name, recipe in RECIPES.items()}
look = {"xlabel": "seconds", "ylabel": "training loss (nats)", "markers": True}
plot.lines(learning, **look, title="One dot is one epoch")

# %% [markdown]
# Follow the dots: an epoch takes less time with the larger batch, and teaches less, for there are four times fewer
# steps of the same length. The rate must rise with the batch. How far, lesson 01 finds out.

# %%
ends = [told[1][-1] for told in learning.values()]
claim(
    "after as many epochs, the large batch has learned less, unless its rate is larger too",
    holds=ends[0] < ends[1] and ends[2] < ends[1],
    evidence=", ".join(f"{name}: loss {end:.2f}" for name, end in zip(RECIPES, ends, strict=True)),
)

# %% [markdown]
# So what counts is *time to accuracy*: the seconds from the start until the target is reached. It asks for whole
# runs, more than one of each, for the number of epochs is a matter of luck too.

# %% [markdown]
# ### Whole runs
#
# That takes longer than a lesson. The runs below were made once, on the machine in the caption, and kept
# (`datasets/recorded/21_capstone_sweeps.py` makes them again). Each arm is the course's script with some of its
# changes. A dot is a run, to the target.

# %%
recorded = repro.recordings("21_capstone_sweeps")[0]
runs = recorded.results["arms"]
alone = {row["changes"]: row["wall_s"] for row in runs if row["kind"] == "alone" and row["wall_s"]}
title = "Each change alone"
plot.samples(alone, title=title, xlabel="time to the target")
print(f"Recorded on {recorded.hardware}, {recorded.date}")

# %% [markdown]
# What they are. *loading*: arrays in memory in place of a loader that collates. *augmentation*: one call for a batch.
# *syncs*: no value read in the loop. *precision*: channels last, and bf16 where it is multiplied. *schedule*: batches
# of 128 under a rate that rises and falls, lesson 01. *sizes*: most epochs at 24 pixels, the rest at 32, lesson 02.

# %% [markdown]
# Now each with those before it. This figure is a *waterfall*: from row to row, one change more. The first two
# rows are those above; all runs arrived.

# %%
steps = [row for row in runs if row["changes"] in ("none", "loading") or row["kind"] == "in order"]
named = lambda row: ("+ " if "," in row["changes"] else "") + row["changes"].rpartition(",")[2]
falling = {named(row): row["wall_s"] for row in steps if row["wall_s"]}
plot.samples(falling, title="Each change with those above it", xlabel="time to the target")

# %%
times = {row["changes"]: statistics.median(row["wall_s"]) for row in runs if row["wall_s"]}
whole = next(row["changes"] for row in runs if row["changes"].endswith(",sizes"))
singly = math.prod(times["none"] / times[name] for name in whole.split(",") if name in times)
reveal("all", times["none"] / times[whole])
claim(
    "no single change reaches four times, all six together do",
    holds=max(times["none"] / s for name, s in times.items() if "," not in name) < 4
    and times["none"] / times[whole] >= 4,
    evidence=f"together {times['none'] / times[whole]:.1f} times, the product of each {singly:.1f}",
)

# %% [markdown]
# Gains do not simply multiply. Two changes to one part give less than their product: what one has made cheap, the
# next cannot make much cheaper. Two changes to different parts can give more, for each raises the other's share. The
# last row adds `torch.compile`, and is slower than the row above: compiling takes longer here than the whole run that
# it is to speed up. For a run of hours that is another matter, which lesson 06 weighs.

# %% [markdown]
# ## Change one thing
#
# The share of the loader again, in a step of other sizes. Raise `N_PICTURES_A_STEP` to 64, then 128. What becomes of
# the share? And what becomes of it when the network is made cheaper, as in the second row?

# %%
N_PICTURES_A_STEP = 32
few = DataLoader(data, batch_size=N_PICTURES_A_STEP, shuffle=True)
large, its_labels = next(iter(few))
arms = {"loader": lambda: next(iter(few)), "48 pixels": stepping(large, its_labels)}
arms["24 pixels"] = stepping(F.avg_pool2d(large, 2), its_labels)
part_s = bench(arms, repeats=5).median_s
share_at = lambda size: part_s["loader"] / (part_s["loader"] + part_s[size])
rows = [[f"network at {size}", f"{share_at(size):.0%}"] for size in ("48 pixels", "24 pixels")]
table(["a step", "the loader's share"], rows, varying=True)

# %% [markdown]
# Once the network is cheap, the loader is what is left. That is why a change that gives little alone can give much at
# the end, and why one measures again after each change.

# %% [markdown]
# ## Exercises
#
# First the piece that every fast version needs, then two pieces of arithmetic without which one fools oneself, then
# your own script.

# %% [markdown]
# ### Exercise 21.1 · One call for all (12 min, medium)
#
# `augment` turns, stretches and shifts one picture, with a chain of small operations. Write `augment_batch`, which
# does it to a whole batch at once, without the noise: `pictures` is `[N, 1, H, W]`, the other arguments are `[N]`, one
# number for each picture. Use the script's matrix as it is, also where
# pictures are not square. `affine_grid` takes matrices `[N, 2, 3]` and the size of the batch.

# %% [markdown]
# The check counts operations for 4 pictures and for 16: there must not be more for 16.
#
# The traps: each picture has numbers of its own; outside a picture is its border, not black; pictures need be neither
# square nor of 48 pixels; those that were given stay as they are.


# %%
def augment_batch(pictures, angle, scale, right, down):
    """The pictures, each turned, stretched and shifted by its own numbers."""
    ### BEGIN SOLUTION
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    matrix = torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, pictures.shape, align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    ### END SOLUTION


# %%
check(augment_batch)

# %% [markdown]
# The same pictures through both: the script's function, called for each, and yours, called once. Both
# draw their numbers anew and add noise, so that they do the same work.

# %%
ready = slow.to_tensor(pixels[:32])[:, None]
usual, most = torch.tensor([[0.0, 0.15], [1.0, 0.1], [0.0, 0.1], [0.0, 0.1]]).split(1, dim=1)
drawn = lambda n: usual + most * (2 * torch.rand(4, n) - 1)  # angle, scale, right, down
mine = attempt(augment_batch)
arms = {
    "one at a time": lambda: [slow.augment(one[0]) for one in ready],
    "one call": lambda: mine(ready, *drawn(32)) + 0.1 * torch.randn_like(ready),
}
quicker = bench(arms, repeats=7 if FULL else 5)
quicker.show()

# %%
ratio = quicker.ratio("one at a time", "one call")
record("21", "augmentation, times faster", {"one call": ratio.value})
claim(
    "one call for a batch takes less time than a call for each picture",
    holds=ratio.value > 1.2,
    evidence=str(ratio),
)

# %% [markdown]
# ### Exercise 21.2 · What it comes to (8 min, easy)
#
# `seconds` says how long each part takes in an epoch, `factors` how many times faster parts have become; one that is
# not named stays as it is, and `math.inf` is a part that is gone. All epochs are alike. Return how many times faster
# the whole run is.
#
# The traps: factors can be neither averaged nor multiplied; a part that is not named still takes its time; a factor
# below 1 is a part that became slower; the epochs count.


# %%
def times_faster(seconds, factors, epochs_before, epochs_after):
    """How many times faster the run is, to the same accuracy."""
    ### BEGIN SOLUTION
    after = sum(s / factors.get(part, 1.0) for part, s in seconds.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after)
    ### END SOLUTION


# %%
check(times_faster)

# %% [markdown]
# With what was measured above: the loader gone, or the network on 24 pixels, or both, or both in fewer epochs. The
# last column is a wish until a whole run has shown it.

# %%
parts = {"loader": made, "network": learned}
gone, cheap = {"loader": math.inf}, {"network": smaller.value}
mine = attempt(times_faster)
plans = {"loader gone": (gone, 8), "24 pixels": (cheap, 8), "both": (gone | cheap, 8)}
plans["both, 6 epochs for 8"] = (gone | cheap, 6)
rows = [[name, f"{mine(parts, plan, 8, epochs):.2f}"] for name, (plan, epochs) in plans.items()]
table(["plan", "times faster"], rows, varying=True)

# %% [markdown]
# ### Exercise 21.3 · A fair ratio (12 min, medium)
#
# `pairs` is a list of `(slow, fast)`. Each is the log of a run: a list of `(seconds, accuracy)`, one entry for each
# epoch. A run's time is that of its first entry at the target or above. Return the median of slow / fast over the
# pairs.

# %% [markdown]
# A slow run that never arrives says nothing: leave its pair out, whatever the other did. A *fast* run that never
# arrives is a failure, and its pair counts as 0. Where no pair is left, return 0.0.
#
# The traps: whoever drops failed runs of their own counts only the lucky ones; exactly the target is enough; accuracy
# may fall again later; the median of the ratios is not the ratio of the medians.


# %%
def fair_ratio(pairs, target):
    """How many times sooner the fast runs arrive: the median over pairs."""
    ### BEGIN SOLUTION
    arrival = lambda log: next((s for s, accuracy in log if accuracy >= target), math.inf)
    times = [(arrival(slow_log), arrival(fast_log)) for slow_log, fast_log in pairs]
    ratios = [before / after for before, after in times if before < math.inf]
    return float(statistics.median(ratios)) if ratios else 0.0
    ### END SOLUTION


# %%
check(fair_ratio)

# %% [markdown]
# A recipe that is too bold: five times as fast when it arrives, and it arrives in two runs of five. Those who publish
# only the runs that worked call it five times faster.

# %%
arrives, never = [(4.0, 0.5), (8.0, 0.81)], [(4.0, 0.4), (8.0, 0.6)]
base = [(20.0, 0.6), (40.0, 0.82)]
bold = [(base, arrives)] * 2 + [(base, never)] * 3
mine = attempt(fair_ratio)
lucky = [pair for pair in bold if pair[1] is arrives]
claim(
    "counted fairly, a run that fails more often than not is no faster",
    holds=mine(lucky, 0.8) == 5 and mine(bold, 0.8) == 0,
    evidence=f"the lucky ones {mine(lucky, 0.8):.1f} times, all {mine(bold, 0.8):.1f}",
)

# %% [markdown]
# ### Your script
#
# Copy `datasets/capstone/train.py` to a folder of your own and make it fast. You may change all but the contract at
# its head, the network too. In a terminal, in the course's folder; the first line says what the target is:
#
# ```
# labkit capstone --data my/data
# python my/train.py --data my/data --out my/out --target TARGET
# labkit capstone my/train.py --pairs 2
# ```

# %% [markdown]
# The last line runs the slow script and yours in turns, from the start of the process to its end, and tells the ratio
# with its interval, the accuracy on pictures that nobody was given, and what a person should look at. Two pairs are a
# look and take some minutes; five decide: `labkit capstone my/train.py`.

# %% [markdown]
# A schedule and a plan of sizes must know their end. So fix the number of epochs beforehand; eight is a start. Look at
# the target in the last of them only, or in each. Where it is not reached, end all the same. And `predict` is given 48
# pixels: shrink them there exactly as for your own validation.

# %% [markdown]
# **Hand in** the script with its record. The judging makes one of your runs again and compares every value that was
# logged, to the last bit, so log no times. `seeds` only notes what you have seeded yourself:
#
# ```
# torch.manual_seed(args.seed)
# with run("capstone", data={"train": args.data / "train.npz"}, seeds=(args.seed,)) as it:
#     ...
#     it.log(epoch, loss=loss)
# ```

# %% [markdown]
# `run` comes from `labkit.repro`, as in lesson 19. `labkit leaderboard DIR` ranks the scripts of a room on one
# machine. The bar is four times, with the lower end of the interval above three and a half.
#
# Stuck? The waterfall says what gave most: sizes, then the schedule with batches of 128, then channels last. 21.1 and
# tensors in memory pay once these are cheap. The course's own way is in `solutions/capstone/train.py`. Read it after
# yours has arrived.

# %% [markdown]
# ## Limits
#
# **When is all this not worth it?** When the run is made once. Two hours of work for a minute of a processor is a
# good lesson and a bad trade. It pays where a run is made hundreds of times, or takes days.

# %% [markdown]
# - The target is a threshold. A recipe can be tuned to cross it and be no better beyond; so the report shows accuracy
#   on other pictures as well. Five pairs on one machine say nothing about another.
# - Pairs are run in turns because a machine's speed drifts. Their interval is wide: with five, from the least ratio
#   to the greatest.

# %% [markdown]
# - Validation pictures are looked at in each epoch to know when to stop. That is mild fitting to them, and alike for
#   both scripts.
# - On a GPU the shares are others: the network shrinks, and the loader, the waits and the launches are what is left.
#   The order of work is the same: measure first.

# %% [markdown]
# ## Further questions
#
# 1. Which change would you make first for a network ten times as wide? And for one ten times narrower?
# 2. Give the slow script worker processes (lesson 09). How much of the loader's share is left on your cores?
# 3. The six changes could be added in another order. Which figure changes, and which does not?
# 4. Make the target 0.9. Does the fast script still arrive? Is it still as many times faster?
# 5. Try a smaller network. Is that still the same task?

# %% [markdown]
# ## Sources
#
# - Amdahl, [Validity of the single processor approach to achieving large scale computing
#   capabilities](https://doi.org/10.1145/1465482.1465560), AFIPS 1967.
# - Coleman and others, [Analysis of DAWNBench](https://arxiv.org/abs/1806.01427), 2018, and Mattson and others,
#   [MLPerf Training Benchmark](https://arxiv.org/abs/1910.01500), 2019: time to accuracy.
# - Dahl and others, [Benchmarking Neural Network Training Algorithms](https://arxiv.org/abs/2306.07179), 2023: what
#   is fair.
# - Jordan, [94% on CIFAR-10 in 3.29 Seconds on a Single GPU](https://arxiv.org/abs/2404.00498), 2024: a waterfall of
#   the same kind.
# - Smith and Topin, [Super-Convergence](https://arxiv.org/abs/1708.07120), 2018.
