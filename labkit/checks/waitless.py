"""Exercise 4.3, a loop without needless waits: the slow one, the trusted one, how they are driven, and the bar."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.device_thread import open_thread

Batches = Sequence[tuple[Tensor, Tensor]]


def slow_loop(
    dev: object, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches
) -> tuple[list[float], int]:
    """(losses, number of right answers) of a training run that waits for the device wherever it can."""
    losses, n_right = [], 0
    for x, y in batches:
        x, y = dev.put(x), dev.put(y)
        logits = model(x)
        loss = cross_entropy(logits, y)
        if torch.isnan(loss):
            raise FloatingPointError("the loss is NaN")
        optimizer.zero_grad()
        loss.backward()
        norms = [float(p.grad.norm()) for p in model.parameters()]
        if not all(map(math.isfinite, norms)):
            raise FloatingPointError("a gradient is NaN")
        optimizer.step()
        losses.append(loss.detach())
        n_right += int((logits.argmax(1) == y).sum())
        f"mean loss {sum(map(float, losses)) / len(losses):.3f}, norms {norms}, logits {logits}"
    return [float(each) for each in losses], n_right


def quick_loop(
    dev: object, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, every: int
) -> tuple[list[float], int]:
    """The same, looking at the losses every `every` steps only. FloatingPointError: one of them is NaN."""
    losses, recent, n_right = [], [], 0
    for n, (x, y) in enumerate(batches, 1):
        x, y = dev.put(x, non_blocking=True), dev.put(y, non_blocking=True)
        logits = model(x)
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_right = n_right + (logits.detach().argmax(1) == y).sum()
        recent.append(loss.detach())
        if n % every == 0 or n == len(batches):
            values, recent = torch.stack(recent).tolist(), []
            if any(value != value for value in values):
                raise FloatingPointError("a loss is NaN")
            losses += values
    return losses, int(n_right)


def _network(width: int, depth: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and its optimizer, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class _Counted(Sequence):
    """Batches that count how many of them were taken."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.n_taken = batches, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: object) -> tuple[Tensor, Tensor]:
        self.n_taken += 1
        return self.batches[place]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            self.n_taken += 1
            yield batch


def _batches(seed: int, n: int, width: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Random numbers and classes."""
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, width, generator=rng), torch.randint(0, 10, (size,), generator=rng)) for _ in range(n)]


def drive_loop(fn: Callable, seed: int, n_batches: int, every: int, spoilt: int | None) -> dict:
    """What a loop returns and leaves in the weights; spoilt: the batch (from 0) whose first number is NaN."""
    dev = open_thread(launch_s=0.0)
    try:
        batches = _batches(seed, n_batches, 16, 8)
        if spoilt is not None:
            batches[spoilt][0][0, 0] = torch.nan
        model, optimizer = _network(16, 2)
        dev.put(model)
        counted = _Counted(batches)
        try:
            losses, n_right = fn(dev, model, optimizer, counted, every)
        except FloatingPointError:
            return {"stops": True, "within `every` steps": spoilt is not None and counted.n_taken - spoilt - 1 <= every}
        weights = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
        return {"losses": losses, "right answers": n_right, "weights": weights}
    finally:
        dev.close()


def loop_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Whole and broken numbers of `every` steps; then a NaN early, in the middle, and in the last batch."""
    seeds = torch.randint(0, 2**31, (6,), generator=rng).tolist()
    return [(seeds[0], 4, 2, None), (seeds[1], 7, 3, None), (seeds[2], 12, 5, None)] + [
        (seed, 12, 5, spoilt) for seed, spoilt in zip(seeds[3:], (2, 6, 11), strict=True)
    ]


def waits_seldom(fn: Callable) -> str | None:
    """Says so where a loop waits more often than its looks explain."""
    dev, n_steps, every = open_thread(launch_s=0.0), 40, 10
    try:
        model, optimizer = _network(16, 2)
        dev.put(model)
        before = dev.waits
        fn(dev, model, optimizer, _batches(0, n_steps, 16, 8), every)
        n_waits = dev.waits - before
    finally:
        dev.close()
    allowed = 3 * n_steps // every + 3
    if n_waits <= allowed:
        return None
    return (
        f"In {n_steps} steps with every={every} the host waited {n_waits} times; three waits a look make at most "
        f"{allowed}. Look for what needs a value on the host: put, if, float, int, an f-string."
    )


FASTER = 2.0  # what the bar asks for


def is_faster(fn: Callable) -> str | None:
    """Times both loops in turns on the device thread, with one thread of torch; in doubt, again."""
    ratios: list[float] = []
    for _ in range(3):
        ratios += _ratios(fn, 3)
        if not 0.7 * FASTER < statistics.median(ratios) < 1.2 * FASTER:
            break
    ratio = statistics.median(ratios)
    if ratio >= FASTER:
        return None
    return (
        f"It is {int(100 * ratio) / 100:.2f} times as fast as the loop with all its waits, and {FASTER:g} is asked "
        "for. labkit.sync.watch() lists the lines that still wait."
    )


def _ratios(fn: Callable, n_rounds: int) -> list[float]:
    """How many times longer the slow loop takes, round by round."""
    torch.set_num_threads(1)
    dev, batches = open_thread(), _batches(0, 100, 32, 32)
    loops = {"slow": slow_loop, "quick": lambda *given: fn(*given, 20)}
    try:
        for loop in loops.values():
            _seconds(loop, dev, batches[:20])  # learns the shapes
        rounds = [{name: _seconds(loop, dev, batches) for name, loop in loops.items()} for _ in range(n_rounds)]
    finally:
        dev.close()
    return [each["slow"] / each["quick"] for each in rounds]


def _seconds(loop: Callable, dev: object, batches: Batches) -> float:
    """Seconds of one run, the device idle before and after."""
    model, optimizer = _network(32, 2)
    dev.put(model)
    started_s = time.perf_counter()
    loop(dev, model, optimizer, batches)
    dev.synchronize()
    return time.perf_counter() - started_s
