"""Exercise 6.3: a function that dynamo, the front half of torch.compile, can take in one piece."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit import compilation


def unbroken(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What lesson 06's `noisy` returns and what it notes, both as tensors, in a single graph."""
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return torch.where(h > 0, h, 0).sum(), h.mean()


def graph_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One that is scaled down, one that is not, and sizes at random."""
    compilation.prepare()  # here, where the seconds that its import takes are not the learner's
    cases = [(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 1.0])), (torch.tensor([0.5, -0.25]), torch.ones(2))]
    for scale in (0.5, 3.0, 0.9, 20.0):
        n_elements = int(torch.randint(5, 60, (), generator=rng))
        x = scale * (2 * torch.rand(n_elements, generator=rng) - 1)
        cases.append((x, torch.rand(n_elements, generator=rng)))
    return cases


def one_graph(fn: Callable) -> str | None:
    """Says so where dynamo breaks fn into pieces, or where its graph took a branch once and for good.

    Explaining runs the graphs without generating code, and so does the backend `eager`: no compiler is needed.
    """
    inputs = [(x, torch.ones(3)) for x in (torch.tensor([2.0, -1.0, 0.5]), torch.tensor([0.5, -0.25, 0.125]))]
    found = torch._dynamo.explain(fn)(*inputs[0])
    if found.break_reasons or found.graph_count != 1:  # a break at the very end leaves one graph and a reason
        plural = "" if found.graph_count == 1 else "s"
        return f"torch._dynamo.explain finds {found.graph_count} graph{plural}{_why(found.break_reasons)}"
    torch.compiler.reset()  # what a learner compiled before counts against the limit of recompilations
    compiled = torch.compile(fn, backend="eager", fullgraph=True, dynamic=False)
    for x, y in inputs:
        if any(not torch.allclose(got, right) for got, right in zip(compiled(x, y), unbroken(x, y), strict=True)):
            return "Compiled, it gives another result than it gives plainly: a branch was taken once and for good."
    return None


def _why(reasons: list) -> str:
    """Where the first break is, in the learner's code, and dynamo's reason in a line."""
    if not reasons:
        return ": something in it is hidden from the compiler."
    place = reasons[0].user_stack[-1]
    return f", and breaks at: {place.line or f'line {place.lineno}'} ({reasons[0].reason.strip().splitlines()[0]})."


def _always_scaled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Divides whatever the largest is."""
    h = x * y
    h = h / h.abs().max()
    return h.relu().sum(), h.mean()


def _never_scaled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves the branch out."""
    h = x * y
    return h.relu().sum(), h.mean()


def _clamped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cuts off what is above 1 where all should shrink."""
    h = (x * y).clamp(-1, 1)
    return h.relu().sum(), h.mean()


GRAPH_MISTAKES = (
    ("It is divided even where the largest is no more than 1: torch.where(condition, divided, h).", _always_scaled),
    ("The branch is gone: where the largest is above 1, all of h is divided by it.", _never_scaled),
    ("Clamping changes the large values alone; noisy divides all of them.", _clamped),
)
