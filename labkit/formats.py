"""Number formats bit by bit: their fields and limits, rounding to any of them, and blocks that share a scale.

Rounding works in float64, where every step of it is exact, so the result is right to the last bit on every device.
Sources: IEEE 754-2019, sections 3.4 and 4.3; OCP 8-bit Floating Point Specification 1.0 (2023); OCP Microscaling
Formats Specification 1.0 (2023), sections 5 and 6; NVIDIA, A100 Tensor Core GPU Architecture (2020), for TF32.
"""

from dataclasses import dataclass
from math import copysign, frexp, inf, isfinite, isinf, isnan, ldexp, nan

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format: a sign bit, an exponent, a mantissa whose leading 1 is not stored.

    beyond: what a number becomes that rounds to more than `largest`: inf, or `largest` where the format saturates.
    infinite: whether the topmost exponent is kept for inf and NaN. dtype: torch's name for it, None where it has none.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float
    beyond: float = inf
    infinite: bool = True
    dtype: torch.dtype | None = None

    @property
    def bits(self) -> int:
        """How many bits a number takes, of which tf32 stores 19 in 32."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number, and of all subnormal ones."""
        return 1 - self.bias

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a full mantissa."""
        return 2.0**self.min_exponent

    @property
    def smallest(self) -> float:
        """The smallest positive number: the last subnormal one before zero."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits


FP32 = Format(name="fp32", exponent_bits=8, mantissa_bits=23, largest=(2 - 2**-23) * 2.0**127, dtype=torch.float32)
TF32 = Format(name="tf32", exponent_bits=8, mantissa_bits=10, largest=(2 - 2**-10) * 2.0**127)
BF16 = Format(name="bf16", exponent_bits=8, mantissa_bits=7, largest=(2 - 2**-7) * 2.0**127, dtype=torch.bfloat16)
FP16 = Format(name="fp16", exponent_bits=5, mantissa_bits=10, largest=65504.0, dtype=torch.float16)
E5M2 = Format(name="e5m2", exponent_bits=5, mantissa_bits=2, largest=57344.0, dtype=torch.float8_e5m2)
_FINITE = {"infinite": False}  # e4m3 keeps one pattern for NaN, e2m1 none; neither has an infinity
E4M3 = Format(
    name="e4m3", exponent_bits=4, mantissa_bits=3, largest=448.0, beyond=448.0, dtype=torch.float8_e4m3fn, **_FINITE
)
E2M1 = Format(name="e2m1", exponent_bits=2, mantissa_bits=1, largest=6.0, beyond=6.0, **_FINITE)
FORMATS = {each.name: each for each in (FP32, TF32, BF16, FP16, E4M3, E5M2, E2M1)}


def round_to(x: Float[Tensor, "*S"], to: Format) -> Float[Tensor, "*S"]:
    """Each number of x rounded to the nearest that the format has, ties to the even mantissa; as float32.

    Subnormal numbers are kept, NaN stays NaN, and what rounds beyond the largest becomes `to.beyond`, with its sign.
    e2m1 has no NaN: here it keeps one, so that a mistake is not lost. Equals torch's casts from 2.12 on; earlier ones
    turn what is beyond e4m3's largest into NaN (pytorch/pytorch#178817). tf32 is rounded to even as well, as Intel's
    conversion does (SPV_INTEL_tensor_float32_conversion); PTX's cvt.rna.tf32.f32 rounds ties away from zero.
    Works on x.detach(): a staircase has no useful gradient (`precision.emulate` passes gradients through it).
    """
    wide = x.detach().double()
    step = spacing(wide, to)
    rounded = (wide / step).round() * step  # dividing by a power of two is exact; torch rounds halves to even
    beyond = torch.full_like(wide, to.beyond).copysign(wide)
    return torch.where(rounded.abs() > to.largest, beyond, rounded).float()


def spacing(x: Float[Tensor, "*S"], to: Format) -> Float[Tensor, "*S"]:
    """The distance between neighbours in the format around each number of x, as float64; 1 at inf and NaN."""
    finite = torch.where(x.isfinite(), x.double(), 2.0**to.mantissa_bits)
    exponent = finite.frexp().exponent - 1  # frexp's mantissa lies in [0.5, 1); that of 0 says nothing
    exponent = torch.where(finite == 0, to.min_exponent, exponent).clamp(min=to.min_exponent)
    return _power_of_two(exponent - to.mantissa_bits)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent as float64, put together from its bits, for pow is not exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def rounded(value: float | Float[Tensor, ""], to: Format) -> float:
    """One number rounded to the format; no gradient, as `round_to`."""
    return round_to(torch.as_tensor(value, dtype=torch.float64), to).item()


def fields(value: float, to: Format) -> tuple[str, str, str]:
    """Sign, exponent and mantissa of a number, rounded to the format, as strings of 0 and 1.

    ValueError: NaN for e2m1, which has none.
    """
    value = rounded(value, to)
    sign = "1" if copysign(1, value) < 0 else "0"
    if isnan(value) and to == E2M1:
        raise ValueError("e2m1 has no NaN")
    if isnan(value) or isinf(value):
        top = 2**to.mantissa_bits - 1 if not to.infinite else 2 ** (to.mantissa_bits - 1)
        stored, mantissa = 2**to.exponent_bits - 1, top if isnan(value) else 0
    else:
        step = spacing(torch.tensor(value, dtype=torch.float64), to).item()
        whole = round(abs(value) / step)  # the mantissa with its leading digit, which is 0 in a subnormal number
        normal = whole >= 2**to.mantissa_bits
        stored = frexp(abs(value))[1] - 1 + to.bias if normal else 0
        mantissa = whole % 2**to.mantissa_bits
    return sign, f"{stored:0{to.exponent_bits}b}", f"{mantissa:0{to.mantissa_bits}b}"


def value_of(bits: str, of: Format) -> float:
    """The number that a string of `of.bits` zeros and ones stands for. ValueError: another length."""
    if len(bits) != of.bits:
        raise ValueError(f"{of.name} has {of.bits} bits, not {len(bits)}")
    sign = -1.0 if bits[0] == "1" else 1.0
    stored, mantissa = int(bits[1 : 1 + of.exponent_bits], 2), int(bits[1 + of.exponent_bits :], 2)
    if of.infinite and stored == 2**of.exponent_bits - 1:
        return nan if mantissa else sign * inf
    hidden, exponent = (1, stored - of.bias) if stored else (0, of.min_exponent)
    value = ldexp(hidden + mantissa * of.epsilon, exponent)
    return sign * value if value <= of.largest else nan


def neighbour(value: float, of: Format, direction: int) -> float:
    """The next number of the format above (direction 1) or below (-1) a number, rounded first; at an end, itself."""
    value = rounded(value, of)
    if not isfinite(value) or value == direction * of.largest:
        return value
    pattern = int("".join(fields(value, of)), 2)
    top = 1 << (of.bits - 1)
    place = top - pattern if pattern >= top else pattern  # patterns of one sign are in the order of their numbers
    size = abs(place + direction)
    return value_of(f"{size | (top if place + direction < 0 else 0):0{of.bits}b}", of)


def scaled_round(
    x: Float[Tensor, "*S"], to: Format, *, block: int | None = None, scales: str = "fp32"
) -> Float[Tensor, "*S"]:
    """x as it comes back from storage in the format, where numbers that share a scale are divided by it first.

    block: how many neighbours along the last dimension share a scale; None: all of x. scales: `fp32`, exact, the
    largest number meets the format's largest; `e8m0`, a power of two (MX, section 6.3: floor of the largest one's
    exponent, less the format's own); `e4m3`, with one fp32 scale for all of x (NVFP4). What a scale leaves beyond the
    format's largest becomes that largest, never inf; a block whose scale underflows becomes zeros. inf and NaN come
    back as they are and have no part in any scale. Not differentiable, as `round_to`.
    ValueError: a block below 1 or one that does not divide the last dimension, unknown scales.
    Source: OCP MX 1.0 (2023); NVIDIA, Introducing NVFP4 (2025).
    """
    _scale_bits(block, scales)
    last = x.shape[-1] if x.ndim else 1
    if block is not None and last % block:
        raise ValueError(f"blocks of {block} do not divide a dimension of {last}")
    if not x.numel():
        return x.detach().clone()
    wide = x.detach().reshape(-1, block or x.numel()).double()
    scale = _scale(wide.abs().where(wide.isfinite(), 0.0).amax(-1, keepdim=True), to, scales)
    parts = (wide / scale.masked_fill(scale == 0, inf)).clamp(-to.largest, to.largest)
    limit = torch.finfo(x.dtype).max  # a scale that was rounded up may carry x's largest number beyond its dtype
    back = (round_to(parts, to) * scale).clamp(-limit, limit)
    return back.where(wide.isfinite(), wide).to(x.dtype).reshape(x.shape)


def _scale(largest: Float[Tensor, "G 1"], to: Format, scales: str) -> Float[Tensor, "G 1"]:
    """What each group is divided by, as float64; 0 where it underflows, as it does for a group of zeros."""
    exact = largest / to.largest
    if scales == "fp32":
        return exact.clamp(max=FP32.largest).float().double()
    if scales == "e8m0":
        top = frexp(to.largest)[1] - 1
        return _power_of_two((largest.frexp().exponent - 1 - top).clamp(-127, 127))
    over_all = (exact.max() / E4M3.largest).clamp(torch.finfo(torch.float32).tiny, FP32.largest).float().double()
    return round_to(exact / over_all, E4M3).double() * over_all


def _scale_bits(block: int | None, scales: str) -> int:
    """Bits of one block's scale. ValueError: a block below 1, unknown scales."""
    if block is not None and block < 1:
        raise ValueError(f"a block holds at least one number, not {block}")
    widths = {"fp32": 32, "e8m0": 8, "e4m3": 8}
    if scales not in widths:
        raise ValueError(f"scales are 'fp32', 'e8m0' or 'e4m3', not {scales!r}")
    return widths[scales]


def bits_per_number(to: Format, *, block: int | None = None, scales: str = "fp32") -> float:
    """Bits of storage for each number, its share of the block's scale included; scales of a whole tensor count as 0.

    ValueError: a block below 1, unknown scales.
    """
    width = _scale_bits(block, scales)
    return to.bits + (width / block if block else 0.0)
