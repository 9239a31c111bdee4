"""The checks of lesson 21: a batch augmented in one call, what parts make of the whole, a fair ratio of runs."""

from labkit.checker import Exercise, close
from labkit.checks.amdahl import FASTER_MISTAKES, faster_cases, times_faster
from labkit.checks.raced import RATIO_MISTAKES, fair_ratio, ratio_cases
from labkit.checks.turned import AUGMENT_MISTAKES, augment_batch, augment_cases, in_one_call

EXERCISES = (
    Exercise(
        number="21.1",
        name="augment_batch",
        cases=augment_cases,
        reference=augment_batch,
        # A grid computed in another order is off by up to 5e-5: rounded places, times what neighbours differ.
        compare=close(1e-4, 5e-4, "For one picture: do matrix, grid and sampling have what the script gives them?"),
        mechanism=in_one_call,
        mistakes=AUGMENT_MISTAKES,
        points=4,
        hints=(
            "The script makes a batch of one, (1, 1, 48, 48). affine_grid takes N matrices as well as one.",
            "The matrices are [N, 2, 3]. cos, sin, right and down are [N] each: stack them, no loop.",
            "torch.stack([cos, -sin, right, sin, cos, down], dim=1).view(-1, 2, 3) are the matrices. Give them to "
            "affine_grid with pictures.shape, and sample as the script does.",
        ),
    ),
    Exercise(
        number="21.2",
        name="times_faster",
        cases=faster_cases,
        reference=times_faster,
        compare=close(1e-9, 0.0, "How many seconds does the run take before, all epochs? And after? Divide."),
        mistakes=FASTER_MISTAKES,
        points=3,
        hints=(
            "Factors cannot be averaged; seconds can be added. What is left of each part?",
            "After: the sum of seconds / factor, with a factor of 1 where none is named. x / math.inf is 0.",
            "epochs_before * sum(seconds.values()), divided by epochs_after times the sum over seconds.items() of "
            "part_s / factors.get(part, 1).",
        ),
    ),
    Exercise(
        number="21.3",
        name="fair_ratio",
        cases=ratio_cases,
        reference=fair_ratio,
        compare=close(1e-9, 0.0, "For each pair: when did each run first have the target, and did it at all?"),
        mistakes=RATIO_MISTAKES,
        points=4,
        hints=(
            "Write a small function first: the seconds at which one log reaches the target, or None.",
            "next((seconds for seconds, accuracy in log if accuracy >= target), None). Where slow gives None, leave "
            "the pair out; where only fast does, its ratio is 0.0.",
            "Collect the ratios in a list, and return statistics.median(ratios) if ratios else 0.0.",
        ),
    ),
)
