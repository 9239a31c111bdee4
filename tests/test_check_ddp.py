"""The checks of lesson 12 take right answers that are written in another way than the course's own."""

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from labkit.checker import find, generator_for, verdict
from labkit.checks import replicas


def share_in_runs(n, rank, world_size, epoch, seed):
    """Neighbours in the order instead of every world_size-th; NumPy's dice."""
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return [int(each) for each in np.array_split(order, world_size)[rank]]


def share_of_pairs(n, rank, world_size, epoch, seed):
    """Python's own dice, seeded with a text, which Random digests alike in every program."""
    order = list(range(n))
    random.Random(f"{seed}, {epoch}").shuffle(order)
    return order[rank::world_size]


def accuracy_in_float(model, inputs, targets):
    """A tensor without dimensions, in double precision; a rank without examples has an empty part."""
    rows = range(len(inputs))[dist.get_rank() :: dist.get_world_size()]
    n_right = model(inputs[list(rows)]).argmax(1).eq(targets[list(rows)]).sum().double()
    dist.all_reduce(n_right)
    return n_right / len(targets)


def accuracy_of_runs(model, inputs, targets):
    """Two counts in one vector, of neighbours; a rank without examples does not call the model."""
    mine = torch.arange(len(inputs)).tensor_split(dist.get_world_size())[dist.get_rank()]
    right = [model(inputs[i : i + 1]).argmax(1).eq(targets[i : i + 1]).item() for i in mine.tolist()]
    counts = torch.tensor([sum(right), len(right)], dtype=torch.double)
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def tokens_counted_first(model, micro_batches):
    """The count first, then each loss is divided by it; gradients leave as one vector, with the loss at its end."""
    n_tokens = torch.tensor(float(sum((targets != -100).sum() for _, targets in micro_batches)), dtype=torch.double)
    dist.all_reduce(n_tokens)
    whole = 0
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs).movedim(-1, 1), targets, reduction="none").sum() / n_tokens
        loss.backward()
        whole = whole + loss.detach()
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.as_tensor(whole).reshape(1)])
    dist.all_reduce(flat)
    for p, part in zip(model.parameters(), flat[:-1].split([p.numel() for p in model.parameters()]), strict=True):
        p.grad = part.view_as(p)
    return flat[-1].item()


def tokens_where_some_count(model, micro_batches):
    """A micro-batch in which nothing counts is run forward only; gradients are taken apart from p.grad."""
    sums = [torch.zeros_like(p) for p in model.parameters()]
    both = torch.zeros(2, dtype=torch.double)
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        if (targets == -100).all():
            continue
        for total, each in zip(sums, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total += each
        both += torch.tensor([loss.item(), (targets != -100).sum().item()], dtype=torch.double)
    for each in (both, *sums):
        dist.all_reduce(each)
    for p, total in zip(model.parameters(), sums, strict=True):
        p.grad = total / both[1]
    return both[0] / both[1]


class DividedAtTheEnd:
    """Closures in place of indices, the sum divided in wait(), weights sent as one vector a kind."""

    def __init__(self, model, groups):
        self.sync, self.full = True, []
        for tensors in (list(model.parameters()), list(model.buffers())):
            flat = torch.cat([each.detach().flatten() for each in tensors])
            dist.broadcast(flat, src=0)
            for each, part in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
                each.data.copy_(part.view_as(each))
        self.flats = [self.bucket(params) for params in groups]

    def bucket(self, params):
        flat, there, start = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype), set(), 0

        def ready(p):
            if self.sync:
                there.add(p)
            if len(there) == len(params):
                self.full.append((flat, dist.all_reduce(flat, async_op=True)))
                there.clear()

        for p in params:
            p.grad = flat[start : start + p.numel()].view(p.shape)
            p.register_post_accumulate_grad_hook(ready)
            start += p.numel()
        return flat

    def wait(self):
        for flat, work in self.full:
            work.wait()
            flat.div_(dist.get_world_size())
        self.full = []

    def zero_grad(self):
        torch._foreach_zero_(self.flats)


class Futures:
    """Work is kept by group and left there; the average is asked for before the sum, and set anew where it comes."""

    def __init__(self, model, groups):
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.sync, self.groups, self.works = True, groups, {}
        self.flats = [torch.zeros(sum(p.numel() for p in params), dtype=torch.double) for params in groups]
        for which, params in enumerate(groups):
            for p in params:
                p.register_post_accumulate_grad_hook(self.hook(which))
        self.left = [0] * len(groups)
        self.zero_grad()

    def hook(self, which):
        def added_up(_):
            self.left[which] += self.sync
            if self.left[which] == len(self.groups[which]):
                self.left[which] = 0
                self.works[which] = dist.all_reduce(self.flats[which].div_(dist.get_world_size()), async_op=True)

        return added_up

    def wait(self):
        for work in self.works.values():
            work.wait()

    def zero_grad(self):
        for flat, params in zip(self.flats, self.groups, strict=True):
            flat.zero_()
            for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.grad = part.view_as(p)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("my_share", share_in_runs),
        ("my_share", share_of_pairs),
        ("shared_accuracy", accuracy_of_runs),
        ("shared_accuracy", accuracy_in_float),
        ("token_mean_backward", tokens_counted_first),
        ("token_mean_backward", tokens_where_some_count),
        ("Ddp", DividedAtTheEnd),
        ("Ddp", Futures),
    ],
)
def test_a_right_answer_written_another_way_passes(name, answer):
    exercise = find(name)
    for seed in (0, 1):
        found = verdict(answer, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
        assert found.status == "passed", found.message


def test_an_answer_whose_ranks_wait_for_each_other_is_ended_and_told():
    def one_rank_is_missing(model, inputs, targets):
        n_right = model(inputs).argmax(1).eq(targets).sum()
        if dist.get_rank():
            dist.all_reduce(n_right)
        return n_right.item() / len(inputs)

    exercise = find("shared_accuracy")
    found = verdict(one_rank_is_missing, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)
    assert found.status == "failed"
    assert "RankError" in found.message
    assert "rank 1 in all_reduce" in found.message


def test_ranks_that_receive_for_ever_are_told_where_they_stand():
    def nobody_sends(*_):
        dist.recv(torch.zeros(1), src=1 - dist.get_rank())

    exercise = find("shared_accuracy")
    found = verdict(nobody_sends, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)
    assert "in recv from rank" in found.message
    assert "dist.recv(torch.zeros(1)" in found.message


@pytest.mark.parametrize("name", ["ring_mean", "shared_accuracy", "token_mean_backward", "train_uneven"])
def test_an_error_in_a_rank_is_told_by_the_learners_own_line(name):
    def answer(*_):
        return torch.ones(2) @ misspelt  # noqa: F821

    exercise = find(name)
    found = verdict(answer, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)
    assert "NameError: name 'misspelt' is not defined" in found.message
    assert "torch.ones(2) @ misspelt" in found.message
    assert "Traceback" not in found.message


def test_what_a_case_is_made_from_is_no_call():
    exercise = find("my_share")
    found = verdict(lambda *_: [], exercise, generator=generator_for(exercise, 0))
    assert "\ntried   n=12, world_size=2, seed=0\nfound   an example dealt to nobody\n" in found.message


def test_groups_are_filled_from_the_last_tensor_to_the_first():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    sizes = lambda n_bytes: [[p.numel() for p in params] for params in replicas.in_groups(model, n_bytes)]
    assert sizes(1) == [[4], [16], [4], [16]]
    assert sizes(4 * 20) == [[4, 16], [4, 16]]
    assert sizes(10**6) == [[4, 16, 4, 16]]
    model[0].requires_grad_(False)
    assert sizes(10**6) == [[4, 16]]
