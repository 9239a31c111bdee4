"""Made-up reports of faults against those that real ranks leave, apart from names and numbers."""

import copyreg
import random
import re
import socket
import time

import pytest
import torch
import torch.distributed as dist
from rank_faults import kills, raises

from labkit.aftermath import left_by
from labkit.checks import reports
from labkit.checks.diagnosis import diagnose
from labkit.checks.parting import parted
from labkit.checks.uneven import LR, OneProcess, drawn, fresh, loss_of, on_ranks, train_uneven, weights_of
from labkit.checks.waiting import who_waits


def _skips():
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(4))


def _uneven():
    for _ in range(3 - (dist.get_rank() == 1)):
        dist.all_reduce(torch.ones(4))


def _differs():
    dist.all_reduce(torch.ones(4 + (dist.get_rank() == 1)))


def _works():
    torch.ones(1000, 1000).sum()


def _taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        return left_by(_works, 3, address=f"tcp://127.0.0.1:{other.getsockname()[1]}")


REAL = {
    "skipped": lambda: left_by(_skips, 3, timeout_s=1.5, look_s=0.5),
    "differed": lambda: left_by(_differs, 3, detail=True),
    "uneven": lambda: left_by(_uneven, 3),
    "forked": lambda: left_by(_works, 3, fork_after=_works, timeout_s=0.5, look_s=0.3),
    "port": _taken,
    "killed": lambda: left_by(kills, 3),
    "raised": lambda: left_by(raises, 3),
}


def _shape(words):
    """A log's last line without the numbers and names that vary."""
    words = re.sub(r"\[/?[^\]]*gloo/transport/tcp/", "[gloo/", words)
    return re.sub(r"\d+", "N", words)


def test_every_cause_has_a_real_fault():
    assert tuple(REAL) == reports.CAUSES


@pytest.mark.slow
@pytest.mark.parametrize("cause", reports.CAUSES)
def test_a_real_fault_is_diagnosed_and_worded_as_the_made_up_ones(cause):
    real = REAL[cause]()
    assert diagnose(real) == (cause, -1 if cause in ("forked", "port") else 1)
    if cause == "raised":
        real = [left for rank, left in enumerate(real) if rank != 1]
    known = {_shape(left.last_words) for seed in range(300) for left in reports.practice(cause, seed)}
    said = {_shape(left.last_words) for left in real}
    if cause == "differed":  # collectives and shapes are drawn
        known, said = ({re.sub(r"OpType=\w+|\[[N, ]*\]|  .*", "", each) for each in them} for them in (known, said))
    assert said <= known


@pytest.mark.parametrize("cause", reports.CAUSES)
def test_made_up_reports_are_told_apart(cause):
    dice = random.Random(7)
    for _ in range(500):
        report, rank = reports.made_up(cause, dice)
        assert diagnose(report) == (cause, rank)


def test_a_stack_is_written_as_faulthandler_writes_it():
    kinds = (
        r"Thread 0xN \(most recent call first\):",
        r'  File "[^"]+", line \d+ in [\w<>]+',
        r"Timeout \([\d:.]+\)!",
        "",
    )
    line = re.compile("|".join(kinds))
    made_up = [left.stood for seed in range(50) for left in reports.practice("skipped", seed)]
    for dump in [*made_up, *(left.stood for left in left_by(_skips, 2, timeout_s=1.2, look_s=0.5))]:
        for each in re.sub(r"0x[0-9a-f]+", "0xN", dump).splitlines():
            assert line.fullmatch(each), each


def test_readers_agree_on_a_real_fault():
    report = left_by(_skips, 3, timeout_s=1.5, look_s=0.5)
    assert who_waits([left.stood for left in report]) == {0: [1], 2: [1]}
    if report[0].record is not None:
        assert parted([left.record for left in report]) == (1, [1])


class _Slow(int):
    """An object that takes so many seconds to pack, in compiled code: the packing has no frame of its own."""


def _packs():
    copyreg.pickle(_Slow, time.sleep)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, _Slow(60) if dist.get_rank() == 1 else None)


def test_a_rank_that_packs_an_object_is_at_work():
    report = left_by(_packs, 3, timeout_s=2, look_s=1)
    inner = [re.search(r"first\):\n.* in (\w+)", left.stood.split("\n\n")[-1]) for left in report]
    assert inner[1][1] == "_object_to_tensor"
    assert who_waits([left.stood for left in report]) == {0: [1], 2: [1]}


def test_practice_tells_the_rank_on_request_and_the_causes():
    assert reports.practice("uneven", 3)[reports.rank_at_fault("uneven", 3)].ended == 0
    assert reports.rank_at_fault("port", 3) == -1
    with pytest.raises(ValueError, match="none of the causes: skipped, differed"):
        reports.practice("unven")


def _with_all_samples(ranks):
    """The weights when one process trains on the samples of all ranks, put together, in each step."""
    model = fresh()
    for step in range(max(map(len, ranks))):
        batch = tuple(torch.cat([mine[step][i] for mine in ranks if step < len(mine)]) for i in range(2))
        model.zero_grad()
        (loss_of(model, batch) / len(batch[0])).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= LR * weight.grad
    return weights_of(model)


@pytest.mark.parametrize("sizes", [[[3, 5], [4]], [[2], [], [3, 3, 3]], [[], []]])
def test_uneven_ranks_equal_one_process(sizes):
    weights = _with_all_samples(drawn(11, sizes))
    assert torch.allclose(OneProcess()(drawn(11, sizes))[-1], weights, atol=1e-6)
    for path, used, _ in on_ranks(train_uneven, 11, sizes):
        assert torch.allclose(path[-1], weights, atol=1e-6)
        assert used == sum(map(sum, sizes))
