"""Documents of uneven length laid out in batches: padded, bucketed by length, or packed several to a row.

A plan says which documents stand in which row of which batch: `plan[batch][row]` is a list of document numbers. Every
layout is made by the same function from such a plan, so that only the plan differs between two that are compared.

Shape suffixes as in labkit.models: B batch (rows), T tokens (places of a row), V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

IGNORE = -100  # the target of a place where there is nothing to predict; cross_entropy's own default
PADDING = -1  # the document of a place that holds none
Rows = list[list[int]]
Plan = list[Rows]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents in B rows of T places, each place with its target, its position and the document it belongs to.

    positions count from 0 in every document. documents: its number, PADDING where a place holds none. targets: the
    token after it in the same document, IGNORE at a document's last token and in padding.
    """

    tokens: Int64[Tensor, "B T"]
    targets: Int64[Tensor, "B T"]
    positions: Int64[Tensor, "B T"]
    documents: Int64[Tensor, "B T"]
    alone: bool  # each row holds one document at most: then the usual causal attention is right without a mask

    @property
    def useful(self) -> int:
        """Places that hold a document's token."""
        return int((self.documents != PADDING).sum())

    @property
    def wasted(self) -> float:
        """The share of places that hold none, from 0 to 1."""
        return 1 - self.useful / self.documents.numel()

    def mask(self) -> Bool[Tensor, "B T T"]:
        """The block-diagonal mask: True where the token of a row may see that of a column, its own document's past."""
        return block_diagonal(self.documents)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "targets", "positions", "documents")}
        return Batch(**moved, alone=self.alone)


def block_diagonal(documents_BT: Int64[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """True where two places belong to the same document and the column's is no later than the row's.

    Padding sees earlier padding, so that no row is empty: a softmax over nothing is not a number.
    """
    same_BTT = documents_BT.unsqueeze(2) == documents_BT.unsqueeze(1)
    return same_BTT.tril()


def cut(documents: Sequence[Int64[Tensor, " _"]], most: int) -> list[Int64[Tensor, " _"]]:
    """The documents, those of more than `most` tokens cut into the fewest nearly equal pieces; no token is lost.

    From then on a piece is a document of its own. ValueError: `most` under 3, which could leave a piece of one token.
    """
    if most < 3:
        raise ValueError(f"pieces of at most {most} tokens could hold one token alone: give 3 or more")
    return [piece for doc in documents for piece in doc.tensor_split(-(-len(doc) // most))]


def lengths_of(documents: Sequence[Int64[Tensor, " _"]]) -> list[int]:
    """Tokens of each document."""
    return [len(doc) for doc in documents]


def shuffled(n: int, seed: int) -> list[int]:
    """The numbers below n in an order drawn from the seed."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def padded(lengths: Sequence[int], rows: int, seed: int) -> Plan:
    """One document a row, `rows` rows a batch, in an order drawn from the seed; a batch is as wide as its longest."""
    order = shuffled(len(lengths), seed)
    return [[[number] for number in order[at : at + rows]] for at in range(0, len(order), rows)]


def bucketed(lengths: Sequence[int], rows: int, seed: int, pool: int) -> Plan:
    """As padded, but among every `pool` batches' documents those of like length share a batch; then batches shuffled.

    A pool of one batch is plain padding; one of all batches sorts the whole data set, and only batches are random.
    """
    order = shuffled(len(lengths), seed)
    plan = []
    for start in range(0, len(order), pool * rows):
        alike = sorted(order[start : start + pool * rows], key=lambda number: lengths[number])
        plan += [[[number] for number in alike[at : at + rows]] for at in range(0, len(alike), rows)]
    return [plan[batch] for batch in shuffled(len(plan), seed)]


def packed(lengths: Sequence[int], rows: int, seed: int, capacity: int) -> Plan:
    """Several documents a row, `capacity` tokens at most, by first-fit decreasing; the rows shuffled, then batched.

    ValueError: a document longer than the capacity; cut it first.
    """
    full = first_fit_decreasing(lengths, capacity)
    order = shuffled(len(full), seed)
    return [[full[row] for row in order[at : at + rows]] for at in range(0, len(order), rows)]


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Rows:
    """Rows of document numbers, at most `capacity` tokens a row: the longest first, each in the first row with room.

    Never more than 11/9 of the fewest rows and 6/9 of a row. A tree over the rows, each node with the most room below
    it, finds the first row in log2(documents) steps. ValueError: a document longer than the capacity.
    Source: Johnson, Near-optimal bin packing algorithms (MIT, 1973); the bound: Dosa (ESCAPE 2007).
    """
    _refuse_longer(lengths, capacity)
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    room = [capacity] * (2 * leaves)
    rows: Rows = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        at = 1
        while at < leaves:
            at = 2 * at if room[2 * at] >= lengths[number] else 2 * at + 1
        if at - leaves == len(rows):
            rows.append([])
        rows[at - leaves].append(number)
        room[at] -= lengths[number]
        while at := at // 2:
            room[at] = max(room[2 * at], room[2 * at + 1])
    return rows


def lower_bound(lengths: Sequence[int], capacity: int) -> int:
    """A number of rows that no packing can go below; the fewest possible may be a little more.

    For each length k: no two documents over half the capacity share a row, those over capacity - k have no room for
    one of k or more, and the rest of these need the room that is left or rows of their own. ValueError as above.
    Source: Martello and Toth, Lower bounds and reduction procedures for the bin packing problem (1990), the bound L2.
    """
    _refuse_longer(lengths, capacity)
    small = sorted((length for length in lengths if 2 * length <= capacity), reverse=True)
    large = sorted(length for length in lengths if 2 * length > capacity)
    best, need, room, opened = len(large), 0, 0, 0
    for k in small:
        need += k
        while opened < len(large) and large[opened] <= capacity - k:
            room += capacity - large[opened]
            opened += 1
        best = max(best, len(large) + -(-(need - room) // capacity))
    return best


def _refuse_longer(lengths: Sequence[int], capacity: int) -> None:
    """ValueError: a document that no row can hold."""
    if lengths and max(lengths) > capacity:
        raise ValueError(f"a document of {max(lengths)} tokens does not fit into {capacity}: cut it first")


def lay_out(documents: Sequence[Int64[Tensor, " _"]], rows: Rows, width: int | None = None) -> Batch:
    """The batch of a plan's rows: a row's documents one after the other, then padding up to the longest row.

    width: the places of every row, where all batches must have one shape. ValueError: a row that is longer.
    """
    longest = max(sum(len(documents[number]) for number in row) for row in rows)
    if width is not None and longest > width:
        raise ValueError(f"a row of {longest} tokens does not fit into {width}")
    shape = (len(rows), longest if width is None else width)
    tokens, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    targets, owner = torch.full(shape, IGNORE), torch.full(shape, PADDING)
    for at, row in enumerate(rows):
        start = 0
        for number in row:
            document = documents[number]
            end = start + len(document)
            tokens[at, start:end], targets[at, start : end - 1] = document, document[1:]
            positions[at, start:end], owner[at, start:end] = torch.arange(len(document)), number
            start = end
    alone = all(len(row) <= 1 for row in rows)
    return Batch(tokens=tokens, targets=targets, positions=positions, documents=owner, alone=alone)


def wasted(lengths: Sequence[int], plan: Plan) -> float:
    """The share of a plan's places that hold no token, from 0 to 1, each batch as wide as its longest row."""
    filled = [[sum(lengths[number] for number in row) for row in rows] for rows in plan]
    return 1 - sum(map(sum, filled)) / sum(len(rows) * max(rows) for rows in filled)


def logits_of(model: nn.Module, batch: Batch) -> Float[Tensor, "B T V"]:
    """The model's logits of a batch: with positions and mask where a row holds several documents, else without."""
    if batch.alone:
        return model(batch.tokens)
    return model(batch.tokens, batch.positions, batch.mask())


def token_loss(logits_BTV: Float[Tensor, "B T V"], batch: Batch) -> Float[Tensor, ""]:
    """Mean cross-entropy over the batch's targets, nats a token: every token counts alike, wherever it stands."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)


def document_losses(logits_BTV: Float[Tensor, "B T V"], batch: Batch) -> dict[int, float]:
    """Mean cross-entropy of each document by its number, nats a token, in the order of the numbers."""
    targets, counts = batch.targets.flatten(), batch.targets.flatten() != IGNORE
    each = functional.cross_entropy(logits_BTV.flatten(0, 1), targets, ignore_index=IGNORE, reduction="none")
    numbers, owner = batch.documents.flatten()[counts].unique(return_inverse=True)
    sums = torch.zeros(len(numbers), dtype=torch.float64, device=each.device)
    sums.index_add_(0, owner, each.detach()[counts].double())
    means = sums / owner.bincount(minlength=len(numbers))
    return dict(zip(numbers.tolist(), means.tolist(), strict=True))


def losses(model: nn.Module, documents: Sequence[Int64[Tensor, " _"]], plan: Plan) -> dict[int, float]:
    """The loss of every document in a plan by its number, nats a token, without gradients."""
    device = next(model.parameters()).device
    found: dict[int, float] = {}
    with torch.no_grad():
        for rows in plan:
            batch = lay_out(documents, rows).to(device)
            found |= document_losses(logits_of(model, batch), batch)
    return dict(sorted(found.items()))
