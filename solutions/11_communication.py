# title: Communication
# minutes: 77
# cpu: everything; the ranks are processes on this machine, and a slow link is made of sleep
# gpu: as on a CPU, for two ranks need two GPUs to have a link between them
# gpu2: the link between two GPUs, by NCCL, measured
#
# %% [markdown]
# # 11 · Communication
#
# Seventy-seven minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# Two devices train one network. Each has gradients from its own half of the batch, and both need the mean. So the
# gradients travel, in every step. **How long does that take, what decides it, and how much of a step may it cost?**

# %%
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from labkit import attempt, check, claim, cost, measure, predict, record, repro, reveal, table
from labkit.ranks import counting, device, run_ranks

# %% [markdown]
# A *rank* is one process of several that work together, and its number; the *world size* is how many there are. A
# *collective* is a call that all ranks make together. `run_ranks(fn, 2)` starts two ranks, runs `fn` in each, and gives
# back what they returned, in order. Here the ranks get a GPU each where there are enough, and otherwise share this
# machine's processor.

# %%
FULL = repro.budget() == "full"  # else a preview in a few rounds, which decides no claim


def place(world_size):
    """Where ranks run: None leaves each its own GPU, "cpu" the processor."""
    return None if torch.cuda.device_count() >= world_size else "cpu"


def hello():
    return f"rank {dist.get_rank()} of {dist.get_world_size()}"


print(run_ranks(hello, 2, devices=place(2)))

# %% [markdown]
# ## Predict
#
# Three guesses. Move the sliders before you go on. (A MB is a million bytes, a MiB is 2^20.)
#
# An *all-reduce* adds up one vector from each rank, and leaves the sum on all of them. Every rank starts with a vector
# of its own and must hear of all others.

# %%
question = (
    "Four ranks, a vector of 16 MB on each. How many MB must each rank send to all-reduce it?"
)
predict("sent", question, default=48, low=4, high=64, unit="MB")

# %%
question = (
    "16 MiB are 65,536 times 256 bytes. How many times as long do they take from rank to rank?"
)
predict("times", question, default=30_000, low=1, high=100_000, unit="times")

# %% [markdown]
# And a network of wide linear layers, some ten million weights, on two machines such as this one, joined by the
# 10-gigabit Ethernet of many an office. In a step each computes the gradients of 128 small pictures, then they are
# all-reduced.

# %%
question = "What share of a step goes into the all-reduce?"
predict("share", question, default=5, low=0, high=100, unit="%")

# %% [markdown]
# ## Build
#
# ### Everybody to everybody
#
# The obvious way: each rank sends its whole vector to each other rank, and adds up what arrives. `isend` and `irecv`
# start a message and return at once; the *i* stands for immediate. `batch_isend_irecv` starts several together, so
# that no rank waits for another to go first; `wait` ends when one is through.


# %%
def exchange(*messages):
    """Run messages, each (dist.isend or dist.irecv, tensor, other rank), at the same time."""
    for under_way in dist.batch_isend_irecv([dist.P2POp(*each) for each in messages]):
        under_way.wait()


# %%
def everybody_to_everybody(x):
    """The sum over ranks, in place of x."""
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    arrived = {rank: torch.empty_like(x) for rank in others}
    sends = [(dist.isend, x, rank) for rank in others]
    exchange(*((dist.irecv, arrived[rank], rank) for rank in others), *sends)
    for each in arrived.values():
        x += each


# %% [markdown]
# It is right, and wasteful: every rank does all the adding, and sends R-1 vectors, for R ranks. Could a rank send less
# than what it has? Yes, if every rank adds up *a part*, and then hands the finished part round.

# %% [markdown]
# ### The ring
#
# Cut the vector into R chunks and seat the ranks in a circle. In each step a rank sends one chunk to its right and
# receives one from its left, which it adds to its own. The chunk it has just added to is the one it sends next. After
# R-1 steps each rank holds one finished chunk: that is *reduce-scatter*. Then the finished chunks go round once more:
# *all-gather*.

# %%
R = 4
add = [[f"{(rank - step) % R}" for rank in range(R)] for step in range(R - 1)]
copy = [[f"{(rank - step + 1) % R}" for rank in range(R)] for step in range(R - 1)]
rows = [[f"reduce-scatter, step {i + 1}", *sent] for i, sent in enumerate(add)]
rows += [[f"all-gather, step {i + 1}", *sent] for i, sent in enumerate(copy)]
table(["the chunk that is sent by", *(f"rank {rank}" for rank in range(R))], rows)

# %% [markdown]
# Read down a column: a rank's chunks go backwards, for it sends what the rank to its left sent one step before. Read
# across: in no step do two ranks send the same chunk. In code, the same arithmetic. `tensor_split` gives *views*,
# windows into the vector: what arrives in a view is in the vector already. The receive is started before the send, so
# that what comes has its place, and the library need not keep it elsewhere.


# %%
def ring_all_reduce(x, room=None):
    """The sum over ranks, in place of x, which has no gaps in memory; room: for what is added."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.view(-1).tensor_split(world_size)
    room = torch.empty_like(chunks[0]) if room is None else room  # the first chunk is the longest
    for step in range(world_size - 1):  # reduce-scatter
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        part = room[: take.numel()]
        exchange((dist.irecv, part, left), (dist.isend, give, right))
        take += part
    for step in range(world_size - 1):  # all-gather
        give, take = chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size]
        exchange((dist.irecv, take, left), (dist.isend, give, right))


# %% [markdown]
# Is it right? Each rank fills a vector with whole numbers, small enough that 32-bit floats add them without rounding,
# so the order of adding cannot matter and nothing less than equality will do. `counting` notes each collective and
# message of this rank, and its bytes.

# %%
WAYS = {"everybody": everybody_to_everybody, "ring": ring_all_reduce}


def compared(n):
    """For each way: whether it gives torch's own sum; messages and bytes that this rank sent."""
    dice = torch.Generator().manual_seed(dist.get_rank())
    mine = torch.randint(-1000, 1000, (n,), generator=dice).float().to(device())
    right, found = mine.clone(), {}
    dist.all_reduce(right)
    for name, way in WAYS.items():
        x = mine.clone()
        with counting() as seen:
            way(x)
        found[name] = torch.equal(x, right), seen.calls["send"], seen.bytes["send"]
    return found


# %%
N = 4_000_000  # floats: 16 MB
seen = {size: run_ranks(compared, size, N, devices=place(size)) for size in (2, 4)}
first = {(size, way): ranks[0][way] for size, ranks in seen.items() for way in WAYS}
rows = [[*which, n_messages, f"{n_bytes:,}"] for which, (_, n_messages, n_bytes) in first.items()]
table(["ranks", "way", "messages from rank 0", "bytes from rank 0"], rows)

# %% [markdown]
# Before anything is said of speed: are they right? And what does each rank of a ring send? Not rank 0 alone, which the
# table shows, but every rank must keep to it.

# %%
claim(
    "both ways give torch's own sum, exactly, on every rank",
    holds=all(each[way][0] for ranks in seen.values() for each in ranks for way in WAYS),
    evidence=f"{N:,} floats, with {' and '.join(map(str, seen))} ranks",
)

# %%
sent = {size: [each["ring"][2] for each in ranks] for size, ranks in seen.items()}
claim(
    "in the ring each rank sends 2 (R-1)/R times the bytes of the vector, to the byte",
    holds=all(n == cost.ring_all_reduce_bytes(4 * N, R) for R, each in sent.items() for n in each),
    evidence="\n".join(
        f"{R} ranks: {min(each):,} to {max(each):,} bytes, "
        f"expected {cost.ring_all_reduce_bytes(4 * N, R):,.0f}"
        for R, each in sent.items()
    ),
)
reveal("sent", max(sent[4]) / 1e6)

# %% [markdown]
# 2 (R-1)/R: with two ranks once the vector, with a thousand nearly twice, and never more. (Where R does not divide the
# vector, some chunks are one number longer, and some ranks send that much more.) That is why *data-parallel* training,
# each rank with the whole network and a part of the batch, scales at all. No scheme of messages between ranks can make
# the busiest rank send less (Patarasuk and Yuan). Everybody-to-everybody grows with R.

# %% [markdown]
# ## Measure
#
# ### A stopwatch that blames the link
#
# First the measurement that goes wrong most often. Rank 1 has more to compute, here a sleep, and comes late. Rank 0
# puts a stopwatch around its all-reduce.

# %%
LATE_S = 0.05


def stopwatch(start_together):
    """Seconds of a small all-reduce on this rank, the least of some, when rank 1 comes late."""
    x, seconds = torch.ones(1024, device=device()), []
    for _ in range(6):
        dist.all_reduce(x)
        time.sleep(LATE_S * dist.get_rank())
        if start_together:
            dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        measure.synchronize(device())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# %%
naive_s, fair_s = (run_ranks(stopwatch, 2, fair, devices=place(2))[0] for fair in (False, True))
claim(
    "without a common start, rank 0 books the lateness of rank 1 as communication",
    holds=naive_s > 0.8 * LATE_S and fair_s < 0.5 * naive_s,
    evidence=f"rank 0: {1e3 * naive_s:.2f} ms; both starting together {1e3 * fair_s:.2f} ms",
)

# %% [markdown]
# A collective ends when the last rank has come. So a profile that shows much time in `all_reduce` may show a slow
# link, or a slow *rank*. A `barrier` is a collective in which nothing is sent: no rank leaves it before all have
# entered. In a benchmark it belongs before the stopwatch; in training, where ranks wait anyway, leave it out.


# %%
def in_turns(calls, rounds):
    """{name: seconds in each round} on this rank; the ranks begin each call together."""
    seconds = {name: [] for name in calls}
    for turn in range(-1, rounds):  # the first round is not like the others
        for name, call in calls.items():
            dist.barrier()
            measure.synchronize(device())
            start = time.perf_counter()
            call()
            measure.synchronize(device())
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


# %% [markdown]
# Each rank has its own stopwatch. A collective has taken as long as the rank that took longest, so from each round we
# take that one.


# %%
def of_slowest(ranks):
    """{name: seconds in each round}, in each round those of the rank that took longest."""
    return {name: list(map(max, *(each[name] for each in ranks))) for name in ranks[0]}


# %% [markdown]
# ### By hand against the library
#
# Torch's own all-reduce is made by *gloo* on processors and by *NCCL* on NVIDIA's GPUs. Both use rings for large
# vectors. Sixteen MiB, in turns, on processors, and on two GPUs where there are. Fresh memory is slow when first
# written, so the ring by hand gets its room once and for all.


# %%
def race(n_bytes, rounds):
    x = torch.zeros(n_bytes // 4, device=device())
    room = torch.zeros_like(x[: -(-len(x) // dist.get_world_size())])
    by_hand = lambda: ring_all_reduce(x, room)
    return in_turns({"by hand": by_hand, "torch's own": lambda: dist.all_reduce(x)}, rounds)


# %%
RACES = {"2 ranks": (2, "cpu"), "4 ranks": (4, "cpu")}
if place(2) is None:
    RACES["2 GPUs"] = 2, None
raced = {}
for name, (size, where) in RACES.items():
    ranks = run_ranks(race, size, 2**24, 25 if FULL else 2, devices=where)
    raced[name] = of_slowest(ranks)

# %% [markdown]
# Of each round the ratio: by hand over the library's own. Their median is less disturbed by other programs than either
# time is.

# %%
ratios = {}
for name, found in raced.items():
    rounds = zip(found["by hand"], found["torch's own"], strict=True)
    ratios[name] = statistics.median(mine / library for mine, library in rounds)
figures = {f"{name} (times)": ratios.get(name) for name in ("2 ranks", "4 ranks", "2 GPUs")}
record("11", "16 MiB, by hand / torch's own", figures)

# %%
claim(
    "twenty lines by hand take less than twice as long as gloo, with two ranks and with four",
    holds=max(ratios["2 ranks"], ratios["4 ranks"]) < 2,
    evidence=", ".join(f"{name}: {ratio:.2f} times" for name, ratio in ratios.items()),
)

# %% [markdown]
# For large vectors a ring is a ring: both move the same bytes. A library earns its keep elsewhere: it adds one piece
# while the next arrives, picks other schemes for short vectors, knows which GPU sits on which link. With more ranks
# than cores, as with four on a small machine, ranks also wait for a turn on the processor.

# %% [markdown]
# ### Alpha and beta
#
# One message: how does its time depend on its length? Two ranks play ping-pong; half of a round trip is one message.
# Of the rounds the *quickest* counts, for whatever else runs on this machine can only add time.

# %%
LENGTHS = [2**k for k in range(8, 25, 2)]


def ping_pong(n_bytes):
    """There and back again, a few times; what the function gives back is one message's share."""
    x, other = torch.ones(n_bytes, dtype=torch.uint8, device=device()), 1 - dist.get_rank()
    trips = max(1, min(10, 2**17 // n_bytes))
    turns = [dist.send, dist.recv] if dist.get_rank() == 0 else [dist.recv, dist.send]

    def call():
        for _ in range(trips):
            for turn in turns:
                turn(x, other)

    return call, 2 * trips


# %% [markdown]
# All lengths in turns, the long ones first: a short message right after a long one would find the processor's caches
# full of other things.


# %%
def messages(rounds):
    """{bytes: seconds of one message}, the quickest of the rounds."""
    made = {n: ping_pong(n) for n in reversed(LENGTHS)}
    timed = in_turns({n: call for n, (call, _) in made.items()}, rounds)
    return {n: min(timed[n]) / made[n][1] for n in LENGTHS}


# %%
message_s = run_ranks(messages, 2, 25 if FULL else 3, devices=place(2))[0]
shortest, *_, longest = message_s.values()
reveal("times", longest / shortest)

# %% [markdown]
# Two things to see. Sixty-five thousand times as many bytes do not take sixty-five thousand times as long. And among
# the short ones, length hardly matters at all.

# %%
claim(
    "65,536 times as many bytes take less than a tenth of 65,536 times as long",
    holds=longest < 6554 * shortest,
    evidence=f"{1e6 * shortest:.1f} µs and {1e6 * longest:.0f} µs: {longest / shortest:.0f} times",
)

# %%
short_s = [message_s[n] for n in LENGTHS if n <= 2**14]
claim(
    "64 times as many bytes, 16 KiB in place of 256 bytes, take less than 4 times as long",
    holds=short_s[-1] < 4 * short_s[0],
    evidence=", ".join(f"{1e6 * s:.1f} µs" for s in short_s),
)

# %% [markdown]
# A message has a price of its own, whatever its length: *alpha*, the latency. Then each byte costs *beta*, one over
# the *bandwidth*. So seconds = alpha + beta × bytes: a straight line. Fit it, first as everyone would, by least
# squares. Can one trust that? Try it where the truth is known, a link of our choosing, over which only the longest
# message came a tenth late.


# %%
def least_squares(lengths, seconds):
    """(alpha, bandwidth) of the line with the least sum of squared errors."""
    beta, alpha_s = np.polyfit(lengths, seconds, 1)
    return float(alpha_s), float(1 / beta)


# %%
FITS = {"least squares": least_squares, "relative": cost.fit_alpha_beta}
TRUE_ALPHA_S, TRUE_RATE = 50e-6, 4e9
known_s = [TRUE_ALPHA_S + n / TRUE_RATE for n in LENGTHS]
known_s[-1] *= 1.1
known = {name: fit(LENGTHS, known_s) for name, fit in FITS.items()}
rows = [[name, f"{1e6 * a:.1f}", f"{rate / 1e9:.2f}"] for name, (a, rate) in known.items()]
rows += [["the truth", f"{1e6 * TRUE_ALPHA_S:.1f}", f"{TRUE_RATE / 1e9:.2f}"]]
table(["fit to a known link", "alpha, µs", "GB/s"], rows)

# %% [markdown]
# Least squares counts errors in seconds. A tenth of the longest message is more than all of the shortest, so the line
# follows the long ones and passes the short ones where it happens to; alpha may even come out negative.
# `cost.fit_alpha_beta` divides each error by the time that was measured, so that each length has a say.

# %%
off = {name: abs(alpha_s - TRUE_ALPHA_S) for name, (alpha_s, _) in known.items()}
claim(
    "one late message spoils the alpha of least squares, and hardly that of the relative fit",
    holds=off["least squares"] > 10 * off["relative"],
    evidence=", ".join(f"{name} is {1e6 * each:.2f} µs off" for name, each in off.items()),
)

# %% [markdown]
# Now this machine's messages, both axes logarithmic. To the left alpha alone counts, to the right the bandwidth alone;
# the bend lies where each takes half of the time, at alpha × bandwidth bytes.

# %%
from labkit import plot

alpha_s, rate = cost.fit_alpha_beta(LENGTHS, list(message_s.values()))
line = [alpha_s + n / rate for n in LENGTHS]
curves = {"measured": list(message_s.values()), "alpha + bytes / bandwidth": line}
axes = {"log_x": True, "log_y": True, "markers": True, "seconds_axis": "y"}
axes |= {"xlabel": "bytes", "ylabel": "time", "title": "One message between two ranks"}
axes |= {"marks": {"the bend": alpha_s * rate}} if alpha_s > 0 else {}
plot.lines({name: (LENGTHS, times) for name, times in curves.items()}, **axes)

# %%
figures = {"alpha (µs)": 1e6 * alpha_s, "bandwidth (GB/s)": rate / 1e9}
figures["half bandwidth at (kB)"] = alpha_s * rate / 1e3
record("11", "a message between two ranks", figures)
fitted = {name: fit(LENGTHS, list(message_s.values())) for name, fit in FITS.items()}
rows = [[name, f"{1e6 * a:.1f}", f"{each / 1e9:.2f}"] for name, (a, each) in fitted.items()]
table(["fit to this machine", "alpha, µs", "GB/s"], rows, varying=["alpha, µs", "GB/s"])

# %% [markdown]
# Messages shorter than the bend waste the link. Gradients come in hundreds of tensors, many of them short: so whoever
# sends them gathers them into *buckets* first. Exercise 11.3 puts all into one; lesson 12 looks for a better size.

# %% [markdown]
# ### Bus bandwidth
#
# How fast is an all-reduce? Bytes over seconds is the *algorithm bandwidth*; it falls as ranks are added, though no
# link gets slower. So nccl-tests, the usual benchmark, multiplies by what each link must carry: 2 (R-1)/R for an
# all-reduce. That is the *bus bandwidth*, to be held against the link's data sheet. As with messages, of the rounds the
# quickest.

# %%
rows = []
for name, found in raced.items():
    size, _ = RACES[name]
    algorithm = 2**24 / min(found["torch's own"])
    bus = 2 * (size - 1) / size * algorithm
    rows.append([name, f"{algorithm / 1e9:.2f}", f"{bus / 1e9:.2f}"])
table(["torch's own", "algorithm bandwidth, GB/s", "bus bandwidth, GB/s"], rows, varying=True)

# %% [markdown]
# Where each rank has a link of its own, the last column stays the same. Ranks that share one processor share its
# memory and its cores, and there it may fall too. And it is a definition, not a measurement: it takes for granted that
# a ring ran. A switch that adds on the way, as NVIDIA's can, shows more than its links can carry.

# %% [markdown]
# The ring has a closed form, `cost.ring_all_reduce_s`: 2 messages, each alpha and an R-th of the bytes over the
# bandwidth. Put this machine's alpha and bandwidth into it, and hold it against the all-reduces that ran.

# %%
rows = []
for name, (size, where) in RACES.items():
    if where != place(2):
        continue  # the ping-pong was played elsewhere
    form_s = cost.ring_all_reduce_s(2**24, size, rate, alpha_s)
    own = raced[name]["torch's own"]
    rows.append([name, *(f"{1e3 * s:.1f}" for s in (form_s, min(own), statistics.median(own)))])
table(["16 MiB, ms", "by the form", "quickest", "median"], rows, varying=True)

# %% [markdown]
# The form is what the link alone would take, and the bandwidth in it came from ping-pong, where one message goes at a
# time. In a ring each rank sends and receives at once, and adds; on one processor all of that shares cores and memory.
# So read each time "by the form" below as the least, and an all-reduce on this machine as longer by about what the
# table shows.

# %% [markdown]
# ### What a link costs a step
#
# Two networks, and the time that one step of each takes here, without any communication. The gradients of a network
# are as many bytes as its weights.

# %%
from labkit import hardware, models, train

here = hardware.device()
torch.set_num_threads(1)


def wide():
    inner = [nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), nn.Linear(576, 2048), nn.ReLU(), *inner, nn.Linear(2048, 32))


# %%
def step(make, batch):
    """A function that trains one step on pictures of 24 pixels; and the bytes of all gradients."""
    torch.manual_seed(0)
    model = make().to(here)
    x, y = torch.randn(batch, 1, 24, 24, device=here), torch.randint(32, (batch,), device=here)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return lambda: train.train_step(model, x, y, optimizer), 4 * models.count_parameters(model)


# %% [markdown]
# One is made of wide linear layers. The other is the small residual network, of convolutions, from lesson 02. Both get
# the same batches of small pictures.

# %%
NETWORKS = {"wide": wide, "residual": models.resnet}
calls, gradient_bytes = {}, {}
for name, make in NETWORKS.items():
    calls[name], gradient_bytes[name] = step(make, batch=128)

# %%
timed = measure.bench(calls, repeats=7, warmup=1)
step_s = {name: min(seconds) for name, seconds in timed.seconds.items()}
rows = []
for name, s in step_s.items():
    n = gradient_bytes[name]
    rows.append([name, f"{n:,}", f"{1e3 * s:.1f}", f"{1e3 * s / (n / 1e6):.1f}"])
heads = ["ms a step", "ms for each MB of gradients"]
table(["network", "bytes of gradients", *heads], rows, varying=heads)

# %% [markdown]
# And links. Some are measured all-reduces that others published, as bus bandwidth ("switched": all GPUs on one switch);
# one is a *line rate*, what its wire carries at most; between continents it is the delay and the bandwidth that a paper
# gives for pairs of data centres. The sources stand at the end. A delay that no source gives is zero here, so those
# times are too short.

# %%
LINKS = {  # bytes a second, seconds a message
    "NVLink 4, switched": (463.6e9, 2.9e-6),
    "PCIe 5": (28e9, 3e-6),
    "100 Gb/s InfiniBand": (12.2e9, 0.0),
    "10 Gb/s Ethernet": (1.25e9, 0.0),
    "Virginia to London": (1.16e9 / 8, 76e-3),
    "London to Oregon": (0.42e9 / 8, 136e-3),
}

# %%
takes, shares = {}, {}
for name, n in gradient_bytes.items():
    links = {"this machine, by the form": (rate, alpha_s)} | LINKS
    takes[name] = {k: cost.ring_all_reduce_s(n, 2, *link) for k, link in links.items()}
    shares[name] = {k: s / (s + step_s[name]) for k, s in takes[name].items()}

# %% [markdown]
# The times are the form's, for this machine as for the others. Dots are the all-reduces, dashed lines the computing of
# a step, which was measured. Where a dot lies far to the left of its line, communication does not matter.

# %%
from labkit import plot_links

plot_links.times(takes, steps=step_s, title="Gradients on their way, two ranks")

# %% [markdown]
# As shares: the all-reduce over the sum of all-reduce and computing, for the wide network, as long as one comes after
# the other. What your guess is held against is measured only by half: the step ran here, the all-reduce is computed, by
# the form and the line rate.

# %%
kept = ("NVLink 4, switched", "PCIe 5", "10 Gb/s Ethernet", "Virginia to London")
figures = {f"{link} (%)": 100 * shares["wide"][link] for link in kept}
record("11", "share of a step of the wide network that goes into its all-reduce", figures)
reveal("share", 100 * shares["wide"]["10 Gb/s Ethernet"], how="computed")

# %% [markdown]
# And the links that other machines recorded, each by the ping-pong from above? With their alpha and bandwidth, and the
# gradients of the wide network:

# %%
from labkit import recording

own_s = takes["wide"]["this machine, by the form"]
recorded = lambda what: recording.recorded("11", "a message between two ranks", what)
widths, rows = recorded("bandwidth (GB/s)"), [["this machine, by the form", f"{1e3 * own_s:.1f}"]]
for machine, alpha_us in recorded("alpha (µs)").items():
    wire = 1e9 * widths[machine], 1e-6 * alpha_us
    rows.append([machine, f"{1e3 * cost.ring_all_reduce_s(gradient_bytes['wide'], 2, *wire):.1f}"])
table(["the link of", "all-reduce of the wide network, ms"], rows, varying=True)

# %%
ocean_s = takes["wide"]["London to Oregon"]
claim(
    "between continents the gradients travel for longer than the step computes",
    holds=ocean_s > step_s["wide"],
    evidence=f"{ocean_s:.2f} s against {step_s['wide']:.3f} s",
)

# %% [markdown]
# What decides is how long a network computes for each byte of its gradients: the last column of the table of steps. A
# convolution uses a weight at every place of the picture, a linear layer once a picture; so the residual network, with
# fewer bytes by far, computes far longer for each. Across an ocean the delay alone, paid twice, forbids an all-reduce a
# step; those who train there exchange weights every few hundred steps.

# %% [markdown]
# ### Overlap
#
# The gradients of the last layer are there first, long before backward is through. They can travel while the others
# are computed. On this machine the processor is the wire, and carrying costs it time; so a slow link is made of sleep:
# the messages are real, and arrive when so many bytes a second allow.


# %%
class SlowLink:
    """All-reduce over a link of bytes_per_s: one vector after another, while the rank computes."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s, self.free_at = bytes_per_s, 0.0

    def all_reduce(self, x):
        takes_s = cost.ring_all_reduce_s(x.nbytes, dist.get_world_size(), self.bytes_per_s)
        self.free_at = max(time.perf_counter(), self.free_at) + takes_s
        return dist.all_reduce(x, async_op=True), self.free_at

    def wait(self, under_way):
        work, arrives_at = under_way
        work.wait()
        time.sleep(max(0.0, arrives_at - time.perf_counter()))


# %% [markdown]
# `async_op=True` starts an all-reduce and gives something to wait for. A *hook* is a function that torch calls at a
# given moment; `register_post_accumulate_grad_hook` names one for the moment at which a weight's gradient is ready.


# %%
def backward_alone(weights, loss):
    for weight in weights:
        weight.grad = None
    loss.backward(retain_graph=True)


def backward(weights, loss, link, early):
    """Backward, until every gradient is a mean; early sends each as soon as it is ready."""
    under_way = []
    send = lambda weight: under_way.append(link.all_reduce(weight.grad))
    hooks = [w.register_post_accumulate_grad_hook(send) for w in weights] if early else []
    backward_alone(weights, loss)
    if not early:
        for weight in reversed(weights):
            send(weight)
    for each in under_way:
        link.wait(each)
    for weight in weights:
        weight.grad /= dist.get_world_size()
    for hook in hooks:
        hook.remove()


# %% [markdown]
# Equal layers, on processors even where there are GPUs, for it is the program on the processor that sleeps. The link is
# made as slow as backward is, for there overlap can win most: a faster one leaves little to hide, and behind a slower
# one little can be hidden. With infinitely many bytes a second it is the link that there is. `retain_graph` keeps what
# backward needs, so that it can run again.

# %%
DEPTH, WIDTH = 6, 768


def overlap(rounds):
    """Seconds that pace the link; of backward alone and each way to send; all the same bits?"""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))
    weights, loss = list(model.parameters()), model(torch.randn(256, WIDTH)).square().mean()
    alone = {"backward alone": lambda: backward_alone(weights, loss)}
    agreed = torch.tensor(min(in_turns(alone, rounds)["backward alone"]), dtype=torch.float64)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    calls, gradients = alone, {}
    slow = 4 * WIDTH**2 * DEPTH / float(agreed)
    for link, bytes_per_s in (("slow", slow), ("real", float("inf"))):
        for way, early in (("after", False), ("during", True)):
            name, wire = f"{link} link, {way} backward", SlowLink(bytes_per_s)
            calls[name] = lambda wire=wire, early=early: backward(weights, loss, wire, early)
            calls[name]()
            gradients[name] = torch.cat([w.grad.flatten() for w in weights])
    first, *others = gradients.values()
    return float(agreed), in_turns(calls, rounds), all(torch.equal(first, g) for g in others)


# %% [markdown]
# Four ways, and backward alone, in turns: over the slow link and over the real one, sent after backward and during it.
# What is shown is the time from the start of backward until the last gradient is a mean.

# %%
ranks = run_ranks(overlap, 2, 9 if FULL else 2, devices="cpu")
pace_s, hidden = ranks[0][0], of_slowest([found for _, found, _ in ranks])
plot.samples(hidden, title="Backward and its all-reduces", xlabel="until all gradients are means")

# %%
quickest = {name: min(each) for name, each in hidden.items()}
middle = {name: statistics.median(each) for name, each in hidden.items()}
sooner, rows = {}, []
for link in ("slow link", "real link"):
    after, during = f"{link}, after backward", f"{link}, during backward"
    sooner[link] = quickest[after] / quickest[during]
    rows.append([link, f"{sooner[link]:.2f}", f"{middle[after] / middle[during]:.2f}"])
figures = {f"{link} (times)": ratio for link, ratio in sooner.items()}
record("11", "after backward / during backward", figures)
heads = ["by the quickest rounds", "by the medians"]
table(["after / during", *heads], rows, varying=heads)

# %% [markdown]
# A ratio above one means that sending during backward was quicker. Where the two columns disagree, other programs have
# decided, and not the link. Overlap changes when a gradient travels, and nothing about the gradient: on either link,
# either way, the means must be the same bits.

# %%
claim(
    "over the slow link, gradients sent during backward are on all ranks sooner, and the same bits",
    holds=sooner["slow link"] > 1.05 and all(same for *_, same in ranks),
    evidence=f"{sooner['slow link']:.2f} times sooner",
)

# %% [markdown]
# How much was hidden? The last gradient is ready when backward ends, so its message can hide behind nothing. All other
# messages could.

# %%
shows_s = quickest["slow link, during backward"] - quickest["backward alone"]
rows = [["all messages", pace_s], ["the last one", pace_s / DEPTH], ["not hidden", shows_s]]
rows = [[name, f"{1e3 * s:.0f}"] for name, s in rows]
table(["over the slow link", "ms"], rows, varying=["ms"])

# %% [markdown]
# What shows beyond the last message is what the real messages beneath, and whatever else runs here, took from
# computing. Over the real link it is the same: where the processor carries the messages, it computes more slowly
# meanwhile, and how much overlap wins there varies from run to run, down to nothing. A GPU has engines that copy while
# it computes, and lends some of its cores to the adding.

# %% [markdown]
# ## Change one thing
#
# The batch. A larger one takes longer to compute, and its gradients are as many bytes as ever. Change `BATCHES`, and
# see what share of a step goes into the all-reduce. Keep them rising: the first and the last are compared below.

# %%
BATCHES = [b if here == "cpu" else 64 * b for b in (32, 64, 128, 256)]  # small ones idle on a GPU
calls = {f"{batch}": step(wide, batch)[0] for batch in BATCHES}
by_batch = measure.bench(calls, repeats=5, warmup=1).seconds
best_s = [min(by_batch[f"{batch}"]) for batch in BATCHES]

# %%
curves = {}
for link in ("PCIe 5", "10 Gb/s Ethernet", "London to Oregon"):
    wire_s = takes["wide"][link]
    curves[link] = (BATCHES, [100 * wire_s / (wire_s + s) for s in best_s])
labels = {"xlabel": "pictures in a rank's batch", "ylabel": "share of a step, %"}
plot.lines(curves, **labels, markers=True, log_y=True, title="The all-reduce of the wide network")

# %% [markdown]
# The time on the wire is the same in each curve, from left to right; what grows is the computing. Over the ocean that
# does not help yet.

# %%
shares_here = curves["10 Gb/s Ethernet"][1]
claim(
    "with the largest batch the all-reduce takes a smaller share of a step than with the smallest",
    holds=shares_here[-1] < shares_here[0],
    evidence=", ".join(
        f"{b} pictures: {s:.0f} %" for b, s in zip(BATCHES, shares_here, strict=True)
    ),
)

# %% [markdown]
# So a slow link asks for large batches, or for several batches between two all-reduces, which is the same to it. How
# large a batch may become before the network learns less from it is another question.

# %% [markdown]
# ## Exercises
#
# A definition, an estimate, a ring, and an overlap. Where you have not built one yet, the cells after it use the
# course's own.
#
# ### Exercise 11.1 · Bus bandwidth (8 min, easy)
#
# Return the bus bandwidth in bytes per second, as nccl-tests defines it: bytes over seconds, times 2 (R-1)/R for
# `"all_reduce"`, (R-1)/R for `"all_gather"`, `"reduce_scatter"` and `"all_to_all"`, and 1 for `"broadcast"` and
# `"reduce"`. R is the world size, and `n_bytes` those of the *whole* array.
#
# The trap: an all-gather's `n_bytes` are those that come out, not those that a rank hands in.


# %%
def bus_bytes_per_s(op, n_bytes, seconds, world_size):
    """Bytes a second that each link would have carried in an ideal run of the collective `op`."""
    ### BEGIN SOLUTION
    times = {"all_reduce": 2, "broadcast": 0, "reduce": 0}.get(op, 1)
    share = times * (world_size - 1) / world_size if times else 1
    return share * n_bytes / seconds
    ### END SOLUTION


# %%
check(bus_bytes_per_s)

# %% [markdown]
# Three collectives of one length, held against each other. In an *all-gather* each rank hands in a part and gets all
# parts; in a *broadcast* one rank's array reaches all. If each ran as the definition has it, over one link, the last
# column would be the same three times. Is it?


# %%
def three(n_bytes, rounds):
    x = torch.ones(n_bytes // 4, device=device())
    parts = list(x.chunk(dist.get_world_size()))
    mine = parts[dist.get_rank()].clone()
    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_gather": lambda: dist.all_gather(parts, mine),
        "broadcast": lambda: dist.broadcast(x, 0),
    }
    return in_turns(calls, rounds)


# %%
bus, rows = attempt(bus_bytes_per_s), []
found = of_slowest(run_ranks(three, 2, 2**24, 9 if FULL else 2, devices=place(2)))
for op, took in found.items():
    took_s = statistics.median(took)
    rows.append([op, f"{1e3 * took_s:.1f}", f"{bus(op, 2**24, took_s, 2) / 1e9:.2f}"])
table(["two ranks, 16 MiB", "ms", "bus, GB/s"], rows, varying=["ms", "bus, GB/s"])

# %% [markdown]
# On processors, hardly. A broadcast between two ranks goes one way and adds nothing; an all-reduce goes both ways at
# once, and adds; an all-gather copies what came into its list. All of it is the work of the same cores and one memory.
# The definition counts what links carry, and none of that.

# %% [markdown]
# ### Exercise 11.2 · Computing and sending at once (12 min, medium)
#
# Predict the seconds until all gradients are means. Piece i takes `compute_s[i]` to compute and has `n_bytes[i]` bytes.
# Pieces are computed one after another, and go round a ring in the same order, one at a time. A piece may go when it is
# computed and the ring is free. It goes in 2 messages, an R-th of its bytes each, one after another; a message
# takes `alpha_s` and its bytes over `bytes_per_s`.
#
# The traps: a ring still busy, and one that stands idle.


# %%
def overlapped_step_s(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    """Seconds until the last piece is all-reduced."""
    ### BEGIN SOLUTION
    computed = free_at = 0.0
    for seconds, size in zip(compute_s, n_bytes, strict=True):
        computed += seconds
        message_s = alpha_s + size / world_size / bytes_per_s
        free_at = max(computed, free_at) + 2 * (world_size - 1) * message_s
    return free_at
    ### END SOLUTION


# %%
check(overlapped_step_s)

# %% [markdown]
# Held against the slow link from above, which has no alpha. The estimate knows nothing of what real messages and other
# programs take from computing, so expect the measurement above it; on a busy machine the two may still trade places,
# for they come from different moments.

# %%
pieces, estimate = [4 * WIDTH**2] * DEPTH, attempt(overlapped_step_s)
slow, backward_s = sum(pieces) / pace_s, quickest["backward alone"]
estimate_s = estimate([backward_s / DEPTH] * DEPTH, pieces, 0.0, slow, 2)
found = {"estimated": estimate_s, "measured": quickest["slow link, during backward"]}
rows = [[name, f"{1e3 * s:.0f}"] for name, s in found.items()]
table(["sent during backward", "ms"], rows, varying=["ms"])

# %% [markdown]
# How many pieces are best? The wide network's step and gradients in k equal pieces: each pays alpha, and few leave
# little to hide. That is kind to overlap: gradients come only in backward, and while a step runs forward nothing can
# travel. Over Ethernet, whose delay is left out, more is better, a little. Over the ocean each piece pays a round trip,
# and one is best.

# %%
COUNTS = (1, 2, 4, 8, 16, 32)
labels = {"xlabel": "pieces", "ylabel": "estimated step", "seconds_axis": "y", "log_x": True}
for link in ("10 Gb/s Ethernet", "Virginia to London"):
    wire, n, work_s = LINKS[link][::-1], gradient_bytes["wide"], step_s["wide"]
    times = [estimate([work_s / k] * k, [n / k] * k, *wire, 2) for k in COUNTS]
    plot.lines({"step": (COUNTS, times)}, **labels, markers=True, title=f"In pieces, over {link}")

# %% [markdown]
# ### Exercise 11.3 · One ring for all gradients (12 min, medium)
#
# `tensors` are this rank's gradients: float32, contiguous (without gaps in memory), of different shapes. Replace each,
# *in place*, by the mean over all ranks, with one ring for all of them. You may call `ring_all_reduce` from above, or
# send messages yourself, but use none of torch's collectives.

# %% [markdown]
# Each rank may send no more than *one* ring of all gradients needs: 2 messages, and 2 (R-1)/R of all the bytes,
# rounded up to whole chunks.
#
# The traps: a ring for each tensor pays alpha for each; a total that R does not divide; a sum is no mean; and with
# `tensors[i] = ...` a list changes, and no tensor.


# %%
def ring_mean(tensors):
    """Replace each tensor by its mean over all ranks."""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    flat = torch.cat([t.flatten() for t in tensors])
    chunks = flat.tensor_split(world_size)
    arrived = torch.empty_like(chunks[0])

    def pass_on(give, take):
        sides = [dist.P2POp(dist.irecv, take, left), dist.P2POp(dist.isend, give, right)]
        for under_way in dist.batch_isend_irecv(sides):
            under_way.wait()

    for step in range(world_size - 1):
        mine = chunks[(rank - step - 1) % world_size]
        pass_on(chunks[(rank - step) % world_size], arrived[: mine.numel()])
        mine += arrived[: mine.numel()]
    for step in range(world_size - 1):
        pass_on(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size])
    flat /= world_size
    for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))
    ### END SOLUTION


# %%
check(ring_mean)

# %% [markdown]
# What is one ring worth? The gradients of the residual network, many of them short: a ring for each tensor, and one for
# all. Both give means, and both send the same bytes, give or take a few that R does not divide.


# %%
def one_or_many(mean, shapes, rounds):
    """Seconds in each round, and messages, of one ring for all gradients and of a ring for each."""
    gradients = [torch.ones(shape, device=device()) for shape in shapes]
    calls = {"one": lambda: mean(gradients), "many": lambda: [mean([g]) for g in gradients]}
    counts = {}
    for name, call in calls.items():
        with counting() as seen:
            call()
        counts[name] = seen.calls["send"]
    return in_turns(calls, rounds), counts


# %%
shapes = [tuple(p.shape) for p in models.resnet().parameters()]
given = (attempt(ring_mean), shapes, 7 if FULL else 2)
ranks = run_ranks(one_or_many, 2, *given, devices=place(2))
found, counts = of_slowest([seconds for seconds, _ in ranks]), ranks[0][1]
ring_s = {name: statistics.median(each) for name, each in found.items()}
# %% [markdown]
# Nothing but alpha differs between the two: the same bytes, in fewer messages. How much that is worth says how many of
# the tensors were short for this link.

# %%
claim(
    "one ring for all gradients of the residual network is quicker than a ring for each",
    holds=ring_s["many"] > 1.5 * ring_s["one"] and counts["one"] == 2,
    evidence="\n".join(f"{n} messages: {1e3 * ring_s[name]:.1f} ms" for name, n in counts.items()),
)

# %% [markdown]
# ### Exercise 11.4 · Hide the messages (15 min, medium)
#
# `pieces` are functions; each computes one gradient and returns it. `launch(tensor)` starts a sum over ranks in place
# of the tensor and gives something with a `wait()`. Return the *means*, in order. Every sum starts as soon as its
# gradient is there, and all computing goes on meanwhile: wait only when there is nothing left to compute.

# %% [markdown]
# Use the arguments only: the check hands in a make-believe `launch`, and runs no ranks. The trap: a tensor under way
# belongs to the link. Do not change it before its `wait()` has ended, nor hand it out.


# %%
def overlapped_means(pieces, launch, world_size):
    """The mean over ranks of each piece's gradient, in order."""
    ### BEGIN SOLUTION
    under_way = []
    for piece in pieces:
        gradient = piece()
        under_way.append((gradient, launch(gradient)))
    means = []
    for gradient, pending in under_way:
        pending.wait()
        means.append(gradient / world_size)
    return means
    ### END SOLUTION


# %%
check(overlapped_means)

# %% [markdown]
# In ranks, with torch's own all-reduce: rank r computes r, r+1, ... as its pieces, so the means are known.


# %%
def in_ranks(means):
    pieces = [lambda i=i: torch.full((1000,), float(dist.get_rank() + i)) for i in range(5)]
    launch = lambda x: dist.all_reduce(x, async_op=True)
    return [float(mean[0]) for mean in means(pieces, launch, dist.get_world_size())]


# %%
means = run_ranks(in_ranks, 2, attempt(overlapped_means), devices="cpu")
claim(
    "on both ranks the means are right",
    holds=means == [[0.5, 1.5, 2.5, 3.5, 4.5]] * 2,
    evidence=f"{means}",
)

# %% [markdown]
# ## Limits
#
# **When does communication not matter?** When the network fits one device and is trained on one. When a batch computes
# for much longer than its gradients travel, as it mostly does over NVLink. And when it matters, look first for a
# slow rank; then at how many messages there are; and only then at the link.

# %% [markdown]
# - Ranks that share one processor share its cores and its memory. Alpha and bandwidth here are those of the loopback, a
#   network that ends where it begins; and `run_ranks` notes each call, so that it can name ranks that hang, which adds
#   some microseconds to alpha. They say how the model works, not what your cluster does.
# - The slow link is a sleep. It takes nothing from computing; a real one does, and shares its wire with others.

# %% [markdown]
# - A ring has 2 messages one after another. With a thousand ranks and short vectors alpha decides, and libraries
#   take trees, whose depth grows with the logarithm of R.
# - Alpha and beta know one link. A cluster has several kinds, and one ring is as fast as its slowest link: lesson 15
#   says which traffic goes on which.

# %% [markdown]
# - The published figures come from eight GPUs, ours are for two ranks; a share of a step says nothing about how much
#   of it could be hidden. Data sheets add up both directions: an all-reduce uses each, so halve what they say.
# - Fewer bytes are the other way: gradients in 16 or 8 bits, or some of them only. They change the sum.

# %% [markdown]
# ## Further questions
#
# 1. Give four ranks a ring and three floats. What is sent?
# 2. Cut each chunk of the ring in two, and add one half while the other arrives. Do you get below the library?
# 3. A network of a billion weights, and a tenth of a step of one second for its all-reduce: which of `LINKS` will do?
# 4. Send the gradients as bf16. Which of the claims still hold?
# 5. (Needs two GPUs.) Which differs more between GPUs and processors, alpha or the bandwidth?

# %% [markdown]
# ## Sources
#
# - Patarasuk and Yuan, [Bandwidth optimal all-reduce algorithms for clusters of
#   workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), J. Parallel Distrib. Comput. 69 (2009).
# - Thakur, Rabenseifner and Gropp, [Optimization of Collective Communication Operations in
#   MPICH](https://doi.org/10.1177/1094342005051521), 2005: alpha, beta, and which scheme for which length.
# - NVIDIA, [Performance reported by NCCL
#   tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): bus bandwidth.

# %% [markdown]
# The links, as read on 2026-11-30:
#
# - NVLink: eight H200, 1 GiB; the delay is a short all-reduce's time over its 14 messages: stas00,
#   [ml-engineering](https://github.com/stas00/ml-engineering/blob/c53741b8b7dcc17b152757f104398c6dd6f231b3/network/benchmarks/results/all-reduce-8xH200.md).
# - PCIe: eight RTX 5090, [nccl issue 1639](https://github.com/NVIDIA/nccl/issues/1639); the delay likewise, of
#   eight RTX 4090, [issue 1530](https://github.com/NVIDIA/nccl/issues/1530).
# - InfiniBand: a card of 100 Gb/s, [nccl-tests issue 29](https://github.com/NVIDIA/nccl-tests/issues/29).

# %% [markdown]
# - Ethernet: the line rate, IEEE 802.3ae.
# - Continents: Yuan and others, [Decentralized Training of Foundation Models in Heterogeneous
#   Environments](https://arxiv.org/abs/2206.01288), NeurIPS 2022; the delays and bandwidths in their
#   [code](https://github.com/DS3Lab/DT-FM/blob/69f05e50f475d509ebe4267c8f834f70e412c149/scheduler/generate_sim_com_matrices.py).
# - Those who train across oceans: Douillard and others, [DiLoCo](https://arxiv.org/abs/2311.08105), 2023; Jaghouar and
#   others, [INTELLECT-1](https://arxiv.org/abs/2412.01152), 2024.
