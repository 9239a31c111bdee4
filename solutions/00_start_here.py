# title: Start here: how to time
# minutes: 40
# cpu: everything, with a worker thread as the device
# gpu: the device is the GPU itself
#
# %% [markdown]
# # 00 · Start here
#
# This course is about machine learning that is fast, runs on many devices, and can be repeated. It measures all it
# says on the machine in front of you, so it begins with measuring. You need 40 minutes and any computer.
#
# Run a cell with Shift+Enter. You cannot break anything: *Restart kernel and run all cells* always brings the lesson
# back.

# %% [markdown]
# ## Question
#
# **How long does one line of code take?**
#
# A stopwatch around it answers in a second, and the answer is often wrong. It can stop before the work is done. Its
# first reading is unlike the others. An average can rest on one bad moment. When you compare two functions, the machine
# may have become slower between the first and the second. You will see each of these here, then repair it.

# %%
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median, quantiles

import torch

from labkit import attempt, check, claim, plot, predict, record, reveal
from labkit.hardware import device, machine
from labkit.show import show, varying_text
from labkit.units import format_bytes, format_s

# %% [markdown]
# **What machine is this?** A *core* runs one stream of instructions at a time. A GPU is a second processor beside the
# cores, with a memory of its own. All figures below belong to this machine, and yours may change from run to run. In a
# terminal, in the course's folder, `.venv/bin/labkit doctor` says more, and what is missing. (`labkit doctor` is
# enough where the environment is activated.)

# %%
here = machine()
gpus = ", ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes, binary=True)}" for gpu in here.gpus)
report = [
    f"processor: {here.cpu}, {here.cores} cores for us",
    f"memory:    {format_bytes(here.memory_bytes, binary=True)}",
    f"GPU:       {gpus or 'none: a worker thread stands in for it'}",
    f"software:  Python {here.python}, torch {torch.__version__}, {here.os}",
]
show(varying_text("\n".join(report)))

# %% [markdown]
# **How a lesson works.** First you *predict* a number, then you *measure* it. A *claim* is a sentence that its cell
# tests here and now: ✓ it held, ✗ it did not, – this machine cannot tell. An *exercise* asks for a function, and
# `check` answers at once. Where you have not solved one, `attempt` lets the lesson go on with ours.

# %% [markdown]
# ## Predict
#
# Somebody else multiplies two matrices for you: a GPU, or without one a second thread of this program, which plays a
# GPU. The matrices are 768 x 768 numbers (4096 x 4096 on a GPU). You start a stopwatch, ask for the product, and stop
# the watch when the line that asked has returned. Then you time the same product again, but wait until it is there.
# How many times longer is the second time? Move the slider before you go on.

# %%
question = "How many times longer does it take with waiting?"
predict("too_small", question, default=2, unit="times", low=1, high=100_000)

# %% [markdown]
# ## Build
#
# A GPU does not hold up the CPU. The CPU puts the work into a *queue* and goes on; this is *asynchronous dispatch*.
# Only a *synchronise* waits until the queue is empty.
#
# The same device can be made without a GPU. A *thread* is a second stream of instructions in one program. Ours takes
# work from a queue, in order, while its owner goes on.


# %%
class Device:
    """A worker thread with a queue."""

    def __init__(self):
        self.worker = ThreadPoolExecutor(max_workers=1)
        self.given = []

    def enqueue(self, work):
        self.given.append(self.worker.submit(work))

    def synchronize(self):
        while self.given:
            self.given.pop(0).result()


# %% [markdown]
# The work is one matrix product. On a GPU, PyTorch queues it by itself. Elsewhere our device takes it. Either way,
# `request()` asks for the product, and `synchronize()` waits for it.
#
# We allow PyTorch one core. With two, it would also wait for whatever else runs on the second, and we would time that
# too.

# %%
torch.set_num_threads(1)
size = 4096 if device() == "cuda" else 768
x = torch.randn(size, size, device=device())

if device() == "cuda":
    request, synchronize = lambda: x @ x, torch.cuda.synchronize
else:
    helper = Device()
    request, synchronize = lambda: helper.enqueue(lambda: x @ x), helper.synchronize

# %% [markdown]
# ## Measure
#
# ### A stopwatch that stops too early
#
# `time.perf_counter()` is the clock for this: it never jumps, and its steps are shorter than a millionth of a second.
# Here it is read before and after the request. We ask for twenty products in this way, and only then wait for all of
# them.


# %%
def stopwatch(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


# %%
request()
synchronize()
hasty = [stopwatch(request) for _ in range(20)]
unpaid = stopwatch(synchronize)

# %% [markdown]
# The repair is to wait twice. Wait *before the clock starts*, so that nobody else's work is charged to you. Wait
# *before it stops*, so that your own work is. The figure shows each sample as a dot. Its axis is logarithmic: each
# step to the right is ten times longer.


# %%
def request_and_wait():
    request()
    synchronize()


honest = [stopwatch(request_and_wait) for _ in range(20)]
two_stopwatches = {"not waiting": hasty, "waiting": honest}
plot.samples(two_stopwatches, title="One matrix product, two stopwatches", log=True)

# %%
too_small = median(honest) / median(hasty)
reveal("too_small", too_small)

# %% [markdown]
# The hasty stopwatch saw only how long it takes to put a request into the queue. Nothing was saved by that: the first
# line that waited had to wait for all twenty products. In a training loop, that innocent line gets the blame.

# %%
claim(
    "a stopwatch that does not wait shows less than a tenth of the time",
    holds=too_small > 10,
    evidence=f"{format_s(median(hasty))} without waiting, {format_s(median(honest))} with",
    cause="The product is too small for this device: make size larger.",
)
claim(
    "the time is not saved: the next line that waits pays for more than ten products",
    holds=unpaid > 10 * min(honest),  # the shortest: a neighbour in the others cannot decide
    evidence=f"it waited {format_s(unpaid)}; twenty products are {format_s(20 * median(honest))}",
)

# %% [markdown]
# ### The first call
#
# The first call of anything pays for what later calls find ready. A library is loaded, memory is fetched, on a GPU the
# driver sets itself up. This notebook is warm already, so a fresh Python has to show it. `.item()` fetches a number,
# and so it waits for the device. Starting the program takes some seconds; only the calls are timed.

# %%
program = f"""
import time, torch
torch.set_num_threads(1)
x = torch.randn(64, 64, device="{device()}")
for call in range(20):
    start = time.perf_counter()
    (x @ x).sum().item()
    print(time.perf_counter() - start)
"""
printed = subprocess.check_output([sys.executable, "-c", program], text=True)
calls = [float(line) for line in printed.split()]
plot.in_order({"x @ x": calls}, title="The first twenty calls in a fresh Python", log=True)

# %% [markdown]
# So a benchmark makes a few calls that it does not count. This is its *warm-up*. (Lesson 01 is about another thing of
# that name, the warm-up of a learning rate.) A single sample of a single call, the usual stopwatch, is the worst one to
# take: it is always the first.

# %%
first, later = calls[0], median(calls[1:])
claim(
    "the first call takes more than three times as long as a later one",
    holds=first > 3 * later,
    evidence=f"first {format_s(first)}, later {format_s(later)}: {first / later:.0f} times",
)

# %% [markdown]
# How is it on other machines? Your figures stand in the first row. Below it stands every machine that has *recorded*
# this lesson, with the day; the files are in `datasets/recorded/`. The two ratios are the lesson so far: how far a
# stopwatch is off that does not wait, and one that times the first call.

# %%
ratios = {"waiting / not waiting": too_small, "first call / later call": first / later}
record("00", "the stopwatch that is off", ratios)

# %% [markdown]
# ### One number from many
#
# Now and then another program takes the processor. Take 49 samples of some plain counting. Then take a fiftieth, and
# hold that one up on purpose, so that you know the truth: the function has not changed. The *mean* is the sum divided
# by the count. The *median* is the sample in the middle of the sorted row.


# %%
def count(n=200_000):
    total = 0
    for i in range(n):
        total += i * i
    return total


count()
quiet = [stopwatch(count) for _ in range(49)]


# %%
def held_up_count():
    count()
    time.sleep(10 * max(quiet))


disturbed = [*quiet, stopwatch(held_up_count)]
rows = {"49 calls": quiet, "and one held up": disturbed}
plot.samples(rows, title="Counting, and one bad moment", log=True)

# %% [markdown]
# The pale bar above the dots spans the middle half of the samples, from the *lower* to the *upper quartile*. Its width
# is the *interquartile range*. Report it with the median: it says how far to trust it. One bad moment hardly moves
# either.

# %%
mean_moved = mean(disturbed) / mean(quiet) - 1
median_moved = median(disturbed) / median(quiet) - 1
(low, _, high), (low_then, _, high_then) = quantiles(quiet), quantiles(disturbed)
claim(
    "one call held up in fifty moves the mean more than twice as far as the median",
    holds=mean_moved > 2 * median_moved,
    evidence=f"the mean moved by {mean_moved:.0%}, the median by {median_moved:.1%}; interquartile"
    f" range {format_s(high - low)} before, {format_s(high_then - low_then)} after",
)

# %% [markdown]
# ### Two candidates
#
# Which of two functions is faster? Take A and B, and let both be *the same function*, so that the right answer is
# known: no difference. But half-way through the measurement a neighbour wakes up: another program that wants the same
# core. Nobody can order a neighbour, so we play one. From the middle of the row on, every call has ten times as much
# to count.


# %%
def time_in_order(row):
    """Seconds of A and of B, called in the order of the row."""
    seconds = {"A": [], "B": []}
    for place, name in enumerate(row):
        n = 50_000 if place < len(row) // 2 else 500_000
        seconds[name].append(stopwatch(lambda n=n: count(n)))
    return seconds


# %% [markdown]
# First the usual way: all samples of A, then all of B. Then in turns: one of A, one of B, and so on. A pair is a
# *round*. Only the row differs. Guess both figures before you look.

# %%
wakes = {"neighbour wakes": 20.5}  # between call 20 and call 21
row = ["A"] * 20 + ["B"] * 20
in_blocks = time_in_order(row)
plot.in_order(in_blocks, row=row, marks=wakes, title="First all of A, then all of B")

# %%
row = ["A", "B"] * 20
in_turns = time_in_order(row)
plot.in_order(in_turns, row=row, marks=wakes, title="A and B in turns")

# %% [markdown]
# In blocks, the neighbour is charged to B alone. In turns, both meet the same neighbour, and the ratio within a round
# stays fair. On a real machine the neighbour is a backup, a browser tab, another user, or heat. You rarely see it
# come.


# %%
def b_against_a(seconds):
    return median(b / a for a, b in zip(seconds["A"], seconds["B"], strict=True))


blocks, turns = b_against_a(in_blocks), b_against_a(in_turns)
claim(
    "in blocks, B seems slower than A, the same function; turns halve the error or better",
    holds=blocks > 2 and abs(turns - 1) < (blocks - 1) / 2,
    evidence=f"B takes {blocks:.2f} times as long as A in blocks, {turns:.2f} in turns",
)

# %% [markdown]
# ## Change one thing
#
# How much can a median bear? Take the 49 quiet samples and make more and more of them twenty times slower. Where does
# the median give way? Change `slower` to 3, then to 200. What happens to the mean, and what to the place where the
# median jumps?

# %%
slower = 20
held_up = list(range(50))
mixed = [[slower * s for s in quiet[:n]] + quiet[n:] for n in held_up]
means, medians = [mean(m) for m in mixed], [median(m) for m in mixed]
averages = {"mean": (held_up, means), "median": (held_up, medians)}
labels = {"xlabel": "calls held up, of 49", "ylabel": "time of one call"}
plot.lines(averages, **labels, title="More and more bad moments", seconds_axis="y")

# %% [markdown]
# Where nearly half is held up, the median is one of the slowest quiet calls, and a noisy machine blurs the jump. So the
# claim looks on both sides of the half, four calls away from it.

# %%
none, below, above = medians[0], medians[20], medians[29]
claim(
    "the median holds until about half of the calls are held up, then it jumps",
    holds=True if above > 2 * below else None,
    evidence=f"held up: none {format_s(none)}, 20 {format_s(below)}, 29 {format_s(above)}",
    needs="a quieter machine, or a larger slower",
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 0.1 · A fair stopwatch (12 min, medium)
#
# Write `bench`. First call every candidate `warmup` times. Then go in `repeats` rounds, each with one sample of every
# candidate. Return the samples in seconds, a list for each name. `clock()` reads the clock, `synchronize()` waits for
# the device.
#
# The trap: when the clock starts, the device may still have work. The check pretends both, so its verdict does not
# depend on your machine.


# %%
def bench(candidates, repeats, warmup, synchronize, clock):
    """{name: [seconds, ...]} for candidates = {name: function}."""
    ### BEGIN SOLUTION
    for fn in candidates.values():
        for _ in range(warmup):
            fn()
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, fn in candidates.items():
            synchronize()
            start = clock()
            fn()
            synchronize()
            seconds[name].append(clock() - start)
    return seconds
    ### END SOLUTION


# %%
check(bench)

# %% [markdown]
# ### Exercise 0.2 · Can they be told apart? (8 min, easy)
#
# `slow_s[i]` and `fast_s[i]` are from one round. Return two things: the median over rounds of slow / fast, and whether
# the two can be told apart: whether the same one was slower in at least 90 % of all rounds, so in 18 or more of 20.
# Between equals, a round is a toss of a coin, and 18 or more of 20 tosses agree once in 2,500 tries.
#
# The trap: a tie counts as a round, but for nobody. And either may be the slower one.


# %%
def compare_rounds(slow_s, fast_s):
    """(ratio, told apart) of samples taken in rounds."""
    ### BEGIN SOLUTION
    rounds = list(zip(slow_s, fast_s, strict=True))
    lost = sum(slow > fast for slow, fast in rounds)
    won = sum(slow < fast for slow, fast in rounds)
    ratio = median(slow / fast for slow, fast in rounds)
    return ratio, max(lost, won) >= 0.9 * len(rounds)
    ### END SOLUTION


# %%
check(compare_rounds)

# %% [markdown]
# ### Both at work
#
# Add up a million numbers, in Python and in torch. A CPU's own work is done when the call returns, so there is nothing
# to wait for. If you solved the exercises, this is your own code.

# %%
fair_bench, fair_compare = attempt(bench), attempt(compare_rounds)

# %%
numbers = torch.rand(1_000_000)
as_list = numbers.tolist()
adding = {"sum(list)": lambda: sum(as_list), "tensor.sum()": lambda: numbers.sum()}
seconds = fair_bench(adding, 20, 3, lambda: None, time.perf_counter)
plot.samples(seconds, title="Adding up a million numbers", log=True)

# %% [markdown]
# The figure shows the samples; your second function turns them into a sentence. It takes both: a ratio, and a reason
# to believe that it is not chance.

# %%
ratio, apart = fair_compare(seconds["sum(list)"], seconds["tensor.sum()"])
claim(
    "torch adds up a million numbers at least twice as fast as Python does",
    holds=apart and ratio >= 2,
    evidence=f"Python takes {ratio:.1f} times as long; {'' if apart else 'not '}told apart",
)

# %% [markdown]
# Now a test of the test: the same function under two names. Scientists call it an A/A test. A benchmark that finds a
# winner here finds winners everywhere. *Cannot be told apart* is a result too, and often the right one.

# %%
twins = {"tensor.sum()": lambda: numbers.sum(), "its twin": lambda: numbers.sum()}
ratios, verdicts = [], []
for _ in range(5):
    seconds = fair_bench(twins, 20, 3, lambda: None, time.perf_counter)
    ratio, apart = fair_compare(*seconds.values())
    ratios.append(ratio)
    verdicts.append(apart)

# %%
claim(
    "the same function under two names cannot be told apart, in most of five tries",
    holds=sum(verdicts) <= 2,
    evidence=f"told apart {sum(verdicts)} of 5; ratios {min(ratios):.3f} to {max(ratios):.3f}",
)

# %% [markdown]
# ## Limits
#
# A *micro-benchmark* calls one small function over and over, and this flatters it. Its data stay in the *cache*, the
# small fast memory beside the core. In a real program they would have been pushed out. So time the whole program too.
#
# A function twice as fast that takes a tenth of the time makes the program 5 % faster.

# %% [markdown]
# - A laptop slows down when it is hot or on battery. A shared machine has neighbours that you cannot see. Where the
#   middle half is wide, come back later.
# - Where code happens to lie in memory can move a time by some per cent, in every round alike. No number of rounds
#   shows this, so trust no difference of a few per cent.
# - Reading the clock takes time too, some tens or hundreds of nanoseconds. What lasts less than some ten microseconds
#   needs many calls in one sample.

# %% [markdown]
# Later lessons use `labkit.bench`. It is your `bench` with three additions: it loops over what is too short for the
# clock, it uses the GPU's own clock (CUDA events), and it gives an interval for each ratio. Where that interval comes
# within 3 % of 1, it says *cannot be told apart* and names no winner.

# %% [markdown]
# **In two lines.** Warm up; wait before the clock starts and before it stops; take many samples, the candidates in
# turns. Report the median with the interquartile range, and say when two cannot be told apart.

# %% [markdown]
# ## Further questions
#
# 1. Make `size` smaller. What is the smallest ratio of the two stopwatches that you can reach? What does waiting cost
#    when the product costs nothing?
# 2. Many people report the minimum instead. What does it answer, and when does it mislead?
# 3. Put the twins *and* `"sum(list)"` into one `bench`. The twins may now be told apart. Who ran before them?
# 4. Make the neighbour real: half-way, start a `threading.Thread` that counts. Python lets one thread count at a time.
#    How long is a turn?

# %% [markdown]
# ## Sources
#
# - T. Hoefler and R. Belli, [Scientific Benchmarking of Parallel Computing
#   Systems](https://doi.org/10.1145/2807591.2807644), SC 2015: medians, spread, interference.
# - T. Mytkowicz and others, [Producing Wrong Data Without Doing Anything Obviously
#   Wrong!](https://doi.org/10.1145/1508244.1508275), ASPLOS 2009: where code lies in memory.
# - PyTorch, [CUDA semantics: asynchronous
#   execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution).
# - PyTorch, [Benchmark recipe](https://docs.pytorch.org/tutorials/recipes/recipes/benchmark.html).
# - Python, [time.perf_counter](https://docs.python.org/3/library/time.html#time.perf_counter).
