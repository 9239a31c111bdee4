"""Padded, bucketed and packed batches: the same documents, the same loss of each, fewer places."""

from statistics import median
from time import process_time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labkit import models, packing
from labkit.data import docs

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def texts() -> list[Tensor]:
    """The shipped text, cut to what the models here can hold."""
    return packing.cut(docs.documents("train"), 512)


@pytest.fixture(scope="module")
def few() -> list[Tensor]:
    """Nine documents of uneven length, drawn."""
    torch.manual_seed(0)
    return [torch.randint(11, (n,)) for n in (2, 31, 3, 7, 12, 30, 2, 5, 19)]


@pytest.fixture(scope="module")
def model() -> models.Gpt:
    torch.manual_seed(0)
    return models.gpt(vocab=11, width=16, heads=2, layers=2, context=64)


def plans(lengths: list[int]) -> dict[str, packing.Plan]:
    return {
        "padded": packing.padded(lengths, rows=3, seed=0),
        "bucketed": packing.bucketed(lengths, rows=3, seed=0, pool=2),
        "packed": packing.packed(lengths, rows=2, seed=0, capacity=40),
    }


def test_a_batch_says_of_each_place_what_it_holds():
    batch = packing.lay_out([torch.tensor([5, 6, 7]), torch.tensor([8, 9]), torch.tensor([1, 2])], [[0, 2], [1]])
    assert batch.tokens.tolist() == [[5, 6, 7, 1, 2], [8, 9, 0, 0, 0]]
    assert batch.targets.tolist() == [[6, 7, -100, 2, -100], [9, -100, -100, -100, -100]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]]
    assert batch.documents.tolist() == [[0, 0, 0, 2, 2], [1, 1, -1, -1, -1]]
    assert not batch.alone
    assert (batch.useful, batch.wasted) == (7, 0.30000000000000004)


def test_the_mask_is_block_diagonal_and_no_place_is_left_without_one_to_see():
    mask = packing.block_diagonal(torch.tensor([[4, 4, 7, -1]]))[0]
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_every_plan_holds_every_document_once_and_follows_its_seed(texts):
    lengths = packing.lengths_of(texts)
    makers = {
        "padded": lambda seed: packing.padded(lengths, 16, seed),
        "bucketed": lambda seed: packing.bucketed(lengths, 16, seed, pool=8),
        "packed": lambda seed: packing.packed(lengths, 16, seed, capacity=512),
    }
    for name, make in makers.items():
        plan = make(1)
        held = [number for rows in plan for row in rows for number in row]
        assert sorted(held) == list(range(len(texts))), name
        assert plan == make(1) != make(2), name


def test_each_documents_loss_is_the_same_however_it_is_laid_out(few, model):
    alone = {n: packing.losses(model, few, [[[n]]])[n] for n in range(len(few))}
    for name, plan in plans(packing.lengths_of(few)).items():
        found = packing.losses(model, few, plan)
        assert found == pytest.approx(alone, abs=1e-5), name


@pytest.mark.parametrize("fault", ["no mask", "positions run on"])
def test_a_packing_that_forgets_mask_or_positions_gives_another_loss(few, model, fault):
    rows = packing.first_fit_decreasing(packing.lengths_of(few), 40)
    batch = packing.lay_out(few, rows)
    right = packing.document_losses(packing.logits_of(model, batch), batch)
    logits = model(batch.tokens, batch.positions) if fault == "no mask" else model(batch.tokens, None, batch.mask())
    wrong = packing.document_losses(logits, batch)
    first = {row[0] for row in rows}  # whose past is its own even so
    assert all(wrong[n] == pytest.approx(right[n], abs=1e-5) for n in first)
    assert all(abs(wrong[n] - right[n]) > 1e-4 for n in right.keys() - first)


def test_the_gradient_of_a_packed_batch_is_that_of_the_padded_one(few, model):
    gradients = []
    for rows in ([[n] for n in range(9)], packing.first_fit_decreasing(packing.lengths_of(few), 40)):
        model.zero_grad()
        batch = packing.lay_out(few, rows)
        packing.token_loss(packing.logits_of(model, batch), batch).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_the_mean_over_tokens_is_not_the_mean_over_documents(few, model):
    batch = packing.lay_out(few, [[n] for n in range(9)])
    logits = model(batch.tokens)
    each = packing.document_losses(logits, batch)
    by_token = sum(each[n] * (len(few[n]) - 1) for n in each) / sum(len(doc) - 1 for doc in few)
    assert packing.token_loss(logits, batch).item() == pytest.approx(by_token, abs=1e-6)
    assert abs(by_token - sum(each.values()) / 9) > 1e-3


def test_packing_the_shipped_text_stays_within_two_per_cent_of_the_lower_bound(texts):
    lengths = packing.lengths_of(texts)
    for capacity in (512, 1024):
        rows = packing.first_fit_decreasing(lengths, capacity)
        assert len(rows) <= 1.02 * packing.lower_bound(lengths, capacity)


def test_packing_wastes_far_fewer_places_than_padding(texts):
    lengths = packing.lengths_of(texts)
    padded, bucketed, packed = (
        packing.wasted(lengths, packing.padded(lengths, 16, 0)),
        packing.wasted(lengths, packing.bucketed(lengths, 16, 0, pool=16)),
        packing.wasted(lengths, packing.packed(lengths, 16, 0, 512)),
    )
    assert packed < 0.03
    assert packed < bucketed < 0.5 < padded
    plan = packing.padded(lengths, 16, 0)[:5]
    batches = [packing.lay_out(texts, rows) for rows in plan]
    places = sum(batch.tokens.numel() for batch in batches)
    assert packing.wasted(lengths, plan) == pytest.approx(1 - sum(batch.useful for batch in batches) / places)


def _useful_per_s(model, optimizer, texts: list[Tensor], rows_of_batches: packing.Plan) -> float:
    """Tokens of documents that a second of the processor trains on."""
    useful, begun_s = 0, process_time()
    for rows in rows_of_batches:
        batch = packing.lay_out(texts, rows)
        optimizer.zero_grad()
        packing.token_loss(packing.logits_of(model, batch), batch).backward()
        optimizer.step()
        useful += batch.useful
    return useful / (process_time() - begun_s)


@pytest.fixture
def one_thread():
    """The processor's time is then that of the work alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_packing_trains_on_twice_the_useful_tokens_a_second_at_the_same_loss_of_each_document():
    texts = packing.cut(docs.documents("train"), 1024)
    lengths = packing.lengths_of(texts)
    padded, packed = packing.padded(lengths, 32, 0), packing.packed(lengths, 4, 0, 1024)
    torch.manual_seed(0)
    model = models.gpt(vocab=96, context=1024, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rates = [
        (
            _useful_per_s(model, optimizer, texts, padded[at : at + 1]),
            _useful_per_s(model, optimizer, texts, packed[4 * at : 4 * at + 4]),
        )
        for at in range(6)
    ]
    assert median(in_rows / alone for alone, in_rows in rates[1:]) >= 2
    some = texts[:60]
    each = [
        packing.losses(model, some, plan)
        for plan in (packing.padded(lengths[:60], 16, 0), packing.packed(lengths[:60], 4, 0, 1024))
    ]
    assert each[0] == pytest.approx(each[1], abs=1e-5)


def test_a_pool_of_one_batch_is_plain_padding():
    lengths = [5, 1, 4, 2, 3, 6]
    pooled, padded = packing.bucketed(lengths, 2, 0, pool=1), packing.padded(lengths, 2, 0)
    assert sorted(sorted(map(tuple, rows)) for rows in pooled) == sorted(sorted(map(tuple, rows)) for rows in padded)


@given(SIZES)
@settings(deadline=None)
def test_first_fit_decreasing_is_what_its_name_says(lengths):
    rows, room = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fits = next((row for row, left in enumerate(room) if left >= lengths[number]), len(rows))
        if fits == len(rows):
            rows.append([])
            room.append(40)
        rows[fits].append(number)
        room[fits] -= lengths[number]
    assert packing.first_fit_decreasing(lengths, 40) == rows


def fewest_rows(lengths: list[int], capacity: int) -> int:
    """The fewest rows, by trying every way."""

    def search(left: list[int], rooms: tuple[int, ...]) -> int:
        if not left:
            return len(rooms)
        first, *rest = left
        ways = {tuple(sorted((*rooms, capacity - first)))}
        ways |= {
            tuple(sorted((*rooms[:at], room - first, *rooms[at + 1 :])))
            for at, room in enumerate(rooms)
            if room >= first
        }
        return min(search(rest, way) for way in ways)

    return search(sorted(lengths, reverse=True), ())


@given(st.lists(st.integers(1, 10), min_size=1, max_size=7))
@settings(deadline=None, max_examples=60)
def test_the_lower_bound_is_never_above_the_fewest_rows_and_never_below_the_sum(lengths):
    bound = packing.lower_bound(lengths, 10)
    assert -(-sum(lengths) // 10) <= bound <= fewest_rows(lengths, 10) <= len(packing.first_fit_decreasing(lengths, 10))


def test_the_lower_bound_knows_that_large_documents_share_no_row():
    assert packing.lower_bound([6, 6, 6], 10) == 3
    assert packing.lower_bound([7, 7, 4, 4], 10) == 3  # the sum alone says 3 too, the pairs alone 2
    assert packing.lower_bound([8, 8, 3, 3], 10) == 3
    assert packing.lower_bound([8, 8, 8, 3], 10) == 4  # the sum alone says 3


def test_cutting_loses_no_token_and_leaves_no_piece_of_one():
    document = torch.arange(1025)
    pieces = packing.cut([document, torch.arange(3)], 512)
    assert packing.lengths_of(pieces) == [342, 342, 341, 3]
    assert torch.equal(torch.cat(pieces[:3]), document)
    for n in range(2, 60):
        for most in range(3, 20):
            assert all(2 <= len(piece) <= most for piece in packing.cut([torch.arange(n)], most))


def test_what_cannot_be_laid_out_is_named():
    with pytest.raises(ValueError, match="41 tokens does not fit into 40"):
        packing.first_fit_decreasing([3, 41], 40)
    with pytest.raises(ValueError, match="41 tokens does not fit into 40"):
        packing.lower_bound([3, 41], 40)
    with pytest.raises(ValueError, match="row of 5 tokens does not fit into 4"):
        packing.lay_out([torch.arange(5)], [[0]], width=4)
    with pytest.raises(ValueError, match="at most 2 tokens"):
        packing.cut([torch.arange(5)], 2)


def test_a_batch_of_one_shape_and_on_a_device():
    batch = packing.lay_out([torch.arange(5)], [[0]], width=8).to("cpu")
    assert batch.tokens.shape == batch.mask().shape[:2] == (1, 8)
    assert batch.wasted == 3 / 8
