# title: Mixed precision
# minutes: 75
# cpu: everything; fp16 is emulated, for most processors have no units for it; the cells take about a minute
# gpu: fp16 and bf16 for real, on tensor cores, and their speed
#
# %% [markdown]
# # 03 · Mixed precision
#
# Seventy-five minutes with the exercises. The cells alone run in about a minute, or several on a busy machine.
#
# ## Question
#
# A number in training takes 32 bits. With half as many, twice as many numbers fit into memory, and units made for it
# multiply them several times faster. **What is lost with the other half, where does it hurt, and when is anything
# gained?**

# %%
import math
import time
from itertools import pairwise

import torch
from torch import nn

from labkit import attempt, bench, check, claim, plot, predict, record, repro, reveal, table, train
from labkit.data import docs, glyphs
from labkit.hardware import device, has_amx, machine
from labkit.models import convnet, gpt, resnet

# %% [markdown]
# The task is that of lesson 01: name one of 32 printed characters, in typefaces never seen in training. One core, as
# there, so that times are steady. On a GPU the networks run there.

# %%
torch.set_num_threads(1)
FULL = repro.budget() == "full"
images, unseen = glyphs.load("train", size=24), glyphs.load("validation", size=24)
x, y = images.inputs.to(device()), images.targets.to(device())
x_unseen, y_unseen = unseen.inputs.to(device()), unseen.targets.to(device())

# %% [markdown]
# ## Predict
#
# *bf16* and *fp16* are the two formats of 16 bits; you will see in a moment how they differ. A running total is kept
# in bf16, as a narrow loop might do it. Move the slider before you go on. Two more guesses will be asked for further
# down.

# %%
question = "Add 1 to a bf16 total, 1000 times. What does it come to?"
predict("total", question, default=1000, low=1, high=1000)

# %% [markdown]
# ## Build
#
# A floating-point number has three fields. The *sign* is one bit. The *exponent* says between which two powers of two
# the number lies. The *mantissa* says where between them: it counts equal steps. More exponent bits give more
# *range*, more mantissa bits finer steps.
#
# Change the number or the format below; Tab leads from one control to the next. Try 0.1, 2**-24, 1e-8 and 70000.

# %%
from labkit import explorer

explorer.bits(0.1, "fp16")

# %% [markdown]
# By hand: fp16 has 5 exponent bits and 10 mantissa bits. A stored exponent e means 2 to the power of e - 15, a
# mantissa m means 1 + m/1024. So 0 01111 1000000000 is 2⁰ · (1 + 512/1024) = 1.5. With a stored exponent of 0 the
# leading 1 is gone: such *subnormal* numbers go on evenly down to zero, with fewer and fewer digits.

# %%
from labkit import formats
from labkit.formats import BF16, E2M1, E4M3, E5M2, FORMATS, FP16

for bits in ("0" "01111" "1000000000", "0" "00001" "0000000000", "0" "00000" "0000000001"):
    print(bits, "is", formats.value_of(bits, FP16))

# %% [markdown]
# Seven formats. *eps* is the distance from 1 to the next number. *tf32* is how tensor cores of newer GPUs may read
# fp32 numbers: stored in 32 bits, with 13 of them ignored. *e4m3*, 4 exponent bits and 3 of mantissa, and *e5m2* take
# 8 bits, *e2m1* takes 4. Look at the two of 16 bits: bf16 reaches as far as fp32, with steps eight times wider than
# fp16's. fp16 ends at 65504.

# %%
rows = []
for each in FORMATS.values():
    limits = (f"{number:.3g}" for number in (each.smallest, each.smallest_normal, each.largest))
    fields = each.bits, each.exponent_bits, each.mantissa_bits
    rows.append([each.name, *fields, *limits, f"{formats.rounded(1.004, each):.7g}"])
headings = ["format", "bits", "exponent", "mantissa", "smallest", "smallest normal", "largest"]
table([*headings, "1.004 becomes"], rows)

# %% [markdown]
# ### Too small for fp16
#
# Which numbers does training need? We train a ResNet for a few epochs, in fp32, and look at the gradients that flow
# back through its layers, for a batch of 1024 pictures. The loss is a mean, so each picture's share is small. Guess
# first.

# %%
question = "Of the gradients that flow back and are not zero, what share does fp16 turn into zero?"
predict("lost", question, default=1, low=0, high=100, unit="%")

# %%
torch.manual_seed(1)
model = resnet().to(device())
N_STEPS = 160 if FULL else 4
sgd = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
batches = train.shuffled(x, y, batch_size=128, seed=1)
settings = {"optimizer": sgd, "lr": train.one_cycle(0.3, N_STEPS)}
history = train.fit(model, batches, n_steps=N_STEPS, **settings)

# %% [markdown]
# `gradients_of` asks every layer's output for the gradient that comes back to it. (It does so with a *hook*, a
# function that torch calls on the way.) Zeros, which a ReLU leaves behind wherever it was off, are put aside.

# %%
from labkit import plot_formats, precision

SCALE = 2**16
flowing = precision.gradients_of(model, x[:1024], y[:1024])
flowing = flowing[flowing != 0]
sizes = {"as they are": flowing, f"times {SCALE:,}": flowing * SCALE}
plot_formats.ranges(sizes, [BF16, FP16, E5M2, E4M3], title="Gradients of a trained ResNet")

# %% [markdown]
# A thick bar is the range in which a format keeps all its digits, the thin one its subnormal numbers. What lies left
# of the thin one becomes zero: that is *underflow*. The repair is an old one. Multiply the loss by a large number,
# and by the chain rule every gradient grows by it. Divide again, in fp32, before the step. That is *loss scaling*.


# %%
def lost(numbers, dtype):
    return float((numbers.to(dtype) == 0).float().mean())


plainly, scaled = lost(flowing, torch.float16), lost(flowing * SCALE, torch.float16)
kept = lost(flowing, torch.bfloat16)
reveal("lost", 100 * plainly)

# %%
claim(
    "fp16 turns over a tenth of these gradients into zero; scaled, or in bf16, next to none",
    holds=plainly > 0.1 and max(scaled, kept) < 0.01,
    evidence=f"zero in fp16 {plainly:.1%}, scaled {scaled:.2%}, in bf16 {kept:.2%}",
)

# %% [markdown]
# It hangs on the batch. With an eighth of the pictures each one's share is eight times larger, three steps to the
# right in the figure. And what reaches the *weights* is a sum over pictures, larger still.

# %%
model.zero_grad()  # or those of other batches would be added to
few = precision.gradients_of(model, x[:128], y[:128])
weighed = torch.cat([p.grad.flatten() for p in model.parameters()])
few, weighed = lost(few[few != 0], torch.float16), lost(weighed[weighed != 0], torch.float16)
shares = {"1024 pictures": plainly, "128 pictures": few, "128 pictures, weights": weighed}
record("03", "share of gradients that are zero in fp16", shares)

# %% [markdown]
# ### Too close together for bf16
#
# bf16 has the range, and pays with its steps. A running total, done wrong first: a thousand ones are added, and the
# total is a bf16 number.

# %%
ones = torch.ones(1000, dtype=torch.bfloat16)
wrong, right = torch.zeros((), dtype=torch.bfloat16), torch.zeros((), dtype=torch.float32)
totals = {"total in bf16": [], "total in fp32": []}
for one in ones:
    wrong, right = wrong + one, right + one
    for name, total in zip(totals, (wrong, right), strict=True):
        totals[name].append(float(total))

# %%
curves = {name: (range(1, 1001), values) for name, values in totals.items()}
plot.lines(curves, xlabel="ones added", ylabel="total", title="The same bf16 numbers")
reveal("total", float(wrong))

# %% [markdown]
# From 256 on, neighbours in bf16 lie 2 apart. 257 is half-way between two of them, and the tie goes back to 256, each
# time. The numbers were fine; the *accumulator* was too narrow. So matrix units multiply narrow numbers and add them
# up in fp32, and so does `ones.sum()`, which rounds only at the end, to what bf16 has nearest to 1000.

# %%
claim(
    "a bf16 total of ones stops growing at 256; a float32 total of the same numbers is right",
    holds=float(wrong) == 256 and float(right) == 1000,
    evidence=f"bf16 {float(wrong):g}, float32 {float(right):g}; ones.sum() {float(ones.sum()):g}",
)

# %% [markdown]
# A weight is a running total too: of updates. Here a weight of 1 in bf16 takes a thousand steps of 0.001, and ends
# where it began. Therefore mixed precision keeps *master weights* in fp32, and hands narrow copies to the layers.

# %%
weight, master = torch.ones((), dtype=torch.bfloat16), torch.ones(())
for _ in range(1000):
    weight, master = weight - 0.001, master - 0.001
print(f"bf16: {float(weight):g}   fp32: {float(master):.3f}")

# %% [markdown]
# ### What autocast casts
#
# `torch.autocast` does this for a whole network: inside its block, operations take narrow copies of what they are
# given, or do not. Which ones? Ask the results. NARROW is bf16 wherever there are units for it; a T4 has none, so it
# gets fp16. (torch's `is_bf16_supported()` says True there, of an emulation. `setting` asks without it.)


# %%
from labkit import setting

here = setting.found()
NARROW = getattr(torch, here.narrow)


def width(tensor):
    return "narrow" if tensor.dtype == NARROW else str(tensor.dtype).removeprefix("torch.")


# %% [markdown]
# A small network on eight pictures. Each layer notes what it is given and what it returns; the last two layers and
# the loss are shown.

# %%
small, rows = convnet().to(device()), []
for layer in small:
    layer.register_forward_hook(
        lambda layer, given, out: rows.append([type(layer).__name__, width(given[0]), width(out)])
    )
with torch.autocast(device(), dtype=NARROW):
    logits = small(x[:8])
    loss = train.mean_cross_entropy(logits, y[:8])
rows += [["the loss", width(logits), width(loss)]]
table(["layer", "is given", "returns"], rows[-3:])

# %% [markdown]
# Then backward, and a step of Adam, which keeps two running averages for each weight. What formats have the weights,
# their gradients and the averages?

# %%
loss.backward()
adam = torch.optim.Adam(small.parameters())
adam.step()
kinds = {width(p) for p in small.parameters()} | {width(p.grad) for p in small.parameters()}
kinds |= {width(adam.state[p]["exp_avg"]) for p in small.parameters()}

# %%
claim(
    "layers return narrow numbers; loss, weights, gradients and optimizer state stay fp32",
    holds=width(logits) == "narrow" and width(loss) == "float32" and kinds == {"float32"},
    evidence=f"logits {logits.dtype}, loss {loss.dtype}; the others: {', '.join(kinds)}",
)

# %% [markdown]
# The fp32 weights go in, a narrow result comes out: each layer casts a copy, in every step. Other operations are
# decided one by one, and not alike everywhere. Below, `matmul` is given two fp32 matrices, `+ fp32` one of each, the
# others a narrow one. On a GPU most of these return fp32. So ask your own machine, and do not trust a list.

# %%
narrow = torch.ones(4, 4, device=device(), dtype=NARROW)
operations = {
    "matmul": lambda: narrow.float() @ narrow.float(),
    "relu": narrow.relu,
    "+ fp32": lambda: narrow + narrow.float(),
    "exp": narrow.exp,
    "sum": narrow.sum,
    "softmax": lambda: narrow.softmax(-1),
    "layer_norm": lambda: nn.functional.layer_norm(narrow, (4,)),
    "mse_loss": lambda: nn.functional.mse_loss(narrow, narrow),
}

# %%
with torch.autocast(device(), dtype=NARROW):
    found = {name: width(call()) for name, call in operations.items()}
record("03", "what operations return under autocast", found)

# %% [markdown]
# ## Measure
#
# Now a whole training step, as the recipe has it: forward under autocast, the loss scaled where the format asks for
# it, backward, and the step in fp32. `GradScaler` is torch's loss scaler, whose inside you will build in exercise
# 3.2.


# %%
def make_step(dtype=None, scaler=None, loss_of=train.mean_cross_entropy):
    """A step for `train.fit`; without a dtype in fp32."""

    def step(model, inputs, targets, optimizer):
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype is not None):
            loss = loss_of(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.detach()

    return step


# %% [markdown]
# How much faster? Three networks: the plain one on 512 pictures, the ResNet on 128, a small transformer on text; and
# the plain one on a single picture. `bench` takes turns between the formats, as lesson 00 taught. On a CPU the clock
# is the processor's own, which with one thread leaves the neighbours' work out.

# %%
text = docs.load("train").inputs.to(device())
tokens, following = next(train.windows(text, batch_size=16, context=64, seed=0))
writer = gpt(vocab=len(docs.CLASSES), width=64, layers=4).to(device())
plain, deep = convnet().to(device()), resnet().to(device())
clock = time.process_time_ns if device() == "cpu" else time.perf_counter_ns
jobs = {
    "convnet, batch 512": (plain, x[:512], y[:512]),
    "ResNet, batch 128": (deep, x[:128], y[:128]),
    "transformer, 1024 tokens": (writer, tokens, following),
    "convnet, batch 1": (plain, x[:1], y[:1]),
}


# %%
def contest(model, inputs, targets):
    """The step in fp32 and in NARROW, timed in turns."""
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    steps = {"fp32": make_step(), "narrow": make_step(NARROW)}
    calls = {n: lambda step=s: step(model, inputs, targets, still) for n, s in steps.items()}
    measured = bench(calls, repeats=15 if FULL else 5, warmup=2, clock=clock)
    return measured.ratio("fp32", "narrow")


# %% [markdown]
# The networks' weights do not move here: the rate is zero. A figure above 1 says that the narrow format is faster by
# so much, one below 1 that it is slower.

# %%
gains = {name: contest(*job) for name, job in jobs.items()}
kind = {"narrow format": str(NARROW).removeprefix("torch.")}
gained = {f"{name} (times)": ratio.value for name, ratio in gains.items()}
record("03", "how many times faster a step is in the narrow format", kind | gained)

# %% [markdown]
# On the machine where this was written, an AMD processor that multiplies bf16 in its vector units, the convolutions
# gained and the transformer *lost*: its matrices are small, and casting costs more than multiplying saves. At batch 1
# nearly all is overhead. No list of hardware tells you this. Time your own network at your own batch.

# %%
single = gains["convnet, batch 1"]
claim(
    "at batch 1 the narrow format is slower than fp32",
    holds=single.value < 0.95,
    evidence=f"fp32 takes {single} of the narrow step's time",
)

# %%
with_amx = device() == "cpu" and has_amx()
many = gains["convnet, batch 512"]
claim(
    "where the CPU has AMX, bf16 trains the convnet 1.5 times as fast or faster",
    holds=many.at_least(1.5) if with_amx else None,
    evidence=f"fp32 takes {many} of the narrow step's time, with AMX: {with_amx}",
    tier="amx",
    needs="a CPU with AMX, and no GPU in use",
)

# %% [markdown]
# Where a GPU has units for a format, a large matrix product shows what they can do. fp32 stays fp32 here: torch
# leaves tf32 off for products unless you ask. Volta and Turing, so V100 and T4, have units for fp16; Ampere and newer
# for bf16 too.


# %%
def products(dtype, n=4096):
    """How many times faster an n x n product is in dtype than in fp32; None without units."""
    units = {torch.float16: (7, 0), torch.bfloat16: (8, 0)}
    if device() == "cpu" or torch.cuda.get_device_capability() < units[dtype]:
        return None
    wide = torch.randn(n, n, device="cuda")
    thin = wide.to(dtype)
    calls = {"fp32": lambda: wide @ wide, "narrow": lambda: thin @ thin}
    return bench(calls, repeats=9).ratio("fp32", "narrow")


# %%
for dtype, name, needs in (
    (torch.float16, "fp16", "a GPU with tensor cores: Volta, Turing (T4) or newer"),
    (torch.bfloat16, "bf16", "a GPU with bf16: Ampere or newer"),
):
    ratio = products(dtype)
    claim(
        f"tensor cores multiply large matrices in {name} 1.5 times as fast as in fp32, or faster",
        holds=None if ratio is None else ratio.at_least(1.5),
        evidence="not measured" if ratio is None else f"{ratio}",
        tier="gpu",
        needs=needs,
    )

# %% [markdown]
# And fp16 on a CPU? It takes half the memory of fp32, as it does on a GPU, and torch runs it without a warning. Guess
# what a step costs.

# %%
question = "How many times longer does a training step in fp16 take on a CPU than one in fp32?"
predict("trap", question, default=2, low=0.1, high=1000, unit="times")


# %%
def one_step_s(dtype, n=64):
    """Processor seconds of one step, after a first one that does not count."""
    model, step = convnet(), make_step(dtype)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    step(model, images.inputs[:2], images.targets[:2], still)
    start = time.process_time()
    step(model, images.inputs[:n], images.targets[:n], still)
    return time.process_time() - start


# %% [markdown]
# Few processors have units for fp16, and without them torch falls back on slow code. One step is enough to see that.
# The trap is to start such a run by mistake, and to blame something else.

# %%
half_s, full_s = one_step_s(torch.float16), min(one_step_s(None) for _ in range(3))
reveal("trap", half_s / full_s)
record("03", "one step of the convnet on the CPU", {"fp16 / fp32 (times)": half_s / full_s})

# %% [markdown]
# ### Is accuracy harmed?
#
# The plain network, three starts, the same recipe in each format; nothing is tuned anew. Without a GPU, fp16 is
# *emulated*: every layer's weights, inputs, outputs and their gradients are rounded to fp16, and sums are kept in
# fp32, as tensor cores do. fp16 gets the scaler.


# %%
def prepared(name, seed):
    """The plain network, and the dtype for autocast; emulated where there are no units."""
    torch.manual_seed(seed)
    model = convnet().to(device())
    real = {"fp32": True, "bf16": here.has_bf16, "fp16": device() == "cuda"}[name]
    if real:
        return model, None if name == "fp32" else FORMATS[name].dtype
    return precision.emulate(model, FORMATS[name]), None


# %%
def trained(name, seed, n_steps, peak=0.3, **step):
    """A network trained in a format, and the history of the run."""
    model, dtype = prepared(name, seed)
    batches = train.shuffled(x, y, batch_size=128, seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=peak)
    settings = {"lr": train.one_cycle(peak, n_steps), "step": make_step(dtype, **step)}
    return model, train.fit(model, batches, n_steps=n_steps, optimizer=sgd, **settings)


# %% [markdown]
# Nine runs. The networks are judged on typefaces that none of them has seen, and the accuracies of the three starts
# are averaged.

# %%
reached = {}
for name in ("fp32", "bf16", "fp16"):
    scaler = {"scaler": torch.amp.GradScaler(device())} if name == "fp16" else {}
    models = [trained(name, seed, 240 if FULL else 6, **scaler)[0] for seed in (1, 2, 3)]
    reached[name] = [train.score(each, x_unseen, y_unseen).accuracy for each in models]
means = {name: sum(runs) / 3 for name, runs in reached.items()}
record("03", "accuracy of the convnet, mean of three starts", means)

# %%
worst = min(means["bf16"], means["fp16"]) - means["fp32"]
claim(
    "bf16 and fp16 with a scaler end as accurate as fp32, within 0.05",
    holds=worst > -0.05,
    evidence="\n".join(f"{name}: {[round(a, 3) for a in runs]}" for name, runs in reached.items()),
)

# %% [markdown]
# Longer runs were recorded once, from three other starts: the ResNet for six epochs, and the plain network, there
# also in *real* fp16 on a CPU (look at its seconds). The emulation ends where the real fp16 does. Look for harm:
# there is none beyond the spread of starts, not without the scaler (a batch of 128 loses little), not even with the
# weights in bf16 (at these rates most updates are large enough). Further down we make some.

# %%
recorded = repro.recordings("03_mixed_precision_sweeps")[0]
where = f"Recorded on {recorded.hardware}, {recorded.date}: accuracy on test typefaces"
rows = []
for row in [*recorded.results["resnet"], *recorded.results["convnet"]]:
    name = f"{row['net']}, {row['format']}{' with a scaler' if row['scaler'] else ''}"
    seconds = sum(row["train_cpu_s"]) / 3
    rows.append([name, *(f"{a:.3f}" for a in row["test_accuracy"]), f"{seconds:.1f}"])
table(["network, format", "start 1", "start 2", "start 3", "seconds"], rows, caption=where)

# %% [markdown]
# ### Eight bits, and four
#
# e4m3 ends at 448, e2m1 at 6. So numbers are divided by a *scale* before they are rounded, and multiplied after. One
# scale for a whole tensor is the obvious choice. Here are a million ordinary numbers, and the same with one in a
# thousand fifty times as large, as transformers have them. *Error* is the length of the vector of what is lost,
# divided by the length of all; for the spiky ones it is taken over the ordinary numbers among them.

# %%
dice = torch.Generator().manual_seed(0)
even = torch.randn(1024, 1024, generator=dice)
spikes = torch.rand(1024, 1024, generator=dice) < 0.001
spiky = torch.where(spikes, 50 * even, even)

# %%
WAYS = {
    "e4m3, one scale": {"to": E4M3},
    "e5m2, one scale": {"to": E5M2},
    "MXFP8: e4m3, 32 a scale, powers of two": {"to": E4M3, "block": 32, "scales": "e8m0"},
    "e2m1, one scale": {"to": E2M1},
    "MXFP4: e2m1, 32 a scale, powers of two": {"to": E2M1, "block": 32, "scales": "e8m0"},
    "NVFP4: e2m1, 16 a scale, e4m3 scales": {"to": E2M1, "block": 16, "scales": "e4m3"},
}

# %% [markdown]
# Some of these ways form blocks: neighbours share a scale of their own. *MX* takes 32 to a scale and allows powers of
# two only, in 8 bits. *NVFP4* takes 16, with scales in e4m3. The bits in the table count the scales.

# %%
def lost_in(numbers, way, mask):
    """Relative error, and the share that becomes zero, of the numbers under the mask."""
    back = formats.scaled_round(numbers, **way)
    error = (back - numbers)[mask].norm() / numbers[mask].norm()
    return float(error), float((back[mask] == 0).float().mean())


rows, zeros, error = [], {}, {}
for name, way in WAYS.items():
    plain_error, _ = lost_in(even, way, ~spikes)
    error[name], zeros[name] = lost_in(spiky, way, ~spikes)
    figures = [f"{formats.bits_per_number(**way):.2f}", f"{plain_error:.3f}", f"{error[name]:.3f}"]
    rows.append([name, *figures, f"{zeros[name]:.0%}"])
table(["format and scale", "bits", "error", "error, spiky", "become 0, spiky"], rows)

# %%
one, mx, nv = (name for name in WAYS if "e2m1" in name)
claim(
    "in four bits one scale loses nearly all of the spiky numbers; a scale a block repairs it",
    holds=zeros[one] > 0.95 and max(zeros[mx], zeros[nv]) < 0.2 and 3 * error[mx] < error[one],
    evidence=f"become zero: one scale {zeros[one]:.1%}, MX {zeros[mx]:.1%}, NVFP4 {zeros[nv]:.1%}",
)

# %% [markdown]
# One number fifty times too large takes the scale for itself, and the others round to zero. In eight bits the
# exponent absorbs that, and blocks buy nothing here: their scales, powers of two, fit less well than one that is
# exact. In four bits blocks decide. They confine the damage to a few neighbours.
#
# Does a network survive? The weights of the ResNet from above, rounded. Only the error is real here, and no speed:
# units for e2m1 exist on Blackwell GPUs, NVIDIA's of 2025.

# %%
networks = {name: precision.rounded_weights(model, **way) for name, way in WAYS.items()}
networks = {"fp32": model} | networks
scores = {name: train.score(each, x_unseen, y_unseen) for name, each in networks.items()}
accuracy = {name: score.accuracy for name, score in scores.items()}
record("03", "accuracy of the ResNet, weights rounded after training", accuracy)

# %%
eight = [accuracy[name] for name, way in WAYS.items() if way["to"] == E4M3]
claim(
    "weights in e4m3, with one scale or in blocks, cost less than 0.03 of accuracy",
    holds=min(eight) > accuracy["fp32"] - 0.03,
    evidence="\n".join(f"{name}: {reached:.3f}" for name, reached in accuracy.items()),
)

# %% [markdown]
# All survive, e2m1 with one scale too. These weights have no spikes, and 1,024 pictures cannot tell differences below
# 0.03 from chance. What blocks are for are tensors like the spiky one: look at yours before you choose.

# %% [markdown]
# ## Change one thing
#
# Some losses are small by nature: a mean over pixels, a term with a small weight. Divide the loss by 2ᵏ and multiply
# the rate by 2ᵏ. On paper nothing changes. In fp32 and bf16 not one bit does, for a power of two touches the exponent
# alone. In fp16 it does. Change `POWERS`, and look for the place where it breaks.

# %%
POWERS = (0, 6, 12, 15, 18, 24)


def final_loss(name, k, **step):
    """Loss at the end of a short run whose loss was divided by 2**k."""
    small = lambda logits, targets: train.mean_cross_entropy(logits, targets) / 2**k
    n_steps = 120 if FULL else 4
    _, history = trained(name, 1, n_steps, peak=0.3 * 2**k, loss_of=small, **step)
    return sum(history.losses[-20:]) / len(history.losses[-20:]) * 2**k


# %%
ends = {name: [final_loss(name, k) for k in POWERS] for name in ("fp32", "bf16", "fp16")}
labels = {"xlabel": "k (the loss was divided by 2 to the k)", "ylabel": "loss at the end (nats)"}
curves = {name: (POWERS, losses) for name, losses in ends.items()}
plot.lines(curves, **labels, levels={"guessing": math.log(32)}, markers=True)

# %% [markdown]
# On the far right fp16 has not moved from its start, which is a little worse than guessing, for fresh weights favour
# some answers: every gradient was zero. Left of that some gradients survive, as one or two steps of a subnormal
# number, and the run ends far worse than it began. A half-lost gradient is worse than none.

# %%
last = {name: losses[-1] for name, losses in ends.items()}
claim(
    "a loss divided by 2 to the 24th is nothing to fp32 and bf16, and stops fp16 from learning",
    holds=all(abs(last[n] - ends[n][0]) < 0.2 for n in ("fp32", "bf16")) and last["fp16"] > 3,
    evidence="\n".join(f"{name}: {[round(a, 2) for a in losses]}" for name, losses in ends.items()),
)

# %% [markdown]
# ## Exercises
#
# Four tools. Where you have not built one yet, the cells after it use the course's own. A note for the first: torch's
# `frexp` takes a number apart, into a mantissa and an exponent.

# %% [markdown]
# ### Exercise 3.1 · Round to a format (15 min, medium)
#
# Round every number of x to the nearest that a format has; a tie goes to the even mantissa. What rounds to more than
# `largest` becomes `beyond` with its sign: `inf` in fp16, `largest` itself in e4m3. inf counts as too large, NaN
# stays NaN. `min_exponent` is that of the smallest normal number, -14 in fp16.
#
# The traps: halves, which do not all go up; below 2**min_exponent the spacing stops shrinking; and inf / inf is NaN.


# %%
def round_to(x, mantissa_bits, min_exponent, largest, beyond):
    """The numbers of x, a float32 tensor, rounded to a format; as float32."""
    ### BEGIN SOLUTION
    wide = x.double()  # exact throughout: a float64 has digits and range to spare
    exponent = (torch.frexp(wide).exponent - 1).clamp(min=min_exponent)
    spacing = torch.exp2((exponent - mantissa_bits).double())
    rounded = torch.round(wide / spacing) * spacing
    instead = torch.full_like(wide, beyond).copysign(wide)
    return torch.where(rounded.abs() > largest, instead, rounded).float()
    ### END SOLUTION


# %%
check(round_to)

# %% [markdown]
# Held against torch: every bit pattern there is of bf16 and of fp16, 65,536 each, rounded to every format that torch
# can cast to. Beyond e4m3's 448 torch gave NaN before version 2.12 and gives 448 since, so there that part is left
# out. Any NaN counts as equal to any other.

# %%
mine, rows = attempt(round_to), []


def compared(each, source):
    """How many patterns of `source` were rounded to `each`, and how many differ from torch's."""
    numbers = torch.arange(2**16).to(torch.uint16).view(source.dtype).float()
    numbers = numbers if each.infinite else numbers[numbers.abs() <= each.largest]
    got = mine(numbers, each.mantissa_bits, each.min_exponent, each.largest, each.beyond)
    cast = numbers.to(each.dtype).float()
    return len(numbers), int((~((got == cast) | (got.isnan() & cast.isnan()))).sum())


# %%
for each in (each for each in FORMATS.values() if each.dtype):
    for source in (BF16, FP16):
        rows.append([f"{source.name} to {each.name}", *compared(each, source)])
table(["all patterns of", "compared", "different"], rows)

# %% [markdown]
# Nothing here is a matter of tolerance. The rule, to the nearest and ties to even, is that of the standard IEEE 754,
# and it says for every number which neighbour is right. So two programs can agree to the last bit.

# %%
different = sum(row[-1] for row in rows)
claim(
    "the rounding agrees with torch on every pattern compared, in every format torch has",
    holds=different == 0,
    evidence=f"{different} differences in {len(rows)} comparisons",
)

# %% [markdown]
# ### Exercise 3.2 · A dynamic loss scaler (25 min, hard)
#
# No one knows the right scale, and it changes. So try: `unscale` divides every gradient by the scale, in place.
# `step` unscales, and then, if *every* gradient is finite, lets the optimizer step, else skips it and multiplies the
# scale by `backoff`. After `growth_interval` good steps in a row it multiplies the scale by `growth`, and counts
# anew. It returns whether the optimizer stepped.

# %% [markdown]
# The traps: a skip breaks the row of good steps. A weight may have no gradient. And `unscale` may be called before
# `step`, to *clip* gradients (shorten those that are too long) at their true size. Then `step` must not divide again:
# `self.unscaled` remembers that. The next step comes with new gradients.


# %%
class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, growth_interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.growth_interval, self.good_steps, self.unscaled = growth_interval, 0, False

    def gradients(self, optimizer):
        return [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]

    def scale_loss(self, loss):
        return loss * self.scale

    def unscale(self, optimizer):
        ### BEGIN SOLUTION
        if not self.unscaled:
            for gradient in self.gradients(optimizer):
                gradient /= self.scale
        self.unscaled = True
        ### END SOLUTION

    def step(self, optimizer):
        ### BEGIN SOLUTION
        self.unscale(optimizer)
        self.unscaled = False
        finite = all(gradient.isfinite().all() for gradient in self.gradients(optimizer))
        if finite:
            optimizer.step()
            self.good_steps += 1
        else:
            self.scale, self.good_steps = self.scale * self.backoff, 0
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * self.growth, 0
        return finite
        ### END SOLUTION


# %%
check(LossScaler)

# %% [markdown]
# Now it repairs what *Change one thing* broke: fp16, with the loss divided by 2 to the 24th. It starts at a scale far
# too small, and may double it after five good steps. The figure shows its search. Each fall is a step that was
# skipped.


# %%
def rescued(scaler, k=24, n_steps=240 if FULL else 12):
    """Loss at the end, and the scale at each step."""
    torch.manual_seed(1)
    model, scales = precision.emulate(convnet(), FP16).to(device()), []

    def step(model, inputs, targets, optimizer):
        optimizer.zero_grad()
        loss = train.mean_cross_entropy(model(inputs), targets) / 2**k
        scaler.scale_loss(loss).backward()
        scaler.step(optimizer)
        scales.append(scaler.scale)
        return loss.detach() * 2**k

    sgd = torch.optim.SGD(model.parameters(), lr=1)
    batches = train.shuffled(x, y, batch_size=128, seed=1)
    settings = {"lr": train.one_cycle(0.3 * 2**k, n_steps), "step": step}
    history = train.fit(model, batches, n_steps=n_steps, optimizer=sgd, **settings)
    return sum(history.losses[-20:]) / len(history.losses[-20:]), scales


# %%
end, scales = rescued(attempt(LossScaler)(scale=2.0**16, growth_interval=5))
labels = {"xlabel": "step", "ylabel": "scale", "title": "A scaler looks for its scale"}
plot.lines({"scale": (range(len(scales)), scales)}, **labels, log_y=True)

# %% [markdown]
# It climbs until gradients overflow, and from then on hovers there. torch's scaler starts at 65,536 and waits two
# thousand steps before it grows, for a long run can afford to be patient.

# %%
claim(
    "a loss scaler lets fp16 learn from a loss divided by 2 to the 24th",
    holds=end < 2.0,
    evidence=f"loss at the end {end:.2f}; without a scaler {last['fp16']:.2f}, in half the steps",
)
falls = sum(after < before for before, after in pairwise(scales))
claim(
    "on its way it finds the scale at which gradients overflow, and skips those steps",
    holds=0 < falls < len(scales) / 4,
    evidence=f"{falls} of {len(scales)} steps skipped",
)

# %% [markdown]
# ### Exercise 3.3 · A sum that is right (8 min, easy)
#
# Add up a long list of bf16 numbers, given as a list of chunks. Return the total in float32, right to five digits.
# There is room for a float32 copy of one chunk, and not of all.
#
# The traps: a bf16 total; a bf16 sum of each chunk; a right total that is rounded to bf16 on the way out.


# %%
def long_sum(chunks):
    """The sum of all numbers in a list of bf16 vectors, as a float32 tensor of no dimensions."""
    ### BEGIN SOLUTION
    total = torch.zeros((), dtype=torch.float32)
    for chunk in chunks:
        total += chunk.sum(dtype=torch.float32)
    return total
    ### END SOLUTION


# %%
check(long_sum)

# %% [markdown]
# A hundred thousand losses between 2 and 3, in a thousand chunks: what would a report say is their mean?

# %%
dice = torch.Generator().manual_seed(0)
chunks = list((2 + torch.rand(1000, 100, generator=dice)).bfloat16())
careless = torch.zeros((), dtype=torch.bfloat16)
for chunk in chunks:
    careless = careless + chunk.sum()
right = attempt(long_sum)(chunks)
print(f"mean, bf16 total {float(careless) / 1e5:.1f}, fp32 total {float(right) / 1e5:.1f}")

# %% [markdown]
# ### Exercise 3.4 · Which format for which job (10 min, easy)
#
# `machine` is a dictionary: `kind` is "cpu" or "cuda"; `features` holds a CPU's units, such as "amx_bf16" or
# "avx512_bf16"; `capability` is a GPU's version, a pair such as (7, 5), and None for a CPU. `job` has `training`,
# `batch`, and `accuracy_checked`: has the accuracy in fp8 been measured, and found good?
#
# Return a pair: the format, and whether a loss scaler is needed. The trap: torch offers more formats than a machine
# has units for.

# %% [markdown]
# The first rule that applies:
#
# 1. batch 1: "measure";
# 2. a CPU with amx_bf16: "bf16"; without it but with avx512_bf16: "measure", for above it went both ways; any other
#    CPU: "fp32";
# 3. a GPU from (8, 9) on, such as H100 (9, 0), no training, accuracy checked: "fp8";
# 4. a GPU from (8, 0) on, such as A100: "bf16";
# 5. a GPU from (7, 0) on, such as V100 and T4 (7, 5): "fp16";
# 6. any other: "fp32".
#
# Training in fp16 needs a scaler; nothing else does.


# %%
def choose_format(machine, job):
    """(format, needs a scaler)"""
    ### BEGIN SOLUTION
    if job["batch"] == 1:
        return "measure", False
    if machine["kind"] == "cpu":
        if "amx_bf16" in machine["features"]:
            return "bf16", False
        return ("measure" if "avx512_bf16" in machine["features"] else "fp32"), False
    version = machine["capability"]
    if version >= (8, 9) and not job["training"] and job["accuracy_checked"]:
        return "fp8", False
    if version >= (8, 0):
        return "bf16", False
    return ("fp16", job["training"]) if version >= (7, 0) else ("fp32", False)
    ### END SOLUTION


# %%
check(choose_format)

# %% [markdown]
# Your machine, by these rules, for two jobs: training at batch 128, and serving one request at a time. If the rules
# say "measure", the table under *Measure* has your answer: which of the four jobs gained, and which lost?

# %%
on_gpu = device() == "cuda"
this = {
    "kind": device(),
    "features": machine().cpu_features,
    "capability": torch.cuda.get_device_capability() if on_gpu else None,
}

# %%
advice, choose = {}, attempt(choose_format)
for name, job in {"training, batch 128": (True, 128), "serving, batch 1": (False, 1)}.items():
    described = {"training": job[0], "batch": job[1], "accuracy_checked": False}
    chosen, needs = choose(this, described)
    advice[name] = f"{chosen}{' with a scaler' if needs else ''}"
record("03", "what the rules say", advice)

# %% [markdown]
# ## Limits
#
# **When do you train in mixed precision?** When the machine has units for the format, the matrices are large enough
# to keep them busy, and you have timed it. Take bf16 where there is a choice. Take fp16 with a scaler on a T4 or
# V100. Look at the loss of a first run beside that in fp32, and at the scaler's scale: one that keeps falling tells
# of a run that is dying.

# %% [markdown]
# - These networks are small. A large one may need its last layers or its optimizer in fp32, and shows it late.
# - One recipe, three starts: a harm below two or three per cent would not be seen here.
# - NVIDIA's own figures for a T4: ResNet-50 in fp16 serves 2.9 times as many pictures as fp32 at batch 256, and
#   *fewer* at batch 1.

# %% [markdown]
# - Emulation rounds at each layer's ends. Units of real fp8 differ in how many digits they keep while adding.
# - tf32 was rounded here to nearest, ties to even, as Intel's instruction does it. NVIDIA's conversion `cvt.rna`
#   sends ties away from zero, and what a tensor core does with bits that nobody has rounded is its own affair.
# - Weights are easier to round than activations, whose outliers change with every input.

# %% [markdown]
# ## Further questions
#
# 1. Train with weights and optimizer in bf16 (`model.bfloat16()`), at a tenth of the rate. When do updates get lost?
# 2. *Stochastic rounding* rounds up with the probability of the remainder. Does it save the bf16 total?
# 3. Make one in a thousand of the ResNet's weights ten times larger, and round again. Which way survives?
# 4. Scale the gradients of a layer at a time, not the loss. What does it buy?

# %% [markdown]
# ## Sources
#
# - Micikevicius and others, [Mixed Precision Training](https://arxiv.org/abs/1710.03740), 2018: master weights, loss
#   scaling, fp32 sums.
# - Kalamkar and others, [A Study of BFLOAT16 for Deep Learning Training](https://arxiv.org/abs/1905.12322), 2019.
# - Micikevicius and others, [FP8 Formats for Deep Learning](https://arxiv.org/abs/2209.05433), 2022.
# - Rouhani and others, [Microscaling Data Formats for Deep Learning](https://arxiv.org/abs/2310.10537), 2023: MX.
# - NVIDIA, 2025: [Introducing
#   NVFP4](https://developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference/).

# %% [markdown]
# - PyTorch, [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html): what autocast does to which
#   operation.
# - NVIDIA, [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/), compute
#   capabilities: which GPU has units for which format.
#   [PTX](https://docs.nvidia.com/cuda/parallel-thread-execution/), cvt.rna.
# - Intel,
#   [SPV_INTEL_tensor_float32_conversion](https://github.khronos.org/SPIRV-Registry/extensions/INTEL/SPV_INTEL_tensor_float32_conversion.html),
#   2025: tf32, ties to even.
# - NVIDIA, [DeepLearningExamples](https://github.com/NVIDIA/DeepLearningExamples), ResNet-50: the T4's figures.
