"""The checks of lesson 01: a schedule, the pick of a range test, sharpness by power iteration."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import train
from labkit.checker import Exercise, close


def warmup_stable_decay(step: int, peak: float, n_steps: int, n_warmup: int, n_decay: int) -> float:
    """The learning rate at `step`: up in a straight line, flat at `peak`, down in a straight line.

    The first step already moves, with peak / n_warmup; the last one still moves, with peak / n_decay.
    """
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return peak * min(1.0, up, down)


def _schedule_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Corners first, then schedules drawn at random."""
    corners = [(0, 1.0, 10, 4, 0), (3, 1.0, 10, 4, 0), (0, 0.5, 10, 0, 0), (9, 1.0, 10, 0, 5), (5, 1.0, 10, 2, 5)]
    return [*corners, *(_random_schedule(rng) for _ in range(30))]


def _random_schedule(rng: torch.Generator) -> tuple:
    """A schedule whose warm-up and decay do not overlap, at a random step."""
    n_steps = _draw(rng, 20, 400)
    n_warmup = _draw(rng, 0, n_steps // 2)
    n_decay = _draw(rng, 0, n_steps - n_warmup)
    return _draw(rng, 0, n_steps - 1), _draw(rng, 1, 100) / 100, n_steps, n_warmup, n_decay


def _draw(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def pick_rate(rates: Float[Tensor, "R"], losses: Float[Tensor, "R"]) -> float:
    """A tenth of the rate at which a range test's loss was lowest; losses after the blow-up may be inf or NaN."""
    finite = torch.where(losses.isfinite(), losses, torch.inf)
    return float(rates[finite.argmin()]) / 10


def _range_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A clean valley, one that blows up, then noisy ones of several lengths."""
    rates = torch.tensor([0.01, 0.1, 1.0, 10.0])
    clean, blown = torch.tensor([3.0, 2.0, 1.0, 5.0]), torch.tensor([3.0, 2.0, torch.inf, torch.nan])
    return [(rates, clean), (rates, blown), *(_valley(rng, n) for n in (10, 30, 100, 300))]


def _valley(rng: torch.Generator, n: int) -> tuple:
    """A noisy valley over n rates whose last fifth is not finite."""
    lowest = _draw(rng, n // 3, 2 * n // 3)
    losses = 3 + (torch.arange(n) - lowest).abs() / n + 0.02 * torch.rand(n, generator=rng)
    losses[-(n // 5) :] = torch.nan
    losses[-(n // 5)] = torch.inf
    return torch.logspace(-4, 1, n), losses


def sharpness(
    loss_at: Callable[[Float[Tensor, "P"]], Float[Tensor, ""]], w: Float[Tensor, "P"], n_iterations: int
) -> float:
    """The Hessian's eigenvalue of largest size at w, with its sign, by power iteration.

    The Rayleigh quotient v·Hv of the last direction v of length 1. Source: Yao et al., PyHessian (2020), section 3.
    """
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    v, eigenvalue = torch.randn_like(w), 0.0
    for _ in range(n_iterations):
        v = v / v.norm()
        (hv,) = torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True)
        eigenvalue, v = float(v @ hv), hv
    return eigenvalue


def _sharpness_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Losses with a Hessian known by heart: a bowl, a saddle, one whose curvature depends on the place."""
    bowl, saddle = torch.tensor([8.0, 2.0, 1.0]), torch.tensor([1.0, 0.5, -6.0, 2.0])
    wide = torch.cat([torch.tensor([50.0]), 20 * torch.rand(399, generator=rng)])
    return [
        (_quartic("a bowl of curvatures 8, 2, 1", bowl), torch.zeros(3), 30),
        (_quartic("a saddle of curvatures 1, 0.5, -6, 2", saddle), torch.zeros(4), 30),
        (_quartic("a bowl that is steeper further out", bowl, growth=1.0), torch.tensor([0.1, 2.0, 1.0]), 30),
        (_quartic("a bowl in 400 dimensions", wide), torch.randn(400, generator=rng), 30),
    ]


def _quartic(name: str, curvature: Float[Tensor, "P"], growth: float = 0.0) -> Callable[[Tensor], Tensor]:
    """A loss whose Hessian at w is diagonal: curvature * (1 + growth * w**2). The name is what a learner reads."""

    def loss_at(w: Tensor) -> Tensor:
        return (curvature * (w**2 / 2 + growth * w**4 / 12)).sum()

    loss_at.__name__ = name
    return loss_at


class _Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor held that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.n_numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ARG002
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.n_numbers = max(self.n_numbers, tensor.numel())
        return out


def _only_vectors(fn: Callable) -> str | None:
    """Says so where fn builds the whole Hessian: P * P numbers, where power iteration needs vectors of P."""
    n = 300
    with _Largest() as seen:
        fn(_quartic("a bowl", torch.linspace(1, 4, n)), torch.zeros(n), 5)
    if seen.n_numbers < n * n:
        return None
    return (
        f"With {n} parameters it made a tensor of {seen.n_numbers:,} numbers: the whole Hessian. Power iteration needs "
        "vectors only. A network of a million parameters has a Hessian of four terabytes."
    )


def _size_only(loss_at: Callable, w: Tensor, n_iterations: int) -> float:
    """The mistake of taking a length for the eigenvalue."""
    return abs(sharpness(loss_at, w, n_iterations))


def _largest(loss_at: Callable, w: Tensor, n_iterations: int) -> float:  # noqa: ARG001
    """The mistake of taking the largest eigenvalue for the one of largest size."""
    return float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_at, w)).max())


EXERCISES = (
    Exercise(
        number="1.1",
        name="warmup_stable_decay",
        cases=_schedule_cases,
        reference=warmup_stable_decay,
        compare=close(rtol=1e-6, atol=1e-9, why="Three straight pieces: which one is this step on?"),
        library=(train.warmup_stable_decay,),
        points=3,
        hints=(
            "An end comes out as 0: on the way up count the steps done once this one is, step + 1; on the way down "
            "those still to come with this one, n_steps - step.",
            "A ZeroDivisionError: a part of length 0 is not there, so it takes nothing away: its factor is 1.",
            "The whole schedule is peak times the smallest of three numbers: 1, the way up, the way down.",
        ),
    ),
    Exercise(
        number="1.2",
        name="pick_rate",
        cases=_range_cases,
        reference=pick_rate,
        compare=close(rtol=1e-6, why="Find the lowest loss that is a real number; its rate, divided by ten."),
        points=2,
        hints=(
            "The pick lies at the far right: argmin takes NaN for the smallest number of all.",
            "Put inf where a loss is not finite (torch.where and isfinite), then take argmin.",
        ),
    ),
    Exercise(
        number="1.3",
        name="sharpness",
        cases=_sharpness_cases,
        reference=sharpness,
        compare=close(rtol=2e-2, why="Within 2 % counts as right: are all iterations done, on Hv at w?"),
        mechanism=_only_vectors,
        mistakes=(
            ("The sign is lost: the length of Hv is a size. The eigenvalue is v @ Hv.", _size_only),
            ("That is the largest eigenvalue; the one of largest size here is negative.", _largest),
        ),
        points=5,
        hints=(
            "'does not require grad': w comes without gradients, so begin with w.detach().clone().requires_grad_(); "
            "and the first torch.autograd.grad needs create_graph=True.",
            "The number explodes: bring v back to length 1 before every product.",
            "Hv is torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True); the eigenvalue is v @ Hv.",
        ),
    ),
)
