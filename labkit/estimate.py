"""What a training step takes at its peak, by part, on the rank that needs most.

Of an `Architecture`: the closed form of labkit.activations. Of a torch module: live tensors of one step without data.
What a card holds besides tensors is a part of its own, and assumed.
"""

from dataclasses import dataclass

from labkit import activations, activations_hf
from labkit.activations import PARTS
from labkit.architecture import Architecture
from labkit.states import Plan, check, states

OVERHEAD = {"CUDA context": 500 * 2**20, "NCCL buffers": 512 * 2**20}
"""What a process takes on a card before and beside its tensors, NCCL's only with other ranks. Both are assumed: nothing
here was measured, and no source says so. They vary by card, driver, library and number of communicators."""
SLACK = 0.05
"""Assumed too, not measured: the share of the tensors' bytes that the caching allocator holds besides."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes of one rank at the peak of a step, which its phase names; the parts add up to total_bytes.

    phases: the total of every phase. stage: the pipeline stage that needs most.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    overhead_bytes: int
    phase: str
    stage: int
    phases: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        parts = (self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes)
        return sum(parts) + self.activations_bytes + self.logits_bytes + self.overhead_bytes


def estimate(model: object, plan: Plan, *, overhead: bool = True, implementation: str = "labkit") -> Estimate:
    """Bytes at the peak of a step, of the rank and pipeline stage that need most.

    model: an Architecture; a torch module from tokens to logits, whose step is run without data, and whose activations
    then include the logits; or a bare number of parameters, of which only the states are known.
    implementation: whose code runs, "labkit" (labkit.lm) or "transformers" (its Llama and Qwen).
    ValueError, in one sentence, where the plan does not suit the model, or implementation is neither.
    """
    if implementation not in ("labkit", "transformers"):
        raise ValueError(f'implementation is "labkit" or "transformers", not {implementation!r}.')
    if isinstance(model, Architecture):
        check(model, plan)
        form = activations if implementation == "labkit" else activations_hf
        # A stage between the ends holds no more micro-batches than the first, and neither embedding nor logits.
        found = [_at_peak(_moments(form, model, plan, stage), plan, stage, overhead) for stage in {0, plan.pp - 1}]
        return max(found, key=lambda each: each.total_bytes)
    if isinstance(model, int):
        rest = states(model, plan)
        held = dict(zip(PARTS, (rest.parameters_bytes, rest.gradients_bytes, rest.optimizer_bytes, 0, 0), strict=True))
        return _at_peak({"at rest": held}, plan, 0, overhead)
    return _at_peak({"a step": _module(model, plan)}, plan, 0, overhead)


def _moments(form, arch: Architecture, plan: Plan, stage: int) -> dict[str, dict[str, int]]:
    """Each phase's bytes by part; transformers' form knows one stage."""
    return form.phases(arch, plan, stage) if form is activations else form.phases(arch, plan)


def _at_peak(phases: dict[str, dict[str, int]], plan: Plan, stage: int, overhead: bool) -> Estimate:
    """The estimate of one pipeline stage, from each phase's bytes by part."""
    totals = {phase: sum(parts.values()) for phase, parts in phases.items()}
    fixed = OVERHEAD["CUDA context"] + (OVERHEAD["NCCL buffers"] if plan.ranks > 1 else 0)
    beside = {phase: fixed + int(SLACK * total) if overhead else 0 for phase, total in totals.items()}
    phase = max(totals, key=totals.__getitem__)
    return Estimate(
        **{f"{part}_bytes": phases[phase][part] for part in PARTS}, overhead_bytes=beside[phase],
        phase=phase, stage=stage, phases={name: totals[name] + beside[name] for name in totals},
    )  # fmt: skip


def _module(model: object, plan: Plan) -> dict[str, int]:
    """Bytes by part of a module's peak; where ZeRO splits its states, less by what they are smaller."""
    from torch import nn

    from labkit import live

    if not isinstance(model, nn.Module):
        raise ValueError(f"a model is an Architecture, a torch module or a number, not a {type(model).__name__}.")
    kinds = live.module_peak(model, plan).by_category
    shapes = [tuple(p.shape) for p in model.parameters() if p.requires_grad]
    alone = {"zero": 0, "ranks": 1, "tp": 1, "pp": 1, "sequence_parallel": False, "shard_ranks": 0}
    whole, mine = states(shapes, Plan(**vars(plan) | alone)), states(shapes, plan)
    return {
        "parameters": kinds["parameters"] + kinds["buffers"] + mine.parameters_bytes - whole.parameters_bytes,
        "gradients": max(kinds["gradients"] + mine.gradients_bytes - whole.gradients_bytes, 0),
        "optimizer": kinds["optimizer"] + kinds["other"] + mine.optimizer_bytes - whole.optimizer_bytes,
        "activations": kinds["activations"] + kinds["temporaries"],
        "logits": 0,
    }
