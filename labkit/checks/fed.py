"""How answers of lesson 09 are looked at: a row's mask, rows of documents, batches dealt to ranks."""

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from labkit.checks.shares import dice_of_others
from labkit.compare import Finding
from labkit.repro import seed_all

MOST_ROWS = 1.02  # times the lower bound: first-fit decreasing stays below it on these lengths, first-fit does not
MOST_WAITING = 1.02  # times the tokens of an even deal: longest first stays within 1.01, other ways are beyond 1.03
_MANY = 100  # documents: with fewer, chance decides about an order or about balance


# ---- 9.1: the mask and the positions of a row ------------------------------------------------------------------------


def drive_mask(fn: Callable, lengths: list[int], capacity: int) -> object:
    """The mask and the positions, whatever is free in the padding brought into one form; another answer as it is."""
    answer = fn(lengths, capacity)
    try:
        mask, positions = (torch.as_tensor(each).clone() for each in answer)
    except (TypeError, ValueError, RuntimeError):
        return answer
    if mask.shape != (capacity, capacity) or positions.shape != (capacity,):
        return answer
    n = sum(lengths)
    mask[n:, n:] = _only_itself(mask[n:, n:])
    if ((positions[n:] >= 0) & (positions[n:] < capacity)).all():
        positions[n:] = 0
    return mask, positions


def _only_itself(padding: Tensor) -> Tensor:
    """Padding that sees itself alone, where each place of it sees some of it; as it is, where one sees nothing."""
    return torch.eye(len(padding), dtype=padding.dtype) if padding.bool().any(dim=1).all() else padding


def mask_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Two documents that fill a row, then with padding, then one, then many."""
    drawn = [torch.randint(1, 6, (n,), generator=rng).tolist() for n in (7, 9)]
    return [([2, 3], 5), ([3, 2], 7), ([4], 4), *((lengths, sum(lengths) + 3) for lengths in drawn)]


# ---- 9.2: rows of documents ------------------------------------------------------------------------------------------


def rows_found(rows: object, _: object, lengths: list[int], capacity: int) -> Finding:
    """`right`, or what is wrong with the rows."""
    from labkit.packing import lower_bound

    if (rows := _plain(rows, depth=2)) is None:
        return Finding("no list of lists of whole numbers")
    if fault := _dealt_wrongly(list(chain(*rows)), len(lengths)):
        return Finding(fault)
    if any(sum(lengths[number] for number in row) > capacity for row in rows):
        return Finding("a row over its capacity")
    if not all(rows):
        return Finding("a row without a document")
    fewest = lower_bound(lengths, capacity)
    if len(rows) > MOST_ROWS * fewest:
        return Finding(f"{len(rows)} rows, where no packing needs fewer than {fewest}")
    return Finding("right")


def row_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Few documents, one that fills a row, equal ones; then many, on which first-fit in any order is beyond the bar."""
    capacity = 512
    draw = lambda n: torch.randint(capacity // 20, 7 * capacity // 10, (n,), generator=rng).tolist()
    return [([2, 4, 5, 3, 6], 10), ([8, 8], 8), ([3, 3, 3, 3], 6), *((draw(n), capacity) for n in (600, 700))]


# ---- 9.3: batches dealt to ranks -------------------------------------------------------------------------------------


def drive_batches(fn: Callable, lengths: list[int], world_size: int, per_step: int, seed: int) -> dict | None:
    """The batches of three epochs, of the first one again and with another seed; whether the program's dice were used
    or the lengths changed. None where nothing was returned.

    The program's own dice lie differently before each call, as they do in programs that are apart. None may have set
    them alike; torch's may not have been thrown at all.
    """
    batches, after, used, changed = {}, {}, False, False
    asked = {"0": (0, seed), "1": (1, seed), "2": (2, seed), "again": (0, seed), "other": (0, seed + 1000)}
    for sown, (name, (epoch, its_seed)) in enumerate(asked.items()):
        seed_all(sown)
        before, given = torch.get_rng_state(), list(lengths)
        batches[name] = fn(given, world_size, per_step, epoch, its_seed)
        if batches[name] is None:
            return None
        used, changed = used or not torch.equal(before, torch.get_rng_state()), changed or given != list(lengths)
        after[name] = dice_of_others()
    used = used or any(one == other for one, other in zip(after["0"], after["again"], strict=True))
    return {"batches": batches, "used": used, "changed": changed}


def batches_found(got: dict, _: object, lengths: list[int], world_size: int, per_step: int, _seed: int) -> Finding:
    """`right`, or what is wrong with the batches of three epochs."""
    batches = {name: _plain(steps, depth=3) for name, steps in got["batches"].items()}
    if got["used"]:
        return Finding("the program's own dice were used")
    if got["changed"]:
        return Finding("the lengths were changed")
    if None in batches.values():
        return Finding("no list of steps, each a list of ranks, each a list of whole numbers")
    for steps in batches.values():
        if fault := _wrong_steps(steps, len(lengths), world_size, per_step):
            return Finding(fault)
    if batches["again"] != batches["0"]:
        return Finding("other batches when asked again")
    if len(lengths) < _MANY:
        return Finding("right")
    epochs = [batches[name] for name in "012"]
    if any(_neighbours(steps, len(lengths)) > 0.5 for steps in epochs):
        return Finding("neighbours of the file together")
    return Finding(_wrong_order(epochs, batches["other"]) or _unbalanced(epochs, lengths, world_size) or "right")


def _wrong_steps(steps: list, n: int, world_size: int, per_step: int) -> str:
    """What is wrong with an epoch's batches, or with what is in them."""
    if fault := _dealt_wrongly([number for step in steps for rank in step for number in rank], n):
        return fault
    if any(len(step) != world_size for step in steps):
        return "a step without a list for each rank"
    sizes = [sum(map(len, step)) for step in steps]
    full = [per_step] * (n // per_step)
    return "" if sizes == full + [n % per_step] * (n % per_step > 0) else "a step of another size"


def _wrong_order(epochs: list, other: list) -> str:
    """What is wrong with the shuffle, which is there where most steps hold other documents than any step had before."""
    together = lambda steps: {frozenset(chain(*step)) for step in steps}
    first = together(epochs[0])
    if any(2 * len(first & together(later)) > len(first) for later in epochs[1:]):
        return "the same documents together in each epoch"
    return "the same batches for every seed" if 2 * len(first & together(other)) > len(first) else ""


def _neighbours(steps: list, n: int) -> float:
    """The share of documents that share a step with the next one of the file; a shuffle leaves few."""
    step_of = {number: at for at, step in enumerate(steps) for number in chain(*step)}
    return sum(step_of[number] == step_of[number + 1] for number in range(n - 1)) / (n - 1)


def _unbalanced(epochs: list, lengths: list[int], world_size: int) -> str:
    """What the waiting costs, where it is too much; the fullest rank of each step sets its time."""
    tokens = lambda rank: sum(lengths[number] for number in rank)
    walked = sum(max(map(tokens, step)) for steps in epochs for step in steps)
    even = len(epochs) * sum(lengths) / world_size
    over = f"steps take {100 * (walked / even - 1):.0f} % longer than with an even deal"
    return over if walked > MOST_WAITING * even else ""


def batch_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Steps that come out even, with a rest, with a rest that leaves ranks without a document; then many documents."""
    draw = lambda n: torch.empty(n).log_normal_(4.5, 1.1, generator=rng).clamp(2, 512).long().tolist()
    small = [(draw(n), world_size, per_step, 0) for n, world_size, per_step in ((8, 2, 4), (10, 2, 4), (9, 2, 4))]
    seeds = torch.randint(1, 1000, (3,), generator=rng).tolist()
    shapes = ((240, 2, 16), (300, 3, 24), (403, 4, 32))
    return [*small, *((draw(n), world, step, seed) for (n, world, step), seed in zip(shapes, seeds, strict=True))]


# ---- both ------------------------------------------------------------------------------------------------------------


def _plain(value: object, depth: int) -> list | int | None:
    """A list of lists (as deep as asked) of Python's whole numbers, NumPy's and torch's made these; None for others."""
    if not depth:
        return _whole(value)
    if not isinstance(value, (list, tuple)):
        return None
    parts = [_plain(each, depth - 1) for each in value]
    return None if None in parts else parts


def _whole(value: object) -> int | None:
    """A whole number of Python, NumPy or torch as Python's own; None for anything else, True and False among it."""
    if isinstance(value, bool) or getattr(value, "dtype", None) in (np.bool_, torch.bool):
        return None
    with suppress(TypeError, ValueError, RuntimeError):  # the ways in which they say that they are none
        return operator.index(value)
    return None


def _dealt_wrongly(numbers: list[int], n: int) -> str:
    """What is wrong where not each of n documents is there once."""
    if any(not 0 <= number < n for number in numbers):
        return "documents that are not there"
    if len(set(numbers)) < len(numbers):
        return "a document twice"
    return "" if len(numbers) == n else "a document lost"
