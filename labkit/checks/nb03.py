"""The checks of lesson 03: rounding to a format, a loss scaler, a long sum, and which format for which job."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import formats
from labkit.checker import Exercise, close, exact
from labkit.checks.rounding import ROUND_MISTAKES, round_cases, round_to
from labkit.checks.scaling import SCALER_MISTAKES, drive_scaler, scaler_cases
from labkit.precision import LossScaler

# ---- 3.3: a long sum ------------------------------------------------------------------------------------------------


def long_sum(chunks: list[Tensor]) -> Float[Tensor, ""]:
    """The float32 sum of many bf16 numbers, given in chunks; no chunk is copied to float32 whole."""
    total = torch.zeros((), dtype=torch.float32)
    for chunk in chunks:
        total += chunk.sum(dtype=torch.float32)
    return total


def _sum_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Two numbers; ones, of which bf16 counts 256; chunks of one; numbers whose chunk sums bf16 cannot hold."""
    n_chunks, n_single = (int(torch.randint(*ends, (), generator=rng)) for ends in ((30, 60), (3000, 4000)))
    ones = [torch.ones(100, dtype=torch.bfloat16) for _ in range(n_chunks)]
    single = list(torch.full((n_single,), 0.75, dtype=torch.bfloat16).split(1))
    random = [torch.rand(size, generator=rng).bfloat16() for size in (700, 1, 513, 64)]
    return [([torch.tensor([1.0, 2.0], dtype=torch.bfloat16)],), (ones,), (single,), (random,)]


def _in_bf16(chunks: list[Tensor]) -> Tensor:
    """Adds in bf16 throughout."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for chunk in chunks:
        total = total + chunk.sum()
    return total.float()


def _one_by_one_in_bf16(chunks: list[Tensor]) -> Tensor:
    """Adds number by number in bf16."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for value in torch.cat(chunks):
        total = total + value
    return total.float()


def _chunks_in_bf16(chunks: list[Tensor]) -> Tensor:
    """Rounds each chunk's sum to bf16, and adds those in float32."""
    return torch.stack([chunk.sum().float() for chunk in chunks]).sum()


def _rounded_at_the_end(chunks: list[Tensor]) -> Tensor:
    """The right sum, rounded to bf16."""
    return long_sum(chunks).bfloat16().float()


class _Widest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor held that any operation made, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.n_numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ARG002
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.n_numbers = max(self.n_numbers, out.numel())
        return out


def _no_large_copy(fn: Callable) -> str | None:
    """Says so where fn holds more than one chunk at once."""
    chunks = [torch.ones(256, dtype=torch.bfloat16) for _ in range(16)]
    with _Widest() as seen:
        fn(chunks)
    if seen.n_numbers <= 256:
        return None
    return (
        f"With 16 chunks of 256 it made a tensor of {seen.n_numbers:,} numbers. There is no room for all chunks at "
        "once: keep one float32 total, and add to it chunk by chunk."
    )


_SUM_MISTAKES = (
    ("The total is kept in bf16, which has 8 significant bits: make the total float32 before the loop.", _in_bf16),
    ("The total is kept in bf16, which stops counting ones at 256: make it float32.", _one_by_one_in_bf16),
    ("Each chunk's sum is rounded to bf16 before it is added: ask for it with dtype=torch.float32.", _chunks_in_bf16),
    ("The right total was rounded to bf16 at the end: return it in float32.", _rounded_at_the_end),
)

# ---- 3.4: which format ----------------------------------------------------------------------------------------------


def choose_format(machine: dict, job: dict) -> tuple[str, bool]:
    """(format, whether it needs a loss scaler), by the rules that lesson 03 states; `measure` where only timing tells.

    machine: kind (`cpu`, `cuda`), features (of a CPU), capability (of a GPU: a pair). job: training, batch,
    accuracy_checked. Sources: NVIDIA, CUDA C++ Programming Guide, compute capabilities; Intel, AMX in oneDNN.
    """
    if job["batch"] == 1:
        return "measure", False
    if machine["kind"] == "cpu":
        if "amx_bf16" in machine["features"]:
            return "bf16", False
        return ("measure" if "avx512_bf16" in machine["features"] else "fp32"), False
    capability = machine["capability"]
    if capability >= (8, 9) and not job["training"] and job["accuracy_checked"]:
        return "fp8", False
    if capability >= (8, 0):
        return "bf16", False
    if capability >= (7, 0):
        return "fp16", job["training"]
    return "fp32", False


_CPUS = ((), ("avx2",), ("avx2", "avx512f", "avx512_bf16"), ("avx512_bf16", "amx_bf16"), ("avx512f", "amx_bf16"))
_GPUS = ((6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))


def _choice_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A T4 in training first; then every machine with every kind of job, in an order that is drawn."""
    machines = [{"kind": "cuda", "features": (), "capability": each} for each in _GPUS]
    machines += [{"kind": "cpu", "features": each, "capability": None} for each in _CPUS]
    machines.sort(key=lambda machine: machine["capability"] != (7, 5))
    kinds = [(True, False), (False, False), (False, True), (True, True)]
    batches = (int(torch.randint(2, 500, (), generator=rng)), 1)
    jobs = [{"training": t, "batch": b, "accuracy_checked": c} for b in batches for t, c in kinds]
    first, *others = ((dict(machine), dict(job)) for job in jobs for machine in machines)
    return [first, *(others[i] for i in torch.randperm(len(others), generator=rng))]


def _other_choice(*, batch_first: bool = True, scaler: Callable | None = None, **change: object) -> Callable:
    """`choose_format` with one rule changed: the machine or job as `change` has it, or another rule for the scaler."""

    def mistaken(machine: dict, job: dict) -> tuple[str, bool]:
        altered = {**job, **{key: value for key, value in change.items() if key in job}}
        altered |= {} if batch_first else {"batch": 2}
        seen = {**machine, **{key: value for key, value in change.items() if key in machine}}
        chosen, needs = choose_format(seen, altered)
        return chosen, scaler(chosen, job) if scaler else needs

    return mistaken


def _t4_has_bf16(machine: dict, job: dict) -> tuple[str, bool]:
    """Believes a T4's emulated bf16."""
    chosen = choose_format(machine, job)
    return ("bf16", False) if chosen[0] == "fp16" else chosen


def _eight_is_enough_for_fp8(machine: dict, job: dict) -> tuple[str, bool]:
    """fp8 from capability 8.0 on."""
    first = machine["capability"]
    ampere = first is not None and (8, 0) <= first < (8, 9)
    return choose_format({**machine, "capability": (9, 0)} if ampere else machine, job)


_CHOICE_MISTAKES = (
    ("Rule 1 comes before all others: at batch 1 only a measurement tells.", _other_choice(batch_first=False)),
    ("A scaler protects gradients: without training there are none.",)
    + (_other_choice(scaler=lambda chosen, _job: chosen == "fp16"),),
    ("bf16 reaches as far down as fp32 does, so it needs no scaler; fp16 does.",)
    + (_other_choice(scaler=lambda chosen, job: job["training"] and chosen in ("fp16", "bf16")),),
    ("fp16 gradients underflow: training in fp16 needs the scaler.", _other_choice(scaler=lambda *_: False)),
    ("Before capability 8.0 a GPU has no bf16 units; torch may say so and emulate it.", _t4_has_bf16),
    ("Units for fp8 came with capability 8.9, not with 8.0.", _eight_is_enough_for_fp8),
    ("fp8 only where the accuracy has been checked in fp8.", _other_choice(accuracy_checked=True)),
)

EXERCISES = (
    Exercise(
        number="3.1",
        name="round_to",
        cases=round_cases,
        reference=round_to,
        compare=close(0.0, 0.0, "The nearest number of the format, its neighbours being 2**(exponent - bits) apart."),
        mistakes=ROUND_MISTAKES,
        library=(formats.round_to, formats.rounded),
        points=4,
        hints=(
            "Off by a factor of two: torch.frexp gives a mantissa in [0.5, 1), so its exponent is one too large.",
            "The spacing around x is 2 ** (exponent - mantissa_bits), the exponent being min_exponent at least.",
            "Divide by the spacing, torch.round, multiply; then torch.where(rounded.abs() > largest, ...), and "
            "torch.copysign for the sign of beyond.",
        ),
    ),
    Exercise(
        number="3.2",
        name="LossScaler",
        cases=scaler_cases,
        reference=LossScaler,
        # Times 1 / scale instead of / scale rounds once more: after forty steps the weights differ by 1e-6.
        compare=close(1e-4, 1e-5, "Unscale once, step only where all gradients are finite, then set the scale anew."),
        drive=drive_scaler,
        mistakes=SCALER_MISTAKES,
        points=5,
        hints=(
            "inf or NaN in a weight: isfinite().all() over every gradient, not the loss, decides whether to step.",
            "The scale is right at first and wrong later: good_steps returns to 0 after a skip and after growth.",
            "Gradients too small by the scale: unscale remembers in self.unscaled that it has run; step forgets it.",
        ),
    ),
    Exercise(
        number="3.3",
        name="long_sum",
        cases=_sum_cases,
        reference=long_sum,
        compare=close(1e-5, 1e-6, "One float32 total, to which each chunk's float32 sum is added."),
        mechanism=_no_large_copy,
        mistakes=_SUM_MISTAKES,
        strict_dtype=True,
        points=2,
        hints=(
            "It stops at 256: the total is bf16. Begin with torch.zeros((), dtype=torch.float32).",
            "Off in the third digit: chunk.sum() gives a bf16 number. sum takes dtype=torch.float32.",
        ),
    ),
    Exercise(
        number="3.4",
        name="choose_format",
        cases=_choice_cases,
        reference=choose_format,
        compare=exact,
        mistakes=_CHOICE_MISTAKES,
        points=2,
        hints=(
            "Go through the rules in their order and return at the first that applies.",
            "Pairs compare as you would wish: (7, 5) < (8, 0) < (8, 9) < (10, 0). As text or as floats they do not.",
        ),
    ),
)
