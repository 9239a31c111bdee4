"""Notes each wait of one thread for the device, and lays it to the learner's line; `sync` shows what it found.

Two modes of torch, since neither sees everything: functions (`.cpu()`, printing) and the operations beneath (`nonzero`
inside `where`). The methods of `device_thread` are wrapped for the time. Where there is a GPU, what counts is the
driver's side: torch's sync debug mode, which warns at each wait.
"""

import functools
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import device_thread, lines, waits

_WARNING = "called a synchronizing CUDA operation"
_BETWEEN = (str(Path("torch", "overrides.py")), str(Path("jaxtyping", "_decorator.py")))
# What is done with a wait: (file, line), operation, seconds, advice.
Note = Callable[[tuple[str, int], str, float, str], None]


class Watcher:
    """One thread, watched: what the modes, the wrapped methods and the driver's warnings tell it, laid to lines."""

    def __init__(self, note: Note, device: object) -> None:
        self._note = note
        self.by_driver = _is_gpu(device)
        there_is_one = self.by_driver or device_thread.is_open()
        self.stand_in = str(device) == "cpu" or (device is None and not there_is_one)  # plain tensors count
        self._thread = threading.get_ident()
        self.ended = False
        self._inside: str | None = None  # the function that runs now; what it calls itself is not looked at
        self._operations: list[tuple] = []  # those in it that waited: place, name, advice, seconds
        self._n_warnings = 0

    def function(self, func: Callable, name: str, args: tuple, kwargs: dict) -> Any:
        """Call a function and note whether it waited."""
        if self.ended or self._inside is not None or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        self._inside, n_warnings = name, self._n_warnings
        started_s = time.perf_counter()
        try:
            return func(*args, **kwargs)
        finally:
            self._inside = None
            if self._operations or self._n_warnings > n_warnings or name in _LISTED:
                seconds = time.perf_counter() - started_s
                self._judge(name, args, kwargs, seconds, self._n_warnings > n_warnings)

    def operation(self, func: Callable, name: str, args: tuple, kwargs: dict) -> Any:
        """Run an operation that may wait and note whether it did."""
        started_s = time.perf_counter()
        try:
            return func(*args, **kwargs)
        finally:
            advice = waits.operation_waits(name, args, kwargs)
            if advice and not self.by_driver and self._is_device(args, kwargs):
                self._operations.append((self._place(), name, advice, time.perf_counter() - started_s))

    def warning(self) -> None:
        """The driver says that the host waits now: in this thread, or in autograd's, where no learner's code runs."""
        if self.ended or threading.get_ident() != self._thread and _runs_learners_code(sys._getframe(1)):
            return
        self._n_warnings += 1
        if self._inside is None:
            self._lay(self._place(), "a wait of the driver's", math.nan, waits.VALUE)

    def _judge(self, name: str, args: tuple, kwargs: dict, seconds: float, warned: bool) -> None:
        """Count the function that has ended if it waited, or each line beneath it that did."""
        operations, self._operations = self._operations, []
        op, advice = waits.called(name, args) or (name, operations[0][2] if operations else waits.VALUE)
        if self.by_driver:
            if warned or name in ("pin_memory", "synchronize"):
                self._lay(self._place(), op, seconds, advice)
        elif operations:
            here = self._place()
            own = [each for each in operations if each[0] == here]
            if own and not waits.harmless(name, args, kwargs):
                self._lay(here, op, sum(each[3] for each in own), advice)
            for place, beneath, why, spent_s in operations:
                if place != here:
                    self._lay(place, waits.OPERATION_CALLED.get(beneath, beneath), spent_s, why)
        elif self._is_device(args, kwargs) and waits.function_waits(name, args, kwargs):
            self._lay(self._place(copies=name in waits.COPIES), op, seconds, advice)

    def _is_device(self, args: tuple, kwargs: dict) -> bool:
        """Whether what is worked on lives on the device, or stands in for what does."""
        given = (*args, *kwargs.values())
        inside = (each for value in given if isinstance(value, (list, tuple)) for each in value)
        return self.stand_in or any(isinstance(value, _ON_DEVICE) for value in (*given, *inside))

    def _lay(self, place: tuple[str, int] | None, op: str, seconds: float, advice: str) -> None:
        """Count a wait at a place, if it has one."""
        if place:
            self._note(place, op, seconds, advice)

    def _place(self, *, copies: bool = False) -> tuple[str, int] | None:
        """(file, line) of the learner's innermost frame; None where a stand-in waits and a real device would not."""
        place, nearest = None, True
        for frame in _frames_of(sys._current_frames()[self._thread]):
            file = frame.f_code.co_filename
            if self.stand_in and _on_host_only(frame, file, copies and nearest):
                return None
            nearest = False
            if place is None and not lines.is_foreign(file):
                place = file, frame.f_lineno
        return place


def _frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, without labkit's and what stands between: the hand-over to modes, checked signatures."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith((lines.LABKIT, "<@")) or file.endswith(_BETWEEN)):
            yield frame
        frame = frame.f_back


# What belongs to the device made of a thread: its tensors, what it is fetching, itself.
_ON_DEVICE = (device_thread.Handle, device_thread.Pending, device_thread.ThreadDevice)


def _runs_learners_code(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, is the learner's."""
    while frame is not None and lines.is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


def _on_host_only(frame: FrameType, file: str, copies: bool) -> bool:
    """Whether a stand-in waits here where a real device would not.

    Optimizers count their steps, and data loaders shuffle, on the CPU; torch's own code copies to where a tensor is.
    """
    if not file.startswith(lines.TORCH):
        return False
    if copies:
        return True
    inside = file[len(lines.TORCH) :].replace("\\", "/")
    return inside.startswith("utils/data/") or (inside.startswith("optim/") and frame.f_code.co_name == "_get_value")


class _Functions(TorchFunctionMode):
    """Sees each function of torch's that the learner's code calls, and none that those call."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._operations = _Operations(watcher)

    def __torch_function__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if waits.is_harmless(name, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        with self._operations:
            return self._watcher.function(func, name, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Sees the operations beneath the functions, those of the backward pass included."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func._opname not in waits.CANDIDATES:
            return func(*args, **(kwargs or {}))
        return self._watcher.operation(func, func._opname, args, kwargs or {})


_LISTED = waits.FETCHES | waits.COPIES | waits.EXPLICIT_WAITS | {"__getitem__", "__setitem__"}


def _is_gpu(device: object) -> bool:
    """Whether the driver tells of this device's waits. ValueError: no device that is here."""
    if device is None or isinstance(device, device_thread.CudaDevice):
        return torch.cuda.is_available()
    if isinstance(device, device_thread.ThreadDevice):
        return False
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        kind = ""
    if kind != "cpu" and not (kind == "cuda" and torch.cuda.is_available()):
        raise ValueError(f"There is no device {device!r} here to watch: leave it out, or name 'cpu' or an open device.")
    return kind == "cuda"


def _methods() -> list[tuple[Any, str]]:
    """Methods that wait and that no mode sees: (where they are kept, name)."""
    handle, pending, device = _ON_DEVICE
    own = [(handle, name) for name in (*waits.FETCHES, *waits.COPIES) if name in vars(handle)]
    own += [(pending, "get"), (device, "put"), (device, "synchronize")]
    gpus = torch.cuda, torch.cuda.Stream, torch.cuda.Event
    return own + [(owner, "synchronize") for owner in gpus if torch.cuda.is_available()]


# Methods and the driver's warnings belong to the whole process: the first watcher sets them up, the last one undoes it,
# in whichever order they end.
_lock = threading.Lock()
_watchers: list[Watcher] = []
_process = ExitStack()


@contextmanager
def _wrapped(owner: Any, name: str) -> Iterator[None]:
    """Tell all watchers of each call of a method, for the time of the block."""
    original = vars(owner)[name]

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        call = original
        for watcher in tuple(_watchers):
            call = functools.partial(_through, watcher, call, name)
        return call(*args, **kwargs)

    setattr(owner, name, told)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _through(watcher: Watcher, call: Callable, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method under the eyes of one watcher."""
    return watcher.function(call, name, args, kwargs)


@contextmanager
def _driver_warnings() -> Iterator[None]:
    """Tell all watchers of each wait that torch's sync debug mode warns of; other warnings pass."""
    shown, mode, filters = warnings.showwarning, torch.cuda.get_sync_debug_mode(), warnings.filters[:]

    def heard(message: Any, *args: Any, **kwargs: Any) -> None:
        if _WARNING not in str(message):
            shown(message, *args, **kwargs)
            return
        for watcher in tuple(_watchers):
            watcher.warning()

    warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
    warnings.filterwarnings("always", message=f".*{_WARNING}")
    torch.cuda.set_sync_debug_mode("warn")
    warnings.showwarning = heard
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        warnings.showwarning = shown
        warnings.filters[:] = filters
        warnings._filters_mutated()


@contextmanager
def watching(note: Note, device: object) -> Iterator[None]:
    """Note each wait of this thread while the block runs. ValueError: there is no such device."""
    watcher = Watcher(note, device)
    with _lock:
        if not _watchers:
            if torch.cuda.is_available():
                _process.enter_context(_driver_warnings())
            for owner, name in _methods():
                _process.enter_context(_wrapped(owner, name))
        _watchers.append(watcher)
    try:
        with _Functions(watcher):
            yield
    finally:
        watcher.ended = True
        with _lock:
            _watchers.remove(watcher)
            if not _watchers:
                _process.close()
