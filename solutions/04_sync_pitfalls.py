# title: Sync pitfalls
# minutes: 75
# cpu: everything, on a device made of a worker thread that runs real torch operations from a queue
# gpu: the same cells on a real asynchronous device
#
# %% [markdown]
# # 04 · Sync pitfalls
#
# Seventy-five minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# A GPU works behind your program's back. Your Python code, the *host*, only hands it work, and goes on. Some innocent
# lines stop the host until the device has caught up; then the device, in turn, has nothing to do. **Which lines are
# they, what do they cost, and how do you do without them?**

# %%
import math
import queue
import threading
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit import attempt, bench, check, claim, device_thread, predict, record, repro, table
from labkit.data import glyphs

# %% [markdown]
# Without a GPU there is nothing to wait for: a CPU is done when the call returns. So `device_thread.open()` makes a
# device. It is a *worker thread*, a second strand of this program, with a queue. Operations go into the queue, the
# calls return at once, and the worker runs them with torch, one after the other. Where there is a GPU, the same line
# opens the GPU.

# %%
torch.set_num_threads(1)
torch.backends.cudnn.deterministic = True  # on a GPU, the same sums in the same order
FULL = repro.budget() == "full"
dev = device_thread.open()
table(["all figures below are those of"], [[dev.name]], varying=True)

# %% [markdown]
# ## Predict
#
# A training loop reads its loss at each step, as most loops do: `loss.item()`. Take a stopwatch to the loop. What
# share of the time passes in that one line? Move both sliders before you go on. In the second question, *to wait* for
# the device is to stand still until it has done what it was given.

# %%
question = "What share of the loop's time passes in the line loss.item(), by the stopwatch?"
predict("blame", question, default=2, low=0, high=100, unit="%")

# %%
question = "How many times faster is the loop when nothing waits for the device?"
predict("gain", question, default=1.1, low=1, high=10, unit="times")

# %% [markdown]
# ## Build
#
# ### Launched is not done
#
# One matrix product. First it is timed wrong on purpose, as one would time any other Python call. `dev.put` moves a
# tensor to the device, as `.to("cuda")` does.

# %%
a = dev.put(torch.randn(1024, 1024))
a @ a  # the first call of its kind is never like the others
dev.synchronize()

# %%
start = time.perf_counter()
product = a @ a
launched_s = time.perf_counter() - start
dev.synchronize()
done_s = time.perf_counter() - start

# %% [markdown]
# `synchronize` waits until the device has done all it was given. The first stopwatch stopped when the product had
# been *launched*: put into the queue. The second stopped when it was there.

# %%
record("04", "a matrix product", {"launched (ms)": 1e3 * launched_s, "done (ms)": 1e3 * done_s})
claim(
    "the call returns long before the product is there",
    holds=launched_s < 0.5 * done_s,
    evidence=f"launched after {1e3 * launched_s:.3f} ms, done after {1e3 * done_s:.3f} ms",
)

# %% [markdown]
# This is *asynchronous dispatch*. It is worth having: while the device computes, the host reads the next batch and
# launches the next step. But when the host asks for a *value*, it must wait until all work before it is done.

# %% [markdown]
# ### A loop
#
# The task is that of lesson 01, printed characters. A batch comes from a disk. Twelve milliseconds of sleep stand for
# the disk: in them the host could not do anything else, and the device could.

# %%
from labkit import train

pictures = glyphs.load("train", size=24)
READ_S, BATCH = 12e-3, 256


def batch(n, spoilt=None):
    """Batch n, read and sent to the device; the spoilt one has a pixel that is not a number."""
    with dev.note("data", "read"):  # shown as `read` in a recording
        time.sleep(READ_S)
        dice = torch.Generator().manual_seed(n)
        chosen = torch.randint(len(pictures.inputs), (BATCH,), generator=dice)
        x, y = pictures.inputs[chosen], pictures.targets[chosen]
    if n == spoilt:
        x[0, 0, 0, 0] = math.nan
    return dev.put(x, non_blocking=True), dev.put(y, non_blocking=True)


# %% [markdown]
# `non_blocking` sends the batch without waiting for its arrival. The network: three convolutions. On a GPU it is made
# wider until a step takes the device as long as the disk takes the host; a small network would leave a large GPU idle
# anyway. `foreach` lets the optimizer update all weights in a few operations.


# %%
def fresh(width):
    """A network on the device and its optimizer, the same each time."""
    torch.manual_seed(0)
    shrink = {"kernel_size": 3, "stride": 2, "padding": 1}
    model = nn.Sequential(
        *(nn.Conv2d(1, width, **shrink), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, **shrink), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(2 * width * 36, 32)),
    )
    dev.put(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)


def step_s(width):
    """Seconds that the device takes for a step; the shortest of three."""
    model, optimizer = fresh(width)
    x, y = batch(0)
    step = {"step": lambda: train.train_step(model, x, y, optimizer)}
    return min(bench(step, device=dev, repeats=5, warmup=3).seconds["step"])


# %%
WIDTH = 16
while torch.cuda.is_available() and WIDTH < 512 and step_s(WIDTH) < READ_S:
    WIDTH *= 2

# %% [markdown]
# And the loop that everyone writes. `train.train_step` is one step of training: forward, backward, update; it returns
# the loss, still on the device. The loop keeps it for a curve, and stops when it is *NaN*, not a number, for from then
# on every weight is NaN too.


# %%
def every_step(model, optimizer, n_steps):
    losses = []
    for n in range(n_steps):
        x, y = batch(n)
        loss = train.train_step(model, x, y, optimizer)
        if torch.isnan(loss):
            raise FloatingPointError(f"NaN in step {n}")
        losses.append(loss.item())
    return losses


# %% [markdown]
# ## Measure
#
# ### The stopwatch blames the wrong line
#
# The loop without its NaN check, and a stopwatch around each line: the batch, the step, and the reading. (The check
# comes first. With it, that line would pay in place of the reading.)


# %%
def stopwatch(n_steps, wait_first):
    """Seconds in each line of the loop; wait_first waits for the device before the loss is read."""
    model, optimizer = fresh(WIDTH)
    spent = {"batch": 0.0, "train_step": 0.0, "synchronize": 0.0, "loss.item()": 0.0}

    def timed(line, call):
        start = time.perf_counter()
        result = call()
        spent[line] += time.perf_counter() - start
        return result

    for n in range(n_steps):
        x, y = timed("batch", lambda n=n: batch(n))
        loss = timed("train_step", lambda x=x, y=y: train.train_step(model, x, y, optimizer))
        if wait_first:
            timed("synchronize", dev.synchronize)
        timed("loss.item()", loss.item)
    return spent


# %%
N_STEPS = 20 if FULL else 3
from labkit import reveal

stopwatch(3, wait_first=False)
blamed = stopwatch(N_STEPS, wait_first=False)
share = blamed["loss.item()"] / sum(blamed.values())
reveal("blame", 100 * share)

# %% [markdown]
# It looks as though a good part of the time goes into reading one number. Does it? Wait for the device *before*
# the number is read, and see what is left of the line.

# %%
repaired = stopwatch(N_STEPS, wait_first=True)
per_step = [{line: 1e3 * s / N_STEPS for line, s in spent.items()} for spent in (blamed, repaired)]
rows = [[line, *(f"{each[line]:.3f}" for each in per_step)] for line in blamed]
rows += [["all", *(f"{sum(each.values()):.3f}" for each in per_step)]]
table(["ms a step, by line", "without a wait", "with a wait before"], rows, varying=True)

# %%
claim(
    "most of the time in .item() is waiting for earlier work: after a wait, little is left of it",
    holds=repaired["loss.item()"] < 0.5 * blamed["loss.item()"],
    evidence=f"{1e3 * blamed['loss.item()'] / N_STEPS:.3f} ms a step, after a wait "
    f"{1e3 * repaired['loss.item()'] / N_STEPS:.3f} ms",
)

# %% [markdown]
# A stopwatch tells where the *host* was. `train_step` seems cheap, for it only launches; `.item()` pays for what was
# launched. To see who worked and who waited, one needs both rows of a timeline.

# %% [markdown]
# ### How a stall looks
#
# `dev.recording()` notes what host and device do: above the host, below the device. A *kernel* is a piece of the
# device's work; hatching marks where it stands idle, in the colour of what the host did meanwhile. *Nothing known*: it
# was in Python, say.

# %%
from labkit import plot_timeline

FEW = 4
model, optimizer = fresh(WIDTH)
every_step(model, optimizer, FEW)
with dev.recording() as stalled:
    every_step(model, optimizer, FEW)

# %%
plot_timeline.timeline(stalled, title="A loop that reads its loss at each step")

# %% [markdown]
# Host and device take turns. While the host reads, the device stands idle; while the device works, the host waits, in
# `bool`: that is `if torch.isnan(loss)`. The `.item()` after it finds all done, and costs next to nothing. A step takes
# the sum of both. Without waits it need take no longer than the longer of them.

# %% [markdown]
# ### Four ways to look
#
# Every k steps: keep the losses where they are, on the device, and fetch k of them in one go.


# %%
def every_k(model, optimizer, n_steps, k=10):
    losses, recent = [], []
    for n in range(n_steps):
        x, y = batch(n)
        recent.append(train.train_step(model, x, y, optimizer))
        if len(recent) == k or n == n_steps - 1:
            losses += torch.stack(recent).tolist()  # one wait for k losses
            recent = []
            if any(map(math.isnan, losses)):
                raise FloatingPointError(f"NaN in a step up to {n}")
    return losses


# %% [markdown]
# On the device: a vector there takes each loss, a flag there remembers whether one was NaN. `bad | loss.isnan()` is
# an operation like any other; it makes a tensor, and nobody asks for its value until the end.


# %%
def on_device(model, optimizer, n_steps):
    losses = dev.put(torch.zeros(n_steps), non_blocking=True)
    bad = dev.put(torch.tensor(False), non_blocking=True)
    for n in range(n_steps):
        x, y = batch(n)
        losses[n] = train.train_step(model, x, y, optimizer)
        bad = bad | losses[n].isnan()
    if bad:
        raise FloatingPointError("NaN somewhere")
    return losses.tolist()


# %% [markdown]
# That never stops a run that is lost. So let somebody else look: a *watcher*, in a thread of its own, may wait for
# the device as long as it likes. `dev.fetch(loss)` starts a copy to the host and returns at once; `get()` waits for
# this copy alone. (On a GPU the copy goes to *pinned* memory, which stays where it is, and is followed by an *event*, a
# mark in the queue that one can ask for.)

# %% [markdown]
# The loop must not run ahead of its watcher without bound. So the inbox has room for `most_late` losses. When it is
# full, `put` waits until the watcher has taken one. One more may be in the watcher's hands.


# %%
class Watcher:
    """Reads losses in a thread of its own; sets `stop` when one is NaN."""

    def __init__(self, most_late):
        self.inbox, self.stop = queue.Queue(maxsize=most_late), threading.Event()
        self.losses, self.first_bad, self.error = [], None, None
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        try:
            while (pending := self.inbox.get()) is not None:
                self.losses.append(pending.get().item())
                if self.first_bad is None and math.isnan(self.losses[-1]):
                    self.first_bad = len(self.losses) - 1
                    self.stop.set()
        except Exception as error:
            self.error = error
            self.stop.set()
            while self.inbox.get() is not None:
                pass  # or the loop would wait for room for ever

    def close(self):
        self.inbox.put(None)
        self.thread.join()
        if self.error:
            raise self.error


# %% [markdown]
# The loop asks `stop.is_set()`, which costs next to nothing: it is a question to the host, about a flag in its own
# memory, and not to the device.


# %%
def watched(model, optimizer, n_steps, most_late=5):
    watcher = Watcher(most_late)
    try:
        for n in range(n_steps):
            if watcher.stop.is_set():
                break
            x, y = batch(n)
            watcher.inbox.put(dev.fetch(train.train_step(model, x, y, optimizer)))
    finally:  # whatever happens, or its thread would wait for ever
        watcher.close()
    if watcher.first_bad is not None:
        raise FloatingPointError(f"NaN in step {watcher.first_bad}")
    return watcher.losses


# %% [markdown]
# First: are they the same? Nothing about the arithmetic has changed, so nothing less than equality to the last bit
# will do, of the losses and of the weights.

# %%
LOOPS = {"every step": every_step, "every 10": every_k, "on the device": on_device}
LOOPS["a watcher"] = watched


def run(loop, n_steps=N_STEPS):
    """The losses of a loop, and its weights at the end in one vector."""
    model, optimizer = fresh(WIDTH)
    losses = loop(model, optimizer, n_steps)
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


# %%
results = {name: run(loop) for name, loop in LOOPS.items()}
losses, weights = results["every step"]
same = {n: each[0] == losses and torch.equal(each[1], weights) for n, each in results.items()}
claim(
    "all four loops give the same losses and the same weights, bit for bit",
    holds=all(same.values()) and len(losses) == N_STEPS,
    evidence=f"{same}; the last loss is {losses[-1]!r} in all",
)

# %% [markdown]
# Then: how fast? In turns, as lesson 00 taught, each run from fresh weights to the last loss in hand.

# %%
from labkit import plot

calls = {name: lambda loop=loop: run(loop) for name, loop in LOOPS.items()}
timed = bench(calls, device=dev, repeats=7 if FULL else 5, warmup=1)
plot.samples(timed, title=f"{N_STEPS} steps")
per_step = {f"{name} (ms)": 1e3 * s / N_STEPS for name, s in timed.median_s.items()}
record("04", "time of a step", {"device": dev.name, **per_step})

# %%
gain = timed.ratio("every step", "on the device")
reveal("gain", gain.value)
ratios = {name: timed.ratio("every step", name) for name in list(LOOPS)[1:]}
rounds = lambda r: f"{r.value:.3g}x in the median round ({r.low:.3g}x to {r.high:.3g}x in all)"
claim(
    "each of the other three is faster than a look at each step, in the median round",
    holds=all(ratio.value > 1.1 for ratio in ratios.values()),
    evidence="\n".join(f"against {name}: {rounds(ratio)}" for name, ratio in ratios.items()),
)

# %% [markdown]
# The timeline of the loop without waits, for the same steps. The host reads the next batch while the device works. The
# long bar at the end is the one wait that is left, `if bad`: the host has nothing else to do.

# %%
model, optimizer = fresh(WIDTH)
on_device(model, optimizer, FEW)
with dev.recording() as flowing:
    on_device(model, optimizer, FEW)
plot_timeline.timeline(flowing, title="The same steps, the loss left on the device")


# %% [markdown]
# How much of the time does the device stand idle? `gaps` finds the stretches in a recording, a list of *spans*: from
# when to when, in which row, of which kind. Six recordings of each loop, in turns, and a middle one of each.


# %%
from labkit.timeline import gaps


def idle_share(loop, n_steps=8):
    """Share of the time, from the first span to the last, in which the device had nothing to do."""
    model, optimizer = fresh(WIDTH)
    with dev.recording() as spans:
        loop(model, optimizer, n_steps)
    length_s = max(s.end_s for s in spans) - min(s.start_s for s in spans)
    return sum(gap.seconds for gap in gaps(spans)) / length_s


# %%
shares = {"every step": [], "on the device": []}
for _ in range(6 if FULL else 1):
    for name, found in shares.items():
        found.append(idle_share(LOOPS[name]))
idle = {name: sorted(found)[len(found) // 2] for name, found in shares.items()}
record("04", "share of the time that the device stands idle", {"device": dev.name, **idle})
claim(
    "without waits the device stands idle for less of the time",
    holds=idle["on the device"] < 0.9 * idle["every step"],
    evidence=", ".join(f"{name} {share:.0%}" for name, share in idle.items()),
)

# %% [markdown]
# ### How late is late?
#
# A NaN is planted: one pixel of one batch. The watcher must stop the loop at most `most_late + 1` steps after. And
# what was lost must come back, so the loop keeps copies of the weights, on the device, before every few steps.

# %% [markdown]
# Which copy is good? The loss of step n is computed *from* the weights before step n, here from all of them. If it is a
# number, they were. So the newest good copy is the newest one taken before a step whose loss was fine: strictly before
# the first bad one. The weights *of* the first bad step may have been broken by the step before.


# %%
def guarded(n_steps, most_late, spoilt):
    """The watcher, the number of steps done, and copies of the weights by the step that follows."""
    (model, optimizer), watcher, kept = fresh(WIDTH), Watcher(most_late), {}
    try:
        for n in range(n_steps):
            if watcher.stop.is_set():
                break
            if n % 4 == 0:
                kept[n] = torch.cat([p.detach().flatten() for p in model.parameters()])
            x, y = batch(n, spoilt)
            watcher.inbox.put(dev.fetch(train.train_step(model, x, y, optimizer)))
    finally:
        watcher.close()
    return watcher, len(watcher.losses), kept


# %% [markdown]
# Four times a NaN, never in step 0, before which there is no copy, with an inbox of one, three and six places.
# Each time the newest good copy is held against the weights of a run that was never spoilt and did as many steps.

# %%
late, back = {}, {}
for most_late, spoilt in ((1, 3), (1, 6), (3, 9), (6, 13)):
    watcher, n_done, kept = guarded(spoilt + 12, most_late, spoilt)
    good = max(n for n in kept if n < watcher.first_bad)
    late[most_late, spoilt] = (watcher.first_bad == spoilt, n_done - 1 - spoilt)
    back[spoilt] = torch.equal(kept[good], run(every_step, good)[1])

# %%
claim(
    "the watcher stops the loop at most most_late + 1 steps after the NaN",
    holds=all(seen and steps <= most + 1 for (most, _), (seen, steps) in late.items()),
    evidence="\n".join(f"{m} places, NaN in step {s}: {n} late" for (m, s), (_, n) in late.items()),
)
claim(
    "the copy put back is, bit for bit, what an undisturbed run has after as many steps",
    holds=all(back.values()),
    evidence=f"NaN in step, equal: {back}",
)
record("04", "steps after a NaN until the loop stops, room for 6", {"late": late[6, 13][1]})

# %% [markdown]
# A copy of the weights costs memory on the device, and so do three. Keep as many as the bound asks for: with copies
# every 4 steps and at most 7 steps late, the newest three always hold a good one.

# %% [markdown]
# ### What waits, by name
#
# `labkit.sync` watches code as it runs, and names each line that waits, how often, and what to write instead.

# %%
from labkit import sync

model, optimizer = fresh(WIDTH)
with sync.watch() as report:
    every_step(model, optimizer, 3)
report.show()

# %%
found = {row.source.strip() for row in report.rows}
claim(
    "labkit.sync names the two lines of the loop that wait, and no other",
    holds=found == {"if torch.isnan(loss):", "losses.append(loss.item())"},
    evidence="; ".join(f"{row.place}: {row.op}, {row.count} times" for row in report.rows),
)

# %% [markdown]
# In a cell of your own, once `labkit.sync` is imported, write `%%syncs` as the first line, and the table comes without
# the `with`. Like `watch()` it counts what concerns the device.
#
# ### The norm of the gradients
#
# Shortening long gradients needs their norm, a value on the device. Does `clip_grad_norm_` wait for it? Until 2021 it
# did, up to three times a call. Count.


# %%
def waits_in(call):
    """How often the host waits for the device in a call, after a first one that does not count."""
    call()
    with dev.recording() as spans:
        call()
    return sum(span.kind == "wait" for span in spans)


# %%
model, optimizer = fresh(WIDTH)
train.train_step(model, *batch(0), optimizer)
WAYS = {
    "as it is": {},
    "foreach=True": {"foreach": True},
    "foreach=False": {"foreach": False},
    "error_if_nonfinite=True": {"error_if_nonfinite": True},
}
clip = lambda way: nn.utils.clip_grad_norm_(model.parameters(), 1.0, **way)
waits = {name: waits_in(lambda way=way: clip(way)) for name, way in WAYS.items()}
table(["clip_grad_norm_", "waits"], list(waits.items()))

# %% [markdown]
# It multiplies by min(1, max_norm / norm), on the device, always; so it need not know which of the two it is. Only
# `error_if_nonfinite=True` asks, since to raise an error is the host's affair. With `foreach` all gradients go into
# few launches; that saves launches, not waits. But `if norm > 10:` in *your* code waits.

# %%
claim(
    "clip_grad_norm_ waits once when asked to raise an error, and otherwise never",
    holds=list(waits.values()) == [0, 0, 0, 1],
    evidence=str(waits),
)

# %% [markdown]
# ## Change one thing
#
# How seldom must one look? Change `LOOKS`, the steps between two looks, and see from where on nothing more is gained.
# Keep 1 and 10, which are compared below; a run has too few steps for looks further apart than those here.

# %%
LOOKS = (1, 2, 5, 10, 20)
looking = {f"{k}": lambda k=k: run(lambda *given: every_k(*given, k)) for k in LOOKS}
looked = bench(looking, device=dev, repeats=5, warmup=1)
spread = {f"every {k}": [s / N_STEPS for s in looked.seconds[f"{k}"]] for k in LOOKS}
title = "By how many steps lie between two looks"
plot.samples(spread, title=title, xlabel="time of one step")

# %% [markdown]
# The first steps gain the most: with a look every k steps, a k-th of the waiting is left, and soon that is less than
# the scatter of the dots. Nobody needs a loss curve finer than every ten steps. The price is how late you hear of a
# NaN.

# %%
claim(
    "a look every 10 steps is faster than one at each step, in the median round",
    holds=looked.ratio("1", "10").value > 1.1,
    evidence=f"a look at each step against one every 10: {rounds(looked.ratio('1', '10'))}",
)

# %% [markdown]
# ## Exercises
#
# Three tools. Where you have not built one yet, the cells after it use the course's own.
#
# ### Exercise 4.1 · Find the stalls (12 min, easy)
#
# Does a call wait? Build the test. `keep_busy()` launches work that takes the device a while, and returns a tensor of
# it at once. `dev.fetch(tensor)` gives a marker, and `marker.done()` says, without waiting, whether the device has got
# that far. Return True if `call()` waits, else False.

# %% [markdown]
# The traps: a first call may wait for reasons of its own (a library is loaded, shapes are learnt), and is not to
# count. An idle device makes nobody wait. And a call that merely takes the host long is no wait, so a stopwatch will
# not do. Do without `dev.recording` and `labkit.sync`, too: the check's device is of paper, and has only `fetch` and
# `synchronize`.


# %%
def waits_for_device(dev, keep_busy, call):
    """Whether call() waits for the device."""
    ### BEGIN SOLUTION
    call()  # the first one does not count
    dev.synchronize()
    marker = dev.fetch(keep_busy())
    call()
    waited = marker.done()
    dev.synchronize()
    return waited
    ### END SOLUTION


# %%
check(waits_for_device)

# %% [markdown]
# Now hold it against what people write. `x` is a vector on the device, `mask` has some True and some False, `one` is a
# single number there. Before you run it: which lines would you have suspected?

# %%
x, big = dev.put(torch.arange(8.0)), dev.put(torch.randn(1500, 1500))
mask, one, index = x > 3, x[1], x.long()
SUSPECTS = {
    "x + 1": lambda: x + 1,
    "one.item()": lambda: one.item(),
    "if one > 0": lambda: 1 if one > 0 else 2,
    "f'{one:.2f}'": lambda: f"{one:.2f}",
    "x.cpu()": lambda: x.cpu(),
    "x.tolist()": lambda: x.tolist(),
    "x[mask]": lambda: x[mask],
    "x.masked_fill(mask, 0)": lambda: x.masked_fill(mask, 0),
    "x.nonzero()": lambda: x.nonzero(),
    "torch.where(mask)": lambda: torch.where(mask),
    "torch.where(mask, x, 0)": lambda: torch.where(mask, x, 0.0),
    "x[index]": lambda: x[index],
    "x.sum()": lambda: x.sum(),
    "torch.equal(x, x)": lambda: torch.equal(x, x),
    "x.unique()": lambda: x.unique(),
    "dev.put(torch.ones(8))": lambda: dev.put(torch.ones(8)),
    "len(x), x.shape, x.dtype": lambda: (len(x), x.shape, x.dtype),
}

# %%
test = attempt(waits_for_device)
keep_busy = lambda: (big @ big) @ big
waiting = {name: test(dev, keep_busy, call) for name, call in SUSPECTS.items()}
table(["the host ...", "waits"], [[name, "waits" if w else ""] for name, w in waiting.items()])

# %% [markdown]
# One rule explains them all. A line waits when it turns a *value* on the device into something that the host must
# know: a Python number, a branch, text, or the *size* of a result. `x[mask]` is as long as the mask has Trues, and
# the host must know that to go on; `masked_fill` is as long as x.

# %%
quiet = ["x + 1", "x.masked_fill(mask, 0)", "torch.where(mask, x, 0)", "x[index]", "x.sum()"]
quiet += ["len(x), x.shape, x.dtype"]

# %%
claim(
    "what needs a value or a size waits; what only computes does not",
    holds=all(waits == (name not in quiet) for name, waits in waiting.items()),
    evidence="wait: " + ", ".join(name for name, waits in waiting.items() if waits),
)

# %% [markdown]
# ### Exercise 4.2 · The deferred guard (25 min, hard)
#
# A guard against NaN without a thread. `after_step(loss)` is called after each step, with a loss on the device. It
# returns True when training must stop, at most `2 * every - 1` steps after the first bad loss, else False. It waits for
# nothing launched in the last `every` steps.
#
# One bad loss is enough, also when the next ones are fine. So: note each in a flag on the device. Every `every` steps,
# look at the flag fetched `every` steps ago, then fetch it anew.

# %% [markdown]
# `restore()` is written for you. It puts `self.states[0]` back, a pair of steps done and weights, which must be
# proven good. Keep a new state every `every` steps, three in all.
#
# The traps: a state is proven only by a *later* loss that was computed from it. `marker.done()` alone lets a loop run
# away from a slow device; `get()` holds the bound. Do not wait for the flag that you have just fetched.


# %%
class NanGuard:
    def __init__(self, dev, model, every):
        self.dev, self.model, self.every, self.n_steps = dev, model, every, 0
        self.bad, self.flag = dev.put(torch.tensor(False), non_blocking=True), None
        self.states = [(0, self.state())]

    def state(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def after_step(self, loss):
        ### BEGIN SOLUTION
        self.bad = self.bad | loss.detach().isnan()
        self.n_steps += 1
        if self.n_steps % self.every:
            return False
        if self.flag is not None and self.flag.get():
            return True
        self.flag = self.dev.fetch(self.bad)
        self.states = [*self.states[-2:], (self.n_steps, self.state())]
        return False
        ### END SOLUTION

    def restore(self):
        n_steps, state = self.states[0]
        with torch.no_grad():
            for p, kept in zip(self.model.parameters(), state, strict=True):
                p.copy_(kept)
        return n_steps


# %%
check(NanGuard)

# %% [markdown]
# In the loop, with a NaN in step 17 (counted from 0). It goes back, and the weights are held against those of a run
# that never saw it.

# %%
(model, optimizer), every = fresh(WIDTH), 5
guard = attempt(NanGuard)(dev, model, every)
for n in range(40):
    x, y = batch(n, spoilt=17)
    if guard.after_step(train.train_step(model, x, y, optimizer)):
        break
n_good = guard.restore()
restored = torch.cat([p.detach().flatten() for p in model.parameters()])

# %%
claim(
    "the guard stops within its bound and puts back the bits of an undisturbed run",
    holds=0 <= n - 17 <= 2 * every - 1 and torch.equal(restored, run(every_step, n_good)[1]),
    evidence=f"stopped {n - 17} steps late, back to the weights after {n_good} steps",
)

# %% [markdown]
# ### Exercise 4.3 · Twice as fast, the same result (20 min, medium)
#
# Here is a loop with all the habits: blocking copies, checks and norms at each step, a count on the host, and a
# line of text for a progress bar that reads all losses again, and prints a tensor, at every step.


# %%
def slow_loop(dev, model, optimizer, batches):
    losses, n_right = [], 0
    for x, y in batches:
        x, y = dev.put(x), dev.put(y)
        logits = model(x)
        loss = cross_entropy(logits, y)
        if torch.isnan(loss):
            raise FloatingPointError("the loss is NaN")
        optimizer.zero_grad()
        loss.backward()
        norms = [float(p.grad.norm()) for p in model.parameters()]
        if not all(map(math.isfinite, norms)):
            raise FloatingPointError("a gradient is NaN")
        optimizer.step()
        losses.append(loss.detach())
        n_right += int((logits.argmax(1) == y).sum())
        f"mean loss {sum(map(float, losses)) / len(losses):.3f}, norms {norms}, logits {logits}"
    return [float(each) for each in losses], n_right


# %% [markdown]
# Write `quick_loop`: the same losses, the same count, the same weights to the last bit, twice as fast. It looks at
# the losses every `every` steps and at the end, and raises FloatingPointError if one of them is NaN, so at most
# `every - 1` steps late. The progress bar may go. So may the check of the gradients, but for the last step: a NaN there
# shows in the next loss.

# %% [markdown]
# The traps: the last steps, when their number is no multiple of `every`; what is returned, numbers and no tensors;
# dropping the check. Up to three waits a look are fine.


# %%
def quick_loop(dev, model, optimizer, batches, every):
    """(losses, number of right answers) of one pass over batches."""
    ### BEGIN SOLUTION
    losses, recent, n_right = [], [], 0
    for n, (x, y) in enumerate(batches, 1):
        x, y = dev.put(x, non_blocking=True), dev.put(y, non_blocking=True)
        logits = model(x)
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.detach())
        n_right = n_right + (logits.argmax(1) == y).sum()
        if n % every == 0 or n == len(batches):
            losses += torch.stack(recent).tolist()
            recent = []
            if any(map(math.isnan, losses)):
                raise FloatingPointError("a loss is NaN")
    return losses, int(n_right)
    ### END SOLUTION


# %%
check(quick_loop)

# %% [markdown]
# Both loops on this device, in turns, with a small network of fully connected layers: many launches, and little work in
# each.

# %%
dice = torch.Generator().manual_seed(0)
draw = lambda: (torch.randn(32, 32, generator=dice), torch.randint(0, 10, (32,), generator=dice))
batches = [draw() for _ in range(100 if FULL else 20)]


def contest(loop, *more):
    """Losses and right answers of a loop from fresh weights."""
    torch.manual_seed(0)
    layers = [layer for _ in range(2) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model = dev.put(nn.Sequential(*layers, nn.Linear(32, 10)))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return loop(dev, model, sgd, batches, *more)


# %% [markdown]
# First, do they agree, in every loss and in the count? Then five rounds of each. The figure to look at is the ratio:
# it says how much of the slow loop was waiting and asking.

# %%
quick = attempt(quick_loop)
agree = contest(slow_loop) == contest(quick, 20)
both = bench(
    {"slow": lambda: contest(slow_loop), "quick": lambda: contest(quick, 20)},
    device=dev,
    repeats=5,
    warmup=1,
)
faster = both.ratio("slow", "quick")
record("04", "exercise 4.3", {"device": dev.name, "slow / quick (times)": faster.value})

# %%
claim(
    "without its waits the loop is at least twice as fast in the median round, with equal results",
    holds=agree and faster.value >= 2,
    evidence=f"slow against quick: {rounds(faster)}; equal: {agree}",
)

# %% [markdown]
# ## Limits
#
# **When does it not help?** When there is nothing to overlap. If the host has no work of its own, a device that is
# always busy loses only the little while between two steps. If the device is faster than the host can launch, it
# stands idle with or without waits: then fewer launches help (lessons 06 and 08). And a look every hundred steps is
# cheap enough to leave in peace.

# %% [markdown]
# - The worker thread is a model. A launch costs it some fifteen microseconds, a GPU's five to ten. It shares the cores
#   with the host, which a GPU does not; with one core there is little to gain.
# - It lets pass what a GPU refuses: a tensor on the device plus one on the host, or `.numpy()` without `.cpu()`. And a
#   GRU wants its first state given.

# %% [markdown]
# - Twelve milliseconds of sleep are a disk of our choosing. With a quick disk the gain is smaller: the loop without
#   waits takes the longer of two times, the other one their sum.
# - On a GPU a copy without waiting needs *pinned* memory, which cannot be moved to the disk; from ordinary memory
#   `non_blocking` may still wait.
# - After an asynchronous copy to the host, the numbers are there only when an event says so. Read too early, they are
#   wrong, and no error says so.

# %% [markdown]
# - Restoring weights is not all: an optimizer has a state too, such as SGD's momentum, and so has the order of the
#   data. Lesson 16 puts back all of it.

# %% [markdown]
# ## Further questions
#
# 1. Set `READ_S` to zero. What is left of the gain, and why?
# 2. Let the guard watch the norm of the gradients instead of the loss. By how many steps does it hear earlier?
# 3. (Needs a GPU.) `torch.cuda.set_sync_debug_mode("warn")` warns at each wait. Which of the suspects does it miss?
# 4. Write a progress bar that shows the mean loss, and never waits for anything younger than ten steps.

# %% [markdown]
# ## Sources
#
# - PyTorch, [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html), asynchronous execution.
# - PyTorch, [Performance Tuning
#   Guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html): avoid unnecessary synchronisation.
# - PyTorch 2.13, `torch/nn/utils/clip_grad.py`; [issue 60691](https://github.com/pytorch/pytorch/issues/60691) and
#   [pull request 61042](https://github.com/pytorch/pytorch/pull/61042), 2021: when `clip_grad_norm_` waited, and how
#   that was ended.
# - PyTorch, [A guide on pin_memory and
#   non_blocking](https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html).
