"""What a training step holds besides its states: a layer by the published formulas, and the peak of a whole step.

`layer_bytes` is what papers print, for sixteen-bit training with dropout. `phases` is exact for labkit.lm's own models:
it states them as named tensors, plays one step, and takes the largest of its phases, not the sum of its parts.
"""

from math import prod

from labkit.architecture import Architecture
from labkit.lm_sizes import GATHERED, Step
from labkit.states import PRECISIONS, Held, Plan, held, states
from labkit.tape import LEAF

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits")


def layer_bytes(arch: Architecture, plan: Plan) -> float:
    """Bytes that one layer keeps for its backward pass in 16 bits, as Korthikanti et al. count them.

    s tokens, b sequences, h width, a heads, t tensor-parallel ranks. For a two-matrix network, hidden 4h, heads as many
    as keys: sbh (10 + 24/t + 5as/(ht)), with sequence parallelism sbh/t (34 + 5as/h); selective recomputation (and
    flash attention, whose sums it leaves out) drops the last term; full: 2sbh. For grouped heads, gated or wider
    networks the same tensors are counted with their own sizes; dropout masks, a byte an element, are counted too.
    Source: Korthikanti et al., Reducing activation recomputation in large transformer models (arXiv:2205.05198),
    section 4, equations 1 to 6 and table 2.
    """
    tokens, h, t = plan.batch * plan.seq, arch.width, plan.tp
    if plan.recompute == "full":
        return 2 * tokens * h
    q, kv = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    hidden = arch.hidden * max(arch.experts_per_token, 1)
    whole = tokens * (2 * h + 2 * h + h) * 2  # inputs of attention, network and both norms; two masks
    split = tokens * 2 * (q + 2 * kv + q)  # q, k, v; the input of the last projection
    split += tokens * 2 * hidden * (4 if arch.gated else 2)  # around GELU; gate, its SiLU, up and their product
    scores = 5 * arch.heads * plan.seq * tokens  # softmax, its dropout, and a mask
    if plan.recompute == "selective" or plan.attention == "flash":
        scores = 0
    return whole / (t if plan.sequence_parallel else 1) + (split + scores) / t


def logits_bytes(arch: Architecture, plan: Plan) -> float:
    """Bytes of what the loss holds at its largest: logits, or their gradient, and three or two copies in 32 bits.

    Tensor parallelism splits the vocabulary. Sixteen-bit logits are widened, and their log-softmax is kept; its
    backward makes two more of that size, while the widened logits are gone.
    """
    work_bytes = PRECISIONS[plan.precision][4]
    return plan.batch * plan.seq * arch.vocab / plan.tp * max(4 * 3, 4 * 2 + (work_bytes if work_bytes < 4 else 0))


def tensors(arch: Architecture, plan: Plan, stage: int = 0) -> dict[str, dict[str, int]]:
    """Every phase of a step: bytes by name of all that lives at that phase's peak, on a rank of this pipeline stage.

    Exact for labkit.lm's models and train_step on one rank; splits are stated in the same terms. Ignores what kernels
    use inside, and messages on their way. ValueError, in one sentence, where the plan does not suit the model.
    """
    rest = states(arch, plan, stage)
    step = Step(arch, plan, stage)
    base = {"parameters": rest.parameters_bytes, "optimizer state": rest.optimizer_bytes}
    base["tokens"] = 8 * plan.batch * (plan.seq + 1)
    if not arch.positions:
        base["rotary tables"] = 4 * plan.seq * arch.head_width
    # Gradients that a micro-batch adds to; at the optimizer's step they are all there are.
    several = (plan.micro_batches or plan.pp) > 1
    sums = {f"{LEAF} of the micro-batches before": rest.gradients_bytes} if several else {}
    found = {phase: base | sums | live for phase, (_, live) in step.play().peaks.items()}
    found["optimizer step"] = base | {LEAF: rest.gradients_bytes} | _at_work(arch, plan, stage)
    return {phase: {name: round(n) for name, n in live.items() if n >= 0.5} for phase, live in found.items()}


def _at_work(arch: Architecture, plan: Plan, stage: int) -> dict[str, float]:
    """What an optimizer's step makes besides, by labkit.optimizers: gradients widened, and the update on its way.

    AdamW on all parameters at once: the square root of the second average, whole. Adafactor: its estimate of it. Muon:
    one matrix at a time: its momentum's update and four more copies in 16 bits. SGD and 8-bit Adam: nothing. Widened
    one after another, the last matrix's gradient stands beside its copy. Fused: one tensor is widened, and no more.
    """
    trained = [each for each in held(arch, plan, stage) if not each.bits]
    shards = plan.shards if plan.zero else 1
    n = sum(each.total for each in trained) / shards
    weight_bytes, gradient_bytes, master_bytes, element_bytes, _ = PRECISIONS[plan.precision]
    found, at_work = {}, [0.0]
    if master_bytes and gradient_bytes < 4:
        largest = max((_share(each, plan, n) for each in trained), default=0)
        found[f"{LEAF} widened"] = 4 * largest if plan.fused else (4 - gradient_bytes) * n
        at_work.append(0 if plan.fused else gradient_bytes * _share(_last_matrix(trained), plan, n))
    if plan.optimizer in ("adam", "adafactor"):
        at_work.append(0 if plan.fused else element_bytes * n)
    if plan.optimizer == "muon":
        blocks = [each for each in trained if len(each.shape) == 2 and each.part in ("attention", "mlp", "router")]
        rest = n - sum(each.total for each in blocks) / shards
        at_work += [_orthogonal_bytes(each, element_bytes) for each in blocks]
        at_work.append(0 if plan.fused else element_bytes * rest)
    return found | {"optimizer at work": max(at_work)}


def _share(each: Held, plan: Plan, n: float) -> float:
    """Elements of one tensor that a rank steps on: all it may hold of it, where shards are cut without regard to it."""
    return prod(each.shape) / plan.shards if plan.zero and plan.layout == "rows" else min(prod(each.shape), n)


def _last_matrix(trained: list[Held]) -> Held:
    """The last tensor of size among the parameters in order: the head, or else the last block's last matrix."""
    matrices = [each for each in trained if len(each.shape) == 2]
    heads = [each for each in matrices if each.part == "head"]
    return (heads or [each for each in matrices if each.part == "mlp"] or matrices)[-1]


def _orthogonal_bytes(each: Held, element_bytes: float) -> float:
    """Newton and Schulz's iteration on one matrix: the update, two versions of it in 16 bits, four small squares."""
    return (element_bytes + 4) * prod(each.shape) + 4 * 2 * min(each.shape) ** 2


def part_of(name: str) -> str:
    """The part, one of PARTS, that a tensor's name belongs to."""
    if name in ("parameters", GATHERED):
        return "parameters"
    if name.startswith(LEAF):
        return "gradients"
    if name.startswith("optimizer"):
        return "optimizer"
    return "logits" if "logits" in name else "activations"


def phases(arch: Architecture, plan: Plan, stage: int = 0) -> dict[str, dict[str, int]]:
    """Every phase of a step, in order, with its peak's bytes by part; the step's peak is the largest total."""
    found = {}
    for phase, live in tensors(arch, plan, stage).items():
        found[phase] = dict.fromkeys(PARTS, 0)
        for name, n_bytes in live.items():
            found[phase][part_of(name)] += n_bytes
    return found
