"""The checks of lesson 09 take right answers that are written in another way than the course's own."""

import bisect
import random

import numpy as np
import pytest
import torch

from labkit.checker import find, generator_for, verdict


def by_documents(lengths, capacity):
    """Written document by document; each place of padding sees itself alone."""
    mask, positions, start = torch.eye(capacity, dtype=torch.bool), torch.zeros(capacity, dtype=torch.long), 0
    for n in lengths:
        mask[start : start + n, start : start + n] = torch.ones(n, n, dtype=torch.bool).tril()
        positions[start : start + n] = torch.arange(n)
        start += n
    return mask, positions


def in_numpy(lengths, capacity):
    """NumPy's arrays; padding sees all padding, also what comes after, and its positions run on."""
    ends = np.cumsum(lengths)
    places = np.arange(capacity)
    documents = np.searchsorted(ends, places, side="right")
    starts = np.concatenate([[0], ends])[documents]
    causal = (places[:, None] >= places[None, :]) | (places[:, None] >= ends[-1])
    return (documents[:, None] == documents[None, :]) & causal, places - starts


def best_fit(lengths, capacity):
    """Longest first, each into the fullest row with room, which a sorted list finds."""
    rows, rooms = [], []
    for number in np.argsort([-n for n in lengths], kind="stable").tolist():
        at = bisect.bisect_left(rooms, (lengths[number], -1))
        room, row = rooms.pop(at) if at < len(rooms) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        bisect.insort(rooms, (room - lengths[number], row))
    return rows


def in_tuples(lengths, capacity):
    """First-fit decreasing, its rows as tuples."""
    rows, room = [], []
    for n, number in sorted(((n, number) for number, n in enumerate(lengths)), reverse=True):
        at = next((at for at, left in enumerate(room) if left >= n), len(rows))
        if at == len(rows):
            rows.append(())
            room.append(capacity)
        rows[at] += (number,)
        room[at] -= n
    return tuple(rows)


def in_numpys_numbers(lengths, capacity):
    """First-fit decreasing, the documents' numbers as argsort gives them."""
    rows = []
    for number in np.argsort([-n for n in lengths], kind="stable"):
        fits = (row for row in rows if sum(lengths[n] for n in row) + lengths[number] <= capacity)
        row = next(fits, None)
        if row is None:
            rows.append(row := [])
        row.append(number)
    return rows


def with_pythons_dice(lengths, world_size, per_step, epoch, seed):
    """Python's dice, seeded with a text; a dictionary of loads."""
    order = list(range(len(lengths)))
    random.Random(f"{seed}, {epoch}").shuffle(order)
    steps = []
    while order:
        step, order = order[:per_step], order[per_step:]
        ranks = {rank: [] for rank in range(world_size)}
        for number in sorted(step, key=lengths.__getitem__, reverse=True):
            ranks[min(ranks, key=lambda rank: sum(lengths[n] for n in ranks[rank]))].append(number)
        steps.append(list(ranks.values()))
    return steps


def with_numpys_dice(lengths, world_size, per_step, epoch, seed):
    """NumPy's dice; the fullest rank gives to the emptiest as long as that helps, after a longest-first deal."""
    order = np.random.default_rng([seed, epoch]).permutation(len(lengths)).tolist()
    steps = []
    for at in range(0, len(order), per_step):
        ranks = [[] for _ in range(world_size)]
        tokens = lambda rank: sum(lengths[number] for number in rank)
        for number in sorted(order[at : at + per_step], key=lambda number: -lengths[number]):
            min(ranks, key=tokens).append(number)
        full, empty = max(ranks, key=tokens), min(ranks, key=tokens)
        for number in sorted(full, key=lengths.__getitem__):
            if tokens(empty) + lengths[number] < tokens(full):
                full.remove(number)
                empty.append(number)
                break
        steps.append(ranks)
    return steps


def in_torchs_numbers(lengths, world_size, per_step, epoch, seed):
    """Longest first, the documents' numbers as randperm gives them."""
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1000 * epoch + seed))
    steps = []
    for step in order.split(per_step):
        ranks = [[] for _ in range(world_size)]
        for number in sorted(step, key=lambda number: -lengths[number]):
            min(ranks, key=lambda rank: sum(lengths[n] for n in rank)).append(number)
        steps.append(ranks)
    return steps


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("mask_and_positions", by_documents),
        ("mask_and_positions", in_numpy),
        ("pack_rows", best_fit),
        ("pack_rows", in_tuples),
        ("pack_rows", in_numpys_numbers),
        ("balanced_batches", with_pythons_dice),
        ("balanced_batches", with_numpys_dice),
        ("balanced_batches", in_torchs_numbers),
    ],
)
def test_a_right_answer_written_another_way_passes(name, answer):
    exercise = find(name)
    for seed in range(4):
        found = verdict(answer, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
        assert found.status == "passed", found.message


@pytest.mark.parametrize("name", ["pack_rows", "balanced_batches"])
def test_the_reference_keeps_the_bar_for_every_seed(name):
    exercise = find(name)
    for seed in range(25):
        found = verdict(exercise.reference, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
        assert found.status == "passed", found.message


def test_a_finding_tells_how_far_rows_are_from_the_bound():
    exercise = find("pack_rows")
    found = verdict(
        lambda lengths, _: [[n] for n in range(len(lengths))], exercise, generator=generator_for(exercise, 0)
    )
    assert "5 rows, where no packing needs fewer than 2" in found.message
    assert "call    pack_rows(lengths=[2, 4, 5, 3, 6], capacity=10)" in found.message
