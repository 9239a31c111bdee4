# title: When ranks hang
# minutes: 80
# cpu: everything
# gpu: the same, and what CUDA says to a fork
# gpu2: the same, and one hang under NCCL
#
# %% [markdown]
# # 13 · When ranks hang
#
# Eighty minutes with the exercises. The cells alone run in about a minute, or two on a busy machine.
#
# ## Question
#
# A run on many devices has stood still since three in the morning. There is no error; half an hour later there is one
# from every rank but one, and none of them names the culprit. **Which rank does everybody wait for, and why does it
# not come?**

# %%
import re
import signal
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from labkit import attempt, check, claim, hardware, predict, record, reveal, table
from labkit.aftermath import left_by, show_report, show_text
from labkit.ranks import RankError, run_ranks

# %% [markdown]
# You know from lessons 11 and 12: a *rank* is one of several equal processes, and a *collective*, such as `all_reduce`
# or `barrier`, is a call that all of them must make. It returns when all have come. Who comes last decides when; and
# when one never comes, the others wait.

# %% [markdown]
# ## Predict
#
# Three ranks. Rank 1 goes to read a file and never comes back; the other two call `all_reduce` and wait. After a time
# limit the run is over, and there are three logs. Move the slider before you go on.

# %%
torch.set_num_threads(1)
question = "In how many of the three logs will rank 1 be named?"
predict("named", question, default=2, low=0, high=3, unit="logs")

# %% [markdown]
# ## Build
#
# ### A wait that ends
#
# First a run in which all is well, only that rank 1 takes three times as long over its work as the others. Then they
# all add something up. Each rank notes from when to when it did what.


# %%
from labkit import plot_timeline
from labkit.timeline import Span


def paced():
    """What this rank did when, in four steps."""
    rank, spans = dist.get_rank(), []

    def noted(kind, name, call):
        start = time.monotonic()
        call()
        when = {"start_s": start, "end_s": time.monotonic()}
        spans.append(Span(row=f"rank {rank}", name=name, kind=kind, **when))

    dist.barrier()
    for _ in range(4):
        noted("host", "work", lambda: time.sleep(0.06 if rank == 1 else 0.02))
        noted("wait", "all_reduce", lambda: dist.all_reduce(torch.ones(4)))
    return spans


# %%
by_rank = run_ranks(paced, 3, devices="cpu")
plot_timeline.timeline(sum(by_rank, []), title="Rank 1 is slow, and the others wait for it")

# %% [markdown]
# Who is slow waits least. Look at one rank alone, and the *quick* ones seem to have a slow `all_reduce`: whoever is in
# the collective is the victim, and the culprit is somewhere else. So it is with a hang, only that the *wait* bars
# have no end.

# %%
waited_s = [sum(s.seconds for s in spans if s.kind == "wait") for spans in by_rank]
claim(
    "the slow rank waits less than half as long as each of the others",
    holds=2 * waited_s[1] < min(waited_s[0], waited_s[2]),
    evidence=", ".join(f"rank {r}: {1e3 * s:.0f} ms" for r, s in enumerate(waited_s)),
)

# %% [markdown]
# ### Ranks without a safety net
#
# `run_ranks` says who is to blame; a cluster does not. So this lesson launches ranks plainly, as `torchrun` does:
# `left_by(fn, 3)` starts three processes, on the CPU, and gives what each *left behind*: exit code (`.ended`), log
# (`.said`), stacks (`.stood`), and a record of its collectives, of which later. torch waits half an hour (NCCL: ten
# minutes); here a moment must do. When one rank has failed, the launcher ends the others.


# %%
def skips():
    x = torch.ones(4)
    dist.broadcast(x, src=0)
    if dist.get_rank() == 1:
        time.sleep(60)  # a slow disk, a question to the user, a loop without an end
    dist.all_reduce(x)


# %%
start = time.perf_counter()
skipped = left_by(skips, 3)
seconds = {"skipped": time.perf_counter() - start}
show_report(skipped, caption="Rank 1 skips a collective")

# %% [markdown]
# An *exit code* of 0 is success, 1 an exception that nobody caught; `sys.exit(3)` makes it 3. Below zero it is the
# number of the signal that ended the process: -15 is SIGTERM, by which launchers end ranks that still run, -9 is
# SIGKILL, -6 an abort that the program did to itself. And here is a log as torch writes it.

# %%
show_text(skipped[0].said, caption="All that rank 0 says")
named = sum(bool(re.search(r"[Rr]anks? ?:?1\b", left.said)) for left in skipped)
reveal("named", named)

# %%
words = "\n".join(f"rank {rank}: {left.last_words!r}" for rank, left in enumerate(skipped))
claim("no log names the rank that did not come", holds=named == 0, evidence=words)

# %% [markdown]
# Read such a timeout for what it says: *my* operation, in *my* line, was not finished after so many milliseconds. It
# is the word of a victim. Which rank was missing is not in it, and the one that was missing says nothing at all.

# %% [markdown]
# NCCL, on GPUs, waits in a thread of its own, the *watchdog*, and the line that launched the collective has long been
# left. A published log: `Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, ...,
# Timeout(ms)=600000)`, and then `last enqueued NCCL work: 811, last completed NCCL work: 807`. Number 808 hung; the
# program had gone on to 811.

# %% [markdown]
# ## Measure
#
# ### Where does each stand?
#
# `faulthandler`, from Python's standard library, writes down the stacks of all threads of a process, the innermost
# line first, while the process hangs. A rank must ask for it beforehand: `faulthandler.dump_traceback_later(60)`. For
# one that did not, `py-spy dump --pid 1234` looks from outside. `left_by` asks for it, and looks while all still wait.

# %%
for rank in (0, 1):
    show_text(skipped[rank].stood, caption=f"Where rank {rank} stands")

# %% [markdown]
# The last paragraph is the main thread. Rank 0 stands in torch's file `distributed_c10d.py`, in `all_reduce`. Rank 1
# does not: its innermost line is the `sleep`. That is the culprit, with file and line. (The other thread is
# `left_by`'s own. Real programs have many.)

# %%
inside = ["distributed_c10d.py" in left.stood for left in skipped]
claim(
    "the stacks tell: all ranks but one stand in a collective",
    holds=inside == [True, False, True],
    evidence=f"in a collective: {inside}",
)

# %% [markdown]
# `run_ranks` does the same by itself. It notes each rank's collectives, and asks all ranks for their stacks when one
# has waited too long. Then it raises a `RankError`, whose text is shown here.


# %%
def failing(fn, world_size=2, **more):
    """What labkit.ranks says about ranks that fail."""
    try:
        run_ranks(fn, world_size, timeout_s=2, **more)
    except RankError as error:
        show_text(str(error), caption=f"labkit.ranks, kind: {error.kind}")
        return error
    raise AssertionError("none of the ranks has failed")


# %% [markdown]
# The same fault on this machine's own devices; with two GPUs or more it runs on NCCL. `device()` is where a rank
# computes.


# %%
def skips_anywhere():
    from labkit.ranks import device

    if dist.get_rank() == 1:
        time.sleep(60)
    x = torch.ones(4, device=device())
    dist.all_reduce(x)
    return x.tolist()


# %%
error = failing(skips_anywhere)
told = str(error).splitlines()[0]
claim("labkit.ranks names the missing rank", holds=error.rank == 1, evidence=told)

# %% [markdown]
# ### A barrier that names names
#
# On gloo, `dist.monitored_barrier` is a barrier in which rank 0 keeps a list of who has come. Put before a suspicious
# collective, it turns a hang into a sentence. With `wait_all_ranks=True` it names all who are missing, without it the
# first. It costs a message from each rank to rank 0 and back, so it stays in for a search and not for ever. (NCCL has
# none; make a second, gloo group for it.)


# %%
def guarded():
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)


# %%
left = left_by(guarded, 3)
show_report(left, caption="Behind a monitored barrier")
claim("it names rank 1", holds="Ranks 1 failed" in left[0].said, evidence=left[0].last_words)

# %% [markdown]
# ### Shapes that differ
#
# All ranks come to `all_reduce`, but rank 1 brings a matrix of two by two and the others a vector of four. First, as
# one would look: does the run end without an error? (A plain rank returns nothing, so what it has is printed into its
# log.)


# %%
def shapes():
    x = torch.ones(2, 2) if dist.get_rank() == 1 else torch.ones(4)
    dist.all_reduce(x)
    return x.tolist()


# %%
silent = left_by(lambda: print(shapes()), 3)
show_report(silent, caption="Different shapes")

# %% [markdown]
# It does, and the numbers look fine. gloo adds up bytes; shapes it never sees. With five numbers against four it
# depends on who comes first: we saw one rank abort, and another time two ranks end with 0 and a wrong sum. *No error
# is no proof.* Now with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, under which ranks compare *fingerprints* before each
# collective.

# %%
differed = left_by(shapes, 3, detail=True)
show_text(differed[1].last_words, caption="Rank 1, with DETAIL")

# %%
claim(
    "ranks with different shapes end without an error, and with DETAIL each of them raises one",
    holds=[x.ended for x in silent] == [0] * 3 and all("mismatch" in x.said for x in differed),
    evidence=f"exit codes {[x.ended for x in silent]}, with DETAIL {[x.ended for x in differed]}",
)

# %% [markdown]
# Read it slowly. What a rank says of *itself* is right: `OpType=ALLREDUCE, TensorShape=[2, 2]`. Of the *other*, the
# rank's number is right, but the fingerprint may be rubbish: one of a matrix has more bytes than one of a vector, and
# read with the wrong length it becomes a SCATTER that nobody called. So take from each log its own part, and find the
# odd one out.

# %%
own = [re.search(r"is running collective: .*?TensorShape=(\[.*?\])", x.said)[1] for x in differed]
claimed = [re.search(r"but Rank \d is running.*?OpType=(\w+)", x.said)[1] for x in differed]
table(
    ["", "it says of itself", "and of another"],
    [[f"rank {r}", *pair] for r, pair in enumerate(zip(own, claimed, strict=True))],
    varying=["and of another"],
)

# %%
error = failing(shapes, 3, devices="cpu")
told = str(error).splitlines()[0]
claim("labkit.ranks sees it without DETAIL", holds=error.kind == "differed", evidence=told)

# %% [markdown]
# ### Three faults, one message
#
# Rank 1 raises an exception; or it is killed, which is what Linux does to a process when memory runs out; or it has a
# batch less than the others, and is through. What does rank 0 say, each time?


# %%
def raises():
    if dist.get_rank() == 1:
        raise ValueError("31 pictures and 32 labels")
    dist.all_reduce(torch.ones(4))


def is_killed():
    if dist.get_rank() == 1:
        signal.raise_signal(signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def is_uneven():
    for _ in range(2 if dist.get_rank() == 1 else 3):
        dist.all_reduce(torch.ones(4))


# %%
three = {}
for fn in (raises, is_killed, is_uneven):
    start = time.perf_counter()
    three[fn.__name__] = left_by(fn, 3)
    seconds[fn.__name__] = time.perf_counter() - start
    show_report(three[fn.__name__], caption=fn.__name__)

# %% [markdown]
# The victims' messages are the largest thing in the log, and say no more than this: the other one has gone. There are
# two wordings, *closed* and *reset by peer*; which one comes is chance, whatever the cause. Whether it died, raised or
# was finished, its own exit code says, and its own log. A killed rank has no log: nothing can be said after SIGKILL.

# %%
ended = {name: report[1].ended for name, report in three.items()}
claim(
    "rank 0 loses its peer, whatever the cause; the exit codes of rank 1 tell them apart",
    holds=all("by peer" in r[0].said for r in three.values())
    and list(ended.values()) == [1, -9, 0],
    evidence=f"rank 1 ended with {ended}",
)

# %%
for fn in (raises, is_killed, is_uneven):
    failing(fn, devices="cpu")

# %% [markdown]
# Not every lack of memory is a kill. When Python or a GPU cannot give more, there is a `MemoryError` or a
# `torch.OutOfMemoryError`, an exception like any other. When the *system* has none left, its kernel picks a process
# and kills it; `dmesg` says which. In a container, the limit is the container's.

# %% [markdown]
# ### A fork after work
#
# `fork` makes a process by copying one. The copy has all its memory and only one of its threads. If the original has
# used several threads for its operations (OpenMP does so, silently), the copy believes in helpers that do not exist.
# If it has used CUDA, the copy may not. A notebook has usually done one or the other.


# %%
where = hardware.device()


def work():
    return float(torch.ones(1000, 1000, device=where).sum())


# %%
start = time.perf_counter()
forked = left_by(work, 2, fork_after=work, timeout_s=1, look_s=0.5)
seconds["forked"] = time.perf_counter() - start
clean = left_by(work, 2)
show_report(forked, caption="Forked from a process that has worked")
show_report(clean, caption="Forked from one that has not")

# %% [markdown]
# The same function, the same devices, the same number of ranks. What does a forked one leave: on a CPU a stack, on a
# GPU an error?

# %%
show_text(forked[0].stood or forked[0].said, caption="What the forked rank 0 leaves")
claim(
    "ranks forked after work do not get through; those forked before do",
    holds=all(x.ended for x in forked) and not any(x.ended for x in clean),
    evidence=f"exit codes {[x.ended for x in forked]} and {[x.ended for x in clean]}",
)

# %% [markdown]
# On a CPU it is the quietest fault of all: no error, no collective, each rank in its first large operation, for ever.
# Below its own frame the stack shows `popen_fork.py`, and below that the frames of the process that was copied. On a
# GPU, CUDA raises: `Cannot re-initialize CUDA in forked subprocess`. The cure is to start ranks from a process that
# has done nothing yet, as `run_ranks` does, or to *spawn* them.

# %% [markdown]
# ### A port in use
#
# Ranks meet at an address: rank 0 listens at a *port*, a number below 65,536, and the others call there. Two runs on
# one machine with the same number, or a run that did not quite end, and there is no meeting. `torchrun` takes 29500
# unless told otherwise.

# %%
with socket.socket() as other_run:
    other_run.bind(("127.0.0.1", 0))
    other_run.listen()
    address = f"tcp://127.0.0.1:{other_run.getsockname()[1]}"
    port = left_by(skips, 2, address=address)

# %%
show_report(port, caption="Somebody else has the port")
claim("it is said: EADDRINUSE", holds="EADDRINUSE" in port[0].said, evidence=port[0].last_words)

# %% [markdown]
# The clearest error in this lesson. `lsof -i :29500` tells who has the port. Port 0 asks the system for one that is
# free, which is how `other_run` got its number above: `torchrun --rdzv-endpoint=localhost:0` does so, and `run_ranks`
# always.

# %%
shown = {f"{name} (s)": s for name, s in seconds.items()}
record("13", "time until the last rank had ended, with a limit of 2 s, forked: 1 s", shown)

# %% [markdown]
# To start the ranks takes the first second or two, and a hang that raises nothing is ended 3 s after its limit. A rank
# that has gone is noticed at once, for its connections close. One that only does not come is noticed when the
# time limit is over, and one that waits for nobody, as after the fork, when somebody looks.

# %% [markdown]
# ### A flight record
#
# The last tool needs no guess of when to look. torch can keep, in each rank, the latest collectives: number, name,
# shapes, state. `TORCH_FR_BUFFER_SIZE=2000` switches it on (older: `TORCH_NCCL_TRACE_BUFFER_SIZE`), and with NCCL a
# timeout writes it to a file. Recent versions of torch keep it for gloo too, so here it is, of the first fault.

# %%
kept = skipped[0].record is not None
line = lambda e: f"{e['collective_seq_id']}: {e['profiling_name']} {e['input_sizes']}"
if kept:
    rows = [[f"rank {r}", ", ".join(map(line, x.record))] for r, x in enumerate(skipped)]
    table(["", "its collectives"], rows, varying=True)

# %%
claim(
    "rank 1 lacks the collective in which the others wait",
    holds=[len(x.record) for x in skipped] == [2, 1, 2] if kept else None,
    evidence=f"{[len(x.record or []) for x in skipped]} collectives",
    needs="a torch that keeps a flight record for gloo",
)

# %% [markdown]
# ## Change one thing
#
# Uneven inputs are no accident but everyday life: ten files, four ranks. torch's DDP has a remedy, `join`. A rank that
# is through goes on answering the others' collectives with zeros until all are. Change one argument,
# `divide_by_initial_world_size`, and see what the weights are worth. All batches have four samples here.


# %%
def batches_of(rank):
    """Rank 0 has three batches, every other rank two."""
    dice = torch.Generator().manual_seed(rank)
    draw = lambda *shape: torch.randn(*shape, generator=dice)
    return [(draw(4, 3), draw(4, 1)) for _ in range(3 if rank == 0 else 2)]


def joined():
    """Weights after DDP under join, dividing by all ranks, then by those with a batch."""
    found = []
    for by_all in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        ddp = nn.parallel.DistributedDataParallel(model)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with ddp.join(divide_by_initial_world_size=by_all):
            for x, y in batches_of(dist.get_rank()):
                sgd.zero_grad()
                ((ddp(x) - y) ** 2).mean().backward()
                sgd.step()
        found.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    return found


# %% [markdown]
# To compare with: one process that has, in each step, all the samples that any rank has in this step. That is what
# data-parallel training is meant to equal.


# %%
def one_process(ranks, lr=0.1):
    """The weights after training on what all ranks together have in each step."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(max(map(len, ranks))):
        x, y = (torch.cat([mine[step][i] for mine in ranks if step < len(mine)]) for i in (0, 1))
        sgd.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        sgd.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# Both ways in one launch, on two ranks, of which rank 0 has the batch more. If `join` did nothing, this cell would end
# with a `RankError` after a while.

# %%
right = one_process([batches_of(0), batches_of(1)])
by_rank = run_ranks(joined, 2, devices="cpu")
away = [float((weights - right).abs().max()) for weights in by_rank[0]]
apart = {"by all ranks": away[0], "by those left": away[1]}
record("13", "join: largest difference from one process, if it divides", apart)

# %%
claim(
    "under join nothing hangs, and the weights are right if it divides by the ranks that are left",
    holds=away[0] > 1e-3 and away[1] < 1e-5 and torch.equal(by_rank[0][1], by_rank[1][1]),
    evidence=f"away from one process: {away[0]:.1e} by all ranks, {away[1]:.1e} by those left",
)

# %% [markdown]
# The default divides by all ranks: the last batch counted half. Neither way weighs batches of *different* size, for
# both take the mean of each rank's mean. And `join` covers the collectives of DDP; one of your own in the loop, a loss
# averaged for the log, say, still hangs. Exercise 13.4 does without.

# %% [markdown]
# ## Exercises
#
# Three readers and a repair. Where you have not built one yet, the cells after it use the course's own.

# %% [markdown]
# ### Exercise 13.1 · Who waits for whom? (12 min, easy)
#
# `dumps` holds a text for each rank, as `faulthandler` writes it; an empty one for a rank that had ended. A rank
# *waits* if a thread of it, one at most, stands in a collective: its innermost line is in torch's
# `distributed_c10d.py`, and names the collective. Return a dictionary: for each waiting rank the ranks that it waits
# for, in any order, which are all that do not stand in the same collective. One that waits for nobody may be left out.

# %% [markdown]
# The collectives are `all_reduce`, `broadcast`, `barrier`, `all_gather_into_tensor` and `reduce_scatter_tensor`. The
# traps: several threads in one dump, in any order. An `all_reduce` in a file of your own; other files of torch. A rank
# that packs an object for `all_gather_object` is at work, and stands in torch's file, in a helper such as
# `_object_to_tensor`, or has that further out.


# %%
def who_waits(dumps):
    """For each waiting rank, the list of ranks that it waits for."""
    ### BEGIN SOLUTION
    stands = {}
    for rank, dump in enumerate(dumps):
        for thread in dump.split("(most recent call first):\n")[1:]:
            innermost = thread.splitlines()[0]
            if "distributed_c10d.py" in innermost and " in _" not in innermost:
                stands[rank] = innermost.split()[-1]
    waits = {}
    for rank, collective in stands.items():
        others = [each for each in range(len(dumps)) if stands.get(each) != collective]
        if others:
            waits[rank] = others
    return waits
    ### END SOLUTION


# %%
check(who_waits)

# %% [markdown]
# On the dumps of the first fault, which real ranks left: rank 1 slept, and the two others stood in `all_reduce`. What
# your function finds is what a person on call would want to know.

# %%
found = attempt(who_waits)([left.stood for left in skipped])
found = {rank: sorted(others) for rank, others in found.items() if others}
claim(
    "in the first fault ranks 0 and 2 wait for rank 1",
    holds=found == {0: [1], 2: [1]},
    evidence=str(found),
)

# %% [markdown]
# ### Exercise 13.2 · Where do the records part? (12 min, medium)
#
# `records` holds a flight record for each rank, a list of dictionaries with the keys `collective_seq_id`,
# `profiling_name`, `input_sizes`, `is_p2p`, `state`. Return the number of the first collective that the ranks did not
# all call alike (name and sizes), and the list of the ranks that are not with the majority there. To have called
# nothing counts as something else. There is always a majority. Where they never part: 0 and an empty list.

# %% [markdown]
# The traps: a record holds the latest entries only, so ranks may have forgotten different beginnings; compare from
# where all remember. One rank may have called nothing at all. Messages from rank to rank (`is_p2p`) are not
# collectives, and their number means nothing.


# %%
def parted(records):
    """(number of the first collective in which ranks differ, ranks not with the majority)."""
    ### BEGIN SOLUTION
    called = []
    for entries in records:
        own = [entry for entry in entries if not entry["is_p2p"]]
        called.append(
            {e["collective_seq_id"]: (e["profiling_name"], e["input_sizes"]) for e in own}
        )
    first = max(min(each, default=1) for each in called)
    last = max(max(each, default=0) for each in called)
    for number in range(first, last + 1):
        at = [each.get(number) for each in called]
        usual = max(at, key=at.count)
        if apart := [rank for rank, each in enumerate(at) if each != usual]:
            return number, apart
    return 0, []
    ### END SOLUTION


# %%
check(parted)

# %% [markdown]
# On the record of the uneven loop, in which rank 1 had a batch less. Its entries look alike; only their number
# differs.

# %%
records = [left.record for left in three["is_uneven"]]
kept = None not in records
number, odd = attempt(parted)(records) if kept else (0, [])

# %%
claim(
    "the uneven ranks part at collective 3, and rank 1 is not in it",
    holds=(number, list(odd)) == (3, [1]) if kept else None,
    evidence=f"number {number}, ranks {odd}",
    needs="a torch that keeps a flight record for gloo",
)

# %% [markdown]
# ### Exercise 13.3 · The diagnosis (20 min, medium)
#
# All together. `report` holds for each rank what it left: `.ended`, `.said`, `.stood`. Return the cause and the rank
# at fault, or -1 where it is not one rank's. The causes: `"skipped"` a collective, `"differed"` in one (with DETAIL),
# `"uneven"` and through too early, `"forked"` after work, `"port"` in use, `"killed"`, `"raised"` an error of its
# own. Each report has one fault, and three ranks or more. You are judged on dozens, drawn anew.

# %% [markdown]
# To look at some, also at one that you got wrong: `reports.practice("uneven", seed=3)`, and so for each cause;
# `show_report` shows it, and `reports.rank_at_fault("uneven", seed=3)` tells the rank. The traps:
# victims may end with 1, -6 or -15, and time out or lose a connection. Own errors may speak of timeouts and
# connections too, and of gloo, but not of `gloo/transport`. `popen_fork.py` in a stack is no proof. The fingerprint
# that a rank gives of another may be garbled.

# %%
from labkit.checks import reports

example = reports.practice("uneven", seed=3)
show_report(example, caption="A report of an uneven loop, made up for practice")

# %% [markdown]
# One rank has ended with 0; the others lost it, or waited for it. Think of the order in which to ask: first what is
# said outright, then exit codes, then stacks.


# %%
def diagnose(report):
    """(cause, rank at fault or -1)."""
    ### BEGIN SOLUTION
    said = " ".join(left.said for left in report)
    if "EADDRINUSE" in said:
        return "port", -1
    if "forked subprocess" in said:
        return "forked", -1
    if "Detected mismatch" in said:
        own = [re.search(r"is running collective: .*?\]", left.said)[0] for left in report]
        usual = max(own, key=own.count)
        return "differed", [each != usual for each in own].index(True)
    for rank, left in enumerate(report):
        if left.ended < 0 and left.ended not in (-6, -15):
            return "killed", rank
        if left.ended == 1 and "gloo/transport" not in left.said:
            return "raised", rank
        if left.ended == 0:
            return "uneven", rank
    inside = ["distributed_c10d.py" in left.stood for left in report]
    return ("skipped", inside.index(False)) if any(inside) else ("forked", -1)
    ### END SOLUTION


# %%
check(diagnose)

# %% [markdown]
# And now on the real ones: the seven faults that this lesson made, with the logs that real ranks left.

# %%
real = {"skipped": skipped, "differed": differed, "forked": forked, "port": port}
real |= {name: three[fn] for name, fn in (("raised", "raises"), ("killed", "is_killed"))}
real["uneven"] = three["is_uneven"]
mine = attempt(diagnose)
verdicts = {name: mine(report) for name, report in real.items()}
rows = [[name, *map(str, verdict)] for name, verdict in verdicts.items()]
table(["made on purpose", "diagnosed", "rank"], rows)

# %%
at_fault = {name: -1 if name in ("forked", "port") else 1 for name in real}
claim(
    "all seven real faults are named, and the rank at fault",
    holds=all(tuple(verdicts[name]) == (name, rank) for name, rank in at_fault.items()),
    evidence=str(verdicts),
)

# %% [markdown]
# ### Exercise 13.4 · Uneven, and right (20 min, medium)
#
# Train without a hang and without `join`. `batches` are this rank's own, (inputs, targets), of several sizes, with one
# target a sample; other ranks have more or fewer, or none. In each step the loss is the mean of the squared errors over
# *all samples that all ranks have in this step*. Plain gradient descent, `weight -= lr * gradient`, in place, until
# nobody has a batch left. Return how many samples all ranks together have used.

# %% [markdown]
# The traps: a rank that is through must go on calling. All ranks must stop in the same step, so what they decide by
# must be the same everywhere. Without a backward pass `weight.grad` is None. Batches stay on their rank; bytes are
# counted. New tensors go where the weights are (`weight.new_zeros(())`). It is run on two ranks, then on three.


# %%
def train_uneven(model, batches, lr):
    """Train in place on all batches of all ranks; returns the number of samples used."""
    ### BEGIN SOLUTION
    used = step = 0
    while True:
        model.zero_grad()
        weights = list(model.parameters())
        n_samples = weights[0].new_zeros(())
        if step < len(batches):
            x, y = batches[step]
            ((model(x) - y) ** 2).sum().backward()
            n_samples += len(x)
        dist.all_reduce(n_samples)
        if n_samples == 0:
            return used
        for weight in weights:
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(grad)
            weight.data -= lr * grad / n_samples
        used += int(n_samples)
        step += 1
    ### END SOLUTION


# %%
check(train_uneven)

# %% [markdown]
# Once more on real ranks, with the batches from above, of which rank 0 has one more; and where there are GPUs, on
# those. One process serves as the judge again.


# %%
def run_uneven(train):
    from labkit.ranks import device

    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(device())
    mine = [(x.to(device()), y.to(device())) for x, y in batches_of(dist.get_rank())]
    used = train(model, mine, 0.1)
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu(), used


# %%
by_rank = run_ranks(run_uneven, 2, attempt(train_uneven))
away = [float((weights - right).abs().max()) for weights, _ in by_rank]
claim(
    "the uneven loop ends, has used every sample, and is equal to one process",
    holds=max(away) < 1e-5 and [used for _, used in by_rank] == [20, 20],
    evidence=f"samples {[used for _, used in by_rank]}, largest difference {max(away):.1e}",
)

# %% [markdown]
# ## Limits
#
# **What these tools do not show.** A stack names Python's lines. DDP starts its collectives from C++, within
# `backward()`, so a rank that waits there shows `_engine_run_backward` and no collective, as does one that computes.
# `py-spy dump --native` shows more; a flight record shows all.

# %% [markdown]
# - With `async_op=True` a rank stands in `work.wait()`, a line of your own. With NCCL it stands wherever it next
#   needs a value, and the watchdog's thread is the one that speaks.
# - On gloo a flight record's `state` stays `scheduled`; under NCCL it says `started` and `completed`.
# - Real clusters have faults that no code made: a cable, a card, a full disk. There a rank is slow before it is dead,
#   and the record shows it late, number by number.

# %% [markdown]
# - The reports of exercise 13.3 are made up, after real ones of torch 2.13. Another version words them differently;
#   exit codes and stacks stay.
# - DETAIL compares fingerprints before each collective, and so costs several small collectives each time. It belongs
#   into a search. `labkit.ranks` compares beside the run, and sees one machine only.
# - A longer time limit cures nothing but a slow start: a first compilation, a checkpoint that takes long.

# %% [markdown]
# ## Further questions
#
# 1. Let rank 0 alone evaluate, with an `all_reduce` in the evaluation. What do the tools say?
# 2. Let each rank stop early by its own validation loss. How do they agree on when, with one `all_reduce`?
# 3. Let rank 1 catch its exception and go on. What do the others say?
# 4. Take a stack dump of a rank that computes. Can you tell it from one that hangs?
# 5. On GPUs, NCCL writes flight records at a timeout. What does `torch.distributed.flight_recorder.fr_trace` say of
#    them?

# %% [markdown]
# ## Sources
#
# - PyTorch, [Distributed communication package](https://docs.pytorch.org/docs/stable/distributed.html):
#   `monitored_barrier`, `TORCH_DISTRIBUTED_DEBUG`, time limits.
# - PyTorch, [Flight Recorder for Debugging Stuck
#   Jobs](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html), 2024.
# - [BasicSR issue 737](https://github.com/XPixelGroup/BasicSR/issues/737), 2025: the watchdog's log above.
# - PyTorch, [Distributed Training with Uneven Inputs Using the Join Context
#   Manager](https://docs.pytorch.org/tutorials/advanced/generic_join.html).

# %% [markdown]
# - Python, [faulthandler](https://docs.python.org/3/library/faulthandler.html), for stacks from within;
#   [py-spy](https://github.com/benfred/py-spy), for stacks from outside, without preparing the program.
# - PyTorch, [Multiprocessing best practices](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html): CUDA
#   and `fork`.
