"""Shrinking, the plan and the loader against values worked out by hand."""

import pytest
import torch

from labkit import resize


def test_a_pixel_of_a_shrunk_picture_is_the_average_of_its_area():
    picture = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(resize.shrunk(picture, 2).flatten(), torch.tensor([2.5, 4.5, 10.5, 12.5]))
    assert resize.shrunk(picture, 1).item() == 7.5
    assert resize.shrunk(picture, 4) is picture


@pytest.mark.parametrize("size", [0, 5])
def test_pixels_are_not_invented(size):
    with pytest.raises(ValueError, match=f"from 1 to 4, not to {size}"):
        resize.shrunk(torch.zeros(1, 1, 4, 4), size)


@pytest.mark.parametrize(
    ("n_epochs", "small", "full", "n_last", "expected"),
    [
        (4, 16, 32, 2, [16, 24, 32, 32]),
        (6, 24, 48, 2, [24, 24, 32, 40, 48, 48]),
        (3, 24, 48, 0, [24, 32, 40]),
        (3, 24, 50, 3, [50, 50, 50]),
        (3, 20, 48, 1, [16, 32, 48]),
        (1, 24, 48, 0, [24]),
    ],
)
def test_sizes_grow_in_a_line_and_end_full(n_epochs, small, full, n_last, expected):
    assert resize.growing_sizes(n_epochs, small, full, n_last) == expected


@pytest.fixture
def loader():
    """Ten pictures of 4 x 4 pixels in batches of three; each holds its label in every pixel."""
    targets = torch.arange(10)
    pictures = targets.float().view(10, 1, 1, 1).expand(10, 1, 4, 4)
    return resize.Loader(pictures, targets, batch_size=3, seed=0)


def test_an_epoch_has_every_picture_once_at_its_size(loader):
    batches = list(loader.epoch(2))
    assert [tuple(x.shape) for x, _ in batches] == [(3, 1, 2, 2)] * 3
    assert all(torch.equal(x[:, 0, 0, 0].long(), y) for x, y in batches)
    assert len(set(torch.cat([y for _, y in batches]).tolist())) == 9
    assert (loader.full, loader.n_batches) == (4, 3)


def test_pixels_and_resizes_are_counted_once_a_phase(loader):
    for size in (2, 2, 4, 4):
        list(loader.epoch(size))
    assert loader.n_resizes == 1
    assert loader.n_pixels == 2 * 9 * 4 + 2 * 9 * 16


def test_the_order_does_not_depend_on_the_sizes(loader):
    other = resize.Loader(torch.zeros(10, 1, 4, 4), torch.arange(10), batch_size=3, seed=0)
    mine = [y.tolist() for size in (2, 4) for _, y in loader.epoch(size)]
    assert mine == [y.tolist() for size in (4, 4) for _, y in other.epoch(size)]
