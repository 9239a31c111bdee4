"""Students side by side: each job is a process with a box of its own, and ends with the grader, however that ends.

Jobs are forked from one process that has loaded the judge, so that they share the memory which that takes: 1.8 GB with
four jobs, where four that loaded it themselves took 2.4 GB.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from labkit.course import CourseError
from labkit.grading.box import Box, Trusted

_BROKEN = "The system has ended a job of the grader, perhaps for want of memory. Whoever is graded stays so: "
_BROKEN += "say it again with fewer --jobs."


def graded(folders: Sequence[Path], batch: Any, jobs: int) -> Iterator[tuple[Path, dict]]:
    """Each folder and what `batch.judge` found in it, as they are ready. CourseError: the system has ended a job.

    Whoever stops listening, or is stopped, ends the jobs at once.
    """
    if not folders:
        return
    with ProcessPoolExecutor(jobs, context(), initializer=_begin, initargs=(_open, batch)) as pool:
        with _uninterrupted():
            waiting = {pool.submit(_one, each): each for each in folders}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise CourseError(_BROKEN) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for job in multiprocessing.active_children():
                job.kill()
            raise


def context() -> multiprocessing.context.BaseContext:
    """How jobs are started: by a server that stays until this process ends."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["labkit.grading.preload"])
    return found


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A block whose new processes do not hear Ctrl-C: they are ended by the grader alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_job: dict = {}


def _begin(opening: Callable[[Any], None], batch: Any) -> None:
    """In a job: what is pressed in the grader's terminal is not for it; then open its box."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    opening(batch)


def _open(batch: Any) -> None:
    """In a job: open its box, and end with the grader, however that ends."""
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    _job.update(batch=batch, box=(Trusted if batch.trusted else Box)(batch.limits))


def _end_with(grader: multiprocessing.process.BaseProcess) -> None:
    """Wait for the grader's end; a job of one that was killed would else wait for ever for another student."""
    multiprocessing.connection.wait([grader.sentinel])
    os._exit(1)


def _one(folder: Path) -> dict:
    """In a job: what is found in one student's folder."""
    return _job["batch"].judge(folder, _job["box"])
