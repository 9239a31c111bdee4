"""Ranks launched plainly: what they leave behind, that each launch ends, and that nothing is left over."""

import multiprocessing
import signal
import socket
import sys
import time

import pytest
import torch
import torch.distributed as dist
from rank_faults import kills, raises

from labkit.aftermath import Left, left_by, show_report


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert not multiprocessing.active_children()


def _skips():
    dist.broadcast(torch.ones(4), src=0)
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(4))


def _works():
    torch.ones(1000, 1000).sum()


def test_what_is_printed_and_how_it_ended_come_back_by_rank():
    report = left_by(lambda: print(f"I am {dist.get_rank()} of {dist.get_world_size()}"), 3, timeout_s=20)
    assert [left.ended for left in report] == [0, 0, 0]
    assert [left.said for left in report] == [f"I am {rank} of 3\n" for rank in range(3)]


def test_a_rank_that_skips_a_collective_stands_elsewhere():
    begin = time.monotonic()
    report = left_by(_skips, 3, timeout_s=1.5, look_s=0.5)
    assert time.monotonic() - begin < 20
    assert [left.ended for left in report] == [1, -signal.SIGTERM, 1]
    assert ["distributed_c10d.py" in left.stood for left in report] == [True, False, True]
    assert "Timed out waiting" in report[0].last_words
    if report[0].record is not None:
        assert [len(left.record) for left in report] == [2, 1, 2]


@pytest.mark.parametrize(("fn", "ended"), [(kills, -signal.SIGKILL), (raises, 1)])
def test_victims_blame_the_connection(fn, ended):
    report = left_by(fn, 2)
    assert report[1].ended == ended
    assert "by peer" in report[0].last_words


@pytest.mark.parametrize(
    ("given", "ended", "said"), [(3, 3, ""), (None, 0, ""), ("no data", 1, "no data\n"), (-1, 255, "")]
)
def test_sys_exit_ends_a_rank_as_it_ends_a_program(given, ended, said):
    (left,) = left_by(lambda: sys.exit(given), 1)
    assert (left.ended, left.said) == (ended, said)


def test_paths_of_this_machine_are_left_out():
    report = left_by(raises, 2)
    assert 'File "…/torch/distributed/distributed_c10d.py"' in report[0].said
    assert 'File "rank_faults.py"' in report[1].said
    assert "aftermath.py" not in report[1].said


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="the fork hangs in OpenMP")
def test_a_fork_after_work_hangs_and_is_ended():
    report = left_by(_works, 2, fork_after=_works, timeout_s=0.5, look_s=0.3)
    assert [left.ended for left in report] == [-signal.SIGTERM] * 2
    assert all("_works" in left.stood and "popen_fork.py" in left.stood for left in report)


def test_a_port_in_use_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        report = left_by(_works, 2, address=f"tcp://127.0.0.1:{other.getsockname()[1]}")
    assert "EADDRINUSE" in report[0].last_words


def test_detail_compares_shapes():
    report = left_by(lambda: dist.all_reduce(torch.ones(4 + dist.get_rank())), 2, detail=True)
    assert all("Detected mismatch" in left.last_words for left in report)


def test_a_report_is_shown_with_the_names_of_signals(capsys):
    show_report([Left(ended=-9), Left(ended=1, said="Traceback\nValueError: no\n\n")], caption="Two")
    said = capsys.readouterr().out
    assert said.startswith("Two\n")
    assert "rank 0 ended with -9 SIGKILL\n" in said
    assert "rank 1 ended with 1           ValueError: no" in said
