# title: Learning-rate warm-up
# minutes: 60
# cpu: everything; the cells alone take about a minute
# gpu: the same runs, sooner; nothing new to see
#
# %% [markdown]
# # 01 · Learning-rate warm-up
#
# Sixty minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# A training step is the *learning rate* times the gradient. Most recipes for large networks start the rate near zero
# and raise it during the first few hundred steps. That is *warm-up*. **What does it buy, and when does it buy
# nothing?**

# %%
import math

import torch

from labkit import attempt, check, claim, plot, predict, record, repro, reveal, table, train
from labkit.data import docs, glyphs
from labkit.hardware import device
from labkit.models import convnet, gpt, resnet

# %% [markdown]
# The task: name a printed character. There are 32 of them, drawn from typefaces, then bent, scribbled over and
# covered with noise. The network trains on nine typefaces and is judged on others that it has never seen. The
# pictures are 24 pixels wide, so that a run takes a second or two on one core. One is enough for so small a network:
# with more, each step would wait for the slowest of them.

# %%
torch.set_num_threads(1)
images, unseen = glyphs.load("train", size=24), glyphs.load("validation", size=24)
x, y = images.inputs.to(device()), images.targets.to(device())
plot.images(images, rows=2, columns=10)

# %% [markdown]
# ## Predict
#
# A small convolutional network without normalisation layers. Its first weights are 1.4 times larger than usual (He's,
# for networks with ReLU). Plain gradient descent, a high rate of 0.7, 240 steps, three random starts.
#
# The loss is in *nats*: how surprised the network is by the right answer. Guessing among 32 costs ln 32 = 3.47. A run
# *lives* if it ends half a nat below that, else it is *dead*. How many live? Move the slider before you go on.

# %%
question = "At a constant rate of 0.7, how many of three runs live?"
predict("survivors", question, default=3, low=0, high=3)

# %% [markdown]
# ## Build
#
# A *schedule* is a function from the number of a step to a rate. `train.fit` asks it before every step. A constant
# rate is the shortest schedule there is. Everything else in this lesson is another such function.

# %%
PEAK, N_STEPS, N_WARMUP = 0.7, 240, 30


def constant(_step):
    return PEAK


# %% [markdown]
# One run: a fresh network from a seed, the data in an order from the same seed, plain SGD (stochastic gradient
# descent). What comes back is the loss at every step. The loop itself is `fit` in `labkit/train.py`, and holds no
# surprise.


# %%
def losses(seed, schedule, gain=1.4):
    torch.manual_seed(seed)
    model = convnet(gain).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK)  # fit sets the rate before each step
    batches = train.shuffled(x, y, batch_size=128, seed=seed)
    history = train.fit(model, batches, n_steps=N_STEPS, optimizer=optimizer, lr=schedule)
    return [*history.losses, *[math.nan] * (N_STEPS - len(history.losses))]


# %% [markdown]
# Three runs at the constant rate. They begin above guessing: large first weights make a network sure of wrong
# answers. A run that has lost its numbers is given up early, and a cross marks the place.


# %%
def draw(runs, title):
    curves = {f"start {seed}": (range(N_STEPS), run) for seed, run in runs.items()}
    labels = {"xlabel": "step", "ylabel": "training loss (nats)", "title": title}
    plot.lines(curves, **labels, log_y=True, levels={"guessing": math.log(32)})


cold = {seed: losses(seed, constant) for seed in (1, 2, 3)}
draw(cold, f"A constant rate of {PEAK}")

# %% [markdown]
# The verdict. One batch's loss jumps about, so the loss at the end is an average over the last twenty steps.


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


config = {"peak": PEAK, "n_steps": N_STEPS, "n_warmup": N_WARMUP}
told = {"config": config, "data": {"glyphs": images}, "seeds": (1, 2, 3)}
with repro.run("01-warm-up", **told, casual=True) as it:
    warm = {seed: losses(seed, warmed) for seed in (1, 2, 3)}
    for seed, run in warm.items():
        for step, loss in enumerate(run):
            it.log(step, **{f"start {seed}": loss})

draw(warm, f"{N_WARMUP} steps of warm-up, then {PEAK}")

# %% [markdown]
# These three runs are *recorded*, in the folder `runs/` of the course: code, packages, seeds, data, and every loss
# with all its bits. (The latest three times are kept; where nothing can be written, nothing is.) In a terminal, `labkit
# runs` lists them, and `labkit runs remake 01-warm-up` makes the last one again and says whether it came out alike.

# %%
claim(
    "warm-up lets every start live at a rate that kills most of them without it",
    holds=all(map(lives, warm.values())) and sum(map(lives, cold.values())) <= 1,
    evidence=f"last losses without: {', '.join(f'{final(run):.2f}' for run in cold.values())}\n"
    f"last losses with: {', '.join(f'{final(run):.2f}' for run in warm.values())}",
)

# %% [markdown]
# ## Measure
#
# How far does warm-up widen the range of usable rates? That takes many runs: eight rates, with and without, three
# starts each. They were made once, on the machine named in the caption, and kept with all that is needed to make them
# again (`datasets/recorded/`). What other machines recorded is no claim about yours.

# %%
recorded = repro.recordings("01_lr_warmup_sweeps")[0]
where = f"Recorded on {recorded.hardware}, {recorded.date}"


def alive(row):
    return sum(outcome == "learned" for outcome in row["outcome"])


grid = [row for row in recorded.results["survival"] if row["gain"] == 1.4]
rates = sorted({row["peak"] for row in grid})
alive_at = {(row["n_warmup"], row["peak"]): alive(row) for row in grid}
rows = [[f"{n} steps", *(alive_at[n, rate] for rate in rates)] for n in (0, 30)]
table(["warm-up; alive at rate", *map(str, rates)], rows, caption=where)

# %% [markdown]
# Warm-up raises the largest usable rate several times over. Is that the only way? The next table holds the
# *controls*, the runs that keep us honest: lower rates without warm-up, a warm-up that is too long, and first weights
# of the usual size. The columns are five other starts, with the training loss at the end.


# %%
def endings(row):
    pairs = zip(row["outcome"], row["train_loss"], strict=True)
    return [f"{loss:.2f}" if outcome == "learned" else "dead" for outcome, loss in pairs]


controls = [(1.4, rate, 0) for rate in (0.7, 0.4, 0.2, 0.1, 0.05)]
controls += [(1.4, 0.7, 30), (1.4, 0.4, 30), (1.4, 0.4, 240), (1.0, 0.4, 0), (1.0, 0.4, 10)]
by_setting = {
    (row["gain"], row["peak"], row["n_warmup"]): row for row in recorded.results["isolated"]
}
rows = [[*setting, *endings(by_setting[setting])] for setting in controls]
starts = [f"start {number}" for number in range(1, 6)]
table(["weights x", "rate", "warm-up steps", *starts], rows, caption=where)

# %% [markdown]
# Three things to read off. Without warm-up, no rate comes near what 0.4 and 0.7 reach with it. A warm-up as long as
# the run is worse than a short one. And first weights of the usual size need no warm-up, and end lower than anything
# above them. Here warm-up repairs a bad start. A good start needs no repair.

# %% [markdown]
# Now a race on a network that people use: a *ResNet*, its layers kept in range by *batch-norm*. Five schedules. *Step
# decay* divides the rate by ten, twice. *One-cycle* climbs for a third of the run, then falls along half a cosine.
# Each schedule was tuned alike, with five peak rates, on the validation typefaces, then run from three fresh starts.
# The test typefaces were looked at once, at the end.

# %%
arms = recorded.results["arms"]["arms"]
rows = []
for arm, held in arms.items():
    rows.append([arm, held["peak"], *(f"{run['test_accuracy']:.3f}" for run in held["runs"])])
headings = ["schedule", "tuned peak", "test accuracy, start 1", "start 2", "start 3"]
table(headings, rows, caption=where)

# %% [markdown]
# Warm-up before a constant rate buys nothing on this network. What pays is to end *low*: the three schedules that
# fall at the end leave the other two behind. The figure shows the way there, on the validation typefaces, which are
# harder. Bands span the three starts.

# %%
curves = {}
for arm, held in arms.items():
    curves[arm] = [(run["train_cpu_s"], run["accuracy"]) for run in held["runs"]]
labels = {"xlabel": "seconds on one CPU core", "ylabel": "accuracy, validation typefaces"}
plot.runs(curves, **labels, title=where)

# %% [markdown]
# Who is best at the end need not be first on the way. Below: the steps until each validation accuracy, for the middle
# one of three starts. They were looked at every 24 steps, so take one look more or less for a tie. At three quarters,
# step decay is ahead of one-cycle; the schedule with the plateau comes last of those that fall.

# %%
levels = recorded.results["arms"]["settings"]["accuracies"]


def reached(held, i):
    steps = sorted(run["reached_step"][i] or math.inf for run in held["runs"])
    return "never" if math.isinf(steps[1]) else steps[1]


rows = [[arm, *(reached(held, i) for i in range(len(levels)))] for arm, held in arms.items()]
table(["steps until accuracy", *map(str, levels)], rows, caption=where)

# %% [markdown]
# One round of that race to run yourself: the constant rate against one-cycle, each at its tuned peak, from the same
# start, for four *epochs* (four times through the data). It takes some twenty seconds.

# %%
FULL = repro.budget() == "full"
N_RACE = 4 * (len(x) // 64) if FULL else 10


def race(make_schedule, peak, seed=11):
    torch.manual_seed(seed)
    model = resnet().to(device())
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, **settings)
    batches = train.shuffled(x, y, batch_size=64, seed=seed)
    train.fit(model, batches, n_steps=N_RACE, optimizer=optimizer, lr=make_schedule(peak, N_RACE))
    return train.score(model, unseen.inputs.to(device()), unseen.targets.to(device())).accuracy


# %%
flat = race(train.constant, arms["constant"]["peak"])
cycle = race(train.one_cycle, arms["one-cycle"]["peak"])
claim(
    "a rate that ends low ends better than one that stays where it is",
    holds=cycle > flat,
    evidence=f"accuracy on unseen typefaces: one-cycle {cycle:.3f}, constant {flat:.3f}",
)
record("01", "accuracy after four epochs", {"constant rate": flat, "one-cycle": cycle})

# %% [markdown]
# ## Change one thing
#
# How long must warm-up be? Five lengths, the same rate, the same start. Where a length has no point, as 0 may not,
# the run ended with no number. Change `LENGTHS` or `RATE` and run the cell again. Look for the shortest that lives,
# and for what a long one costs.

# %%
LENGTHS, RATE = (0, 3, 10, 30, 120), 0.7


def end_after(n_warmup):
    return final(losses(1, lambda step: RATE * min(1, (step + 1) / max(1, n_warmup))))


ends = {f"rate {RATE}": (LENGTHS, [end_after(n) for n in LENGTHS])}
labels = {"xlabel": "steps of warm-up", "ylabel": "loss at the end (nats)"}
limits = {"guessing": math.log(32), "to live": math.log(32) - 0.5}
plot.lines(ends, **labels, levels=limits, markers=True)

# %% [markdown]
# ## Exercises
#
# Three tools, a few lines each. Where you have not built one yet, the cells after it use the course's own.
#
# ### Exercise 1.1 · Warm-up, plateau, decay (10 min, easy)
#
# Write the schedule that long runs use: a straight line up over `n_warmup` steps, a plateau, a straight line down
# over the last `n_decay` steps.
#
# The trap is at the ends. Step 0, the first, must already move. So must the last, step `n_steps - 1`.


# %%
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    """The rate at `step`: first peak / n_warmup, last peak / n_decay. Each part may be 0 long."""
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
steps, cycle = range(200), train.one_cycle(1.0, 200)
built, one = [schedule(step, 1.0, 200, 20, 60) for step in steps], [cycle(step) for step in steps]
shapes = {"warm-up, stable, decay": (steps, built), "one-cycle": (steps, one)}
plot.lines(shapes, xlabel="step", ylabel="share of the peak rate")

# %% [markdown]
# ### Exercise 1.2 · Read a range test (8 min, easy)
#
# A *range test* trains for a hundred steps or so while the rate grows by the same factor at each. The loss falls,
# then blows up. A common pick is a tenth of the rate at which the loss was lowest. Write that pick.
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
# Now a range test on our network with first weights of the usual size. One batch's loss jumps about, so the pick is
# made on a moving average, in which the newest loss counts for a fifth. The figure ends where the average passes 10
# nats.


# %%
def range_test(low=1e-3, high=10.0, n_steps=120, seed=5):
    rates = torch.logspace(math.log10(low), math.log10(high), n_steps)
    torch.manual_seed(seed)
    model = convnet().to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=low)
    batches = train.shuffled(x, y, batch_size=128, seed=seed)
    growing = rates.tolist().__getitem__
    history = train.fit(model, batches, n_steps=n_steps, optimizer=optimizer, lr=growing)
    raw = torch.tensor(history.losses)
    average = [raw[0]]
    for loss in raw[1:]:
        average.append(0.8 * average[-1] + 0.2 * loss)
    return rates[: len(raw)], raw, torch.stack(average)


# %%
swept, raw, average = range_test()
pick = attempt(pick_rate)(swept, average)
n = int((average < 10).sum())
lines = {"one batch": raw, "average": average}
curves = {name: (swept[:n].tolist(), line[:n].tolist()) for name, line in lines.items()}
labels = {"xlabel": "learning rate", "ylabel": "training loss (nats)", "title": "A range test"}
plot.lines(curves, **labels, log_x=True, marks={"pick": pick, "lowest": 10 * pick})

# %% [markdown]
# Is it a good pick? Train at that constant rate, at a tenth of it, and at three times as much, from the same start.


# %%
def at_rate(rate):
    return final(losses(5, lambda _step: rate, gain=1.0))


tenth, picked, triple = at_rate(pick / 10), at_rate(pick), at_rate(3 * pick)
claim(
    "the pick of the range test ends lower than a tenth of it",
    holds=picked < tenth,
    evidence=f"the pick is {pick:.2g}; the average was lowest at {10 * pick:.2g}\n"
    f"last losses: a tenth {tenth:.2f}, the pick {picked:.2f}, three times it {triple:.2f}",
)

# %% [markdown]
# Mostly it is a cautious pick: three times as much does better. Below: for three networks and three starts each, how
# many times larger than the pick the best constant rate was. In one start the pick was far too *high*: the run had
# died on the way, and a dead run's loss, though poor, was the lowest of the test. A range test spares you a rate that
# is off by a hundred. It does not spare you three more runs.

# %%
tests = recorded.results["range_test"]
names = {1.0: "plain, weights x 1", 1.4: "plain, weights x 1.4", None: "ResNet"}
times = {
    gain: [f"{t['best_constant'] / t['tenth']:.1f}" for t in tests if t["gain"] == gain]
    for gain in names
}
rows = [[name, *times[gain]] for gain, name in names.items()]
table(["best rate / pick", "start 1", "start 2", "start 3"], rows, caption=where)

# %% [markdown]
# ### Why: the valley is too steep
#
# Take the simplest valley, h x² / 2. One step of rate r turns x into (1 - r h) x. With h = 10 and r = 0.3, x becomes
# -2 x: across the valley, and twice as far away. So curvature h allows rates up to 2 / h, and a rate r allows
# curvatures up to 2 / r. How does a fresh network stand to that?

# %%
question = "How many times more curvature does a fresh network have than a rate of 0.7 allows?"
predict("too_sharp", question, default=5, low=1, high=10_000, unit="times")

# %% [markdown]
# With P weights, curvature is a table of P x P second derivatives, the *Hessian* H. It is too large to hold. But a
# *product* H v costs only about two backward passes: it is the derivative of gradient · v. Here with two weights,
# where H is [[6, 1], [1, 0]]. `create_graph=True` keeps what the second derivative needs.

# %%
w = torch.tensor([1.0, 2.0], requires_grad=True)
loss = 3 * w[0] ** 2 + w[0] * w[1]
(gradient,) = torch.autograd.grad(loss, w, create_graph=True)
(hv,) = torch.autograd.grad(gradient, w, grad_outputs=torch.tensor([1.0, 0.0]))
print("H v =", hv.tolist())

# %% [markdown]
# ### Exercise 1.3 · Sharpness by power iteration (25 min, hard)
#
# *Power iteration*: multiply a random v by H again and again, and bring it back to length 1 before each product. v
# turns towards the *eigenvector* whose eigenvalue is largest in size, and v · Hv is that eigenvalue: the curvature in
# the steepest direction, or *sharpness*.
#
# The traps: w comes without gradients, so work on a copy that has them; and the length of Hv has lost the sign.


# %%
def sharpness(loss_at, w, n_iterations):
    """The eigenvalue of largest size at w, a vector of weights; loss_at(w) is the loss there."""
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
batches = train.shuffled(x, y, batch_size=128, seed=1)
sgd = torch.optim.SGD(model.parameters(), lr=PEAK)
train.fit(model, batches, n_steps=N_STEPS, optimizer=sgd, lr=warmed, on_step=look)
asked = [warmed(step) for step in seen]
plot.sharpness(list(seen), list(seen.values()), asked, title=f"Warm-up to a rate of {PEAK}")

# %%
fresh, after = seen[0], seen[N_WARMUP]
reveal("too_sharp", fresh / (2 / PEAK))
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
# So warm-up buys time. Short steps lead the network out of the steep place where it was born, and the sharpness
# follows the line 2 / rate down. But even the first, shortest step broke the rule, tenfold; and after warm-up the
# sharpness stays two or three times *above* the line. "Above 2 / rate a run diverges" is true of a bowl. A network is
# no bowl: walk out of the steep place, and the valley is wider there.

# %% [markdown]
# Without warm-up, the first step across so steep a valley throws the network far out. This run, at a rate of 0.4, did
# not overflow. Its loss shot up, then stood at guessing for a hundred steps, while the sharpness fell far below 2 /
# rate. *A low sharpness may mean that nothing is being learned.* Always draw the loss beside it.

# %%
thrown = recorded.results["sharpness"]["CNN(1.4), 0.4"]["rows"]
steps = [row["step"] for row in thrown]
curves = {
    "sharpness": (steps, [row["top"] for row in thrown]),
    "loss": (steps, [row["loss"] for row in thrown]),
}
labels = {"xlabel": "step", "ylabel": "sharpness; loss (nats)", "title": where}
plot.lines(curves, **labels, log_y=True, markers=True, levels={"2 / rate": 2 / 0.4})

# %% [markdown]
# And a warning for networks with batch-norm. At the start, their eigenvalue of largest size may be *negative*: in
# some direction the loss curves downwards. Power iteration then reports that, and not the steepest valley, whose
# eigenvalue is the largest one.

# %%
firsts = {name: run["rows"][0] for name, run in recorded.results["sharpness"].items()}
compared = {
    "plain, weights x 1": firsts["CNN(1.0), 0.4"],
    "ResNet with batch-norm": firsts["ResNet, 0.4"],
}
rows = [
    [name, f"{row['largest_in_size']:.1f}", f"{row['top']:.1f}"] for name, row in compared.items()
]
table(["at step 0", "eigenvalue of largest size", "largest eigenvalue"], rows, caption=where)

# %% [markdown]
# ## Limits
#
# A second setting where warm-up decides: a small *transformer* that predicts the next character of English text, the
# documentation of Python's standard library. Each of its layers adds something to what it was given; *post-norm*
# normalises after that sum, as the first transformers did. *Adam*, which divides each gradient by its recent size,
# takes 200 steps at a rate of 0.007.

# %%
text = docs.load("train").inputs.to(device())
held_out = docs.load("validation").inputs.to(device())


def text_loss(n_warmup, n_steps=200, peak=7e-3, seed=1):
    torch.manual_seed(seed)
    model = gpt(vocab=len(docs.CLASSES), norm="post", width=32, context=32).to(device())
    adam = torch.optim.Adam(model.parameters())
    batches = train.windows(text, batch_size=16, context=32, seed=seed)
    schedule = train.warmup_constant(peak, n_steps, warmup_share=n_warmup / n_steps)
    train.fit(model, batches, n_steps=n_steps, optimizer=adam, lr=schedule)
    windows, following = next(train.windows(held_out, batch_size=256, context=32, seed=0))
    return train.score(model, windows, following).loss


# %%
suddenly, slowly = text_loss(n_warmup=0), text_loss(n_warmup=100)
claim(
    "a post-norm transformer learns more with warm-up than without, at the same rate",
    holds=slowly < suddenly - 0.1,
    evidence=f"nats a character on unseen text: without {suddenly:.2f}, with {slowly:.2f}",
)

# %% [markdown]
# And where it buys nothing: *pre-norm* normalises before each sum, as nearly all do now. There warm-up makes the loss
# a little worse. The post-norm network needs it at 0.005, from one start of three at 0.003, and not at 0.001. Even
# that hangs on the first weights (Glorot's here): in trials with PyTorch's own, it learned at 0.005 without. A larger
# model than yours:

# %%
measured = recorded.results["text"]
rows = [
    [row["norm"], row["peak"], row["n_warmup"], *(f"{loss:.2f}" for loss in row["validation_loss"])]
    for row in measured["rows"]
]
guessing = f"guessing by letter frequency: {measured['letter_frequencies_loss']:.2f}"
headings = ["norm", "rate", "warm-up steps", "loss, start 1", "start 2", "start 3"]
table(headings, rows, caption=f"{where}; {guessing}")

# %% [markdown]
# **When do you warm up?** When a run at the rate you want dies or jumps in its first steps, and lives at a lower
# rate. Ten to a hundred steps did it here. Then ask whether other first weights, a normalisation, pre-norm or
# clipping (shortening a gradient that is too long) would do as well. If a run is stable without it, measure before
# you add it.

# %% [markdown]
# - The settings were chosen because a first start showed the effect. What you see comes from other starts.
# - These networks are tiny. Large ones are warmed up by habit, since a start that fails costs more there than a
#   thousand short steps.
# - What decides at the end is to end low. Warm-up only gets you there.

# %% [markdown]
# ## Further questions
#
# 1. In *Change one thing*, lower `RATE` until no warm-up is needed. How does that rate compare with 2 divided by the
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
# - Gilmer and others, [A Loss Curvature Perspective on Training Instability](https://arxiv.org/abs/2110.04369), 2021:
#   warm-up and sharpness.
# - Cohen and others, [Gradient Descent on Neural Networks Typically Occurs at the Edge of
#   Stability](https://arxiv.org/abs/2103.00065), 2021.
# - Xiong and others, 2020: [On Layer Normalization in the Transformer
#   Architecture](https://arxiv.org/abs/2002.04745).

# %% [markdown]
# - Hägele and others, [Scaling Laws and Compute-Optimal Training Beyond Fixed Training
#   Durations](https://arxiv.org/abs/2405.18392), 2024: warm-up, plateau, decay.
# - Yao and others, [PyHessian](https://arxiv.org/abs/1912.07145), 2020: sharpness by power iteration.
# - He and others, [Delving Deep into Rectifiers](https://arxiv.org/abs/1502.01852), 2015: the usual first weights.
