"""A GPU with the few methods of `device_thread`, so that one lesson runs on both."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.timeline import Span

_END = "labkit: the end of a recording"


class CudaPending:
    """A tensor's values on their way to the host: `done()` asks, without waiting; `get()` waits for this one alone."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def done(self) -> bool:
        """Whether get() would return at once."""
        return self._copied.query()

    def get(self) -> Tensor:
        """The values as a plain tensor. Any thread may call it; what was launched later is not waited for."""
        self._copied.synchronize()
        return self._host


class CudaDevice:
    """The current GPU. `waits` counts the host's waits, only while a recording runs: the profiler sees them."""

    def __init__(self) -> None:
        self.name, self.waits = torch.cuda.get_device_name(), 0

    def put(self, what: Any, non_blocking: bool = False) -> Any:
        """A tensor on the GPU, or a module moved there. ValueError: anything else.

        With non_blocking a tensor is first copied to pinned memory: from other memory the driver may wait all the same.
        """
        if not isinstance(what, (Tensor, nn.Module)):
            raise ValueError(f"A device takes tensors and modules, not {type(what).__name__}.")
        if non_blocking and isinstance(what, Tensor) and what.device.type == "cpu" and not what.is_pinned():
            what = torch.empty_like(what, pin_memory=True).copy_(what)  # memory that torch keeps and hands out again
        return what.to("cuda", non_blocking=non_blocking)

    def fetch(self, tensor: Tensor) -> CudaPending:
        """The values of a tensor as they are at this point of the queue, on their way to the host; does not wait."""
        return CudaPending(tensor)

    def synchronize(self) -> None:
        """Wait until everything launched so far has run."""
        torch.cuda.synchronize()

    @contextmanager
    def recording(self) -> Iterator[list[Span]]:
        """A list that holds, after the block, what host and GPU did in it: the profiler's trace as spans."""
        from labkit import trace

        spans: list[Span] = []
        torch.cuda.synchronize()
        with trace.profiler(self) as profile:
            yield spans
            with torch.profiler.record_function(_END):
                torch.cuda.synchronize()
        found = list(trace.read(profile).spans)
        end_s = min((span.start_s for span in found if span.name == _END), default=float("inf"))
        # The last wait is ours, and so is the one with which the profiler ends.
        spans += [span for span in found if span.name != _END and not (span.kind == "wait" and span.start_s >= end_s)]
        self.waits += sum(span.kind == "wait" for span in spans)

    @contextmanager
    def note(self, kind: str, name: str) -> Iterator[None]:
        """A block that a recording shows in the host's row: kind "data" where it reads data, else "host"."""
        with torch.profiler.record_function(f"labkit {kind}: {name}"):
            yield

    def close(self) -> None:
        """Nothing: the GPU stays open."""
