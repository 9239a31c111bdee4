# title: Learning-rate warm-up
# minutes: 60
# cpu: everything; the cells alone take about a minute
# gpu: the same runs, sooner; nothing new to see
#
# %% [markdown]
# # 01 · Learning-rate warm-up
#
# Sixty minutes with the exercises. The cells alone run in about a minute on two CPU cores.
#
# ## Question
#
# The *learning rate* is the length of a training step. Nearly every recipe starts it near zero and raises it during the
# first few hundred steps. That is *warm-up*. **What does it buy, and when does it buy nothing?**

# %%
import math

import torch

from labkit import attempt, check, claim, plot, predict, repro, reveal, train
from labkit.data import docs, glyphs
from labkit.hardware import device
from labkit.models import convnet, gpt, resnet
from labkit.show import table

# %% [markdown]
# The task: name a printed character. There are 32 of them, drawn from typefaces, then bent, blurred and scribbled over.
# The network trains on nine typefaces and is judged on others that it has never seen. The pictures are 24 pixels wide,
# so that a run takes a second or two.

# %%
images, unseen = glyphs.load("train", size=24), glyphs.load("validation", size=24)
x, y = images.inputs.to(device()), images.targets.to(device())
plot.images(images, rows=2, columns=10)

# %% [markdown]
# ## Predict
#
# A small convolutional network without normalisation layers, its first weights 1.4 times larger than the textbook's.
# Plain gradient descent at a high rate, 0.7, for 240 steps, from three random starts.
#
# A run *dies* when its loss ends where guessing would put it (ln 32 = 3.47 nats), or is no number any more. How many of
# the three live? Move the slider before you go on.

# %%
predict("survivors", "At a constant rate of 0.7, how many of three runs live?", default=3, low=0, high=3)

# %% [markdown]
# ## Build
#
# A *schedule* is a function from the number of a step to a rate. `train.fit` asks it before every step. A constant rate
# is the shortest schedule there is. Everything else in this lesson is another such function.

# %%
PEAK, N_STEPS, N_WARMUP = 0.7, 240, 30


def constant(_step):
    return PEAK


# %% [markdown]
# One run: a fresh network from a seed, the data in an order from the same seed, plain SGD. What comes back is the loss
# at every step, in *nats*: how surprised the network was by the right answer. The loop itself stands in
# `labkit/train.py`, some thirty lines without a surprise.


# %%
def losses(seed, schedule, gain=1.4):
    torch.manual_seed(seed)
    model = convnet(gain).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK)  # fit sets the rate before each step
    batches = train.shuffled(x, y, batch_size=128, seed=seed)
    history = train.fit(model, batches, n_steps=N_STEPS, optimizer=optimizer, lr=schedule)
    return [*history.losses, *[math.nan] * (N_STEPS - len(history.losses))]


# %% [markdown]
# Three runs at the constant rate. A run that has lost its numbers is given up early, and a cross marks the place.


# %%
def draw(runs, title):
    curves = {f"start {seed}": (range(N_STEPS), run) for seed, run in runs.items()}
    plot.lines(curves, xlabel="step", ylabel="training loss (nats)", title=title, log_y=True)


cold = {seed: losses(seed, constant) for seed in (1, 2, 3)}
draw(cold, f"A constant rate of {PEAK}")

# %% [markdown]
# To *live* is to end at least half a nat below guessing. One batch's loss jumps about, so we average the last twenty.


# %%
def final(run):
    return sum(run[-20:]) / 20


def lives(run):
    return final(run) < math.log(32) - 0.5


reveal("survivors", sum(lives(run) for run in cold.values()))

# %% [markdown]
# Now the repair. For the first 30 steps the rate climbs in a straight line. After that it is the *same* 0.7. Nothing
# else changes: the same starts, the same batches, the same rate for seven eighths of the run.


# %%
def warmed(step):
    return PEAK * min(1, (step + 1) / N_WARMUP)


warm = {seed: losses(seed, warmed) for seed in cold}
draw(warm, f"{N_WARMUP} steps of warm-up, then {PEAK}")

# %%
claim(
    "warm-up lets every start live at a rate that kills most of them without it",
    holds=all(map(lives, warm.values())) and sum(map(lives, cold.values())) <= 1,
    evidence=f"last losses without: {', '.join(f'{final(run):.2f}' for run in cold.values())}\n"
    f"last losses with: {', '.join(f'{final(run):.2f}' for run in warm.values())}",
    cause="another start or another rate: look at the two figures",
)

# %% [markdown]
# ## Measure
#
# How far does warm-up widen the range of usable rates? That takes many runs: eight rates, with and without, three
# starts each. They were made once, on the machine named in the caption, and kept with all that is needed to make them
# again (`datasets/recorded/`). What other machines recorded is no claim about yours.

# %%
recorded = repro.recordings("01_lr_warmup")[0]
where = f"Recorded on {recorded.hardware}, {recorded.date}"


def alive(row):
    return sum(outcome == "learned" for outcome in row["outcome"])


grid = [row for row in recorded.results["survival"] if row["gain"] == 1.4]
rates = sorted({row["peak"] for row in grid})
alive_at = {(row["n_warmup"], row["peak"]): alive(row) for row in grid}
rows = [[name, *(alive_at[n, rate] for rate in rates)] for name, n in (("without warm-up", 0), ("with 30 steps", 30))]
table(["of 3 starts, alive at rate", *map(str, rates)], rows, caption=where)

# %% [markdown]
# Warm-up raises the largest usable rate several times over. Is that the only way? The next table holds the controls
# that keep us honest: lower rates without warm-up, a warm-up that is too long, and the textbook's first weights. The
# last five columns are five starts, with the training loss at the end.


# %%
def endings(row):
    pairs = zip(row["outcome"], row["train_loss"], strict=True)
    return [f"{loss:.2f}" if outcome == "learned" else "dead" for outcome, loss in pairs]


controls = [(1.4, 0.4, 0), (1.4, 0.1, 0), (1.4, 0.05, 0), (1.4, 0.4, 30), (1.4, 0.4, 240)]
controls += [(1.0, 0.4, 0), (1.0, 0.4, 10)]
by_setting = {(row["gain"], row["peak"], row["n_warmup"]): row for row in recorded.results["isolated"]}
rows = [[*setting, *endings(by_setting[setting])] for setting in controls]
table(["first weights times", "rate", "warm-up steps", *"12345"], rows, caption=where)

# %% [markdown]
# Three things to read off. Without warm-up, no lower rate comes near what the higher one reaches with it. A warm-up as
# long as the run is worse than a short one. And the textbook's first weights need no warm-up, and end lower than
# anything above them. Here warm-up repairs a bad start. A good start needs no repair.

# %% [markdown]
# Now a race on a network that people use: a *ResNet*, whose layers are kept in range by *batch-norm*. Five schedules.
# Each was tuned alike, with five peak rates, on the validation faces. Then each ran from three fresh starts. The test
# faces were looked at once, at the very end.

# %%
arms = recorded.results["arms"]["arms"]
rows = [[arm, held["peak"], *(f"{run['test_accuracy']:.3f}" for run in held["runs"])] for arm, held in arms.items()]
table(["schedule", "tuned peak", "accuracy, start 1", "start 2", "start 3"], rows, caption=where)

# %% [markdown]
# Warm-up before a constant rate buys nothing on this network. What pays is to end *low*: the three schedules that fall
# at the end leave the other two behind. The figure shows the way there; the band spans the three starts.

# %%
curves = {arm: [(run["train_cpu_s"], run["accuracy"]) for run in held["runs"]] for arm, held in arms.items()}
plot.runs(curves, xlabel="seconds of training on one CPU core", ylabel="accuracy, validation faces", title=where)

# %% [markdown]
# The best at the end is not the first on the way. Count the steps until each accuracy was reached, by the middle one of
# three starts. Somebody who can stop at three quarters should not wait for one-cycle.

# %%
levels = recorded.results["arms"]["settings"]["accuracies"]


def reached(held, i):
    steps = sorted(run["reached_step"][i] or math.inf for run in held["runs"])
    return "never" if math.isinf(steps[1]) else steps[1]


rows = [[arm, *(reached(held, i) for i in range(len(levels)))] for arm, held in arms.items()]
table(["steps until accuracy", *map(str, levels)], rows, caption=where)

# %% [markdown]
# One heat of that race to run yourself: the constant rate against one-cycle, each at its tuned peak, from the same
# start, for four *epochs* (four times through the data).

# %%
FULL = repro.budget() == "full"
N_RACE = 4 * (len(x) // 64) if FULL else 10


def race(make_schedule, peak, seed=11):
    torch.manual_seed(seed)
    model = resnet().to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, nesterov=True, weight_decay=5e-4)
    batches = train.shuffled(x, y, batch_size=64, seed=seed)
    train.fit(model, batches, n_steps=N_RACE, optimizer=optimizer, lr=make_schedule(peak, N_RACE))
    return train.score(model, unseen.inputs.to(device()), unseen.targets.to(device())).accuracy


# %%
flat, cycle = race(train.constant, arms["constant"]["peak"]), race(train.one_cycle, arms["one-cycle"]["peak"])
claim(
    "a rate that ends low ends better than one that stays where it is",
    holds=cycle > flat,
    evidence=f"accuracy on unseen faces: one-cycle {cycle:.3f}, constant {flat:.3f}",
    cause="one start is a small sample: try other seeds",
)

# %% [markdown]
# ## Change one thing
#
# How long must warm-up be? Five lengths, the same peak, the same start. A length without a point ended with no number.
# Change `LENGTHS` or `PEAK` and run the cell again. Look for the shortest that lives, and for what a long one costs.

# %%
LENGTHS = (0, 3, 10, 30, 120)
ends = {n: final(losses(1, lambda step, n=n: PEAK * min(1, (step + 1) / max(1, n)))) for n in LENGTHS}
lengths = {f"rate {PEAK}": (LENGTHS, list(ends.values())), "guessing": (LENGTHS, [math.log(32)] * len(LENGTHS))}
plot.lines(lengths, xlabel="steps of warm-up", ylabel="loss at the end (nats)", markers=True)

# %% [markdown]
# ## Exercises
#
# Three tools, a few lines each. Where you have not built one yet, the cells after it use the course's own.
#
# ### Exercise 1.1 · Warm-up, plateau, decay (10 min, easy)
#
# Write the schedule that long runs use: a straight line up over `n_warmup` steps, a plateau, a straight line down over
# the last `n_decay` steps.
#
# The trap is at the ends. Step 0, the first, must already move. So must the last, step `n_steps - 1`.


# %%
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    """The rate at `step`: peak / n_warmup at the first, peak / n_decay at the last. Either part may have length 0."""
    ### BEGIN SOLUTION
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return peak * min(1.0, up, down)
    ### END SOLUTION


# %%
check(warmup_stable_decay)

# %% [markdown]
# Its advantage: the plateau can go on for as long as you like, and a decay from any point of it gives a finished
# network. One-cycle must know its last step before its first. Here are both.

# %%
schedule = attempt(warmup_stable_decay)
shapes = {
    "warm-up, stable, decay": (range(200), [schedule(step, 1.0, 200, 20, 60) for step in range(200)]),
    "one-cycle": (range(200), [train.one_cycle(1.0, 200)(step) for step in range(200)]),
}
plot.lines(shapes, xlabel="step", ylabel="share of the peak rate")

# %% [markdown]
# ### Exercise 1.2 · Read a range test (8 min, easy)
#
# A *range test* trains for a hundred steps or so while the rate grows by the same factor at each. The loss falls, then
# blows up. A common pick is a tenth of the rate at which the loss was lowest. Write that pick.
#
# The trap: after the blow-up the losses are `inf` or `nan`, and `argmin` takes `nan` for the smallest number of all.


# %%
def pick_rate(rates, losses):
    """A tenth of the rate at which the loss was lowest, as a float; both arguments are tensors."""
    ### BEGIN SOLUTION
    finite = torch.where(losses.isfinite(), losses, torch.inf)
    return float(rates[finite.argmin()]) / 10
    ### END SOLUTION


# %%
check(pick_rate)

# %% [markdown]
# Now a range test on our network with the textbook's first weights. A single batch's loss jumps about. So the pick is
# made on a moving average, in which the newest loss counts for a fifth.


# %%
def range_test(low=1e-3, high=10.0, n_steps=120, seed=5):
    rates = torch.logspace(math.log10(low), math.log10(high), n_steps)
    torch.manual_seed(seed)
    model = convnet().to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=low)
    batches = train.shuffled(x, y, batch_size=128, seed=seed)
    history = train.fit(model, batches, n_steps=n_steps, optimizer=optimizer, lr=lambda step: rates[step].item())
    raw = torch.tensor(history.losses)
    average = [raw[0]]
    for loss in raw[1:]:
        average.append(0.8 * average[-1] + 0.2 * loss)
    return rates[: len(raw)], raw, torch.stack(average)


# %%
swept, raw, average = range_test()
pick = attempt(pick_rate)(swept, average)
curves = {"one batch": (swept.tolist(), raw.tolist()), "average": (swept.tolist(), average.tolist())}
plot.lines(curves, xlabel="learning rate", ylabel="training loss (nats)", log_x=True, log_y=True)

# %% [markdown]
# Is it a good pick? Train at that constant rate, at a tenth of it, and at three times as much, from the same start.


# %%
def at_rate(rate):
    return final(losses(5, lambda _step: rate, gain=1.0))


tenth, picked, triple = at_rate(pick / 10), at_rate(pick), at_rate(3 * pick)
claim(
    "the pick of the range test ends lower than a tenth of it",
    holds=picked < tenth,
    evidence=f"losses at the end: a tenth {tenth:.2f}, the pick {picked:.2f}, three times the pick {triple:.2f}",
)

# %% [markdown]
# It is a cautious pick, not the best one. Below: for three networks and three starts each, how many times larger than
# the pick the best constant rate was. A range test spares you a rate that is off by a hundred. It does not spare you
# three more runs.

# %%
tests = recorded.results["range_test"]
names = {1.0: "plain, weights x 1", 1.4: "plain, weights x 1.4", None: "ResNet with batch-norm"}
times = {gain: [f"{t['best_constant'] / t['tenth']:.1f}" for t in tests if t["gain"] == gain] for gain in names}
rows = [[name, *times[gain]] for gain, name in names.items()]
table(["best rate / pick", "start 1", "start 2", "start 3"], rows, caption=where)

# %% [markdown]
# ### Exercise 1.3 · Sharpness by power iteration (20 min, hard)
#
# Now the *why*. The *Hessian* holds all second derivatives of the loss. Its largest eigenvalue, the *sharpness*, is the
# curvature in the steepest direction. On a bowl of curvature h, a step of rate r multiplies the distance to the bottom
# by 1 - r h. Beyond h = 2 / r that is below -1: each step lands further out than the last.

# %% [markdown]
# P weights have a Hessian of P x P numbers, too many to hold. But a *product* H v costs about two backward passes: it
# is the derivative of gradient · v. *Power iteration* needs no more. Multiply a random v by H again and again, and
# bring it back to length 1 each time. It turns towards the eigenvalue largest in size, and v · Hv is that eigenvalue.
#
# The trap: the length of Hv has lost the sign.


# %%
def sharpness(loss_at, w, n_iterations):
    """The Hessian's eigenvalue of largest size at w; loss_at(w) is the loss at w, one long vector of weights."""
    ### BEGIN SOLUTION
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    v, eigenvalue = torch.randn_like(w), 0.0
    for _ in range(n_iterations):
        v = v / v.norm()
        (hv,) = torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True)
        eigenvalue, v = float(v @ hv), hv
    return eigenvalue
    ### END SOLUTION


# %%
check(sharpness)

# %% [markdown]
# Now along a real run: before some of the steps we measure on one fixed batch of 256 pictures. `train.as_function`
# turns a network into what your function expects.

# %%
LOOKS = (0, 2, 5, 10, 15, 20, 30, 60, 120, 200)
measure, seen = attempt(sharpness), {}


def look(step, model):
    if step in LOOKS:
        seen[step] = measure(*train.as_function(model, x[:256], y[:256]), 12)


torch.manual_seed(1)
model = convnet(gain=1.4).to(device())
batches, sgd = train.shuffled(x, y, batch_size=128, seed=1), torch.optim.SGD(model.parameters(), lr=PEAK)
train.fit(model, batches, n_steps=N_STEPS, optimizer=sgd, lr=warmed, on_step=look)
plot.sharpness(list(seen), list(seen.values()), [warmed(step) for step in seen], title=f"Warm-up to a rate of {PEAK}")

# %%
fresh, after = seen[0], seen[N_WARMUP]
claim(
    "a fresh network is more than fifty times too sharp for the rate that it will train at",
    holds=fresh > 50 * 2 / PEAK,
    evidence=f"sharpness {fresh:.0f} at step 0; 2 / {PEAK} = {2 / PEAK:.1f}",
)
claim(
    "by the end of warm-up its sharpness has fallen more than twentyfold",
    holds=after < fresh / 20,
    evidence=f"{fresh:.0f} at step 0, {after:.1f} at step {N_WARMUP}",
)

# %% [markdown]
# So warm-up buys time. Short steps lead the network out of the sharp place where it was born, and the sharpness follows
# the line 2 / rate down. After that it stays near the line, often above it. "Above 2 / rate a run diverges" is too
# simple, then: the rule is for a bowl, and a network is no bowl.

# %% [markdown]
# Without warm-up, the first step across such a slope throws the network far out. This run, at a rate of 0.4, did not
# overflow. Its loss shot up, then stood at guessing for a hundred steps, and its sharpness fell almost to nothing. *A
# low sharpness may mean that nothing is being learned.* Always draw the loss beside it.

# %%
thrown = recorded.results["sharpness"]["CNN(1.4), 0.4"]["rows"]
steps = [row["step"] for row in thrown]
curves = {"sharpness": (steps, [row["top"] for row in thrown]), "loss": (steps, [row["loss"] for row in thrown])}
plot.lines(curves, xlabel="step", ylabel="sharpness; loss (nats)", title=where, log_y=True, markers=True)

# %% [markdown]
# And a warning for networks with batch-norm. At the start, their eigenvalue of largest size may be *negative*. Power
# iteration then reports how fast the loss falls away in some direction, not how sharp the valley is.

# %%
firsts = {name: run["rows"][0] for name, run in recorded.results["sharpness"].items()}
compared = {"plain, weights x 1": firsts["CNN(1.0), 0.4"], "ResNet with batch-norm": firsts["ResNet, 0.4"]}
rows = [[name, f"{row['largest_in_size']:.1f}", f"{row['top']:.1f}"] for name, row in compared.items()]
table(["at step 0", "eigenvalue of largest size", "largest eigenvalue"], rows, caption=where)

# %% [markdown]
# ## Limits
#
# A second setting where warm-up decides: a small *transformer* that predicts the next character of English text, the
# documentation of Python's standard library. It is *post-norm*: it normalises after each residual sum, as the first
# transformers did. Adam, a rate of 0.007, 200 steps. Without warm-up it never gets past guessing by letter frequency.

# %%
text, held_out = docs.load("train").inputs.to(device()), docs.load("validation").inputs.to(device())


def text_loss(n_warmup, n_steps=200, peak=7e-3, seed=1):
    torch.manual_seed(seed)
    model = gpt(vocab=len(docs.load("train").classes), norm="post", width=32, context=32).to(device())
    batches = train.windows(text, batch_size=16, context=32, seed=seed)
    schedule = train.warmup_constant(peak, n_steps, warmup_share=n_warmup / n_steps)
    train.fit(model, batches, n_steps=n_steps, optimizer=torch.optim.Adam(model.parameters()), lr=schedule)
    return train.score(model, *next(train.windows(held_out, batch_size=256, context=32, seed=0))).loss


# %%
suddenly, slowly = text_loss(n_warmup=0), text_loss(n_warmup=100)
claim(
    "a post-norm transformer learns more with warm-up than without, at the same rate",
    holds=slowly < suddenly - 0.1,
    evidence=f"nats a character on unseen text: without {suddenly:.2f}, with {slowly:.2f}",
    cause="at another rate or from other first weights the two are closer: see the table below",
)

# %% [markdown]
# And one where it buys nothing. *Pre-norm* normalises before each sum, as nearly all do now. It needs no warm-up here,
# and pays for it. Nor does the post-norm network at a lower rate. Even its need at the high rate depends on its first
# weights (Glorot's here): in trials with PyTorch's own, it learned at once.

# %%
measured = recorded.results["text"]
rows = [
    [f"{row['norm']}-norm", row["peak"], row["n_warmup"], *(f"{loss:.2f}" for loss in row["validation_loss"])]
    for row in measured["rows"]
]
caption = f"{where}, a larger model. Guessing by letter frequency: {measured['letter_frequencies_loss']:.2f}"
table(["network", "rate", "warm-up steps", "loss, start 1", "start 2", "start 3"], rows, caption=caption)

# %% [markdown]
# - The settings were chosen because a first start showed the effect. What you see comes from other starts.
# - Warm-up is one cure among several: smaller first weights, normalisation, pre-norm, clipping the gradient, a lower
#   rate. If a run is stable without it, measure before you add it.
# - These networks are tiny. Large ones are run with warm-up by habit, and a failed start costs more there than a
#   thousand short steps.

# %% [markdown]
# ## Further questions
#
# 1. In *Change one thing*, lower `PEAK` until no warm-up is needed. How does that rate compare with 2 divided by the
#    sharpness of the fresh network?
# 2. Does clipping the gradient to length 1 replace warm-up here?
# 3. Adam divides each gradient by its own recent size. What becomes of the limit 2 / rate?
# 4. Measure the sharpness along the falling half of one-cycle. Does it rise as the rate falls?

# %% [markdown]
# ## Sources
#
# - Goyal and others, [Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: warm-up.
# - Smith, [Cyclical Learning Rates](https://arxiv.org/abs/1506.01186), 2017: the range test. Smith and Topin,
#   [Super-Convergence](https://arxiv.org/abs/1708.07120), 2018: one-cycle.
# - Gilmer and others, [A Loss Curvature Perspective on Training
#   Instability](https://arxiv.org/abs/2110.04369), 2021: warm-up and sharpness.
# - Cohen and others, [Gradient Descent on Neural Networks Typically Occurs at the Edge of
#   Stability](https://arxiv.org/abs/2103.00065), 2021.
# - Xiong and others, [On Layer Normalization in the Transformer
#   Architecture](https://arxiv.org/abs/2002.04745), 2020.

# %% [markdown]
# - Hägele and others, [Scaling Laws and Compute-Optimal Training Beyond Fixed Training
#   Durations](https://arxiv.org/abs/2405.18392), 2024: warm-up, plateau, decay.
# - Yao and others, [PyHessian](https://arxiv.org/abs/1912.07145), 2020: sharpness by power iteration.
# - He and others, [Delving Deep into Rectifiers](https://arxiv.org/abs/1502.01852), 2015: the textbook's first weights.
