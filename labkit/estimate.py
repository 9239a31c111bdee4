"""What a training step takes at its peak, by part and per rank: states at rest, activations, logits, overhead."""

from dataclasses import dataclass

from labkit.architecture import Architecture
from labkit.states import PRECISIONS, Plan, check, states

OVERHEAD = {"CUDA context": 500 * 2**20, "NCCL buffers": 500 * 2**20}
"""Assumed, not measured: what a process takes on a card before and beside its tensors; NCCL's only with other ranks."""
SLACK = 0.05
"""Assumed, not measured: the share of the tensors' bytes that the caching allocator holds besides."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes of one rank at the peak of a step, which its phase names; the parts add up to total_bytes."""

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


def estimate(model: Architecture | int, plan: Plan, *, overhead: bool = True) -> Estimate:
    """Bytes at the peak of a step, of the rank and pipeline stage that need most; a bare number: of the states alone.

    ValueError, in one sentence, where the plan does not suit the model.
    """
    n_stages = plan.pp if isinstance(model, Architecture) else 1
    found = (_of_stage(model, plan, stage, overhead) for stage in range(n_stages))
    return max(found, key=lambda each: each.total_bytes)


def _of_stage(model: Architecture | int, plan: Plan, stage: int, overhead: bool) -> Estimate:
    """The estimate of one pipeline stage."""
    rest = states(model, plan, stage)
    activations = logits = 0
    if isinstance(model, Architecture):
        check(model, plan)
        in_flight = min(plan.pp - stage, plan.micro_batches or plan.pp)
        activations = in_flight * model.layers // plan.pp * _layer_bytes(model, plan)
        last = stage == plan.pp - 1
        logits = last * plan.batch * plan.seq * model.vocab // plan.tp * (2 * PRECISIONS[plan.precision][4] + 4)
    tensors = rest.total_bytes + activations + logits
    extra = 0
    if overhead:
        extra = OVERHEAD["CUDA context"] + (OVERHEAD["NCCL buffers"] if plan.ranks > 1 else 0) + int(SLACK * tensors)
    return Estimate(
        **vars(rest), activations_bytes=activations, logits_bytes=logits, overhead_bytes=extra,
        phase="loss backward", stage=stage, phases={"loss backward": tensors + extra},
    )  # fmt: skip


def _layer_bytes(arch: Architecture, plan: Plan) -> int:
    """Bytes that one block keeps for its backward pass, about."""
    tokens, element = plan.batch * plan.seq, PRECISIONS[plan.precision][4]
    if plan.recompute == "full":
        return tokens * arch.width * element // (plan.tp if plan.sequence_parallel else 1)
    whole = 4 * arch.width  # inputs of two norms, of the attention and of the MLP
    heads = (2 * arch.heads + 2 * arch.kv_heads) * arch.head_width  # queries, outputs; keys, values
    inside = (4 if arch.gated else 2) * arch.hidden * max(arch.experts_per_token, 1)
    scores = 2 * arch.heads * plan.seq if plan.attention == "math" and plan.recompute == "none" else 0
    whole //= plan.tp if plan.sequence_parallel else 1
    return tokens * element * (whole + (heads + inside + scores) // plan.tp)
