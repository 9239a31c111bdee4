"""Slow steps: planted ones are found under noise of many shapes, ordinary ones are left alone, and the limits hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import slow_steps

STEPS, SEEDS = 500, 50


def _lognormal(rng, width=0.05):
    return np.exp(width * rng.standard_normal(STEPS))


def _autoregressive(rng):
    noise, state = rng.standard_normal(STEPS) * 0.025, np.zeros(STEPS)
    for i in range(1, STEPS):
        state[i] = 0.9 * state[i - 1] + noise[i]
    return np.exp(state)


PLACE = np.arange(STEPS)
SHAPES = {
    "normal": lambda rng: np.maximum(1 + 0.05 * rng.standard_normal(STEPS), 0.1),
    "lognormal": _lognormal,
    "uniform": lambda rng: 1 + 0.2 * rng.random(STEPS),
    "skewed": lambda rng: 1 + 0.03 * rng.exponential(size=STEPS),
    "drift to twice the time": lambda rng: _lognormal(rng) * 2 ** (PLACE / STEPS),
    "waves": lambda rng: _lognormal(rng, 0.04) * (1 + 0.2 * np.sin(PLACE / 60)),
    "neighbours alike": _autoregressive,
    "a new level": lambda rng: _lognormal(rng, 0.04) * np.where(PLACE < 300, 1, 1.4),
    "rounded to 2 %": lambda rng: np.round(50 * _lognormal(rng)) / 50,
    "no noise": lambda rng: np.ones(STEPS) + 1e-12 * rng.random(STEPS),
}
MODES = {
    "two kinds, at random": lambda rng: _lognormal(rng, 0.03) * np.where(rng.random(STEPS) < 0.3, 1.3, 1),
    "every fourth": lambda rng: _lognormal(rng, 0.03) * np.where(PLACE % 4 == 0, 1.3, 1),
}


def _found(shape, count, factors):
    """Recall and precision over all seeds, and false alarms a run."""
    hits = alarms = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, count])
        seconds = shape(rng) * 0.04
        planted = rng.choice(STEPS, count, replace=False)
        seconds[planted] *= factors(rng, count)
        found = {step.index for step in slow_steps(seconds.tolist())}
        hits += len(found & set(planted.tolist()))
        alarms += len(found - set(planted.tolist()))
    return hits / max(SEEDS * count, 1), hits / max(hits + alarms, 1), alarms / SEEDS


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("shape", [*SHAPES, *MODES])
def test_planted_steps_are_found_and_little_else(shape, count):
    recall, precision, _ = _found({**SHAPES, **MODES}[shape], count, lambda rng, n: rng.uniform(1.5, 3, n))
    assert recall >= 0.95
    assert precision >= 0.95


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "skewed", "drift to twice the time", "a new level"])
def test_steps_of_just_one_and_a_half_times_are_found(shape, count):
    recall, precision, _ = _found(SHAPES[shape], count, lambda _rng, n: np.full(n, 1.5))
    assert recall >= 0.95
    assert precision >= 0.95


@pytest.mark.parametrize("shape", [*SHAPES, *MODES])
def test_where_nothing_is_planted_hardly_anything_is_found(shape):
    assert _found({**SHAPES, **MODES}[shape], 0, lambda _rng, n: np.ones(n))[2] <= 0.05


def test_a_kind_of_step_that_comes_often_is_ordinary_and_one_between_the_two_kinds_is_not():
    rng = np.random.default_rng(0)
    for every in (2, 4, 6):
        seconds = _lognormal(rng, 0.04) * np.where(PLACE % every == 0, 3, 1)
        assert slow_steps(seconds) == []
        seconds[123] *= 1.7
        assert [step.index for step in slow_steps(seconds)] == [123]


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.08, 0.12, 0.16])
@pytest.mark.parametrize(("n_steps", "every"), [(100, 10), (200, 10), (500, 10), (200, 20), (100, 8), (500, 9)])
def test_collecting_garbage_in_every_tenth_step_is_reported(noise, n_steps, every):
    """50 times slower in chosen steps, however often, unless more than one in eight; nothing else is reported."""
    for seed in range(5):
        seconds = np.exp(noise * np.random.default_rng(seed).standard_normal(n_steps))
        seconds[every - 1 :: every] *= 50
        assert [step.index for step in slow_steps(seconds)] == list(range(every - 1, n_steps, every))


@pytest.mark.parametrize(("noise", "ratio"), [(0.02, 1.5), (0.05, 2.0), (0.08, 2.0), (0.12, 3.0), (0.16, 5.0)])
def test_six_compiling_steps_in_a_hundred_are_reported(noise, ratio):
    for seed in range(20):
        seconds = np.exp(noise * np.random.default_rng(seed).standard_normal(100))
        seconds[compiling := [1, 2, 6, 7, 9, 11]] *= ratio
        assert [step.index for step in slow_steps(seconds)] == compiling


@pytest.mark.parametrize("shape", [*SHAPES, *MODES])
def test_every_tenth_step_is_found_beside_noise_and_ordinary_kinds_of_any_shape(shape):
    for seed in range(5):
        seconds = {**SHAPES, **MODES}[shape](np.random.default_rng(seed))
        seconds[9::10] *= 3
        assert [step.index for step in slow_steps(seconds)] == list(range(9, STEPS, 10))


def test_many_slow_steps_do_not_hide_one_another():
    """One in eight took three to twelve times as long, as on a machine that others use."""
    rng = np.random.default_rng(2)
    seconds = _lognormal(rng, 0.08)
    hit = rng.choice(STEPS, STEPS // 8, replace=False)
    seconds[hit] *= rng.uniform(3, 12, len(hit))
    assert {step.index for step in slow_steps(seconds)} >= set(hit.tolist())


def test_what_is_said_of_a_slow_step():
    seconds = [0.1, 0.1] * 20
    seconds[7] = 0.25
    (step,) = slow_steps(seconds)
    assert (step.index, step.seconds) == (7, 0.25)
    assert step.ratio == pytest.approx(2.5)
    assert step.z > 100
    assert str(step) == "step 7: 250 ms, 2.5 times the typical"


def test_the_limits_that_the_docstring_names():
    rng = np.random.default_rng(1)
    assert slow_steps([1.0] * 6 + [9.0]) == [], "fewer than 8"
    wide = _lognormal(rng, 0.2)
    wide[5] = 1.5
    assert 5 not in [step.index for step in slow_steps(wide)], "wide noise hides 1.5 times"
    wider = _lognormal(rng, math.log(2)) * np.where(PLACE % 10 == 9, 20, 1)
    assert slow_steps(wider) == [], "steps that scatter by a factor of two hide 20 times"
    two = _lognormal(rng, 0.03) * np.where(PLACE % 2, 1.5, 1)
    two[100] *= 1.5
    assert slow_steps(two) == [], "as long as an ordinary step of the slower kind"
    often = _lognormal(rng, 0.03) * np.where(PLACE % 6 == 5, 50, 1)
    assert slow_steps(often) == [], "a kind of step that more than one in eight is"
    level = _lognormal(rng, 0.03) * np.where(PLACE < 250, 1, 2)
    assert slow_steps(level) == [], "a new level"


@given(st.lists(st.floats(1e-6, 1e4), max_size=120), st.floats(1e-3, 1e3))
def test_any_times_are_answered_and_the_unit_does_not_matter(seconds, unit):
    found = slow_steps(seconds)
    assert [step.index for step in found] == sorted({step.index for step in found})
    assert all(step.ratio >= 1.33 - 1e-9 and seconds[step.index] == step.seconds for step in found)
    if unit == 2.0 ** round(math.log2(unit)):
        assert [step.index for step in slow_steps([unit * each for each in seconds])] == [s.index for s in found]


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="positive and finite"):
        slow_steps([1.0] * 20 + [wrong])
