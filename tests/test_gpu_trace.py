"""What only a GPU can show of traces: those of work whose amount is known; `make gpu-check` runs these."""

import time

import pytest
import torch

from labkit import trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def _profiled(work):
    """The trace of some work, run once before."""
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    return trace.read(profiled)


def _gpu(found):
    """The report on the one GPU of a trace."""
    ((name, device),) = trace.report(found).devices.items()
    assert name.startswith("GPU ")
    return device


def test_kernels_and_copies_are_those_that_were_launched():
    pinned = torch.ones(1 << 20).pin_memory()

    def work():
        x = pinned.to("cuda", non_blocking=True)
        for _ in range(20):
            x = x.mul(1.0001)
        return x.cpu()

    found = _profiled(work)
    device = _gpu(found)
    assert device.kernels == 20
    assert device.copies == 2
    assert device.copied_bytes == 2 * 4 * (1 << 20)
    assert 0 < device.busy_s < found.span_s
    assert device.busy_s + device.idle_s == pytest.approx(found.span_s)
    assert trace.report(found).host.waits >= 1


def test_a_wait_for_data_is_the_cause_of_the_gap_that_it_makes():
    a = torch.ones(1024, 1024, device="cuda")

    def work():
        for _ in range(3):
            a.mm(a)
            torch.cuda.synchronize()
            with torch.profiler.record_function("data_wait"):
                time.sleep(0.02)
        a.mm(a)

    causes = _gpu(_profiled(work)).idle_causes
    assert causes["data wait"] == pytest.approx(0.06, rel=0.2)
    assert max(causes, key=causes.__getitem__) == "data wait"


def test_large_kernels_behind_one_another_leave_a_gpu_hardly_idle():
    a = torch.ones(8192, 8192, device="cuda")

    def work():
        for _ in range(20):
            a.mm(a)

    assert _gpu(_profiled(work)).idle_share_between < 0.2
