"""What the device thread's worker is given to do, and how a module's tensors get there."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, no_type_check

import torch
from torch import Tensor, nn

from labkit.handles import Box, DeviceError, Handle, fill, unpacked
from labkit.launches import Plan, outline


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
        elif (found := outline(result)) == self.expected or repr(found) == repr(self.expected):  # the same, forgotten
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
def drawn(plan: Plan, func: Any, args: Sequence, kwargs: dict) -> Task:
    """The task that brings random numbers to the device: they are drawn here and now, as plain torch draws them.

    Whatever the host does to the generator next, to seed it or to shuffle, comes after them.
    """
    meta = args[0]._meta
    values = func(torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype), *args[1:], **kwargs)
    if plan.gives:
        return Task(torch.Tensor.copy_, [args[0]._box, values], {}, plan.name, "kernel")
    task = Task(lambda: values, [], {}, plan.name, "kernel")
    task.expected, task.boxes = outline(values), Box()
    return task


class Pending:
    """A tensor's values on their way to the host: `done()` asks, without waiting; `get()` waits for this one alone."""

    def __init__(self, home: Any, task: Task) -> None:
        self._home, self._task = home, task

    def done(self) -> bool:
        """Whether get() would return at once."""
        return not self._task.finished.locked()

    def get(self) -> Tensor:
        """The values as a plain tensor. Any thread may call it. DeviceError: an operation failed before this."""
        self._home._await(self._task)
        return self._task.result


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

    As with `.to`, parameters stay the objects that they are, so an optimizer made before still knows them. Those that
    a profiler with record_shapes has seen cannot: they are replaced. RuntimeError: and something else knows them.
    ValueError: something refers to them in a way that torch cannot carry over, or they are on another device thread.
    """
    for held in (*module.parameters(), *module.buffers()):
        if isinstance(held, Handle):
            device.put(held)  # refused before anything has moved
    with _loosened(module):
        plain = [held for held in module.parameters() if not isinstance(held, Handle)]
        stuck = [held for held in plain if not _swaps(held)]
        _check_unknown(module, stuck, known=(plain, stuck))
        if any(map(weakref.getweakrefs, plain)):
            raise ValueError(
                "Something holds weak references to this module's parameters, so they cannot be put on the device: "
                "put the module there first, then let others refer to it."
            )
        for held in plain:
            # .data, unlike detach(), is no operation: a profiler with shapes would hold on to what it is called on.
            new = nn.Parameter(device.put(held.data, non_blocking=True), held.requires_grad)
            new.grad = None if held.grad is None else device.put(held.grad, non_blocking=True)
            if any(held is each for each in stuck):
                _replace(module, held, new)
            else:
                torch.utils.swap_tensors(held, new)
    for held in module.parameters():
        held._module = module
    for part in module.modules():
        for name, held in part._buffers.items():
            if held is not None:
                part._buffers[name] = device.put(held, non_blocking=True)
    if not non_blocking:
        device.synchronize()
    return module


@no_type_check
def become(handle: Handle, plain: Tensor) -> None:
    """Turn the very object that a handle is into a plain tensor, its gradient too.

    RuntimeError: it cannot, or another parameter of the module that was put with it cannot; then none has moved.
    """
    module = vars(handle).get("_module")
    together = [handle, *(module.parameters() if module is not None else ())]
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)] if module is not None else []
    known = {id(each) for part in recurrent for each in part._flat_weight_refs}  # renewed when their turn comes
    if any(type(held) is Handle and _is_stuck(held, known) for held in together):
        raise RuntimeError(
            "Something still refers to these parameters: a backward pass that has not run yet, a profiler, or weak "
            "references. Run backward() or delete the loss before the module goes back to the host."
        )
    plain = plain.detach().requires_grad_(handle.requires_grad)
    new = nn.Parameter(plain, handle.requires_grad) if isinstance(handle, nn.Parameter) else plain
    if handle.grad is not None:
        new.grad = handle.grad.detach().to("cpu", plain.dtype)
    torch.utils.swap_tensors(handle, new)


def _is_stuck(held: Tensor, known: set[int]) -> bool:
    """Whether torch cannot swap what this object is: two may refer to it, itself and the node that adds gradients."""
    weak = [each for each in weakref.getweakrefs(held) if id(each) not in known]
    return bool(weak) or held._use_count() > 2 or not _swaps(held)


@contextmanager
def _loosened(module: nn.Module) -> Iterator[None]:
    """A block in which LSTMs and their like hold no weak references to their parameters; they renew them after it."""
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    for part in recurrent:
        part._flat_weight_refs, part._flat_weights = [], []
    try:
        yield
    finally:
        for part in recurrent:
            part._init_flat_weights()


def _swaps(held: Tensor) -> bool:
    """Whether torch can give this object another tensor's content: not while a profiler refers to what it has."""
    other = held.data
    try:
        torch._C._swap_tensor_impl(held, other)
    except RuntimeError:
        return False
    torch._C._swap_tensor_impl(held, other)
    return True


def _check_unknown(module: nn.Module, stuck: list[nn.Parameter], known: tuple[list, ...]) -> None:
    """RuntimeError: parameters that must be replaced are in a list or dictionary beside the module's and known ones."""
    ours = {id(part._parameters) for part in module.modules()} | {id(each) for each in known}
    others = [each for each in gc.get_referrers(*stuck) if isinstance(each, (list, dict))] if stuck else []
    if any(id(each) not in ours for each in others):
        raise RuntimeError(
            "A profiler with record_shapes holds on to this module's parameters, and so does something else, perhaps "
            "an optimizer: put the module on the device before the optimizer is made, or before the profiler starts."
        )


def _replace(module: nn.Module, held: nn.Parameter, new: nn.Parameter) -> None:
    """Put one parameter in the place of another, wherever the module has it."""
    for part in module.modules():
        for name, each in part._parameters.items():
            if each is held:
                part._parameters[name] = new
