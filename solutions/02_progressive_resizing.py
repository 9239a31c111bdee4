# title: Progressive resizing
# minutes: 60
# cpu: everything but one claim; the cells alone take a minute or two
# gpu: whether a wide network gains too, and how little a small one does
#
# %% [markdown]
# # 02 · Progressive resizing
#
# Sixty minutes with the exercises. The cells alone run in a minute or two, or several on a busy machine.
#
# ## Question
#
# A picture half as wide has a quarter of the pixels, and costs a convolutional network a quarter of the arithmetic.
# Can a network learn *most* of what it needs from small pictures, and only finish on large ones? **How much sooner is
# it as good, and what goes wrong on the way?**

# %%
import time
from itertools import islice
from queue import Queue
from threading import Thread

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from labkit import attempt, bench, check, claim, plot, predict, record, repro, reveal, table, train
from labkit.data import docs, glyphs
from labkit.hardware import device
from labkit.models import gpt, resnet

# %% [markdown]
# The task is that of lesson 01: which of 32 characters is it, in a typeface never seen in training? But now the
# pictures are 48 pixels wide. Here are the same eight at three sizes. Can you still read them at 24?
#
# The networks of this lesson are small, so they run on one core of the processor, even where there is a GPU. The last
# measurement is for the GPU, and says why.

# %%
torch.set_num_threads(1)
for size in (24, 32, 48):
    sample = glyphs.load("train", size=size)
    plot.images(sample, rows=1, columns=8, title=f"{size} pixels wide")

# %% [markdown]
# ## Predict
#
# Two runs of the same network: six times through the data (six *epochs*), from the same start. One sees 48 pixels
# throughout. The other sees 24 pixels for two epochs, 32 for two, and 48 for the last two. Both are judged at 48
# pixels. How many times sooner does the second reach an accuracy of 0.80?

# %%
question = "How many times sooner does the growing run reach the target?"
predict("sooner", question, default=1, low=0.5, high=8, unit="times")

# %% [markdown]
# ## Build
#
# Shrinking: each new pixel is the average of the area that it covers. (Picking single pixels would keep the noise and
# lose thin strokes.) It is done for all pictures at a time, and once.

# %%
images, unseen = glyphs.load("train", size=48), glyphs.load("validation", size=48)
x, y, faces, names = images.inputs, images.targets, unseen.inputs, unseen.targets


def shrink(pictures, size):
    return functional.interpolate(pictures, size=(size, size), mode="area")


# %% [markdown]
# A *plan* names the size of every epoch. The batches follow it. When the size changes, the pictures are shrunk afresh
# from the full ones; then every batch is cut from the small ones. The order of the pictures stays that of the seed,
# whatever the plan.


# %%
def batches(plan, seed, pictures=x, labels=y):
    n = len(labels)
    shuffled = train.shuffled(torch.arange(n), labels, batch_size=64, seed=seed)
    now = None
    for size in plan:
        if size != now:
            now, small = size, shrink(pictures, size)
        for chosen, targets in islice(shuffled, n // 64):
            yield small[chosen], targets


# %% [markdown]
# Why can *one* network take three sizes? Its convolutions slide over a picture of any size, and before the last layer
# it averages over all places. No weight depends on the size. What the weights have learned does, as you will see.
#
# The rest is lesson 01's: plain SGD with momentum, and one cycle of the learning rate over the whole run.

# %%
SETTINGS = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}


def fit(model, plan, peak, seed, data=(x, y), judged_on=(faces, names), every=None):
    stream = batches(plan, seed, *data)
    n_steps = len(plan) * (len(data[1]) // 64)
    n_steps = n_steps if repro.budget() == "full" else 4  # four steps do for a preview
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, **SETTINGS)
    schedule = train.one_cycle(peak, n_steps)
    judge = {"evaluate": lambda m: train.score(m, *judged_on), "evaluate_every": every}
    return train.fit(model, stream, n_steps=n_steps, optimizer=optimizer, lr=schedule, **judge)


# %% [markdown]
# ## Measure
#
# The race. Each arm has its own *peak*, the highest learning rate of the cycle: the best of five on the validation
# typefaces, found beforehand with the same number of trials each. Both begin with the same weights and see the
# pictures in the same order. The clock is the processor's, and stands still while a network is judged.

# %%
PLANS = {"48 px": (48,) * 6, "24, 32, 48 px": (24, 24, 32, 32, 48, 48)}
recorded = repro.recordings("02_progressive_resizing_sweeps")[0]
where = f"Recorded on {recorded.hardware}, {recorded.date}"
arms = recorded.results["arms"]


def race(arm, seed=11):
    torch.manual_seed(seed)
    model = resnet(width=16)
    return fit(model, PLANS[arm], arms[arm]["settings"]["peak"], seed, every=32)


told = {"config": PLANS, "data": {"glyphs": images}, "seeds": (11,)}
with repro.run("02-race", **told, casual=True) as it:
    runs = {arm: race(arm) for arm in PLANS}
    for arm, run in runs.items():
        for step, loss in enumerate(run.losses):
            it.log(step, **{arm: loss})

# %% [markdown]
# Both runs are recorded, every loss of every step, in the folder `runs/` of the course, as in lesson 01. `labkit runs
# remake 02-race` makes the race again in a clean copy of the code. Do you expect the same losses, to the last bit?

# %%
curves = {arm: (run.eval_cpu_s, run.eval_accuracies) for arm, run in runs.items()}
labels = {"xlabel": "seconds on one CPU core", "ylabel": "accuracy at 48 px, unseen typefaces"}
plot.lines(curves, **labels, levels={"target": 0.8}, title="The same number of steps")

# %% [markdown]
# The growing run looks hopeless at first: it is judged at 48 pixels and has seen only 24. Then it is past its rival.
# Two questions. Is it as good at the *end*, within what another start would change? A run that is sooner and worse
# has not won.

# %%
full, growing_run = runs.values()
full_end, growing_end = (run.eval_accuracies[-1] for run in runs.values())
alike = growing_end > full_end - 0.04  # another start moves either of the two by about 0.02
evidence = f"accuracy at the end: full size {full_end:.3f}, growing {growing_end:.3f}"
claim("the growing run ends as accurate as full size throughout", holds=alike, evidence=evidence)

# %% [markdown]
# And how much sooner is it at the target? Both runs were judged every 32 steps, so the answer is a little coarse.
# Below your own figures stand those that other machines recorded, where there are any.


# %%
def until(run, accuracy):
    place = run.first(accuracy)
    return 0.0 if place is None else run.eval_cpu_s[place]


full_s, growing_s = until(full, 0.8), until(growing_run, 0.8)
sooner = full_s / growing_s if growing_s else None
reveal("sooner", sooner)
claim(
    "it reaches the target at least 1.4 times sooner",
    holds=bool(sooner) and sooner >= 1.4,
    evidence=f"seconds to 0.80: full size {full_s:.1f}, growing {growing_s:.1f} (0.0: never)",
)

# %%
seconds = {"full size (s)": full_s, "growing (s)": growing_s, "ratio": sooner or 0.0}
ends = {"accuracy, full size": full_end, "accuracy, growing": growing_end}
record("02", "to an accuracy of 0.80, on one CPU core", {**seconds, **ends})

# %% [markdown]
# One race is one race. Below, three fresh starts, with two *controls* that keep us honest. One stays at 48 pixels and
# is simply cut short, so that it takes the seconds of the growing run. The other stays at 32 pixels and is judged at
# 32. All were tuned alike. The test typefaces, easier than the validation ones, were looked at once, at the end.


# %%
def starts_table(arms, end, what):
    rows = []
    for arm, held in arms.items():
        fastest, _, slowest = sorted(run["train_cpu_s"][-1] for run in held["runs"])
        seconds = f"{fastest:.1f} to {slowest:.1f}"
        rows.append([arm, held["settings"]["peak"], *map(end, held["runs"]), seconds])
    headings = ["arm", "tuned peak", f"{what}, start 1", "start 2", "start 3", "seconds"]
    table(headings, rows, caption=where)


starts_table(arms, lambda run: f"{run['test_accuracy']:.3f}", "test accuracy")

# %%
curves = {}
for arm, held in arms.items():
    curves[arm] = [(run["train_cpu_s"], run["accuracy"]) for run in held["runs"]]
labels = {"xlabel": "seconds on one CPU core", "ylabel": "accuracy, validation typefaces"}
plot.runs(curves, **labels, title=where)

# %% [markdown]
# On the test typefaces, growing and full size overlap: they end alike, and growing takes about two thirds of the
# seconds. That is the gain. Cut short to as little, full size ends several points lower. The time to 0.80 flatters
# the growing run: it depends on the length that was planned, and full size cut short is there sooner than full size
# at length.

# %% [markdown]
# Staying at 32 pixels is there first of all. On the validation typefaces it even ends level with 48 pixels; on the
# test typefaces it ends two or three points below. So 0.80 is too low to show what the last phase is for. Look at
# where runs *end*, and not only at where they first cross a line.

# %% [markdown]
# ### Done wrong: small only
#
# If most of the learning happens on small pictures, why not all of it? Here is a network trained at 24 pixels only,
# for four epochs. It knows these typefaces at 24 pixels. Now hand it the same pictures with *more* detail.


# %%
def accuracy_at(size, model):
    return train.score(model, shrink(faces, size), names).accuracy


torch.manual_seed(1)
small_only = resnet(width=16)
fit(small_only, (24,) * 4, 0.2, seed=1)
accuracies = {size: accuracy_at(size, small_only) for size in (16, 20, 24, 32, 40, 48)}

# %%
curves = {"trained at 24 px": (list(accuracies), list(accuracies.values()))}
labels = {"xlabel": "size that it is judged at (pixels)", "ylabel": "accuracy"}
plot.lines(curves, **labels, markers=True, levels={"guessing": 1 / 32})
claim(
    "trained at 24 pixels only, it loses most of its accuracy at 48",
    holds=accuracies[48] < accuracies[24] / 2,
    evidence=f"accuracy at 24 px {accuracies[24]:.2f}, at 48 px {accuracies[48]:.2f}",
)

# %% [markdown]
# A stroke that was three pixels wide is now six. The filters, three pixels wide themselves, have never met it. To us
# a letter is the same letter from near and from far. To this network it is not.

# %% [markdown]
# ### Done wrong: judged right after the switch
#
# *Batch-norm* brings each channel to mean 0 and variance 1. In training it takes both from the batch. When judged, it
# uses running averages of past batches, and after a switch those still describe small pictures. Part of the drop is
# therefore no lack of skill. The repair costs no training: pass some batches through a network in training mode, as a
# new one is, and let batch-norm count afresh.


# %%
def with_fresh_statistics(model, pictures, n_batches=20):
    renewed = resnet(width=16)
    renewed.load_state_dict(model.state_dict())
    for layer in renewed.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # a plain average over the batches to come
    with torch.no_grad():
        for batch in islice(pictures.split(64), n_batches):
            renewed(batch)
    return renewed


# %% [markdown]
# To watch it, a network is trained at 32 pixels, then for thirty steps at 48, at a low and constant rate. On the way
# it is judged at 48 pixels, twice each time: with its own running averages, and with fresh ones.

# %%
torch.manual_seed(2)
model = resnet(width=16)
fit(model, (32,) * 3, 0.2, seed=2)
LOOKS, own, fresh, at_32 = (0, 3, 6, 10, 20, 30), {}, {}, accuracy_at(32, model)


# %%
def look(step, model):
    if step in LOOKS:
        own[step] = accuracy_at(48, model)
        fresh[step] = accuracy_at(48, with_fresh_statistics(model, x))


sgd = torch.optim.SGD(model.parameters(), lr=0.02, **SETTINGS)
steady = {"n_steps": 31, "optimizer": sgd, "lr": train.constant(0.02, 31)}
mended = train.fit(model, batches((48,), seed=3), **steady, on_step=look)

# %% [markdown]
# The dotted line is what the network could do at 32 pixels, before the switch. Between the two curves lies what is
# only a matter of counting. That gap shrinks: with each batch, the running averages forget a tenth of what they held.
# It never quite closes, for they lag behind weights that still change.

# %%
lines = {"running averages": own, "fresh statistics": fresh}
curves = {name: (LOOKS, list(seen.values())) for name, seen in lines.items()}
labels = {"xlabel": "steps since the switch", "ylabel": "accuracy at 48 px"}
plot.lines(curves, **labels, markers=True, levels={"at 32 px, before": at_32})

# %%
renewed = accuracy_at(48, with_fresh_statistics(small_only, x))
claim(
    "right after the switch, fresh statistics alone win back some of the accuracy",
    holds=fresh[0] > own[0] + 0.04,
    evidence=f"running averages {own[0]:.2f}, fresh statistics {fresh[0]:.2f}\n"
    f"trained at 24 px only: {accuracies[48]:.2f}, fresh statistics {renewed:.2f}",
)
claim(
    "twenty steps of training win back more",
    holds=own[20] > fresh[0] + 0.02,
    evidence=f"fresh statistics {fresh[0]:.2f}, after 20 steps {own[20]:.2f}",
)

# %% [markdown]
# Two causes, then. Old statistics cost nothing to renew. Filters of the wrong width need training: twenty steps mend
# much of it, and after thirty the dotted line is not yet reached. (For the network trained at 24 pixels only, further
# from 48, fresh statistics mend little.) So do not judge a plan at a switch, and do not let a switch be the end of
# the run.

# %% [markdown]
# ### Done wrong: the loader has paid already
#
# Training is half of a real run. Something must also read each picture, decode it and vary it, for every epoch anew.
# Here pictures of 128 pixels are turned by a random angle before they are used. `turned` is that work; the rest of
# this section is about *where* the shrinking stands.

# %%
large = glyphs.load("train", size=128).inputs[:640]


def turned(pictures):
    angle = torch.rand(len(pictures)) - 0.5
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(len(pictures))
    turn = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(turn, pictures.shape, align_corners=False)
    return functional.grid_sample(pictures, grid, mode="bicubic", align_corners=False)


# %% [markdown]
# Three loaders. The second has a small picture in mind but turns the large one first: the work is done, then most of
# it thrown away. The third shrinks everything once, before the epoch, and turns small pictures. Beside them, a
# training step of a very narrow network.

# %%
once = shrink(large, 24)
LOADERS = {
    "48 px": lambda batch: shrink(turned(large[batch]), 48),
    "24 px, shrunk last": lambda batch: shrink(turned(large[batch]), 24),
    "24 px, shrunk first": lambda batch: turned(once[batch]),
}


# %%
def stepper(width):
    model = resnet(width=width)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    return lambda pictures: train.train_step(model, pictures, y[: len(pictures)], sgd)


# %% [markdown]
# Loading and training are timed apart, on one core, in turns: 64 pictures each. The rows to compare are the two
# loaders for 24 pixels, and each loader with its step.

# %%
step_on, first, work = stepper(width=4), torch.arange(64), {}
for name, load in LOADERS.items():
    pictures = load(first)
    work[f"load {name}"] = lambda load=load: load(first)
    work[f"step {name}"] = lambda pictures=pictures: step_on(pictures)
found = bench(work, repeats=9, device="cpu", clock=time.process_time_ns)
found.show()

# %% [markdown]
# Loader and network work at the same time, on different cores, or on a processor and a GPU. Then a batch takes as
# long as the *slower* of the two. Beside a fast GPU that is often the loader; here a very narrow network makes it so.
# What does each loader allow?

# %%
cost_s = found.median_s
pace_s = {name: max(cost_s[f"load {name}"], cost_s[f"step {name}"]) for name in LOADERS}
base_s, last_s, first_s = pace_s.values()
claim(
    "shrinking last gains nothing where the loader is the slower of the two",
    holds=base_s < 1.2 * last_s,
    evidence=f"a batch: at 48 px {base_s * 1e3:.1f} ms, shrunk last {last_s * 1e3:.1f} ms",
)
claim(
    "shrinking first makes it more than twice as fast",
    holds=base_s > 2 * first_s,
    evidence=f"a batch: at 48 px {base_s * 1e3:.1f} ms, shrunk first {first_s * 1e3:.1f} ms",
)

# %% [markdown]
# And really run: a thread loads, a queue of four batches lies between, the network trains. On two idle cores the
# seconds come near the slower of the two; on a busy or single core they lie at the sum, or above.


# %%
def loaded(load, n_batches=30):
    filled, order = Queue(maxsize=4), torch.randint(len(large), (n_batches, 64))
    Thread(target=lambda: [filled.put(load(chosen)) for chosen in order], daemon=True).start()
    for _ in order:
        yield filled.get()


# %%
ran = {}
for name, load in LOADERS.items():
    start_s = time.perf_counter()
    for pictures in loaded(load):
        step_on(pictures)
    ran[f"{name} (ms a batch)"] = 1e3 * (time.perf_counter() - start_s) / 30
record("02", "a loader in a thread beside the network, on the CPU", ran)

# %% [markdown]
# ## Change one thing
#
# How long must the last phase be? A smaller task, two seconds a run: 2,048 pictures of 32 pixels, eight epochs. All
# but the last few are at 16 or 24 pixels. Change `LASTS`, or write plans of your own into `PLAN`.

# %%
LASTS = (0, 1, 2, 4)
little = (shrink(x, 32)[:2048], y[:2048])
judges = (shrink(faces, 32), names)
PLAN = {n: [16] * (4 - n // 2) + [24] * (4 - n + n // 2) + [32] * n for n in LASTS}


# %%
def small_run(plan):
    torch.manual_seed(12)
    history = fit(resnet(width=12), plan, 0.2, seed=12, data=little, judged_on=judges)
    return history.eval_accuracies[-1]


curves = {"8 epochs": (LASTS, [small_run(PLAN[n]) for n in LASTS])}
labels = {"xlabel": "epochs at full size, at the end", "ylabel": "accuracy at full size"}
plot.lines(curves, **labels, markers=True)

# %% [markdown]
# The same question, on the task of the race, with three starts. Each point is a plan of six epochs; the last is full
# size throughout.

# %%
rows = []
for row in recorded.results["last_phases"]:
    ends = [f"{accuracy:.4f}" for accuracy in row["test_accuracy"]]
    plan, seconds = ", ".join(map(str, row["sizes"])), sorted(row["train_cpu_s"])[1]
    rows.append([plan, *ends, f"{seconds:.1f}"])
table(["sizes", "test accuracy, start 1", "start 2", "start 3", "seconds"], rows, caption=where)

# %% [markdown]
# None of these was tuned, all ran at a peak of 0.2. So compare the growing plans with each other, and not with full
# size throughout, which did better in the race. Without an epoch at full size a plan ends about nine points lower.
# One epoch wins most of that back (in the small task above, about half), two nearly all.

# %% [markdown]
# ## Exercises
#
# Three tools, a few lines each. Where you have not built one yet, the cells after it use the course's own.
#
# ### Exercise 2.1 · The plan (10 min, easy)
#
# Write the plan for a run: a list with the size of every epoch. The size grows from `small` in a straight line that
# would arrive at `full` when the last phase begins; then `n_last` epochs at `full`. On the way, round down to a
# multiple of `multiple`; the last phase is exactly `full`. The traps: a plan in which nothing grows, and a `small`
# that is no multiple.


# %%
def growing_sizes(n_epochs, small, full, n_last, multiple):
    """The sizes as a list of whole numbers; growing epoch 0 has the size `small`, rounded down."""
    ### BEGIN SOLUTION
    n_growing = n_epochs - n_last
    growing = [small + (full - small) * epoch // n_growing for epoch in range(n_growing)]
    return [size // multiple * multiple for size in growing] + [full] * n_last
    ### END SOLUTION


# %%
check(growing_sizes)

# %% [markdown]
# Why multiples of eight? This network halves the side three times. 24 pixels become 12, 6, 3. 25 pixels become 13, 7,
# 4: one pixel more, and some forty per cent more arithmetic.

# %%
planned, curves = attempt(growing_sizes), {}
for n in (2, 4, 8):
    sizes = planned(12, small=24, full=48, n_last=n, multiple=8)
    curves[f"{n} at full size"] = (range(1, 13), sizes)
plot.lines(curves, xlabel="epoch", ylabel="pixels a side", title="Plans of 12 epochs", markers=True)

# %% [markdown]
# ### Exercise 2.2 · Count the arithmetic (15 min, medium)
#
# A convolution makes `side` x `side` places of `c_out` numbers. Each number adds up `c_in` · kernel² products: two
# FLOPs (*floating-point operations*) each. `side` is `size / shrink`, rounded up. The head is one more layer, at one
# place.
#
# Backward, each layer pays that twice more: for the gradient of its weights, and of its inputs. The trap: whose
# gradient does nobody need?

# %%
WIDTH = 16
CONVS = [(1, WIDTH, 3, 2), (WIDTH, WIDTH, 3, 2), (WIDTH, WIDTH, 3, 2)]
for c_in, shrinks in ((WIDTH, 4), (2 * WIDTH, 8)):
    CONVS += [(c_in, 2 * c_in, 3, shrinks), (2 * c_in, 2 * c_in, 3, shrinks)]
    CONVS += [(c_in, 2 * c_in, 1, shrinks)]  # the path around the block
HEAD = (4 * WIDTH, 32)
table(["channels in", "out", "kernel", "shrink"], CONVS, caption="The network of the race")

# %% [markdown]
# Read its first row so: it takes the picture, makes 16 channels with a kernel of 3 x 3, and its output is half as
# wide as the picture. `shrink` always counts from the picture, and not from the row before: the first three rows all
# work at half its width.


# %%
def train_flops(convs, head, size):
    """FLOPs to train on one picture; convs as in the table above; head: (inputs, outputs)."""
    ### BEGIN SOLUTION
    forward = []
    for c_in, c_out, kernel, shrink in convs:
        side = -(-size // shrink)
        forward.append(2 * c_in * c_out * kernel**2 * side**2)
    return 3 * (sum(forward) + 2 * head[0] * head[1]) - forward[0]
    ### END SOLUTION


# %%
check(train_flops)

# %% [markdown]
# torch can count as well: `FlopCounterMode` listens to every operation and adds up the matrix products and
# convolutions, backward ones included. By hand and by torch, for one picture:


# %%
step = stepper(WIDTH)


def counted(size):
    with FlopCounterMode(display=False) as counter:
        step(shrink(x[:4], size))
    return counter.get_total_flops() // 4


# %%
SIZES, count = (8, 16, 24, 32, 40, 48), attempt(train_flops)
by_hand = {size: count(CONVS, HEAD, size) for size in SIZES}
by_torch = {size: counted(size) for size in SIZES}
rows = [[size, f"{by_hand[size]:,}", f"{by_torch[size]:,}"] for size in SIZES]
table(["pixels", "FLOPs by hand", "by torch"], rows)

# %% [markdown]
# The same numbers, to the last digit. From 48 to 8 pixels the arithmetic falls to a thirty-sixth. (Eight are too few
# to read a letter. They are here to show what remains of a step.) And the seconds?

# %%
question = "How many times as long does a step at 48 pixels take as one at 8?"
predict("promise", question, default=36, low=1, high=60, unit="times")

# %% [markdown]
# Steps on 64 pictures of each size, in turns, by the processor's clock. Beside them, a step on a single picture of 16
# pixels, with hardly any arithmetic at all.

# %%
work = {}
for size in SIZES:
    batch = shrink(x[:64], size)
    work[f"{size} px"] = lambda batch=batch: step(batch)
one = shrink(x[:1], 16)
work["one picture, 16 px"] = lambda: step(one)
timed = bench(work, repeats=11, device="cpu", clock=time.process_time_ns)
timed.show()

# %%
step_s = {size: timed.median_s[f"{size} px"] for size in SIZES}
shares = {"FLOPs": by_torch, "seconds": step_s}
curves = {name: (SIZES, [row[s] / row[48] for s in SIZES]) for name, row in shares.items()}
labels = {"xlabel": "pixels a side", "ylabel": "share of a step at 48 pixels"}
plot.lines(curves, **labels, log_y=True, markers=True, title="Promised and paid")

# %% [markdown]
# The two part at the small end. From 48 down to 32 pixels the seconds keep almost step with the arithmetic. Below
# that they fall behind it more and more.

# %%
promised, paid = by_torch[48] / by_torch[8], step_s[48] / step_s[8]
reveal("promise", paid)
less, evidence = paid < promised / 2, f"FLOPs fall {promised:.1f} times, seconds {paid:.1f} times"
claim("from 48 to 8 pixels, seconds fall less than half as far", holds=less, evidence=evidence)

# %% [markdown]
# Why? Because a step has a part that does not care about the size: every operation has to be started from Python, and
# every weight is changed once. The last row of the timings shows it nearly bare: one picture, less than a hundredth
# of the arithmetic. That *fixed* part, as a share of a step at each size:

# %%
fixed_s = timed.median_s["one picture, 16 px"]
shares = {f"{size} px (%)": round(100 * fixed_s / step_s[size]) for size in SIZES}
record("02", "the fixed part of a step, on one CPU core", shares)
claim(
    "at 8 pixels the fixed part is more than a fifth of a step",
    holds=fixed_s > step_s[8] / 5,
    evidence=f"one picture {fixed_s * 1e3:.2f} ms, 64 pictures of 8 px {step_s[8] * 1e3:.2f} ms",
)

# %% [markdown]
# It is not the whole gap. Take the fixed part off, and look at the *rate*, FLOPs for each second: it still falls
# where maps get small. One likely reason: a processor reckons with 8 or 16 numbers at once, and rows of 2 or 4 do not
# fill its registers.

# %%
rates = {
    f"{s} px (GFLOP/s)": round(64 * by_torch[s] / (step_s[s] - fixed_s) / 1e9) for s in SIZES
}
record("02", "rate of a step without its fixed part, on one CPU core", rates)

# %% [markdown]
# So shrinking below some size buys little more, and the accuracy pays for it. What did the plan of the race promise,
# and what did it give?

# %%
plan = PLANS["24, 32, 48 px"]
promise = 6 * by_torch[48] / sum(by_torch[size] for size in plan)
steps_only = 6 * step_s[48] / sum(step_s[size] for size in plan)
raced = full.eval_cpu_s[-1] / growing_run.eval_cpu_s[-1]
evidence = f"FLOPs {promise:.2f}, steps timed alone {steps_only:.2f}, the race {raced:.2f}"
claim("the whole growing run is at least 1.2 times as fast", holds=raced > 1.2, evidence=evidence)

# %% [markdown]
# Shrinking itself is done once a phase, for all pictures. That is the cheap side of the loader, and this is what it
# costs:

# %%
start_s = time.process_time()
shrink(x, 24)
shrink_s = time.process_time() - start_s
evidence = f"shrinking {shrink_s * 1e3:.0f} ms, a step at 48 px {step_s[48] * 1e3:.0f} ms"
cheap = shrink_s < 5 * step_s[48]
claim("shrinking all pictures costs less than five steps", holds=cheap, evidence=evidence)

# %% [markdown]
# ### Exercise 2.3 · Beat full size (15 min, medium)
#
# Write the batches of a run. `loader.epoch(size)` gives the batches of one epoch at a size up to `loader.full`, and
# `loader` counts the pixels that it delivers. The check trains a small network on your batches, eight epochs up to 32
# pixels, and at full size throughout, here and now. Yours must be 1.2 times as fast, and as accurate at full size
# (0.08 less is forgiven). The trap is the loader's.


# %%
def growing(loader, n_epochs):
    """Yield the batches of n_epochs epochs."""
    ### BEGIN SOLUTION
    n_last = round(3 * n_epochs / 8)
    n_growing = n_epochs - n_last
    for epoch in range(n_epochs):
        grown = loader.full // 2 + loader.full // 2 * epoch // max(1, n_growing)
        size = grown // 8 * 8 if epoch < n_growing else loader.full
        yield from loader.epoch(size)
    ### END SOLUTION


# %%
check(growing)

# %% [markdown]
# ## Limits
#
# **The same idea for text.** A small transformer predicts the next character from those before it. Short windows are
# the small pictures of text. Sixteen windows a step, of 16, 32, 64, then 128 characters, against 128 throughout. The
# growing run makes *more* steps and still sees fewer characters. Both are judged on windows of 128.

# %%
text, held_out = docs.load("train").inputs, docs.load("validation").inputs
SHARE = 2 / 3 if repro.budget() == "full" else 0.02
GROWN = tuple((context, 100) for context in (16, 32, 64, 128))
TEXT_PLANS = {"128 characters": ((128, 300),), "growing": GROWN}


def windows(phases, seed):
    for context, n_steps in phases:
        stream = train.windows(text, batch_size=16, context=context, seed=seed + context)
        yield from islice(stream, round(SHARE * n_steps))


# %%
def text_run(name, seed=1, peak=0.02):
    phases = TEXT_PLANS[name]
    n_steps = sum(round(SHARE * n) for _, n in phases)
    torch.manual_seed(seed)
    model = gpt(vocab=len(docs.CLASSES), layers=2, context=128)
    adam, schedule = torch.optim.AdamW(model.parameters()), train.one_cycle(peak, n_steps)
    fixed = next(train.windows(held_out, batch_size=64, context=128, seed=99))
    judge = {"evaluate": lambda model: train.score(model, *fixed, batch_size=64)}
    stream = windows(phases, seed)
    return train.fit(model, stream, n_steps=n_steps, optimizer=adam, lr=schedule, **judge)


read = {name: text_run(name) for name in TEXT_PLANS}

# %% [markdown]
# These two runs are two thirds as long as the recorded ones below. The loss is in nats a character, on text from
# files that no run has seen. Guessing among the 96 characters would cost ln 96 = 4.56.

# %%
ends = {name: (run.eval_losses[-1], run.eval_cpu_s[-1]) for name, run in read.items()}
(long_loss, long_s), (grown_loss, grown_s) = ends.values()
evidence = "\n".join(f"{name}: {loss:.3f} nats in {s:.1f} s" for name, (loss, s) in ends.items())
holds = grown_loss < long_loss + 0.03 and long_s > 1.2 * grown_s
claim("growing windows end with as low a loss in fewer seconds", holds=holds, evidence=evidence)

# %% [markdown]
# At full length, three starts, tuned alike, beside 128 characters cut short to the seconds of the growing run. (A
# *token* is a character here.) Growing ends *lower*. The likely reason: it changes the weights more often in fewer
# seconds, and runs as short as these are short of steps. Nor do models so small make much of a long window. One that
# must look far back needs its long windows for longer.

# %%
starts_table(recorded.results["text"], lambda run: f"{run['loss'][-1]:.3f}", "loss")

# %% [markdown]
# **On a GPU**, the network of the race gains next to nothing: each step waits for the processor to send the next
# operation, whatever the size. A network has to be wide, and the batch large, before pixels are what it waits for.
# The cell below times both there.


# %%
def gpu_ratio(width, batch_size):
    model = resnet(width=width).to(device())
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    large, targets = x[:batch_size].to(device()), y[:batch_size].to(device())
    work = {}
    for size in (48, 24):
        small = shrink(large, size)
        work[size] = lambda small=small: train.train_step(model, small, targets, sgd)
    return bench({"48": work[48], "24": work[24]}, repeats=15).ratio("48", "24")


# %%
small, wide = (gpu_ratio(16, 64), gpu_ratio(96, 512)) if device() == "cuda" else (None, None)
if wide:
    record("02", "48 px against 24 px on a GPU", {"small": small.value, "wide": wide.value})
claim(
    "on a GPU, a wide network with large batches is at least twice as fast at 24 pixels",
    holds=wide and wide.at_least(2.0),
    evidence=f"wide: {wide}; the network of the race: {small}" if wide else "no GPU here",
    tier="gpu",
    needs="a GPU that is left alone" if wide else None,
)

# %% [markdown]
# **When do you grow?** When the arithmetic is what you wait for, the network takes any size, and small pictures still
# show what matters. Measure the loader first. Then tune both arms alike, and compare where both have *ended*. If
# pictures at two thirds of the size are as good at the end, you do not need a plan: you need smaller pictures.

# %% [markdown]
# - Tiny detail dies first. A task that hangs on it gains nothing from small pictures.
# - One network, one task, clean shapes on plain ground. Published gains are of the same kind: see the sources.
# - Other sizes mean other memory: on a GPU you may raise the batch while pictures are small. That is another plan, to
#   be tuned anew.

# %% [markdown]
# ## Further questions
#
# 1. Shrink by picking every second pixel instead of averaging. What becomes of the growing run?
# 2. Does the plan still win if it has to hand the network its sizes in reverse, large first?
# 3. At the switch, would a lower learning rate help, or a short warm-up?
# 4. Grow the batch while pictures are small, so that each step has equally many pixels. Is that better?
# 5. Keep the characters of a step equal, more windows when they are short. How does the text run end then?

# %% [markdown]
# ## Sources
#
# - Howard and others, [Training ImageNet in 18
#   minutes](https://www.fast.ai/posts/2018-08-10-fastai-diu-imagenet.html), 2018: growing sizes in a record run.
# - Touvron and others, [Fixing the train-test resolution discrepancy](https://arxiv.org/abs/1906.06423), 2019: what a
#   change of size does to a network.
# - Tan and Le, [EfficientNetV2](https://arxiv.org/abs/2104.00298), 2021: growing sizes with growing regularisation.
# - Li and others, [The Stability-Efficiency Dilemma](https://arxiv.org/abs/2108.06084), 2021: growing the length of
#   text.

# %% [markdown]
# - MosaicML, [Progressive Image
#   Resizing](https://docs.mosaicml.com/projects/composer/en/stable/method_cards/progressive_resizing.html): the plan
#   of exercise 2.1, in a library.
# - Leclerc and others, [FFCV](https://arxiv.org/abs/2306.12517), 2023: loaders that decode at the size that is asked
#   for.
# - Ioffe and Szegedy, [Batch Normalization](https://arxiv.org/abs/1502.03167), 2015: statistics of the batch in
#   training, running averages when judged.
