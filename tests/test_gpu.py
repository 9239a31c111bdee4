"""What only a GPU can show of labkit's own code; `make gpu-check` runs these, with torch, NumPy and pytest at hand."""

import math

import pytest
import torch

from labkit import hardware, measure, models, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_the_tier_and_the_device_are_those_of_a_gpu():
    assert hardware.tier() in ("gpu", "gpu2")
    assert hardware.device() == "cuda"
    assert hardware.machine().gpus


def test_a_run_on_the_gpu_learns_what_it_learns_on_the_cpu():
    """Ten steps of the ResNet from the same weights and batches; the sums are in another order, no more."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 1, 24, 24, generator=generator), torch.randint(32, (256,), generator=generator)
    losses = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = models.resnet().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batches = train.shuffled(x.to(device), y.to(device), batch_size=64, seed=0)
        history = train.fit(model, batches, n_steps=10, optimizer=optimizer, lr=train.constant(0.1, 10))
        losses[device] = history.losses
    assert losses["cuda"][:3] == pytest.approx(losses["cpu"][:3], rel=2e-2)  # TF32 in convolutions
    assert losses["cuda"][-1] < losses["cuda"][0]


def test_text_batches_are_drawn_on_the_gpu():
    tokens = torch.arange(1000, device="cuda") % 50
    inputs, targets = next(train.windows(tokens, batch_size=4, context=8, seed=0))
    assert inputs.device.type == "cuda"
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_seconds_of_a_run_wait_for_the_gpu():
    """A step that only queues work would be over in microseconds; the history counts until the work is done."""
    big = torch.randn(8192, 8192, device="cuda")
    model = torch.nn.Linear(8, 4).cuda()
    batches = train.shuffled(torch.randn(64, 8).cuda(), torch.zeros(64, dtype=torch.long).cuda(), batch_size=8, seed=0)

    def heavy(model, inputs, targets, optimizer):
        for _ in range(20):
            torch.mm(big, big)
        return train.train_step(model, inputs, targets, optimizer)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluate = lambda model: train.score(model, torch.randn(8, 8).cuda(), torch.zeros(8, dtype=torch.long).cuda())
    options = {"n_steps": 5, "optimizer": optimizer, "lr": train.constant(0.1, 5), "evaluate": evaluate}
    history = train.fit(model, batches, step=heavy, **options)
    least_s = 5 * 20 * 2 * 8192**3 / 2e15  # no GPU yet multiplies 2 PFLOP/s in fp32
    assert history.eval_wall_s[-1] > least_s
    assert math.isfinite(history.losses[-1])


def test_cuda_events_wait_for_the_work():
    x = torch.randn(4096, 4096, device="cuda")
    result = measure.bench({"matmul": lambda: x @ x}, device="cuda", repeats=5)
    least_s = 2 * 4096**3 / 2e15
    assert result.median_s["matmul"] > least_s
    assert measure.peak_memory_bytes(lambda: x @ x) >= x.nbytes
