"""Documents dealt to ranks: none lost, none twice, and how long the others wait for the slowest."""

from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from labkit import balance, packing
from labkit.data import docs

DEALS = [balance.naive, balance.by_length, balance.longest_first]


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    return packing.lengths_of(packing.cut(docs.documents("train"), 512))


@pytest.mark.parametrize("make", DEALS)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=16, max_size=80),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=40)
def test_every_deal_holds_every_document_once_and_leaves_no_rank_without(make, lengths, ranks, seed):
    deal = make(lengths, ranks, 8, seed)
    assert sorted(number for step in deal for share in step for number in share) == list(range(len(lengths)))
    assert len(deal) == -(-len(lengths) // 8)
    assert all(len(step) == ranks and all(step) for step in deal)
    assert all(sum(map(len, step)) <= 8 for step in deal)


def test_longest_first_gives_each_to_the_rank_with_the_least():
    [step] = balance.longest_first([7, 1, 6, 5, 4, 3], 2, 6, seed=0)
    assert sorted(map(sorted, step)) == [[0, 4, 5], [1, 2, 3]]  # 7; 6; 5 to the 6; 4 to the 7; 3 to one of two 11s; 1


def test_waiting_is_what_the_largest_share_of_each_step_leaves_the_others():
    assert balance.waiting_share([3, 1, 2, 2], [[[0], [1]], [[2], [3]]]) == pytest.approx(1 - 8 / 10)
    assert balance.waiting_share([3, 1, 2, 2], [[[0, 1], [2, 3]]]) == 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_on_the_shipped_text_longest_first_leaves_little_to_wait_for_and_the_naive_deal_much(lengths, ranks):
    waits = {make.__name__: balance.waiting_share(lengths, make(lengths, ranks, 16 * ranks, 0)) for make in DEALS}
    assert waits["naive"] > 0.1
    assert waits["by_length"] < 0.03
    assert waits["longest_first"] < 0.02


def test_sorting_leaves_a_batch_of_one_length_and_longest_first_does_not(lengths):
    spread = {
        make.__name__: median(
            torch.tensor([float(lengths[number]) for share in step for number in share]).std().item()
            for step in make(lengths, 2, 32, 0)
        )
        for make in DEALS
    }
    assert spread["by_length"] < 0.1 * spread["longest_first"]
    assert spread["longest_first"] == pytest.approx(spread["naive"], rel=0.01)


def _samplers(lengths, ranks: int, batch: int = 8):
    return [balance.BalancedSampler(lengths, rank=rank, ranks=ranks, batch=batch) for rank in range(ranks)]


def test_the_sampler_loses_none_and_repeats_none_where_torchs_own_repeats():
    from torch.utils.data import DistributedSampler

    data = torch.arange(33)
    lengths = (data % 7 + 1).tolist()
    loaders = [DataLoader(data, batch_sampler=sampler) for sampler in _samplers(lengths, 4)]
    parts = [[batch.tolist() for batch in loader] for loader in loaders]
    assert sorted(sum(sum(parts, []), [])) == data.tolist()
    assert [len(part) for part in parts] == [len(loader) for loader in loaders] == [5] * 4
    theirs = [list(DistributedSampler(data, num_replicas=4, rank=rank)) for rank in range(4)]
    assert len(sum(theirs, [])) == 36


def test_another_epoch_is_another_order_and_the_same_one_on_every_rank():
    lengths = [i % 7 + 1 for i in range(33)]
    samplers = _samplers(lengths, 2)
    first = [list(sampler) for sampler in samplers]
    assert first == [list(sampler) for sampler in samplers]
    for sampler in samplers:
        sampler.set_epoch(1)
    second = [list(sampler) for sampler in samplers]
    assert second != first
    assert sorted(sum(sum(second, []), [])) == list(range(33))


SIZES = [40, 1, 1, 1, 38, 2, 1, 1, 41, 1, 2, 1, 39, 1, 1, 2]


def _multiply(numbers: list[int]) -> None:
    x = torch.ones(160, 160)
    for _ in range(4 * sum(SIZES[number] for number in numbers)):
        x = torch.tanh(x @ x)


def test_real_ranks_wait_as_long_as_the_tokens_say():
    """Seconds of the processor, so that other work on this machine does not count."""
    steps = [list(range(at, at + 4)) for at in range(0, 16, 4)]
    lopsided = [[[step[0], step[1]], [step[2], step[3]]] for step in steps]
    even = [[[step[0]], [step[0]]] for step in steps]  # the same work for both
    counted = balance.waiting_share(SIZES, lopsided[1:])
    measured = balance.straggle(lopsided, _multiply)
    assert [len(step) for step in measured.worked_s] == [len(step) for step in measured.waited_s] == [2] * 3
    assert counted > 0.4
    assert measured.waiting_share == pytest.approx(counted, abs=0.12)
    assert balance.straggle(even, _multiply).waiting_share < 0.2
    stood_s = [sum(rank) for rank in zip(*measured.waited_s, strict=True)]
    assert stood_s[1] > stood_s[0]


def test_what_cannot_be_dealt_is_named():
    for make in DEALS:
        with pytest.raises(ValueError, match="3 documents, at most 8 a step, leave one of 4 ranks"):
            make([1, 2, 3], 4, 8, 0)
    with pytest.raises(ValueError, match="leave one of 4 ranks"):
        balance.BalancedSampler([1, 2, 3], rank=0, ranks=4, batch=8)
    with pytest.raises(ValueError, match="rank 2 is none of 2"):
        balance.BalancedSampler([1, 2, 3], rank=2, ranks=2, batch=8)
    with pytest.raises(ValueError, match="1 steps, of which 1 are for warming up"):
        balance.straggle([[[0], [1]]], _multiply)
