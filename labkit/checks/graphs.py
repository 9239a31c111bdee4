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
    """Scaled down, not, because of a negative number, down to nothing above 0, at 1 exactly; then sizes at random."""
    compilation.prepare()  # here, where the seconds that its import takes are not the learner's
    pairs = ([2.0, -1.0], [0.5, -0.25], [-3.0, 0.5], [-3.0, 2.0], [-3.0, -0.5], [0.5, 1.0], [0.0, 0.0])
    cases = [(torch.tensor(pair), torch.ones(2)) for pair in pairs]
    for scale in (0.5, 3.0, 0.9, 20.0):
        n_elements = int(torch.randint(5, 60, (), generator=rng))
        x = scale * (2 * torch.rand(n_elements, generator=rng) - 1)
        cases.append((x, torch.rand(n_elements, generator=rng)))
    return cases


def one_graph(fn: Callable) -> str | None:
    """Says so where dynamo breaks fn into pieces, its graph hides something, or took a branch once and for good.

    Judged with dynamo's settings as they are by default. Explaining runs the graphs without generating code, and so
    does the backend `eager`: no compiler is needed.
    """
    shown = ([2.0, -1.0, 0.5], [0.5, -0.25, 0.125], [-3.0, 0.5, 0.25])
    inputs = [(torch.tensor(values), torch.ones(3)) for values in shown]
    torch.compiler.reset()  # what a learner compiled before counts against the limit of recompilations
    with torch._dynamo.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        found = torch._dynamo.explain(fn)(*inputs[0])
        if found.break_reasons or found.graph_count != 1:  # a break at the very end leaves one graph and a reason
            plural = "" if found.graph_count == 1 else "s"
            return f"torch._dynamo.explain finds {found.graph_count} graph{plural}{_why(found.break_reasons)}"
        if hidden := _hidden(found.graphs[0]):
            return hidden
        torch.compiler.reset()
        compiled = torch.compile(fn, backend="eager", fullgraph=True, dynamic=False)
        if not all(_equal(compiled(*pair), fn(*pair)) for pair in inputs):
            return "Compiled, it gives another result than it gives plainly: a branch was taken once and for good."
    return None


def _equal(got: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether the numbers are the same, in whatever precision."""
    return all(torch.allclose(one.double(), other.double()) for one, other in zip(got, right, strict=True))


_READS_OUT = ("item", "_assert_scalar", "sym_size", "nonzero", "_local_scalar_dense")


def _hidden(graph: torch.fx.GraphModule) -> str | None:
    """What in a graph is no operation that the compiler can look into; None where all of them are torch's own."""
    modules = [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]  # cond has two more
    for node in (node for module in modules for node in module.graph.nodes):
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        if node.op.startswith("call_") and called.split(".")[0] in _READS_OUT:
            return "A number is still taken out, or a length depends on numbers: dynamo's settings must not allow it."
        if node.op == "call_function" and not _is_torchs(node.target):
            return f"The graph calls {called}: what happens there is hidden from the compiler. Use torch's operations."
    return None


def _is_torchs(target: Callable) -> bool:
    """Whether a graph calls an operation of torch or of Python, not one that somebody wrapped up."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() == "cond"
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).split(".")[0] in ("aten", "prims")
    return (getattr(target, "__module__", None) or "torch").split(".")[0] in ("torch", "_operator", "builtins", "math")


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


def _largest_signed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Takes the largest number, not the one that lies farthest from 0."""
    h = x * y
    h = torch.where(h.max() > 1, h / h.max(), h)
    return h.relu().sum(), h.mean()


def _divided_by_signed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Tests the largest absolute value and divides by the largest number."""
    h = x * y
    h = torch.where(h.abs().max() > 1, h / h.max(), h)
    return h.relu().sum(), h.mean()


def _never_scaled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves the branch out."""
    h = x * y
    return h.relu().sum(), h.mean()


def _mean_before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Notes the mean of what is not scaled yet."""
    return unbroken(x, y)[0], (x * y).mean()


def _summed_whole(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sums the numbers below 0 as well."""
    mean = unbroken(x, y)[1]
    return mean * x.numel(), mean


def _absolute(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sums absolute values."""
    h = x * y
    return (h / h.abs().max().clamp(min=1)).abs().sum(), unbroken(x, y)[1]


def _clamped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cuts off what is above 1 where all should shrink."""
    h = (x * y).clamp(-1, 1)
    return h.relu().sum(), h.mean()


GRAPH_MISTAKES = (
    ("The largest is that of h.abs(): a negative number may lie farthest from 0.", _largest_signed),
    ("The largest is that of h.abs(): a negative number may lie farthest from 0.", _divided_by_signed),
    ("It is divided even where the largest is no more than 1: torch.where(condition, divided, h).", _always_scaled),
    ("The branch is gone: where the largest is above 1, all of h is divided by it.", _never_scaled),
    ("The mean is noted after h is scaled, not before.", _mean_before),
    ("Only what is above 0 is summed.", _summed_whole),
    ("Only what is above 0 is summed.", _absolute),
    ("Clamping changes the large values alone; noisy divides all of them.", _clamped),
)
