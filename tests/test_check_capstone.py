"""The checks of lesson 21 take right answers that are written in another way than the course's own, and draw cases in
which every known mistake shows."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from labkit.checker import find, generator_for, verdict
from labkit.checks import raced, turned


def augment_by_filling(pictures, angle, scale, right, down):
    """A matrix of zeros, filled column by column; affine_grid told the size as a torch.Size."""
    matrix = torch.zeros(len(angle), 2, 3, dtype=pictures.dtype)
    matrix[:, 0, 0] = matrix[:, 1, 1] = scale * torch.cos(angle)
    matrix[:, 1, 0] = scale * torch.sin(angle)
    matrix[:, 0, 1] = -matrix[:, 1, 0]
    matrix[:, :, 2] = torch.stack((right, down), -1)
    return F.grid_sample(pictures, F.affine_grid(matrix, pictures.size(), False), "bilinear", "border", False)


def augment_by_cat(pictures, angle, scale, right, down):
    """Rotation and shift joined; align_corners left at its default."""
    turn = torch.cat([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2, -1).permute(2, 0, 1)
    matrix = torch.cat([turn * scale[:, None, None], torch.stack([right, down], 1)[..., None]], dim=2)
    return F.grid_sample(pictures.clone(), F.affine_grid(matrix, pictures.shape), padding_mode="border")


def augment_by_einsum(pictures, angle, scale, right, down):
    """A grid made by hand, from the middles of pixels."""
    n, _, height, width = pictures.shape
    x = (2 * torch.arange(width) + 1) / width - 1
    y = (2 * torch.arange(height) + 1) / height - 1
    places = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1)
    turn = torch.polar(scale, angle)
    matrix = torch.stack([torch.stack([turn.real, -turn.imag], -1), torch.stack([turn.imag, turn.real], -1)], dim=1)
    grid = torch.einsum("nij,hwj->nhwi", matrix, places) + torch.stack([right, down], -1).view(n, 1, 1, 2)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def augment_by_lists(pictures, angle, scale, right, down):
    """Matrices from plain numbers, which are asked for once; in float64."""
    rows = [
        [[s * math.cos(a), -s * math.sin(a), r], [s * math.sin(a), s * math.cos(a), d]]
        for a, s, r, d in torch.stack([angle, scale, right, down], 1).double().tolist()
    ]
    grid = F.affine_grid(torch.tensor(rows, dtype=torch.float64), list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures.double(), grid, padding_mode="border", align_corners=False)


def faster_by_shares(seconds, factors, epochs_before, epochs_after):
    """Amdahl's own form, with shares of the whole."""
    total = sum(seconds.values())
    shares = np.array([each / total for each in seconds.values()])
    every = np.array([factors.get(part, 1) for part in seconds])
    return np.float64(epochs_before / epochs_after) / np.sum(shares / every)


def faster_by_subtraction(seconds, factors, epochs_before, epochs_after):
    """What each factor saves, taken off, in exact fractions."""
    before = sum(map(Fraction, seconds.values()))
    saved = Fraction(0)
    for part, factor in factors.items():
        left = 0 if factor == math.inf else 1 / Fraction(factor)
        saved += Fraction(seconds[part]) * (1 - left)
    return float(Fraction(epochs_before, epochs_after) * before / (before - saved))


def ratio_by_arrays(pairs, target):
    """NumPy: inf for what never gets there, by which a ratio is 0 of itself; NaN is left out."""
    if not pairs:
        return 0
    times = np.array([[_time(log, target) for log in pair] for pair in pairs])
    times = times[np.isfinite(times[:, 0])]
    return np.median(times[:, 0] / times[:, 1]) if len(times) else 0


def _time(log, target):
    seconds, accuracies = np.array(log).T
    return seconds[np.argmax(accuracies >= target)] if (accuracies >= target).any() else np.inf


def ratio_by_loops(pairs, target):
    """Loops, and a median by hand."""
    ratios = []
    for pair in pairs:
        times = [None, None]
        for i, log in enumerate(pair):
            for seconds, accuracy in log:
                if times[i] is None and accuracy >= target:
                    times[i] = seconds
        if times[0] is not None:
            ratios.append(times[0] / times[1] if times[1] else 0)
    ratios.sort()
    middle = len(ratios) // 2
    if not ratios:
        return torch.tensor(0.0)
    return ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("augment_batch", augment_by_filling),
        ("augment_batch", augment_by_cat),
        ("augment_batch", augment_by_einsum),
        ("augment_batch", augment_by_lists),
        ("times_faster", faster_by_shares),
        ("times_faster", faster_by_subtraction),
        ("fair_ratio", ratio_by_arrays),
        ("fair_ratio", ratio_by_loops),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_right_answer_written_another_way_passes(name, answer, seed):
    exercise = find(name)
    found = verdict(answer, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
    assert found.status == "passed", found.message


@pytest.mark.parametrize("name", ["augment_batch", "times_faster", "fair_ratio"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_each_known_mistake_is_found_and_told_by_its_own_cause(name, seed):
    exercise = find(name)
    for cause, mistaken in exercise.mistakes:
        found = verdict(mistaken, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
        assert found.status == "failed", cause
        assert cause in found.message, found.message


def test_a_batch_is_what_the_script_does_to_each_picture():
    """The lines of datasets/capstone/train.py, without its dice and its noise."""
    for pictures, *numbers in turned.augment_cases(generator_for(find("augment_batch"), 5)):
        done = turned.augment_batch(pictures, *numbers)
        for i, (angle, scale, right, down) in enumerate(torch.stack(numbers, 1).tolist()):
            cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
            matrix = torch.tensor([[[cos, -sin, right], [sin, cos, down]]], dtype=torch.float32)
            grid = F.affine_grid(matrix, (1, *pictures.shape[1:]), align_corners=False)
            alone = F.grid_sample(pictures[i][None], grid, padding_mode="border", align_corners=False)[0]
            torch.testing.assert_close(done[i], alone, rtol=1e-4, atol=1e-4)


def test_operations_are_counted_and_told():
    one_by_one = lambda pictures, *_: torch.cat([picture[None] + 1 for picture in pictures])
    told = turned.in_one_call(one_by_one)
    # unbind and cat, then a view and a sum for each
    assert told.startswith("Operations for 4 pictures: 10, for 16: 34.")
    assert turned.in_one_call(lambda pictures, *_: pictures + 1) is None


def test_what_is_drawn_has_every_trap_in_it():
    cases = [case for seed in range(4) for case in raced.ratio_cases(generator_for(find("fair_ratio"), seed))[11:]]
    logs = [(log, target) for pairs, target in cases for pair in pairs for log in pair]
    at_target = [[accuracy >= target for _, accuracy in log] for log, target in logs]
    assert any(accuracy == target for log, target in logs for _, accuracy in log), "exactly the target"
    assert any(reached != sorted(reached) for reached in at_target), "below it again"
    failed = [[raced._first(log, target) is None for log in pair] for pairs, target in cases for pair in pairs]
    assert all(kind in failed for kind in ([False, False], [False, True], [True, False], [True, True]))
    for log, _ in logs:
        assert [seconds for seconds, _ in log] == sorted({seconds for seconds, _ in log})
