"""A small training job whose loop can be slowed by six faults, each planted by itself, and what the loop works on.

The faults change no result. Their repair is a line each; which of them cost how much, lesson 05 measures.
"""

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import no_type_check

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import record_function

from labkit.data import glyphs
from labkit.timeline import Span

FAULTS = ("recompiling", "reading", "copying", "tiny kernels", "syncing", "logging")
SIZE = 24  # pixels a side, of a picture as the network sees it
SCAN_SIZES = (72, 76, 80, 84, 88, 92, 96)  # seven, for torch gives up on a function after eight compilations
EVERY = 20  # steps between two lines of the log that are needed

Batch = tuple[UInt8[Tensor, "B 1 S S"], Float[Tensor, " B"], Int64[Tensor, " B"]]
Packed = tuple[bytes, int, Tensor, Tensor]
Loop = Callable[[object, "Shelf", int, list], list]


class Shelf:
    """Batches of scanned characters, packed, and latency_s away: a stand-in for a store across a network.

    A batch is (pictures, gains, labels); the scans of one batch are all of one size, and sizes change from batch to
    batch. The delay is a sleep; unpacking is real work. Reading is safe from any thread. `read_by` counts the reads
    that the thread that made the shelf did itself, and those that others did.
    """

    def __init__(self, *, batch_size: int = 64, latency_s: float = 0.03, seed: int = 0) -> None:
        self.batch_size, self.latency_s, self.seed = batch_size, latency_s, seed
        self.owner = threading.get_ident()
        self.read_by = {"owner": 0, "others": 0}
        self._lock = threading.Lock()

    def read(self, step: int) -> Batch:
        """The batch of one step; the same each time."""
        with _marked("read a batch", "data"):
            return self._unpacked(step)

    def ahead(self, n_steps: int, *, workers: int = 8, depth: int = 16) -> Iterator[Batch]:
        """The batches of steps 0 to n_steps - 1, read by threads, at most `depth` batches before they are needed."""
        with ThreadPoolExecutor(workers, thread_name_prefix="reader") as pool:
            steps = iter(range(n_steps))
            coming = deque(pool.submit(self._unpacked, step) for step in islice(steps, depth))
            while coming:
                with _marked("wait for data", "data"):
                    batch = coming.popleft().result()
                coming.extend(pool.submit(self._unpacked, step) for step in islice(steps, 1))
                yield batch

    def _stored(self, step: int) -> Packed:
        """One batch as it lies on the shelf."""
        return packed(self.batch_size, self.seed, step % 64)

    def _unpacked(self, step: int) -> Batch:
        """`read`, without a mark in the profiler's trace."""
        scans, size, gains, labels = self._stored(step)
        time.sleep(self.latency_s)
        pictures = torch.frombuffer(bytearray(zlib.decompress(scans)), dtype=torch.uint8)
        with self._lock:
            self.read_by["owner" if threading.get_ident() == self.owner else "others"] += 1
        return pictures.view(-1, 1, size, size), gains, labels


@cache
def packed(batch_size: int, seed: int, index: int) -> Packed:
    """One batch as it lies on the shelf: compressed pictures, their size in pixels, gains, labels."""
    held = glyphs.load("train", SIZE)
    generator = torch.Generator().manual_seed(1000 * seed + index)
    chosen = torch.randint(len(held), (batch_size,), generator=generator)
    size = SCAN_SIZES[int(torch.randint(len(SCAN_SIZES), (), generator=generator))]
    pictures = held.inputs[chosen] * glyphs.STD + glyphs.MEAN
    scans = (functional.interpolate(pictures, size=(size, size)) * 255).to(torch.uint8)
    gains = 0.8 + 0.4 * torch.rand(batch_size, generator=generator)
    return zlib.compress(scans.numpy().tobytes(), 1), size, gains, held.targets[chosen]


@no_type_check  # what torch compiles must not be wrapped in a check of its shapes
def tidied(scans: UInt8[Tensor, "B 1 S S"]) -> Float[Tensor, "B 1 H W"]:
    """Scans of any size as pictures of SIZE pixels a side, in amounts of light, at mean 0 and spread 1, roughly."""
    light = (scans.float() / 255) ** 2.2  # what a scanner stores is no amount of light but its 2.2th root
    return (functional.interpolate(light, size=(SIZE, SIZE), mode="area") - glyphs.MEAN) / glyphs.STD


def network(device: object, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network of two convolutions on a device, always with the same weights, and its optimizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        model = device.put(nn.Sequential(*layers, nn.Linear(32 * (SIZE // 2) ** 2, len(glyphs.CLASSES))))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def loop(device: object, shelf: Shelf, n_steps: int, log: list, *, faults: Collection[str] = ()) -> list:
    """Train for n_steps, with some of FAULTS; the losses, as numbers or tensors.

    `log` gets a line every EVERY steps or, if faulty, at each.
    """
    model, optimizer = network(device)
    prepare = torch.compile(tidied, backend="eager", dynamic="recompiling" not in faults)
    batches = map(shelf.read, range(n_steps)) if "reading" in faults else shelf.ahead(n_steps)
    put = partial(device.put, non_blocking="copying" not in faults)
    losses = []
    for step, (scans, gains, labels) in enumerate(batches):
        gains, labels = put(gains), put(labels)
        pictures = put(prepare(scans))
        if "tiny kernels" in faults:
            pictures = torch.stack([(p * gain + 0.1).clamp(-2, 2) for p, gain in zip(pictures, gains, strict=True)])
        else:
            pictures = (pictures * gains.view(-1, 1, 1, 1) + 0.1).clamp(-2, 2)
        logits = model(pictures)
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if "syncing" in faults else loss.detach())
        if "logging" in faults or step % EVERY == 0:
            log.append(f"step {step}: {logits[:8].detach()}")
    return losses


@dataclass(frozen=True, kw_only=True)
class Timed:
    """How long a run took, in seconds, and what came of it: its losses and its log."""

    seconds: float
    losses: list[float]
    log: list


def timed(run: Loop, device: object, *, n_steps: int, shelf: Shelf, lead: int = 0) -> Timed:
    """One run of n_steps; neither a first run of one step nor the first `lead` steps are in its seconds.

    Whatever torch compiled before is forgotten first, so that every run begins alike.
    """
    torch.compiler.reset()
    run(device, shelf, 1, [])
    device.synchronize()
    log: list = []
    n_done, started_s = 0, time.perf_counter()

    def stepped(*_args: object) -> None:
        nonlocal n_done, started_s
        n_done += 1
        if n_done == lead:
            device.synchronize()
            started_s = time.perf_counter()

    hook = register_optimizer_step_post_hook(stepped)
    try:
        losses = run(device, shelf, n_steps, log)
        device.synchronize()
    finally:
        hook.remove()
    took_s = time.perf_counter() - started_s
    return Timed(seconds=took_s, losses=numbers(losses), log=log)


def numbers(losses: Iterable) -> list[float]:
    """Losses as numbers, whether they are that already, or tensors, or still hang on their graphs."""
    return [float(loss.detach() if isinstance(loss, Tensor) else loss) for loss in losses]


# While `recorded` runs: what the host did that is no launch and no wait, as (name, start, end, kind) on perf_counter.
_marks: list[tuple[str, float, float, str]] | None = None


@contextmanager
def _marked(name: str, kind: str) -> Iterator[None]:
    """A block that the profiler and `recorded` know by its name."""
    started_s = time.perf_counter()
    with record_function(name):
        yield
    if _marks is not None:
        _marks.append((name, started_s, time.perf_counter(), kind))


@contextmanager
def _marking() -> Iterator[list[tuple[str, float, float, str]]]:
    """A block in which reads, compilations and steps are marked; a step ends with the optimizer's."""
    global _marks
    from torch._dynamo.callback import callback_handler

    marks, since = [], {"step": time.perf_counter()}

    def start(_args: object) -> None:
        since["compile"] = time.perf_counter()

    def end(_args: object) -> None:
        marks.append(("compile", since["compile"], time.perf_counter(), "compile"))

    def stepped(*_args: object) -> None:
        marks.append(("step", since["step"], now := time.perf_counter(), "step"))
        since["step"] = now

    hook = register_optimizer_step_post_hook(stepped)
    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    _marks = marks
    try:
        yield marks
    finally:
        _marks = None
        hook.remove()
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def recorded(run: Loop, device: object, *, n_steps: int, shelf: Shelf) -> list[Span]:
    """What host and device did in n_steps of a run, as spans; a first run of one step is not recorded.

    Beside launches, waits and the device's work: reads, compilations and steps, from the end of one optimizer step to
    the end of the next. On a GPU these come from the profiler's trace.
    """
    torch.compiler.reset()
    run(device, shelf, 1, [])
    on_device = device.put(torch.zeros(1))
    device.synchronize()
    with device.recording() as spans, _marking() as marks:
        zero_s = time.perf_counter()
        device.fetch(on_device)  # the first launch: here, to a few microseconds, the recording's clock stands at 0
        run(device, shelf, n_steps, [])
    if any(span.kind == "data" for span in spans):
        return spans
    host = next(span.row for span in spans if span.kind == "launch")
    rows = {"step": "steps"}
    spans += [
        Span(row=rows.get(kind, host), name=name, start_s=max(a - zero_s, 0.0), end_s=max(b - zero_s, 0.0), kind=kind)
        for name, a, b, kind in marks
    ]
    return sorted(spans, key=lambda span: span.start_s)
