"""The reference models that labkit states in closed form: a GPT-2 style and a Llama style decoder, line by line.

An `Architecture` says which: layer norms, learned positions, a GELU network and biases, or root-mean-square norms,
rotary positions, grouped heads and a gated network. Nothing is fused, and what runs in 32 bits says `float()`, so that
a CPU and a GPU keep the same tensors. There is no dropout.

Shape suffixes as in labkit.models: B batch, T tokens, D model width, V vocabulary, K heads, P width of one head.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from labkit.architecture import Architecture


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, in 32 bits, and scales.

    Source: Zhang and Sennrich, Root mean square layer normalization (NeurIPS 2019).
    """

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """x with a mean square of one along its last dim, scaled, in the dtype it came in."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * normed.to(x.dtype)


def _norm(arch: Architecture, width: int) -> nn.Module:
    return nn.LayerNorm(width) if arch.norm == "layer" else RMSNorm(width)


def rotary_tables(
    seq: int, head_width: int, device: torch.device
) -> tuple[Float[Tensor, "T 1 Q"], Float[Tensor, "T 1 Q"]]:
    """Cosines and sines of each position's angles, one for each pair of numbers of a head.

    Source: Su et al., RoFormer (2021), section 3.4.2.
    """
    rates = 10000.0 ** -(torch.arange(0, head_width, 2, device=device) / head_width)
    angles = torch.outer(torch.arange(seq, device=device), rates).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x_BTKP: Float[Tensor, "B T K P"], cos: Tensor, sin: Tensor) -> Float[Tensor, "B T K P"]:
    """Each pair of numbers of a head turned by its position's angle: computed in 32 bits, returned as it came."""
    a, b = x_BTKP.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x_BTKP.dtype)


def flash(q_BKTP: Tensor, k_BKTP: Tensor, v_BKTP: Tensor) -> Tensor:
    """Causal attention by one kernel, which keeps no scores."""
    grouped = q_BKTP.shape[1] != k_BKTP.shape[1]
    return functional.scaled_dot_product_attention(q_BKTP, k_BKTP, v_BKTP, is_causal=True, enable_gqa=grouped)


def math(q_BKTP: Tensor, k_BKTP: Tensor, v_BKTP: Tensor) -> Tensor:
    """Causal attention with the scores of every pair of tokens written out, their softmax in 32 bits."""
    groups = q_BKTP.shape[1] // k_BKTP.shape[1]
    if groups > 1:
        k_BKTP, v_BKTP = (x.repeat_interleave(groups, dim=1) for x in (k_BKTP, v_BKTP))
    seq, head_width = q_BKTP.shape[-2:]
    future_TT = torch.ones(seq, seq, dtype=torch.bool, device=q_BKTP.device).triu(1)
    scores_BKTT = q_BKTP @ k_BKTP.transpose(-2, -1) * head_width**-0.5
    scores_BKTT = scores_BKTT.masked_fill(future_TT, float("-inf"))
    return scores_BKTT.float().softmax(dim=-1).to(v_BKTP.dtype) @ v_BKTP


class Attention(nn.Module):
    """Causal self-attention; its core (`flash` or `math`) is run anew in the backward pass where recompute says so."""

    def __init__(self, arch: Architecture, core, recompute: bool):
        super().__init__()
        self.arch, self.core, self.recompute = arch, core, recompute
        inner, kv = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
        self.to_q = nn.Linear(arch.width, inner, bias=arch.qkv_bias)
        self.to_k = nn.Linear(arch.width, kv, bias=arch.qkv_bias)
        self.to_v = nn.Linear(arch.width, kv, bias=arch.qkv_bias)
        self.to_out = nn.Linear(inner, arch.width, bias=arch.out_bias)
        if arch.qk_norm:
            self.q_norm, self.k_norm = _norm(arch, arch.head_width), _norm(arch, arch.head_width)

    def forward(self, x_BTD: Float[Tensor, "B T D"], tables: tuple) -> Float[Tensor, "B T D"]:
        """Tokens mixed with those before them, in the same shape."""
        q, k, v = (to(x_BTD).unflatten(-1, (-1, self.arch.head_width)) for to in (self.to_q, self.to_k, self.to_v))
        if self.arch.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if tables:
            q, k = rotate(q, *tables), rotate(k, *tables)
        q, k, v = (part_BTKP.transpose(1, 2) for part_BTKP in (q, k, v))
        mixed_BKTP = rerun(self.core, q, k, v) if self.recompute else self.core(q, k, v)
        return self.to_out(mixed_BKTP.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two matrices with a GELU between them, or three with a SiLU gate."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.up = nn.Linear(arch.width, arch.hidden, bias=arch.mlp_bias)
        self.gate = nn.Linear(arch.width, arch.hidden, bias=arch.mlp_bias) if arch.gated else None
        self.down = nn.Linear(arch.hidden, arch.width, bias=arch.mlp_bias)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Each token by itself, in the same shape."""
        if self.gate is None:
            return self.down(functional.gelu(self.up(x_BTD)))
        return self.down(functional.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    """Attention, then the two- or three-matrix network, each added to the residual stream and normalised before."""

    def __init__(self, arch: Architecture, core, recompute: bool):
        super().__init__()
        self.norm1, self.attention = _norm(arch, arch.width), Attention(arch, core, recompute)
        self.norm2, self.mlp = _norm(arch, arch.width), Mlp(arch)

    def forward(self, x_BTD: Float[Tensor, "B T D"], tables: tuple) -> Float[Tensor, "B T D"]:
        """The residual stream after this block."""
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD), tables)
        return x_BTD + self.mlp(self.norm2(x_BTD))


class Decoder(nn.Module):
    """Embeddings, blocks, a last norm, and the logits of each next token."""

    def __init__(self, arch: Architecture, core, recompute: str):
        super().__init__()
        self.arch, self.recompute = arch, recompute
        self.token = nn.Embedding(arch.vocab, arch.width)
        self.position = nn.Embedding(arch.positions, arch.width) if arch.positions else None
        self.blocks = nn.ModuleList(Block(arch, core, recompute == "selective") for _ in range(arch.layers))
        self.norm = _norm(arch, arch.width)
        self.head = nn.Linear(arch.width, arch.vocab, bias=False)
        if arch.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the token after each token."""
        seq = tokens_BT.shape[1]
        x_BTD = self.token(tokens_BT)
        if self.position:
            x_BTD = x_BTD + self.position.weight[:seq]
        tables = () if self.position else rotary_tables(seq, self.arch.head_width, tokens_BT.device)
        for block in self.blocks:
            x_BTD = rerun(block, x_BTD, tables) if self.recompute == "full" else block(x_BTD, tables)
        return self.head(self.norm(x_BTD))


def rerun(function, *args):
    """What function returns; of its inside nothing is kept, and the backward pass runs it again.

    Source: Chen et al., Training deep nets with sublinear memory cost (2016).
    """
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)


def build(arch: Architecture, *, attention: str = "flash", recompute: str = "none") -> Decoder:
    """The decoder that arch describes, with torch's usual initialisation, in 32 bits.

    attention: "flash" (scaled_dot_product_attention) or "math" (the scores written out). recompute: "none",
    "selective" (the core of attention) or "full" (each block). ValueError: a mixture of experts.
    """
    if arch.experts:
        raise ValueError(f"{arch.name} has {arch.experts} experts a layer: the reference models have none")
    return Decoder(arch, {"flash": flash, "math": math}[attention], recompute)


def next_token_loss(logits_BTV: object, targets_BT: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy, in 32 bits whatever the logits come in: as a tensor, or in an object that has them."""
    logits_BTV = getattr(logits_BTV, "logits", logits_BTV)
    return functional.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())


def train_step(model: nn.Module, optimizer, tokens: Int[Tensor, "B S"], *, autocast: bool = False) -> None:
    """One step on B sequences of S - 1 tokens and, one place on, their targets: the step the closed form is exact for.

    Gradients are dropped first, and the logits' name ends with the loss: kept, either would count at the peak.
    """
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    optimizer.step()
