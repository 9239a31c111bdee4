"""Bytes at rest: by hand, by what torch keeps on one process, and by what real ranks keep."""

from dataclasses import replace
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labkit.architecture import count, weights
from labkit.presets import PRESETS, preset
from labkit.ranks import run_ranks
from labkit.states import OPTIMIZERS, PRECISIONS, Plan, held, states

GPT2 = preset("gpt2")
LLAMA = preset("llama-3.2-1b")
SHAPES = [(10, 7), (10,), (7, 10), (3, 3, 5), (1,), (50, 7)]
N = sum(torch.Size(shape).numel() for shape in SHAPES)


def kept_bytes(optimizer):
    """What an optimizer keeps, its step counters left out."""
    tensors = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    return sum(each.nbytes for each in tensors if torch.is_tensor(each))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adafactor"])
def test_one_process_keeps_what_torchs_optimizers_keep(name, dtype):
    makers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.AdamW(p, lr=0.1),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    }
    to = torch.float32 if dtype == "fp32" else torch.bfloat16
    parameters = [nn.Parameter(torch.ones(shape, dtype=to)) for shape in SHAPES]
    for each in parameters:
        each.grad = torch.ones_like(each)
    optimizer = makers[name](parameters)
    optimizer.step()
    found = states(SHAPES, Plan(precision=dtype, optimizer=name))
    assert found.parameters_bytes == found.gradients_bytes == sum(each.nbytes for each in parameters)
    assert found.optimizer_bytes == kept_bytes(optimizer)


def test_muon_keeps_momentum_for_the_blocks_matrices_and_two_averages_for_the_rest():
    arch = replace(GPT2, layers=2, width=8, heads=2, kv_heads=2, head_width=4, hidden=12, vocab=30, positions=16)
    kinds = [(weight, nn.Parameter(torch.ones(weight.shape))) for weight in weights(arch) for _ in range(weight.times)]
    matrices = [p for weight, p in kinds if weight.per_layer and len(weight.shape) == 2]
    others = [p for weight, p in kinds if not (weight.per_layer and len(weight.shape) == 2)]
    optimizers = [torch.optim.Muon(matrices, lr=0.1), torch.optim.AdamW(others, lr=0.1)]
    for _, each in kinds:
        each.grad = torch.ones_like(each)
    for optimizer in optimizers:
        optimizer.step()
    plan = Plan(precision="fp32", optimizer="muon", seq=16)
    assert states(arch, plan).optimizer_bytes == sum(map(kept_bytes, optimizers))


def test_adam_in_8_bits_has_a_scale_for_256_elements_and_leaves_small_tensors_alone():
    large, small = (300, 300), (4095,)
    scales = ceil(90_000 / 256)
    found = states([large, small], Plan(optimizer="adam-8bit", precision="fp32"))
    assert found.optimizer_bytes == 2 * (90_000 + 4 * scales + 4 * 4095)


# ---- real ranks -----------------------------------------------------------------------------------------------------


def small_model():
    """Layers that neither 2 nor 4 ranks divide evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 10), nn.GELU(), nn.Linear(10, 9), nn.GELU(), nn.Linear(9, 5, bias=False))


MODEL_SHAPES = [tuple(p.shape) for p in small_model().parameters()]


def at_rest(kind):
    """Bytes that this rank keeps after a step of AdamW: parameters, gradients, optimizer; storages counted once."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel as DDP

    def local(tensor):
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    def held_bytes(tensors):
        storages = {local(each).untyped_storage() for each in tensors}
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())

    model = small_model()
    if kind == "fsdp":
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    else:
        model = DDP(model, gradient_as_bucket_view=True)
    if kind == "zero1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 7) * (1 + dist.get_rank())).square().sum().backward()
    optimizer.step()
    inner = getattr(optimizer, "optim", optimizer)
    moments = [value for state in inner.state.values() for key, value in state.items() if key != "step"]
    gradients = [p.grad for p in model.parameters()]
    return held_bytes(model.parameters()), held_bytes(gradients), held_bytes(moments)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("ddp", {}),
        ("zero1", {"zero": 1, "layout": "whole"}),
        ("fsdp", {"zero": 3, "layout": "rows"}),
    ],
)
def test_real_ranks_keep_what_the_closed_form_says(kind, plan, world_size):
    found = run_ranks(at_rest, world_size, kind)
    expected = states(MODEL_SHAPES, Plan(precision="fp32", ranks=world_size, **plan))
    largest = tuple(max(rank[part] for rank in found) for part in range(3))
    assert largest == (expected.parameters_bytes, expected.gradients_bytes, expected.optimizer_bytes)


# ---- properties -----------------------------------------------------------------------------------------------------

plans = st.builds(
    lambda **options: Plan(**options),
    precision=st.sampled_from(sorted(PRECISIONS)),
    optimizer=st.sampled_from([name for name in OPTIMIZERS if name != "adafactor"]),
    ranks=st.sampled_from([8, 16]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    lora=st.sampled_from([0, 4]),
    layout=st.sampled_from(["flat", "rows"]),
)


@given(plan=plans, stage=st.integers(0, 2))
def test_a_higher_zero_stage_never_keeps_more(plan, stage):
    totals = [states(LLAMA, replace(plan, zero=zero)) for zero in (stage, stage + 1)]
    assert totals[0].total_bytes >= totals[1].total_bytes
    assert totals[0].parameters_bytes >= totals[1].parameters_bytes


@given(plan=plans)
def test_tensor_and_pipeline_ranks_hold_every_weight_once_and_what_is_whole_on_each(plan):
    plan = replace(plan, lora=0)
    copies = sum(each.total for stage in range(plan.pp) for each in held(LLAMA, plan, stage))
    whole = sum(weight.total for weight in weights(LLAMA) if weight.split is None)
    tied_again = LLAMA.vocab * LLAMA.width // plan.tp if plan.pp > 1 else 0
    assert (copies - tied_again) * plan.tp == count(LLAMA) + (plan.tp - 1) * whole


@pytest.mark.parametrize("arch", [GPT2, LLAMA, PRESETS["mixtral-8x7b"]], ids=lambda arch: arch.name)
def test_without_splits_every_parameter_is_held_once(arch):
    assert sum(each.total for each in held(arch, Plan())) == count(arch)
    assert states(arch, Plan(seq=8)) == states(count(arch), Plan(seq=8))


def test_adapters_train_and_their_base_is_frozen_in_16_or_4_bits():
    arch, rank = preset("llama-2-7b"), 16
    matrices = 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
    adapters = rank * matrices
    found = states(arch, Plan(lora=rank, precision="mixed"))
    assert found.gradients_bytes == 2 * adapters
    assert found.optimizer_bytes == 12 * adapters
    assert found.parameters_bytes == 2 * (count(arch) + adapters)
    blocks = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    quantised = states(arch, Plan(lora=rank, base_bits=4)).parameters_bytes
    bits = 8 * (quantised - 2 * (count(arch) - blocks + adapters)) / blocks
    assert bits == pytest.approx(4.127, abs=0.001)  # QLoRA, section 3: 0.127 bits a parameter for the scales


def test_parts_of_huge_models_are_exact():
    n = 2**53 + 1  # a float has no such number
    assert states(n, Plan(precision="fp32", optimizer="sgd")).parameters_bytes == 4 * n


def test_hsdp_splits_one_copy_among_some_ranks_only():
    whole, some = (states(LLAMA, Plan(zero=3, ranks=16, shard_ranks=n)).total_bytes for n in (0, 4))
    assert some == pytest.approx(4 * whole, rel=1e-6)


def test_a_second_copy_of_gradients_in_buckets_is_ddps_alone():
    once, twice = (states(100, Plan(ranks=2, bucket_view=view)).gradients_bytes for view in (True, False))
    assert (once, twice) == (200, 400)
    assert states(100, Plan(bucket_view=False)).gradients_bytes == 200  # one process has no buckets
    assert states(100, Plan(ranks=2, zero=2, bucket_view=False)).gradients_bytes == 100


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"precision": "fp8"}, "precision is 'fp8', and must be one of fp32, bf16, mixed"),
        ({"zero": 4}, "zero is 4, and must be one of 0, 1, 2, 3"),
        ({"zero": True}, "zero is True, and must be one of 0, 1, 2, 3"),
        ({"ranks": 0}, "ranks is 0, and must be a whole number from 1 up"),
        ({"batch": -1}, "batch is -1"),
        ({"ranks": 8, "tp": 3}, "8 ranks cannot be split into groups of tp 3 x pp 1 = 3"),
        ({"ranks": 8, "shard_ranks": 3}, "8 data-parallel ranks cannot be split into groups of 3"),
        ({"sequence_parallel": True}, "cuts 1024 tokens among 1 tp ranks, and tp is 1"),
        ({"sequence_parallel": True, "tp": 2, "ranks": 2, "seq": 1023}, "and 2 does not divide 1023"),
        ({"base_bits": 4}, "Weights of 4 bits cannot be trained"),
        ({"optimizer": "adafactor", "zero": 1}, "which ZeRO 1 cuts"),
        ({"layout": "whole", "zero": 2}, "zero is 2"),
    ],
)
def test_a_plan_that_cannot_be_gets_a_sentence(wrong, said):
    with pytest.raises(ValueError, match=said):
        Plan(**wrong)


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (GPT2, {"tp": 8, "ranks": 8}, "gpt2 has 12 heads, which tp 8 does not divide"),
        (LLAMA, {"tp": 16, "ranks": 16}, "8 key and value heads, which tp 16 does not divide"),
        (GPT2, {"pp": 5, "ranks": 5}, "gpt2 has 12 layers, which pp 5 does not divide"),
        (GPT2, {"seq": 2048}, "gpt2 has 1024 positions, too few for sequences of 2048"),
        (100, {"tp": 2, "ranks": 2}, "What tp splits or keeps depends on the model's sizes"),
        (100, {"optimizer": "muon"}, "What muon splits or keeps"),
        (0, {}, "The number of parameters is 0"),
        (True, {}, "The number of parameters is True"),
    ],
)
def test_a_model_that_a_plan_does_not_suit_gets_a_sentence(model, plan, said):
    with pytest.raises(ValueError, match=said):
        states(model, Plan(**plan))
