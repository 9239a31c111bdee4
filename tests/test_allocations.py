"""The log of allocations: counted by hand where that can be done, and what no name leads to is found."""

import pytest
import torch
from torch import nn

from labkit import live
from labkit.allocations import allocations

KIB = 1024


def test_every_tensor_counts_from_its_operation_to_its_release():
    with allocations() as log:
        a = torch.zeros(KIB, dtype=torch.uint8)
        log.mark("one")
        b = a + 1
        view = b[:10]
        log.mark("two")
        del b
        log.mark("held by a view")
        del view
        log.mark("released")
        a += 1
    assert [log.at(name) for name in log.marks] == [KIB, 2 * KIB, 2 * KIB, KIB]
    assert log.peak_bytes == 2 * KIB
    assert log.live_bytes[-1] == KIB
    assert log.between("one", "released") == [KIB, 2 * KIB, KIB]


def test_a_storage_emptied_and_filled_again_counts_as_it_is():
    with allocations() as log:
        a = torch.zeros(KIB, dtype=torch.uint8)
        a.untyped_storage().resize_(0)
        log.mark("empty")
        a.untyped_storage().resize_(2 * KIB)
        log.mark("twice")
    assert [log.at(name) for name in log.marks] == [0, 2 * KIB]


def test_what_was_there_before_is_no_allocation_nor_is_its_release():
    before = torch.zeros(KIB, dtype=torch.uint8)
    with allocations() as log:
        before += 1
        before.untyped_storage().resize_(0)
        del before
    assert log.live_bytes == [0]
    with allocations() as log:
        torch.empty(KIB, device="meta").add(1)
    assert log.peak_bytes == 0


def test_what_autograd_saves_is_found_though_no_name_leads_there():
    layer, x = nn.Linear(16, 16, bias=False), torch.zeros(4, 16, requires_grad=True)
    with allocations() as log:
        y = layer(x).exp()
        saved = log.live_bytes[-1]
        y = y.sum()
    n = 4 * 4 * 16
    assert saved == n  # the output, which exp keeps for its backward pass; the product is gone
    assert log.live_bytes[-1] == n + 4


def test_after_the_block_resize_is_torchs_own_again():
    plain = torch.UntypedStorage.resize_

    def fails():
        with allocations():
            assert torch.UntypedStorage.resize_ is not plain
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fails()
    assert torch.UntypedStorage.resize_ is plain


def test_a_step_has_the_peak_that_torchs_tracker_finds():
    """Both follow the same tensors; the tracker counts what lived before, so all of it is made within the block."""

    def training():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.randn(512, 64)

        def step():
            optimizer.zero_grad(set_to_none=True)
            model(x).sum().backward()
            optimizer.step()

        step()
        return step, model, optimizer, x

    with allocations() as log:
        step, *tracked = training()
        log.mark("step")
        step()
        log.mark("end")
    step, *tracked = training()
    assert max(log.between("step", "end")) == pytest.approx(live.peak(step, *tracked).total_bytes, rel=0.01)


def test_a_log_on_fake_tensors_is_that_on_real_ones():
    def work():
        with allocations() as log:
            (torch.ones(100, 100) @ torch.ones(100, 100)).relu().sum()
        return log.live_bytes

    with live.fake():
        fake = work()
    assert fake == work()
    assert max(fake) == 3 * 40_000
