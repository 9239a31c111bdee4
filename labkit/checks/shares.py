"""A rank's share of the data, for lesson 12: the trusted form, and how a learner's is looked at."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch

from labkit.compare import Finding


def my_share(n: int, rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    """The examples, of n, that a rank trains on in an epoch: shuffled alike on all ranks, anew in each epoch."""
    dice = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=dice).tolist()[rank::world_size]


def drive_share(fn: Callable, n: int, world_size: int, seed: int) -> Finding:
    """`right`, or what is wrong with the shares that fn deals out."""
    epochs = []
    for epoch in range(3):
        dealt = [_share(fn, n, rank, world_size, epoch, seed) for rank in range(world_size)]
        shares, after = zip(*dealt, strict=True)
        if any(len(set(states)) < len(states) for states in zip(*after, strict=True)):  # they were different before
            return Finding("the program's own dice were used")
        if fault := next((each for each in shares if isinstance(each, str)), "") or _dealt_wrongly(shares, n):
            return Finding(fault)
        epochs.append(shares)
    if epochs[0] == epochs[1] or epochs[1] == epochs[2]:
        return Finding("the same order in each epoch")
    if fn(n, 0, world_size, 0, seed) != epochs[0][0]:
        return Finding("another order when asked again")
    other = tuple(fn(n, rank, world_size, 0, seed + 1000) for rank in range(world_size))
    if other == epochs[0]:
        return Finding("the same order for every seed")
    return Finding("an order without a shuffle" if _unshuffled(epochs[0], (epochs[1], other)) else "right")


def _share(fn: Callable, n: int, rank: int, world_size: int, epoch: int, seed: int) -> tuple[list[int] | str, tuple]:
    """What fn deals to a rank, or what is wrong with it; and the state of Python's and NumPy's dice after it.

    Those may have been thrown, as type checkers do; but of ranks that are apart, none may have set them alike.
    """
    with as_program(fn, rank, epoch):
        before = torch.get_rng_state()
        share = fn(n, rank, world_size, epoch, seed)
    if not isinstance(share, list) or not all(type(each) is int for each in share):
        share = "no list of whole numbers"
    elif not torch.equal(before, torch.get_rng_state()):
        share = "the program's own dice were used"
    return share, dice_of_others()


def dice_of_others() -> tuple:
    """How the program's own dice lie that are not torch's: Python's and NumPy's."""
    return random.getstate(), np.random.get_state()[1].tobytes()


def _unshuffled(one: Sequence[list[int]], others: Sequence[Sequence[list[int]]]) -> bool:
    """Whether shares are sorted, or most neighbours in them are so in other ones too; few neighbours tell nothing."""
    near = lambda shares: {frozenset(pair) for share in shares for pair in zip(share, share[1:], strict=False)}
    pairs = near(one)
    if len(pairs) < 20:
        return False
    return all(each == sorted(each) for each in one) or any(2 * len(pairs & near(each)) > len(pairs) for each in others)


@contextmanager
def as_program(fn: Callable, rank: int, epoch: int) -> Iterator[None]:
    """A block in which fn finds what differs between programs to be a rank's own: dice, process, hash of a text."""
    for sown in (torch.manual_seed, random.seed, np.random.seed):
        sown(100 * rank + epoch)
    is_text = lambda value: isinstance(value, (str, bytes)) or isinstance(value, tuple) and any(map(is_text, value))
    space, process = getattr(fn, "__globals__", {}), os.getpid
    own_hash = "hash" not in space
    if own_hash:
        space["hash"] = lambda value: hash((rank, value) if is_text(value) else value)
    os.getpid = lambda: process() + rank
    try:
        yield
    finally:
        os.getpid = process
        if own_hash:
            space.pop("hash", None)


def _dealt_wrongly(shares: Sequence[list[int]], n: int) -> str:
    """What is wrong with the shares of one epoch; nothing where each example is dealt once, and sizes are even."""
    dealt = sorted(chain(*shares))
    if any(not 0 <= each < n for each in dealt):
        return "examples that are not there"
    if len(set(dealt)) < len(dealt):
        return "an example dealt twice"
    if dealt != list(range(n)):
        return "an example dealt to nobody"
    sizes = [len(share) for share in shares]
    return "sizes differ by more than one" if max(sizes) - min(sizes) > 1 else ""


_CAUSES = {
    "no list of whole numbers": "Return a list of Python's ints, such as tensor.tolist() gives.",
    "the program's own dice were used": "Draw from a torch.Generator() of your own. torch.manual_seed (or random.seed, "
    "np.random.seed) here would give the dropout of all ranks the same dice, and without any seed every rank shuffles "
    "in an order of its own.",
    "examples that are not there": "The examples are numbered from 0 to n - 1.",
    "an example dealt twice": "Ranks must shuffle alike, so with a seed that does not hang on the rank, nor "
    "on what else differs between programs, such as hash() of a text: a torch.Generator() of your own. And nothing is "
    "padded: order[rank::world_size] of one order.",
    "an example dealt to nobody": "Where n is no multiple of world_size, some ranks get one more: cut nothing off.",
    "sizes differ by more than one": "Deal one at a time, order[rank::world_size]: the rest must not fall on one rank.",
    "the same order in each epoch": "The epoch must change the seed: seed + epoch.",
    "an order without a shuffle": "Each epoch and each seed has a shuffle of its own: torch.randperm. In a sorted "
    "order, or in one that is only shifted, the same neighbours always stand together.",
    "another order when asked again": "The order hangs on more than the arguments: seed the generator in each call.",
    "the same order for every seed": "The seed must count too: seed + epoch.",
}


def share_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Even, with a rest, one rank, more; then larger ones."""
    small = [(12, 2, 0), (13, 2, 0), (17, 4, 3), (9, 1, 0)]
    n, more, seed, other = torch.randint(40, 300, (4,), generator=rng).tolist()
    return [*small, (n, 3, seed), (more, 8, other)]


def share_cause(got: object, expected: object) -> str | None:
    """None where the shares are right, otherwise the likely cause."""
    return None if got == expected else _CAUSES.get(str(got), "")
