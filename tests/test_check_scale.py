"""The checks of lesson 10 take right answers written another way, and their own answers are held to measurements."""

import gc
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from labkit import cost, lm
from labkit.architecture import count, parameters
from labkit.checker import find, generator_for, verdict
from labkit.checks import napkins, nb10, options
from labkit.presets import preset
from labkit.tape import Storage, Tape


@pytest.fixture(autouse=True)
def swept():
    """What thousands of other tests have left in this process is collected before, and not in an answer's time."""
    gc.collect()


def mfu_by_rate(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    """Tokens a second of a card, as people write it."""
    took_s, n_steps = sum(seconds) - sum(seconds[:n_warmup]), len(seconds) - n_warmup
    tokens_per_s = n_tokens * n_steps / took_s / n_cards
    return tokens_per_s * 6 * n_parameters / peak_flops_per_s


def flops_by_fields(arch, batch, seq):
    """From the architecture's sizes, product by product."""
    d, inner = arch.width, arch.heads * arch.head_width
    attention = d * (inner + 2 * arch.kv_heads * arch.head_width) + inner * d
    mlp = (3 if arch.gated else 2) * d * arch.hidden
    mlp = mlp * arch.experts_per_token + d * arch.experts if arch.experts else mlp
    forward = 2 * (arch.layers * (attention + mlp) + d * arch.vocab) * batch * seq
    return 3 * (forward + 4 * arch.layers * batch * seq * seq * inner)


def flops_in_float(arch, batch, seq):
    """The same, with floats that hold whole numbers."""
    return float(flops_by_fields(arch, batch, seq))


def peak_with_change(arch, batch, seq, attention, recompute):
    """With the small change of norms and kernels, and the moment after the backward pass."""
    n, tokens = count(arch), batch * seq
    kept = 16 * arch.width + 4 + arch.heads
    if attention == "math":
        kept += arch.heads * (seq - 1)
    if recompute == "full":
        kept = arch.width
    moments = [5 * n, 4 * n, 3 * n + tokens * (arch.layers * kept + 3 * arch.vocab + 2 * arch.width)]
    return 4.0 * max(moments)


def cheapest_by_loop(options, n_steps, deadline_h, card_gib, bytes_per_s, price):
    """One option held against the best so far."""
    best = (float("inf"), float("inf"), "none")
    for option in options:
        k = option["cards"]
        room = card_gib * 1024**3 - option["activation_bytes"]
        if (option["state_bytes"] / k if option["sharded"] else option["state_bytes"]) > room:
            continue
        step_s = option["work_s"] / k + 2 * (k - 1) * option["gradient_bytes"] / (k * bytes_per_s)
        hours = step_s * n_steps / 3600
        if hours <= deadline_h and (k * hours * price, hours) < best[:2]:
            best = (k * hours * price, hours, option["name"])
    return best[2]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("mfu", mfu_by_rate),
        ("step_flops", flops_by_fields),
        ("step_flops", flops_in_float),
        ("peak_bytes", peak_with_change),
        ("cheapest", cheapest_by_loop),
    ],
)
def test_a_right_answer_written_another_way_passes(name, answer):
    exercise = find(name)
    for seed in (0, 1, 2):
        found = verdict(answer, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
        assert found.status == "passed", found.message


@pytest.mark.parametrize("seed", range(4))
def test_the_courses_own_napkin_is_within_its_tolerance_of_what_is_measured(seed):
    for case in napkins.peak_cases(torch.Generator().manual_seed(seed)):
        assert napkins.peak_bytes(*case) == pytest.approx(napkins.measured_bytes(*case), rel=napkins.WITHIN)


def test_the_courses_own_count_is_torchs():
    exercise = find("step_flops")
    for arch, batch, seq in exercise.cases(generator_for(exercise, 0)):
        if not arch.experts:
            with torch.device("meta"), FlopCounterMode(display=False) as counted:
                model, tokens = lm.build(arch, attention="math"), torch.zeros(batch, seq + 1, dtype=torch.long)
                lm.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            assert nb10.step_flops(arch, batch, seq) == counted.get_total_flops()


def test_of_experts_a_token_pays_for_those_it_meets():
    one = replace(preset("mixtral-8x7b"), experts_per_token=1)
    two = replace(one, experts_per_token=2)
    each = parameters(one)["mlp"] // one.experts
    assert nb10.step_flops(two, 1, 10) - nb10.step_flops(one, 1, 10) == 6 * 10 * each


def test_the_courses_own_count_is_labkits():
    exercise = find("step_flops")
    for arch, batch, seq in exercise.cases(generator_for(exercise, 0)):
        assert nb10.step_flops(arch, batch, seq) == cost.step_flops(arch, batch=batch, seq=seq)


@pytest.mark.parametrize("name", ["step_flops", "peak_bytes", "cheapest"])
def test_a_case_can_be_made_again_from_what_is_told_of_it(name):
    exercise = find(name)
    for case in exercise.cases(generator_for(exercise, 0)):
        told = exercise.tell(*case)
        space = {"replace": replace, "preset": preset, "gpt": lambda *sizes, **more: _as_in_the_lesson(sizes, more)}
        if "arch" in told:
            space["arch"] = eval(told["arch"], space)
        space["options"] = [eval(told[f"[{i}]"], space) for i in range(len(case[0]))] if name == "cheapest" else []
        space[name] = lambda *given, **named: (*given, *named.values())  # the call is then what it was given
        again = eval(told["call"], space)
        if name == "cheapest":
            assert again[0] == [_rounded(option) for option in case[0]]
        else:
            assert replace(again[0], name="") == replace(case[0], name="")
            assert again[1:] == case[1:]


def _rounded(option):
    """An option with the six digits that are shown."""
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in option.items()}


def _as_in_the_lesson(sizes, more):
    return replace(napkins._gpt(*sizes), **more)


def test_a_mistake_of_the_napkin_is_named_only_where_it_gives_the_very_number():
    case = napkins.peak_cases(torch.Generator().manual_seed(0))[1]
    right, once = napkins.measured_bytes(*case), 4 * napkins._loss_backward(*case, copies=1)
    assert napkins.napkin_cause(once, right) == "Three arrays of the logits' size, and not one."
    far = napkins.napkin_cause(1.01 * once, right)
    assert "below the measured peak; 3% are allowed." in far
    assert "the largest part of it is the logits" in far


def test_the_figures_of_a_wrong_choice_are_true_and_a_line_is_given_only_where_the_case_turns_on_it():
    for line, case in options.CORNERS:
        right = options.cheapest(*case)
        other = next(name for name in [*(option["name"] for option in case[0]), "none"] if name != right)
        assert options.chosen_cause(other, right).startswith(line)
    exercise = find("cheapest")
    for case in exercise.cases(generator_for(exercise, 0))[len(options.CORNERS) :]:
        right = options.cheapest(*case)
        for option in case[0]:
            if option["name"] != right:
                said = options.chosen_cause(option["name"], right)
                assert said.startswith(f"{option['name']}: ")
                fits, late = "does not fit" in said.split(". ")[0], "too late" in said.split(". ")[0]
                alone = options.cheapest([option], *case[1:])
                assert (fits or late) == (alone == "none")


def test_what_others_have_left_behind_is_not_taken_for_the_answers_doing():
    left = Tape()
    left.leaves["x"] = Storage(left, "x", 1.0)  # a circle, which only the collector undoes, by a call
    del left
    assert napkins.calls_of(lambda: [[] for _ in range(100_000)], ("tape",)) == set()
    assert napkins.calls_of(lambda: Tape().count("x", 1.0), ("tape",)) == {"tape"}
