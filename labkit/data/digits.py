"""Real handwritten digits: 1797 pictures of 8x8 pixels, in digits.npz beside this file.

They are those of scikit-learn, in its order; a lesson on a machine without that package has them too.
"""

from pathlib import Path

import numpy as np
import torch

from labkit.data import Arrays, Split, cached, choose

CLASSES = tuple("0123456789")
SPLITS = ("train", "validation", "test")
MEAN, STD = 0.305, 0.376  # of all pixels, once scaled from 0..16 to 0..1
PUBLISHED = {
    "digits-train": "61f97bc393655cab22cec9481e59bd6e7a0f5e7255473eb269326019b4373de4",
    "digits-validation": "b96bad56a479c1313e936a3a6e54df80aa999355acf88412dbe5bae269fd1d1d",
    "digits-test": "b1adf9a57810ef9395ecc1c25b4d82a2a87a82e26975314e4a489e751de288db",
}

_FILE = Path(__file__).with_name("digits.npz")


def load(split: str = "train") -> Split:
    """The digits of one split, [N, 1, 8, 8] in float32, as (pixel / 16 - MEAN) / STD; targets are 0 to 9.

    Of each digit's pictures, in scikit-learn's order, every fifth is for test and the one before it for validation.
    ValueError for an unknown split.
    """
    choose(split, SPLITS)
    arrays, digest = cached(f"digits-{split}-v1", lambda: _pick(split))
    return Split(
        name=f"digits-{split}",
        inputs=torch.from_numpy(arrays["pixels"]).to(torch.float32).div_(16).sub_(MEAN).div_(STD).unsqueeze(1),
        targets=torch.from_numpy(arrays["labels"]).to(torch.int64),
        classes=CLASSES,
        sha256=digest,
    )


def _pick(split: str) -> Arrays:
    """The pixels and labels of one split, uint8, digits mixed as scikit-learn has them."""
    with np.load(_FILE, allow_pickle=False) as digits:
        pixels, labels = digits["pixels"], digits["labels"]
    nth = np.zeros(len(labels), np.int64)  # how many of the same digit came before
    for digit in range(10):
        nth[labels == digit] = np.arange((labels == digit).sum())
    mine = np.isin(nth % 5, {"train": (0, 1, 2), "validation": (3,), "test": (4,)}[split])
    return {"pixels": pixels[mine], "labels": labels[mine]}
