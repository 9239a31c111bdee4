"""run_ranks: one function in several processes, from a notebook's cell, a script, or as a rank of torchrun's."""

import atexit
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from numbers import Real

import torch
import torch.distributed as dist

from labkit import deadline, hardware
from labkit.ranks import worker
from labkit.ranks.errors import RankError
from labkit.ranks.payload import dumps, pack
from labkit.ranks.places import places
from labkit.ranks.rank import Rank
from labkit.ranks.verdict import disagreement, failure, where_all_stand

_TICK_S, _LEAVE_S = 0.1, 1.0  # ranks that were let go may take so long to leave by themselves
_MEET_S = 30.0  # so long a rank of torchrun's looks for the others


def run_ranks(
    fn: object,
    world_size: object,
    *args: object,
    backend: object = None,
    devices: object = None,
    timeout_s: object = 60.0,
) -> list:
    """What fn(*args) returns in each of world_size processes, by rank.

    In each of them the process group stands: fn asks torch.distributed for its rank, and `device()` for its device.
    Functions and closures of a notebook work. What ranks print is shown line by line.

    timeout_s: how long a collective may wait for a rank that does not come. devices: None for what is there, "cpu",
    "cuda", or a list, one a rank. backend: None for NCCL with a GPU a rank and gloo otherwise, or its name.
    Under torchrun or `accelerate launch`, fn runs in this process, as the rank that it is.

    RankError: a rank failed. ValueError: what was asked for cannot work here.
    """
    if not callable(fn):
        raise ValueError(f"run_ranks takes a function and the number of ranks, not {fn!r}.")
    if not isinstance(timeout_s, Real) or isinstance(timeout_s, bool) or not 0 < timeout_s < 1e6:
        raise ValueError(f"timeout_s is a number of seconds above 0, not {timeout_s!r}.")
    if worker.inside():
        raise ValueError("run_ranks within a rank: a rank cannot start ranks of its own.")
    if worker.launched():
        return _as_rank(fn, world_size, args, devices, backend, float(timeout_s))
    if sys.platform == "win32":
        raise ValueError("run_ranks needs Linux or macOS; on Windows, run the notebook in WSL.")
    chosen, backend = places(world_size, devices, backend)
    packed = pack(fn, args)
    ranks: list[Rank] = []
    try:
        for seat in _seats(chosen, backend, float(timeout_s)):
            ranks.append(Rank.start(seat))
        for rank in ranks:
            rank.send(packed)
        return _attend(ranks, float(timeout_s))
    except KeyboardInterrupt as interrupt:
        interrupt._render_traceback_ = lambda: ["KeyboardInterrupt"]  # what Jupyter shows, without the launcher's lines
        raise
    finally:
        _end(ranks)


def _seats(devices: list[str], backend: str, timeout_s: float) -> Iterator[worker.Seat]:
    """What each rank is told of itself and of the launch."""
    for number, device in enumerate(devices):
        yield worker.Seat(
            rank=number,
            world_size=len(devices),
            device=device,
            backend=backend,
            timeout_s=timeout_s,
            n_threads=max(1, hardware.cores() // len(devices)),
            environ=dict(os.environ),
            launcher=os.getpid(),
        )


@deadline.uncut
def _end(ranks: list[Rank]) -> None:
    """Nothing of the ranks is left."""
    with _undisturbed():
        for rank in ranks:
            rank.let_go()
        until_s = time.monotonic() + _LEAVE_S
        for rank in ranks:
            rank.end(max(0.0, until_s - time.monotonic()))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A block that neither a second Ctrl-C nor a timer interrupts: they come after it, once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came: set[int] = set()
    note = lambda number, _frame: came.add(number)
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in came:
            signal.raise_signal(number)


def _attend(ranks: list[Rank], timeout_s: float) -> list:
    """Listen to the ranks until each has returned or one has failed."""
    try:
        while not all(rank.returned for rank in ranks):
            _listen(ranks, _TICK_S)
            if (error := failure(ranks, timeout_s, listen=_listen)) is not None:
                raise error
        if (error := disagreement(ranks)) is not None:
            raise error
    except KeyboardInterrupt:
        print("Interrupted.\n" + where_all_stand(ranks, listen=_listen), file=sys.stderr)
        raise
    finally:
        for rank in ranks:
            rank.show_output()
    return [rank.result() for rank in ranks]


def _listen(ranks: list[Rank], seconds: float) -> None:
    """Show what ranks print and take what they say, for at most so many seconds, or until something came."""
    by_source = {source: rank for rank in ranks for source in rank.sources()}
    for ready in connection.wait(list(by_source), timeout=seconds):
        by_source[ready].take(ready)
    if ranks[0].port is not None:
        for rank in ranks[1:]:
            rank.tell_port(ranks[0].port)


@dataclass
class _Launch:
    """What a rank of torchrun's keeps from one run_ranks to the next.

    Its group, too: one that is made anew finds the addresses of the one before in the store, where nobody is any more.
    """

    calls: int = 0
    store: dist.Store | None = None
    group: dist.ProcessGroup | None = None
    how: tuple[str, float] | None = None

    def join(self, backend: str, timeout_s: float) -> None:
        """Be in a process group: the one that the script has joined by itself, or one of ours."""
        if dist.is_initialized() and (dist.group.WORLD is not self.group or self.how == (backend, timeout_s)):
            return
        self.leave()
        if self.store is None:
            self.store = _store_of_torchrun()
            atexit.register(self.leave)
        fresh = dist.PrefixStore(f"run_ranks/{self.calls}", self.store)  # without the addresses of an earlier group
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        worker.join(backend, timeout_s=timeout_s, store=fresh, rank=rank, world_size=world_size)
        self.group, self.how = dist.group.WORLD, (backend, timeout_s)

    def leave(self) -> None:
        """Leave the process group, if it is ours."""
        if dist.is_initialized() and dist.group.WORLD is self.group:
            dist.destroy_process_group()
        self.group = None


_launch = _Launch()


def _as_rank(fn: Callable, world_size: object, args: tuple, devices: object, backend: object, timeout_s: float) -> list:
    """Run fn as the rank that torchrun started; every rank gets the list of what all of them return."""
    here, chosen = _own_place(world_size, devices, backend)
    worker.place(here)
    if here != "cpu":
        torch.cuda.set_device(here)
    _launch.calls += 1
    _launch.join(chosen, timeout_s)
    gathered: list = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(gathered, _sendable(fn(*args)))
    except BaseException:
        _launch.leave()  # or the others wait for this rank
        raise
    return [pickle.loads(each) for each in gathered]


def _own_place(world_size: object, devices: object, backend: object) -> tuple[str, str]:
    """The device of this rank of torchrun's, and the backend; a list of devices has one a rank, of whatever machine."""
    places(world_size, "cpu", None)  # says what is wrong with the number
    started = int(os.environ["WORLD_SIZE"])
    if started != world_size:
        raise ValueError(f"{world_size} ranks are asked for, but torchrun started {started} (the variable WORLD_SIZE).")
    each_has = int(os.environ.get("LOCAL_WORLD_SIZE", started))
    machines = [devices]
    if isinstance(devices, (list, tuple)) and len(devices) == started:
        machines = [devices[first : first + each_has] for first in range(0, started, each_has)]
    found = [places(each_has, each, backend) for each in machines]
    names = [name for chosen, _ in found for name in chosen]
    return names[int(os.environ["RANK"]) % len(names)], "nccl" if {kind for _, kind in found} == {"nccl"} else "gloo"


def _store_of_torchrun() -> dist.Store:
    """The store in which torchrun's ranks find each other. RankError: nobody is there."""
    try:
        return next(dist.rendezvous("env://", timeout=timedelta(seconds=_MEET_S)))[0]
    except dist.DistError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        text = (
            f"The ranks of torchrun did not meet at {where} (MASTER_ADDR and MASTER_PORT): {error}\n"
            "If torchrun did not start this process, remove TORCHELASTIC_RUN_ID from its environment."
        )
        raise RankError(text, kind="waited") from None


def _sendable(returned: object) -> bytes:
    """A result on its way to the other ranks. RankError: it cannot be sent."""
    try:
        return dumps(returned)
    except Exception as error:
        rank, world_size, what = dist.get_rank(), dist.get_world_size(), type(returned).__name__
        why = f"{type(error).__name__}: {error}"
        text = f"rank {rank} of {world_size} returned a {what} that cannot be sent back: {why}"
        raise RankError(text, kind="unreturnable", rank=rank) from None
