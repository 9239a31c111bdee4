"""Bytes that a step sends: against the paper's volumes, and against what real ranks hand in."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit import cost
from labkit.architecture import Architecture, count
from labkit.presets import preset
from labkit.ranks import run_ranks
from labkit.states import Plan
from labkit.traffic import communication_bytes

N = 7_500_000_000
WORD = 2  # bytes of a gradient in mixed precision


def sent_bytes(found, ranks):
    """What ideal algorithms have a rank send for what it hands in."""
    share = (ranks - 1) / ranks
    times = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": ranks - 1}
    return sum(times[op] * n_bytes for op, n_bytes in found.items())


@pytest.mark.parametrize(("zero", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_the_papers_volumes_two_models_a_step_and_three_at_stage_3(zero, times):
    found = communication_bytes(N, Plan(zero=zero, ranks=64))
    assert sent_bytes(found, 64) == pytest.approx(times * N * WORD * 63 / 64, rel=1e-6)


def test_without_resharding_stage_3_gathers_once():
    found = communication_bytes(N, Plan(zero=3, ranks=64, reshard=False))
    assert sent_bytes(found, 64) == pytest.approx(2 * N * WORD * 63 / 64, rel=1e-6)


def test_one_rank_sends_nothing():
    assert communication_bytes(preset("llama-2-7b"), Plan(zero=3)) == {}


def test_hsdp_adds_a_reduction_of_the_part_between_copies():
    found = communication_bytes(N, Plan(zero=3, ranks=64, shard_ranks=8))
    assert found["all_reduce"] == WORD * -(-N // 8)


def test_sequence_parallelism_moves_as_much_forward_and_gathers_once_more_backward():
    arch, plan = preset("gpt3-175b"), Plan(tp=8, ranks=8, seq=2048)
    plain = communication_bytes(arch, plan)
    split = communication_bytes(arch, replace(plan, sequence_parallel=True))
    whole = plan.batch * plan.seq * arch.width * WORD
    assert plain == {"all_reduce": (4 * arch.layers + 2) * whole}
    extra = 2 * arch.layers * whole * 7 / 8  # ring bytes of the gathers that the paper overlaps with computing
    assert sent_bytes(split, 8) == pytest.approx(sent_bytes(plain, 8) + extra)
    assert sent_bytes(plain, 8) == (4 * arch.layers + 2) * cost.ring_all_reduce_bytes(whole, 8)


def test_stages_in_the_middle_send_both_ways_and_the_ends_one():
    arch, plan = preset("gpt3-175b"), Plan(pp=8, ranks=8, seq=2048, micro_batches=16)
    whole = 16 * plan.seq * arch.width * WORD
    tied = WORD * arch.vocab * arch.width
    assert communication_bytes(arch, plan, 3) == {"send": 2 * whole, "recv": 2 * whole}
    assert communication_bytes(arch, plan, 0) == {"send": whole, "recv": whole, "all_reduce": tied}


# ---- real ranks -----------------------------------------------------------------------------------------------------

SMALL = Architecture(
    **{"name": "small", "vocab": 50, "width": 12, "layers": 3, "heads": 4, "kv_heads": 2, "head_width": 5},
    **{"hidden": 20, "gated": True, "norm": "rms", "context": 16},
)


def handed_in(kind, rows):
    """What a step of DDP or FSDP2 hands in, for a model of `rows` rows that the ranks divide evenly."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    from labkit.ranks import counting

    model = nn.Sequential(nn.Linear(8, rows, bias=False), nn.Linear(rows, 8, bias=False))
    if kind == "ddp":
        model = DDP(model)
    else:
        for layer in model:
            fully_shard(layer, reshard_after_forward=kind == "reshard")
        fully_shard(model, reshard_after_forward=kind == "reshard")
    with counting() as counted:
        model(torch.ones(4, 8)).sum().backward()
    return dict(counted.bytes)


@pytest.mark.parametrize(
    ("kind", "plan"),
    [("ddp", {}), ("reshard", {"zero": 3}), ("keep", {"zero": 3, "reshard": False})],
)
def test_torchs_own_ranks_hand_in_what_the_closed_form_says(kind, plan):
    [found, _] = run_ranks(handed_in, 2, kind, 16)
    expected = communication_bytes(2 * 8 * 16, Plan(precision="fp32", ranks=2, **plan))
    assert {op: n_bytes for op, n_bytes in found.items() if n_bytes} == expected


def test_a_model_and_its_bare_number_send_the_same_without_splits():
    for zero in range(4):
        plan = Plan(zero=zero, ranks=4, seq=16)
        assert communication_bytes(SMALL, plan) == communication_bytes(count(SMALL), plan)
