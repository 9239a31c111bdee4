"""Activations: the published formulas as papers print them, and the phases of labkit.lm's own step."""

from dataclasses import replace

import pytest

from labkit import live, lm, tape
from labkit.activations import layer_bytes, logits_bytes, part_of, phases, tensors
from labkit.lm_sizes import Step
from labkit.presets import preset
from labkit.states import Plan, states
from labkit.tape import LEAF
from labkit.verify_grid import gpt_style, llama_style

PLAN = Plan(precision="fp32", batch=2, seq=64)
MEASURED = {  # MemTracker's names of the phases
    "forward: the loss": "loss", "backward: the loss": "loss backward", "backward: head": "head backward",
    "backward: norm": "head backward", "backward: blocks": "block backward", "optimizer step": "optimizer step",
    "backward: the model": "embedding backward", "backward: token": "embedding backward",
}  # fmt: skip


@pytest.mark.parametrize("name", ["megatron-22b", "gpt3-175b", "megatron-530b", "megatron-1t"])
def test_a_layer_is_what_the_paper_prints(name):
    """Korthikanti et al., table 2, times 16 bits' own bytes: s tokens, b, h, a, t."""
    arch = preset(name)
    s, b, h, a, t = 2048, 4, arch.width, arch.heads, 8
    none = Plan(batch=b, seq=s, attention="math")
    split = replace(none, tp=t, ranks=t)
    both = replace(split, sequence_parallel=True)
    assert layer_bytes(arch, none) == pytest.approx(s * b * h * (34 + 5 * a * s / h))
    assert layer_bytes(arch, split) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))
    assert layer_bytes(arch, both) == pytest.approx(s * b * h / t * (34 + 5 * a * s / h))
    assert layer_bytes(arch, replace(split, recompute="selective")) == pytest.approx(s * b * h * (10 + 24 / t))
    assert layer_bytes(arch, replace(both, recompute="selective")) == pytest.approx(s * b * h * 34 / t)
    assert layer_bytes(arch, replace(none, recompute="full")) == s * b * h * 2


@pytest.mark.parametrize("precision", ["fp32", "bf16", "mixed", "mixed-fp32-grads", "autocast"])
@pytest.mark.parametrize("arch", [gpt_style(), llama_style()], ids=["gpt", "llama"])
def test_every_phase_is_what_memtracker_sees(arch, precision):
    plan = replace(PLAN, precision=precision)
    measured = {}
    for name, n_bytes in live.training_peak(arch, plan).phases.items():
        name = MEASURED.get(name, "forward")
        measured[name] = max(n_bytes, measured.get(name, 0))
    predicted = {phase: sum(parts.values()) for phase, parts in phases(arch, plan).items()}
    for phase in ("forward", "loss", "loss backward", "head backward", "block backward"):
        assert predicted[phase] == pytest.approx(measured[phase], rel=0.04), phase
    assert predicted["optimizer step"] == pytest.approx(measured["optimizer step"], rel=0.005)
    assert max(predicted.values()) == pytest.approx(max(measured.values()), rel=0.005)


LEFT_OUT = {  # a term, and where it shows: the configuration, and the least that it is worth there
    "fp32 log-softmax under bf16": (gpt_style(vocab=8192), {"precision": "bf16"}, "log-softmax", 0.05),
    "two temporaries of the logits' gradient": (gpt_style(vocab=8192), {"batch": 16}, "gradient of logits", 0.1),
    "foreach's temporary": (gpt_style(vocab=64), {"batch": 1, "seq": 8}, "optimizer at work", 0.1),
    "autocast's copies": (llama_style(width=256, vocab=64), {"precision": "autocast", "seq": 128}, ", 16 bits", 0.05),
    "the residual stream": (gpt_style(vocab=64), {"batch": 8}, "residual stream", 0.05),
    "root-mean-square norm's products": (llama_style(vocab=64), {"batch": 8}, ": normed", 0.05),
    "softmax and scores": (llama_style(vocab=64), {"attention": "math", "seq": 256}, "softmax", 0.05),
    "GELU's input": (gpt_style(vocab=64), {"batch": 8}, "up's result", 0.05),
}


@pytest.mark.parametrize("term", LEFT_OUT)
def test_a_term_left_out_is_noticed(term):
    """Each term is a good part of some peak: without it, the form would miss what MemTracker measures there."""
    arch, changes, word, share = LEFT_OUT[term]
    plan = replace(PLAN, **{"optimizer": "sgd", **changes} if word != "optimizer at work" else changes)
    every = tensors(arch, plan)
    measured = live.training_peak(arch, plan).total_bytes
    assert max(sum(of.values()) for of in every.values()) == pytest.approx(measured, rel=0.02)
    without = max(sum(n for name, n in of.items() if word not in name) for of in every.values())
    assert without < (1 - share) * measured


def test_the_peak_is_not_the_sum_of_its_parts():
    every = phases(gpt_style(vocab=8192), PLAN)
    parts = {part for of in every.values() for part in of}
    largest = sum(max(of[part] for of in every.values()) for part in parts)
    assert largest > 1.1 * max(sum(of.values()) for of in every.values())


def test_gradients_at_the_end_are_what_states_says_and_nothing_else_is_left():
    for arch in (gpt_style(layers=5), llama_style()):
        for plan in (PLAN, replace(PLAN, zero=2, ranks=4), replace(PLAN, recompute="full"), replace(PLAN, lora=4)):
            played = Step(arch, plan).play()
            assert played.leaf_bytes() == pytest.approx(states(arch, plan).gradients_bytes, rel=1e-4)
            assert played.total == pytest.approx(played.leaf_bytes())


@pytest.mark.parametrize(("precision", "n_bytes"), [("mixed", 4), ("mixed-fp32-grads", 4), ("fp32", 4), ("bf16", 2)])
def test_a_pipeline_has_its_gradients_once_at_the_optimizers_step(precision, n_bytes):
    """By hand: half the layers and an end of the model; mixed precision has widened them."""
    arch, plan = gpt_style(layers=4, tied=False), replace(PLAN, precision=precision, ranks=2, pp=2, micro_batches=4)
    d, vocab, positions = arch.width, arch.vocab, arch.positions
    layer = 4 * (d * d + d) + (2 * 4 * d * d + 5 * d) + 2 * 2 * d
    ends = {0: (vocab + positions) * d, 1: vocab * d + 2 * d}
    for stage, end in ends.items():
        found = phases(arch, plan, stage)
        assert found["optimizer step"]["gradients"] == n_bytes * (2 * layer + end)
        # While it goes backward there are the sums, and of each micro-batch's gradients few at a time.
        width = 4 if precision == "mixed-fp32-grads" else states(arch, plan, stage).gradients_bytes // (2 * layer + end)
        assert width * (2 * layer + end) <= found["block backward"]["gradients"] < (width + 0.5) * (2 * layer + end)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["bf16", "mixed", "mixed-fp32-grads"])
def test_another_micro_batch_never_takes_less(precision, zero):
    """A block's gradients stand whole until they are scattered, in every micro-batch."""
    arch = llama_style(layers=4, width=256, vocab=64)
    plan = Plan(precision=precision, optimizer="sgd", batch=1, seq=16, ranks=16, zero=zero, micro_batches=1)
    for more in (plan, replace(plan, pp=2)):
        one, two = (phases(arch, replace(more, micro_batches=n)) for n in (1, 2))
        assert all(sum(two[phase].values()) >= sum(of.values()) for phase, of in one.items())
        assert all(two[phase]["gradients"] >= of["gradients"] for phase, of in one.items())


@pytest.mark.parametrize("bits", [16, 4])
def test_what_is_gathered_is_as_wide_as_what_is_kept(bits):
    """Without resharding, all of a frozen base stands gathered after the forward pass: in 4 bits where it is in 4."""
    arch = llama_style(layers=4, width=512, vocab=64)
    plan = Plan(precision="autocast", batch=1, seq=8, lora=4, base_bits=bits, ranks=4)
    whole = states(arch, plan).parameters_bytes
    shared = replace(plan, zero=3, reshard=False)
    gathered = phases(arch, shared)["loss"]["parameters"] - states(arch, shared).parameters_bytes
    assert gathered == pytest.approx(whole, rel=0.01)
    now = phases(arch, replace(shared, reshard=True))["block backward"]["parameters"]
    assert now - states(arch, shared).parameters_bytes == pytest.approx(whole / 2, rel=0.1), "two of four blocks"


def test_one_data_rank_has_nobody_to_gather_from():
    plan = replace(PLAN, ranks=2, pp=2, zero=2)
    assert phases(gpt_style(), plan) == phases(gpt_style(), replace(plan, zero=3))


@pytest.mark.parametrize("tied", [True, False])
def test_a_base_of_four_bits_is_widened_a_matrix_at_a_time_and_its_ends_are_not(tied):
    arch = replace(llama_style(vocab=60, width=64), hidden=2048, tied=tied)
    plan = Plan(precision="bf16", batch=1, seq=4, lora=2, base_bits=4)
    one = 2 * 64 * 2048
    every = tensors(arch, plan)
    assert every["block backward"]["backward, at work"] == one
    # The head is as it was: a vocabulary of its own size changes nothing but itself and the logits.
    large = tensors(replace(arch, vocab=60_000), plan)
    assert all(large[phase].get("backward, at work", 0) < 5000 for phase in ("loss backward", "head backward"))
    difference = [sum(tensors(each, plan)["forward"].values()) for each in (arch, replace(arch, vocab=80))]
    assert 0 <= difference[1] - difference[0] <= 2 * 20 * 64 * (1 if tied else 2)


def test_a_mixtures_tokens_are_counted_as_often_as_there_are_experts_for_each():
    sizes = {"experts": 4, "experts_per_token": 2}
    arch, plan = replace(llama_style(vocab=64), **sizes), Plan(precision="bf16", batch=1, seq=32)
    kept = tensors(arch, plan)["loss"]
    by_hand = {"tokens by experts": arch.width, "gate's result": arch.hidden, "up's result": arch.hidden}
    for name, n in by_hand.items():
        assert kept[name] == 2 * 2 * arch.layers * 32 * n, name
        assert tensors(replace(arch, experts_per_token=4), plan)["loss"][name] == 2 * kept[name]


def test_what_a_step_makes_is_of_the_part_that_the_ranks_of_one_copy_share():
    arch, plan = gpt_style(), replace(PLAN, zero=1, ranks=8)
    n = sum(p.numel() for p in lm.build(arch).parameters())
    for shard_ranks, shares in ((0, 8), (2, 2)):
        found = tensors(arch, replace(plan, shard_ranks=shard_ranks))["optimizer step"]
        assert found["optimizer at work"] == pytest.approx(4 * n / shares, abs=8)


def test_logits_are_counted_with_their_copies():
    arch, plan = gpt_style(vocab=8192), replace(PLAN, precision="bf16")
    assert phases(arch, plan)["loss backward"]["logits"] == logits_bytes(arch, plan) == 3 * 4 * 128 * 8192


def test_a_depth_of_twelve_is_played_as_if_every_block_were(monkeypatch):
    deep = gpt_style(layers=12)
    short = {phase: sum(of.values()) for phase, of in phases(deep, PLAN).items()}

    def layers(self, x, n):
        for _ in range(n):
            x = self.unit(x)
        return x

    monkeypatch.setattr(Step, "layers", layers)
    assert short == {phase: sum(of.values()) for phase, of in phases(deep, PLAN).items()}


def test_names_belong_to_parts():
    names = ("parameters", f"{LEAF} q", "optimizer state", "logits, 32 bits", "q's result")
    assert [part_of(name) for name in names] == ["parameters", "gradients", "optimizer", "logits", "activations"]


@pytest.mark.parametrize("precision", ["fp32", "mixed", "mixed-fp32-grads"])
def test_of_a_tied_matrix_two_gradients_are_gone_once_they_are_added(precision):
    arch, plan = gpt_style(vocab=5000, width=48), Plan(precision=precision, optimizer="sgd", batch=5, seq=1)
    predicted = {phase: sum(parts.values()) for phase, parts in phases(arch, plan).items()}
    assert max(predicted, key=predicted.get) == "embedding backward"
    assert max(predicted.values()) == pytest.approx(live.training_peak(arch, plan).total_bytes, rel=0.002)


def test_a_storage_goes_with_the_last_that_holds_it():
    played = tape.Tape()
    x = tape.Sized("x", 10, 4, leaf=1)
    y = played.run("y", 10, 4, [x], keep_result=True)
    key, n_bytes = y.key, y.n_bytes
    del y
    assert played.total == 40
    played.backward(key, n_bytes)
    assert (played.total, played.leaf_bytes()) == (40, 40)
    assert max(total for total, _ in played.peaks.values()) == 120
