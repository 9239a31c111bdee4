"""Exercise 2.3, a run that beats full size in the same session: how it is driven, its mechanism and its bar."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from labkit import models, resize, train
from labkit.data import glyphs
from labkit.resize import growing_sizes

Batch = tuple[Tensor, Tensor]


def growing(loader: resize.Loader, n_epochs: int) -> Iterator[Batch]:
    """The batches of n_epochs epochs, from half the loader's full size up, three eighths of them at full size."""
    for size in growing_sizes(n_epochs, loader.full // 2, loader.full, round(3 * n_epochs / 8)):
        yield from loader.epoch(size)


_FULL, _EPOCHS, _BATCH_SIZE, _SEED = 32, 8, 64, 12
LESS_ACCURATE, SOONER = 0.08, 1.2  # what the bar forgives in accuracy, and asks for in seconds


def shown_times(fn: Callable, n_epochs: int, n_pictures: int) -> dict:
    """How `fn` is used: it is given a loader, and what it yields is counted."""
    targets = torch.arange(n_pictures)
    loader = resize.Loader(torch.zeros(n_pictures, 1, _FULL, _FULL), targets, batch_size=4, seed=0)
    labels = [labels for _, labels in fn(loader, n_epochs)]
    times = torch.bincount(torch.cat(labels), minlength=n_pictures) if labels else torch.zeros(n_pictures).long()
    return {"batches": len(labels), "times each picture is shown": times}


def from_the_cheap_side(fn: Callable) -> str | None:
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


def _loader(seed: int) -> resize.Loader:
    """What the bar gives to the function that it times."""
    return resize.Loader(*_faces("train"), batch_size=_BATCH_SIZE, seed=seed)


def trained(fn: Callable, seed: int = _SEED) -> tuple[float, float]:
    """(accuracy at full size, seconds of training) of a small ResNet on the batches that fn yields."""
    return _fitted(fn(_loader(seed), _EPOCHS), seed)


def _fitted(batches: Iterable[Batch], seed: int = _SEED) -> tuple[float, float]:
    """`trained`, on these batches."""
    torch.manual_seed(seed)
    model = models.resnet(width=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, nesterov=True, weight_decay=5e-4)
    n_steps = _EPOCHS * (len(_faces("train")[1]) // _BATCH_SIZE)
    history = train.fit(
        model,
        _on_one_thread(batches),
        n_steps=n_steps,
        optimizer=optimizer,
        lr=train.one_cycle(0.4, n_steps),
        evaluate=lambda model: train.score(model, *_faces("validation")),
        progress=False,
    )
    return (0.0, float("inf")) if history.diverged else (history.eval_accuracies[-1], history.eval_cpu_s[-1])


def _on_one_thread(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, with torch on one thread at every step: on a busy machine more would wait for each other."""
    for batch in batches:
        torch.set_num_threads(1)
        yield batch


def all_full(loader: resize.Loader, n_epochs: int) -> Iterator[Batch]:
    """What the bar is relative to: every epoch at full size."""
    for _ in range(n_epochs):
        yield from loader.epoch(loader.full)


def beats_full_size(fn: Callable) -> str | None:
    """Trains at full size throughout and on what fn yields, here and now: as accurate, and sooner? In doubt, twice."""
    (full_accuracy, full_s), (accuracy, seconds) = trained(all_full), trained(fn)
    if accuracy < full_accuracy - LESS_ACCURATE:
        return _inaccurate(accuracy, full_accuracy)
    ratio = full_s / seconds
    if SOONER > ratio > 1.05:  # close enough that another program may have slowed one of the two
        ratio = max(ratio, trained(all_full)[1] / trained(fn)[1])
    return too_slow(ratio) if ratio < SOONER else None


def _inaccurate(accuracy: float, full_accuracy: float) -> str:
    """What to say of batches that teach too little."""
    return (
        f"At {_FULL} pixels it ends with an accuracy of {accuracy:.2f}; full size throughout ends with "
        f"{full_accuracy:.2f}. It does not learn enough at the size that it is judged at."
    )


def too_slow(ratio: float) -> str:
    """What to say of batches that cost too much."""
    shown = math.floor(100 * ratio) / 100  # never 1.20 where 1.2 was missed
    return f"It is {shown:.2f} times as fast as full size throughout, and {SOONER} is asked for: grow later."


def delivered(fn: Callable) -> list[Batch]:
    """The batches that fn yields for the bar: copies, for it may use its memory again."""
    return [(pictures.clone(), labels.clone()) for pictures, labels in fn(_loader(_SEED), _EPOCHS)]


def taught(batches: Sequence[Batch]) -> dict:
    """What training on these batches comes to, and how often they show each character."""
    shown = torch.bincount(torch.cat([labels for _, labels in batches]))
    return {"accuracy": _fitted(batches)[0], "shown": shown.tolist()}


OTHER_PICTURES = "Every picture once an epoch: yield all that loader.epoch(size) gives, n_epochs times."
TOO_LITTLE = f"It ends less accurate than full size throughout: it does not learn enough at {_FULL} pixels."
NOT_SOONER = f"It is not {SOONER} times as fast as full size throughout: grow later."


def taught_less(got: dict, full: dict) -> str | None:
    """Says so where the batches show other pictures than full size throughout does, or teach less."""
    if got["shown"] != full["shown"]:
        return OTHER_PICTURES
    return TOO_LITTLE if got["accuracy"] < full["accuracy"] - LESS_ACCURATE else None
