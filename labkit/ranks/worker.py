"""What runs in a rank's process. Loaded once into the server that ranks are forked from, so it starts nothing."""

import atexit
import faulthandler
import gc
import inspect
import linecache
import mmap
import multiprocessing.forkserver
import os
import pickle
import re
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from labkit import hardware
from labkit.ranks import ledger, payload

HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What a rank is told before it starts."""

    rank: int
    world_size: int
    device: str
    backend: str
    timeout_s: float
    n_threads: int
    environ: dict[str, str]
    launcher: int


@dataclass(frozen=True)
class Tie:
    """A file descriptor that is carried along when a process starts."""

    fd: int

    def __reduce__(self) -> tuple:
        """As a duplicate, which only a process that is being started can take."""
        return _carried, (DupFd(self.fd),)


def _carried(duplicate: Any) -> Tie:
    """The same file under the number that it has in this process."""
    return Tie(duplicate.detach())


@dataclass(frozen=True, kw_only=True)
class Ties:
    """What ties a rank to its launcher: output, ledger, stacks, and a lifeline that ends when the launcher does."""

    out: Tie
    err: Tie
    calls: Tie
    stacks: Tie
    lifeline: Tie


_seat: Seat | None = None
_here = 0  # the number of this process, once it is a rank


@atexit.register
def _tidy_up() -> None:
    """Remove the socket of the server that ranks are forked from: at its own end, for a killed launcher does not."""
    server = multiprocessing.forkserver._forkserver
    if _seat is None and server._forkserver_address and server._forkserver_pid is None:  # this is the server
        folder = Path(os.fsdecode(server._forkserver_address)).parent
        if folder.name.startswith("pymp-"):
            shutil.rmtree(folder, ignore_errors=True)


# Errors of torch's store, gloo and NCCL name themselves, some by their type, some by the file that they are from.
_BACKENDS = re.compile(r"^Dist\w*Error|gloo|Gloo|NCCL")


_placed: str | None = None  # the device that run_ranks gave to this rank of torchrun's, which has no seat


def place(name: str) -> None:
    """Have this name be what `device` gives from now on."""
    global _placed
    _placed = name


def device() -> torch.device:
    """The device of this rank; outside of ranks, the one that torch would use."""
    if _seat is not None:
        return torch.device(_seat.device)
    if _placed is not None:
        return torch.device(_placed)
    if torch.cuda.is_available() and launched():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device(hardware.device())


def inside() -> bool:
    """Whether this process is a rank of run_ranks."""
    return _seat is not None


def launched() -> bool:
    """Whether torchrun, or `accelerate launch`, has started this process as one of its ranks.

    A notebook's kernel is nobody's rank. And RANK or MASTER_ADDR alone say little: people leave them in an environment.
    """
    ipython = sys.modules.get("IPython")
    if inside() or (ipython and ipython.get_ipython()):
        return False
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    return all(name in os.environ for name in names)


def main(seat: Seat, control: Connection, ties: Ties) -> None:
    """A rank from its start to its end: meet the others, run the function, hand back what it returns or raises."""
    _settle(seat, ties)
    last_words = _run(seat, control)
    if os.getpid() != _here:  # a fork that the function made and forgot to end
        os._exit(0)
    _flush()
    for word in last_words:
        control.send_bytes(word)
    with suppress(EOFError, OSError):
        control.recv_bytes()  # until the launcher lets go: rank 0 keeps the store that the others may still ask
    _leave()


def _run(seat: Seat, control: Connection) -> list[bytes]:
    """Run the function; what to say of it in the end, pickled."""
    try:
        fn, args = unpack(control.recv_bytes())
        _meet(seat, control)
        control.send(("ready",))
        returned = fn(*args)
    except BaseException as error:
        return [pickle.dumps(("raised", time.monotonic(), *told(error)))]
    try:
        return [pickle.dumps(("returned", time.monotonic())), payload.dumps(returned)]
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        return [pickle.dumps(("unreturnable", time.monotonic(), type(returned).__name__, why))]


def told(error: BaseException) -> tuple[str, str, bool]:
    """An exception in a line, its traceback without the lines of this package, and whether it is the backend's."""
    story = traceback.TracebackException.from_exception(error)
    here = f"{Path(__file__).parent}{os.sep}"
    story.stack[:] = [frame for frame in story.stack if not frame.filename.startswith(here)]
    line, text = "".join(story.format_exception_only()).strip(), "".join(story.format()).rstrip()
    return line, text, isinstance(error, RuntimeError) and bool(_BACKENDS.search(f"{type(error).__name__} {line}"))


def _settle(seat: Seat, ties: Ties) -> None:
    """Make this process a rank: its own group, output, environment and ledger, and the same end as the launcher's."""
    global _seat, _here
    _seat, _here = seat, os.getpid()
    os.setpgid(0, 0)  # its children, such as a loader's workers, are ended with it
    multiprocessing.current_process()._config["daemon"] = False  # or it could have none
    threading.Thread(target=_end_with, args=(ties.lifeline.fd, seat.launcher), daemon=True).start()
    for number, tie, name in ((1, ties.out, "stdout"), (2, ties.err, "stderr")):
        os.dup2(tie.fd, number)
        os.close(tie.fd)
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    os.environ.clear()
    os.environ.update(seat.environ)
    stacks = os.fdopen(ties.stacks.fd, "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    torch.set_num_threads(seat.n_threads)
    dist.set_debug_level_from_env()
    with os.fdopen(ties.calls.fd, "r+b") as calls:
        ledger.keep(mmap.mmap(calls.fileno(), ledger.SIZE_BYTES))
    _stay_alive.append(stacks)


_stay_alive: list[object] = []  # faulthandler holds the descriptor alone


def _end_with(lifeline: int, launcher: int) -> NoReturn:
    """End this process and its children once the launcher has ended, however it did."""
    while True:
        gone, _, _ = select.select([lifeline], [], [], 1.0)
        if gone or not _lives(launcher):  # a fork of the launcher may hold the other end open
            os.killpg(0, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def unpack(packed: bytes) -> tuple[Callable, tuple]:
    """The function and its arguments; the sources of cells go where tracebacks look for them."""
    wanted, cells = pickle.loads(packed)
    linecache.cache.update({name: (sum(map(len, text)), None, text, name) for name, text in cells.items()})
    fn, args = pickle.loads(wanted)
    scope = getattr(inspect.unwrap(fn), "__globals__", {})
    if scope.get("__name__") == "__main__":  # the notebook, where pickle looks for classes by their names
        names = {name: value for name, value in scope.items() if not name.startswith("__")}
        vars(sys.modules["__main__"]).update(names)
    return fn, args


def _meet(seat: Seat, control: Connection) -> None:
    """Join the process group. Rank 0 holds the store in which ranks find each other, at whatever port is free."""
    wait = timedelta(seconds=min(max(seat.timeout_s, 10.0), 30.0))
    if seat.rank == 0:
        store = dist.TCPStore(HOST, 0, seat.world_size, is_master=True, timeout=wait, wait_for_workers=False)
        control.send(("port", store.port))
        port = store.port
    else:
        port = control.recv()
        store = dist.TCPStore(HOST, port, seat.world_size, is_master=False, timeout=wait)
    os.environ |= {"RANK": str(seat.rank), "LOCAL_RANK": str(seat.rank), "MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(seat.world_size), "LOCAL_WORLD_SIZE": str(seat.world_size)}
    if seat.device != "cpu":
        torch.cuda.set_device(seat.device)
    join(seat.backend, timeout_s=seat.timeout_s, store=store, rank=seat.rank, world_size=seat.world_size)


def join(backend: str, *, timeout_s: float, **how: object) -> None:
    """Join the process group. The backend's own time limit is later than ours, which says more."""
    here = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if backend == "gloo" and here:  # or it asks the network for this machine's name, which may have none
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    both = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
    limit = timedelta(seconds=1.2 * timeout_s + 2.0)
    dist.init_process_group(both, timeout=limit, **how)
    # torch gives a group made later its own limit of many minutes, unless told each time.
    dist.distributed_c10d.default_pg_timeout = dist.distributed_c10d.default_pg_nccl_timeout = limit


def _flush() -> None:
    """Send what was printed before anything else is said; a rank may have closed its output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _leave() -> None:
    """What a program does at its end, and a process of multiprocessing does not: exit handlers, files closed."""
    with suppress(Exception):
        atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    _flush()
