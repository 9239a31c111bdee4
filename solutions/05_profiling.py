# title: Profiling
# minutes: 80
# cpu: everything; a thread of its own stands in for the device, so that the host can run ahead and has to wait
# gpu: the same cells on the GPU, and its own trace
#
# %% [markdown]
# # 05 · Profiling
#
# Eighty minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# A training loop is slow. Six of its lines are to blame, and none of them looks it. Whoever guesses repairs the wrong
# one first. **How do you find out, by measuring, where the time goes, which line to change, and what it will be
# worth?**

# %%
import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from labkit import attempt, check, claim, device_thread, predict, record, repro, reveal, table

# %% [markdown]
# Lesson 04's device serves here too: on a machine without a GPU, a thread of its own that takes operations from a
# queue. The *host* is the Python program that fills the queue. A *launch* puts one operation into it; a *kernel* is
# the operation while it runs.

# %%
torch.set_num_threads(1)
FULL = repro.budget() == "full"  # else a preview in a few steps, which decides no claim
dev = device_thread.open()
table(["", "is here"], [["the device", dev.name]], varying=True)

# %% [markdown]
# ## Predict
#
# You will see the loop in a moment: it reads a batch, prepares it, copies it to the device, and trains a small network
# on it. The network is all that the device is there for. Move the slider before you go on.

# %%
question = "What share of the time does the device compute, while this loop runs?"
predict("busy", question, default=60, low=0, high=100, unit="%")

# %% [markdown]
# ## Build
#
# The data are scans of printed characters, 64 to a batch. They lie on a `Shelf`, a stand-in for storage across a
# network: each batch takes a fixed time to arrive (a sleep) and is then unpacked (real work). The scanners differed,
# so the scans of one batch are all of one size, and sizes change from batch to batch.

# %%
from labkit import plot, plot_timeline, sync, trace, workshop

shelf = workshop.Shelf()
sizes = [shelf.read(step)[0].shape[-1] for step in range(12)]
print("pixels a side:", *sizes)

# %% [markdown]
# The loop. `tidied` brings scans of any size to 24 pixels. It is compiled, here only by *Dynamo*, the part of
# `torch.compile` that turns a function into a *graph*, a list of its tensor operations, for that needs no compiler.
# `gains` brighten or darken each picture a little. Each line works, and each is one that you may have written. Which
# lines do you suspect?


# %%
def slow_loop(dev, shelf, n_steps, log):
    """The losses of n_steps of training."""
    model, optimizer = workshop.network(dev)
    prepare = torch.compile(workshop.tidied, backend="eager", dynamic=False)
    put = partial(dev.put, non_blocking=False)
    losses = []
    for step, (scans, gains, labels) in enumerate(map(shelf.read, range(n_steps))):
        gains, labels = put(gains), put(labels)
        pictures = put(prepare(scans))
        each = zip(pictures, gains, strict=True)
        pictures = torch.stack([(p * g + 0.1).clamp(-2, 2) for p, g in each])
        logits = model(pictures)
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        log.append(f"step {step}: {logits[:8].detach()}")
    return losses


# %% [markdown]
# ## Measure
#
# First a picture. `workshop.recorded` runs the loop and notes, as *spans* with a start and an end, what host and device
# did. It runs one step before it starts to record, for the first step compiles, learns shapes and takes memory, and
# would tell about beginnings only.

# %%
N_STEPS = 24 if FULL else 6
spans = workshop.recorded(slow_loop, dev, n_steps=N_STEPS, shelf=shelf)
slow_trace = trace.read(spans)
first, last = slow_trace.steps[3], slow_trace.steps[4]  # two in which nothing compiles
window = {"start_s": first.start_s, "end_s": last.end_s}
plot_timeline.timeline(slow_trace.spans, title="Two steps of the slow loop", **window)

# %% [markdown]
# Host above, device below. What is solid in the device's row is work; what is hatched is *idle* time, and the hatching
# says what the host did meanwhile. Two things catch the eye: how little is solid, and how much of the rest is one
# colour.


# %%
def only_device(report):
    """The report on the one device of a trace."""
    return next(iter(report.devices.values()))


slow = only_device(trace.report(slow_trace))
reveal("busy", 100 * (1 - slow.idle_share))
claim(
    "while the slow loop runs, the device is idle for more than half of the time",
    holds=slow.idle_share > 0.5,
    evidence=f"idle for {slow.idle_share:.0%} of {slow_trace.span_s:.2f} s",
)

# %% [markdown]
# Idle for which reason? Per step, over the whole recording. *Data wait*: the host waited for a batch. *Compilation*: it
# made a graph. *Launch-bound*: it was busy launching, and the device waited for more. *Synchronisation*: it had waited
# for the device, so the queue was empty, and had to be filled again.

# %%
CAUSES = ("data wait", "compilation", "synchronisation", "launch-bound")


def per_step(device, n_steps):
    """Milliseconds a step: computing, and idle by cause."""
    idle = {cause: device.idle_causes.get(cause, 0.0) for cause in CAUSES}
    idle["other idle"] = device.idle_s - sum(idle.values())
    return {k: 1e3 * s / n_steps for k, s in {"busy": device.busy_s, **idle}.items()}


record("05", "the slow loop's device, ms a step", per_step(slow, N_STEPS))

# %% [markdown]
# ### The line that takes longest
#
# Now a mistake that nearly everybody makes. `labkit.sync`, from lesson 04, lists the lines on which the host waits for
# the device. Here it watches five steps. The first line that it finds only sets up; four wait in every step. One of
# them is `loss.item()`, known to all as a *sync*: it needs the number, so it waits until the device is done.

# %%
torch.compiler.reset()
with sync.watch() as waits:
    slow_loop(dev, shelf, 5, [])
rows = [[row.source[:58], row.op, row.count] for row in waits.rows]
table(["line", "waits in", "times"], rows, varying=True)

# %% [markdown]
# So `.item()` has to go: the loss can stay on the device until training ends. `workshop.loop` is the same loop, with
# faults by name. Guess what the repair of this one line is worth.

# %%
question = "How many times faster is the loop without its .item()?"
predict("item", question, default=1.5, low=1, high=4, unit="times")


# %%
def in_turns(arms, n_steps, rounds):
    """Milliseconds a step of each set of faults, in some rounds, taken in turns; quickest first."""
    found = {name: [] for name in arms}
    for _ in range(rounds):
        for name, faults in arms.items():
            run = partial(workshop.loop, faults=faults)
            done = workshop.timed(run, dev, n_steps=n_steps, shelf=shelf)
            found[name].append(1e3 * done.seconds / n_steps)
    return {name: sorted(each) for name, each in found.items()}


without = tuple(fault for fault in workshop.FAULTS if fault != "syncing")
arms = {"all": workshop.FAULTS, "without .item()": without}
tried = in_turns(arms, n_steps=8 if FULL else 2, rounds=5 if FULL else 1)
reveal("item", tried["all"][0] / tried["without .item()"][0])

# %% [markdown]
# Next to nothing. The waiting has only moved, to the next line that waits: the line of the log turns numbers of the
# device into text. And were that gone, the first copy of the next step would wait. *How long a line takes tells where
# the host stood, not what kept it.* The profiler's column "self CPU time" misleads in the same way.

# %%
claim(
    "without its .item() the slow loop is less than a third faster: the wait moves to another line",
    holds=tried["all"][0] < 4 / 3 * tried["without .item()"][0],
    evidence="\n".join(f"{name}: {[round(ms) for ms in each]} ms" for name, each in tried.items()),
)

# %% [markdown]
# ### Count before you time
#
# Times are noisy, and counts are not. How many operations does the device run in one step? The network has four layers
# with weights or without, forward and backward, and a plain optimizer: two or three dozen would be in order.

# %%
a_step = slow.kernels / N_STEPS
most = sorted(slow.top, key=lambda each: -each.count)[:6]
rows = [[each.name[:40], round(each.count / N_STEPS), f"{each.share:.0%}"] for each in most]
table(["operation", "a step", "of the busy time"], rows, varying=True)

# %% [markdown]
# Three of them come once for every picture: the list comprehension in the loop multiplies, adds and clamps one picture
# at a time. Each is over in microseconds, less than the host takes to launch it. On the timeline they are the thin
# stripes between reading and training.

# %%
claim(
    "one line makes most of the operations: three for each of the 64 pictures in a batch",
    holds=3 * 64 <= a_step < 2 * 3 * 64,
    evidence=f"{a_step:.0f} operations a step; {slow.short_kernels / slow.kernels:.0%} below 10 µs",
)

# %% [markdown]
# ### Steps that are slow now and then
#
# A mean hides what happens rarely. So record more steps, and look for *outliers*: steps that took much longer than
# their neighbours. Batches are small this time and lie at hand, and only two of the faults are left in, so that other
# things stand out. The second line joins those steps in which something was compiled.

# %%
N_LONG = 200 if FULL else 12
near = workshop.Shelf(batch_size=16, latency_s=0)
two_faults = partial(workshop.loop, faults=("recompiling", "syncing"))
long_run = trace.read(workshop.recorded(two_faults, dev, n_steps=N_LONG, shelf=near))
seconds = [step.seconds for step in long_run.steps]
begun = [span.start_s for span in long_run.spans if span.kind == "compile"]
compiled = sorted({next(i for i, s in enumerate(long_run.steps) if s.end_s > at) for at in begun})
lines = {"every step": range(N_LONG)[:40], "compiling": compiled}
lines = {name: (steps, [1e3 * seconds[i] for i in steps]) for name, steps in lines.items()}
plot.lines(lines, xlabel="step", ylabel="ms", markers=True, title="How long the first steps took")

# %% [markdown]
# `trace.explain` looks at the times alone to find slow steps. Then it compares what the time of each went into with the
# ordinary steps around it, and names what differed: garbage collection, recompilation, memory, data, communication, or
# the device's work, which may be more of it ("longer sequence") or one operation that took longer; what is left was the
# host's own ("host (Python)").

# %%
found = {each.slow.index: each.cause for each in trace.explain(long_run)}
pixels = [int(near.read(step)[0].shape[-1]) for step in range(N_LONG)]
new = [step for step, size in enumerate(pixels) if step and size not in pixels[:step]]
slowest = sorted(range(N_LONG), key=seconds.__getitem__, reverse=True)[:8]
rows = [[i, f"{1e3 * seconds[i]:.0f}", found.get(i, ""), pixels[i], i in compiled] for i in slowest]
table(["step", "ms", "what differed", "scans, pixels", "compiled"], rows, varying=True)

# %%
blamed = [step for step, cause in found.items() if cause == "recompilation"]
claim(
    "only steps that meet a size for the first time compile, and explain blames no other for it",
    holds=compiled == new and set(blamed) <= set(compiled),
    evidence=f"compiled: {compiled}; new sizes: {new}; explain names recompilation for {blamed}",
)

# %% [markdown]
# `explain` is careful: on a busy machine all steps scatter, and it says less. `dynamic=False` makes a graph for one
# shape, and each new size of scans costs another. Left to itself torch notices after the second; with `dynamic=True` it
# makes one graph for all from the start. A graph costs tens of milliseconds here, and seconds with a real compiler
# behind it (lesson 06).

# %% [markdown]
# ### torch's own profiler
#
# So far little was noted, at little cost. `torch.profiler` notes every operator, and on a GPU every kernel, with names.
# Its trace can be opened in a browser (`export_chrome_trace`, then ui.perfetto.dev), or read by `labkit trace FILE`,
# which also reads traces of other people. Below the picture stands what its report counts of the host.

# %%
torch.compiler.reset()
with trace.profiler(dev) as prof:
    slow_loop(dev, near, 5, [])
profiled = trace.read(prof)
reads = [span.start_s for span in profiled.spans if span.kind == "data"]
window = {"start_s": reads[3], "end_s": reads[4]}  # the fourth step compiles nothing
rows = {True: "device", False: "host"}  # in place of the numbers of threads
shown = [replace(span, row=rows[span.row in profiled.devices]) for span in profiled.spans]
plot_timeline.timeline(shown, title="One step, as torch.profiler saw it", **window)

# %%
host = trace.report(profiled).host
rows = [["launches", host.launches], ["waits for the device", host.waits]]
rows += [["waits for data", host.data_waits]]
table(["the host, in five steps", "times"], rows, varying=True)

# %% [markdown]
# The host's row now tells its operators, one within another. And the price? `profile_memory` also notes the memory that
# each operator takes, `with_stack` the Python lines. What does looking cost? The loop without its compiling, in turns:
# alone, with the profiler, with all of these; in the processor's time, which others disturb less than the clock.


# %%
def cpu_s(n_steps=10):
    """Seconds of the processor's time for a few steps in which nothing compiles."""
    run = partial(workshop.loop, faults=[f for f in workshop.FAULTS if f != "recompiling"])
    started_s = time.process_time()
    workshop.timed(run, dev, n_steps=n_steps, shelf=near)
    return time.process_time() - started_s


ways = {"alone": None, "profiler": {}, "all": {"profile_memory": True, "with_stack": True}}
looked = {name: [] for name in ways}
for _ in range(4 if FULL else 1):
    for name, options in ways.items():
        with nullcontext() if options is None else trace.profiler(dev, **options):
            looked[name].append(cpu_s())

# %%
quick = {name: min(each) for name, each in looked.items()}
times = {f"{name} (times alone)": quick[name] / quick["alone"] for name in ("profiler", "all")}
record("05", "what looking costs", times)
claim(
    "a profiler that notes memory and stacks costs this loop a tenth more processor time or more",
    holds=quick["all"] > 1.1 * quick["alone"],
    evidence=", ".join(f"{name} {1e3 * s / 11:.0f} ms a step" for name, s in quick.items()),
)

# %% [markdown]
# It slows the host, and leaves the device as it is. So a profile shows the device idler than it is without one. Use it
# to see what happens and in which order, over a few steps. Time without it.

# %% [markdown]
# ### What each fault costs
#
# Six faults were found: **reading** in the thread that trains, **recompiling**, **tiny kernels**, and three lines that
# wait: **copying**, **syncing**, **logging**. What is each worth? It depends on the others. So two questions: what does
# a fault cost a loop that has no other, and what does a slow loop gain when only this one goes? The cell measures
# fourteen loops in turns: some twenty seconds.

# %%
FAULTS = workshop.FAULTS
arms = {"none": (), "all six": FAULTS} | {fault: (fault,) for fault in FAULTS}
arms |= {f"all but {fault}": tuple(f for f in FAULTS if f != fault) for fault in FAULTS}
ms = in_turns(arms, n_steps=8 if FULL else 2, rounds=4 if FULL else 1)

# %%
best = {name: each[0] for name, each in ms.items()}
noise = {name: each[min(1, len(each) - 1)] - each[0] for name, each in ms.items()}
costs = {fault: best[fault] - best["none"] for fault in FAULTS}
gains = {fault: best["all six"] - best[f"all but {fault}"] for fault in FAULTS}
alone, others = (max(noise[n] for n in names) for names in ([*arms][2:8], [*arms][8:]))
costs, gains = {"(none)": best["none"], **costs, "± noise": alone}, {**gains, "± noise": others}
record("05", "ms a step that a fault adds to a loop without any", costs)
record("05", "ms a step that its repair takes from a loop with all six", gains)

# %% [markdown]
# The noise is how far the two quickest rounds of one loop lie apart, at most. A smaller figure than that, or one below
# zero, says that nothing was seen. Neither table adds up to the whole, but they fail in different ways. Look
# at the three faults that wait, and at what their repairs give back.

# %%
names = [f"all but {fault}" for fault in ("reading", "copying", "syncing", "logging")]


def apart():
    """Whether two rounds without the reading beat all others, or none does: else noise decides."""
    reading, others = ms[names[0]], min(ms[name][0] for name in names[1:])
    return reading[1] < others or reading[0] > others


for _ in range(6 if FULL else 0):
    if not apart():
        more = in_turns({name: arms[name] for name in names}, n_steps=8, rounds=1)
        ms |= {name: sorted(ms[name] + more[name]) for name in names}
claim(
    "to read ahead gains the slow loop more than the repair of any line that waits",
    holds=ms[names[0]][0] < min(ms[name][0] for name in names[1:]) if FULL and apart() else None,
    evidence="\n".join(f"{name}: {[round(each) for each in ms[name]]} ms" for name in names),
)

# %% [markdown]
# Faults that *work* (reading, compiling, launching) add up, whatever else there is. Faults that *wait* stand in for one
# another: as long as one is left, it waits for all of them. Therefore judge by the idle time of the device and its
# cause, repair what is largest, and measure again.

# %% [markdown]
# ## Change one thing
#
# How far away may the shelf be? `shelf.ahead(n_steps, workers=8)` yields what `map(shelf.read, range(n_steps))` did,
# read by eight threads, up to 16 batches before they are needed. Threads do for this: they sleep or unpack, and both
# leave Python free for others. Change `AWAY_MS`, and look for the place where reading ahead no longer hides the way.

# %%
AWAY_MS = (0, 20, 40, 80, 120)
ways = {"read when needed": (("reading",), 0, 6), "read ahead": ((), 8, 24)}
curves = {name: [] for name in ways}
for away in AWAY_MS if FULL else AWAY_MS[:2]:
    far = workshop.Shelf(latency_s=1e-3 * away)
    for name, (faults, lead, n_steps) in ways.items():
        lead, n_steps = (lead, n_steps) if FULL else (0, 2)
        run, plan = partial(workshop.loop, faults=faults), {"n_steps": n_steps, "lead": lead}
        took = [workshop.timed(run, dev, shelf=far, **plan).seconds for _ in range(3)]
        curves[name].append(1e3 * min(took) / (n_steps - lead))

# %%
labels = {"xlabel": "time until a batch arrives (ms)", "ylabel": "ms a step"}
lines = {name: (AWAY_MS[: len(each)], each) for name, each in curves.items()}
lines["an eighth of the way"] = (AWAY_MS, [away / 8 for away in AWAY_MS])
plot.lines(lines, **labels, markers=True, title="Eight threads read ahead")

# %% [markdown]
# Read when needed, every millisecond of the way is paid in every step. Read ahead, eight batches are on their way at
# once, so one arrives in every eighth of that time: as long as this is less than a step takes, it costs nothing. Beyond
# that, more threads would help, and a shelf that is nearer. (The first eight steps are not timed: they have nothing
# ahead of them yet.)

# %%
added = {name: dict(zip(AWAY_MS, each, strict=False)) for name, each in curves.items()}
known = all({0, 80} <= each.keys() for each in added.values())
costs_ms = {name: each[80] - each[0] for name, each in added.items()} if known else {}
claim(
    "a way of 80 ms adds 40 ms or more to a step that reads when needed; read ahead, 20 at most",
    holds=costs_ms["read when needed"] >= 40 and costs_ms["read ahead"] <= 20 if known else None,
    needs="0 and 80 in AWAY_MS",
    evidence="\n".join(f"{name}: {[round(ms) for ms in each]} ms" for name, each in curves.items()),
)

# %% [markdown]
# ## Exercises
#
# Four tools: two read a trace, one watches over a run, and the last puts the loop right. Where you have not built one
# yet, the cells after it use the course's own.

# %% [markdown]
# ### Exercise 5.1 · When was the device idle? (10 min, easy)
#
# `busy` lists the device's operations as (start, end) pairs, in any order. Return the gaps: the (start, end) pairs
# between `start_s` and `end_s` in which nothing ran, in order, none of them empty. Every operation takes some time.
#
# The traps: operations overlap, and a long one may outlast several short ones; some lie partly or wholly outside; the
# device is idle before its first operation too.


# %%
def idle_gaps(busy, start_s, end_s):
    """The stretches in which the device did nothing, as a list of (start, end) pairs."""
    ### BEGIN SOLUTION
    gaps, free_from = [], start_s
    for first, last in sorted(busy):
        if min(first, end_s) > free_from:
            gaps.append((free_from, min(first, end_s)))
        free_from = max(free_from, last)
    if free_from < end_s:
        gaps.append((free_from, end_s))
    return gaps
    ### END SOLUTION


# %%
check(idle_gaps)

# %% [markdown]
# On the recording from above: the idle share by your gaps, beside what `labkit.trace` reports. They must agree, for
# both look at the same spans.

# %%
rows_of = set(slow_trace.devices)
work = ("kernel", "copy", "communication")
on_device = [s for s in slow_trace.spans if s.row in rows_of and s.kind in work]
busy = [(span.start_s, span.end_s) for span in on_device]
gaps = attempt(idle_gaps)(busy, 0.0, slow_trace.span_s)
idle = sum(last - first for first, last in gaps) / slow_trace.span_s
claim(
    "the gaps add up to the idle time that the report gives",
    holds=abs(idle - slow.idle_share) < 1e-3,
    evidence=f"{len(gaps):,} gaps, {idle:.1%} of the time; the report says {slow.idle_share:.1%}",
)

# %% [markdown]
# ### Exercise 5.2 · Who is to blame? (12 min, medium)
#
# For each gap, what did the host do meanwhile? `host` lists (name, start, end) of spans that do not overlap one
# another, in any order. Return a dictionary: for each name, the seconds of gaps that its spans cover; and under "other"
# what no span covers. A name that explains nothing is left out, "other" as well.
#
# The traps: one gap may have several culprits, one span may lie over several gaps, and a name may occur many times.


# %%
def blame(gaps, host):
    """Seconds of the gaps by what the host did in them."""
    ### BEGIN SOLUTION
    seconds = {}
    for gap_start, gap_end in gaps:
        left = gap_end - gap_start
        for name, first, last in host:
            shared = min(gap_end, last) - max(gap_start, first)
            if shared > 0:
                seconds[name] = seconds.get(name, 0.0) + shared
                left -= shared
        if left > 1e-12:  # what rounding leaves is not time
            seconds["other"] = seconds.get("other", 0.0) + left
    return seconds
    ### END SOLUTION


# %%
check(blame)

# %% [markdown]
# On three steps of the recording. `labkit.trace` gives each gap to one cause, by majority; yours shares it out. Neither
# is more right: a rule by majority names a culprit, a share tells how much would be won at most.

# %%
begin, end = slow_trace.steps[1].start_s, slow_trace.steps[3].end_s
gaps = attempt(idle_gaps)(busy, begin, end)
named = ("data", "compile", "wait", "launch")
host = [(s.kind, s.start_s, s.end_s) for s in slow_trace.spans if s.kind in named]
host = [each for each in host if each[2] > begin and each[1] < end]
shares = attempt(blame)(gaps, host)
parts = {name: 1e3 * shares.get(name, 0.0) / 3 for name in (*named, "other")}
record("05", "the device idle, ms a step, by what the host did", parts)

# %% [markdown]
# ### Exercise 5.3 · Find the slow steps (15 min, medium)
#
# Given the seconds of each step of a run, return the numbers of the slow ones, in order. Slow is a step that takes a
# quarter longer than the run's median, at least, and that also stands out from the noise of *this* run. You are judged
# by *recall*, the share of planted slow steps that you find, and *precision*, the share of those found that were
# planted: over 100 runs of 500 steps, with none, 1, 3 or 10 slow ones, 0.95 of each is asked for.

# %% [markdown]
# The traps: a step of ten times the usual length moves the mean and the standard deviation so far that others hide
# behind it. A limit in seconds serves one run only. In some runs the ordinary steps differ by a third; and a clock that
# ticks coarsely makes most steps equal.


# %%
def slow_steps(seconds):
    """The numbers of the slow steps, as a list, in order."""
    ### BEGIN SOLUTION
    usual = statistics.median(seconds)
    noise = 1.4826 * statistics.median(abs(each - usual) for each in seconds)
    limit = max(usual + 5 * noise, 1.25 * usual)
    return [step for step, each in enumerate(seconds) if each >= limit]
    ### END SOLUTION


# %%
check(slow_steps)

# %% [markdown]
# How much better than two simple rules: mean plus three standard deviations, and a quarter more than the median,
# whatever the noise? *Median absolute deviation*, the median distance from the median, times 1.4826, equals the
# standard deviation where noise is normal. Nearly half of the steps may be outliers, and it stays in their order of
# size.


# %%
from labkit.checks import outliers


def three_sigma(seconds):
    limit = statistics.mean(seconds) + 3 * statistics.pstdev(seconds)
    return [step for step, each in enumerate(seconds) if each > limit]


def a_quarter_more(seconds):
    limit = 1.25 * statistics.median(seconds)
    return [step for step, each in enumerate(seconds) if each >= limit]


rules = {"mean and 3 sigma": three_sigma, "1.25 medians": a_quarter_more}
rules["yours"] = attempt(slow_steps)
rules["labkit.trace"] = lambda seconds: [each.index for each in trace.slow_steps(seconds)]
scores = {name: outliers.recall_and_precision(rule) for name, rule in rules.items()}
rows = [[name, *(f"{each:.3f}" for each in pair)] for name, pair in scores.items()]
table(["rule", "recall", "precision"], rows, varying=True)

# %%
poor = scores["mean and 3 sigma"], scores["1.25 medians"]
claim(
    "three sigma miss a fifth or more; a quarter more is mostly noise; the robust rule is right",
    holds=poor[0][0] < 0.8 and poor[1][1] < 0.5 and min(scores["yours"]) >= 0.95,
    evidence="; ".join(f"{name}: {recall:.3f}, {p:.3f}" for name, (recall, p) in scores.items()),
)

# %% [markdown]
# And on the long run of the real loop, in which the steps that compiled are known. Real noise is not as well behaved as
# the planted kind: other programs make steps slow too, and to find those is not wrong. Where everything scatters, a
# careful rule misses some that compiled, and another finds much besides.

# %%
said = {name: set(rule(seconds)) for name, rule in rules.items()}
rows = [[n, len(s & set(compiled)), len(s - set(compiled))] for n, s in said.items()]
table(["rule", f"of the {len(compiled)} that compiled", "others"], rows, varying=True)

# %% [markdown]
# ### Exercise 5.4 · Put the loop right (25 min, medium)
#
# Write `slow_loop` again, without its six faults: a line each. It must be **at least 3 times faster**, timed here and
# now in turns with the slow one, which takes the check some seconds; and its losses must be the same, for batches of
# any size. You may return them as tensors. The log keeps its line for every twentieth step, from step 0 on, word for
# word.
#
# The traps: a repair that changes what is computed; and one fault left, which waits for all the others.


# %%
def fast_loop(dev, shelf, n_steps, log):
    """The losses of n_steps of training, as numbers or as tensors on the device."""
    ### BEGIN SOLUTION
    model, optimizer = workshop.network(dev)
    prepare = torch.compile(workshop.tidied, backend="eager", dynamic=True)
    put = partial(dev.put, non_blocking=True)
    losses = []
    for step, (scans, gains, labels) in enumerate(shelf.ahead(n_steps)):
        gains, labels = put(gains), put(labels)
        pictures = put(prepare(scans))
        pictures = (pictures * gains.view(-1, 1, 1, 1) + 0.1).clamp(-2, 2)
        logits = model(pictures)
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 20 == 0:
            log.append(f"step {step}: {logits[:8].detach()}")
    return losses
    ### END SOLUTION


# %%
check(fast_loop)

# %% [markdown]
# The picture again. It is as long as one step of the slow loop, and starts in the middle of the run, for the first
# steps have nothing ahead of them yet.

# %%
mine = attempt(fast_loop)
fast_trace = trace.read(workshop.recorded(mine, dev, n_steps=N_STEPS, shelf=shelf))
middle = fast_trace.steps[len(fast_trace.steps) // 2].start_s
span_s = statistics.median(step.seconds for step in slow_trace.steps)
window = {"start_s": middle, "end_s": min(middle + span_s, fast_trace.span_s)}
plot_timeline.timeline(fast_trace.spans, title="The repaired loop", **window)

# %% [markdown]
# The host now runs ahead: while the device works on one step, the next ones are read, prepared and launched. What is
# left is the device's own work, or the host's, whichever takes longer.

# %%
pair = {"slow": slow_loop, "fast": mine}
runs = {name: [] for name in pair}
for _ in range(3 if FULL else 1):
    for name, run in pair.items():
        runs[name].append(workshop.timed(run, dev, n_steps=20 if FULL else 2, shelf=shelf))
best = {name: min(each.seconds for each in found) for name, found in runs.items()}
losses = {name: torch.tensor(found[0].losses) for name, found in runs.items()}

# %%
fast = only_device(trace.report(fast_trace))
figures = {f"{name} (ms a step)": 1e3 * s / len(losses[name]) for name, s in best.items()}
figures |= {"times faster": best["slow"] / best["fast"]}
reports = {"slow": slow, "fast": fast}
figures |= {f"busy, {k} (%)": 100 * (1 - device.idle_share) for k, device in reports.items()}
record("05", "six repairs", figures)
claim(
    "six repairs make the loop at least 3 times faster, and its losses stay the same",
    holds=best["slow"] >= 3 * best["fast"] and torch.allclose(*losses.values(), atol=2e-3),
    evidence=f"{best['slow'] / best['fast']:.1f} times; losses differ by "
    f"{float((losses['slow'] - losses['fast']).abs().max()):.1e} at most",
)

# %% [markdown]
# ## Limits
#
# **When is profiling worth it?** When a loop runs for hours, and you do not know what share of the time the device is
# busy. Start with that one number. At 95 per cent there is nothing to gain here: what is left is in the kernels
# (lessons 06 and 07). At 20 per cent the kernels do not matter yet.

# %% [markdown]
# - The faults were planted large. In your loop there may be one of them, or six others: a slow tokenizer, a checkpoint
#   that blocks, another job on the same machine.
# - Without a GPU the device here is a thread on the same processor. Its launches cost tens of microseconds, a GPU's
#   five to ten, and both share cores with the readers. What waits for what is the same; how much it costs is not.

# %% [markdown]
# - On a GPU a copy that should not block must come from *pinned* memory, which the system may not move (lesson 08).
#   Busy means that some kernel runs, and not that it uses the whole GPU.
# - Threads read ahead here, for functions from a notebook's cells cannot be sent to the worker processes of a
#   `DataLoader` where processes are spawned (Windows, macOS). Where reading is Python's own work and not waiting,
#   threads take turns and gain little: lesson 09.

# %% [markdown]
# - `dynamic=True` makes code for all sizes, which may be slower than code for one. Padding to a few sizes is the other
#   way. After eight graphs for one function torch gives up, and runs it uncompiled.
# - A slow step among 500 is found here. One bad hour in a week needs a record of every step, kept cheaply.

# %% [markdown]
# ## Further questions
#
# 1. Repair the six one after the other, the largest idle cause first. Does each help?
# 2. Let the shelf answer at once. Which fault is the largest then?
# 3. Give `ahead` one worker, then two. When does the data wait come back?
# 4. Collect garbage in every tenth step (`gc.collect()`). Do `slow_steps` and `trace.explain` find it? And in every
#    third? For `labkit.trace`, what more than one step in eight does is ordinary.
# 5. Profile ten steps of a loop of your own, and read them with `labkit trace`.

# %% [markdown]
# ## Sources
#
# - PyTorch, [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html): schedules, shapes, stacks, traces.
# - PyTorch, [Performance Tuning Guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html): avoid
#   syncs, load data asynchronously, fuse small operations.
# - Horace He, [Making Deep Learning Go Brrrr From First
#   Principles](https://horace.io/brrr_intro.html), 2022: compute, memory traffic, overhead.
# - Facebook Research, [Holistic Trace Analysis](https://github.com/facebookresearch/HolisticTraceAnalysis): idle time
#   by cause, on GPU traces.

# %% [markdown]
# - PyTorch, [Dynamic
#   shapes](https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html): recompilation, and `dynamic=`.
# - Rousseeuw and Croux, [Alternatives to the Median Absolute
#   Deviation](https://doi.org/10.1080/01621459.1993.10476408), J. Am. Stat. Assoc. 88 (1993): 1.4826, and outliers.
# - Mytkowicz and others, [Evaluating the Accuracy of Java Profilers](https://doi.org/10.1145/1806596.1806618), PLDI
#   2010: four profilers, four different culprits.
