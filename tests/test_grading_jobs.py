"""Students side by side: whoever stops listening, or is stopped, waits for nobody, and nothing is left behind."""

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.course import CourseError
from labkit.grading import jobs
from labkit.grading.box import Limits

_AT_FIRST = set(sys.modules)


@dataclass(frozen=True)
class Batch:
    """Judges by a folder's name: `end` ends its job, `wait` waits for ever, others are answered."""

    trusted: bool = True
    limits: Limits = Limits()

    def judge(self, folder, box):
        assert box is not None
        if folder.name == "end":
            os.kill(os.getpid(), signal.SIGKILL)
        if folder.name == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if folder.name.startswith("wait"):
            time.sleep(600)
        if folder.name == "looks":
            (thread,) = os.listdir(f"/proc/{os.getppid()}/task")  # a fork of a process with threads may hang
            return {"parent": int(thread), "loaded": sorted({"labkit.checks.nb14", "torch"} & _AT_FIRST)}
        return {"name": folder.name}


class Nothing:
    """In place of a box: what is tested here runs no cells."""

    def __init__(self, limits):
        pass


@pytest.fixture(autouse=True)
def _no_box(monkeypatch):
    monkeypatch.setattr(jobs, "_open", _open)


def _open(batch):
    jobs._job.update(batch=batch, box=Nothing(batch.limits))


def paths(*names):
    return [Path(name) for name in names]


def nobody_is_left():
    until_s = time.monotonic() + 20
    while multiprocessing.active_children():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    return True


def test_every_folder_is_answered_and_nothing_is_started_for_none():
    found = dict(jobs.graded(paths("a", "b", "c"), Batch(), 2))
    assert found == {Path(name): {"name": name} for name in "abc"}
    assert list(jobs.graded([], Batch(), 2)) == []


def test_jobs_are_forks_of_one_process_without_threads_that_has_loaded_the_judge():
    [(_, found)] = jobs.graded(paths("looks"), Batch(), 1)
    assert found["loaded"] == ["labkit.checks.nb14", "torch"]
    assert found["parent"] != os.getpid()


def test_whoever_stops_listening_waits_for_nobody():
    found = jobs.graded(paths("a", "wait1", "wait2", "wait3"), Batch(), 1)
    assert next(found)[1] == {"name": "a"}
    before_s = time.monotonic()
    found.close()
    assert nobody_is_left()
    assert time.monotonic() - before_s < 20


def test_a_job_that_the_system_ends_is_a_sentence():
    with pytest.raises(CourseError, match="fewer --jobs"):
        list(jobs.graded(paths("end", "a"), Batch(), 1))
    assert nobody_is_left()


def test_a_job_does_not_hear_the_interrupt_that_is_meant_for_the_grader():
    assert [told for _, told in jobs.graded(paths("interrupt"), Batch(), 1)] == [{"name": "interrupt"}]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
