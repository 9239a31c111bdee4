"""The loop of lesson 05: no fault changes a loss, each can be counted, and recordings lie where things happened."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from labkit import device_thread, timeline, workshop
from labkit.checks.faults import counted

N_STEPS = 21


@pytest.fixture(scope="module")
def dev():
    device = device_thread.open()
    yield device
    device.close()


@pytest.fixture(scope="module")
def usual(dev):
    return counted(workshop.loop, dev, n_steps=N_STEPS)


def _losses(dev, faults):
    run = partial(workshop.loop, faults=faults)
    return workshop.timed(run, dev, n_steps=4, shelf=workshop.Shelf(latency_s=0)).losses


def test_no_fault_changes_a_loss(dev):
    expected = _losses(dev, ())
    assert len(set(expected)) == 4
    for fault in workshop.FAULTS:
        assert _losses(dev, (fault,)) == pytest.approx(expected, abs=1e-5), fault


def test_a_loop_without_faults_has_none_that_can_be_counted(usual):
    assert usual.faults(usual) == []


SAID = ("compiled 7 times", "read 21 of 21", "copies to the device", "operations a step", "host waited", "has 21 lines")


@pytest.mark.parametrize(("fault", "said"), list(zip(workshop.FAULTS, SAID, strict=True)))
def test_each_fault_alone_can_be_counted(dev, usual, fault, said):
    left = counted(partial(workshop.loop, faults=(fault,)), dev, n_steps=N_STEPS).faults(usual)
    assert any(said in sentence for sentence in left), left


def test_a_loop_with_all_six_faults_shows_six(dev, usual):
    left = counted(partial(workshop.loop, faults=workshop.FAULTS), dev, n_steps=N_STEPS).faults(usual)
    assert len(left) == len(workshop.FAULTS)


def test_the_shelf_gives_the_same_batches_ahead_and_says_who_read():
    shelf = workshop.Shelf(latency_s=0)
    ahead = list(shelf.ahead(20))
    assert shelf.read_by == {"owner": 0, "others": 20}
    for step, batch in enumerate(ahead):
        for mine, read in zip(batch, shelf.read(step), strict=True):
            assert torch.equal(mine, read)
    assert shelf.read_by == {"owner": 20, "others": 20}
    assert len({batch[0].shape[-1] for batch in ahead}) > 3


def test_readers_stop_when_their_batches_are_no_longer_wanted():
    shelf = workshop.Shelf(latency_s=0)
    next(batches := shelf.ahead(1000))
    batches.close()
    assert shelf.read_by["others"] < 50


def test_a_recording_tells_reads_compilations_and_steps(dev):
    run = partial(workshop.loop, faults=workshop.FAULTS)
    spans = workshop.recorded(run, dev, n_steps=6, shelf=workshop.Shelf())
    of = {kind: [span for span in spans if span.kind == kind] for kind in ("data", "compile", "step")}
    assert {kind: len(found) for kind, found in of.items()} == {"data": 6, "compile": 2, "step": 6}
    assert all(span.seconds >= 0.03 for span in of["data"])
    for before, after in pairwise(of["step"]):
        assert before.end_s == pytest.approx(after.start_s)
    (device,) = timeline.device_rows(spans)
    for data in of["data"][1:]:  # the loop waits for every step, so nothing runs while it reads
        working = [s for s in spans if s.row == device and s.kind == "kernel"]
        assert not [s for s in working if s.start_s < data.end_s - 1e-3 and s.end_s > data.start_s + 1e-3]


def test_what_the_host_does_in_a_recording_does_not_overlap(dev):
    run = partial(workshop.loop, faults=workshop.FAULTS)
    spans = workshop.recorded(run, dev, n_steps=6, shelf=workshop.Shelf(latency_s=0.005))
    host = sorted((s.start_s, s.end_s) for s in spans if s.kind in ("data", "compile", "wait", "launch"))
    assert all(after[0] >= before[1] for before, after in pairwise(host))


def test_the_first_steps_are_left_out_of_the_time(dev):
    shelf = workshop.Shelf(latency_s=0.02)
    run = partial(workshop.loop, faults=("reading",))
    whole, rest = (workshop.timed(run, dev, n_steps=6, shelf=shelf, lead=lead) for lead in (0, 4))
    assert rest.losses == pytest.approx(whole.losses, abs=1e-5)
    assert 0.04 <= rest.seconds < whole.seconds


def test_waiting_after_the_last_step_is_no_fault(dev, usual):
    def numbers_at_the_end(*args):
        return [float(loss) for loss in workshop.loop(*args)]

    assert counted(numbers_at_the_end, dev, n_steps=N_STEPS).faults(usual) == []


def test_the_profiler_sees_the_device(dev):
    from labkit import trace

    run = partial(workshop.loop, faults=("syncing", "logging"))
    before = dev.waits
    with trace.profiler(dev) as profile:
        run(dev, workshop.Shelf(latency_s=0), 3, [])
    report = trace.report(profile)
    (device,) = report.devices.values()
    assert device.kernels > 20
    assert report.host.waits == dev.waits - before > 6
    recorded = workshop.recorded(run, dev, n_steps=3, shelf=workshop.Shelf(latency_s=0))
    launches = sum(span.kind == "launch" for span in recorded)
    assert report.host.launches == pytest.approx(launches, abs=10)  # a recording launches one itself
