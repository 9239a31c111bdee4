"""Exercise 3.1, rounding to a format: its reference, its cases, and what is done wrong."""

from collections.abc import Callable, Sequence
from math import inf, nan

import torch
from jaxtyping import Float
from torch import Tensor

from labkit import formats


def round_to(
    x: Float[Tensor, "N"], mantissa_bits: int, min_exponent: int, largest: float, beyond: float
) -> Float[Tensor, "N"]:
    """Each number rounded to the nearest of a format, ties to even, as float32; `formats.round_to` with its parts."""
    exponent_bits = (2 - min_exponent).bit_length()
    parts = {"exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits, "largest": largest, "beyond": beyond}
    return formats.round_to(x, formats.Format(name="", **parts))


def _parts(of: formats.Format) -> tuple:
    """A format as `round_to` takes it."""
    return of.mantissa_bits, of.min_exponent, of.largest, of.beyond


def round_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Three numbers; ties; subnormal numbers; both ends; a tie that a second rounding misses; random bits of fp32.

    Beyond fp16's largest comes first what it would be with one exponent more: were it inf, a number compared before it
    is rounded would be inf where the answer is finite, and nothing could be said of why.
    """
    fp16, bf16, e4m3, e2m1 = (formats.FORMATS[name] for name in ("fp16", "bf16", "e4m3", "e2m1"))
    few, ties = torch.tensor([0.1, 0.7, 3.3]), torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-11), 2.5])
    small = torch.tensor([2**-24, 2**-25, 1.5 * 2**-24, 0.75 * 2**-24, -5.3 * 2**-24, 2**-14, 0.0])
    ends = torch.tensor([65504.0, 65519.0, 65520.0, 1e6, -1e6, inf, -inf, nan])
    marked = (ends[:5], fp16.mantissa_bits, fp16.min_exponent, fp16.largest, 2.0**16)
    saturating = torch.tensor([448.0, 463.0, 465.0, 1e6, -1e6, inf])
    twice = torch.tensor([1 + 2**-4 + 2**-14, 1 + 2**-8 + 2**-20, 1.1, 1.99])
    listed = [
        *((few, *_parts(each)) for each in (fp16, bf16)),
        *((ties, *_parts(each)) for each in (fp16, e2m1)),
        *((small, *_parts(fp16)), (small[:3] * 2**15, *_parts(e4m3)), (torch.tensor([2.0**-133]), *_parts(bf16))),
        *(marked, (ends, *_parts(fp16)), (saturating, *_parts(e4m3)), (twice, *_parts(e4m3)), (twice, *_parts(bf16))),
    ]
    return [*listed, *((_any_bits(rng, 400), *_parts(each)) for each in formats.FORMATS.values())]


def _any_bits(rng: torch.Generator, n: int) -> Float[Tensor, "N"]:
    """n numbers of float32: a quarter of any bits, the others between 2**-20 and 2**20."""
    bits = torch.randint(-(2**31), 2**31, (n // 4,), generator=rng).to(torch.int32).view(torch.float32)
    sizes = torch.exp2(40 * torch.rand(n - n // 4, generator=rng) - 20)
    return torch.cat([bits, sizes * (torch.randint(0, 2, sizes.shape, generator=rng) * 2 - 1)])


def _mistaken_rounding(
    *,
    to_whole: Callable[[Tensor], Tensor] = torch.round,
    subnormal: str = "kept",
    overflow: str = "beyond",
    before: int | None = None,
    one_more: int = 0,
    infinite: str = "kept",
) -> Callable:
    """`round_to` with one part replaced."""

    def mistaken(x, mantissa_bits, min_exponent, largest, beyond):
        wide = x.double() if before is None else formats.round_to(x, formats.FP16 if before == 16 else formats.BF16)
        wide = wide.double()
        exponent = torch.where(wide == 0, min_exponent, wide.frexp().exponent - 1)
        exponent = exponent if subnormal == "too fine" else exponent.clamp(min=min_exponent)
        step = torch.exp2((exponent + one_more - mantissa_bits).double())
        rounded = to_whole(wide / step) * step
        if infinite == "lost":
            rounded = rounded.masked_fill(wide.isinf(), nan)
        if subnormal == "lost":
            rounded = torch.where(rounded.abs() < 2.0**min_exponent, 0.0, rounded)
        instead = {"inf": inf, "largest": largest}.get(overflow, beyond)
        tested = wide if overflow == "before" else rounded
        return torch.where(tested.abs() > largest, torch.full_like(wide, instead).copysign(wide), rounded).float()

    return mistaken


def _half_up(x: Tensor) -> Tensor:
    """To the nearest whole number, a half upwards."""
    return (x + 0.5).floor()


def _half_away(x: Tensor) -> Tensor:
    """To the nearest whole number, a half away from zero."""
    return (x.abs() + 0.5).floor().copysign(x)


_TIE = "A tie, half-way between two numbers, goes to the even mantissa, not always up: torch.round does so."
_SUBNORMAL = "Below the smallest normal number the spacing no longer shrinks: the exponent is at least min_exponent."
_TWICE = "Rounded twice: to another 16-bit format first. The first rounding makes a tie that was none."
ROUND_MISTAKES = (
    ("The digits are cut off: round to the nearest number.", _mistaken_rounding(to_whole=torch.trunc)),
    (_TIE, _mistaken_rounding(to_whole=_half_up)),
    (_TIE, _mistaken_rounding(to_whole=_half_away)),
    ("Subnormal numbers are lost: below 2**min_exponent there are more, evenly spaced.",)
    + (_mistaken_rounding(subnormal="lost"),),
    (_SUBNORMAL, _mistaken_rounding(subnormal="too fine")),
    ("One bit too few: torch.frexp's mantissa lies in [0.5, 1), so its exponent is one more than the format's.",)
    + (_mistaken_rounding(one_more=1),),
    ("What is too large becomes `beyond`, which is not inf in every format.", _mistaken_rounding(overflow="inf")),
    ("What is too large becomes `beyond`, which is not `largest` in every format: clamping at `largest` loses it.",)
    + (_mistaken_rounding(overflow="largest"),),
    ("inf / inf is NaN: put infinities aside, or use torch.frexp, whose exponent of inf is a finite number.",)
    + (_mistaken_rounding(infinite="lost"),),
    ("Round first, then compare with `largest`: 65519 rounds down to 65504.", _mistaken_rounding(overflow="before")),
    (_TWICE, _mistaken_rounding(before=16)),
    (_TWICE, _mistaken_rounding(before=7)),
)
