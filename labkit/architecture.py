"""Decoder-only transformers by their sizes: which weights they have, how many, and what their KV cache takes.

Shapes are (rows, columns), as `torch.nn.Linear` stores them: D width, V vocabulary, K heads, P width of one head, H
width of the MLP. No torch here: a model of a trillion parameters costs no more to count than a small one.
"""

from dataclasses import dataclass
from math import prod

PARTS = ("embedding", "positions", "attention", "mlp", "router", "norms", "head")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer by its sizes. ValueError, in one sentence, where they do not go together."""

    name: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int  # width of the MLP, of one expert where there are several
    gated: bool  # the MLP has three matrices (gate, up, down) and not two
    norm: str  # "layer": weight and bias; "rms": weight alone
    context: int  # the longest sequence
    positions: int = 0  # learned position embeddings; 0 where positions rotate queries and keys
    tied: bool = False  # the head is the embedding's own matrix
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # queries and keys are normalised head by head
    experts: int = 0  # 0: one MLP a layer, and no router
    experts_per_token: int = 0

    def __post_init__(self):
        sizes = ("vocab", "width", "layers", "heads", "kv_heads", "head_width", "hidden", "context")
        for key in sizes:
            if getattr(self, key) < 1:
                raise ValueError(f"{self.name}: {key} is {getattr(self, key)}, and must be 1 or more.")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.name}: {self.kv_heads} key and value heads do not divide {self.heads} heads.")
        if self.norm not in ("layer", "rms"):
            raise ValueError(f'{self.name}: norm is "layer" or "rms", not {self.norm!r}.')
        if min(self.experts, self.positions) < 0 or not min(self.experts, 1) <= self.experts_per_token <= self.experts:
            raise ValueError(f"{self.name}: {self.experts_per_token} of {self.experts} experts cannot serve a token.")


@dataclass(frozen=True)
class Weight:
    """One kind of tensor in a model: `times` of this shape, each layer's counted where it belongs to layers.

    split: the dimension that tensor parallelism cuts, in Megatron's way; None where every rank keeps the whole.
    """

    part: str
    name: str
    shape: tuple[int, ...]
    times: int
    per_layer: bool
    split: int | None = None

    @property
    def numel(self) -> int:
        """Elements of one such tensor."""
        return prod(self.shape)

    @property
    def total(self) -> int:
        """Elements of all of them."""
        return self.times * self.numel


def weights(arch: Architecture) -> list[Weight]:
    """Every tensor of the model, those of a kind together; a tied head is not there twice.

    Which dimension is split: Shoeybi et al., Megatron-LM (arXiv:1909.08053), section 3.
    """
    d, q, kv = arch.width, arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    found = [Weight("embedding", "embedding", (arch.vocab, d), 1, False, 0)]
    if arch.positions:
        found.append(Weight("positions", "positions", (arch.positions, d), 1, False))
    for name, rows in (("query", q), ("key", kv), ("value", kv)):
        found += _linear("attention", name, (rows, d), arch.layers, arch.qkv_bias, split=0)
    found += _linear("attention", "out", (d, q), arch.layers, arch.out_bias, split=1)
    times = arch.layers * max(arch.experts, 1)
    for name in ("gate", "up") if arch.gated else ("up",):
        found += _linear("mlp", name, (arch.hidden, d), times, arch.mlp_bias, split=0)
    found += _linear("mlp", "down", (d, arch.hidden), times, arch.mlp_bias, split=1)
    if arch.experts:
        found.append(Weight("router", "router", (arch.experts, d), arch.layers, True))
    each = 2 if arch.norm == "layer" else 1
    found.append(Weight("norms", "block norms", (d,), 2 * each * arch.layers, True))
    if arch.qk_norm:
        found.append(Weight("norms", "query and key norms", (arch.head_width,), 2 * arch.layers, True))
    found.append(Weight("norms", "last norm", (d,), each, False))
    return found if arch.tied else [*found, Weight("head", "head", (arch.vocab, d), 1, False, 0)]


def _linear(part: str, name: str, shape: tuple[int, int], times: int, bias: bool, *, split: int) -> list[Weight]:
    """A matrix and its bias; a bias is cut where the matrix's rows are."""
    matrix = Weight(part, name, shape, times, True, split)
    return [matrix, Weight(part, f"{name} bias", shape[:1], times, True, None if split else 0)] if bias else [matrix]


def parameters(arch: Architecture) -> dict[str, int]:
    """Parameters by part; a tied head counts in the embedding alone."""
    found = dict.fromkeys(PARTS, 0)
    for weight in weights(arch):
        found[weight.part] += weight.total
    return found


def count(arch: Architecture) -> int:
    """All parameters."""
    return sum(parameters(arch).values())


def active(arch: Architecture) -> int:
    """Parameters that one token meets: of the experts only those that serve it."""
    parts = parameters(arch)
    if not arch.experts:
        return count(arch)
    return count(arch) - parts["mlp"] // arch.experts * (arch.experts - arch.experts_per_token)


def kv_cache_bytes(arch: Architecture, *, batch: int, seq: int, element_bytes: float = 2) -> float:
    """Bytes of the keys and values that generating keeps: two for each layer, head of keys, and token.

    Source: Shazeer, Fast transformer decoding (arXiv:1911.02150), section 2, with Ainslie et al. (arXiv:2305.13245).
    """
    return 2 * arch.layers * arch.kv_heads * arch.head_width * batch * seq * element_bytes
