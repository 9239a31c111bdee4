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
    """Losses with a Hessian that is known: a bowl, a saddle, one whose curvature depends on the place, a wide one.

    Sizes, curvatures, place and directions are drawn; what stands out is at least 1.5 times as large as the rest.
    """
    uniform = lambda low, high, n=1: low + (high - low) * torch.rand(n, generator=rng)
    bowl = torch.cat([uniform(5, 50), uniform(0.5, 3, _draw(rng, 2, 4))])
    saddle = torch.cat([uniform(-60, -6), uniform(0.5, 4, _draw(rng, 3, 5))])
    steeper = torch.cat([uniform(2.5, 20), uniform(1, 2, _draw(rng, 2, 4))])
    sign = 2 * _draw(rng, 0, 1) - 1
    wide = sign * torch.cat([uniform(45, 90), uniform(-15, 30, _draw(rng, 350, 450))])
    cases = [_quartic(rng, curvature, uniform(-2, 2, len(curvature))) for curvature in (bowl, saddle)]
    place = torch.cat([sign * uniform(1, 2), uniform(-0.7, 0.7, len(steeper) - 1)])
    cases += [_quartic(rng, steeper, place, growth=1.0), _quartic(rng, wide, uniform(-2, 2, len(wide)))]
    return [(*each, 30) for each in cases]


def _quartic(
    rng: torch.Generator, curvature: Float[Tensor, "P"], place: Float[Tensor, "P"], growth: float = 0.0
) -> tuple[Callable[[Tensor], Tensor], Float[Tensor, "P"]]:
    """A loss and a point; the Hessian's eigenvalues there are curvature * (1 + growth * place**2).

    Its eigenvectors are the axes, mirrored in a plane that is drawn: no single product with the Hessian tells them.
    """
    normal = torch.randn(len(curvature), generator=rng)
    normal = normal / normal.norm()
    mirrored = lambda w: w - 2 * (w @ normal) * normal

    def loss_at(w: Tensor) -> Tensor:
        along = mirrored(w)
        return (curvature * (along**2 / 2 + growth * along**4 / 12)).sum()

    return loss_at, mirrored(place)


def _tell_eigenvalues(loss_at: Callable, w: Float[Tensor, "P"], n_iterations: int) -> dict[str, str]:
    """How large a case is, and the eigenvalues that it has, where they are few."""
    told = {"case": f"a loss of {len(w)} parameters, {n_iterations} iterations"}
    if len(w) < 10:
        values = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_at, w)).tolist()
        told["Hessian"] = f"at w it has the eigenvalues {', '.join(f'{value:.3g}' for value in values)}"
    return told


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
        fn(*_quartic(torch.Generator().manual_seed(n), torch.linspace(1, 4, n), torch.zeros(n)), 5)
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
        tell=_tell_eigenvalues,
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
