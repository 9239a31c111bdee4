"""Wrong answers that learners of lesson 13 would give, each with a part of the message that must meet it."""

import itertools

import torch
import torch.distributed as dist

OPS = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier")


def any_line_of_torch(dumps):
    stands = {}
    for rank, dump in enumerate(dumps):
        for line in dump.splitlines():
            if "distributed_c10d.py" in line and rank not in stands:
                stands[rank] = line.split()[-1]
    found = {r: [o for o in range(len(dumps)) if stands.get(o) != op] for r, op in stands.items()}
    return {rank: others for rank, others in found.items() if others}


def _threads(dump):
    return [thread.splitlines()[0] for thread in dump.split("(most recent call first):\n")[1:]]


def _waits(finds, others=lambda mine, other: mine != other):
    def fn(dumps):
        stands = [finds(dump) for dump in dumps]
        everyone = range(len(dumps))
        found = {r: [o for o in everyone if o != r and others(stands[r], stands[o])] for r in everyone if stands[r]}
        return {rank: waited for rank, waited in found.items() if waited}

    return fn


def _any_thread(dump, helpers=False, file="distributed_c10d.py"):
    names = [line.split()[-1] for line in _threads(dump) if file in line]
    return next((name for name in names if helpers or not name.startswith("_")), None)


def _first_thread(dump):
    lines = _threads(dump)[:1]
    return next((line.split()[-1] for line in lines if "distributed_c10d.py" in line), None)


def _named_like_one(dump):
    return next((line.split()[-1] for line in _threads(dump) if line.split()[-1] in OPS), None)


def _with_quotes(dump):
    return next((line.split(" in ")[0] for line in _threads(dump) if "distributed_c10d.py" in line), None)


def _helpers_too(dump):
    return _any_thread(dump, helpers=True)


def _torch_files(dump):
    return _any_thread(dump, file="torch/")


def lists_the_culprits(dumps):
    return [rank for rank, dump in enumerate(dumps) if not _any_thread(dump)]


def forgets_the_return(dumps):
    _waits(_any_thread)(dumps)


def _parted(
    *, p2p=False, first=None, sizes=True, state=False, last=False, minority=True, short=False, nothing="counts"
):
    keys = ["profiling_name", *["input_sizes"] * sizes, *["state"] * state]

    def fn(records):
        called = [
            {e["collective_seq_id"]: [e[key] for key in keys] for e in record if p2p or not e["is_p2p"]}
            for record in records
        ]
        begins = [min(each, default=1) for each in called]
        ends = [max(each, default=0) for each in called]
        start = max(begins) if first is None else first(begins)
        found = 0, []
        for number in range(start, (min(ends) if short else max(ends)) + 1):
            at = [each.get(number) for each in called]
            voting = at if nothing == "counts" else [each for each in at if each]
            usual = max(voting, key=voting.count) if minority else at[0]
            apart = [rank for rank, each in enumerate(at) if each != usual and (each or nothing != "skipped")]
            if apart and (last or not found[0]):
                found = number, apart
        return found

    return fn


def by_place(records):
    for i, entries in enumerate(itertools.zip_longest(*records)):
        at = [(e["profiling_name"], e["input_sizes"]) if e else None for e in entries]
        usual = max(at, key=at.count)
        if apart := [rank for rank, each in enumerate(at) if each != usual]:
            return i + 1, apart
    return 0, []


def by_state(records):
    for number in range(1, 100):
        at = {r: e["state"] for r, rec in enumerate(records) for e in rec if e["collective_seq_id"] == number}
        if "scheduled" in at.values():
            return number, [rank for rank, state in at.items() if state == "scheduled"]
    return 0, []


def the_shortest(records):
    ends = [max((e["collective_seq_id"] for e in record), default=0) for record in records]
    if len(set(ends)) == 1:
        return 0, []
    return min(ends) + 1, [rank for rank, end in enumerate(ends) if end == min(ends)]


def _diagnose(**changed):
    """The reference's way, with parts of it changed."""

    def fn(report):
        said = " ".join(left.said for left in report)
        if "EADDRINUSE" in said:
            return "port", changed.get("port_rank", -1)
        if "forked subprocess" in said and not changed.get("no_cuda"):
            return "forked", -1
        if changed.get("popen") and any("popen_fork.py" in left.stood for left in report):
            return "forked", -1
        if "Detected mismatch" in said:
            if changed.get("first_differs"):
                return "differed", 0
            marker = "but Rank" if changed.get("believes_others") else " is running collective: "
            mine = [left.said.partition(marker)[2].split("TensorDtypes")[0] for left in report]
            usual = max(mine, key=mine.count)
            return "differed", next((rank for rank, each in enumerate(mine) if each != usual), 0)
        for rank, left in enumerate(report):
            if left.ended < 0 and left.ended not in changed.get("own_signals", (-6, -15)):
                return "killed", rank
            words = changed.get("echo", ("gloo/transport",))
            if left.ended == 1 and not any(word in left.said for word in words):
                return "raised", rank
            if left.ended == 0:
                return changed.get("zero", "uneven"), rank
        idle = [r for r, left in enumerate(report) if left.stood and "distributed_c10d.py" not in left.stood]
        if changed.get("no_fork") or len(idle) < len(report):
            return "skipped", idle[0] if idle else 0
        return "forked", -1

    return fn


def says_one_thing(report):
    return "skipped", 1


def by_the_loudest(report):
    said = " ".join(left.said for left in report)
    if "by peer" in said:
        return "killed", [left.ended != 0 for left in report].index(True)
    return _diagnose()(report)


def only_the_cause(report):
    return _diagnose()(report)[0]


def in_words(report):
    cause, rank = _diagnose()(report)
    return f"rank {rank} {cause}", rank


def _step(model, batch, lr, average):
    model.zero_grad()
    x, y = batch
    ((model(x) - y) ** 2).mean().backward()
    for weight in model.parameters():
        average(weight.grad)
        weight.data -= lr * weight.grad


def plain_loop(model, batches, lr):
    def average(grad):
        dist.all_reduce(grad)
        grad /= dist.get_world_size()

    for batch in batches:
        _step(model, batch, lr, average)
    used = torch.tensor(float(sum(len(x) for x, _ in batches)))
    dist.all_reduce(used)
    return int(used)


def alone(model, batches, lr):
    for batch in batches:
        _step(model, batch, lr, lambda grad: None)
    used = torch.tensor(float(sum(len(x) for x, _ in batches)))
    dist.all_reduce(used)
    return int(used)


def as_far_as_the_shortest(model, batches, lr):
    n = torch.tensor(float(len(batches)))
    dist.all_reduce(n, op=dist.ReduceOp.MIN)
    return _uneven(model, batches[: int(n)], lr)


def repeats_the_last(model, batches, lr):
    n = torch.tensor(float(len(batches)))
    dist.all_reduce(n, op=dist.ReduceOp.MAX)
    x = torch.zeros(2, 3), torch.zeros(2, 1)
    mine = list(batches) + [batches[-1] if batches else x] * (int(n) - len(batches))
    return _uneven(model, mine, lr)


def _uneven(model, batches, lr, divide="samples", sums=True, own_stop=False, reset=True, keeps="sums"):
    used = step = 0
    while True:
        if reset:
            model.zero_grad()
        n = torch.zeros(())
        if step < len(batches):
            x, y = batches[step]
            loss = ((model(x) - y) ** 2).sum()
            (loss if sums else loss / len(x)).backward()
            n += len(x)
        had = (n > 0).float()
        dist.all_reduce(n)
        dist.all_reduce(had)
        if n == 0 or own_stop and step >= len(batches):
            return used
        for weight in model.parameters():
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            grad = grad if keeps == "sums" else grad.clone()
            dist.all_reduce(grad)
            by = {"samples": n, "ranks": dist.get_world_size(), "those left": had, "nothing": 1}[divide]
            weight.data -= lr * grad / by
        used += int(n)
        step += 1


def _with(**changed):
    def fn(model, batches, lr):
        return _uneven(model, batches, lr, **changed)

    return fn


def under_join(model, batches, lr):
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    with ddp.join(divide_by_initial_world_size=False):
        for x, y in batches:
            model.zero_grad()
            ((ddp(x) - y) ** 2).mean().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= lr * weight.grad
    used = torch.tensor(float(sum(len(x) for x, _ in batches)))
    dist.all_reduce(used)
    return int(used)


def gathers_all_data(model, batches, lr):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [(x, y) for x, y in batches])
    used = 0
    for step in range(max(map(len, everyone))):
        x, y = (torch.cat([mine[step][i] for mine in everyone if step < len(mine)]) for i in (0, 1))
        _step(model, (x, y), lr, lambda grad: None)
        used += len(x)
    return used


def counts_its_own(model, batches, lr):
    _uneven(model, batches, lr)
    return sum(len(x) for x, _ in batches)


def forgets_the_grad(model, batches, lr):
    used = step = 0
    while True:
        model.zero_grad()
        n = torch.zeros(())
        if step < len(batches):
            x, y = batches[step]
            ((model(x) - y) ** 2).sum().backward()
            n += len(x)
        dist.all_reduce(n)
        if n == 0:
            return used
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.data -= lr * weight.grad / n
        used += int(n)
        step += 1


WRONG = {
    "13.1": [
        ("any line of torch's file", any_line_of_torch, "the innermost line of a thread"),
        ("the first thread only", _waits(_first_thread), "several threads"),
        ("an own function of that name", _waits(_named_like_one), "the file must be torch's"),
        ("a helper at work", _waits(_helpers_too), "A helper in torch's file is no collective.*_object_to_tensor"),
        ("any file of torch", _waits(_torch_files), "torch has many files"),
        ("all the others", _waits(_any_thread, lambda *_: True), "stand in the same collective"),
        ("only those at work", _waits(_any_thread, lambda _, other: other is None), "another collective does not come"),
        ("compares lines, not collectives", _waits(_with_quotes), "wrong result"),
        ("lists the culprits", lists_the_culprits, "wrong type"),
        ("forgets the return", forgets_the_return, "`return` missing"),
    ],
    "13.2": [
        ("counts messages", _parted(p2p=True), "is_p2p"),
        ("from the oldest number", _parted(first=min), "latest entries only"),
        ("from number 1", _parted(first=lambda _: 1), "latest entries only"),
        ("names only", _parted(sizes=False), "wrong result"),
        ("the last difference", _parted(last=True), "wrong result"),
        ("against rank 0", _parted(minority=False), "wrong result"),
        ("as far as the shortest", _parted(short=True), "wrong result"),
        ("compares the state too", _parted(state=True), "`state` says only how far"),
        ("nothing has no vote", _parted(nothing="no vote"), "To have called nothing counts too"),
        ("nothing is skipped", _parted(nothing="skipped"), "To have called nothing counts too"),
        ("by place in the list", by_place, "wrong result"),
        ("by state", by_state, "wrong result"),
        ("the shortest record", the_shortest, "wrong result"),
    ],
    "13.3": [
        ("one answer for all", says_one_thing, "This one is `differed`|the rank is not"),
        ("believes the loudest", by_the_loudest, "This one is|the rank is not"),
        ("popen_fork is proof", _diagnose(popen=True), "This one is"),
        ("no CUDA", _diagnose(no_cuda=True), "This one is `forked`"),
        ("believes what ranks say of others", _diagnose(believes_others=True), "odd one out"),
        ("rank 0 differs", _diagnose(first_differs=True), "odd one out"),
        ("an abort is a kill", _diagnose(own_signals=(-15,)), "This one is"),
        ("SIGTERM is a kill", _diagnose(own_signals=(-6,)), "This one is"),
        ("only SIGKILL is", _diagnose(own_signals=(-6, -7, -11, -15)), "This one is|raised"),
        ("echoes by their words", _diagnose(echo=("imed out", "onnection")), "This one is|raised"),
        ("echoes are RuntimeErrors", _diagnose(echo=("RuntimeError",)), "This one is `raised`|the rank is not"),
        ("echoes say gloo", _diagnose(echo=("gloo",)), "This one is `raised`|the rank is not"),
        (
            "echoes come from a collective",
            _diagnose(echo=("distributed_c10d.py",)),
            "This one is `raised`|the rank is not",
        ),
        (
            "echoes say by peer or waiting",
            _diagnose(echo=("by peer", "Timed out")),
            "This one is `raised`|the rank is not",
        ),
        (
            "echoes ask for logs",
            _diagnose(echo=("Check the logs", "Timed out")),
            "This one is `raised`|the rank is not",
        ),
        ("nobody has the port", _diagnose(port_rank=None), "not one rank's, the rank is -1"),
        ("0 is a skip", _diagnose(zero="skipped"), "This one is `uneven`"),
        ("a fork is a skip", _diagnose(no_fork=True), "This one is `forked`"),
        ("rank 0 has the port", _diagnose(port_rank=0), "the rank is not"),
        ("only the cause", only_the_cause, "wrong type"),
        ("in words", in_words, "none of the seven causes"),
    ],
    "13.4": [
        ("a plain loop", plain_loop, "raised RankError"),
        ("stops by its own count", _with(own_stop=True), "raised RankError"),
        ("each rank alone", alone, "different weights"),
        ("as far as the shortest", as_far_as_the_shortest, "none may be left out"),
        ("repeats the last batch", repeats_the_last, "none may be left out"),
        ("divides by the ranks", _with(divide="ranks", sums=False), "the mean of means"),
        ("divides by those left", _with(divide="those left", sums=False), "the mean of means"),
        ("under join", under_join, "the mean of means.*as with DDP under `join`"),
        ("sums, divided by the ranks", _with(divide="ranks"), "divided by the number of ranks"),
        ("sums without dividing", _with(divide="nothing"), "Sums are not divided"),
        ("divides twice", _with(sums=False), "It divides twice"),
        ("keeps the sums of gradients", _with(reset=False), "Gradients add up from step to step|After step"),
        ("keeps its own gradients", _with(reset=False, keeps="own"), "Gradients add up from step to step"),
        ("gathers all data", gathers_all_data, "not in the way asked for.*|Batches stay"),
        ("counts its own", counts_its_own, "Each rank returns"),
        ("forgets that grad is None", forgets_the_grad, "raised RankError"),
    ],
}
