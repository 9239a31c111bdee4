"""Exercise 6.3's check: what a learner may rightly write in other words than the course."""

import pytest
import torch
from torch.nn import functional

from labkit import compilation
from labkit.checker import find, generator_for, verdict


def unbroken_by_clamping_the_divisor(x, y):
    h = x * y
    h = h / h.abs().amax().clamp(min=1)
    return functional.relu(h).sum(dim=0), torch.mean(h)


def unbroken_by_cond(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.cond(largest > 1, lambda h, by: h / by, lambda h, _: h.clone(), (h, largest))
    return torch.clamp(h, min=0).sum(), h.mean()


def unbroken_by_multiplying(x, y):
    h = torch.mul(x, y)
    h /= torch.maximum(h.abs().max(), torch.ones(()))
    return [(h * (h > 0)).sum(), h.sum() / len(h)]


def unbroken_in_double(x, y):
    h = x.double() * y.double()
    largest = torch.linalg.vector_norm(h, ord=float("inf"))
    h = torch.where(largest > 1, h / largest, h)
    return torch.where(h > 0, h, 0.0).sum(), h.mean()


WAYS = (unbroken_by_clamping_the_divisor, unbroken_by_cond, unbroken_by_multiplying, unbroken_in_double)


@pytest.mark.parametrize("fn", WAYS, ids=lambda fn: fn.__name__)
def test_another_right_answer_passes(fn):
    exercise = find("unbroken")
    found = verdict(fn, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)
    assert found.status == "passed", found.message


@pytest.mark.parametrize("name", ["capture_scalar_outputs", "capture_dynamic_output_shape_ops"])
def test_what_a_cell_above_allowed_decides_nothing(name):
    compilation.prepare()

    def unbroken(x, y):
        h = x * y
        h = h / h.abs().max().clamp(min=1)
        if name == "capture_scalar_outputs":
            return h.relu().sum(), torch.tensor(h.mean().item())
        return h[h > 0].sum(), h.mean()

    exercise = find("unbroken")
    with torch._dynamo.config.patch({name: True}):
        found = verdict(unbroken, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)
    assert "not in the way asked for" in found.message
    assert "breaks at" in found.message
