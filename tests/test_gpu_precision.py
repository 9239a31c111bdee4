"""What only a GPU can show of formats and loss scaling; `make gpu-check` runs these, with torch and pytest at hand."""

import copy

import pytest
import torch
from torch import nn

from labkit import formats, models, precision, train

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def same(one, other):
    """Equal, any NaN equal to any other."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


@pytest.mark.parametrize("fmt", formats.FORMATS.values(), ids=lambda fmt: fmt.name)
def test_rounding_on_the_gpu_is_that_of_the_cpu(fmt):
    """A million patterns of fp32, subnormal numbers among them, which some fast modes flush to zero."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2**20,), generator=generator).to(torch.int32)
    bits[: 2**16] = torch.arange(2**16, dtype=torch.int32) * 128  # the smallest numbers
    x = bits.view(torch.float32)
    assert same(formats.round_to(x.to(DEVICE), fmt).cpu(), formats.round_to(x, fmt))
    block = torch.randn(64, 128, generator=generator)
    for scales in ("fp32", "e8m0", "e4m3"):
        there = formats.scaled_round(block.to(DEVICE), fmt, block=32, scales=scales).cpu()
        assert torch.equal(there, formats.scaled_round(block, fmt, block=32, scales=scales))


def test_the_scaler_skips_and_grows_as_torchs_does_on_the_gpu():
    ours = precision.LossScaler(scale=2.0**100, growth_interval=2)
    theirs = torch.amp.GradScaler(DEVICE, init_scale=2.0**100, growth_interval=2)
    one, other = (nn.Parameter(torch.tensor([1.0], device=DEVICE)) for _ in range(2))
    first, second = torch.optim.SGD([one], lr=0.5), torch.optim.SGD([other], lr=0.5)
    for gradient in (1.0, 1e30, 1.0, 1.0, 0.5):
        one.grad = other.grad = None
        ours.scale_loss((one * gradient).sum()).backward()
        ours.step(first)
        theirs.scale((other * gradient).sum()).backward()
        theirs.step(second)
        theirs.update()
        assert (one.item(), ours.scale) == (other.item(), theirs.get_scale())


def test_emulated_fp16_is_near_real_fp16():
    torch.manual_seed(0)
    model = models.convnet().to(DEVICE)
    x, y = torch.randn(32, 1, 24, 24, device=DEVICE), torch.arange(32, device=DEVICE)
    real = copy.deepcopy(model)
    step = precision.mixed_step(torch.float16, precision.LossScaler(scale=1024.0))
    loss = step(real, x, y, torch.optim.SGD(real.parameters(), lr=0.1))
    emulated = precision.emulate(copy.deepcopy(model), formats.FP16)
    near = train.train_step(emulated, x, y, torch.optim.SGD(emulated.parameters(), lr=0.1))
    assert loss.item() == pytest.approx(near.item(), rel=0.02)
    with torch.no_grad():
        assert (real(x) - emulated(x)).norm() < 0.05 * (real(x) - model(x)).norm() + 0.02 * real(x).norm()
