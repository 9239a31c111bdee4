"""The loss scaler against torch's own, a step under autocast against the plain one, and emulation against real fp16."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labkit import checker, models, precision, train
from labkit.formats import BF16, E2M1, E4M3, FP16, scaled_round
from labkit.precision import LossScaler


def a_weight():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    return weight, torch.optim.SGD([weight], lr=0.5)


def fed(scaler, optimizer, weight, gradient, unscale_first):
    """One step of labkit's scaler with a loss whose gradient is `gradient`; weights and scale afterwards."""
    optimizer.zero_grad()
    scaler.scale_loss((weight * torch.tensor(gradient)).sum()).backward()
    if unscale_first:
        scaler.unscale(optimizer)
    scaler.step(optimizer)
    return weight.tolist(), scaler.scale


def fed_to_torch(scaler, optimizer, weight, gradient, unscale_first):
    """The same step by torch."""
    optimizer.zero_grad()
    scaler.scale((weight * torch.tensor(gradient)).sum()).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return weight.tolist(), scaler.get_scale()


GRADIENTS = st.sampled_from([[0.5, 0.25], [1.0, -1.0], [float("inf"), 0.0], [0.0, float("nan")], [1e30, 1.0]])


@given(steps=st.lists(st.tuples(GRADIENTS, st.booleans()), max_size=30), start=st.integers(-2, 110))
@settings(max_examples=60, deadline=None)
def test_the_scaler_does_what_torchs_does(steps, start):
    """Growth, back-off, skipped steps, inf and NaN, at small scales and at ones whose products overflow."""
    options = {"growth_factor": 2.0, "backoff_factor": 0.25, "growth_interval": 3}
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**start, **options)
    ours = LossScaler(scale=2.0**start, growth=2.0, backoff=0.25, growth_interval=3)
    one, other = a_weight(), a_weight()
    for gradient, unscale_first in steps:
        mine = fed(ours, one[1], one[0], gradient, unscale_first)
        assert mine == fed_to_torch(theirs, other[1], other[0], gradient, unscale_first)


def test_a_scale_never_grows_to_infinity():
    weight, optimizer = a_weight()
    scaler = LossScaler(scale=2.0**1023, growth_interval=1)
    weight.grad = torch.zeros(2)
    assert scaler.step(optimizer)
    assert scaler.scale == 2.0**1023


def test_step_says_whether_it_stepped_and_unscale_works_once():
    weight, optimizer = a_weight()
    scaler = LossScaler(scale=8.0)
    weight.grad = torch.tensor([8.0, 16.0])
    scaler.unscale(optimizer)
    scaler.unscale(optimizer)
    assert weight.grad.tolist() == [1.0, 2.0]
    assert scaler.step(optimizer)
    assert weight.tolist() == [0.5, -3.0]
    weight.grad = torch.tensor([torch.inf, 0.0])
    assert not scaler.step(optimizer)
    assert (weight.tolist(), scaler.scale) == ([0.5, -3.0], 4.0)


def test_a_scaler_serves_one_optimizer():
    weight, optimizer = a_weight()
    scaler = LossScaler(scale=8.0)
    weight.grad = torch.tensor([8.0, 16.0])
    scaler.unscale(optimizer)
    for use in (scaler.unscale, scaler.step):
        with pytest.raises(ValueError, match="serves one optimizer"):
            use(a_weight()[1])
    assert scaler.step(optimizer)


class _Fair(LossScaler):
    """The right scaler, one of the many ways to write it."""

    def gradients(self, optimizer):
        return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


class _Foreach(_Fair):
    def unscale(self, optimizer):
        if not self.unscaled:
            torch._foreach_mul_(self.gradients(optimizer), 1 / self.scale)
        self.unscaled = True


class _Mul(_Fair):
    def unscale(self, optimizer):
        for gradient in [] if self.unscaled else self.gradients(optimizer):
            gradient.mul_(1.0 / self.scale)
        self.unscaled = True


class _NewGradients(_Fair):
    def unscale(self, optimizer):
        for p in [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]:
            p.grad = p.grad if self.unscaled else p.grad / self.scale
        self.unscaled = True


class _BySum(_Fair):
    def scale_loss(self, loss):
        return self.scale * loss.float()

    def step(self, optimizer):
        self.unscale(optimizer)
        self.unscaled = False
        finite = torch.isfinite(sum(gradient.sum() for gradient in self.gradients(optimizer)))
        if not finite:
            self.scale, self.good_steps = self.backoff * self.scale, 0
            return finite
        optimizer.step()
        self.good_steps += 1
        if self.good_steps % self.growth_interval == 0:
            self.scale = torch.as_tensor(self.scale * self.growth)
        return finite


@pytest.mark.parametrize("fair", [_Foreach, _Mul, _NewGradients, _BySum])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_exercise_passes_every_fair_way_to_write_it(fair, seed):
    exercise = checker.find("LossScaler")
    found = checker.verdict(fair, exercise, generator=checker.generator_for(exercise, seed), time_limit_s=60.0)
    assert found.status == "passed", found.message


@pytest.fixture
def task():
    """A small network and a batch for it."""
    torch.manual_seed(0)
    images = torch.randn(16, 1, 24, 24)
    return models.convnet(), images, torch.arange(16)


def stepped(model, step, images, targets):
    """(loss, weights) after one step of a copy of the model."""
    model = copy.deepcopy(model)
    loss = step(model, images, targets, torch.optim.SGD(model.parameters(), lr=0.1))
    return loss, nn.utils.parameters_to_vector(model.parameters()).detach()


def test_without_a_dtype_it_is_the_plain_step(task):
    plain = stepped(task[0], train.train_step, *task[1:])
    for scaler in (None, LossScaler()):
        loss, weights = stepped(task[0], precision.mixed_step(None, scaler), *task[1:])
        assert loss == plain[0]
        torch.testing.assert_close(weights, plain[1], rtol=1e-6, atol=1e-7)


def test_under_autocast_the_loss_is_near_and_weights_stay_float32(task):
    loss, weights = stepped(task[0], train.train_step, *task[1:])
    near, mixed = stepped(task[0], precision.mixed_step(torch.bfloat16), *task[1:])
    assert near.dtype == mixed.dtype == torch.float32
    assert loss != near == pytest.approx(loss.item(), rel=0.05)
    assert 0 < (mixed - weights).norm() < 0.1 * (weights - nn.utils.parameters_to_vector(task[0].parameters())).norm()


@pytest.mark.parametrize(("to", "dtype"), [(FP16, torch.float16), (BF16, torch.bfloat16)])
def test_emulation_is_near_the_real_format(task, to, dtype):
    model, images, targets = task
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    real = stepped(model, precision.mixed_step(dtype), images, targets)
    exact = stepped(model, train.train_step, images, targets)
    emulated = stepped_emulated(model, to, images, targets)
    assert emulated[0] == pytest.approx(real[0].item(), rel=20 * to.epsilon)
    moved = (real[1] - before).norm()
    assert (emulated[1] - real[1]).norm() < 20 * to.epsilon * moved
    assert (emulated[1] - exact[1]).norm() > 0


def stepped_emulated(model, to, images, targets):
    """`stepped`, for the emulated model; its weights in the order of the plain one."""
    changed = precision.emulate(copy.deepcopy(model), to)
    loss = train.train_step(changed, images, targets, torch.optim.SGD(changed.parameters(), lr=0.1))
    names = [name for name, _ in model.named_parameters()]
    held = dict(changed.named_parameters())
    plain = [held[re.sub(r"(\w+)$", r"parametrizations.\1.original", name)] for name in names]
    return loss, nn.utils.parameters_to_vector(plain).detach()


def test_emulated_layers_see_and_give_numbers_of_the_format():
    torch.manual_seed(0)
    layer = nn.Linear(8, 4)
    changed = precision.emulate(nn.Sequential(copy.deepcopy(layer)), FP16)
    x = torch.randn(3, 8, requires_grad=True)
    out = changed(x)
    out.sum().mul(1e-9).backward()
    assert torch.equal(out, out.half().float())
    assert torch.equal(changed[0].weight, layer.weight.half().float())
    assert not x.grad.any(), "a gradient of 1e-9 is zero in fp16"


def test_emulate_says_which_layer_it_cannot_round():
    changed = precision.emulate(nn.Sequential(nn.LSTM(8, 4)), FP16)
    with pytest.raises(TypeError, match="LSTM is given or returns a tuple"):
        changed(torch.randn(3, 8))


def test_the_gradients_that_flow_back_are_those_of_every_layers_output():
    layer = nn.Linear(3, 2)
    model = nn.Sequential(layer, nn.ReLU())
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    middle = layer(x).detach().requires_grad_()
    out = middle.relu()
    out.retain_grad()
    train.mean_cross_entropy(out, y).backward()
    flowing = precision.gradients_of(model, x, y)
    expected = torch.cat([out.grad.flatten(), middle.grad.flatten()])
    torch.testing.assert_close(flowing.sort().values, expected.sort().values)
    model(x).sum().backward()
    assert len(flowing) == 20, "the hooks are gone"


@pytest.mark.parametrize(("to", "block", "scales"), [(E4M3, None, "fp32"), (E2M1, 32, "e8m0"), (E2M1, 16, "e4m3")])
def test_weights_are_rounded_row_by_row_in_a_copy(task, to, block, scales):
    model = task[0]
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    back = precision.rounded_weights(model, to, block=block, scales=scales)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    wide, narrow = model[-1].weight, back[-1].weight  # rows of 128: nothing is padded
    assert torch.equal(narrow, scaled_round(wide.detach(), to, block=block, scales=scales))
    first = (model[0].weight - back[0].weight).abs()  # rows of 9
    assert 0 < first.max() < 0.5 * model[0].weight.abs().max()
    assert torch.equal(back[0].bias, model[0].bias)
