"""Live bytes at a step's peak: counted by hand where they can be, and the same with and without data."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from labkit import live, lm
from labkit.optimizers import Optimizer
from labkit.states import Plan
from labkit.verify_grid import llama_style


def _training(width: int = 64, rows: int = 32):
    """A step of two linear layers, run once, and what it is made of."""
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(rows, width)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).sum().backward()
        optimizer.step()

    step()
    return step, model, optimizer, x


def test_the_peak_of_two_layers_is_what_one_counts_by_hand():
    with live.fake():
        step, *tracked = _training()
        found = live.peak(step, *tracked)
    p, x = 4 * 2 * 64 * 64, 4 * 32 * 64
    # Parameters, gradients, two averages, and the square root of the second one; x; a counter for each matrix.
    assert found.phase == "optimizer step"
    assert found.total_bytes == pytest.approx(5 * p + x, abs=100)
    assert sum(found.by_category.values()) == found.total_bytes
    assert found.by_category["parameters"] == p
    assert found.by_category["gradients"] == p


def test_large_activations_move_the_peak_into_the_backward_pass():
    with live.fake():
        step, *tracked = _training(rows=4096)
        found = live.peak(step, *tracked)
    assert found.phase.startswith("backward")
    assert found.by_category["activations"] >= 4 * 4096 * 64  # x is ours, the ReLU keeps its output
    assert found.total_bytes == max(found.phases.values())


def test_fake_tensors_and_real_ones_have_the_same_bytes():
    with live.fake():
        step, *tracked = _training()
        without_data = live.peak(step, *tracked)
    step, *tracked = _training()
    assert live.peak(step, *tracked).phases == without_data.phases


def test_what_is_not_named_is_not_counted():
    with live.fake():
        step, model, optimizer, x = _training()
        assert live.peak(step, model, optimizer, x).total_bytes > live.peak(step, model).total_bytes


@pytest.mark.parametrize("use_cache", [True, False], ids=["with its cache", "without"])
def test_a_module_of_transformers_has_the_peak_of_its_step_with_data(use_cache):
    """Masks that only a step without data would write out are not counted; what transformers does is put back."""
    pytest.importorskip("transformers")
    import hugging_face
    from transformers import masking_utils

    looks, seq = masking_utils.find_packed_sequence_indices, 512
    plan = Plan(precision="fp32", batch=2, seq=seq)
    module = hugging_face.build(llama_style(vocab=64, width=64), plan)
    module.config.use_cache = use_cache
    found = live.module_peak(module, plan)
    optimizer, tokens = Optimizer(module, plan), torch.zeros(2, seq + 1, dtype=torch.int64)
    step = lambda: lm.train_step(module, optimizer, tokens)
    step()
    measured = live.peak(step, module, *optimizer.inner, tokens)
    # Positions, of which one of the two holds some a moment longer.
    assert found.total_bytes == pytest.approx(measured.total_bytes, abs=3 * 8 * seq)
    assert seq * seq * 2 > 3 * 8 * seq, "a mask would show"
    assert masking_utils.find_packed_sequence_indices is looks


def test_a_module_is_run_without_importing_transformers():
    code = "import sys; from torch import nn; from labkit import live; from labkit.states import Plan; "
    code += "model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8)); "
    code += "live.module_peak(model, Plan(batch=1, seq=4)); assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
