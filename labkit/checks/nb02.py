"""The checks of lesson 02: the plan, the FLOPs of a picture, and a run that beats full size in the same session."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from labkit import models, resize, train
from labkit.checker import Exercise, close, exact
from labkit.data import glyphs
from labkit.resize import growing_sizes

Conv = tuple[int, int, int, int]
Batch = tuple[Tensor, Tensor]


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


def growing(loader: resize.Loader, n_epochs: int) -> Iterator[Batch]:
    """The batches of n_epochs epochs, from half the loader's full size up, three eighths of them at full size."""
    for size in growing_sizes(n_epochs, loader.full // 2, loader.full, round(3 * n_epochs / 8)):
        yield from loader.epoch(size)


_FULL, _EPOCHS, _BATCH_SIZE = 32, 8, 64
LESS_ACCURATE, SOONER = 0.08, 1.2  # what the bar forgives in accuracy, and asks for in seconds


def _shown(fn: Callable, n_epochs: int, n_pictures: int) -> dict:
    """How `fn` is used: it is given a loader, and what it yields is counted."""
    targets = torch.arange(n_pictures)
    loader = resize.Loader(torch.zeros(n_pictures, 1, _FULL, _FULL), targets, batch_size=4, seed=0)
    labels = [labels for _, labels in fn(loader, n_epochs)]
    times = torch.bincount(torch.cat(labels), minlength=n_pictures) if labels else torch.zeros(n_pictures).long()
    return {"batches": len(labels), "times each picture is shown": times}


def _from_the_cheap_side(fn: Callable) -> str | None:
    """Says so where the loader delivers pixels that the network never sees, or shrinks more than once a phase."""
    targets = torch.arange(2 * _BATCH_SIZE)
    loader = resize.Loader(torch.zeros(len(targets), 1, _FULL, _FULL), targets, batch_size=_BATCH_SIZE, seed=0)
    sizes, n_pixels = set(), 0
    for pictures, _ in fn(loader, _EPOCHS):
        sizes.add(pictures.shape[-1])
        n_pixels += pictures.numel()
    if loader.n_pixels != n_pixels:
        return (
            f"The loader delivered {loader.n_pixels:,} pixels and the network was given {n_pixels:,}: shrinking after "
            "the loader saves none of the loader's work. Ask it for the size that you want: loader.epoch(size)."
        )
    small = sorted(sizes - {_FULL})
    if loader.n_resizes > len(small):
        return f"It shrinks all pictures {loader.n_resizes} times, for the sizes {small}: once a phase is enough."
    return None


@cache
def _faces(split: str) -> tuple[Tensor, Tensor]:
    """Pictures and labels that the bar trains on, or is judged on."""
    held = glyphs.load(split, _FULL)
    return held.inputs[:1280], held.targets[:1280]


def trained(fn: Callable, seed: int = 12) -> tuple[float, float]:
    """(accuracy at full size, seconds of training) of a small ResNet on the batches that fn yields."""
    loader = resize.Loader(*_faces("train"), batch_size=_BATCH_SIZE, seed=seed)
    torch.manual_seed(seed)
    model = models.resnet(width=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, nesterov=True, weight_decay=5e-4)
    n_steps = _EPOCHS * loader.n_batches
    history = train.fit(
        model,
        _on_one_thread(fn(loader, _EPOCHS)),
        n_steps=n_steps,
        optimizer=optimizer,
        lr=train.one_cycle(0.4, n_steps),
        evaluate=lambda model: train.score(model, *_faces("validation")),
        progress=False,
    )
    return (0.0, float("inf")) if history.diverged else (history.eval_accuracies[-1], history.eval_cpu_s[-1])


def _on_one_thread(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, with torch on one thread at every step: on a busy machine more would wait for each other."""
    for batch in batches:
        torch.set_num_threads(1)
        yield batch


def _all_full(loader: resize.Loader, n_epochs: int) -> Iterator[Batch]:
    """What the bar is relative to: every epoch at full size."""
    for _ in range(n_epochs):
        yield from loader.epoch(loader.full)


def _beats_full_size(fn: Callable) -> str | None:
    """Trains at full size throughout and on what fn yields, here and now: as accurate, and sooner? In doubt, twice."""
    (full_accuracy, full_s), (accuracy, seconds) = trained(_all_full), trained(fn)
    if accuracy < full_accuracy - LESS_ACCURATE:
        return (
            f"At {_FULL} pixels it ends with an accuracy of {accuracy:.2f}; full size throughout ends with "
            f"{full_accuracy:.2f}. It does not learn enough at the size that it is judged at."
        )
    ratio = full_s / seconds
    if SOONER > ratio > 1.05:  # close enough that another program may have slowed one of the two
        ratio = max(ratio, trained(_all_full)[1] / trained(fn)[1])
    if ratio < SOONER:
        shown = math.floor(100 * ratio) / 100  # never 1.20 where 1.2 was missed
        return f"It is {shown:.2f} times as fast as full size throughout, and {SOONER} is asked for: grow later."
    return None


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
        cases=lambda rng: [(4, 8), (8, 16), (_draw(rng, 5, 12), 12)],
        reference=growing,
        compare=close(why="Every picture once an epoch: yield all that loader.epoch(size) gives, n_epochs times."),
        drive=_shown,
        mechanism=_from_the_cheap_side,
        bar=_beats_full_size,
        points=5,
        hints=(
            "Nothing is yielded: loader.epoch(size) is an iterator; hand on what it gives with `yield from`.",
            "Too inaccurate: it needs more epochs at loader.full at the end. Too slow: it needs fewer.",
            "Your growing_sizes gives the sizes; half the full size to start with is a good guess.",
        ),
    ),
)
