"""Exercises 11.3 and 11.4: one ring for all gradients, and messages that are hidden behind computing.

The ring runs in real ranks: its means are compared, its messages and bytes counted. What hides messages runs in this
process, over a link of paper that knows what was computed, launched and waited for, and in which order.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checker import close
from labkit.checks.replicas import seeds
from labkit.cost import ring_all_reduce_bytes
from labkit.ranks import RankError, counting, run_ranks

Shapes = tuple[tuple[int, ...], ...]
_WAIT_S = 4.0  # a check may take 10 s in all: a message that never comes must be told before
_WAITED = "Ranks wait for each other: start what a rank sends and what it receives in a step together, then wait."
_EVEN: Shapes = ((5,), (2, 3), (7,), (1,), (3, 2, 2), (1,))  # 32 numbers, for four ranks
# Dividing before adding rounds numbers of some 5000 to a ten-thousandth; 16 bits round them to a whole number or worse.
same_means = close(1e-6, 1e-2, "Each tensor given must hold the mean over all ranks, in place.")


def ring_mean(tensors: list[Tensor]) -> None:
    """Replace each tensor by its mean over all ranks, with one ring for all of them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    chunks = flat.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(take)
        receives = dist.P2POp(dist.irecv, arrived, (rank - 1) % world_size)
        sends = dist.P2POp(dist.isend, give, (rank + 1) % world_size)
        for under_way in dist.batch_isend_irecv([receives, sends]):
            under_way.wait()
        take.copy_(take + arrived if step < world_size - 1 else arrived)
    flat /= world_size
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def left_alone(tensors: list[Tensor]) -> None:
    """Does nothing to the tensors, as whoever puts the means into another place."""


_AS_IT_WAS = (
    "The given tensors are as they were. `tensor = ...` and `tensors[i] = ...` put another tensor in the name or the "
    "list; in place is tensors[i].copy_(...)."
)
RING_MISTAKES = ((_AS_IT_WAS, left_alone),)


def ring_shapes(rng: torch.Generator) -> Sequence[tuple]:
    """Two ranks, one tensor; four, a total that makes chunks of unlike lengths; four, with less than one each; three.

    The last is drawn at random.
    """
    draw = lambda: int(torch.randint(1, 6, (), generator=rng))
    drawn = tuple((draw(), draw()) for _ in range(3))
    worlds = [(2, ((4,),)), (4, ((3,), (2, 1))), (4, ((2,), (1,))), (3, (*drawn, (7,)))]
    return [(*each, seed) for each, seed in zip(worlds, seeds(rng, 4), strict=True)]


def averaged(fn: Callable, world_size: int, shapes: Shapes, seed: int) -> dict:
    """How `fn` is used: each rank's tensors, in one vector, after fn was called with them."""
    ranks = (_expected if fn is ring_mean else _ran)(fn, world_size, shapes, seed)
    return {f"rank {rank}": each["means"] for rank, each in enumerate(ranks)}


def _ran(fn: Callable, world_size: int, shapes: Shapes, seed: int) -> list[dict]:
    """What each rank holds after fn, and what it sent; NotImplementedError where fn is a stub."""
    try:
        ranks = run_ranks(_in_a_rank, world_size, fn, shapes, seed, devices="cpu", timeout_s=_WAIT_S)
    except RankError as error:
        if error.kind != "waited":
            raise
        raise RankError(f"{_WAITED}\n{error}", kind=error.kind, rank=error.rank, standing=error.standing) from None
    for each in ranks:
        if "stub" in each:
            raise NotImplementedError(each["stub"])
    return ranks


_expected = cache(_ran)


def _in_a_rank(fn: Callable, shapes: Shapes, seed: int) -> dict:
    """One rank: whole numbers of its own, fn, and what was counted."""
    dice = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    tensors = [torch.randint(-5000, 5000, shape, generator=dice).float() for shape in shapes]
    with counting() as seen:
        try:
            fn(list(tensors))  # a list of its own: what counts is the tensors, wherever the list points afterwards
        except NotImplementedError as stub:
            return {"stub": str(stub)}
    calls, n_bytes = Counter(seen.calls), Counter(seen.bytes)
    means = torch.cat([tensor.detach().flatten() for tensor in tensors])
    sizes = [event.n_bytes // sum(map(prod, event.shape)) for event in seen.events if event.n_bytes]
    return {"means": means, "calls": dict(calls), "bytes": dict(n_bytes), "item_bytes": max(sizes, default=0)}


def ring_of_all(fn: Callable) -> str | None:
    """Whether fn works by messages alone, and by no more of them and of bytes than a ring of all gradients needs."""
    world_size, ranks = 4, _ran(fn, 4, _EVEN, 7)
    own = {op for each in ranks for op, n in each["calls"].items() if n} - {"send", "recv"}
    if own:
        return f"It calls {', '.join(sorted(own))}: the ring is to be made of messages, isend and irecv."
    if not all(each["calls"].get("send", 0) for each in ranks):
        return "A rank sends nothing: its numbers must reach all others, by messages that go round the ring."
    most = {what: max(each[what].get("send", 0) for each in ranks) for what in ("calls", "bytes")}
    if most["calls"] > 2 * (world_size - 1):
        return (
            f"A rank sends {most['calls']} messages for {len(_EVEN)} tensors on {world_size} ranks; "
            f"{2 * (world_size - 1)} are enough: {_why_so_many(most['calls'], world_size)}"
        )
    ring_bytes = ring_all_reduce_bytes(4 * sum(map(prod, _EVEN)), world_size)
    if most["bytes"] > ring_bytes:
        item_bytes = max(each["item_bytes"] for each in ranks)
        only_wide = item_bytes > 4 and most["bytes"] <= ring_bytes * item_bytes / 4
        wide = f"Each number that it sends has {item_bytes} bytes: leave them in the gradients' own dtype, float32."
        return (
            f"With {world_size} ranks one of them sends {most['bytes']} bytes; in a ring of all gradients each sends "
            f"{ring_bytes:.0f}. {wide if only_wide else 'Send chunks, and not whole vectors.'}"
        )
    return None


def _why_so_many(calls: int, world_size: int) -> str:
    """What a ring of too many messages does too often."""
    if calls <= 2 * world_size:
        return "each half of the ring has R-1 steps, and not R."
    if calls >= len(_EVEN) * 2 * (world_size - 1):
        return "one vector of all gradients goes round, not each by itself."
    return "one vector of all gradients goes round, and once."


# ---- 11.4: hide the messages ----------------------------------------------------------------------------------------


def overlapped_means(pieces: list, launch: Callable, world_size: int) -> list:
    """The mean over ranks of each piece's gradient, every sum begun as soon as its gradient is there."""
    gradients, under_way = [], []
    for piece in pieces:
        gradients.append(piece())
        under_way.append(launch(gradients[-1]))
    for pending in under_way:
        pending.wait()
    return [gradient / world_size for gradient in gradients]


class _Link:
    """Sums of paper: what was launched, computed and waited for, in order; a sum is there once it was waited for.

    others: the links of the other ranks, on which the same function ran before; what they launched is added.
    """

    def __init__(self, others: Sequence["_Link"] = ()) -> None:
        self.others, self.events, self.launched = others, [], []

    def piece(self, index: int, gradient: torch.Tensor) -> Callable:
        """A function that computes gradient `index`."""

        def compute() -> torch.Tensor:
            self.events.append(("compute", index))
            return gradient.clone()

        return compute

    def launch(self, tensor: torch.Tensor) -> "_Pending":
        """Start the sum of one more gradient."""
        self.launched.append(tensor.clone())
        self.events.append(("launch", len(self.launched) - 1))
        return _Pending(self, tensor, len(self.launched) - 1)


class _Pending:
    """One sum under way."""

    def __init__(self, link: _Link, tensor: torch.Tensor, index: int) -> None:
        self.link, self.tensor, self.index, self.done = link, tensor, index, False

    def wait(self) -> None:
        """Put the sum in the place of the tensor; RuntimeError where that was changed meanwhile."""
        self.link.events.append(("wait", self.index))
        if self.done:
            return
        if not torch.equal(self.tensor, self.link.launched[self.index]):
            raise RuntimeError("a tensor was changed while its sum was under way: divide after wait()")
        for other in self.link.others:
            self.tensor += other.launched[self.index]
        self.done = True


def _gradients(world_size: int, count: int, seed: int) -> list[list[torch.Tensor]]:
    """Each rank's gradients: whole numbers in vectors of different lengths."""
    dice = torch.Generator().manual_seed(seed)
    draw = lambda i: torch.randint(-9, 9, (3 + i,), generator=dice).float()
    return [[draw(i) for i in range(count)] for _ in range(world_size)]


def hidden(fn: Callable, world_size: int, count: int, seed: int) -> dict:
    """How `fn` is used: its means, one by one, over a link of paper."""
    return {"means": _on_paper(fn, world_size, count, seed)[0]}


def _on_paper(fn: Callable, world_size: int, count: int, seed: int) -> tuple[object, list[tuple[str, int]]]:
    """What fn returns on the last rank, and what was computed, launched and waited for there, in order."""
    links: list[_Link] = []
    for own in _gradients(world_size, count, seed):
        link = _Link(tuple(links))
        try:
            means = fn([link.piece(i, gradient) for i, gradient in enumerate(own)], link.launch, world_size)
        except (RuntimeError, ValueError) as error:
            if "process group" not in str(error):
                raise
            said = "no ranks run in this check, so torch.distributed knows none: use launch and world_size, as given"
            raise RuntimeError(said).with_traceback(error.__traceback__) from None
        links.append(link)
    return means, link.events


def nothing_waits(fn: Callable) -> str | None:
    """What of the computing was done before a sum that could have gone, or after a wait."""
    events = _on_paper(fn, 2, 4, 0)[1]
    last = max(i for i, (what, _) in enumerate(events) if what == "compute")
    early = [index for what, index in events[:last] if what == "wait"]
    if early:
        return f"It waits for sum {early[0]} before the last gradient is computed, so nothing is computed meanwhile."
    for i in range(3):
        launched = events.index(("launch", i)) if ("launch", i) in events else len(events)
        if launched > events.index(("compute", i + 1)):
            return f"Sum {i} starts only after gradient {i + 1} is computed: launch each as soon as it is there."
    return None


HIDDEN_MISTAKES = (
    ("These are this rank's own gradients, divided: the sum was not waited for, or it was launched for a copy.",)
    + (lambda pieces, _, world_size: [piece() / world_size for piece in pieces],),
    ("These are this rank's own gradients: neither summed over ranks nor divided.",)
    + (lambda pieces, *_: [piece() for piece in pieces],),
)
