"""Wrong answers that learners of lesson 09 would give, each with a part of the message that must meet it."""

import random

import numpy as np
import torch


def only_causal(lengths, capacity):
    return torch.ones(capacity, capacity, dtype=torch.bool).tril(), torch.arange(capacity)


def _numbers(lengths, capacity):
    """Each place's document, padding as one more, and its position."""
    pieces = [*lengths, capacity - sum(lengths)]
    documents = torch.arange(len(pieces)).repeat_interleave(torch.tensor(pieces))
    return documents, torch.cat([torch.arange(n) for n in pieces])


def sees_the_future(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    return documents[:, None] == documents[None, :], positions


def only_the_future(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    return (documents[:, None] == documents[None, :]).triu(), positions


def not_itself(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    return (documents[:, None] == documents[None, :]).tril(-1), positions


def positions_run_on(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    return (documents[:, None] == documents[None, :]).tril(), torch.arange(capacity)


def positions_alone(lengths, capacity):
    """Resets positions and leaves the mask: documents still see those before them."""
    return torch.ones(capacity, capacity, dtype=torch.bool).tril(), _numbers(lengths, capacity)[1]


def positions_from_one(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    return (documents[:, None] == documents[None, :]).tril(), positions + 1


def padding_is_blind(lengths, capacity):
    mask, positions = torch.zeros(capacity, capacity, dtype=torch.bool), torch.zeros(capacity, dtype=torch.long)
    start = 0
    for n in lengths:
        mask[start : start + n, start : start + n] = torch.ones(n, n, dtype=torch.bool).tril()
        positions[start : start + n] = torch.arange(n)
        start += n
    return mask, positions


def padding_sees_all(lengths, capacity):
    mask, positions = padding_is_blind(lengths, capacity)
    mask[sum(lengths) :] = True
    return mask, positions


def true_means_hidden(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    return ~(documents[:, None] == documents[None, :]).tril(), positions


def added_to_scores(lengths, capacity):
    """A mask that is added, with minus infinity, where the exercise asks for True and False."""
    documents, positions = _numbers(lengths, capacity)
    seen = (documents[:, None] == documents[None, :]).tril()
    return torch.zeros(capacity, capacity).masked_fill(~seen, float("-inf")), positions


def forgets_the_return(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    (documents[:, None] == documents[None, :]).tril(), positions


def padding_sees_documents(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    mask = (documents[:, None] == documents[None, :]).tril()
    mask[sum(lengths) :, 0] = True
    return mask, positions


def padding_before_the_first(lengths, capacity):
    documents, positions = _numbers(lengths, capacity)
    positions[sum(lengths) :] = -1
    return (documents[:, None] == documents[None, :]).tril(), positions


def without_padding(lengths, capacity):
    documents, positions = _numbers(lengths, sum(lengths))
    return (documents[:, None] == documents[None, :]).tril(), positions


def next_fit(lengths, capacity):
    """Looks at the last row alone."""
    rows, room = [[]], capacity
    for number, n in enumerate(lengths):
        if n > room:
            rows.append([])
            room = capacity
        rows[-1].append(number)
        room -= n
    return rows


def _first_fit(order, lengths, capacity):
    """Each document, in an order, into the first row with room."""
    rows, room = [], []
    for number in order:
        at = next((at for at, left in enumerate(room) if lengths[number] <= left), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(capacity)
        rows[at].append(number)
        room[at] -= lengths[number]
    return rows


def first_fit_as_they_come(lengths, capacity):
    return _first_fit(range(len(lengths)), lengths, capacity)


def shortest_first(lengths, capacity):
    return _first_fit(sorted(range(len(lengths)), key=lengths.__getitem__), lengths, capacity)


def emptiest_row(lengths, capacity):
    """Longest first, each into the row with the most room."""
    rows, room = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if not rows or max(room) < lengths[number]:
            rows.append([])
            room.append(capacity)
        at = room.index(max(room))
        rows[at].append(number)
        room[at] -= lengths[number]
    return rows


def one_each(lengths, capacity):
    return [[number] for number in range(len(lengths))]


def lengths_for_numbers(lengths, capacity):
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    return [[lengths[number] for number in row] for row in _first_fit(order, lengths, capacity)]


def pours(lengths, capacity):
    """As few rows as there can be, for it does not look whether a document fits."""
    rows = [[] for _ in range(-(-sum(lengths) // capacity))]
    for number in range(len(lengths)):
        rows[number % len(rows)].append(number)
    return rows


def loses_the_last_row(lengths, capacity):
    return first_fit_as_they_come(lengths, capacity)[:-1]


def forgets_the_rows(lengths, capacity):
    first_fit_as_they_come(lengths, capacity)


def rows_of_bools(lengths, capacity):
    """A row for each document, which says for each whether it is in it."""
    return [[number == row for number in range(len(lengths))] for row in range(len(lengths))]


def in_every_row_with_room(lengths, capacity):
    """Goes on looking after a document has found its row."""
    rows, room = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        rows.append([])
        room.append(capacity)
        for at, left in enumerate(room):
            if lengths[number] <= left:
                rows[at].append(number)
                room[at] -= lengths[number]
    return [row for row in rows if row]


def _order(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def _longest_first(step, lengths, world_size):
    ranks, loads = [[] for _ in range(world_size)], [0] * world_size
    for number in sorted(step, key=lambda number: -lengths[number]):
        emptiest = loads.index(min(loads))
        ranks[emptiest].append(number)
        loads[emptiest] += lengths[number]
    return ranks


def _steps(order, lengths, world_size, per_step, deal=_longest_first):
    return [deal(order[at : at + per_step], lengths, world_size) for at in range(0, len(order), per_step)]


def dealt_like_cards(lengths, world_size, per_step, epoch, seed):
    """Equal numbers of documents, as DistributedSampler deals them, and not of tokens."""
    deal = lambda step, lengths, world_size: [step[rank::world_size] for rank in range(world_size)]
    return _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step, deal)


def emptiest_as_they_come(lengths, world_size, per_step, epoch, seed):
    """To the rank with the least so far, but not the longest first."""

    def deal(step, lengths, world_size):
        ranks, loads = [[] for _ in range(world_size)], [0] * world_size
        for number in step:
            emptiest = loads.index(min(loads))
            ranks[emptiest].append(number)
            loads[emptiest] += lengths[number]
        return ranks

    return _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step, deal)


def sorted_and_dealt(lengths, world_size, per_step, epoch, seed):
    def deal(step, lengths, world_size):
        ranked = sorted(step, key=lambda number: -lengths[number])
        return [ranked[rank::world_size] for rank in range(world_size)]

    return _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step, deal)


def balanced_over_the_epoch(lengths, world_size, per_step, epoch, seed):
    """All ranks get as many tokens in an epoch, but not in a step."""
    shares = _longest_first(range(len(lengths)), lengths, world_size)
    pools = [[share[i] for i in _order(len(share), seed + epoch)] for share in shares]
    steps, left = [], len(lengths)
    while left:
        size, step = min(per_step, left), [[] for _ in range(world_size)]
        for at in range(size):
            fullest = max(range(world_size), key=lambda rank: len(pools[rank]))
            rank = at % world_size if pools[at % world_size] else fullest
            step[rank].append(pools[rank].pop())
        steps.append(step)
        left -= size
    return steps


def drops_the_rest(lengths, world_size, per_step, epoch, seed):
    order = _order(len(lengths), seed + epoch)
    return _steps(order[: len(order) // per_step * per_step], lengths, world_size, per_step)


def pads(lengths, world_size, per_step, epoch, seed):
    order = _order(len(lengths), seed + epoch)
    return _steps(order + order[: -len(order) % per_step], lengths, world_size, per_step)


def leaves_ranks_out(lengths, world_size, per_step, epoch, seed):
    steps = _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step)
    return [[rank for rank in step if rank] for step in steps]


def forgets_the_epoch(lengths, world_size, per_step, epoch, seed):
    return _steps(_order(len(lengths), seed), lengths, world_size, per_step)


def forgets_the_seed(lengths, world_size, per_step, epoch, seed):
    return _steps(_order(len(lengths), epoch), lengths, world_size, per_step)


def sorts_all(lengths, world_size, per_step, epoch, seed):
    """Balanced at no cost, and every epoch has the same documents together; only the steps are shuffled."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    steps = _steps(order[: len(order) // per_step * per_step], lengths, world_size, per_step)
    rest = order[len(order) // per_step * per_step :]
    last = [_longest_first(rest, lengths, world_size)] if rest else []
    return [steps[i] for i in _order(len(steps), seed + epoch)] + last


def sets_the_seed(lengths, world_size, per_step, epoch, seed):
    torch.manual_seed(seed + epoch)
    return _steps(torch.randperm(len(lengths)).tolist(), lengths, world_size, per_step)


def sets_pythons_seed(lengths, world_size, per_step, epoch, seed):
    order = list(range(len(lengths)))
    random.seed(seed + epoch)
    random.shuffle(order)
    return _steps(order, lengths, world_size, per_step)


def sets_numpys_seed(lengths, world_size, per_step, epoch, seed):
    np.random.seed(seed + epoch)
    return _steps(np.random.permutation(len(lengths)).tolist(), lengths, world_size, per_step)


def throws_torchs_dice_too(lengths, world_size, per_step, epoch, seed):
    torch.rand(1)
    return _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step)


def sorts_the_callers(lengths, world_size, per_step, epoch, seed):
    steps = _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step)
    lengths.sort()
    return steps


def turns_the_file(lengths, world_size, per_step, epoch, seed):
    n = len(lengths)
    return _steps([(i + 7 * seed + 3 * epoch) % n for i in range(n)], lengths, world_size, per_step)


def forgets_the_steps(lengths, world_size, per_step, epoch, seed):
    _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step)


def tensors_of_numbers(lengths, world_size, per_step, epoch, seed):
    steps = _steps(_order(len(lengths), seed + epoch), lengths, world_size, per_step)
    return [[torch.tensor(rank) for rank in step] for step in steps]


def shuffles_as_it_likes(lengths, world_size, per_step, epoch, seed):
    dice = torch.Generator()
    dice.seed()
    return _steps(torch.randperm(len(lengths), generator=dice).tolist(), lengths, world_size, per_step)


WRONG = {
    "9.1": [
        ("only causal", only_causal, "positions run on: that is one document"),
        ("sees the future", sees_the_future, "must be causal too"),
        ("only the future", only_the_future, "not .triu"),
        ("not itself", not_itself, r"not .tril\(-1\)"),
        ("positions run on", positions_run_on, "each document begins at 0"),
        ("positions alone", positions_alone, "causal, and not block-diagonal"),
        ("positions from one", positions_from_one, "wrong result"),
        ("padding is blind", padding_is_blind, "softmax over nothing"),
        ("padding sees all", padding_sees_all, "wrong result"),
        ("True means hidden", true_means_hidden, "this is the opposite"),
        ("added to scores", added_to_scores, "wrong dtype"),
        ("without padding", without_padding, "wrong shape"),
        ("forgets the return", forgets_the_return, "Is the `return` missing"),
        ("padding sees documents", padding_sees_documents, "wrong result"),
        ("padding before the first position", padding_before_the_first, "wrong result"),
    ],
    "9.2": [
        ("next-fit", next_fit, "look at all rows, not at the last one alone"),
        ("first-fit as they come", first_fit_as_they_come, "3 rows, where no packing needs fewer than 2"),
        ("shortest first", shortest_first, "Longest first"),
        ("emptiest row", emptiest_row, "rows, where no packing needs fewer"),
        ("one each", one_each, "rows, where no packing needs fewer"),
        ("lengths for numbers", lengths_for_numbers, "numbers, from 0 on, not their lengths|Were lengths returned"),
        ("pours", pours, "a row over its capacity"),
        ("loses the last row", loses_the_last_row, "a document lost"),
        ("forgets the return", forgets_the_rows, "Is the `return` missing"),
        ("rows of True and False", rows_of_bools, "Return rows, each a list of the numbers"),
        ("in every row with room", in_every_row_with_room, "a document twice"),
    ],
    "9.3": [
        ("dealt like cards", dealt_like_cards, "longer than with an even deal"),
        ("emptiest as they come", emptiest_as_they_come, "the longest document first"),
        ("sorted and dealt", sorted_and_dealt, "longer than with an even deal"),
        ("balanced over the epoch", balanced_over_the_epoch, "In each step"),
        ("drops the rest", drops_the_rest, "a document lost"),
        ("pads", pads, "a document twice"),
        ("leaves ranks out", leaves_ranks_out, "missing in the step's collectives"),
        ("forgets the epoch", forgets_the_epoch, "together in each epoch"),
        ("forgets the seed", forgets_the_seed, "The seed must count too"),
        ("sorts all", sorts_all, "together in each epoch"),
        ("sets the seed", sets_the_seed, "program's own dice"),
        ("sets Python's seed", sets_pythons_seed, "program's own dice"),
        ("sets NumPy's seed", sets_numpys_seed, "program's own dice"),
        ("throws torch's dice too", throws_torchs_dice_too, "program's own dice"),
        ("sorts the caller's lengths", sorts_the_callers, "Sort a copy"),
        ("turns the file", turns_the_file, "leaves neighbours together"),
        ("forgets the return", forgets_the_steps, "Is the `return` missing"),
        ("tensors of numbers", tensors_of_numbers, "is a list of ints"),
        ("shuffles as it likes", shuffles_as_it_likes, "seed in each call"),
    ],
}
