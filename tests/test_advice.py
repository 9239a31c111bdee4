"""What to change first: that the cheapest change counts, none further than needed, and every one is computed."""

from dataclasses import replace

import pytest

from labkit.advice import LEVERS, advise
from labkit.presets import preset
from labkit.states import Plan, states

LLAMA = preset("llama-3-8b")
GB = 10**9


def of(model):
    """What a plan takes, as `advise` asks for it: the states, and activations by a rough form that is quick."""

    def takes(plan):
        width = {"none": 34, "selective": 34, "full": 2}[plan.recompute] * model.width
        scores = 5 * model.heads * plan.seq if (plan.attention, plan.recompute) == ("math", "none") else 0
        kept = plan.batch * plan.seq * model.layers * (width + scores) // plan.tp
        return states(model, plan).total_bytes + kept * (2 if plan.precision == "fp32" else 1)

    return takes


def bare(plan):
    """The states of 7.5e9 parameters."""
    return states(7_500_000_000, plan).total_bytes


@pytest.mark.parametrize(
    ("memory", "changes", "takes"),
    [  # the ZeRO paper's table 1 at 64 ranks: 120, 31.4, 16.6 and 1.9 GB
        (32 * GB, ("ZeRO stage 1",), 31_406_250_000),
        (31 * GB, ("ZeRO stage 2",), 16_640_625_000),
        (16 * GB, ("ZeRO stage 3",), 1_875_000_000),
    ],
)
def test_the_mildest_stage_that_fits(memory, changes, takes):
    best = advise(Plan(ranks=64), bare, memory)
    assert (best.changes, best.total_bytes, best.plan.ranks) == (changes, takes, 64)
    assert bare(best.plan) == takes


def test_what_costs_nothing_comes_first():
    plan = Plan(attention="math", seq=4096, ranks=8, zero=1, batch=4)
    dear = of(LLAMA)
    limit = dear(replace(plan, attention="flash"))
    assert advise(plan, dear, limit).changes == ("flash attention",)
    best = advise(plan, dear, limit - 1)
    assert best.changes != ("flash attention",)
    assert dear(best.plan) == best.total_bytes < limit


def test_more_ranks_alone_are_no_help_without_zero_but_together_they_are():
    best = advise(Plan(), bare, 32 * GB, levers=[each for each in LEVERS if each.name in ("ZeRO", "more ranks")])
    assert len(best.changes) == 2
    assert best.changes[0].startswith("ZeRO stage ")
    assert best.changes[1].endswith("ranks, not 1")
    fewer = replace(best.plan, ranks=best.plan.ranks // 2)
    assert min(bare(replace(fewer, zero=stage)) for stage in range(4)) > 32 * GB, "half the ranks are too few"
    assert bare(replace(best.plan, zero=best.plan.zero - 1)) > 32 * GB, "one stage less is too little"


PLANS = {"one": Plan(seq=8192, batch=2), "many": Plan(seq=2048, ranks=16, tp=2, attention="math", precision="fp32")}


@pytest.mark.parametrize("share", [0.98, 0.6, 0.3, 0.1, 0.05])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_single_changes_are_in_order_of_cost_and_every_advice_fits(plan, share):
    takes = of(LLAMA)
    memory = int(share * takes(plan))
    best = advise(plan, takes, memory)
    assert takes(best.plan) == best.total_bytes <= memory
    assert len(best.changes) == len(best.levers)
    by_hand = {}
    for lever in LEVERS:
        for words, fields in lever.steps(plan):
            try:
                if takes(replace(plan, **fields)) <= memory:
                    by_hand.setdefault(lever.name, words)
            except ValueError:
                pass
    if by_hand:
        name, words = next(iter(by_hand.items()))
        assert (best.changes, best.levers[0].name) == ((words,), name)
    else:
        assert len(best.changes) > 1


def test_what_cannot_fit_has_no_advice():
    assert advise(Plan(), bare, 1) is None
    assert advise(Plan(), of(preset("llama-3.1-405b")), GB) is None


def test_a_plan_is_estimated_once():
    asked = []

    def takes(plan):
        asked.append(plan)
        return bare(plan)

    advise(Plan(), takes, 1)
    assert len(asked) == len(set(asked)) > 100


def test_steps_that_are_impossible_are_left_out():
    plan = Plan(optimizer="adafactor", ranks=8)  # which no fused kernel and no ZeRO stage goes with
    best = advise(plan, of(LLAMA), of(LLAMA)(plan) - 1)
    assert (best.plan.zero, best.plan.fused) == (0, False)


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_every_lever_has_a_cost_and_somewhere_something_to_change(lever):
    stage = 0 if lever.name == "ZeRO" else 3
    plan = Plan(zero=stage, ranks=16, tp=2, shard_ranks=2, reshard=False, attention="math", precision="fp32", batch=5)
    steps = lever.steps(plan)
    assert lever.costs
    assert steps
    changed = [replace(plan, **fields) for _, fields in steps]
    assert plan not in changed
    assert len(set(changed)) == len(changed)


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_at_the_end_of_a_lever_there_is_nothing_left(lever):
    best = {"batch": 1, "recompute": "full", "optimizer": "adam-8bit", "precision": "bf16", "tp": 8, "seq": 600}
    last = Plan(zero=3, ranks=8, sequence_parallel=True, lora=4, base_bits=4, fused=True, **best)
    assert bool(lever.steps(last)) == (lever.name == "more ranks")


def test_a_model_for_which_every_other_plan_is_impossible_has_no_advice():
    def impossible(plan):
        raise ValueError(plan)

    assert advise(Plan(), impossible, 10**30) is None
