"""Exercise 21.1: pictures that are turned, stretched and shifted in one call for all, each by its own numbers."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode


def augment_batch(
    pictures: Float[Tensor, "N 1 H W"],
    angle: Float[Tensor, " N"],
    scale: Float[Tensor, " N"],
    right: Float[Tensor, " N"],
    down: Float[Tensor, " N"],
) -> Float[Tensor, "N 1 H W"]:
    """Each picture turned by its angle (radians), stretched by its scale, shifted; what is outside is as its border.

    right, down: shifts in half widths and half heights of a picture.
    """
    grid = F.affine_grid(_matrix(angle, scale, right, down), list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def _matrix(angle: Tensor, scale: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """From places of the result to places of the picture, [N, 2, 3]."""
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return torch.stack([cos, -sin, right, sin, cos, down], dim=1).view(-1, 2, 3)


def augment_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Two small pictures; one; wider ones; higher ones; some of the size of the lesson's."""
    return [_drawn(rng, *size) for size in ((2, 5, 5), (1, 6, 6), (3, 6, 9), (5, 12, 8), (4, 48, 48))]


def _drawn(rng: torch.Generator, n: int, height: int, width: int) -> tuple:
    """n pictures of noise, and numbers beyond those of the script, so that no mistake hides behind a small effect."""
    between = lambda low, high: low + (high - low) * torch.rand(n, generator=rng)
    pictures = torch.randn(n, 1, height, width, generator=rng)
    return pictures, between(-0.6, 0.6), between(0.7, 1.5), between(-0.4, 0.4), between(-0.4, 0.4)


class _Operations(TorchDispatchMode):
    """Counts the operations of torch in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ARG002
        self.n += 1
        return func(*args, **(kwargs or {}))


def _n_operations(fn: Callable, n: int) -> int:
    """How many operations fn takes for n pictures."""
    given = _drawn(torch.Generator().manual_seed(n), n, 8, 8)
    with _Operations() as counted:
        fn(*given)
    return counted.n


def in_one_call(fn: Callable) -> str | None:
    """Says so where fn takes more operations for more pictures."""
    few, many = _n_operations(fn, 4), _n_operations(fn, 16)
    if many <= few:
        return None
    return (
        f"Operations for 4 pictures: {few}, for 16: {many}. There is a loop over pictures, in the function or in "
        "torch.vmap. One call for all: make all matrices at once, [N, 2, 3]; affine_grid and grid_sample take all."
    )


def _by(matrix: Callable = _matrix, size: Callable = lambda shape: shape, **sampling: object) -> Callable:
    """`augment_batch` with another matrix, other sizes, or another way to sample."""
    of_grid = sampling.pop("grid_corners", False)
    sampling = {"padding_mode": "border", "align_corners": False} | sampling

    def mistaken(pictures: Tensor, *numbers: Tensor) -> Tensor:
        grid = F.affine_grid(matrix(*numbers), size(list(pictures.shape)), align_corners=of_grid)
        return F.grid_sample(pictures, grid, **sampling)

    return mistaken


def _everything_scaled(angle: Tensor, scale: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """The shift stretched as well."""
    return _matrix(angle, scale, right * scale, down * scale)


def _half_scaled(angle: Tensor, scale: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """The sine left as it is."""
    cos, sin = angle.cos() * scale, angle.sin()
    return torch.stack([cos, -sin, right, sin, cos, down], dim=1).view(-1, 2, 3)


def _noisy(pictures: Tensor, *numbers: Tensor) -> Tensor:
    """The script's noise kept."""
    return augment_batch(pictures, *numbers) + 0.1 * torch.randn_like(pictures)


_mean = lambda values: values.mean().expand(len(values))
_MINUS = "The minus belongs to the sine in the first row: [cos, -sin, right], [sin, cos, down]."
_BOTH_CORNERS = "align_corners=False, in affine_grid and in grid_sample, as in the script: the two must agree."
AUGMENT_MISTAKES = (
    ("One angle for all, the mean: each picture is turned by its own.", _by(lambda a, *rest: _matrix(_mean(a), *rest))),
    ("One set of numbers for all: each picture has its own.", _by(lambda *each: _matrix(*map(_mean, each)))),
    ("The first picture's numbers for all: each picture has its own.",)
    + (_by(lambda *each: _matrix(*(one[:1].expand(len(one)) for one in each))),),
    (_MINUS, _by(lambda a, *rest: _matrix(-a, *rest))),
    ("The scale is missing: cos and sin are both multiplied by it.",)
    + (_by(lambda a, s, *shift: _matrix(a, torch.ones_like(s), *shift)),),
    ("The scale multiplies cos and sin; here it divides them.", _by(lambda a, s, *shift: _matrix(a, 1 / s, *shift))),
    ("The scale multiplies both cos and sin.", _by(_half_scaled)),
    ("The scale multiplies cos and sin only; the shift stays as it is.", _by(_everything_scaled)),
    ("right and down are exchanged: right ends the first row, down the second.",)
    + (_by(lambda a, s, right, down: _matrix(a, s, down, right)),),
    ("The shift is missing: right ends the first row, down the second.",)
    + (_by(lambda a, s, right, down: _matrix(a, s, 0 * right, 0 * down)),),
    ('Outside a picture there are zeros: padding_mode="border".', _by(padding_mode="zeros")),
    (_BOTH_CORNERS, _by(grid_corners=True, align_corners=True)),
    (_BOTH_CORNERS, _by(align_corners=True)),
    (_BOTH_CORNERS, _by(grid_corners=True)),
    ('The nearest pixel alone: leave grid_sample its mode, "bilinear".', _by(mode="nearest")),
    ("Leave the noise out.", _noisy),
    ("Take height and width from pictures.shape.", _by(size=lambda shape: [*shape[:2], 48, 48])),
    ("Height comes before width: pictures.shape is (N, 1, H, W).", _by(size=lambda shape: [*shape[:2], *shape[:1:-1]])),
    ("Return one channel for each picture, as it came: [N, 1, H, W].", lambda *given: augment_batch(*given)[:, 0]),
)
