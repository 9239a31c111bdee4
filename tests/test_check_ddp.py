"""The checks of lesson 12 take right answers that are written in another way than the course's own."""

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
    flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [whole.reshape(1)])
    dist.all_reduce(flat)
    for p, part in zip(model.parameters(), flat[:-1].split([p.numel() for p in model.parameters()]), strict=True):
        p.grad = part.view_as(p)
    return flat[-1].item()


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


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("my_share", share_in_runs),
        ("shared_accuracy", accuracy_of_runs),
        ("token_mean_backward", tokens_counted_first),
        ("Ddp", DividedAtTheEnd),
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


def test_groups_are_filled_from_the_last_tensor_to_the_first():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    sizes = lambda n_bytes: [[p.numel() for p in params] for params in replicas.in_groups(model, n_bytes)]
    assert sizes(1) == [[4], [16], [4], [16]]
    assert sizes(4 * 20) == [[4, 16], [4, 16]]
    assert sizes(10**6) == [[4, 16, 4, 16]]
    model[0].requires_grad_(False)
    assert sizes(10**6) == [[4, 16]]
