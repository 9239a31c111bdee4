"""Number formats: every pattern decoded and encoded as torch does it, rounding to the bit, scales by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import formats
from labkit.formats import BF16, E2M1, E4M3, E5M2, FORMATS, FP16, FP32, TF32, round_to

KNOWN_TO_TORCH = [each for each in FORMATS.values() if each.dtype]
SMALL = [BF16, FP16, E4M3, E5M2]
each_small = pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
each_known = pytest.mark.parametrize("fmt", KNOWN_TO_TORCH, ids=lambda fmt: fmt.name)
each_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)


def patterns(fmt):
    """Every bit pattern of a format of at most 16 bits, as numbers of its dtype."""
    whole = torch.arange(2**fmt.bits)
    return whole.to(torch.uint8 if fmt.bits == 8 else torch.uint16).view(fmt.dtype)


def cast(x, fmt):
    """torch's own rounding; before 2.12 what lay beyond e4m3's largest became NaN, where it saturates now."""
    back = x.to(fmt.dtype).float()
    return torch.where(back.isnan() & ~x.isnan(), fmt.largest * x.sign(), back) if fmt == E4M3 else back


def same(one, other):
    """Equal to the bit, the sign of a zero included; any NaN equals any other."""
    assert one.dtype == other.dtype == torch.float32
    lost = one.isnan() & other.isnan()
    return bool((lost | (one.view(torch.int32) == other.view(torch.int32))).all())


@each_known
def test_limits_are_torchs(fmt):
    info = torch.finfo(fmt.dtype)
    assert (fmt.largest, fmt.smallest_normal, fmt.epsilon, fmt.bits) == (info.max, info.tiny, info.eps, info.bits)


def test_limits_that_torch_does_not_know():
    assert (TF32.bits, TF32.min_exponent, TF32.epsilon) == (19, -126, 2**-10)
    table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP MX 1.0, table 5
    assert [formats.value_of(f"{i:04b}", E2M1) for i in range(8)] == table
    assert (E2M1.smallest, E2M1.smallest_normal, E2M1.largest) == (0.5, 1.0, 6.0)


@each_small
def test_every_pattern_is_a_number_that_rounding_leaves_alone(fmt):
    numbers = patterns(fmt).float()
    assert same(round_to(numbers, fmt), numbers) or fmt == E4M3
    decoded = torch.tensor([formats.value_of(f"{i:0{fmt.bits}b}", fmt) for i in range(2**fmt.bits)])
    assert same(decoded, numbers)


@each_small
def test_every_16_bit_pattern_rounds_as_torch_rounds_it(fmt):
    for source in (BF16, FP16):
        numbers = patterns(source).float()
        assert same(round_to(numbers, fmt), cast(numbers, fmt))


@each_small
def test_every_boundary_between_two_numbers_rounds_as_torch_rounds_it(fmt):
    finite = patterns(fmt).float()
    finite = finite[finite.isfinite()].sort().values
    middle = ((finite[1:].double() + finite[:-1].double()) / 2).float()
    around = torch.cat([middle, *(torch.nextafter(middle, torch.tensor(end)) for end in (-torch.inf, torch.inf))])
    assert same(round_to(around, fmt), cast(around, fmt))


@given(patterns=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64), exponent=st.integers(-150, 128))
@settings(max_examples=200, deadline=None)
def test_rounding_is_torchs_for_any_number(patterns, exponent):
    """Any bit pattern of fp32 (subnormals, infinities, NaN), and numbers and ties around one power of two."""
    raw = torch.tensor(patterns, dtype=torch.int64).to(torch.int32).view(torch.float32)
    ties = torch.tensor([(p % 4096) * math.ldexp(1.0, exponent - 11) for p in patterns], dtype=torch.float64).float()
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0**-149, 65519.99, 65520.0, 464.0, 61440.0])
    for x in (raw, ties, -ties, special):
        for fmt in KNOWN_TO_TORCH:
            assert same(round_to(x, fmt), cast(x, fmt)), fmt.name


@given(numbers=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=32))
@settings(max_examples=100, deadline=None)
def test_rounding_keeps_order_and_sign_and_changes_nothing_twice(numbers):
    x = torch.tensor(numbers, dtype=torch.float32).sort().values
    for fmt in FORMATS.values():
        once = round_to(x, fmt)
        assert (once.diff().nan_to_num() >= 0).all()
        assert torch.equal(once.signbit(), x.signbit())
        assert same(round_to(once, fmt), once)


@each_format
def test_special_numbers(fmt):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 1e38, fmt.smallest / 2, fmt.smallest * 0.75])
    got = round_to(x, fmt)
    assert got[:2].tolist() == [fmt.beyond, -fmt.beyond]
    assert got[2].isnan()
    assert got[3:4].signbit().all()
    assert got[5:].tolist() == [0.0, fmt.smallest]


def test_two_roundings_are_not_one():
    """Just above a tie of e4m3: fp16 in between loses the rest, and the tie then goes to the even side."""
    x = torch.tensor([1 + 2**-4 + 2**-14])
    assert round_to(x, E4M3).item() == 1.125
    assert round_to(round_to(x, FP16), E4M3).item() == 1.0


def test_float64_is_rounded_once():
    x = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    assert round_to(x, BF16).item() == 1 + 2**-7


def test_spacing_grows_with_the_number_and_stops_shrinking_at_the_smallest():
    x = torch.tensor([0.0, FP16.smallest, 1.0, 1.999, 2.0, 65504.0])
    assert formats.spacing(x, FP16).tolist() == [2.0**-24, 2.0**-24, 2.0**-10, 2.0**-10, 2.0**-9, 32.0]
    assert formats.spacing(torch.tensor([torch.inf, torch.nan]), FP16).tolist() == [1.0, 1.0]


@each_format
@given(value=st.floats(allow_subnormal=True))
@settings(max_examples=60, deadline=None)
def test_fields_and_value_are_inverse(fmt, value):
    if fmt == E2M1 and math.isnan(value):
        with pytest.raises(ValueError, match="no NaN"):
            formats.fields(value, fmt)
        return
    bits = formats.fields(value, fmt)
    assert [len(part) for part in bits] == [1, fmt.exponent_bits, fmt.mantissa_bits]
    back, expected = formats.value_of("".join(bits), fmt), formats.rounded(value, fmt)
    assert (math.isnan(back) and math.isnan(expected)) or str(back) == str(expected)


def test_fields_by_hand():
    assert formats.fields(1.0, FP16) == ("0", "01111", "0000000000")
    assert formats.fields(-2.5, BF16) == ("1", "10000000", "0100000")
    assert formats.fields(FP16.smallest, FP16) == ("0", "00000", "0000000001")
    assert formats.fields(math.nan, E4M3) == ("0", "1111", "111")
    assert formats.fields(math.inf, E5M2) == ("0", "11111", "00")
    with pytest.raises(ValueError, match="4 bits, not 3"):
        formats.value_of("010", E2M1)


@each_format
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.3, 448.0, -6.0, 1e-40])
def test_neighbours_are_one_step_away(fmt, value):
    here = formats.rounded(value, fmt)
    above, below = formats.neighbour(value, fmt, 1), formats.neighbour(value, fmt, -1)
    assert below < here < above or abs(here) == fmt.largest
    if above != here:
        assert formats.neighbour(above, fmt, -1) == here
        between = torch.tensor((here + above) / 2, dtype=torch.float64)
        assert round_to(between, fmt).item() in (here, above)
    assert formats.neighbour(math.inf, FP16, 1) == math.inf


def test_a_scale_for_all_meets_the_largest():
    x = torch.tensor([[3.0, -12.0], [0.75, 0.0]])
    assert formats.scaled_round(x, E2M1).tolist() == [[3.0, -12.0], [1.0, 0.0]]


def test_power_of_two_scales_by_hand():
    """MX: the largest, 7, lies in [4, 8), as 6 does, so the scale is 1 and 7 saturates; 0.11 gets 2**-6."""
    x = torch.tensor([7.0, 1.2, 0.11, 0.05])
    assert formats.scaled_round(x, E2M1, block=2, scales="e8m0").tolist() == [6.0, 1.0, 0.09375, 0.046875]
    assert formats.bits_per_number(E2M1, block=32, scales="e8m0") == 4.25


def test_nvfp4_by_hand():
    """Block largest 6 and 1.5: over all 6/(6 448); block scales 448 and 112 are numbers of e4m3, so 1.5 is kept."""
    x = torch.tensor([6.0, 1.0, 1.5, 0.75])
    back = formats.scaled_round(x, E2M1, block=2, scales="e4m3")
    torch.testing.assert_close(back, x, rtol=1e-6, atol=0)
    assert formats.bits_per_number(E2M1, block=16, scales="e4m3") == 4.5
    assert formats.bits_per_number(E4M3) == 8


@pytest.mark.parametrize("scales", ["fp32", "e8m0", "e4m3"])
def test_zeros_stay_zeros_and_shapes_and_dtypes_stay(scales):
    x = torch.zeros(3, 64, dtype=torch.bfloat16)
    x[1, :32] = 1.0
    back = formats.scaled_round(x, E2M1, block=32, scales=scales)
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    assert not back[0].any()
    assert back[1, :32].float().sub(1).abs().max() < 0.01


def test_the_error_of_a_block_is_bounded_by_half_the_widest_gap():
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    for fmt, scales in ((E4M3, "fp32"), (E2M1, "fp32"), (E2M1, "e4m3")):
        error = (formats.scaled_round(x, fmt, block=16, scales=scales) - x).abs().reshape(-1, 16)
        widest = formats.spacing(torch.tensor(fmt.largest), fmt).item() / fmt.largest
        assert (error.amax(-1) <= 0.57 * widest * x.reshape(-1, 16).abs().amax(-1)).all()


def test_wrong_blocks_and_scales_are_refused():
    with pytest.raises(ValueError, match="do not divide"):
        formats.scaled_round(torch.ones(10), E2M1, block=16)
    with pytest.raises(ValueError, match="not 'int8'"):
        formats.scaled_round(torch.ones(10), E2M1, scales="int8")


@pytest.mark.parametrize("block", [0, -1])
def test_a_block_of_nothing_is_refused(block):
    with pytest.raises(ValueError, match="at least one number"):
        formats.scaled_round(torch.ones(10), E2M1, block=block)
    with pytest.raises(ValueError, match="at least one number"):
        formats.bits_per_number(E2M1, block=block)
    with pytest.raises(ValueError, match="not 'int8'"):
        formats.bits_per_number(E2M1, block=16, scales="int8")


each_scale = pytest.mark.parametrize("scales", ["fp32", "e8m0", "e4m3"])


@each_format
@each_scale
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_no_scale_makes_a_finite_number_infinite(fmt, scales, dtype):
    """Where the block's largest number is beyond the format's largest after division, it saturates: MX 1.0, 6.3."""
    limits, generator = torch.finfo(dtype), torch.Generator().manual_seed(0)
    small = torch.full((2, 32), -limits.smallest_normal / 64, dtype=dtype)
    for x in (torch.randn(500, 32, generator=generator).to(dtype), torch.full((2, 32), limits.max, dtype=dtype), small):
        assert formats.scaled_round(x, fmt, block=32, scales=scales).isfinite().all()


def test_beyond_the_largest_it_saturates():
    back = formats.scaled_round(torch.tensor([1.999, 1.0]), E5M2, block=2, scales="e8m0")
    assert back.tolist() == [1.75, 1.0]
    tiny = formats.scaled_round(torch.tensor([-1e-39], dtype=torch.bfloat16), FP16)
    assert tiny.item() == pytest.approx(-1e-39, rel=0.05)


@each_format
@each_scale
@pytest.mark.parametrize("lost", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_comes_back_and_changes_nothing_else(fmt, scales, lost):
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    without, x[2, 5] = x.clone(), lost
    without[2, 5] = 0.0
    for block in (None, 16):
        back = formats.scaled_round(x, fmt, block=block, scales=scales)
        expected = formats.scaled_round(without, fmt, block=block, scales=scales)
        expected[2, 5] = lost
        assert same(back, expected)
    assert same(formats.scaled_round(x[2, 5:6], fmt, scales=scales), x[2, 5:6])


def test_a_block_whose_scale_underflows_becomes_zeros():
    """Its scale, 6e-5/448 of the largest one, is less than half the smallest number of e4m3."""
    x = torch.tensor([1.0, 0.5, 1e-6, -1e-6])
    back = formats.scaled_round(x, FP16, block=2, scales="e4m3")
    assert back[:2].tolist() == pytest.approx([1.0, 0.5], rel=1e-3)
    assert back[2:].tolist() == [0.0, 0.0]
    assert back.signbit().tolist() == [False, False, False, True]


@each_scale
def test_nothing_and_a_single_number_have_shapes_too(scales):
    assert formats.scaled_round(torch.empty(3, 0), E2M1, block=16, scales=scales).shape == (3, 0)
    assert formats.scaled_round(torch.empty(0, 32), E2M1, block=16, scales=scales).shape == (0, 32)
    one = formats.scaled_round(torch.tensor(3.0), E2M1, scales=scales)
    assert (one.shape, one.item()) == ((), pytest.approx(3.0))
    with pytest.raises(ValueError, match="do not divide a dimension of 1"):
        formats.scaled_round(torch.tensor(3.0), E2M1, block=16)


def test_rounding_has_no_gradient():
    x = torch.tensor([0.1, 3.3], requires_grad=True)
    assert not round_to(x, FP16).requires_grad
    assert not formats.scaled_round(x, FP16).requires_grad
    assert formats.rounded(x[0], E2M1) == 0.0


def test_fp32_keeps_every_number_of_its_own():
    x = torch.randn(1000)
    assert torch.equal(round_to(x, FP32), x)
