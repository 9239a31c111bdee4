"""Optimizers as a plan names them: what fused ones keep and move, beside those that take all tensors at once."""

import pytest
import torch

from labkit import live, lm
from labkit.optimizers import Optimizer
from labkit.states import Plan
from labkit.verify_grid import llama_style

ARCH = llama_style(vocab=64, width=32, layers=1)


def _trained(plan, steps=3):
    """The weights after some steps, and the optimizer."""
    torch.manual_seed(0)
    model = lm.build(ARCH)
    if plan.precision in ("bf16", "mixed"):
        model = model.bfloat16()
    optimizer = Optimizer(model, plan)
    tokens = torch.randint(0, ARCH.vocab, (2, 9))
    for _ in range(steps):
        lm.train_step(model, optimizer, tokens)
    return [p.detach().float() for p in model.parameters()], optimizer


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "mixed", "mixed-fp32-grads"])
def test_a_fused_optimizer_moves_the_weights_where_the_usual_one_does(precision, optimizer):
    usual, fused = (_trained(Plan(precision=precision, optimizer=optimizer, fused=each))[0] for each in (False, True))
    start = _trained(Plan(precision=precision), steps=0)[0]
    # In 16 bits the two round at other places, by up to a step of this size.
    near = {"rtol": 1e-5, "atol": 1e-6} if precision == "fp32" else {"rtol": 2e-2, "atol": 4e-3}
    lost = precision == "bf16" and optimizer in ("sgd", "momentum")  # updates too small for 16 bits
    assert lost == all(torch.equal(before, b) for before, b in zip(start, fused, strict=True))
    for a, b in zip(usual, fused, strict=True):
        torch.testing.assert_close(a, b, **near)


def test_mixed_precision_widens_one_gradient_at_a_time_and_keeps_the_16_bit_ones():
    _, optimizer = _trained(Plan(fused=True))
    assert all(weight.grad.dtype is torch.bfloat16 for weight in optimizer.weights)
    assert all(master.grad is None for master in optimizer.masters)
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in optimizer.weights)


@pytest.mark.parametrize(("precision", "saved"), [("fp32", 4), ("bf16", 2), ("mixed", 6)])
def test_a_fused_step_makes_nothing_of_the_size_of_all_parameters(precision, saved):
    arch = llama_style(vocab=64, width=128, layers=4)
    n = sum(p.numel() for p in lm.build(arch).parameters())
    plans = [Plan(precision=precision, batch=1, seq=8, fused=fused) for fused in (False, True)]
    usual, fused = (live.training_peak(arch, plan).phases["optimizer step"] for plan in plans)
    one = 4 * arch.width * arch.hidden if precision == "mixed" else 0
    assert usual - fused == pytest.approx(saved * n - one, rel=0.02)


def test_adafactor_is_not_fused():
    with pytest.raises(ValueError, match="Adafactor has no fused kernel"):
        Plan(optimizer="adafactor", fused=True)
