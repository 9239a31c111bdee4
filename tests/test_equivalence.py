"""What a lesson lets a learner build, and what labkit uses afterwards, are the same thing."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from labkit import train
from labkit.checks import nb01, replicas, tokens
from labkit.ranks import run_ranks


@pytest.mark.parametrize(
    ("n_steps", "warmup", "decay"), [(100, 0.1, 0.3), (57, 0.0, 0.5), (40, 0.5, 0.5), (10, 0.2, 0.0)]
)
def test_the_schedule_of_lesson_01_is_the_one_that_train_uses(n_steps, warmup, decay):
    rate = train.warmup_stable_decay(0.7, n_steps, warmup_share=warmup, decay_share=decay)
    sizes = {"n_steps": n_steps, "n_warmup": round(warmup * n_steps), "n_decay": round(decay * n_steps)}
    built = [nb01.warmup_stable_decay(step, peak=0.7, **sizes) for step in range(n_steps)]
    assert [rate(step) for step in range(n_steps)] == pytest.approx(built, rel=1e-12)


def _stepped(params):
    """A step of gradient descent with momentum; torch's own would load its compiler into each rank, for two seconds."""
    state = {}

    def step():
        with torch.no_grad():
            for p in params:
                state[p] = 0.9 * state.get(p, 0.0) + p.grad
                p -= 0.2 * state[p]

    return step


def _averaged(bucket_bytes):
    """A rank's weights after each of three steps on its share of the batches, under torch's DDP for 0 bytes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = replicas.Net()
    groups = replicas.in_groups(model, bucket_bytes)
    ddp = replicas.Ddp(model, groups) if bucket_bytes else DistributedDataParallel(model)
    step, seen = _stepped([p for params in groups for p in params]), []
    for inputs, targets in _batches():
        ddp.zero_grad()
        logits = (model if bucket_bytes else ddp)(inputs[rank::world])
        cross_entropy(logits, targets[rank::world]).backward()
        if bucket_bytes:
            ddp.wait()
        step()
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(seen)


def _batches():
    """Three batches of twelve, which one, two, three and four ranks share evenly."""
    dice = torch.Generator().manual_seed(0)
    draw = lambda: (torch.randn(12, 16, generator=dice).double(), torch.randint(16, (12,), generator=dice))
    return [draw() for _ in range(3)]


@pytest.fixture(scope="module")
def one_process():
    """The weights after each step of one process on the whole batches."""
    torch.manual_seed(0)
    model = replicas.Net()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2, momentum=0.9)
    seen = []
    for inputs, targets in _batches():
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(seen)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_buckets_of_lesson_12_train_what_one_process_trains_at_every_step(world_size, one_process):
    """The ranks draw different weights first, so a forgotten broadcast would show."""
    sizes = (1, 3000, 10**6)
    ranks = run_ranks(lambda: [_averaged(bucket_bytes) for bucket_bytes in sizes], world_size, devices="cpu")
    for runs in ranks:
        for weights, those_of_rank_0 in zip(runs, ranks[0], strict=True):
            assert torch.equal(weights, those_of_rank_0)
            torch.testing.assert_close(weights, one_process, rtol=0, atol=1e-13)


def test_the_buckets_of_lesson_12_train_what_torchs_ddp_trains_at_every_step(one_process):
    for theirs, ours in run_ranks(lambda: [_averaged(0), _averaged(3000)], 2, devices="cpu"):
        assert torch.equal(ours, theirs)  # two numbers have one sum, whatever their order
        torch.testing.assert_close(theirs, one_process, rtol=0, atol=1e-13)


def _backward_of(world_size):
    """The loss and the gradient of lesson 12's tokens where this process has every world_size-th micro-batch."""
    dice = torch.Generator().manual_seed(0)
    rank = dist.get_rank() if world_size > 1 else 0
    torch.manual_seed(1)
    model = torch.nn.Linear(6, 5).double()
    batches = []
    for n in range(6):
        inputs, targets = torch.randn(2, 8, 6, generator=dice).double(), torch.randint(5, (2, 8), generator=dice)
        targets[:, 8 - n :] = -100
        batches.append((inputs, targets))
    loss = tokens.token_mean_backward(model, batches[rank::world_size])
    return loss, model.weight.grad


def test_the_token_mean_of_lesson_12_is_the_cross_entropy_of_all_tokens():
    (loss, gradient), *_ = run_ranks(_backward_of, 1, 1, devices="cpu")
    dealt = run_ranks(_backward_of, 3, 3, devices="cpu")
    for each, its_gradient in dealt:
        assert each == pytest.approx(loss, rel=1e-14)
        torch.testing.assert_close(its_gradient, gradient, rtol=0, atol=1e-15)
