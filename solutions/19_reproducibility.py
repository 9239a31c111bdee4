# title: Reproducibility
# minutes: 75
# cpu: everything
# gpu: the same, and whether a GPU adds up alike twice
#
# %% [markdown]
# # 19 · Runs that can be made again
#
# Seventy-five minutes with the exercises. The cells alone run in about half a minute, or some minutes on a busy
# machine.
#
# ## Question
#
# A colleague asks for the number in your notebook once more. Same code, same data, same seed: **do you get the same
# number? If not, where does it part? And if yours is half a per cent higher than hers, does that mean anything?**

# %%
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from labkit import attempt, bench, check, claim, hardware, predict, record, repro, reveal, table
from labkit.data import digits
from labkit.ranks import run_ranks
from labkit.repro.order import out_of_order
from labkit.scratch import Scratch

# %% [markdown]
# Everything here is trained on the CPU with one thread, except where threads are the question. The data are real
# handwritten digits, all splits put together, since we shall split them ourselves, by chance.

# %%
torch.set_num_threads(1)

from labkit import plot

FULL = repro.budget() == "full"  # else a preview in a few steps, which decides no claim
splits = [digits.load(name) for name in ("train", "validation", "test")]
x = torch.cat([split.inputs for split in splits]).flatten(1)
y = torch.cat([split.targets for split in splits])

# %% [markdown]
# ## Predict
#
# A training program draws by chance in many places: first weights, shuffling, noise, workers. Below are ten such
# places and two runs of one program. Most people write one line, `torch.manual_seed(0)`. Move all sliders before you
# go on.

# %%
question = "After torch.manual_seed, how many of the ten sources give both runs the same?"
predict("held", question, default=9, low=0, high=10)

# %%
question = "One recipe, 30 seeds: how far apart are the best and the worst test accuracy?"
predict("spread", question, default=0.5, low=0.1, high=10, unit="points")

# %% [markdown]
# The last question needs a word. Two recipes can be run over the same seeds, and compared seed by seed, or as two
# heaps of runs. How much surer is the first way?

# %%
question = "Two recipes compared seed by seed: how many times smaller is the error?"
predict("paired", question, default=1.1, low=1, high=5, unit="times")

# %% [markdown]
# ## Build
#
# ### A result that its own notebook cannot give
#
# First no seed at all, and a notebook whose cells ran in another order than they stand in. A small classifier, trained
# for some steps from the weights that it is given; nothing in it is drawn.

# %%
train, test = slice(0, 400), slice(400, None)


def trained(weights, rate, n_steps):
    """The weights after some steps of plain gradient descent."""
    for _ in range(n_steps):
        error = (x[train] @ weights).softmax(1) - nn.functional.one_hot(y[train], 10)
        weights = weights - rate / 400 * x[train].T @ error
    return weights


# %%
def score(weights):
    """The share of right answers on the pictures that were not trained on."""
    return float(((x[test] @ weights).argmax(1) == y[test]).double().mean())


# %% [markdown]
# `PAGE` is a notebook as it was saved, its cells as text, from top to bottom. `CLICKED` is what its author ran, in
# that order: a first rate, the training cell, the score; then the training cell again, a few times, because the score
# rose. At last a smaller rate was typed in, for the looks, and never run.

# %%
PAGE = [
    "weights = torch.zeros(64, 10)",
    "rate = 0.05",
    "weights = trained(weights, rate, n_steps=5)",
    "accuracy = score(weights)",
]

# %%
first, _, training, scoring = PAGE
CLICKED = [first, "rate = 0.1", training, scoring, *[training] * 5, scoring]

# %% [markdown]
# A *kernel*, the process behind a notebook, is no more than this: it runs texts, one after the other, in one memory.
# What it ran before stays there. So does what a cell bound that has been changed or deleted since.


# %%
def run_cells(sources):
    """The accuracy after cells have run in this order, in a fresh memory."""
    memory = {"torch": torch, "trained": trained, "score": score}
    for source in sources:
        exec(source, memory)
    return memory["accuracy"]


# %% [markdown]
# The measurement done wrong is the one that everybody makes: look at the number under the last cell. Then done right:
# restart, and run all.

# %%
on_the_page, from_the_page = run_cells(CLICKED), run_cells(PAGE)
claim(
    "the number on the page is not the one that the page gives",
    holds=on_the_page > from_the_page + 0.02,
    evidence=f"on the page {on_the_page:.3f}; run from top to bottom {from_the_page:.3f}",
)

# %% [markdown]
# `out_of_order` finds that without running anything. It reads the texts that ran and the texts on the page. Each name
# that a cell reads was bound by some run before; on the page, by the nearest cell above. Where these are not the same
# cell with the same text, the result is not the page's.

# %%
faults = out_of_order(CLICKED, PAGE)
rows = [[fault.count, fault.cell or "gone", fault.name, fault.why] for fault in faults[:5]]
caption = f"{len(faults)} faults, of which the first five"
table(["run", "cell", "name", "why"], rows, caption=caption)

# %% [markdown]
# It reads names, so it sees what names tell. Here is the same story with a list that the training cell changes *in
# place*, as training a model does. The name `model` is bound once, at the top, and never again. Is that seen?

# %%
IN_PLACE = [
    "model = [torch.zeros(64, 10)]",
    "model[0] = trained(model[0], 0.05, n_steps=5)",
    "accuracy = score(model[0])",
]
twice = [*IN_PLACE[:2], *[IN_PLACE[1]] * 5, IN_PLACE[2]]

# %%
hidden, unseen = run_cells(twice) - run_cells(IN_PLACE), out_of_order(twice, IN_PLACE)
claim(
    "names tell a cell that ran again or was changed; what changed within an object they do not",
    holds={None, 3} <= {fault.cell for fault in faults} and not unseen and hidden > 0.02,
    evidence=f"{len(faults)} faults; in place: {unseen}, and {hidden:.3f} more on the page",
)

# %% [markdown]
# So the only proof is a fresh run, from top to bottom. This check is for the moment before: it is quick, and it says
# *which* cell. Exercise 19.3 lets you build its heart.

# %% [markdown]
# ### Sums depend on their order
#
# A float32 number has 24 bits. Each addition rounds to them, so `(a + b) + c` is not always `a + (b + c)`. Below, the
# same million numbers are added up one by one, in four orders, and the running total is held against the exact one.

# %%
numbers = torch.randn(10**6 if FULL else 10**4, generator=torch.Generator().manual_seed(0))
by_size = numbers[numbers.abs().argsort(stable=True)]
ORDERS = {"as drawn": numbers, "backwards": numbers.flip(0)}
ORDERS |= {"small first": by_size, "large first": by_size.flip(0)}

# %%
off, last = {}, {}
for name, each in ORDERS.items():
    running = each.numpy().cumsum()  # in float32, one after the other
    last[name] = float(running[-1])
    error = running.astype(np.float64) - each.double().numpy().cumsum()
    off[name] = (range(0, len(error), len(error) // 200), error[:: len(error) // 200].tolist())

# %% [markdown]
# A line for each order. Where it ends is the error of the total. Nothing was drawn anew: these are the same numbers,
# and each line would be flat at zero if a float32 sum were exact.

# %%
look = {"xlabel": "numbers added so far", "ylabel": "error of the total"}
plot.lines(off, **look, title="One set of numbers, added up in four orders")

# %% [markdown]
# `torch.sum` does not add one by one: it keeps many partial sums, which is quicker and nearer to the truth. How many
# depends on the number of *threads*, the helpers among which torch divides a large operation. `math.fsum`, shown last,
# rounds once, at the end.

# %%
rows, exact = [], {math.fsum(each.tolist()) for each in ORDERS.values()}
for name, each in ORDERS.items():
    sums = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        sums.append(f"{float(each.sum()):.7f}")
    rows.append([name, f"{last[name]:.7f}", *sums, f"{math.fsum(each.tolist()):.7f}"])
torch.set_num_threads(1)
table(["order", "one by one", "1 thread", "2 threads", "exact"], rows, varying=True)

# %%
claim(
    "one by one, the total depends on the order of the numbers; summed exactly, it does not",
    holds=len(set(last.values())) > 1 and len(exact) == 1,
    evidence=f"{len(set(last.values()))} totals from four orders; exactly: {exact}",
)

# %% [markdown]
# Are the two columns for threads alike, in your table? That depends on processor and version, so nothing is claimed.
# Does it matter to training? The same network, seed and batches, twice with one thread and once with two. The loss is
# compared bit by bit.


# %%
def losses(n_threads, n_steps=30 if FULL else 2):
    """The loss at each step."""
    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(n_steps):
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    torch.set_num_threads(1)
    return found


# %%
one, again, two = losses(1), losses(1), losses(2)
parts = next((step for step in range(len(one)) if one[step] != two[step]), None)
gap = max(abs(p - q) / p for p, q in zip(one, two, strict=True))

# %% [markdown]
# The first comparison must hold, or nothing below can be trusted. What the second one gives is shown under it, as
# evidence of what happened here, not as a claim.

# %%
where = "do not part here" if parts is None else f"part at step {parts}, by {gap:.0e} at worst"
claim(
    "one seed, one thread, one machine: every loss is the same, to the last bit",
    holds=one == again,
    evidence=f"{len(one)} losses alike; one thread and two {where}",
)

# %% [markdown]
# A difference in the last bit is harmless by itself. But training multiplies small differences, so after thousands of
# steps two such runs have different weights, and another test accuracy. Where you compare bit by bit, keep the number
# of threads, the versions and the kind of processor, and write them down.

# %% [markdown]
# ### What a seed covers
#
# A *seed* sets the state of one generator of random numbers, and a program has several. This one draws from ten
# sources: first with nothing seeded, then after `torch.manual_seed`, then with Python's and NumPy's seeded too. A
# `DataLoader` brings *worker* processes, which have generators of their own.

# %%
PROGRAM = """
import json, random
import numpy as np, torch
from torch.utils.data import DataLoader

class Noise:
    # four items, each with a number from every generator of the process that makes it
    copied = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return [random.random(), np.random.rand(), torch.rand(1).item(), self.copied.random()]

def in_workers(n):
    return np.array(list(DataLoader(Noise(), num_workers=n, batch_size=None))).T.tolist()
"""

# %%
PROGRAM += """
def drawn():
    told = {"Python's random": random.random(), "np.random": np.random.rand()}
    told["torch.rand"] = torch.rand(1).item()
    told["shuffle of a DataLoader"] = list(DataLoader(range(20), shuffle=True, batch_size=None))
    names = "Python's", "NumPy's", "torch's", "copied"
    state, two = torch.get_rng_state(), in_workers(2)
    torch.set_rng_state(state)  # as before the two
    one = in_workers(1)
    told |= {f"{name} in workers": row for name, row in zip(names[:3], two)}
    told["np.random.default_rng()"] = np.random.default_rng().random()
    told["order of a set"] = list({f"{i}.png" for i in range(20)})
    told["hash of a text"] = hash("1.png")
    return {"draws": told, "one worker": one[:3], "two": two[:3], "copied": two[3]}

if __name__ == "__main__":
    told = {"nothing": drawn()}
    torch.manual_seed(0)
    told["torch"] = drawn()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    told["all three"] = drawn()
    print(json.dumps(told))
"""

# %% [markdown]
# Two fresh processes run it, side by side. In the table, a source is *same* where both of them got the same draws, and
# *differs* where they did not.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "draws.py"
    path.write_text(PROGRAM)
    command = [sys.executable, str(path)]
    pair = [subprocess.Popen(command, stdout=-1, stderr=subprocess.DEVNULL) for _ in range(2)]
    a, b = (json.loads(each.communicate()[0]) for each in pair)

# %%
SEEDED = list(a)
same = {s: {k: v == b[s]["draws"][k] for k, v in a[s]["draws"].items()} for s in SEEDED}
n_held = [sum(same[s].values()) for s in SEEDED]
rows = [[k, *("same" if same[s][k] else "differs" for s in SEEDED)] for k in same["torch"]]
table(["source of chance", *(f"seeded: {s}" for s in SEEDED)], rows)
reveal("held", n_held[1], how="counted")

# %% [markdown]
# `torch.manual_seed` also holds what starts from torch's generator: the shuffle, and the workers, each of which gets a
# seed from it. Three seeds hold seven. Three sources are held by none: a generator that was made without a seed; the
# order of a set of texts; and the hash of a text. Python salts hashes anew in each process, unless the environment
# variable `PYTHONHASHSEED` is set *before* it starts.

# %%
never = [k for k in same["torch"] if not any(same[s][k] for s in SEEDED)]
claim(
    "seeding Python, NumPy and torch leaves sets, hashes and unseeded generators as they please",
    holds=len(never) == 3 and n_held[1:] == [5, 7],
    evidence=f"never the same: {', '.join(never)}",
)

# %% [markdown]
# Two more things lie in those draws. The same seed with *one* worker gives most items other numbers than with two: the
# number of workers belongs into the record. And a generator that was made before the workers started is copied into
# each of them, state and all: items that two workers make get the same noise.

# %%
seen = a["all three"]
unlike = all(seen["one worker"][i] != seen["two"][i] for i in range(3))
claim(
    "another number of workers is another run; a copied generator repeats itself in each worker",
    holds=unlike and len(set(seen["copied"])) == 2,
    evidence=f"noise of four items from the copied generator: {seen['copied']}",
)

# %% [markdown]
# ### Deterministic mode, and its price
#
# Some operations add up in whatever order threads happen to arrive. `index_put_` with `accumulate=True` is one on a
# CPU: it adds each number to one of ten bins, and two threads race for them. The result is counted in different bit
# patterns, over twenty calls.

# %%
bins = torch.randint(10, (len(numbers),), generator=torch.Generator().manual_seed(1))


def add_up(where="cpu"):
    total = torch.zeros(10, device=where)
    if where == "cpu":
        return total.index_put_((bins,), numbers, accumulate=True)
    return total.index_add_(0, bins.to(where), numbers.to(where))


# %%
def deterministic(fn, *args):
    """fn in torch's deterministic mode."""
    torch.use_deterministic_algorithms(True)
    try:
        return fn(*args)
    finally:
        torch.use_deterministic_algorithms(False)


# %% [markdown]
# `use_deterministic_algorithms` is a switch for the whole process, so we put it back. Twenty calls each way, with two
# threads; `patterns` counts how many different results they give.

# %%
patterns = lambda call: len({call().cpu().numpy().tobytes() for _ in range(20)})
torch.set_num_threads(2)
as_is, in_mode = patterns(add_up), patterns(lambda: deterministic(add_up))

# %%
claim(
    "in deterministic mode, twenty sums over two threads have one result",
    holds=in_mode == 1,
    evidence=f"different results of twenty: {as_is} as it is, {in_mode} in deterministic mode",
)

# %% [markdown]
# If the first number is one with you, the threads did not meet in these twenty calls. That is luck, and no proof. On a
# GPU thousands of threads race, in more operations: there `index_add_` and `scatter_add_` are among them.

# %%
GPU = hardware.tier() != "cpu"
on_gpu = lambda: add_up("cuda")
if GPU:
    free, held = patterns(on_gpu), patterns(lambda: deterministic(on_gpu))

# %%
claim(
    "on a GPU, index_add_ gives several results, and one in deterministic mode",
    holds=free > 1 and held == 1 if GPU else None,
    tier="gpu",
    evidence=f"{free} and {held} results of twenty" if GPU else "there is no GPU here",
)

# %% [markdown]
# What does the mode cost? It takes another algorithm where there is one, raises an error where there is none, and
# fills fresh memory, so that nobody computes with what lay there. Three measurements: the race above; `torch.empty`,
# which asks for memory; and a step of training.

# %%
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
step = lambda: cross_entropy(net(x), y).backward()

# %%
WORK = {"index_put_": add_up, "empty": lambda: torch.empty(4_000_000), "step": step}
price = {}
for name, fn in WORK.items():
    both = {"as it is": fn, "deterministic": lambda fn=fn: deterministic(fn)}
    price[name] = bench(both, repeats=9 if FULL else 5, device="cpu")
torch.set_num_threads(1)

# %% [markdown]
# Both ways were timed in turns, so that a busy moment hits both. Each ratio is a median over rounds, with the range in
# which it lies; a range across one means that the two cannot be told apart.

# %%
ratios = {name: each.ratio("deterministic", "as it is") for name, each in price.items()}
table(["work", "deterministic takes this many times as long"], [*ratios.items()], varying=True)
record("19", "price of deterministic mode, times", {name: r.value for name, r in ratios.items()})

# %%
claim(
    "the price depends on the operation: asking for memory is over five times as slow",
    holds=ratios["empty"].value > 5,
    evidence="; ".join(f"{name}: {ratio}" for name, ratio in ratios.items()),
)

# %% [markdown]
# The first row may even lie below one: without a race the threads need not wait for each other. The last row is what a
# training step pays. "Deterministic is slow" is no law. Measure your own step, then decide.

# %% [markdown]
# ## Measure
#
# ### Is it better?
#
# Now the other half of the question. A recipe: a small network, 300 digits to learn from, the others to test on. Which
# 300, the first weights and the order of the batches all come from one seed. The change: *weight decay*, which draws
# weights a little towards zero in every step.


# %%
def right_answers(seed, **change):
    """How many of the other digits a network gets right that has learnt from 300."""
    dice = torch.Generator().manual_seed(seed)
    mine, others = torch.randperm(len(x), generator=dice).split([300, len(x) - 300])
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **change)
    for _ in range(20):
        for rows in mine[torch.randperm(300, generator=dice)].split(25):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return int((model(x[others]).argmax(1) == y[others]).sum())


# %% [markdown]
# Both recipes, over the same seeds. (The decay was chosen on seeds 0 to 11, because it helped there. These are fresh
# ones.)

# %%
SEEDS = range(100, 130 if FULL else 103)
CHANGE = {"weight_decay": 3e-3}
before = {seed: right_answers(seed) for seed in SEEDS}
after = {seed: right_answers(seed, **CHANGE) for seed in SEEDS}

# %%
N_TEST = len(x) - 300
points = lambda n_right: 100 * n_right / N_TEST
order = sorted(SEEDS, key=before.get)
in_order = lambda runs: (range(len(order)), [points(runs[seed]) for seed in order])
series = {"before": in_order(before), "after": in_order(after)}
look = {"xlabel": "seeds, sorted by the accuracy before", "ylabel": "test accuracy, %"}
plot.lines(series, **look, markers=True, title="Two recipes, the same seeds")
reveal("spread", points(max(before.values()) - min(before.values())))

# %% [markdown]
# The *same* recipe, and nothing but the seed moves its accuracy that far. First the measurement that papers are full
# of: run the old recipe once, run the new one five times, keep the best. Here the "new" one is the old one.

# %%
scores = [points(n) for n in before.values()]
fives = [max(scores[i : i + 5]) for i in range(0, len(scores), 5)]
nothing = statistics.mean(fives) - statistics.mean(scores)
gain = statistics.mean(points(after[s] - before[s]) for s in SEEDS)

# %%
claim(
    "the best of five seeds gains more, with no change at all, than the change gains",
    holds=nothing > gain > 0,
    evidence=f"the best of five: {nothing:+.2f} points; the change, over all seeds: {gain:+.2f}",
)

# %% [markdown]
# Repaired: all runs count, and the mean gain comes with its *standard error*, the distance by which such a mean
# typically misses. A gain beyond two standard errors is hard to explain by luck. There are two ways to compute that
# error. *Unpaired*: two heaps of runs. *Paired*: each seed gives one difference.

# %%
variances = [statistics.variance(map(points, each.values())) for each in (before, after)]
unpaired = math.sqrt(sum(variances) / len(SEEDS))
gains = [points(after[s] - before[s]) for s in SEEDS]
paired = statistics.stdev(gains) / math.sqrt(len(SEEDS))

# %%
errors = {"unpaired": unpaired, "paired": paired}
rows = [[name, f"{gain:+.2f}", f"{e:.2f}", f"{gain / e:.1f}"] for name, e in errors.items()]
table(["comparison", "gain, points", "standard error", "gain / error"], rows, varying=True)
reveal("paired", unpaired / paired)
record("19", "an improvement, points", {"gain": gain, **errors})

# %% [markdown]
# The gain is the same in both rows, for it is the same runs. What differs is how far such a gain could be luck, and
# with that the verdict.

# %%
claim(
    "compared seed by seed the gain is beyond two standard errors, compared as two heaps it is not",
    holds=gain > 2 * paired and gain < 2 * unpaired,
    evidence=f"gain {gain:.2f}; two errors: paired {2 * paired:.2f}, unpaired {2 * unpaired:.2f}",
    cause="another processor rounds otherwise, and these 30 seeds lie near the edge: take more",
)

# %% [markdown]
# The same runs, the same gain. A seed with easy digits is easy for both recipes, and a difference takes that out. It
# costs nothing but the discipline to use the same seeds for both. It gains nothing where the seed decides little, or
# where the change makes the two runs draw different numbers.

# %% [markdown]
# ### Hogwild: chance by design
#
# Some give up repeatability on purpose. In *Hogwild*, several processes train one set of weights in shared memory.
# None waits for the others; each reads weights that another may be writing just then. Here the weights are a file that
# each process maps into its memory: what one writes, all see.

# %%
net = lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
N_WEIGHTS = sum(p.numel() for p in net().parameters())
TOTAL = 1500 if FULL else 10  # steps of all processes together


def hogwild(path):
    """Seconds that it takes; the weights in the file are trained."""
    torch.set_num_threads(1)
    shared, model = torch.from_file(path, shared=True, size=N_WEIGHTS), net()
    nn.utils.vector_to_parameters(shared, model.parameters())  # views of the file
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dice = torch.Generator().manual_seed(dist.get_rank())
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(TOTAL // dist.get_world_size()):
        rows = torch.randint(1000, (16,), generator=dice)
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()  # in place, so in the file, without any lock
    dist.barrier()
    return time.perf_counter() - begin


# %% [markdown]
# Three runs alone and three with two processes, in turns. All begin with the same weights, and each process draws its
# batches by its own number. So nothing but the moment at which one writes is left to chance.


# %%
def once(world_size):
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        nn.utils.parameters_to_vector(net().parameters()).detach().numpy().tofile(path)
        seconds = max(run_ranks(hogwild, world_size, str(path), devices="cpu"))
        raw = path.read_bytes()
    model = net()
    nn.utils.vector_to_parameters(torch.tensor(np.frombuffer(raw, np.float32)), model.parameters())
    accuracy = float((model(x[1000:]).argmax(1) == y[1000:]).double().mean())
    return f"{zlib.crc32(raw):08x}", accuracy, seconds


# %%
done = {1: [], 2: []}
for n_processes in (1, 2) * (3 if FULL else 1):
    done[n_processes].append(once(n_processes))
rows = [[n, each[0], f"{each[1]:.3f}", f"{each[2]:.2f}"] for n in done for each in done[n]]
table(["processes", "checksum of the weights", "test accuracy", "seconds"], rows, varying=True)

# %% [markdown]
# The checksum is of all bits of all weights. Look down its column: which rows agree with one another, and which do
# not?

# %%
bits = {n: [each[0] for each in runs] for n, runs in done.items()}
lowest = {n: min(each[1] for each in runs) for n, runs in done.items()}
record("19", "Hogwild, lowest accuracy", {f"{n} processes": lowest[n] for n in lowest})

# %%
claim(
    "alone, three runs end in the same weights; two processes learn as well, and no two runs agree",
    holds=len(set(bits[1])) == 1 and len(set(bits[2])) == 3 and min(lowest.values()) > 0.8,
    evidence=f"alone {bits[1]}; two {bits[2]}; lowest accuracy {lowest}",
)

# %% [markdown]
# Is it faster? Look at the seconds: the total of steps is the same in all rows. On two cores, with steps this short,
# the processes fight for the same memory, and what you see depends on your machine. Nothing is claimed. What is
# certain is the price: nobody can make such a run again, and a bug in it may never come back while you look.

# %% [markdown]
# ### A record by which a run can be made again
#
# A number needs its record: the code with uncommitted changes, versions, data, seeds, settings, machine. `with
# run(...)` keeps one. To leave your own course alone, we practise in a small one: a folder of its own, under git, with
# one script.

# %%
TRAIN = """
import sys
import numpy as np
from labkit.repro import run

seed, rate = int(sys.argv[1]), 0.1
x = np.random.default_rng(0).normal(size=(200, 8))
y = x.sum(1)
with run("train", config={"rate": rate}, data={"x": x}, seeds=(seed,)) as it:
    dice = np.random.default_rng(seed)
    weights = dice.normal(size=8)
    for step in range(20):
        rows = dice.integers(200, size=16)
        error = x[rows] @ weights - y[rows]
        weights -= rate / 16 * error @ x[rows]
        it.log(step, loss=(error**2).mean())
"""

# %%
GIT = bool(shutil.which("git") and find_spec("typer"))  # labkit's command needs typer
if GIT:
    small = Scratch({"train.py": TRAIN})


# %% [markdown]
# Three runs. The first is the script as committed. For the second a rate was changed in the file and not committed. In
# the third somebody also forgot the seed. After that the file is overwritten: its text is lost.

# %%
VERSIONS = [TRAIN, TRAIN.replace("0.1", "0.2"), TRAIN.replace("default_rng(seed)", "default_rng()")]
ids = []
for text in VERSIONS if GIT else []:
    small.write("train.py", text)
    small.python("train.py", "3")
    ids += {each["id"] for each in json.loads(small.labkit("runs", "--json"))} - {*ids}

# %%
if GIT:
    small.write("train.py", "raise SystemExit('the text is lost')")

# %% [markdown]
# `labkit runs compare` says what differs between two runs, first what usually matters, and where their losses part.
# `labkit runs remake` puts the recorded code into a folder of its own, runs it there, and compares bit by bit.

# %%
if GIT:
    told = json.loads(small.labkit("runs", "compare", *ids[:2], "--json"))["differences"]
    rows = [[each["what"], each["first"], each["second"]] for each in told[:1]]
    table(["first difference", "first run", "second run"], rows)

# %%
if GIT:
    remade = [json.loads(small.labkit("runs", "remake", each, "--json")) for each in ids[1:]]
    met = [each["metrics"] for each in remade]
    alike = [f"{m['equal']} of {m['compared']}" for m in met]
    rows = [["uncommitted rate", alike[0]], ["no seed", alike[1]]]
    table(["made again", "losses alike"], rows)

# %% [markdown]
# The first of these two ran from a file that no longer exists, at a rate that was never committed. The second one is
# the same record-keeping around a careless script.

# %%
claim(
    "from its record a run comes back bit by bit, though its text is lost; unseeded it does not",
    holds=met[0]["equal"] == met[0]["compared"] == 20 and met[1]["equal"] == 0 if GIT else None,
    needs="git",
    evidence=f"made again: {[each['same'] for each in remade]}" if GIT else "git is not installed",
)

# %% [markdown]
# The record does not make a run repeatable. It makes visible whether it is: made again, the run without a seed is
# found out, and `labkit runs remake` names the step. In your own course, runs are kept in `runs/`, and `labkit runs`
# lists them.

# %% [markdown]
# ## Change one thing
#
# How many seeds does it take to see a gain of this size? The 30 runs of each recipe are there, so draw fewer of them,
# many times, and count how often the gain lies beyond two standard errors. Change `CHANGE` above to
# `{"weight_decay": 1e-2}` and come back, or to `{"nesterov": True}`.


# %%
def share_found(n_seeds, is_paired, dice, n_draws=300):
    """In which share of draws of n_seeds the gain is beyond two standard errors."""
    found = 0
    for _ in range(n_draws):
        some = dice.sample(list(SEEDS), n_seeds)
        gains = [after[s] - before[s] for s in some]
        heaps = [gains] if is_paired else [[each[s] for s in some] for each in (before, after)]
        error = math.sqrt(sum(map(statistics.variance, heaps)) / n_seeds)
        found += statistics.mean(gains) > 2 * error
    return found / n_draws


# %% [markdown]
# For each number of seeds, in how many draws is the gain beyond two standard errors? Once with pairs, once with heaps;
# the runs behind both lines are the same.

# %%
COUNTS = (6, 9, 12, 16, 20, 24) if FULL else (2, 3)
dice = random.Random(0)
seen_in = lambda is_paired: (COUNTS, [share_found(n, is_paired, dice) for n in COUNTS])
power = {"paired": seen_in(True), "unpaired": seen_in(False)}
look = {"xlabel": "seeds for each recipe", "ylabel": "share of draws that see it"}
plot.lines(power, **look, markers=True, ticks="x", title="How often the gain is seen")

# %%
claim(
    "with any of these numbers of seeds, pairs see the gain more often than heaps",
    holds=all(power["paired"][1][i] > power["unpaired"][1][i] for i in range(len(COUNTS))),
    evidence=f"seeds {COUNTS}: paired {power['paired'][1]}, unpaired {power['unpaired'][1]}",
)

# %% [markdown]
# Pairs see it with fewer runs. (All draws are from the same runs: where a draw has nearly all of them, the lines say
# no more than these runs do.) Still, with few seeds a real gain of this size is often missed, and a missed gain is no
# proof of none. If you can afford three runs, you can see large gains only.

# %% [markdown]
# ## Exercises
#
# Three pieces: a run whose chance comes from its seed alone, an honest verdict on an improvement, and the heart of the
# check for cells out of order.

# %% [markdown]
# ### Exercise 19.1 · Five leaks (15 min, medium)
#
# `leaky` draws everything that a run needs, and looks seeded. Yet each of its five parts comes out differently in
# another process or on another machine. `names` are files as the file system lists them, in another order on each
# machine.


# %%
def leaky(names, seed):
    weights = torch.randn(4)
    torch.manual_seed(seed)
    held_out = random.sample(names, len(names) // 5)
    order = list(set(names) - set(held_out))  # a set is shuffled enough
    dice = np.random.default_rng()
    noise = {name: dice.normal() for name in names}
    flip = {name: random.Random(hash(name)).random() < 0.5 for name in names}
    return {"weights": weights, "held_out": held_out, "order": order, "noise": noise, "flip": flip}


# %% [markdown]
# Write `draws`, which returns the same five parts from the seed alone: four numbers; a fifth of the names, rounded
# down; the other names, shuffled; a number and a True or False for each name.
#
# The traps: to throw the chance out is no repair; another seed must change all five parts; and two generators with one
# seed give the same numbers twice, so noise and weights would be equal.


# %%
def draws(names, seed):
    """What a run draws by chance, by part, from its seed alone."""
    ### BEGIN SOLUTION
    known, dice = sorted(names), np.random.default_rng(seed)
    shuffled = [known[i] for i in dice.permutation(len(known))]
    return {
        "weights": dice.normal(size=4),
        "held_out": shuffled[: len(known) // 5],
        "order": shuffled[len(known) // 5 :],
        "noise": {name: dice.normal() for name in known},
        "flip": {name: bool(dice.random() < 0.5) for name in known},
    }
    ### END SOLUTION


# %%
check(draws)

# %% [markdown]
# A whole run from either: a line is fitted to numbers that belong to the names, with the noise and flips drawn, one
# name at a time. Twice with one seed, files listed in another order; the losses are compared bit by bit.


# %%
def fitted(draw, names):
    """The loss at each step of a run that takes its chance from draw(names, 7)."""
    told = draw(names, 7)
    weights, found = np.array([float(each) for each in told["weights"]]), []
    for name in told["order"]:
        side = -1 if told["flip"][name] else 1
        t = side * int(name[:3]) / 100 + 0.1 * float(told["noise"][name])
        powers = np.array([1, t, t * t, t**3])
        error = powers @ weights - np.sin(3 * t)
        weights = weights - 0.1 * error * powers
        found.append(float(error) ** 2)
    return found


# %%
names = [f"{i:03}.png" for i in range(100)]
leaks = fitted(leaky, names) != fitted(leaky, names[::-1])
mine = attempt(draws)
claim(
    "with its leaks closed a run comes back bit by bit",
    holds=leaks and fitted(mine, names) == fitted(mine, names[::-1]),
    evidence=f"loss at the last step: {fitted(mine, names)[-1]:.17g}, and once more the same",
)

# %% [markdown]
# ### Exercise 19.2 · Is it an improvement? (15 min, medium)
#
# `before` and `after` map seeds to right answers, whole numbers. Two standard errors are a rule of thumb; this is
# exact. If the change did nothing, each seed's difference could as well have had the other sign. So go through all 2ⁿ
# ways to choose signs: *p* is the share of ways whose sum is at least as far from zero as the sum that was seen.

# %% [markdown]
# Return `(gain, p, better)`: the mean difference, after minus before; p; and whether gain is above 0 with p at most
# 0.05. Where no seed is shared, that is `(0.0, 1.0, False)`.
#
# The traps: dictionaries stand in any order, and a run that failed is missing on one side; a loss may be as far from
# zero as a gain; what was seen is one of the ways.


# %%
def improvement(before, after):
    """(gain, p, better) over the seeds that both have."""
    ### BEGIN SOLUTION
    gains = [after[seed] - before[seed] for seed in before.keys() & after.keys()]
    sums = [0]  # of all ways to choose signs so far
    for gain in gains:
        sums = [total + sign * gain for total in sums for sign in (-1, 1)]
    p = sum(abs(total) >= abs(sum(gains)) for total in sums) / len(sums)
    gain = sum(gains) / max(1, len(gains))
    return gain, p, gain > 0 and p <= 0.05
    ### END SOLUTION


# %%
check(improvement)

# %% [markdown]
# On the runs from above: five seeds, then twelve. With five seeds there are 32 ways. The sum that was seen is as far
# from zero as its mirror image, so p is never below two of 32, whatever the gain. Five seeds cannot reach 0.05.

# %%
judge, verdicts = attempt(improvement), {}
for n in (5, 12) if FULL else (2, 3):
    some = list(SEEDS)[:n]
    verdicts[n] = judge({s: before[s] for s in some}, {s: after[s] for s in reversed(some)})
rows = [[n, f"{g:+.2f}", f"{p:.3f}", "yes" if b else "no"] for n, (g, p, b) in verdicts.items()]
table(["seeds", "gain, right answers", "p", "better"], rows, varying=True)
five, six = (judge(dict.fromkeys(range(n), 0), dict.fromkeys(range(n), 9)) for n in (5, 6))
claim(
    "five seeds, all in favour, are not enough for p at most 0.05; six are",
    holds=not five[2] and six[2],
    evidence=f"p of five: {five[1]}; of six: {six[1]}",
)

# %% [markdown]
# ### Exercise 19.3 · The cell-order fault (20 min, hard)
#
# `cells` maps a key to a pair of lists: the names that a cell reads, and those that it binds. `ran` lists keys in the
# order in which cells ran; `page` lists those of the saved notebook, from top to bottom. A key that is not on the page
# is a cell that was deleted or changed. Return the faults as a list of pairs `(run, name)`, runs counted from 1, in
# their order, and names sorted within a run.

# %% [markdown]
# A fault: a cell of the page reads a name that was last bound by another cell than the nearest one above it, on the
# page, that binds it. A name that nothing has bound, such as `print`, is no fault.
#
# The traps: a cell reads before it binds, so one that ran twice may find its own result; a deleted cell leaves its
# names behind, though its own run is no fault.


# %%
def stale_names(cells, ran, page):
    """(run, name) for each name that the page would not have given."""
    ### BEGIN SOLUTION
    faults, bound = [], {}
    for run, key in enumerate(ran, 1):
        reads, binds = cells[key]
        if key in page:
            above = page[: page.index(key)]
            for name in sorted(reads):
                given = [other for other in above if name in cells[other][1]]
                if name in bound and bound[name] != (given[-1] if given else None):
                    faults.append((run, name))
        bound.update(dict.fromkeys(binds, key))
    return faults
    ### END SOLUTION


# %%
check(stale_names)

# %% [markdown]
# On the notebook from the beginning, its cells read by hand. `old` is the rate that ran and is gone from the page.

# %%
cells = {
    "zeros": ([], ["weights"]),
    "old": ([], ["rate"]),
    "rate": ([], ["rate"]),
    "train": (["weights", "rate"], ["weights"]),
    "score": (["weights"], ["accuracy"]),
}
page = ["zeros", "rate", "train", "score"]
keys = {"rate = 0.1": "old"} | dict(zip(PAGE, page, strict=True))
mine = attempt(stale_names)(cells, [keys[source] for source in CLICKED], page)
claim(
    "by hand-read names, the faults are those that out_of_order reads from the texts",
    holds=mine == [(fault.count, fault.name) for fault in faults if fault.cell],
    evidence=f"{len(mine)} faults, the first: {mine[:3]}",
)

# %% [markdown]
# ## Limits
#
# **When is all this not worth it?** While you are still looking around. A sketch that takes ten seconds needs no
# record; restart and run all. Bit by bit matters where you hunt a bug, or change code that must not change a result. A
# conclusion should survive another seed, another machine and another version. If it needs these very bits, it is none.

# %% [markdown]
# - Bits come back on the same machine, with the same versions and threads. Another processor may take another order.
#   Torch promises nothing across releases.
# - GPU libraries choose algorithms by timing them (`torch.backends.cudnn.benchmark`), and cuBLAS asks for the variable
#   `CUBLAS_WORKSPACE_CONFIG` before it is deterministic. A GPU was not at hand when this was written.

# %% [markdown]
# - Two standard errors are lenient for few runs, and so is choosing the change, its strength and the number of seeds
#   after having looked. Seeds say nothing about another data set.
# - `out_of_order` sees names. Objects changed in place, files, and what another program did, it does not see.

# %% [markdown]
# - A record cannot bring back data that were overwritten, a package that was withdrawn, or the machine. It says what
#   they were: a hash, a version, a name.
# - Hogwild's authors had sparse problems, where two processes seldom touch the same weight. Ours is dense, and small.

# %% [markdown]
# ## Further questions
#
# 1. For the notebook you sit in: `labkit.repro.capture.cells()` lists what ran, and `labkit.repro.order.code_cells`
#    reads a saved file. Give both to `out_of_order`.
# 2. Start Python with `PYTHONHASHSEED=0`. Which rows of the table of ten change?
# 3. Give each process of Hogwild a tenth of the steps. When do two runs agree?
# 4. Sum the million numbers in float64, in four orders. In how many digits do they agree?
# 5. Use other seeds for `after` than for `before`. What becomes of the paired error?

# %% [markdown]
# ## Sources
#
# - Bouthillier et al., [Accounting for Variance in Machine Learning
#   Benchmarks](https://arxiv.org/abs/2103.03098), MLSys 2021: sources of chance, and pairing.
# - Recht et al., [Hogwild!](https://arxiv.org/abs/1106.5730), NIPS 2011.
# - Goldberg, [What Every Computer Scientist Should Know About Floating-Point
#   Arithmetic](https://docs.oracle.com/cd/E19957-01/806-3568/ncg_goldberg.html), 1991.
# - Fisher, *The Design of Experiments*, 1935, section 21: the test by signs.

# %% [markdown]
# - PyTorch, [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html), and
#   [use_deterministic_algorithms](https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html).
# - Pimentel et al., [A Large-Scale Study About Quality and Reproducibility of Jupyter
#   Notebooks](https://leomurta.github.io/papers/pimentel2019a.pdf), MSR 2019: of those run anew, few give the same
#   results, and many had cells out of order.
