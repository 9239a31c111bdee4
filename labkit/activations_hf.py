"""Live bytes of a training step of Hugging Face's Llama and Qwen (2.5, 3), phase by phase, in closed form.

Stated for transformers' own code, nothing fused: attention by scaled_dot_product_attention, no KV cache (as its Trainer
sets it), and a step that holds the model's output object, and so the logits, until it ends. Left out: what a kernel
needs inside, the allocator, and tables of a few kilobytes. transformers itself is not needed here.
Read from: transformers 5.24, models/llama, models/qwen2, models/qwen3, loss/loss_utils.py.
"""

from dataclasses import dataclass
from math import prod

from labkit.architecture import Architecture, count, parameters, weights
from labkit.states import PRECISIONS, Plan, check, states


@dataclass(frozen=True)
class _Widths:
    """Bytes of an element, by what it belongs to, and the tokens of a step."""

    weight: int
    gradient: int
    work: int  # results of matrix products
    stream: int  # the residual stream, which starts as rows of the embedding
    tokens: int

    @property
    def autocast(self) -> bool:
        """Whether weights and inputs are copied to the narrower format for each product."""
        return self.work != self.weight


def _widths(plan: Plan) -> _Widths:
    weight, gradient, _, _, work = PRECISIONS[plan.precision]
    return _Widths(weight, gradient, work, weight, plan.batch * plan.seq)


def _refuse(arch: Architecture, plan: Plan) -> None:
    """ValueError, in one sentence, where this form says nothing about a model or a plan."""
    check(arch, plan)
    if arch.norm != "rms" or not arch.gated or arch.positions or arch.experts:
        raise ValueError(
            f"{arch.name} is no Llama or Qwen without experts, which are all that this form is stated for."
        )
    splits = {"tp": plan.tp > 1, "pp": plan.pp > 1, "zero": plan.zero > 0}
    for what, asked in splits.items():
        if asked:
            value = getattr(plan, what)
            raise ValueError(f"{what} is {value}: transformers' form is stated for ranks that each keep everything.")
    unknown = {"attention": "math", "recompute": "selective"}
    for what, value in unknown.items():
        if getattr(plan, what) == value:
            raise ValueError(f"{what} is {value!r}, for which transformers' form is not stated.")
    if plan.lora:
        raise ValueError(f"lora is {plan.lora}: adapters are another package's, for which this form is not stated.")


def _norm_bytes(w: _Widths, width: int) -> int:
    """What a root-mean-square norm keeps of a token: a 32-bit copy of its input, 1 / root, the product, the result.

    Under autocast each matrix product that follows keeps a narrow copy of the result in its place.
    """
    copied = 4 * width if w.stream < 4 else 0
    return copied + w.stream * width + (0 if w.autocast else w.stream * width) + 4


def _head_norms_bytes(arch: Architecture, w: _Widths) -> int:
    """What Qwen 3's norms of queries and keys keep of a token; their results go on into the rotation."""
    width = (arch.heads + arch.kv_heads) * arch.head_width
    return (4 + w.work) * width + 4 * (arch.heads + arch.kv_heads) if arch.qk_norm else 0


def _block_weights(arch: Architecture) -> int:
    """Elements of one block's matrices."""
    inner, kv = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    return arch.width * (2 * inner + 2 * kv + 3 * arch.hidden)


def _block_bytes(arch: Architecture, w: _Widths) -> int:
    """What one block keeps for its backward pass, the stream that leaves it included where the next norm keeps that.

    Attention keeps queries, keys, values, its result and a 32-bit sum for each head; the network keeps gate, up, the
    gate's SiLU, and their product. Autocast: three copies of the input for q, k, v, two for gate and up; the weights.
    """
    d, inner, kv = arch.width, arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    attention = w.work * (2 * inner + 2 * kv) + 4 * arch.heads + _head_norms_bytes(arch, w)
    token = attention + 4 * w.work * arch.hidden + 2 * _norm_bytes(w, d) + 2 * _stream_bytes(arch, w)
    copies = w.work * (5 * d * w.tokens + _block_weights(arch)) if w.autocast else 0
    return w.tokens * token + copies


def _stream_bytes(arch: Architecture, w: _Widths) -> int:
    """What a norm keeps of a token's residual stream itself: all of it in 32 bits; else it keeps a copy of its own."""
    return 4 * arch.width if w.stream == 4 else 0


def _inside_bytes(arch: Architecture, w: _Widths, recomputed: bool) -> int:
    """What the backward pass of a block's network makes beside what was kept, at its largest moment.

    Three gradients of the inner width live while one kept product is gone already; the last matrix has its gradient.
    """
    down = arch.width * arch.hidden
    made = 2 * w.tokens * w.work * arch.hidden + w.gradient * down
    if w.autocast:
        made -= w.work * down
    if w.work < 4 and not recomputed:  # the gradient that arrives, cast
        made += w.tokens * w.work * arch.width
    return made


def phases(arch: Architecture, plan: Plan) -> dict[str, dict[str, int]]:
    """Live bytes of one rank at each phase's largest moment, by part; the peak of the step is the largest of them.

    Parts: parameters, gradients (mixed precision copies them to 32 bits for the optimizer's step), optimizer (with
    Adam's temporaries; those of others than SGD and Adam are left out), activations (with autocast's copies of
    weights), logits (with the loss's temporaries). ValueError, in one sentence: what this form is not stated for.
    """
    _refuse(arch, plan)
    w, rest = _widths(plan), states(arch, plan)
    found = _moments(arch, plan, w)
    found["optimizer step"] = (0, _logits(arch, w), rest.gradients_bytes + _widened_bytes(arch, plan))
    return {
        phase: {
            "parameters": rest.parameters_bytes,
            "gradients": gradients,
            "optimizer": rest.optimizer_bytes + (_step_bytes(arch, plan) if phase == "optimizer step" else 0),
            "activations": activations + 8 * w.tokens,  # the tokens themselves
            "logits": logits,
        }
        for phase, (activations, logits, gradients) in found.items()
    }


def _logits(arch: Architecture, w: _Widths) -> int:
    """Bytes of one copy of the logits, as the head makes them."""
    return w.work * w.tokens * arch.vocab


def _step_bytes(arch: Architecture, plan: Plan) -> int:
    """What Adam makes while it steps, all tensors at once: the square root of its second average; fused: nothing.

    Before that, mixed precision's last matrix has its gradient twice, in 16 bits and in 32.
    """
    if plan.fused:
        return 0
    last = arch.width * (arch.hidden if arch.tied else arch.vocab)
    twice = 2 * last if plan.precision == "mixed" else 0
    return max(twice, PRECISIONS[plan.precision][3] * count(arch) if plan.optimizer == "adam" else 0)


def _widened_bytes(arch: Architecture, plan: Plan) -> int:
    """What mixed precision widens for the step besides: all gradients from 2 bytes to 4; fused: one, in 4 more."""
    if plan.precision != "mixed":
        return 0
    return 4 * max(prod(weight.shape) for weight in weights(arch)) if plan.fused else 2 * count(arch)


def _kept_bytes(arch: Architecture, plan: Plan, w: _Widths) -> tuple[int, int, int]:
    """What is kept when the last norm begins: of all blocks and before, of the first alone and before, inside one.

    Recomputed blocks keep their input alone, and make the rest again, one block at a time.
    """
    block, stream = _block_bytes(arch, w), w.tokens * _stream_bytes(arch, w)
    tables = 2 * plan.seq * arch.head_width * w.stream
    if plan.recompute == "none":
        return tables + stream + arch.layers * block, tables + stream + block, 0
    entry = w.tokens * w.stream * arch.width
    return tables + arch.layers * entry + stream, tables + entry + block, block


def _moments(arch: Architecture, plan: Plan, w: _Widths) -> dict[str, tuple[int, int, int]]:
    """(activations, logits, gradients) at the largest moment of each phase but the optimizer's."""
    logits, loss = _logits(arch, w), 4 * w.tokens * arch.vocab
    everything, first, inside = _kept_bytes(arch, plan, w)
    grown = w.gradient * count(arch)
    table, layer = w.gradient * arch.vocab * arch.width, w.gradient * _per_layer(arch)
    stream, of_stream = w.tokens * _stream_bytes(arch, w), w.tokens * w.stream * arch.width
    head_copies = w.work * arch.width * (w.tokens + arch.vocab) if w.autocast else 0
    last_norm = w.tokens * _norm_bytes(w, arch.width)
    work, norm_work = _inside_bytes(arch, w, bool(inside)), 24 * w.tokens * arch.width
    head_gradient = (w.gradient + (w.work if w.autocast else 0)) * arch.vocab * arch.width
    found = {
        "loss backward": (everything + last_norm + head_copies, logits + 3 * loss, 0),
        "head backward": (everything + last_norm + of_stream, 2 * logits, head_gradient),
        "last norm backward": (everything - stream + norm_work, logits, table),
        "last block backward": (everything - stream + inside - stream * bool(inside) + of_stream + work, logits, table),
        "first block backward": (first - stream + of_stream + work, logits, table + (arch.layers - 1) * layer),
        "first norm backward": (norm_work + of_stream, logits, grown - table),
        "embedding backward": (of_stream, logits, grown),
    }
    if arch.tied:  # a tied table's two gradients are added in a third, as wide as the weights
        thrice = 3 * w.weight * arch.vocab * arch.width
        found["embedding backward"] = (0, logits, grown - table + thrice)
    if w.autocast and inside:  # copies of weights that no block keeps stay in autocast's cache until the forward ends
        cached = w.work * arch.layers * _block_weights(arch)
        found["loss"] = (everything + last_norm + head_copies + cached, logits + 2 * loss, 0)
    return found


def _per_layer(arch: Architecture) -> int:
    """Parameters of one block."""
    parts = parameters(arch)
    return (parts["attention"] + parts["mlp"] + parts["norms"] - arch.width) // arch.layers
