# title: Compile and fusion
# minutes: 80
# cpu: everything with a C++ compiler; without one, fusion by hand, graph breaks and recompilations
# gpu: the same cells with Triton; a chain limited by the GPU's memory, kernels counted by the profiler
#
# %% [markdown]
# # 06 · Compile and fusion
#
# Eighty minutes with the exercises. The cells alone run in one or two minutes, or in several on a busy machine.
#
# ## Question
#
# A *kernel* is one loop over numbers that the device runs: `x * 2` is one, `a + b` another. Python starts each, which
# is called its *launch*; it reads its inputs from memory and writes its result back. *Fusion* makes one kernel of
# several. **How much time goes into moving numbers, how much of it does fusion save, and when is a compiler worth its
# wait?**

# %%
import math
import time

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit import attempt, bench, check, claim, plot, predict, record, repro, reveal, table
from labkit.hardware import device
from labkit.units import format_s

# %% [markdown]
# Two inputs and room for a result: long vectors, far larger than any cache. One core, so that times are steady.
# `timed` takes turns, as lesson 00 taught; on a CPU it reads the processor's own clock, which with one thread leaves
# the neighbours' work out.

# %%
torch.set_num_threads(1)
FULL = repro.budget() == "full"
N = (16_000_000 if device() == "cpu" else 64_000_000) if FULL else 100_000
x, y, out = (torch.rand(N, device=device()) for _ in range(3))
clock = time.process_time_ns if device() == "cpu" else time.perf_counter_ns


def timed(calls, repeats=15):
    return bench(calls, repeats=repeats if FULL else 5, warmup=2, clock=clock)


def show_medians(measured):
    rows = [[name, format_s(seconds)] for name, seconds in measured.median_s.items()]
    table(["the chain", "median of one call"], rows, varying=True)


# %% [markdown]
# `torch.compile` turns a Python function into kernels. On a CPU it writes C++, and needs a compiler for it; on a GPU
# it writes Triton, a language for GPU kernels that looks like Python. What does it lack here?

# %%
from labkit import compilation, recording

SMOKE = "the full budget (a smoke run's figures mean nothing)"
LACKS = compilation.lacks() or ("" if FULL else SMOKE)
CAN_COMPILE = not LACKS
UNMEASURED = f"not measured here, for want of {LACKS}"
table(["torch.compile lacks"], [[LACKS or "nothing: it can write code here"]], varying=True)

# %% [markdown]
# **If something is missing**: on Debian and Ubuntu `sudo apt-get install g++ python3-dev`. On a Mac
# `xcode-select --install`. On Windows Visual Studio's Build Tools with C++, and Jupyter started from their *x64 Native
# Tools* prompt. On Kaggle `!apt-get install -y g++ python3-dev`, with the internet switched on. Another compiler than
# the usual one is named by the variable `CXX`. Then restart the kernel.

# %% [markdown]
# Without a compiler the lesson goes on: you fuse by hand, and see what other machines recorded where this one cannot
# measure. Some sentences are for you alone; they begin with *Without a compiler*.

# %%
def elsewhere(name, headings):
    """A machine that recorded all of this, and its figures; without one, "" and NaN."""
    found = [recording.recorded("06", name, heading) for heading in headings]
    machine = next((one for one in found[0] if all(one in held for held in found)), "")
    return machine, [held.get(machine, math.nan) for held in found]

# %% [markdown]
# ## Predict
#
# The chain that we look at has six operations, all of them *pointwise*: each number of the result depends on
# the numbers at the same place of the inputs, and on nothing else. Move the slider before you go on. Two more guesses
# will be asked for further down.

# %%
question = "Six pointwise operations on long vectors: how many times faster are they in one kernel?"
predict("speedup", question, default=2, low=1, high=20)

# %% [markdown]
# ## Build
#
# *Eager* is torch's ordinary way: an operation runs when Python comes to it, as a kernel of its own. Count by hand
# what moves. The first line reads x and writes a, two vectors. The second reads a and y and writes b, three. Go on to
# the end before you run the next cells.


# %%
def chain(x, y):
    a = x * 2
    b = a + y
    c = b.clamp(min=0)
    d = c * y
    e = d - x
    return e.abs()


# %% [markdown]
# Now have torch count. First the bytes in whatever an operation is given or gives, be it a tensor, a number or a list
# of them; a tensor that is needed twice counts once.


# %%
def n_bytes(values):
    tensors = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
    return sum(one.nbytes for one in {id(one): one for one in tensors}.values())


# %% [markdown]
# A *dispatch mode* sees every operation on its way to the device. This one notes how many bytes the kernel reads, and
# how many it writes. Views move nothing.


# %%
class Traffic(TorchDispatchMode):
    """Notes (kernel, bytes read, bytes written) for every operation inside its block."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        if not op.is_view:
            self.rows.append([op.overloadpacket.__name__, n_bytes(args), n_bytes(result)])
        return result


# %%
with Traffic() as eager:
    chain(x, y)
moved = sum(read + written for _, read, written in eager.rows)
vectors = [[name, read // x.nbytes, written // x.nbytes] for name, read, written in eager.rows]
table(["kernel", "vectors read", "vectors written"], vectors)

# %% [markdown]
# On a GPU the profiler counts the kernels that really ran. On a CPU each of these operations is one loop.

# %%
kernels = compilation.launched(chain, x, y) if device() == "cuda" else len(eager.rows)
claim(
    "eager runs six kernels and moves fifteen vectors, as counted by hand",
    holds=kernels == 6 and moved == 15 * x.nbytes,
    evidence=f"{kernels} kernels, {moved / x.nbytes:g} vectors, {moved / 1e6:,.0f} MB",
)

# %% [markdown]
# How many must move? x and y come in, one result goes out: three. What lies between them is made and used up at one
# place, and could stay in the processor. If time goes with bytes, the chain as one kernel is 15/3 = 5 times faster.

# %% [markdown]
# ### One kernel, by the compiler
#
# `torch.compile` follows the function once, writes code for what it saw, has it compiled, and keeps it for later
# calls. Call both once, and be patient: the cell says nothing for ten seconds, or for thirty on a busy machine.

# %%
compiled, first = torch.compile(chain), {}
if CAN_COMPILE:
    with compilation.empty_cache():  # as on the first day
        first["eager"] = compilation.first_call_s(chain, x, y)
        first["compiled"] = compilation.first_call_s(compiled, x, y)
rows = [[name, f"{seconds:.2f}"] for name, seconds in first.items()]
table(["one call, the very first", "seconds"], rows or [["not measured", ""]], varying=True)

# %% [markdown]
# So compiled is many times *slower*? That is wrong on purpose: the compiler was timed, not its code. We shall need the
# figure again. It is true once in a process: run the cell again and it is far smaller, until you restart the kernel.
# *Without a compiler*: the figure of another machine stands among the prices below.
#
# First look at what was written.

# %%
KERNEL = "the kernel of the chain"
made = compilation.generated(chain, x, y) if CAN_COMPILE else None
if made:
    recording.keep("06", KERNEL, {"code": made.source})
compilation.show_source(made, recording.recorded("06", KERNEL, "code"))

# %% [markdown]
# One loop. On a CPU it takes several numbers at a time (a *vector*, `Vectorized<float>`), does everything with them
# that the six kernels did, and stores them once. Its parameters are the tensors that it touches: each `in_ptr` is
# read, each `out_ptr` written.
#
# A claim's `tier` names what a machine needs to decide it. Where that is missing, the claim stays undecided.

# %%
claim(
    "the compiler makes one kernel of the six, and it touches three vectors",
    holds=(made.kernels, made.tensors) == (1, 3) if CAN_COMPILE else None,
    evidence=f"{made.kernels} kernel, {made.tensors} vectors" if CAN_COMPILE else UNMEASURED,
    tier="compiler",
)

# %% [markdown]
# ### Fusion by hand
#
# Without a compiler you can still keep the intermediate numbers close. `out=` tells an operation where to write, so
# all six share one place. (`x.mul_(2)`, *in place*, does the same where x may be lost.) And the chain need not go over
# the whole vector at once: take a block that fits into a cache, do everything with it, go on to the next.


# %%
def chain_into(x, y, out):
    torch.mul(x, 2, out=out)
    torch.add(out, y, out=out)
    torch.clamp(out, min=0, out=out)
    torch.mul(out, y, out=out)
    torch.sub(out, x, out=out)
    return torch.abs(out, out=out)


def in_blocks(x, y, out, size=2**16):
    for pieces in zip(x.split(size), y.split(size), out.split(size), strict=True):
        chain_into(*pieces)
    return out


# %% [markdown]
# Python still launches six kernels a block, and each still reads and writes; but what it reads is in the cache,
# written there a moment ago. From memory come x, y and the result, once each. This trick is for processors; a GPU's
# caches are small beside the work that keeps it busy. So it runs on the CPU here, whatever you have.

# %%
on_cpu = [each[:16_000_000].cpu() for each in (x, y, out)]
expected = chain(*on_cpu[:2])
ways = {"out=": chain_into, "in blocks": in_blocks}
same = {name: torch.equal(way(*on_cpu), expected) for name, way in ways.items()}
claim(
    "by hand or in blocks, the chain gives the same numbers to the last bit",
    holds=all(same.values()),
    evidence=f"{same}",
)

# %% [markdown]
# ## Measure
#
# Now the repaired measurement: warm, in turns, medians. On one side the eager chain; on the other, where there is a
# compiler, the one kernel that it made.

# %%
contest = {"eager": lambda: chain(x, y)}
if CAN_COMPILE:
    contest["compiled"] = lambda: compiled(x, y)
fresh = timed(contest)
show_medians(fresh)
WORTH, FRESH = "what prepared memory is worth, and fusion", "fused, fresh memory (times)"
speedup = fresh.ratio("eager", "compiled").value if CAN_COMPILE else None
reveal("speedup", speedup, elsewhere=recording.recorded("06", WORTH, FRESH))

# %% [markdown]
# On the machine where this was written the answer was a little above 5, as the bytes had promised. Are we done? A
# prediction that comes true can still be right by accident. Ask the next question: are those bytes moved as fast as
# this machine can?
#
# ### The roof over your machine
#
# Measure what it can do at best: bytes moved by a plain copy, and arithmetic done by a large matrix product and by a
# convolution, which may come from different libraries.

# %%
n, batch = (1024, 1) if device() == "cpu" else (4096, 64)
square = torch.rand(n, n, device=device())
pictures, filters = torch.rand(batch, 256, 64, 64), torch.rand(256, 256, 3, 3)
pictures, filters = pictures.to(device()), filters.to(device())
best = timed({
    "copy": lambda: out.copy_(x),
    "matmul": lambda: square @ square,
    "convolution": lambda: nn.functional.conv2d(pictures, filters, padding=1),
}).median_s

# %%
copy_rate = 2 * x.nbytes / best["copy"]  # read once, written once
peaks = {
    "matmul": 2 * n**3 / best["matmul"],
    "convolution": 2 * batch * 64 * 64 * 256 * 256 * 9 / best["convolution"],
}
ceilings = {"copy (GB/s)": copy_rate / 1e9}
ceilings |= {f"{name} (GFLOP/s)": peak / 1e9 for name, peak in peaks.items()}
record("06", "the ceilings of one core, or of the GPU", ceilings)

# %% [markdown]
# The *roofline* puts the two together. Across: how many floating-point operations (FLOPs) a kernel does for each byte
# that it moves, its *intensity*. Up: how many it does a second. Memory allows at most intensity × bytes per second, a
# slope; arithmetic allows at most the peak, a flat roof. A kernel below both waits for something else. We count every
# operation on a number as one FLOP, `clamp` and `abs` too.

# %%
from labkit import plot_roofline

flops = 6 * N  # an operation for each of six kernels, at each place
least_moved = 3 * x.nbytes
points = {"eager": (flops / moved, flops / fresh.median_s["eager"]), "compiled": None}
if CAN_COMPILE:
    points["compiled"] = (flops / least_moved, flops / fresh.median_s["compiled"])
roofs = {"bytes_per_s": copy_rate, "peaks": peaks}
plot_roofline.roofline(points, **roofs, title="The chain, in fresh memory")

# %% [markdown]
# On the CPU where this was written the points hang far below the slope, eager and compiled alike. So the time did
# *not* go into moving these bytes, and the ratio of 5 was right for a wrong reason. What else did eager do six
# times, and compiled once? *Without a compiler*: the point for eager alone asks the same question.

# %% [markdown]
# *Allocate*: find a place for a result. For a large one torch asks the operating system, which hands it over in
# *pages* of a few kilobytes, each of them cleared, and mapped when it is first touched. On a GPU torch keeps what was
# freed and hands it out again: expect points on the slope there. The repair is to write to a place that is there
# already.


# %%
def fused_into(x, y, out):
    out.copy_(chain(x, y))  # compiled, there is no copy: the loop writes straight to out


prepared = torch.compile(fused_into)
contest["eager, prepared"] = lambda: chain_into(x, y, out)
if CAN_COMPILE:
    contest["compiled, prepared"] = lambda: prepared(x, y, out)
both = timed(contest)
show_medians(both)

# %% [markdown]
# The same figure again, with what was added. A kernel that does the same traffic in less time moves straight up.
# Fusion also moves a point to the right, for it does as many operations on fewer bytes.

# %%
points |= {"eager, prepared": None, "compiled, prepared": None}
for name, seconds in both.median_s.items():
    bytes_of = moved if name.startswith("eager") else least_moved
    points[name] = flops / bytes_of, flops / seconds
plot_roofline.roofline(points, **roofs, title="The chain, in fresh and in prepared memory")

# %%
gains = {"prepared, eager (times)": both.ratio("eager", "eager, prepared").value}
gains |= {"prepared, compiled (times)": None, FRESH: speedup}
lift = {"eager": moved / both.median_s["eager, prepared"] / copy_rate, "compiled": None}
if CAN_COMPILE:
    gain = both.ratio("eager, prepared", "compiled, prepared")
    gains["prepared, compiled (times)"] = both.ratio("compiled", "compiled, prepared").value
    lift["compiled"] = least_moved / both.median_s["compiled, prepared"] / copy_rate
gains["fused, prepared memory (times)"] = gain.value if CAN_COMPILE else None
record("06", WORTH, gains)

# %% [markdown]
# In prepared memory their ratio is what fusion itself is worth. A point *above* the slope is no error. A copy first
# reads the lines of memory that it will overwrite, which nobody counted: it moves three vectors, not two. Compiled
# moves four, not three. Eager mostly writes to where it has just read, and moves 16, not 15. So how far above the slope
# must they stand, and what may fusion promise?

# %%
expected = {"eager": (15 / 16) / (2 / 3), "compiled": (3 / 4) / (2 / 3)}  # copy: 2 of 3
fusion = "fusion, times faster"
lift[fusion], expected[fusion] = gain.value if CAN_COMPILE else None, 16 / 4
seen = {way: f"{times:.2f}" if times else "not measured" for way, times in lift.items()}
rows = [[way, seen[way], f"{expected[way]:.2f}"] for way in expected]
table(["times over the slope", "measured", "if a write reads first"], rows, varying=True)

# %% [markdown]
# Where this was written eager stood where the count puts it, and compiled somewhat lower. So fusion gave less than the
# four that it promises, and more of it with longer vectors. That rest the count does not explain: to read two vectors
# and write a third need not go as fast as to copy one. *Without a compiler*: the claims show what was recorded.

# %%
claim(
    "in prepared memory one kernel is at least 1.7 times as fast as six",
    holds=gain.value > 1.7 if CAN_COMPILE else None,
    evidence=f"{gain}" if CAN_COMPILE else UNMEASURED,
    tier="compiler",
)

# %%
claim(
    "the compiled chain moves its bytes at least half as fast as a plain copy does",
    holds=lift["compiled"] > 0.5 if CAN_COMPILE else None,
    evidence=f"{lift['compiled']:.2f} of the copy's rate" if CAN_COMPILE else UNMEASURED,
    tier="compiler",
)

# %% [markdown]
# And by hand? The blocks, on the processor, against whole passes, both in prepared memory. Too small a block, and
# Python's launches cost more than the work; too large a one, and it fits into no cache.

# %%
SIZES = [2**k for k in (12, 14, 16, 18, 20, 22, 23)] if FULL else [2**12, 2**14]
calls = {"whole": lambda: chain_into(*on_cpu)}
calls |= {f"{size}": lambda size=size: in_blocks(*on_cpu, size) for size in SIZES}
clocked = {"device": "cpu", "clock": time.process_time_ns}
blocks = bench(calls, repeats=9 if FULL else 5, warmup=1, **clocked)
gain_of = {size: blocks.ratio("whole", f"{size}") for size in SIZES}

# %% [markdown]
# A block holds three vectors, four bytes a number. Where is the best one, and from where on is nothing gained? Compare
# both with your caches. On Linux `lscpu` lists them: L2, which each core has for itself, and the larger L3, which
# cores share. It gives the total, and in brackets of how many.

# %%
labels = {"xlabel": "numbers in a block", "ylabel": "times faster than whole passes"}
curve = {"in blocks": (SIZES, [gain_of[size].value for size in SIZES])}
plot.lines(curve, **labels, log_x=True, markers=True)
size = max(gain_of, key=lambda size: gain_of[size].value)
best_block = {"best block": size, "it holds (MB)": 12 * size / 1e6}
record("06", "fused by hand, one core", best_block | {"gain (times)": gain_of[size].value})

# %%
claim(
    "in blocks of the best size the chain is at least 1.15 times as fast as in whole passes",
    holds=gain_of[size].value > 1.15,
    evidence=f"in blocks of {size:,}: {gain_of[size]}",
)

# %% [markdown]
# ### When does it pay?
#
# The compiled chain saves a little at each call, and costs a lot once. Guess how many calls that takes.

# %%
question = "After how many calls has the very first compilation paid for itself?"
predict("calls", question, default=100, low=1, high=100_000)

# %% [markdown]
# Three prices. The very first compilation of a process, with nothing kept from before, also tries out what vector
# units there are. The next function is cheaper. And what was compiled once lies in a folder: another process, or this
# one after a restart, finds it there.


# %%
def compile_s(fn, *args):
    torch.compiler.reset()  # forget what this process has compiled, and keep the folder
    return compilation.first_call_s(torch.compile(fn), *args)


prices = {}
if CAN_COMPILE:
    with compilation.empty_cache():
        prices["next function"] = compile_s(fused_into, x, y, out)
        prices["found in the folder"] = compile_s(fused_into, x, y, out)
    prices = {"very first": first["compiled"]} | prices

# %% [markdown]
# Each call pays a little of the price back: the difference of eager and compiled, both in prepared memory. Divide the
# one by the other and round up.

# %%
from labkit import cost

each_s = [both.median_s.get(name) for name in ("eager, prepared", "compiled, prepared")]
pays = {name: cost.break_even_calls(price, *each_s) for name, price in prices.items()}
PRICES, CALLS = "what compiling costs (s)", "after how many calls it has paid"
names = ("very first", "next function", "found in the folder")
record("06", PRICES, {name: prices.get(name) for name in names})
counted = {name: calls if math.isfinite(calls) else "never" for name, calls in pays.items()}
record("06", CALLS, {name: counted.get(name) for name in names})
reveal("calls", pays.get("very first"), elsewhere=recording.recorded("06", CALLS, names[0]))

# %%
claim(
    "the very first compilation pays only after more than ten calls",
    holds=pays["very first"] > 10 if CAN_COMPILE else None,
    evidence=f"{pays['very first']:g} calls" if CAN_COMPILE else UNMEASURED,
    tier="compiler",
)

# %% [markdown]
# ### Graph breaks
#
# The front half of the compiler, *dynamo*, follows your Python and writes the operations down as a *graph*. Where the
# next step depends on a number that is still on the device, it cannot know how to go on. It ends the graph, lets Python
# do that step, and begins another. Between two graphs nothing is fused. None of this needs a C++ compiler.


# %%
noted = {}


def noisy(x, y):
    h = x * y
    if h.abs().max() > 1:  # keep it within -1 and 1
        h = h / h.abs().max()
    noted["mean"] = h.mean().item()  # for the log
    return h[h > 0].sum()


# %% [markdown]
# In pieces, is it still right? A *backend* makes of a graph something that runs. The backend `eager` runs it as it is,
# and needs no compiler. Three inputs: nothing to scale down, much, and a negative number that is the largest.

# %%
first_x, first_y = x[:1000], y[:1000]
INPUTS = [(first_x, first_y), (8 * first_x, first_y), (0.5 - 3 * first_x, first_y)]
torch.compiler.reset()
in_pieces = torch.compile(noisy, backend="eager")

# %%
off = [abs(float(in_pieces(*pair)) - float(noisy(*pair))) for pair in INPUTS]
ran = compilation.pieces(in_pieces, *INPUTS[0])
claim(
    "broken into pieces the function still gives what it gives eagerly",
    holds=max(off) < 1e-2,
    evidence=f"the sums differ by {max(off):.1e}; {ran} pieces ran",
)

# %% [markdown]
# It is right, and a line in the log, silenced here, is all the warning that you may get.
# `torch._dynamo.explain` says how many graphs there are and where they break.
# (`torch.compile(..., fullgraph=True)` is stricter: it raises an error at a break that it cannot mend.)

# %%
found = torch._dynamo.explain(noisy)(*INPUTS[0])
reasons = [[each.user_stack[-1].line, each.reason.splitlines()[0]] for each in found.break_reasons]
table(["breaks at", "reason"], reasons, varying=True)
claim(
    "three ordinary lines cut a short function into several graphs",
    holds=found.graph_count > 1 and len(reasons) == 3,
    evidence=f"{found.graph_count} graphs, {len(reasons)} reasons",
)

# %% [markdown]
# The reasons are in torch's own words. A *generic jump* or *data-dependent branch* is an `if` on a tensor. `.item()`
# takes a number out. A *dynamic shape operator* gives a result whose length depends on the numbers. Exercise 6.3 mends
# all three.
#
# ### Recompilations
#
# Code is compiled for what it was called with: number types, device, *shape*. `torch.compile` guards it with checks,
# and where one fails it compiles again. Text comes in many lengths, and a last batch is often short.

# %%
question = "A function is called with six lengths, one after the other. How often is it compiled?"
predict("compilations", question, default=6, low=1, high=12)

# %% [markdown]
# The backend below counts the graphs that it gets and runs them as they are. `dynamic=False` compiles for every
# shape; left out, torch notices that a size has changed and makes it a variable; `mark_dynamic` tells it so at once.


# %%
def compilations(lengths, marked=False, **how):
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    fn = torch.compile(chain, backend=counting, **how)
    for length in lengths:
        batch = [torch.rand(length), torch.rand(length)]
        for each in batch if marked else ():
            torch._dynamo.mark_dynamic(each, 0)
        fn(*batch)
    torch.compiler.reset()
    return len(graphs)


# %% [markdown]
# Six lengths, and four ways to say what may change. After that forty lengths, one after the other, all of them as
# static code.

# %%
LENGTHS = (100, 200, 300, 400, 500, 600)
counts = {
    "dynamic=False": compilations(LENGTHS, dynamic=False),
    "left out": compilations(LENGTHS),
    "dynamic=True": compilations(LENGTHS, dynamic=True),
    "mark_dynamic": compilations(LENGTHS, marked=True),
}
table(["dynamic", "compilations"], counts.items())
reveal("compilations", counts["left out"])

# %%
claim(
    "six lengths are compiled six times if static, twice if torch notices, once if it is told",
    holds=list(counts.values()) == [6, 2, 1, 1],
    evidence=f"{counts}",
)
print(f"forty lengths, static: {compilations(range(100, 140), dynamic=False)} compilations")

# %% [markdown]
# After so many torch gives up on this function: further lengths run eagerly, with a line in the log that is easily
# missed. (It is silenced here. The limit is `torch._dynamo.config.recompile_limit`.) It would do so in every later cell
# too, and "compiled" would be the name of something eager. So `compilations` ends with a reset, and from here on we ask
# the profiler what ran.

# %% [markdown]
# ### Where it gains nothing
#
# A large matrix product is one kernel already, written by people who did nothing else for years. A network of such
# products, with a little pointwise work between them, is nearly the same case. And on 64 numbers there are no bytes
# to save: eager pays for launches, compiled for its checks.

# %%
torch.manual_seed(0)
mlp = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device())
inputs = torch.rand(256, 512, device=device())
cases = {
    "one matmul": (lambda a, b: a @ b, [square, square]),
    "MLP": (mlp, [inputs]),
    "64 numbers": (chain, [x[:64], y[:64]]),
}

# %%
nothing, small_s, graphs = {}, {}, {}
for name, (fn, args) in cases.items():
    pair = {"eager": lambda fn=fn, args=args: fn(*args)}
    if CAN_COMPILE:
        torch.compiler.reset()
        faster = torch.compile(fn, dynamic=False)
        pair["compiled"] = lambda faster=faster, args=args: faster(*args)
    with torch.no_grad():
        measured = timed(pair, repeats=25)
        graphs[name] = compilation.pieces(pair["compiled"]) if CAN_COMPILE else None
    small_s[name] = measured.median_s
    nothing[name] = measured.ratio("eager", "compiled").value if CAN_COMPILE else None
record("06", "how many times faster compiled is than eager", nothing)

# %% [markdown]
# A figure below 1 says that compiled is slower. On 64 numbers it was, by far, where this was written: before the loop
# starts, each call compares types, shapes and more with what was compiled.

# %%
tiny = "slower than eager (on a GPU: less than 2.5 times as fast)"
BARS = {"one matmul": ("less than 1.2 times as fast as eager", 1.2)}
BARS["MLP"] = ("less than 1.5 times as fast as eager", 1.5)
BARS["64 numbers"] = (tiny, 1 if device() == "cpu" else 2.5)
for name, (words, bar) in BARS.items():
    holds, found = None, UNMEASURED
    if CAN_COMPILE:
        holds = nothing[name] < bar and graphs[name] == 1
        found = f"{nothing[name]:.3g} (1 is equally fast), {graphs[name]} graph ran"
    claim(f"{name}: compiled is {words}", holds=holds, evidence=found, tier="compiler")

# %% [markdown]
# ## Change one thing
#
# More arithmetic on the same bytes. `busy` does k rounds of four FLOPs for each number, and as one kernel still reads
# one vector and writes one. What does the roofline say of its time? Flat, as long as memory is the limit; then a
# slope. Change `ROUNDS`: any whole numbers from 1 on.

# %%
ROUNDS = (1, 2, 4, 8, 16, 32)


# %%

def busy(x, out, k):
    total = x
    for i in range(1, k + 1):
        total = total + (x * i - 1).abs()
    out.copy_(total)


# %% [markdown]
# By hand, in blocks, with a spare block for what each round makes. The processor keeps both in its cache, and memory
# is asked for x and the result only.


# %%
def by_hand(x, out, k, size=2**16):
    scratch = torch.empty(size, device=x.device)
    for piece, total in zip(x.split(size), out.split(size), strict=True):
        spare = scratch[: len(piece)]
        total.copy_(piece)
        for i in range(1, k + 1):
            torch.mul(piece, i, out=spare).sub_(1).abs_()
            total.add_(spare)


# %%
rounds = {f"by hand, {k}": lambda k=k: by_hand(on_cpu[0], on_cpu[2], k) for k in ROUNDS}
hand_s = bench(rounds, repeats=5, warmup=1, **clocked).median_s
hand_s = [seconds / len(on_cpu[0]) for seconds in hand_s.values()]
curves = {"by hand, on the CPU": (ROUNDS, hand_s)}
best_rates = copy_rate, max(peaks.values())
curves["roofline"] = (ROUNDS, [cost.kernel_s(8, 4 * k, *best_rates) for k in ROUNDS])
curves["one kernel"] = (ROUNDS, [math.nan] * len(ROUNDS))  # until it is measured

# %% [markdown]
# And compiled. Each number of rounds is a function of its own for the compiler, so this cell takes some seconds where
# nothing lies in the folder yet, and the limit of recompilations must allow them all. *Without a compiler*: `one
# kernel` is another machine's, if one has recorded these rounds.

# %%
asked, ran = sorted({1, 4, *ROUNDS}), set()
one_kernel, whose = dict.fromkeys(asked), "this machine"
if CAN_COMPILE:
    torch.compiler.reset()
    fused = torch.compile(busy, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=len(asked) + 1):
        rounds = {f"{k}": lambda k=k: fused(x, out, k) for k in asked}
        fused_s = timed(rounds, repeats=7).median_s
        ran = {compilation.pieces(call) for call in rounds.values()}
    one_kernel = {k: fused_s[f"{k}"] / N * 1e9 for k in asked}
ONE = "nanoseconds for one number, by rounds in one kernel"
record("06", ONE, {f"{k}": one_kernel[k] for k in asked})

# %%
if not CAN_COMPILE:
    whose, held = elsewhere(ONE, [f"{k}" for k in asked])
    one_kernel = dict(zip(asked, held, strict=True))
curves["one kernel"] = (ROUNDS, [one_kernel[k] * 1e-9 for k in ROUNDS])
table(["one kernel was measured on"], [[whose or "no machine yet"]], varying=True)
labels = {"xlabel": "rounds of four FLOPs", "ylabel": "time for one number"}
plot.lines(curves, **labels, log_x=True, log_y=True, markers=True, seconds_axis="y")

# %% [markdown]
# Where this was written, arithmetic was free up to some eight rounds: the processor does it while it waits for memory.
# By hand each round goes through the cache again, and costs from the first one on. Here is the same as a roofline, of
# what this machine measured.

# %%
points = {"eager, prepared": (flops / moved, flops / both.median_s["eager, prepared"])}
for k in ROUNDS[::2]:
    work = 4 * k * N
    points[f"k = {k}"] = (work / (2 * x.nbytes), work / fused_s[f"{k}"]) if CAN_COMPILE else None
plot_roofline.roofline(points, **roofs, title="More work on each byte")

# %%
claim(
    "in one kernel four rounds take less than 1.5 times as long as one",
    holds=fused_s["4"] < 1.5 * fused_s["1"] and ran == {1} if CAN_COMPILE else None,
    evidence=f"{fused_s['4'] / fused_s['1']:.2f} times" if CAN_COMPILE else UNMEASURED,
    tier="compiler",
)

# %% [markdown]
# ## Exercises
#
# Count, predict, mend, choose. Where you have not solved one yet, the cells after it use the course's own version.

# %% [markdown]
# ### Exercise 6.1 · Count the bytes (8 min, easy)
#
# A chain is given as steps, each a pair: the name that it makes, and the list of names that it reads. `sizes` says
# how many numbers each name has, `itemsize` how many bytes a number takes. `returned` lists what the caller gets.
#
# Return a pair: the bytes moved by a kernel a step, and by one kernel for all. The traps: x · x reads x once; a bias
# is short; a step in the middle may be returned too, and then it must be written.


# %%
def count_bytes(steps, returned, sizes, itemsize):
    """(bytes with a kernel a step, bytes with one kernel for all)"""
    ### BEGIN SOLUTION
    eager = sum(sizes[name] for made, read in steps for name in {made, *read})
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    fused = sum(sizes[name] for name in given | set(returned))
    return eager * itemsize, fused * itemsize
    ### END SOLUTION


# %%
check(count_bytes)

# %% [markdown]
# The chain of this lesson, and three that networks are made of, on a million numbers of four bytes. Which of them
# would you fuse first?

# %%
CHAINS = {  # each step: what it makes, then what it reads
    "this lesson's": "ax bay cb dcy edx fe",
    "bias, ReLU, residual": "axB ca dcy",
    "GELU by hand": "axx bax cbx dc ed fex",
    "ReLU alone": "ax",
}
count, rows = attempt(count_bytes), []
sizes = dict.fromkeys("xyabcdef", 10**6) | {"B": 1000}
for name, text in CHAINS.items():
    steps = [(step[0], list(step[1:])) for step in text.split()]
    plain, fused_bytes = count(steps, [steps[-1][0]], sizes, 4)
    rows.append([name, plain // 10**6, fused_bytes // 10**6, f"{plain / fused_bytes:.2f}"])
table(["chain", "MB, a kernel a step", "MB, one kernel", "ratio"], rows)

# %% [markdown]
# ### Exercise 6.2 · Predict the speed-up (12 min, medium)
#
# Eager is a list of kernels, each a pair of bytes and FLOPs; fused is one such pair. `machine` has four figures: its
# `bytes_per_s`, its `flops_per_s`, `launch_s`, which each eager kernel costs before it starts, and `call_s`, which a
# compiled call costs in all before its kernel starts. Return how many times faster fused is.
#
# The trap: memory and arithmetic work at the same time, and each kernel has a limit of its own.


# %%
def predicted_speedup(eager, fused, machine):
    """The time of the eager kernels over that of the fused one."""
    ### BEGIN SOLUTION
    def busy_s(n_bytes, flops):
        return max(n_bytes / machine["bytes_per_s"], flops / machine["flops_per_s"])

    eager_s = sum(machine["launch_s"] + busy_s(*kernel) for kernel in eager)
    return eager_s / (machine["call_s"] + busy_s(*fused))
    ### END SOLUTION


# %%
check(predicted_speedup)

# %% [markdown]
# Your machine in four figures: the two rates from above, and what the chain costs on 64 numbers, where there is
# nothing but launches. Then the chain at several lengths, in prepared memory, predicted and measured.

# %%
tiny_s, predicted = small_s["64 numbers"], attempt(predicted_speedup)
FOUR = "a machine in four figures"
HEADINGS = ("copy (GB/s)", "arithmetic (GFLOP/s)", "a launch (µs)", "a compiled call (µs)")
four = [copy_rate / 1e9, max(peaks.values()) / 1e9, tiny_s["eager"] / 6 * 1e6]
four.append(tiny_s["compiled"] * 1e6 if CAN_COMPILE else None)
record("06", FOUR, dict(zip(HEADINGS, four, strict=True)))

# %%
whose, names = "this machine", ("bytes_per_s", "flops_per_s", "launch_s", "call_s")
if not CAN_COMPILE:
    whose, four = elsewhere(FOUR, HEADINGS)
machine = {name: four[i] * (1e9, 1e9, 1e-6, 1e-6)[i] for i, name in enumerate(names)}


def promised(length):
    kernels = [((read + written) / N * length, length) for _, read, written in eager.rows]
    return predicted(kernels, (12 * length, 6 * length), machine)


# %% [markdown]
# The compiled code must serve all lengths here, so it is compiled once, with `dynamic=True`. The vectors are cut out
# of the long ones, and the result goes to prepared memory. *Without a compiler*: your function predicts for a machine
# that has recorded all of this, and is held against what that machine measured.

# %%
torch.compiler.reset()
anyhow = torch.compile(fused_into, dynamic=True)
lengths = (100, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000, 10_000_000)
ratios, BY_LENGTH = dict.fromkeys(lengths), "times that compiled is faster, by length"
for length in lengths if CAN_COMPILE else ():
    args = [each[:length] for each in (x, y, out)]
    pair = {"eager": lambda args=args: chain_into(*args)}
    pair["compiled"] = lambda args=args: anyhow(*args)
    ratios[length] = timed(pair).ratio("eager", "compiled").value
record("06", BY_LENGTH, {f"{length:,}": ratio for length, ratio in ratios.items()})

# %%
found = list(ratios.values())
if not CAN_COMPILE:
    found = [recording.recorded("06", BY_LENGTH, f"{n:,}").get(whose, math.nan) for n in lengths]
curves = {"predicted": (lengths, [promised(length) for length in lengths])}
curves["measured"] = (lengths, found)
labels = {"xlabel": "numbers in a vector", "ylabel": "times faster"}

# %% [markdown]
# The prediction and the measurement in one figure. Below it stands, for each, the first of these lengths at which
# compiled code is the faster.

# %%
plot.lines(curves, **labels, log_x=True, markers=True, levels={"no gain": 1})
rows = [["measured on", whose or "no machine yet"]]
for name, (_, times) in curves.items():
    gaining = [length for length, ratio in zip(lengths, times, strict=True) if ratio > 1]
    rows.append([f"{name}: a gain from", f"{min(gaining):,}" if gaining else "nowhere"])
table(["lengths", ""], rows, varying=True)

# %% [markdown]
# That the lines come close on the left is no test: both prices of a call were measured on 64 numbers. Where the line
# crosses 1 is one. Where this was written it did so at too short a length, and promised too much from there on. In the
# middle the vectors lie in a cache, faster than the memory whose rate we put in, and eager, which reads more, gains
# more by it. On the right the lines of memory are missing that a write reads first.

# %% [markdown]
# ### Exercise 6.3 · Mend the breaks (15 min, medium)
#
# Write `noisy` anew, in one graph. Return a pair of tensors: the sum that it returns, and the mean that it notes, for
# the caller to write down. The results must be equal, for large inputs and for small ones.
#
# The traps: `if` on a tensor; a number taken out with `.item()`; a result whose length is not known beforehand.

# %% [markdown]
# The rule: dynamo's settings stay as they are by default, and the graph may call operations of torch and of Python
# only. To wrap the lines into an operation of your own (`torch.library.custom_op`) hides them from the compiler, and
# is no cure.


# %%
def unbroken(x, y):
    """(the sum that noisy returns, the mean that it notes), both as tensors."""
    ### BEGIN SOLUTION
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return torch.where(h > 0, h, 0).sum(), h.mean()
    ### END SOLUTION


# %%
check(unbroken)

# %% [markdown]
# Held against `noisy` itself, with the three inputs from above: each must give the sum and the mean that `noisy` gives.

# %%
mended, off = attempt(unbroken), []
left = torch._dynamo.explain(mended)(*INPUTS[0])
for pair in INPUTS:
    (total, mean), plainly = mended(*pair), noisy(*pair)
    off += [abs(float(total - plainly)), abs(float(mean) - noted["mean"])]

# %%
claim(
    "mended it is a single graph, with the same results",
    holds=left.graph_count == 1 and not left.break_reasons and max(off) < 1e-2,
    evidence=f"{left.graph_count} graph; the results differ by {max(off):.1e} at most",
)

# %% [markdown]
# What did the breaks cost on long vectors? Besides `noisy` and your function two that are mended by half: one keeps
# the mask, the other keeps `if` and `.item()`. All four are compiled.


# %%
def mask_left(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return h[h > 0].sum(), h.mean()


def mask_mended(x, y):
    h = x * y
    if h.abs().max() > 1:
        h = h / h.abs().max()
    noted["mean"] = h.mean().item()
    return torch.where(h > 0, h, 0).sum()


# %%
left_in = {"noisy": noisy, "only the mask": mask_left}
left_in |= {"only if and .item()": mask_mended, "mended": mended}
took_ms = dict.fromkeys(left_in)
if CAN_COMPILE:
    torch.compiler.reset()
    left_in = {name: torch.compile(fn, dynamic=False) for name, fn in left_in.items()}
    calls = {name: lambda fn=fn: fn(x, y) for name, fn in left_in.items()}
    took_ms = {name: 1e3 * seconds for name, seconds in timed(calls, repeats=5).median_s.items()}
record("06", "compiled, by what is left in it (ms)", took_ms)

# %% [markdown]
# Where this was written nearly all of it went into the mask, and only a part of that is the break. `h[h > 0]` finds
# places, then collects what stands there; `where` has other work to do, and less. `if` and `.item()` cost some five
# times the mended function: each ends a graph, and the next goes over the whole vector again.

# %% [markdown]
# ### Exercise 6.4 · What to compile (12 min, medium)
#
# `job` is a dictionary: so many `calls`, spread evenly over so many `shapes`; `compile_s` for one compilation; and
# seconds a call, `eager_s`, `static_s`, `dynamic_s`. Return "eager", "static" or "dynamic", whichever takes the
# fewest seconds in all; of equals the first.
#
# Static code is compiled for each shape, up to `limit` of them; the shapes beyond run eagerly. Dynamic code is
# compiled once. The trap: the best code a call is often not the best job.


# %%
def choose(job, limit=8):
    """The way that takes the fewest seconds in all."""
    ### BEGIN SOLUTION
    covered = min(job["shapes"], limit)
    share = covered / job["shapes"]
    static_s = share * job["static_s"] + (1 - share) * job["eager_s"]
    seconds = {
        "eager": job["calls"] * job["eager_s"],
        "static": covered * job["compile_s"] + job["calls"] * static_s,
        "dynamic": job["compile_s"] + job["calls"] * job["dynamic_s"],
    }
    return min(seconds, key=seconds.get)
    ### END SOLUTION


# %%
check(choose)

# %% [markdown]
# Four jobs for the chain, with this machine's own prices. *Without a compiler*: with those of a machine that recorded
# them. Guess before you look: which of the jobs is worth a compilation, and of which kind?

# %%
JOB, HEADINGS = "the prices of a job", ("compile (s)", "eager (ms)", "static (ms)", "dynamic (ms)")
costs, whose = dict.fromkeys(HEADINGS), "this machine"
if CAN_COMPILE:
    dynamic_s = timed({"dynamic": lambda: anyhow(x, y, out)}).median_s["dynamic"]
    calls_ms = [1e3 * seconds for seconds in (*each_s, dynamic_s)]
    costs = dict(zip(HEADINGS, (prices["next function"], *calls_ms), strict=True))
record("06", JOB, costs)

# %%
JOBS = {"10 calls": (10, 1), "10,000 calls": (10_000, 1), "100 calls, 4 lengths": (100, 4)}
JOBS["10,000 calls, 40 lengths"] = (10_000, 40)
whose, held = (whose, list(costs.values())) if CAN_COMPILE else elsewhere(JOB, HEADINGS)
known = {"compile_s": held[0], "eager_s": held[1] / 1e3}
known |= {"static_s": held[2] / 1e3, "dynamic_s": held[3] / 1e3}
pick, rows = attempt(choose), [["with the prices of", whose or "no machine yet"]]
for name, (n_calls, n_shapes) in JOBS.items() if whose else ():
    rows.append([name, pick(known | {"calls": n_calls, "shapes": n_shapes})])
table(["job", "cheapest in all"], rows, varying=True)

# %% [markdown]
# ## Limits
#
# **When do you compile?** When the same code runs often, in few shapes, and much of its time is pointwise work or
# launches. First look whether the device waits at all (lesson 05), then whether memory is prepared, then compile, and
# time it warm. Ask `explain` for breaks. Count compilations where lengths vary.

# %% [markdown]
# - A published comparison on a B200 GPU has a model of a billion parameters 3.9 times as fast compiled, and one of
#   eight billion, with long inputs, at 0.94 times: slower.
# - One core was measured here. With all cores memory is shared, and the roof over each of them is lower.
# - Blocks by hand need no compiler, and no two machines agree on the best size.

# %% [markdown]
# - Fresh memory cost so much here because of this system's way to hand out pages. Another allocator, such as
#   `tcmalloc`, keeps them, and then the first roofline looks like the second.
# - Bytes were counted, not seen: what a cache line drags along, and what stays in a cache, is left out.
# - Compiled code may differ from eager in the last digits, for sums are in another order.

# %% [markdown]
# ## Further questions
#
# 1. Add `tanh`, counted as one FLOP, though a processor needs dozens. Where does the point go, eager and compiled?
# 2. Compile a whole training step of lesson 03's networks. Which one gains, and after how many steps?
# 3. `torch.compile(mode="reduce-overhead")` on a GPU replays launches. What does it do to 64 numbers?
# 4. Let `in_blocks` run in several threads, timed by `time.perf_counter_ns`, for `process_time_ns` adds their times
#    up. Which roof does it meet first?

# %% [markdown]
# ## Sources
#
# - Williams, Waterman and Patterson, [Roofline](https://doi.org/10.1145/1498765.1498785), 2009.
# - Ansel and others, [PyTorch 2](https://doi.org/10.1145/3620665.3640366), ASPLOS 2024: dynamo and inductor.
# - PyTorch, [torch.compile programming
#   model](https://docs.pytorch.org/docs/stable/compile/programming_model.html): breaks, guards, recompilations.
# - McCalpin, [STREAM](https://www.cs.virginia.edu/stream/ref.html): how bytes are counted, and what writing reads.
# - Linux manual, [mallopt](https://man7.org/linux/man-pages/man3/mallopt.3.html): when memory goes back to the system.
# - Bekman, [ml-engineering](https://github.com/stas00/ml-engineering): the figures of the B200.
