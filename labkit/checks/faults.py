"""Exercise 5.4: what each of the six faults leaves behind, counted while a loop runs."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.workshop import SCAN_SIZES, Loop, Shelf


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the six faults leave behind in a run of n_steps, counted and not timed.

    other_waits: of the host for the device, but for copies to it; like early_lines, from the first step's end to the
    last one's. What comes before sets up, and once all is done, to wait is no fault.
    """

    n_steps: int
    compilations: int
    own_reads: int
    blocking_copies: int
    operations: int
    other_waits: int
    lines: int
    early_lines: int

    def faults(self, usual: "Counted") -> list[str]:
        """A sentence for each fault that can still be counted, beside a run without any."""
        n, a_line = self.n_steps, usual.other_waits / max(usual.early_lines, 1)
        waits = self.other_waits - a_line * self.early_lines
        sentences = {
            f"It compiled {self.compilations} times for scans of {len(SCAN_SIZES)} sizes.": self.compilations > 2,
            f"The thread that trains read {self.own_reads} of {n} batches itself.": self.own_reads > 1,
            f"{self.blocking_copies} copies to the device waited.": self.blocking_copies > 1,
            f"The device ran {self.operations / n:.0f} operations a step.": self.operations > 2 * usual.operations,
            f"The log has {self.lines} lines for {n} steps.": self.lines > 2 * usual.lines,
            f"Copies and log apart, the host waited {waits:.0f} times.": waits > n / 2,
        }
        return [text for text, found in sentences.items() if found]


class _Watched:
    """A device that counts copies which wait; in all else the device that it was made of."""

    def __init__(self, device: object) -> None:
        self.device, self.blocking = device, 0

    def put(self, what: object, non_blocking: bool = False) -> object:
        """As the device's own."""
        self.blocking += isinstance(what, Tensor) and not non_blocking
        return self.device.put(what, non_blocking=non_blocking)

    def __getattr__(self, name: str) -> object:
        return getattr(self.device, name)


def counted(run: Loop, device: object, *, n_steps: int) -> Counted:
    """What the faults leave behind in n_steps of a run, of batches of 16."""
    from torch._dynamo.utils import counters

    shelf, watched, log = Shelf(batch_size=16, latency_s=0), _Watched(device), []
    torch.compiler.reset()
    run(device, Shelf(batch_size=16, latency_s=0), 1, [])  # learns the shapes
    torch.compiler.reset()
    device.synchronize()
    compiled = counters["stats"]["unique_graphs"]
    done: list[tuple[int, int]] = []  # waits and lines, at each step's end
    hook = register_optimizer_step_post_hook(lambda *_: done.append((device.waits - watched.blocking, len(log))))
    try:
        with device.recording() as spans:
            run(watched, shelf, n_steps, log)
    finally:
        hook.remove()
    (waits, lines), (waits_in_all, lines_in_all) = (done[0], done[-1]) if done else ((0, 0), (0, 0))
    return Counted(
        n_steps=n_steps,
        compilations=counters["stats"]["unique_graphs"] - compiled,
        own_reads=shelf.read_by["owner"],
        blocking_copies=watched.blocking,
        operations=sum(span.kind == "kernel" for span in spans),
        other_waits=waits_in_all - waits,
        lines=len(log),
        early_lines=lines_in_all - lines,
    )
