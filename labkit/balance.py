"""Documents of uneven length dealt to ranks: a step is over when the slowest rank is, so the longest share decides.

A deal says who takes what: `deal[step][rank]` is a list of document numbers. A naive deal gives every rank as many
documents, which is not as many tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from labkit.packing import shuffled
from labkit.ranks import run_ranks

Deal = list[list[list[int]]]


def naive(lengths: Sequence[float], ranks: int, batch: int, seed: int) -> Deal:
    """Each step's documents, `batch` at most, in an order drawn from the seed, dealt like cards: to each rank as many.

    Where the ranks do not divide a step, some get one more. ValueError: a step with fewer documents than ranks.
    """
    steps = _steps(shuffled(len(lengths), seed), ranks, batch)
    return [[step[rank::ranks] for rank in range(ranks)] for step in steps]


def by_length(lengths: Sequence[float], ranks: int, batch: int, seed: int) -> Deal:
    """All documents sorted by length, each step's dealt like cards, the steps in an order drawn from the seed.

    The ranks of a step get nearly equal shares, but one step holds the short documents and another the long ones: what
    stands in a batch is no longer random. ValueError as above.
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    steps = _steps(order, ranks, batch)
    return [[steps[step][rank::ranks] for rank in range(ranks)] for step in shuffled(len(steps), seed)]


def longest_first(lengths: Sequence[float], ranks: int, batch: int, seed: int) -> Deal:
    """The naive deal's steps, but within each the longest document goes first, each to the rank with the least so far.

    The fullest rank then holds at most 4/3 - 1/(3 ranks) of the least that it could. Ranks hold unlike numbers of
    documents, so a mean over ranks must be weighted by their tokens. ValueError as above.
    Source: Graham, Bounds on multiprocessing timing anomalies (1969).
    """
    return [_dealt(step, lengths, ranks) for step in _steps(shuffled(len(lengths), seed), ranks, batch)]


def _dealt(step: list[int], lengths: Sequence[float], ranks: int) -> list[list[int]]:
    """One step's documents, each to the rank with the least so far, the longest first."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for number in sorted(step, key=lambda number: -lengths[number]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += lengths[number]
    return shares


def _steps(order: list[int], ranks: int, batch: int) -> list[list[int]]:
    """The documents cut into the fewest steps of `batch` at most, all nearly equal, so that no rank goes without.

    ValueError: a step with fewer documents than ranks.
    """
    n_steps = math.ceil(len(order) / batch)
    steps = [order[len(order) * at // n_steps : len(order) * (at + 1) // n_steps] for at in range(n_steps)]
    if not steps or min(map(len, steps)) < ranks:
        raise ValueError(f"{len(order)} documents, at most {batch} a step, leave one of {ranks} ranks without any")
    return steps


def waiting_share(lengths: Sequence[float], deal: Deal) -> float:
    """The share of the ranks' time that they would wait for the slowest, from 0 to 1, if time went by length.

    lengths may be any cost of a document: its tokens, or their square where attention decides.
    """
    return _share([[sum(lengths[number] for number in share) for share in step] for step in deal])


def _share(loads: Sequence[Sequence[float]]) -> float:
    """What is lost where each step's largest load sets the pace."""
    return 1 - sum(map(sum, loads)) / sum(len(step) * max(step) for step in loads)


@dataclass(frozen=True, kw_only=True)
class Straggling:
    """Seconds of each step on each rank, as [step][rank]: at work by the processor's clock, waiting by the wall's.

    On a machine that others use too, a rank also stands because somebody else's program runs: that is in waited_s, and
    not in worked_s.
    """

    worked_s: list[list[float]]
    waited_s: list[list[float]]

    @property
    def waiting_share(self) -> float:
        """The share of the ranks' time that the slowest of each step costs, from 0 to 1, from the seconds at work."""
        return _share(self.worked_s)


def straggle(deal: Deal, work: Callable[[list[int]], object], *, warmup: int = 1) -> Straggling:
    """Have real ranks, as many as the deal has shares, do work(numbers) step by step, and wait for each other.

    They run on CPUs, one thread each. warmup: first steps that are done and not told. ValueError: nothing else is left.
    """
    if len(deal) <= warmup:
        raise ValueError(f"{len(deal)} steps, of which {warmup} are for warming up, leave nothing to measure")
    told = run_ranks(_walk, len(deal[0]), deal, work, devices="cpu")
    worked_s, waited_s = (list(map(list, zip(*each, strict=True)))[warmup:] for each in zip(*told, strict=True))
    return Straggling(worked_s=worked_s, waited_s=waited_s)


def _walk(deal: Deal, work: Callable[[list[int]], object]) -> tuple[list[float], list[float]]:
    """This rank's seconds at work and in the barrier, step by step."""
    torch.set_num_threads(1)
    worked_s, waited_s = [], []
    for step in deal:
        begun_s = process_time()
        work(step[dist.get_rank()])
        worked_s.append(process_time() - begun_s)
        done_s = perf_counter()
        dist.barrier()
        waited_s.append(perf_counter() - done_s)
    return worked_s, waited_s


class BalancedSampler(Sampler[list[int]]):
    """One rank's batches of a longest-first deal, for a DataLoader's batch_sampler: no sample lost, none twice.

    Every rank makes the same deal from the seed and the epoch, and takes its own part: nothing is sent. Unlike torch's
    DistributedSampler it neither repeats samples to make the ranks even nor drops any. set_epoch draws anew.
    ValueError: a rank that is not among the ranks, or fewer documents in a step than ranks.
    """

    def __init__(self, lengths: Sequence[float], *, rank: int, ranks: int, batch: int, seed: int = 0):
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is none of {ranks}")
        self.lengths, self.rank, self.ranks, self.batch, self.seed = lengths, rank, ranks, batch, seed
        self.epoch = 0
        _steps(list(range(len(lengths))), ranks, batch)  # refuses now what no epoch could deal

    def set_epoch(self, epoch: int) -> None:
        """Draw another order from now on, the same on every rank that is told the same epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        deal = longest_first(self.lengths, self.ranks, self.batch, self.seed + self.epoch)
        return iter([step[self.rank] for step in deal])

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.batch)
