"""What tensors take while a block runs: every storage from its first operation to its release, on whatever device.

A count over parameters sees what a program still names. This log also sees what something else holds on to: tensors
that autograd saved, the buckets of a reducer, copies that an operation left behind.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import no_type_check

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter


@dataclass
class Allocations:
    """The log of one block: live_bytes after each change, in order; marks, by name the change that came next.

    Counted is what operations of the block allocate. Ignores what was there before, what one operation allocates and
    frees inside, and tensors made of Python's or NumPy's numbers. A backend's thread may release its tensors late.
    """

    live_bytes: list[int] = field(default_factory=lambda: [0])
    marks: dict[str, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """The most that was live at once."""
        return max(self.live_bytes)

    def mark(self, name: str) -> None:
        """Note this moment; a second mark of the same name moves it."""
        self.marks[name] = len(self.live_bytes)

    def at(self, name: str) -> int:
        """What was live when a mark was set. KeyError: there is no such mark."""
        return self.live_bytes[self.marks[name] - 1]

    def between(self, first: str, last: str) -> list[int]:
        """What was live from one mark to another, change by change. KeyError: there is no such mark."""
        return self.live_bytes[self.marks[first] - 1 : self.marks[last]]


class _Watch(TorchDispatchMode):
    """Writes an Allocations while operations run."""

    def __init__(self, log: Allocations) -> None:
        super().__init__()
        self._log = log
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, weakref.ref] = {}
        self._lock = threading.RLock()

    @no_type_check
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operation, and count the storages that it made."""
        for each in _tensors((args, kwargs)):
            self._meet(each, before=True)
        result = func(*args, **(kwargs or {}))
        for each in _tensors(result):
            self._meet(each, before=False)
        return result

    def _meet(self, tensor: Tensor, *, before: bool) -> None:
        """Count a tensor's storage where it is new; one that an operation was given is not new."""
        storage = tensor.untyped_storage()
        with self._lock:
            if not self._knows(storage):
                key = id(storage)
                self._refs[key] = weakref.ref(storage, lambda _: self._set(key, 0))
                self._set(key, 0 if before else storage.nbytes())

    def _knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage was met before; an id alone may have been another one's."""
        known = self._refs.get(id(storage))
        return known is not None and known() is storage

    def _set(self, key: int, n_bytes: int) -> None:
        """Write down that a storage has so many bytes now."""
        with self._lock:
            change = n_bytes - self._sizes.get(key, 0)
            self._sizes[key] = n_bytes
            if change:
                self._log.live_bytes.append(self._log.live_bytes[-1] + change)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage anew after its resize_, which is no operation."""
        with self._lock:
            if self._knows(storage):
                self._set(id(storage), storage.nbytes())


@no_type_check
def _tensors(values) -> Iterator[Tensor]:
    """The tensors in arguments that have memory of their own: of a DTensor its local part, of one on meta nothing."""
    for each in tree_iter(values):
        if isinstance(each, Tensor) and is_traceable_wrapper_subclass(each):
            yield from _tensors([getattr(each, name) for name in each.__tensor_flatten__()[0]])
        elif isinstance(each, Tensor) and each.device.type != "meta":
            yield each


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Log the block: `with allocations() as log: ...; log.mark("forward"); ...`, then log.peak_bytes."""
    plain, log = torch.UntypedStorage.resize_, Allocations()
    watch = _Watch(log)

    @no_type_check
    def resize(storage, n_bytes):
        done = plain(storage, n_bytes)
        watch.resized(storage)
        return done

    torch.UntypedStorage.resize_ = resize
    try:
        with watch:
            yield log
    finally:
        torch.UntypedStorage.resize_ = plain
