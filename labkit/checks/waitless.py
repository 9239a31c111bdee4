"""Exercise 4.3, a loop without needless waits: the slow one, the trusted one, how they are driven, and the bar."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.checks.guard import Watched
from labkit.compare import Finding, close, fit
from labkit.describe import kind_of
from labkit.device_thread import Handle, ThreadDevice, open_thread

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


def _batches(seed: int, n: int, width: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Random numbers and classes."""
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, width, generator=rng), torch.randint(0, 10, (size,), generator=rng)) for _ in range(n)]


RIGHT = Finding("as it should")


def drive_loop(fn: Callable, seed: int, n_batches: int, every: int, spoilt: int | None) -> dict:
    """What a loop returns and leaves in the weights, as plain numbers; or what is wrong with the form of it.

    spoilt: the batch (from 0) whose first number is NaN; then what the loop raised, and after how many steps.
    """
    batches = _batches(seed, n_batches, 16, 8)
    if spoilt is not None:
        batches[spoilt][0][0, 0] = torch.nan
    done: list[int] = []
    with closing(open_thread(launch_s=0.0)) as dev:
        model, optimizer = _network(16, 2)
        dev.put(model)
        optimizer.register_step_post_hook(lambda *_: done.append(1))
        if spoilt is not None:
            raised = _raised(lambda: fn(dev, model, optimizer, batches, every))
            return {"raised": raised, "steps": len(done)}
        given = fn(dev, model, optimizer, batches, every)
        wrong = _wrong_form(given)
        return {"form": wrong} if wrong else _values(*given, model)


def _raised(run: Callable) -> str:
    """The name of what a loop raised; nothing where it raised nothing."""
    try:
        run()
    except FloatingPointError:
        return FloatingPointError.__name__
    except Exception as error:  # in the batches without NaN it raised nothing
        return type(error).__name__
    return ""


def _wrong_form(given: object) -> str:
    """What is wrong with what a loop returned, whatever the numbers are."""
    if given is None:
        return "None"
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        return f"no pair: {kind_of(given)}"
    losses, n_right = given
    if isinstance(losses, Handle) or isinstance(losses, (tuple, list)) and any(isinstance(x, Handle) for x in losses):
        return "the losses on the device: tensors, and no numbers"
    if isinstance(n_right, Handle):
        return "the count on the device: a tensor, and no number"
    if not isinstance(losses, (tuple, list, Tensor)) or not isinstance(n_right, (int, float, Tensor)):
        return f"no pair: of a list and a number, but {kind_of(losses)} and {kind_of(n_right)}"
    return ""


def _values(losses: Sequence | Tensor, n_right: float | Tensor, model: nn.Module) -> dict[str, list[float]]:
    """What a loop gave and left, as plain numbers."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    return {"losses": [float(x) for x in losses], "count": [float(n_right)], "weights": weights.tolist()}


def loop_found(got: dict, expected: dict, _seed: int, n_batches: int, every: int, spoilt: int | None) -> Finding:
    """What is wrong with what a loop gave, beside what the trusted one gave."""
    if spoilt is not None:
        return Finding(_raises_wrongly(got["raised"], got["steps"], spoilt, every))
    if "form" in got:
        return Finding(f"returned {got['form']}")
    if len(got["losses"]) != n_batches:
        return Finding(f"returned too many or too few losses: {len(got['losses'])} for {n_batches} batches")
    return Finding(_differing(got, expected))


def _raises_wrongly(raised: str, n_steps: int, spoilt: int, every: int) -> str:
    """What is wrong with how a loop takes a batch that makes the loss NaN."""
    planted = f"batch {spoilt} (from 0) holds a NaN, every={every}"
    if not raised:
        return f"raised nothing: {planted}"
    if raised != FloatingPointError.__name__:
        return f"raised another error: {raised}, when {planted}"
    late = n_steps - spoilt - 1
    if late < -1:  # a loop may look before it steps
        return f"raised too early: after {n_steps} steps, when {planted}"
    return f"raised too late: after {n_steps} steps, when {planted}" if late >= every else RIGHT


def _differing(mine: dict[str, list[float]], right: dict[str, list[float]]) -> str:
    """The first number that is not, bit for bit, what it should be."""
    for what, values in right.items():
        for i, (got, expected) in enumerate(zip(mine[what], values, strict=True)):
            if got != expected:
                return f"{what} differ: {what}[{i}] is {got:.9g}, and {expected:.9g} in the loop with all its waits"
    return RIGHT


_CAUSES = {
    "raised too early": "The loss was no NaN yet.",
    "raised too late": "Look every `every` steps, at the losses of these `every` steps: then the first one that is NaN "
    "is found at most `every - 1` steps later.",
    "raised another error": "A loss that is NaN is to raise FloatingPointError.",
    "raised nothing": "Is the check dropped, or are the last losses not looked at, where the number of steps is no "
    "multiple of `every`?",
    "returned None": "Is the `return` missing?",
    "returned no pair": "Return (losses, number of right answers).",
    "returned the losses on the device": "torch.stack(losses).tolist() brings all of them to the host, in one wait.",
    "returned the count on the device": "int(n_right) at the end is one wait, and gives the number.",
    "returned too many or too few losses": "One for each batch: are the last ones missing, when the number of steps is "
    "no multiple of `every`?",
    "losses differ": "They must be equal to the last bit: every loss as it is, in the order of the batches.",
    "count differ": "Count the rows of logits whose largest number stands at the right class.",
    "weights differ": "Each step as in the slow loop: zero_grad, backward, step.",
}


def loop_faults(got: object, expected: object) -> str | None:
    """The likely cause of what is wrong."""
    return None if got == expected else _CAUSES[str(got).split(":")[0]]


def loop_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Whole and broken numbers of `every` steps; then a NaN in the first batch, after a look, and in the last batch."""
    seeds = torch.randint(0, 2**31, (6,), generator=rng).tolist()
    return [(seeds[0], 4, 2, None), (seeds[1], 7, 3, None), (seeds[2], 12, 5, None)] + [
        (seed, 12, 5, spoilt) for seed, spoilt in zip(seeds[3:], (0, 5, 11), strict=True)
    ]


def waits_seldom(fn: Callable) -> str | None:
    """Says so where a loop waits for young work more often than its looks explain; what is old has long been done."""
    n_steps, every = 40, 10
    with closing(Watched()) as dev:
        model, optimizer = _network(16, 2)
        dev.put(model)
        dev.ages.clear()

        def count(*_: object) -> None:
            dev.step += 1

        optimizer.register_step_post_hook(count)
        fn(dev, model, optimizer, _batches(0, n_steps, 16, 8), every)
        waited = dev.young(every // 2)
    allowed = 3 * n_steps // every + 3
    if waited.total() <= allowed:
        return None
    most = ", ".join(f"{count} in {asked}" for asked, count in waited.most_common(3))
    return (
        f"In {n_steps} steps with every={every} the host waited {waited.total()} times ({most}); three waits a look "
        f"make at most {allowed}. Look for what needs a value on the host: put, if, float, int, an f-string."
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
    return None if ratio >= FASTER else too_slow(ratio)


def too_slow(ratio: float) -> str:
    """What to say of a loop that is only so many times as fast."""
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


@cache
def _bench() -> ThreadDevice:
    """The device that a grader's runs share, for it knows their shapes after the first."""
    return open_thread()


def quick_run(fn: Callable, seed: int, n_batches: int = 100) -> dict:
    """What a loop gives on that device, as plain numbers; all is done when it returns."""
    torch.set_num_threads(1)
    model, optimizer = _network(32, 2)
    _bench().put(model)
    given = fn(_bench(), model, optimizer, _batches(seed, n_batches, 32, 32), 20)
    _bench().synchronize()
    return _values(*given, model)


OTHER_RUN = "In the run that is timed it gives other losses, counts or weights than the slow loop."
NOT_FASTER = (
    f"It is not {FASTER:g} times as fast as the loop with all its waits. labkit.sync.watch() lists the lines that wait."
)


def same_run(got: object, expected: dict) -> str | None:
    """Says so where a loop that is timed has not trained as the slow one did."""
    return OTHER_RUN if close(1e-4, 1e-5)(fit(got, expected), expected) is not None else None


def _seconds(loop: Callable, dev: object, batches: Batches) -> float:
    """Seconds of one run, the device idle before and after."""
    model, optimizer = _network(32, 2)
    dev.put(model)
    started_s = time.perf_counter()
    loop(dev, model, optimizer, batches)
    dev.synchronize()
    return time.perf_counter() - started_s
