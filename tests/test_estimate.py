"""The estimate of a whole step: its parts, what makes it larger and smaller, and models that are not a preset."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import lm
from labkit.architecture import Architecture
from labkit.estimate import OVERHEAD, estimate
from labkit.presets import PRESETS, preset
from labkit.states import Plan, states

SMALL = Architecture(
    name="small", vocab=640, width=64, layers=4, heads=4, kv_heads=4, head_width=16, hidden=256, gated=False,
    norm="layer", context=256, positions=256, tied=True, qkv_bias=True, out_bias=True, mlp_bias=True,
)  # fmt: skip
PLANS = st.builds(
    Plan,
    precision=st.sampled_from(("fp32", "bf16", "mixed", "mixed-fp32-grads", "autocast")),
    optimizer=st.sampled_from(("sgd", "momentum", "adam", "muon", "adam-8bit")),
    batch=st.integers(1, 8),
    seq=st.integers(1, 256),
    zero=st.integers(0, 3),
    ranks=st.just(8),
    recompute=st.sampled_from(("none", "selective", "full")),
    attention=st.sampled_from(("flash", "math")),
    lora=st.sampled_from((0, 4)),
)


def total(arch, plan: Plan) -> int:
    """The tensors' bytes at the peak."""
    return estimate(arch, plan, overhead=False).total_bytes


@settings(deadline=None, max_examples=15)
@given(plan=PLANS)
def test_more_tokens_never_take_less(plan):
    assert total(SMALL, plan) <= total(SMALL, replace(plan, batch=plan.batch + 1))
    assert total(SMALL, replace(plan, seq=plan.seq // 2 + 1)) <= total(SMALL, plan)


@settings(deadline=None, max_examples=15)
@given(plan=PLANS)
def test_the_parts_add_up_and_the_peak_is_the_largest_phase(plan):
    found = estimate(SMALL, plan)
    parts = ("parameters", "gradients", "optimizer", "activations", "logits", "overhead")
    assert found.total_bytes == sum(getattr(found, f"{part}_bytes") for part in parts)
    assert found.total_bytes == max(found.phases.values()) == found.phases[found.phase]
    assert found.overhead_bytes > sum(OVERHEAD.values())


@settings(deadline=None, max_examples=15)
@given(plan=PLANS)
def test_splitting_among_more_ranks_never_takes_more(plan):
    shared = replace(plan, zero=max(plan.zero, 1))
    assert total(SMALL, replace(shared, ranks=16)) <= total(SMALL, shared)
    assert total(SMALL, replace(shared, tp=2, ranks=16)) <= total(SMALL, shared)


@pytest.mark.parametrize("seq", [64, 1024])
def test_each_stage_of_zero_takes_less_and_so_does_recomputation(seq):
    arch = preset("llama-3-8b")
    by_stage = [total(arch, Plan(zero=stage, ranks=64, seq=seq)) for stage in range(4)]
    assert by_stage == sorted(by_stage, reverse=True)
    assert len(set(by_stage)) == 4
    long = Plan(optimizer="sgd", precision="bf16", seq=8192, attention="math", batch=4)
    kept = [total(arch, replace(long, recompute=how)) for how in ("none", "selective", "full")]
    assert kept[0] > kept[1] > kept[2]


def test_a_pipeline_reports_the_stage_that_needs_most():
    arch = preset("llama-2-7b")
    plan = Plan(ranks=4, pp=4, micro_batches=8, seq=4096, optimizer="sgd", precision="bf16")
    assert estimate(arch, plan).stage == 0, "the first stage holds four micro-batches"
    assert estimate(preset("llama-3.2-1b"), replace(plan, micro_batches=1)).stage == 3, "logits are on the last"
    four, one = (total(arch, replace(plan, micro_batches=n)) for n in (8, 1))
    assert four > one


def test_of_a_bare_number_only_the_states_are_known():
    found = estimate(7_500_000_000, Plan(), overhead=False)
    assert found.total_bytes == states(7_500_000_000, Plan()).total_bytes == 120_000_000_000
    assert found.activations_bytes == found.logits_bytes == found.overhead_bytes == 0


def test_a_module_is_run_without_data_and_takes_what_the_form_says_of_its_sizes():
    plan = Plan(precision="fp32", batch=4, seq=128)
    module = lm.build(SMALL)
    kept = {name: p.clone() for name, p in module.named_parameters()}
    found = estimate(module, plan, overhead=False)
    assert found.total_bytes == pytest.approx(total(SMALL, plan), rel=0.002)
    assert all(p.grad is None and p.equal(kept[name]) for name, p in module.named_parameters())
    sharded = estimate(module, replace(plan, zero=3, ranks=4), overhead=False)
    rest = [states(SMALL, each).optimizer_bytes for each in (plan, replace(plan, zero=3, ranks=4))]
    assert found.optimizer_bytes - sharded.optimizer_bytes == pytest.approx(rest[0] - rest[1], abs=100)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_an_estimate_in_every_phase(name):
    arch = preset(name)
    found = estimate(arch, Plan(seq=min(arch.context, 2048)))
    assert all(each > 0 for each in found.phases.values())
    assert found.total_bytes > states(arch, Plan(seq=1)).total_bytes


def test_transformers_is_an_implementation_of_its_own():
    arch, plan = preset("llama-3.2-1b"), Plan(precision="fp32", optimizer="sgd", batch=4)
    ours, theirs = (estimate(arch, plan, implementation=which) for which in ("labkit", "transformers"))
    assert ours.total_bytes != theirs.total_bytes
    with pytest.raises(ValueError, match='not "?.?jax'):
        estimate(arch, plan, implementation="jax")


@pytest.mark.parametrize("model", ["gpt2", None, 1.5])
def test_what_is_no_model_gets_a_sentence(model):
    with pytest.raises(ValueError, match="a model is an Architecture"):
        estimate(model, Plan())
