"""Progressive resizing: a network that averages over positions trains on small pictures first and ends on full-sized.

Source: Howard and others, fast.ai's DAWNBench entry (2018), https://www.fast.ai/posts/2018-08-10-fastai-diu-imagenet.html.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from labkit import train


def shrunk(pictures: Float[Tensor, "M C H H"], size: int) -> Float[Tensor, "M C S S"]:
    """The pictures at size x size pixels, each pixel the average of the area that it covers; as they are at full size.

    ValueError: a size larger than the pictures, which would invent pixels, or under 1.
    """
    full = pictures.shape[-1]
    if not 1 <= size <= full:
        raise ValueError(f"pictures of {full} pixels can be shrunk to sizes from 1 to {full}, not to {size}")
    return pictures if size == full else functional.interpolate(pictures, size=(size, size), mode="area")


def growing_sizes(n_epochs: int, small: int, full: int, n_last: int, multiple: int = 8) -> list[int]:
    """The size of each epoch: from small towards full in a straight line, then full for the last n_last epochs.

    Sizes on the way are rounded down to a multiple of `multiple`.
    """
    n_growing = n_epochs - n_last
    growing = [small + (full - small) * epoch // n_growing for epoch in range(n_growing)]
    return [size // multiple * multiple for size in growing] + [full] * n_last


class Loader:
    """Shuffled batches of a data set's pictures at any size up to their own, and a count of what that took.

    full: the pictures' own size. n_batches: batches of an epoch. n_pixels: pixels delivered so far. n_resizes: how
    often the pictures were shrunk. The order of the pictures depends on the seed alone, whatever the sizes.
    """

    def __init__(self, inputs: Float[Tensor, "M C H H"], targets: Int[Tensor, "M"], *, batch_size: int, seed: int):
        places = torch.arange(len(inputs), device=inputs.device)
        self.full, self.n_batches = inputs.shape[-1], len(inputs) // batch_size
        self.n_pixels = self.n_resizes = 0
        self._inputs = self._small = inputs
        self._shuffled = train.shuffled(places, targets, batch_size=batch_size, seed=seed)

    def epoch(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch at size x size pixels; pictures are shrunk only where the size changes."""
        if size != self._small.shape[-1]:
            self._small = shrunk(self._inputs, size)
            self.n_resizes += size != self.full
        for chosen, targets in islice(self._shuffled, self.n_batches):
            pictures = self._small[chosen]
            self.n_pixels += pictures.numel()
            yield pictures, targets
