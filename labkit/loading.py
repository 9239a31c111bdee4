"""What a DataLoader's workers do behind one's back: each has a copy of the data set, and of every generator in it.

torch sets its own generator anew in each worker, Python's and NumPy's global ones too. Those inside a data set it does
not know: their copies draw the same numbers in every worker, and again in every epoch.
"""

import copy
import hashlib
import pickle
import random
from collections import defaultdict

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def twins(loader: DataLoader) -> dict[str, list[tuple[int, int]]]:
    """Generators found in one state more than once, by name, with the (epoch, worker) pairs where they were.

    Empty where all is well. Workers are started as the loader starts them, for two epochs (one where they persist), and
    tell the states of the global generators and of those among the data set's attributes, before a sample is drawn.
    Not found: a generator that is made while a sample is, or lies deeper. Needs workers that are forked.
    ValueError: no workers, or a data set that is a stream.
    """
    if not loader.num_workers or isinstance(loader.dataset, IterableDataset):
        raise ValueError("twins takes a loader with workers, 1 or more, and a data set with numbered samples")
    asking = _asking(loader)
    places = defaultdict(list)
    for epoch in range(1 if loader.persistent_workers else 2):
        for worker, states in asking:
            for name, state in states.items():
                places[name, state].append((epoch, worker))
    found = defaultdict(list)
    for (name, _), where in places.items():
        if len(where) > 1:
            found[name] += where
    return {name: sorted(where) for name, where in found.items()}


def _asking(loader: DataLoader) -> DataLoader:
    """A loader whose workers start as this one's do, on the same data set, and give its generators' states, once each.

    The data set keeps its class and attributes beside the question: what starts a worker may want to change them.
    """
    asked = copy.copy(loader.dataset)
    asked.__class__ = type("Asked", (type(asked),), {"__getitem__": lambda self, _: _told(self)})
    generator = None
    if loader.generator is not None:
        generator = torch.Generator().set_state(loader.generator.get_state())  # the loader's own must stay as it is
    return DataLoader(
        asked,
        batch_size=None,
        sampler=range(loader.num_workers),
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=generator,
    )


def _told(dataset: object) -> tuple[int, dict[str, str]]:
    """This worker's number, and a digest of each generator's state."""
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
    }
    for name, value in vars(dataset).items():
        if isinstance(value, np.random.Generator):
            states[f"dataset.{name}"] = value.bit_generator.state
        elif isinstance(value, np.random.RandomState):
            states[f"dataset.{name}"] = value.get_state()
        elif isinstance(value, torch.Generator):
            states[f"dataset.{name}"] = value.get_state().numpy().tobytes()
        elif isinstance(value, random.Random):
            states[f"dataset.{name}"] = value.getstate()
    return get_worker_info().id, {name: hashlib.sha256(pickle.dumps(it)).hexdigest() for name, it in states.items()}
