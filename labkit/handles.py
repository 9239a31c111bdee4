"""Handles: tensors whose values are somewhere else, or not there yet; the worker of `device_thread` fills their boxes.

A handle knows its size, strides and type, and torch's autograd works on handles as on any tensor. What needs a value
waits for it: item, float, bool, cpu, numpy, tolist, printing, pickling.

Every launch passes through the functions marked no_type_check: the tests, which check each call's types elsewhere,
time this device.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, no_type_check

import torch
from torch import Tensor

from labkit.launches import Meta, Plan, meta_of

PLACE = torch.device("cpu", 0)  # not the same as torch.device("cpu"): .to("cpu") leaves the device, .to(x.device) stays

ELSEWHERE = "meets a tensor of another device thread, which may not be there yet: bring it over with put(tensor.cpu())"


class DeviceError(RuntimeError):
    """An operation failed on the device, after the call that launched it had returned."""


class Box:
    """Where the worker puts a result: a tensor, or the DeviceError that came instead."""

    __slots__ = ("held",)

    def __init__(self, held: Tensor | DeviceError | None = None) -> None:
        self.held = held


def _asking(method: str, asks: str) -> Callable[[Tensor], Any]:
    """Tensor's own method; its wait is recorded under what the code asks for. torch itself sees but one operation."""
    own = getattr(Tensor, method)

    @wraps(own)
    def asking(self: Tensor) -> Any:
        if torch._C._dispatch_tls_is_dispatch_key_excluded("Python"):  # inside torch.tensor, which would not ask us
            return own(self._home.fetch(self, asks).get())
        self._asked = asks
        try:
            return own(self)
        finally:
            self._asked = ""

    return asking


class Handle(Tensor):
    """A tensor of the device thread."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _asked = ""  # what the code asks for that reads this tensor's value just now
    __bool__ = _asking("__bool__", "bool")
    __float__ = _asking("__float__", "float")
    __int__ = _asking("__int__", "int")
    __index__ = _asking("__index__", "int")
    __complex__ = _asking("__complex__", "complex")

    @staticmethod
    @no_type_check
    def __new__(cls, box: Box, meta: Meta, home: Any) -> "Handle":
        handle = Tensor._make_wrapper_subclass(
            cls, meta.size, strides=meta.stride, storage_offset=meta.offset, dtype=meta.dtype, device=PLACE
        )
        if meta.conj or meta.neg:
            meta.marked(handle)
        handle._box, handle._meta, handle._home = box, meta, home
        return handle

    @no_type_check
    def __init__(self, box: Box, meta: Meta, home: Any) -> None:
        """All is done in __new__: Tensor's own __init__ takes nothing."""

    @classmethod
    @no_type_check
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG003
        return _home(args, kwargs).launch(func, args, kwargs or {})

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """A copy on the host; waits."""
        return self._copied("cpu", memory_format)

    def _copied(self, name: str, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """A copy on the host; the wait for it is recorded under a name."""
        copied = _ToHost.apply(self, name)
        return copied if memory_format == torch.preserve_format else copied.contiguous(memory_format=memory_format)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """As Tensor.to; `cpu` is the host and waits. With non_blocking it gives a handle, and reading that waits."""
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(
            *args, **{name: value for name, value in kwargs.items() if name != "copy"}
        )
        if device is None or device == PLACE:
            return super().to(*args, **kwargs)
        if device.type != "cpu":
            raise ValueError(f"There is no {device} here: the device thread's tensors go to 'cpu'.")
        moved = self.clone() if non_blocking else self.cpu()
        kept = torch.preserve_format if memory_format is None else memory_format
        return moved.to(moved.dtype if dtype is None else dtype, memory_format=kept)

    def numpy(self, *, force: bool = False) -> Any:
        """A copy on the host as a NumPy array; waits."""
        return self._copied("numpy").numpy(force=force)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._copied("numpy").__array__(*args, **kwargs)

    def tolist(self) -> Any:
        """A copy on the host as lists of Python's numbers; waits."""
        return self.detach()._copied("tolist").tolist()

    def __repr__(self, **kwargs: Any) -> str:
        return f"{self.detach()._copied('print').__repr__(**kwargs)[:-1]}, device='worker thread')"

    def __format__(self, spec: str) -> str:
        return format(_asking("item", "print")(self), spec) if self.dim() == 0 else format(repr(self), spec)

    def __deepcopy__(self, memo: dict) -> "Handle":
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol: int) -> Any:
        """Pickled as a plain tensor: the device does not outlive its process."""
        return self.detach().cpu().__reduce_ex__(protocol)

    @property
    def data(self) -> Tensor:
        """The same memory, unknown to autograd."""
        return Tensor.data.__get__(self)

    @data.setter
    @no_type_check
    def data(self, other: Tensor) -> None:
        """Let this handle stand for the memory of another; given a plain tensor, it becomes one, with its gradient.

        So a module comes back to the host. RuntimeError: something else refers to it, or to another of its module's.
        """
        if not isinstance(other, Handle):
            self._home.become(self, other)
            return
        Tensor.data.__set__(self, other)
        self._box, self._meta, self._home = other._box, other._meta, other._home


class ToDevice(torch.autograd.Function):
    """A copy on a device, through which gradients come back."""

    @staticmethod
    def forward(ctx: Any, plain: Tensor, home: Any, non_blocking: bool) -> Handle:  # noqa: ARG004
        """The copy, as the device's put makes it."""
        return home.put(plain, non_blocking)

    @staticmethod
    def backward(ctx: Any, flowing: Tensor) -> tuple[Tensor, None, None]:  # noqa: ARG004
        """The gradient, on the host; waits."""
        return flowing.cpu(), None, None


class _ToHost(torch.autograd.Function):
    """A copy on the host, through which gradients come back."""

    @staticmethod
    def forward(ctx: Any, handle: Handle, name: str) -> Tensor:
        """The copy, after a wait that is recorded under a name."""
        ctx.home = handle._home
        return handle._home.fetch(handle, name).get()

    @staticmethod
    def backward(ctx: Any, flowing: Tensor) -> tuple[Tensor, None]:
        """The gradient, on the device."""
        return ctx.home.put(flowing), None


@no_type_check
def _home(args: Iterable, kwargs: dict | None) -> Any:
    """The device of the first handle among arguments."""
    for value in args:
        if type(value) is Handle:
            return value._home
        if isinstance(value, (list, tuple)) and (found := _home(value, None)) is not None:
            return found
    return _home(kwargs.values(), None) if kwargs else None


@no_type_check
def pack(values: Iterable[tuple[Any, Any]], plan: Plan, key: list, home: Any) -> list:
    """Arguments as the worker of a device takes them, boxes for handles, from (place, value) pairs.

    What shapes the result is added to key. A plain tensor is copied, for the host may change it before its turn comes,
    unless the operation is to write into it. ValueError: a handle of another device.
    """
    packed = []
    for place, value in values:
        kind = type(value)
        if kind is Handle:
            if value._home is not home:
                raise ValueError(f"{plan.name} {ELSEWHERE}")
            key.append(value._meta if plan.is_view else value._meta.form)
            packed.append(value._box)
        elif kind is list or kind is tuple:
            key.append(len(value))
            packed.append(pack([(place, each) for each in value], plan, key, home))
        elif isinstance(value, Tensor):
            key.append(meta_of(value).form)
            packed.append(value if place in plan.writes else value.detach().clone())
        else:
            key.append(kind if kind is float or place in plan.numbers else value)
            packed.append(value)
    return packed


def metas(values: Iterable) -> list:
    """Arguments with a Meta for each handle."""
    return [v._meta if type(v) is Handle else metas(v) if isinstance(v, (list, tuple)) else v for v in values]


@no_type_check
def unpacked(value: object) -> object:
    """An argument with tensors for boxes, on the worker. DeviceError: what it needs has failed."""
    kind = type(value)
    if kind is Box:
        if isinstance(value.held, DeviceError):
            raise value.held
        return value.held
    return [unpacked(each) for each in value] if kind is list else value


@no_type_check
def boxed(result: object) -> object:
    """A box for each Meta, to be filled, and for each tensor, holding it; other values as they are."""
    if isinstance(result, Meta):
        return Box()
    if isinstance(result, Tensor):
        return Box(result)
    return [boxed(each) for each in result] if isinstance(result, (tuple, list)) else result


@no_type_check
def fill(boxes: object, result: object) -> None:
    """Put tensors into the boxes that stand in their places; a DeviceError goes into all of them."""
    if type(boxes) is Box:
        boxes.held = result
    elif type(boxes) is list:
        parts = [result] * len(boxes) if isinstance(result, DeviceError) else result
        for box, part in zip(boxes, parts, strict=True):
            fill(box, part)


@no_type_check
def wrapped(outline: object, boxes: object, home: Any) -> Any:
    """A handle for each box; other values as they are."""
    if type(boxes) is Box:
        return Handle(boxes, outline, home)
    if type(boxes) is list:
        return type(outline)(wrapped(o, b, home) for o, b in zip(outline, boxes, strict=True))
    return outline


@no_type_check
def _plain(value: object) -> bool:
    """Whether a value is, or a list of values holds, a tensor that is no handle."""
    if isinstance(value, (list, tuple)):
        return any(map(_plain, value))
    return isinstance(value, Tensor) and type(value) is not Handle


@no_type_check
def touches_host(plan: Plan, args: Sequence) -> bool:
    """Whether an operation writes into plain tensors, or copies from one: it moves data between device and host."""
    written = any(_plain(args[place]) for place in plan.writes if isinstance(place, int) and place < len(args))
    return written or plan.name == "copy_" and _plain(args[1])
