"""Copies of one random generator in a loader's workers, caught; and a loader that goes on where it stopped."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from labkit import loading

EVERYWHERE = [(0, 0), (0, 1), (1, 0), (1, 1)]


class Noisy(Dataset):
    """A data set with a generator of its own, of each kind."""

    def __init__(self, dice=None):
        self.dice = dice or np.random.default_rng(0)

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return number


def _own_dice(_):
    me = get_worker_info()
    me.dataset.dice = np.random.default_rng(me.seed)


def _same_global_seed(_):
    np.random.seed(0)


@pytest.mark.parametrize(
    "dice", [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()]
)
def test_a_generator_inside_the_data_set_is_found_in_every_worker_and_epoch(dice):
    assert loading.twins(DataLoader(Noisy(dice), num_workers=2)) == {"dataset.dice": EVERYWHERE}


def test_one_worker_repeats_itself_in_every_epoch():
    assert loading.twins(DataLoader(Noisy(), num_workers=1)) == {"dataset.dice": [(0, 0), (1, 0)]}


def test_dice_set_anew_in_each_worker_have_no_twins_and_a_global_seed_has():
    assert loading.twins(DataLoader(Noisy(), num_workers=2, worker_init_fn=_own_dice)) == {}
    seeded = DataLoader(Noisy(), num_workers=2, worker_init_fn=_same_global_seed)
    assert loading.twins(seeded)["numpy.random"] == EVERYWHERE


def test_the_loader_itself_is_left_as_it_was():
    generator, data = torch.Generator().manual_seed(3), Noisy()
    loader = DataLoader(data, num_workers=2, generator=generator)
    before = generator.get_state()
    loading.twins(loader)
    assert torch.equal(generator.get_state(), before)
    assert type(data) is Noisy
    assert [batch.item() for batch in loader] == list(range(12))


def test_without_workers_there_is_nothing_to_ask():
    with pytest.raises(ValueError, match="with workers"):
        loading.twins(DataLoader(Noisy()))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_torchdatas_loader_goes_on_in_the_middle_of_an_epoch(n_workers):
    """What lesson 09 rests on: with another seed outside, the very batches that were to come."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
        from torchdata.stateful_dataloader import StatefulDataLoader

        def made(seed):
            torch.manual_seed(seed)
            return StatefulDataLoader(range(40), batch_size=4, shuffle=True, num_workers=n_workers)

        first = made(0)
        begun = iter(first)
        seen = [next(begun).tolist() for _ in range(4)]
        kept = first.state_dict()
        expected = [part.tolist() for part in begun]
        second = made(123)
        second.load_state_dict(kept)
        rest = [part.tolist() for part in second]
    assert rest == expected
    assert sorted(sum(seen + rest, [])) == list(range(40))
