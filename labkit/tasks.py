"""What the device thread's worker is given to do, and how a module's tensors get there."""

import threading
from collections.abc import Callable
from typing import Any, no_type_check

import torch
from torch import nn

from labkit.handles import DeviceError, Handle, fill, unpacked
from labkit.launches import outline


class Task:
    """One operation on its way to the worker. kind: that of its span, or None where a device would have no work."""

    __slots__ = ("args", "boxes", "call", "error", "expected", "finished", "kind", "kwargs", "name", "own", "result")

    @no_type_check
    def __init__(self, call: Callable, args: list, kwargs: dict, name: str, kind: str | None) -> None:
        self.call, self.args, self.kwargs, self.name, self.kind = call, args, kwargs, name, kind
        self.boxes = self.expected = self.result = self.error = self.own = self.finished = None

    @no_type_check
    def run(self) -> None:
        """Do it with real tensors, and fill the boxes."""
        args, kwargs = unpacked(self.args), {name: unpacked(value) for name, value in self.kwargs.items()}
        if torch.autograd.profiler._is_profiler_enabled:
            with torch.profiler.record_function(f"labkit device: {self.name}"):
                result = self.call(*args, **kwargs)
        else:
            result = self.call(*args, **kwargs)
        if self.boxes is None:
            self.result = result
        elif outline(result) == self.expected:
            fill(self.boxes, result)
        else:
            raise RuntimeError(f"its result is {outline(result)} where {self.expected} was foreseen")

    def fail(self, error: Exception) -> DeviceError:
        """Put the error where the results would be; `own` is the operation's, unless what it was given had failed."""
        if not isinstance(error, DeviceError):
            said = f"{self.name} failed on the device, after it was launched: {type(error).__name__}: {error}"
            self.own, error = error, DeviceError(said)
            error.__cause__ = self.own
        self.error = error
        fill(self.boxes, error)
        return error


@no_type_check
def shown(kind: str, name: str) -> Any:
    """A block of the host's that a running profiler shows as a launch, a wait or a compilation; costs 0.5 us."""
    return torch._C._profiler._RecordFunctionFast(f"labkit {kind}: {name}")


@no_type_check
def held_lock() -> Any:
    """A lock that is taken: whoever waits for a task takes it once the worker has let go."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def put_module(device: Any, module: nn.Module, non_blocking: bool) -> nn.Module:
    """The same module with its parameters, their gradients and its buffers on the device.

    As with `.to`, parameters stay the objects that they are, so an optimizer made before still knows them.
    """
    for held in module.parameters():
        if not isinstance(held, Handle):
            new = nn.Parameter(device.put(held.detach(), non_blocking=True), held.requires_grad)
            new.grad = None if held.grad is None else device.put(held.grad, non_blocking=True)
            torch.utils.swap_tensors(held, new)
    for part in module.modules():
        for name, held in part._buffers.items():
            if held is not None:
                part._buffers[name] = device.put(held, non_blocking=True)
    if not non_blocking:
        device.synchronize()
    return module
