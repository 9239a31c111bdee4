"""What the capstone's scripts are given: pictures with labels, of which the classes are renumbered for every run.

A network that was trained in an earlier run, or brought along, is right by chance only under another numbering.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIZE = 48
TARGET = 0.80
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pixels, uint8 [N, H, W], and the number of what each picture shows."""

    pixels: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Task:
    """Three splits, how many classes they have, and the share of the validation pictures to be right on."""

    train: Pictures
    validation: Pictures
    test: Pictures
    n_classes: int
    target: float


def glyphs_task(target: float = TARGET) -> Task:
    """The capstone's own task: characters of 48 pixels; faces of the validation and test splits are in no other."""
    from labkit.data import glyphs

    found = {}
    for name in _SPLITS:
        split = glyphs.load(name, SIZE)
        pixels = ((split.inputs[:, 0] * glyphs.STD + glyphs.MEAN) * 255).round().byte().numpy()
        found[name] = Pictures(pixels=pixels, labels=split.targets.numpy())
    return Task(**found, n_classes=len(glyphs.CLASSES), target=target)


def numbering(task: Task, seed: int) -> np.ndarray:
    """New numbers of the classes: class k is called numbering[k]."""
    return np.random.default_rng(seed).permutation(task.n_classes)


def misnamed(task: Task, numbers: np.ndarray, secret: int) -> np.ndarray:
    """Labels of the validation pictures under which every class goes by the name of another, the same throughout.

    A network learns such labels from pictures in a few epochs, which it does not with labels that are random.
    """
    ring = np.random.default_rng(secret).permutation(task.n_classes)
    other = np.empty_like(ring)
    other[ring] = np.roll(ring, 1)
    return numbers[other[task.validation.labels]]


def hand_out(task: Task, folder: Path, numbers: np.ndarray, *, validation: np.ndarray | None = None) -> None:
    """Write train.npz and validation.npz; validation: labels to put in the place of the validation pictures' own."""
    folder.mkdir(parents=True, exist_ok=True)
    if validation is None:
        validation = numbers[task.validation.labels]
    np.savez(folder / "train.npz", pixels=task.train.pixels, labels=numbers[task.train.labels])
    np.savez(folder / "validation.npz", pixels=task.validation.pixels, labels=validation)
