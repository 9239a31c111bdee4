"""The configurations that labkit.verify holds the estimate against, and what a row of its table says."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from labkit.architecture import Architecture
from labkit.states import Plan

_GPT = {"gated": False, "norm": "layer", "tied": True, "qkv_bias": True, "out_bias": True, "mlp_bias": True}
_LLAMA = {"gated": True, "norm": "rms"}


@dataclass(frozen=True)
class Row:
    """One configuration: what was predicted and measured at its peak, in bytes."""

    group: str
    configuration: str
    phase: str
    predicted: int
    measured: int

    @property
    def ratio(self) -> float:
        """Predicted over measured; 1 is right, and infinite what measured nothing."""
        return self.predicted / self.measured if self.measured else inf


def gpt_style(
    *, width: int = 128, layers: int = 2, vocab: int = 2048, heads: int = 4, tied: bool = True
) -> Architecture:
    """A small GPT-2 style model."""
    sizes = {"width": width, "layers": layers, "vocab": vocab, "heads": heads, "kv_heads": heads}
    own = {"head_width": width // heads, "hidden": 4 * width, "context": 512, "positions": 512}
    return Architecture(name="GPT-2 style", **sizes, **own, **_GPT | {"tied": tied})


def llama_style(
    *, width: int = 128, layers: int = 2, vocab: int = 2048, heads: int = 4, kv_heads: int = 2, qk_norm: bool = False
) -> Architecture:
    """A small Llama style model; qk_norm makes it Qwen 3's."""
    sizes = {"width": width, "layers": layers, "vocab": vocab, "heads": heads, "kv_heads": kv_heads}
    own = {"head_width": width // heads, "hidden": width * 11 // 4, "context": 512, "qk_norm": qk_norm}
    return Architecture(name="Llama style", **sizes, **own, **_LLAMA)


def tuned() -> Iterator[tuple[Architecture, Plan]]:
    """The configurations that the form was written beside: no recomputation, one width, a middling vocabulary."""
    for arch in (gpt_style(), llama_style()):
        for precision in ("fp32", "bf16", "mixed", "mixed-fp32-grads", "autocast"):
            yield arch, Plan(precision=precision, batch=4, seq=128)
            yield arch, Plan(precision=precision, batch=2, seq=64, optimizer="sgd", attention="math")
        for optimizer in ("momentum", "adam", "muon"):
            yield arch, Plan(precision="fp32", batch=1, seq=32, optimizer=optimizer)
        yield arch, Plan(precision="bf16", batch=8, seq=256, attention="math")
        for precision in ("fp32", "autocast", "bf16", "mixed"):
            yield arch, Plan(precision=precision, batch=1, seq=32, fused=True)


def held_out() -> Iterator[tuple[Architecture, Plan]]:
    """Configurations that it was not: recomputation, other widths and depths, small and large vocabularies."""
    for style in (gpt_style, llama_style):
        for recompute in ("selective", "full"):
            for attention, precision in (("flash", "autocast"), ("math", "bf16"), ("math", "fp32")):
                plan = Plan(precision=precision, batch=8, seq=256, attention=attention, recompute=recompute)
                yield style(vocab=256, layers=4), plan
        small = Plan(precision="autocast", batch=4, seq=256, optimizer="sgd")
        yield style(vocab=64), small
        yield style(vocab=32, width=96, layers=3, heads=3, **{"kv_heads": 3} if style is llama_style else {}), small
        yield style(vocab=50000, layers=2), replace(small, precision="bf16")
        yield style(width=512, layers=2), Plan(precision="mixed", batch=3, seq=96, optimizer="momentum")
        yield style(width=320, layers=1, heads=5, **{"kv_heads": 1} if style is llama_style else {}), small
        yield style(layers=6, width=64, vocab=512), replace(small, precision="mixed", attention="math")
        yield style(vocab=512), Plan(precision="fp32", batch=1, seq=64, optimizer="adafactor")
        for optimizer in ("adam", "momentum", "muon"):
            yield style(width=256, vocab=512), Plan(precision="mixed", batch=1, seq=16, optimizer=optimizer, fused=True)
    yield gpt_style(tied=False, vocab=4096), Plan(precision="fp32", batch=2, seq=32, optimizer="sgd")
    yield llama_style(qk_norm=True, vocab=300), Plan(precision="bf16", batch=4, seq=256, optimizer="sgd")


def describe(arch: Architecture, plan: Plan) -> str:
    """A configuration in one line."""
    sizes = f"{arch.name} {arch.layers}x{arch.width}, vocabulary {arch.vocab}, {plan.batch}x{plan.seq} tokens"
    optimizer = f"fused {plan.optimizer}" if plan.fused else plan.optimizer
    return f"{sizes}, {plan.precision}, {optimizer}, {plan.attention}, recompute {plan.recompute}"
