"""labkit.sync where there is a GPU: the same table as on a CPU, and the driver's own account."""

import pytest
import torch
from waits_table import WAITS, WAITS_NOT, tensors

from labkit import device_thread, sync

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("name", WAITS)
def test_the_driver_agrees_that_this_line_waits(name):
    op, line = WAITS[name]
    t = tensors("cuda")
    with sync.watch() as report:
        line(t)
    assert [row.op for row in report.rows] == [op]


@pytest.mark.parametrize("name", WAITS_NOT)
def test_the_driver_agrees_that_this_line_does_not(name):
    t = tensors("cuda")
    WAITS_NOT[name](t)  # the first call may load a library, which waits
    with sync.watch() as report:
        WAITS_NOT[name](t)
    assert report.rows == ()


def test_tensors_of_the_host_do_not_count_beside_a_gpu():
    host, pinned = torch.ones(4), torch.ones(4).pin_memory()
    with sync.watch() as report:
        host.sum().item()
        host.tolist()
        pinned.to("cuda", non_blocking=True)
    assert report.rows == ()


def test_a_copy_that_the_course_makes_without_waiting_is_no_wait():
    device, host = device_thread.open(), torch.ones(4)
    device.put(host, non_blocking=True)
    with sync.watch(device) as report:
        device.put(host, non_blocking=True)
        device.fetch(device.put(host, non_blocking=True))
    assert report.rows == ()


def test_waiting_on_purpose_and_blocking_copies_are_named():
    host = torch.ones(4)
    with sync.watch() as report:
        torch.cuda.synchronize()
        host.to("cuda")
        host.pin_memory()
    assert [row.op for row in report.rows] == ["synchronize", "to", "pin_memory"]


def test_the_profiler_saw_no_wait_that_is_not_reported():
    """As many synchronise calls of the driver's as the report counts, for one that reads each of ten losses."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(512, 512, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen, sync.watch() as report:
        for _ in range(10):
            x = x @ x / 512
            x.sum().item()
    calls = [event.name for event in seen.events()]
    assert sum(row.count for row in report.rows) == 10
    assert sum("StreamSynchronize" in name for name in calls) >= 10


def test_the_debug_mode_and_the_filters_are_as_before():
    import warnings

    before = torch.cuda.get_sync_debug_mode(), warnings.showwarning, list(warnings.filters)
    with sync.watch():
        torch.ones(1, device="cuda").item()
    assert (torch.cuda.get_sync_debug_mode(), warnings.showwarning, list(warnings.filters)) == before
