"""The collectives of a rank, seen and counted.

torch hands every collective to its dispatcher as an operation of c10d, whoever calls it: a learner's line, DDP's
reducer in C++, FSDP, a functional collective. A kernel in front of these operations sees each one, and passes it on. It
stands where torch chooses a backend, a place that no mode leaves out, neither that without gradients nor inference.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, no_type_check

import torch
from torch import Tensor

# Operation of c10d: the field's name for it, the argument that a rank hands in, the one whose shapes all ranks share.
_OPERATIONS = {
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors", "tensors"),
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "reduce_": ("reduce", "tensors", "tensors"),
    "allgather_": ("all_gather", "input_tensors", "output_tensors"),
    "_allgather_base_": ("all_gather", "input_tensor", "output_tensor"),
    "allgather_coalesced_": ("all_gather", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather", "inputs", "outputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors", "input_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs", "inputs"),
    "alltoall_": ("all_to_all", "input_tensors", ""),
    "alltoall_base_": ("all_to_all", "input", ""),
    "gather_": ("gather", "input_tensors", ""),
    "scatter_": ("scatter", "input_tensors", ""),
    "barrier": ("barrier", "", ""),
    "monitored_barrier_": ("barrier", "", ""),
    "send": ("send", "tensors", ""),
    "recv_": ("recv", "tensors", ""),
    "recv_any_source_": ("recv", "tensors", ""),
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One collective that this rank called: its name, the bytes that the rank handed in, and their shapes."""

    op: str
    n_bytes: int
    shape: tuple[tuple[int, ...], ...]


@dataclass
class Counting:
    """What `counting` counts: calls and bytes by the collective's name, 0 for what was not called; events in order.

    Bytes are those that this rank hands in: the whole tensor of an all_reduce, broadcast or reduce_scatter, the own
    shard of an all_gather, what is sent; for recv, what is received. A barrier has none. What then crosses the link
    is the backend's affair: a ring carries 2 (R-1)/R of an all_reduce.
    """

    events: list[Event] = field(default_factory=list)

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each collective."""
        return Counter(event.op for event in self.events)

    @property
    def bytes(self) -> Counter[str]:
        """The bytes of each collective."""
        total: Counter[str] = Counter()
        for event in self.events:
            total[event.op] += event.n_bytes
        return total

    @property
    def n_calls(self) -> int:
        """Calls in all; a message counts where it is sent, not where it is received."""
        return sum(event.op != "recv" for event in self.events)

    @property
    def n_bytes(self) -> int:
        """Bytes in all; a message counts where it is sent, not where it is received."""
        return sum(event.n_bytes for event in self.events if event.op != "recv")


# Who is told of each call before it runs: the event, its process group, a digest that agrees where ranks do, and words.
_observers: list[Callable[[Event, Any, int, str], None]] = []


@contextmanager
def counting() -> Iterator[Counting]:
    """Count the collectives that this rank calls in the block, by whatever part of torch calls them."""
    counted = Counting()

    def note(event: Event, _group: object, _digest: int, _what: str) -> None:
        counted.events.append(event)

    observe(note)
    try:
        yield counted
    finally:
        _observers.remove(note)


def observe(note: Callable) -> None:
    """Have note(event, group, digest, what) called before each collective from now on."""
    _watch()
    _observers.append(note)


@cache
def _watch() -> object:
    """Put a kernel in front of every operation of c10d, once a process; what it returns keeps them there."""
    library = torch.library.Library("c10d", "IMPL")
    for name, (op, given, shared) in _OPERATIONS.items():
        packet = getattr(torch.ops.c10d, name, None)  # an older torch lacks some of them
        if packet is not None:
            library.impl(name, _kernel(packet.default, op, given, shared), "BackendSelect", with_keyset=True)
    return library


def _kernel(func: Any, op: str, given: str, shared: str) -> Callable:
    """What runs in front of one operation: it tells whoever watches, then lets torch go on."""
    names = [argument.name for argument in func._schema.arguments]
    at_given, at_shared = (names.index(name) if name else None for name in (given, shared))
    at_root = next((names.index(name) for name in ("root_rank", "src", "dst") if name in names), None)
    at_group = names.index("process_group")
    at_reduce = names.index("reduce_op") if "reduce_op" in names else None
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    @no_type_check
    def kernel(keyset, *args, **kwargs):
        if _observers:
            tensors = [] if at_given is None else list(_tensors(args[at_given]))
            sizes = tuple(tuple(tensor.shape) for tensor in tensors)
            event = Event(op=op, n_bytes=sum(map(_n_bytes, tensors)), shape=sizes)
            agreed = [] if at_shared is None else [(str(t.dtype), *t.shape) for t in _tensors(args[at_shared])]
            root = None if at_root is None else args[at_root]
            how = None if at_reduce is None else _reduction(args[at_reduce])
            digest = zlib.crc32(repr((op, agreed, root, how)).encode())
            for note in list(_observers):
                note(event, args[at_group], digest, _described(op, tensors, root))
        return func.redispatch(keyset & below, *args, **kwargs)

    return kernel


@no_type_check
def _tensors(given: Tensor | Sequence) -> Iterator[Tensor]:
    """The tensors in a tensor, a list of them or a list of lists."""
    if isinstance(given, Tensor):
        yield given
    else:
        for each in given:
            yield from _tensors(each)


@no_type_check
def _n_bytes(tensor: Tensor) -> int:
    """What a tensor holds, in bytes; of a sparse one, its indices too."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.values().nbytes


@no_type_check
def _reduction(op: object) -> int | None:
    """How a collective reduces, as torch numbers it; None where this torch does not say."""
    return op._get_method("op")() if op._has_method("op") else None


@no_type_check
def _described(op: str, tensors: list, root: int | None) -> str:
    """`all_reduce of float32 [4]`, `broadcast from rank 0 of 3 tensors, float32 [4, 4] first`."""
    way = "from" if op in ("broadcast", "scatter", "recv") else "to"
    whence = "" if root is None else f" {way} rank {root}"
    if not tensors:
        return op + whence
    first = f"{str(tensors[0].dtype).removeprefix('torch.')} {list(tensors[0].shape)}"
    return f"{op}{whence} of {first if len(tensors) == 1 else f'{len(tensors)} tensors, {first} first'}"
