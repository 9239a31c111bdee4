"""The checks of lesson 02: the plan, the FLOPs of a picture, and a run that beats full size in the same session."""

from collections.abc import Sequence

import torch

from labkit.checker import Exercise, close, exact
from labkit.checks.growth import (
    NOT_SOONER,
    OTHER_PICTURES,
    SOONER,
    TOO_LITTLE,
    all_full,
    beats_full_size,
    delivered,
    from_the_cheap_side,
    growing,
    shown_times,
    taught,
    taught_less,
)
from labkit.resize import growing_sizes
from labkit.timing import Timing

Conv = tuple[int, int, int, int]


def _plan_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Corners first, then plans drawn at random."""
    corners = [(4, 16, 32, 2, 8), (6, 24, 48, 2, 8), (3, 24, 48, 3, 8), (3, 24, 48, 0, 8), (6, 20, 50, 2, 8)]
    return [*corners, *(_random_plan(rng) for _ in range(30))]


def _random_plan(rng: torch.Generator) -> tuple:
    """A plan whose full size need not be a multiple of anything."""
    n_epochs, multiple = _draw(rng, 1, 20), _draw(rng, 1, 16)
    small = _draw(rng, multiple, 64)
    return n_epochs, small, _draw(rng, small, 128), _draw(rng, 0, n_epochs), multiple


def _draw(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def _reaches_full_too_soon(n_epochs: int, small: int, full: int, n_last: int, multiple: int) -> list[int]:
    """The mistake of dividing by one epoch too few."""
    steps = max(1, n_epochs - n_last - 1)
    growing = [small + (full - small) * epoch // steps for epoch in range(n_epochs - n_last)]
    return [size // multiple * multiple for size in growing] + [full] * n_last


def _rounds_the_full_size(n_epochs: int, small: int, full: int, n_last: int, multiple: int) -> list[int]:
    """The mistake of rounding the last epochs too."""
    return [size // multiple * multiple for size in growing_sizes(n_epochs, small, full, n_last, multiple)]


def _rounds_to_nearest(n_epochs: int, small: int, full: int, n_last: int, multiple: int) -> list[int]:
    """The mistake of rounding to the nearest multiple."""
    growing = growing_sizes(n_epochs, small, full, n_last, 1)[: n_epochs - n_last]
    return [round(size / multiple) * multiple for size in growing] + [full] * n_last


def _rounds_the_growth_only(n_epochs: int, small: int, full: int, n_last: int, multiple: int) -> list[int]:
    """The mistake of rounding what is added to the small size, and not the sum."""
    n_growing = n_epochs - n_last
    growing = [small + (full - small) * epoch // n_growing // multiple * multiple for epoch in range(n_growing)]
    return growing + [full] * n_last


def train_flops(convs: Sequence[Conv], head: tuple[int, int], size: int) -> int:
    """FLOPs to train on one picture of size x size pixels: forward, and backward to weights and inputs.

    convs: (channels in, channels out, kernel, shrink) of each convolution; its output is ceil(size / shrink) pixels a
    side, and the first is fed by the picture. head: inputs and outputs of the last layer. Two FLOPs a multiply-add.
    Ignores batch-norm, ReLU and the optimizer.
    """
    forward = [2 * c_in * c_out * kernel**2 * (-(-size // shrink)) ** 2 for c_in, c_out, kernel, shrink in convs]
    return 3 * (sum(forward) + 2 * head[0] * head[1]) - forward[0]


def _resnet_convs(width: int) -> list[Conv]:
    """The convolutions of models.resnet."""
    convs = [(1, width, 3, 2), (width, width, 3, 2), (width, width, 3, 2)]
    for c_in, shrink in ((width, 4), (2 * width, 8)):
        convs += [(c_in, 2 * c_in, 3, shrink), (2 * c_in, 2 * c_in, 3, shrink), (c_in, 2 * c_in, 1, shrink)]
    return convs


def _flops_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One layer, then the lesson's network at even and odd sizes and other widths."""
    cases = [([(1, 2, 3, 1)], (2, 2), 4), ([(1, 4, 3, 2), (4, 4, 3, 2)], (4, 3), 5)]
    cases += [(_resnet_convs(16), (64, 32), size) for size in (24, 32, 37, 48)]
    return cases + [(_resnet_convs(w), (4 * w, 32), _draw(rng, 16, 128)) for w in (8, 24, 64)]


def _forward_only(convs: Sequence[Conv], head: tuple[int, int], size: int) -> int:
    """The mistake of stopping at the loss."""
    return (train_flops(convs, head, size) + train_flops(convs[:1], (0, 0), size) // 2) // 3


def _three_times_forward(convs: Sequence[Conv], head: tuple[int, int], size: int) -> int:
    """The mistake of sending gradients to the picture."""
    return 3 * _forward_only(convs, head, size)


def _floor_sides(convs: Sequence[Conv], head: tuple[int, int], size: int) -> int:
    """The mistake of rounding a side down."""
    rounded = [(c_in, c_out, kernel, shrink, size // shrink) for c_in, c_out, kernel, shrink in convs]
    forward = [2 * c_in * c_out * kernel**2 * side**2 for c_in, c_out, kernel, _, side in rounded]
    return 3 * (sum(forward) + 2 * head[0] * head[1]) - forward[0]


def _shrinks_again(convs: Sequence[Conv], head: tuple[int, int], size: int) -> int:
    """The mistake of reading each row's shrink as one from the row before."""
    factor, rows = 1, []
    for c_in, c_out, kernel, shrink in convs:
        factor *= shrink
        rows.append((c_in, c_out, kernel, factor))
    return train_flops(rows, head, size)


def _head_forward_only(convs: Sequence[Conv], head: tuple[int, int], size: int) -> int:
    """The mistake of forgetting the way back of the last layer."""
    return train_flops(convs, head, size) - 4 * head[0] * head[1]


EXERCISES = (
    Exercise(
        number="2.1",
        name="growing_sizes",
        cases=_plan_cases,
        reference=growing_sizes,
        compare=exact,
        mistakes=(
            ("The way up already ends at full size: divide by the number of growing epochs.", _reaches_full_too_soon),
            ("The last epochs are rounded too: they keep the full size as it is.", _rounds_the_full_size),
            ("Rounded to the nearest multiple: round down.", _rounds_to_nearest),
            ("What is added is rounded, and not the sum: small need be no multiple.", _rounds_the_growth_only),
        ),
        points=3,
        hints=(
            "A ZeroDivisionError: with n_last equal to n_epochs nothing grows, so divide only inside the loop.",
            "Growing epoch e has the size small + (full - small) * e / n_growing, before it is rounded down.",
            "size // multiple * multiple rounds down; [full] * n_last is the end.",
        ),
    ),
    Exercise(
        number="2.2",
        name="train_flops",
        cases=_flops_cases,
        reference=train_flops,
        compare=close(rtol=1e-9, why="Add up 2 · c_in · c_out · kernel² · side² over the layers, then the way back."),
        mistakes=(
            ("That is the way forward only: the way back costs up to twice as much again.", _forward_only),
            ("Three times forward is a little too much: nobody needs the gradient of a picture.", _three_times_forward),
            ("A side is rounded up: 37 pixels halved are 19.", _floor_sides),
            ("shrink counts from the picture, not from the row before.", _shrinks_again),
            ("The head has a way back too, to its weights and to its inputs.", _head_forward_only),
        ),
        points=4,
        hints=(
            "Half of the right number: a multiply and an add are two FLOPs.",
            "Backward, each layer costs its forward FLOPs twice: once for its weights, once for its inputs. The first "
            "layer's inputs are the picture.",
            "The side of a layer's output, rounded up, is -(-size // shrink).",
        ),
    ),
    Exercise(
        number="2.3",
        name="growing",
        cases=lambda rng: [(4, 8), (8, 16), *((_draw(rng, 5, 20), 4 * _draw(rng, 2, 8)) for _ in range(2))],
        reference=growing,
        compare=close(why="Every picture once an epoch: yield all that loader.epoch(size) gives, n_epochs times."),
        drive=shown_times,
        mechanism=from_the_cheap_side,
        bar=beats_full_size,
        timing=Timing(
            inputs=lambda _seed: (),
            run=delivered,
            then=taught,
            baseline=all_full,
            fault=taught_less,
            asked=SOONER,
            slow=NOT_SOONER,
            says=(OTHER_PICTURES, TOO_LITTLE),
            cpu=True,
        ),
        points=5,
        hints=(
            "Nothing is yielded: loader.epoch(size) is an iterator; hand on what it gives with `yield from`.",
            "Too inaccurate: it needs more epochs at loader.full at the end. Too slow: it needs fewer.",
            "Your growing_sizes gives the sizes; half the full size to start with is a good guess.",
        ),
    ),
)
