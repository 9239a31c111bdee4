"""The checks of lesson 13: what a learner may rightly write in other words than the course."""

import re
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from labkit.checker import find, generator_for, verdict
from labkit.checks import reports
from labkit.checks.uneven import UNEVEN_MISTAKES, OneProcess, same_training, train_uneven, trained


def who_waits(dumps):
    inner = r"most recent call first\):\n  File \"[^\"]*/distributed_c10d\.py\", line \d+ in ([a-z]\w*)"
    at = [re.search(inner, dump) for dump in dumps]
    at = [found and found[1] for found in at]
    return {r: {o for o in range(len(at)) if at[o] != mine} for r, mine in enumerate(at) if mine}


NAMES = ("all_reduce", "broadcast", "barrier", "all_gather_into_tensor", "reduce_scatter_tensor")


def waits_by_a_list_of_names(dumps):
    at = {}
    for rank, dump in enumerate(dumps):
        above = ""
        for line in dump.splitlines():
            name = line.split(" in ")[-1]
            if above.endswith("first):") and "torch/distributed/distributed_c10d.py" in line and name in NAMES:
                at[rank] = name
            above = line
    return {rank: tuple(o for o in range(len(dumps)) if at.get(o) != mine) for rank, mine in at.items()}


def parted(records):
    numbers = sorted({e["collective_seq_id"] for record in records for e in record if not e["is_p2p"]})
    for number in numbers:
        called = []
        for record in records:
            own = [e for e in record if not e["is_p2p"]]
            if own and own[0]["collective_seq_id"] > number:
                break
            same = [e for e in own if e["collective_seq_id"] == number]
            called.append(str((same[0]["profiling_name"], same[0]["input_sizes"])) if same else "")
        if len(called) == len(records) and len(set(called)) > 1:
            usual = Counter(called).most_common(1)[0][0]
            return [number, torch.tensor([r for r, each in enumerate(called) if each != usual])]
    return [0, ()]


def diagnose(report):
    inside = [bool(re.search(r'first\):\n  File "[^"]*distributed_c10d', left.stood)) for left in report]
    if any("address already in use" in left.said for left in report):
        return ["port", -1]
    own = [re.search(r"OpType=(\w+), TensorShape=(\S+)", left.said) for left in report]
    if all(own):
        keys = [found.group() for found in own]
        rare = min(set(keys), key=keys.count)
        return ["differed", keys.index(rare)]
    if all("Cannot re-initialize CUDA" in left.said for left in report):
        return ["forked", -1]
    for rank, left in enumerate(report):
        if left.ended in (-9, -11, -7):
            return ["killed", rank]
        if left.ended == 0:
            return ["uneven", rank]
        if left.ended == 1 and "/gloo/" not in left.last_words and "terminate called" not in left.last_words:
            return ["raised", rank]
    return ["skipped", inside.index(False)] if any(inside) else ["forked", -1]


def diagnose_by_most_named(report):
    """The rank that most others say runs something else: only its fingerprint may be garbled, never its number."""
    named = [re.search(r"but Rank (\d+) is running", left.said) for left in report]
    if all(named):
        return "differed", Counter(int(found[1]) for found in named).most_common(1)[0][0]
    return diagnose(report)


def in_one_bucket(model, batches, lr):
    """The number of steps agreed on first; gradients and samples in one message a step."""
    n_steps = torch.tensor(len(batches))
    dist.all_reduce(n_steps, op=dist.ReduceOp.MAX)
    used = torch.zeros((), dtype=torch.int64)
    for step in range(int(n_steps)):
        model.zero_grad(set_to_none=False)
        x, y = batches[step] if step < len(batches) else (torch.zeros(0, 3), torch.zeros(0, 1))
        (model(x) - y).square().sum().backward()
        bucket = torch.cat([*(weight.grad.flatten() for weight in model.parameters()), torch.tensor([float(len(x))])])
        dist.all_reduce(bucket)
        used += int(bucket[-1])
        with torch.no_grad():
            place = 0
            for weight in model.parameters():
                weight -= lr * bucket[place : place + weight.numel()].view_as(weight) / bucket[-1]
                place += weight.numel()
    return used


def with_an_optimizer(model, batches, lr):
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    counts = torch.tensor([sum(len(x) for x, _ in batches), 0])
    dist.all_reduce(counts)
    mine = iter(batches)
    while True:
        batch = next(mine, None)
        state = torch.tensor([len(batch[0]) if batch else 0])
        dist.all_reduce(state)
        if not state.item():
            return counts[0].item()
        sgd.zero_grad()
        loss = (model(batch[0]) - batch[1]).pow(2).sum() if batch else sum(0 * p.sum() for p in model.parameters())
        (loss / state.item()).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        sgd.step()


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("who_waits", who_waits),
        ("who_waits", waits_by_a_list_of_names),
        ("parted", parted),
        ("diagnose", diagnose),
        ("diagnose", diagnose_by_most_named),
        ("train_uneven", in_one_bucket),
        ("train_uneven", with_an_optimizer),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_another_way_passes(name, fn, seed):
    exercise = find(name)
    found = verdict(fn, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
    assert found.status == "passed", found.message


def _said(name, fn):
    """The message of a failed check, by label."""
    exercise = find(name)
    found = verdict(fn, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)
    assert found.status == "failed"
    return dict(line.split(maxsplit=1) for line in found.message.splitlines()[1:])


def test_the_ranks_are_shown_as_returned_and_where_the_misread_one_stands():
    said = _said("who_waits", lambda dumps: {r: [] for r in who_waits(dumps)})
    assert said["returned"] == "{0: [], 1: []}"
    assert said["expected"] == "{0: [1], 1: []}"
    assert re.search(
        r'Rank 0: .*File "…/torch/distributed/distributed_c10d.py", line \d+ in all_reduce', said["likely"]
    )


def test_a_number_that_is_wrong_is_told_with_what_the_ranks_called():
    said = _said("parted", lambda _: (1, [0]))
    assert said["returned"] == "(1, [0])"
    assert re.search(r"At \d: ranks \[\d, \d\] \w+:\w+ \[\[\d, \d\]\]; ranks \[\d\] nothing\.", said["likely"])


def test_the_report_that_failed_can_be_had_again():
    said = _said("diagnose", lambda _: ("skipped", -1))
    cause, seed = re.fullmatch(r"diagnose\(report=reports\.practice\('(\w+)', seed=(\d+)\)\)", said["call"]).groups()
    assert said["expected"] == f"('{cause}', {reports.rank_at_fault(cause, int(seed))})"


@pytest.mark.parametrize(("cause", "mistaken"), UNEVEN_MISTAKES)
def test_each_mistake_of_an_uneven_loop_is_told_from_the_right_one(cause, mistaken):
    sizes = [[2, 3], [6, 7, 8], []]
    right = trained(train_uneven, 3, sizes)
    assert same_training(trained(OneProcess(), 3, sizes), right) is None
    told = same_training(trained(mistaken, 3, sizes), right)
    assert re.match(r"After step [12] of 3 a weight of rank 0 is off by ", told), (cause, told)
