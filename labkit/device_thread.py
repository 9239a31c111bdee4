"""An asynchronous device for machines without one: a worker thread that runs real torch operations from a queue.

`open()` gives this device, or where there is a GPU, the GPU with the same few methods. As on a GPU, an operation
returns before it has run; `.item()`, `.cpu()`, printing, and whatever else needs a value wait until it has. Results are
bit for bit those of plain torch on one thread, random ones too: the host draws these at the launch, from the generator
that plain torch would use. Where values decide what is drawn (bernoulli, multinomial), it waits for them.

Unlike a GPU: a launch costs some fifteen microseconds, not five to ten; an operation that meets shapes for the first
time is waited for, to learn what its result is like (recorded as `compile`); plain tensors are taken along without
complaint, and `device=x.device` makes one: a GRU needs a first state. There are no sparse or nested tensors, no packed
sequences, no `quantile`, and nothing that changes a tensor's size in place.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any, no_type_check

import torch
from torch import Tensor, nn

from labkit import opened
from labkit.device_cuda import CudaDevice, CudaPending
from labkit.handles import ELSEWHERE, Box, DeviceError, Handle, ToDevice, boxed, metas, pack, touches_host, wrapped
from labkit.launches import Plan, given, outline, outline_of_view, plan_of
from labkit.tasks import Pending, Task, become, drawn, held_lock, put_module, shown
from labkit.timeline import Span

__all__ = ["CudaDevice", "CudaPending", "DeviceError", "Handle", "Pending", "ThreadDevice"]
__all__ += ["is_open", "open", "open_thread"]

DEPTH = 1000  # launches that may stand in the queue; a GPU's holds about as many, and then the host must wait
MOST_SHAPES = 50_000
HOST, DEVICE = "host", "device"
_UNKNOWN = object()  # for None is what some operations return


class ThreadDevice:
    """A worker thread and its queue; made by `open`. `waits` counts how often the host waited for it."""

    name = "worker thread on this CPU"
    become = staticmethod(become)

    def __init__(self, launch_s: float) -> None:
        self.launch_s, self.waits = launch_s, 0
        self._queue: SimpleQueue = SimpleQueue()
        self._n_launched = self._n_done = 0
        self._outlines: dict[tuple, object] = {}
        self._raw: list[tuple] | None = None
        self._settling = False
        self._error: DeviceError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="labkit device", daemon=True)
        self._thread.start()

    def put(self, what: Any, non_blocking: bool = False) -> Any:
        """A tensor on the device, or a module moved there (the same module, as `.to` gives it back).

        Gradients come back through it. Waits until all earlier work and the copy are done, as a GPU does for ordinary
        memory. With non_blocking it does not, and the source must stay as it is until the copy is done. ValueError:
        neither tensor nor module, or on another device thread.
        """
        if isinstance(what, nn.Module):
            return put_module(self, what, non_blocking)
        if isinstance(what, Handle):
            return self._own(what, "put")
        if not isinstance(what, Tensor):
            raise ValueError(f"A device takes tensors and modules, not {type(what).__name__}.")
        if what.requires_grad and torch.is_grad_enabled():
            return ToDevice.apply(what, self, non_blocking)
        task = Task(torch.clone, [what.detach()], {}, "copy to device", "copy")
        task.expected, task.boxes = outline(torch.empty_like(what, device="meta")), Box()
        self._send(task, perf_counter(), wait=not non_blocking)
        return Handle(task.boxes, task.expected, self)

    def fetch(self, tensor: object, name: str = "copy to host") -> Pending:
        """The values of a tensor as they are at this point of the queue, on their way to the host; does not wait.

        ValueError: a tensor that lies on the host, or on another device.
        """
        if not isinstance(tensor, Handle):
            raise ValueError(f"fetch takes a tensor on the device, not {type(tensor).__name__}: put it there first.")
        task = Task(torch.clone, [self._own(tensor, "fetch")._box], {}, name, "copy")
        task.finished = held_lock()
        self._send(task, perf_counter())
        return Pending(self, task)

    def _own(self, handle: Handle, what: str) -> Handle:
        """A handle of this device. ValueError: it is another's."""
        if handle._home is not self:
            raise ValueError(f"{what} {ELSEWHERE}")
        return handle

    def synchronize(self) -> None:
        """Wait until everything launched so far has run. DeviceError: what failed there, naming the operation."""
        self._send(Task(lambda: None, [], {}, "synchronize", None), perf_counter(), wait=True)

    @contextmanager
    def recording(self) -> Iterator[list[Span]]:
        """A list that holds, after the block, what host and device did in it; both are idle when it begins.

        The block's last work is recorded too; that it is waited for is not.
        """
        self._settle()
        spans, self._raw = [], (raw := [])
        try:
            yield spans
        finally:
            self._settle()
            self._raw = None
            raw.sort(key=itemgetter(2))
            start_s = raw[0][2] if raw else 0.0
            spans += [Span(row=r, name=n, start_s=a - start_s, end_s=b - start_s, kind=k) for r, n, a, b, k in raw]

    @contextmanager
    def note(self, kind: str, name: str) -> Iterator[None]:
        """A block that a recording shows in the host's row: kind "data" where it reads data, else "host"."""
        started_s = perf_counter()
        try:
            with shown(kind, name):
                yield
        finally:
            if self._raw is not None:
                self._raw.append((HOST, name, started_s, perf_counter(), kind))

    def close(self) -> None:
        """Stop the worker; what still stands in the queue is not run. Harmless when done twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join(timeout=10)
            opened.remove(self)

    @no_type_check
    def launch(self, func: Any, args: Sequence, kwargs: dict) -> Any:
        """What a torch operation on handles returns: handles at once, or after a wait its values."""
        started_s = perf_counter()
        if func is torch.ops.aten.detach.default:
            return Handle(args[0]._box, args[0]._meta, self)
        plan, key = plan_of(func), [func]
        if plan.refused:
            raise NotImplementedError(f"{plan.name} {plan.refused}: the device thread cannot do that")
        if plan.fills:
            self._send(task := drawn(plan, func, args, kwargs), started_s)
            return given(plan, args, kwargs) if plan.gives else wrapped(task.expected, task.boxes, self)
        packed = pack(enumerate(args), plan, key, self)
        names = tuple(kwargs)
        packed_kwargs = dict(zip(names, pack(kwargs.items(), plan, key, self), strict=True))
        name = plan.reads and args[0]._asked or plan.name
        task = Task(plan.call, packed, packed_kwargs, name, None if plan.is_view else "kernel")
        touches = touches_host(plan, args)
        if touches or plan.waits(args, kwargs):
            self._send(task, started_s, wait=not (touches and args[2:3] == (True,)))
            return self._values(plan, args, kwargs, task)
        key.append(names)
        expected = self._outlines.get(known := tuple(key), _UNKNOWN)
        if expected is _UNKNOWN and not plan.is_view:
            self._send(task, started_s, wait=True, why="compile")
            self._learn(known, outline(task.result))
            return self._values(plan, args, kwargs, task)
        if expected is _UNKNOWN:
            expected = self._learn(known, outline_of_view(func, metas(args), kwargs))
        if not plan.gives:
            task.expected, task.boxes = expected, boxed(expected)
        self._send(task, started_s)
        return given(plan, args, kwargs) if plan.gives else wrapped(expected, task.boxes, self)

    @no_type_check
    def _values(self, plan: Plan, args: Sequence, kwargs: dict, task: Task) -> Any:
        """What an operation returns that has run: what it wrote into, or handles of what it made."""
        if plan.gives:
            return given(plan, args, kwargs)
        return wrapped(outline(task.result), boxed(task.result), self)

    def _learn(self, key: tuple, expected: object) -> object:
        """Remember what an operation gives; too many ways to call one, and all are forgotten."""
        if len(self._outlines) >= MOST_SHAPES:
            self._outlines.clear()
        self._outlines[key] = expected
        return expected

    @no_type_check
    def _send(self, task: Task, started_s: float, *, wait: bool = False, why: str = "wait") -> None:
        """Put a task into the queue, no sooner than launch_s after started_s; wait for it on request."""
        if self._closed:
            raise DeviceError("this device is closed: open another")
        if self._n_launched - self._n_done >= DEPTH:
            self._wait_for_room()
        if wait:
            task.finished = held_lock()
        with shown("launch", task.name) if task.kind else nullcontext():
            while perf_counter() < started_s + self.launch_s:
                pass  # busy, as a driver is
            self._n_launched += 1
            self._queue.put(task)
        if self._raw is not None and task.kind:
            self._raw.append((HOST, task.name, started_s, perf_counter(), "launch"))
        if wait:
            self._await(task, why)

    def _wait_for_room(self) -> None:
        """Let the worker catch up with a host that is too far ahead."""
        started_s = perf_counter()
        with shown("wait", "queue full"):
            while self._n_launched - self._n_done >= DEPTH and self._thread.is_alive():
                sleep(1e-4)
        self._waited("queue full", started_s, "wait")

    @no_type_check
    def _await(self, task: Task, why: str = "wait") -> None:
        """Wait for one task; raise what went wrong in it, or before it and nobody has heard of yet."""
        started_s = perf_counter()
        with shown(why, task.name):
            while not task.finished.acquire(timeout=0.2):  # woken now and then, for Ctrl-C and a lost worker
                if not self._thread.is_alive():
                    raise DeviceError(f"the device was closed before {task.name} had run")
        task.finished.release()
        self._waited(task.name, started_s, why)
        error, self._error = task.error or self._error, None
        if error is not None:
            raise task.own or error  # what the host waited for fails as if it had run at once

    @no_type_check
    def _waited(self, name: str, started_s: float, why: str) -> None:
        """Count and record a wait of the host; learning a shape is none."""
        self.waits += why == "wait"
        if self._raw is not None and not self._settling:
            self._raw.append((HOST, name, started_s, perf_counter(), why))

    def _settle(self) -> None:
        """Wait until the queue is empty. The wait is neither counted nor recorded; the work that it waits for is."""
        self._settling, before = True, self.waits
        try:
            self.synchronize()
        finally:
            self._settling, self.waits = False, before

    def _work(self) -> None:
        """The worker: one task after the other, until there is None."""
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        while (task := self._queue.get()) is not None:
            self._do(task)
            del task  # or its tensors would live until the next one comes

    @no_type_check
    def _do(self, task: Task) -> None:
        """Run a task and record it; an error waits in its boxes, and here, for whoever waits next."""
        started_s, raw = perf_counter(), self._raw
        try:
            if self._closed:
                raise DeviceError(f"the device was closed before {task.name} had run")
            task.run()
        except Exception as error:
            self._error = task.fail(error)
        if raw is not None and task.kind:
            raw.append((DEVICE, task.name, started_s, perf_counter(), task.kind))
        self._n_done += 1
        if task.finished is not None:
            task.finished.release()


def open(*, launch_s: float = 10e-6, fresh: bool = False) -> ThreadDevice | CudaDevice:  # noqa: A001
    """The GPU where torch can use one, else a worker thread: the one that open() gave before, or a new one.

    So a cell that is run again leaves no tensors behind on another device. fresh: a new one in any case, and open()
    does not know it. launch_s: as for open_thread; a thread that is open goes on with what was asked for last.
    """
    if torch.cuda.is_available():
        return CudaDevice()
    if fresh:
        return open_thread(launch_s=launch_s)
    return opened.shared(lambda: open_thread(launch_s=launch_s), launch_s=_checked(launch_s))


def open_thread(*, launch_s: float = 10e-6) -> ThreadDevice:
    """A new worker thread. launch_s: seconds that a launch costs the host at least. ValueError: fewer than 0.

    While one is open, Python's threads take turns more often.
    """
    made = ThreadDevice(_checked(launch_s))
    opened.add(made)
    return made


def is_open() -> bool:
    """Whether a device thread is open."""
    return bool(opened.devices())


def _checked(launch_s: float) -> float:
    """The time that a launch takes at least, if it can be one."""
    if not 0 <= launch_s < float("inf"):
        raise ValueError(f"a launch takes {launch_s} s: give 0 or more, but a finite number")
    return launch_s
