"""The checks of lesson 09: the mask and positions of packed documents, a packer, a balanced sampler."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from labkit import balance, packing
from labkit.checker import Exercise, exact
from labkit.checks.fed import (
    batch_cases,
    batches_found,
    drive_batches,
    drive_mask,
    mask_cases,
    row_cases,
    rows_found,
)

# ---- 9.1: the mask and the positions of a row ------------------------------------------------------------------------


def mask_and_positions(lengths: list[int], capacity: int) -> tuple[Bool[Tensor, "T T"], Int64[Tensor, " T"]]:
    """What each place of a row may see, and its position in its document; padding at the end sees padding."""
    pieces = [*lengths, capacity - sum(lengths)]
    documents = torch.arange(len(pieces)).repeat_interleave(torch.tensor(pieces))
    return packing.block_diagonal(documents.unsqueeze(0))[0], torch.cat([torch.arange(n) for n in pieces])


def _changed(of_mask: Callable, of_positions: Callable = lambda positions, _: positions) -> Callable:
    """A known mistake: the right answer, changed; of_mask is called with the mask and the tokens of documents."""

    def mistake(lengths: list[int], capacity: int) -> tuple[Tensor, Tensor]:
        mask, positions = mask_and_positions(lengths, capacity)
        return of_mask(mask, sum(lengths)), of_positions(positions, capacity)

    return mistake


def _blind_padding(mask: Tensor, n: int) -> Tensor:
    """Padding that sees nothing."""
    return mask & (torch.arange(len(mask)) < n).unsqueeze(1)


_as_it_is = lambda mask, _: mask
_causal = lambda mask, _: torch.ones_like(mask).tril()
_both_ways = lambda mask, _: mask | mask.T
_future = lambda mask, _: mask.T
_not_itself = lambda mask, _: mask.tril(-1)
_inverted = lambda mask, _: ~mask
_runs_on = lambda _, capacity: torch.arange(capacity)
_MASK_MISTAKES = (
    ("A row that sees nothing: a softmax over nothing is NaN. Let padding see itself.", _changed(_blind_padding)),
    ("Documents see those before them: the mask is causal, and not block-diagonal.", _changed(_causal)),
    ("Documents see those before them, and positions run on: that is one document.", _changed(_causal, _runs_on)),
    ("Positions run on: each document begins at 0.", _changed(_as_it_is, _runs_on)),
    ("Tokens see what comes after them in their document: the mask must be causal too.", _changed(_both_ways)),
    ("Tokens see themselves and what comes after, not what came before: .tril(), not .triu().", _changed(_future)),
    ("No token sees itself, and the first of a document sees nothing: .tril(), not .tril(-1).", _changed(_not_itself)),
    ("True means 'may see' in scaled_dot_product_attention: this is the opposite.", _changed(_inverted)),
)

# ---- 9.2: rows of documents ------------------------------------------------------------------------------------------


def pack_rows(lengths: list[int], capacity: int) -> list[list[int]]:
    """Rows of document numbers, at most `capacity` tokens a row, within 2 % of the fewest rows."""
    return packing.first_fit_decreasing(lengths, capacity)


_ROW_CAUSES = {
    "no list of lists of whole numbers": "Return rows, each a list of the numbers of its documents, and not their "
    "lengths as tensors.",
    "documents that are not there": "A row holds the documents' numbers, from 0 on, not their lengths.",
    "a document twice": "Stop looking once a document has its row. Were lengths returned for numbers, or numbers found "
    "by lengths.index, which gives the first of equal lengths?",
    "a document lost": "A document that fits into no row opens a new one; and the last row must be kept too.",
    "a row over its capacity": "A document may enter a row only where its tokens fit into what is left there.",
    "a row without a document": "Open a row when there is a document for it.",
}
_TOO_MANY = "Longest first, each into the first row that has room; look at all rows, not at the last one alone."

# ---- 9.3: batches dealt to ranks -------------------------------------------------------------------------------------


def balanced_batches(lengths: list[int], world_size: int, per_step: int, epoch: int, seed: int) -> list:
    """For each step a list of document numbers for each rank: shuffled anew in each epoch, all ranks as full."""
    dice = torch.Generator().manual_seed(seed + epoch)
    steps = []
    for step in torch.randperm(len(lengths), generator=dice).split(per_step):
        ranks, loads = [[] for _ in range(world_size)], [0] * world_size
        for number in sorted(step.tolist(), key=lambda number: -lengths[number]):
            emptiest = loads.index(min(loads))
            ranks[emptiest].append(number)
            loads[emptiest] += lengths[number]
        steps.append(ranks)
    return steps


_BATCH_CAUSES = {
    "no list of steps, each a list of ranks, each a list of whole numbers": "steps[step][rank] is a list of ints.",
    "documents that are not there": "Documents are numbered from 0 to len(lengths) - 1.",
    "a document twice": "Nothing is padded: where documents run out, a rank gets fewer, or none.",
    "a document lost": "The last step has what is left, though it be less than per_step: cut nothing off.",
    "a step without a list for each rank": "Each step has world_size lists; a rank without a document gets an empty "
    "one, or it would be missing in the step's collectives.",
    "a step of another size": "Shuffle, then cut the order into pieces of per_step documents; deal each to the ranks.",
    "the program's own dice were used": "Draw from a torch.Generator() of your own: whoever draws after the call has "
    "other numbers for it, and the same ones in each epoch where you have set a seed.",
    "the lengths were changed": "Sort a copy: the lengths belong to the caller.",
    "neighbours of the file together": "Shuffle the documents themselves. Turning or cutting the file's order leaves "
    "neighbours together in each epoch.",
    "other batches when asked again": "All ranks ask for themselves and must be told the same: seed in each call.",
    "the same documents together in each epoch": "Shuffle all documents anew with each epoch, before the steps are "
    "cut: seed + epoch.",
    "the same batches for every seed": "The seed must count too: seed + epoch.",
}
_WAITING = "In each step the longest document first, each to the rank with the fewest tokens so far."


def _cause(causes: dict[str, str], otherwise: str) -> Callable[[object, object], str | None]:
    """A comparison of findings: None where right, else the likely cause."""
    return lambda got, expected: None if got == expected else causes.get(str(got), otherwise)


EXERCISES = (
    Exercise(
        number="9.1",
        name="mask_and_positions",
        cases=mask_cases,
        reference=mask_and_positions,
        compare=exact,
        drive=drive_mask,
        mistakes=_MASK_MISTAKES,
        library=(packing.block_diagonal,),
        points=2,
        hints=(
            "Number the documents: [0, 0, 1, 1, 1]. Two places may see each other where their numbers are equal.",
            "numbers[:, None] == numbers[None, :] compares all pairs at once; .tril() leaves the past.",
            "Padding is one more document. Positions: torch.arange(n) for each n, one after the other.",
        ),
    ),
    Exercise(
        number="9.2",
        name="pack_rows",
        cases=row_cases,
        reference=pack_rows,
        compare=_cause(_ROW_CAUSES, _TOO_MANY),
        find=rows_found,
        library=(packing.first_fit_decreasing, packing.packed),
        points=3,
        hints=(
            "Keep two lists: the rows, and the room that is left in each.",
            "sorted(range(len(lengths)), key=lambda i: -lengths[i]) are the documents' numbers, longest first.",
            "Python's for ... else: the else runs where no row had room, and opens a new one.",
        ),
    ),
    Exercise(
        number="9.3",
        name="balanced_batches",
        cases=batch_cases,
        reference=balanced_batches,
        compare=_cause(_BATCH_CAUSES, _WAITING),
        drive=drive_batches,
        library=(balance.longest_first,),
        find=batches_found,
        points=4,
        hints=(
            "One order for the epoch, cut into steps; only then is each step dealt to the ranks.",
            "dice = torch.Generator().manual_seed(seed + epoch); torch.randperm(n, generator=dice).tolist(). No hash() "
            "of a text in the seed: it is another in each process, so each rank would make another plan.",
            "Within a step: sort by length, longest first; loads.index(min(loads)) is the rank with the least.",
        ),
    ),
)
