"""Exercise 10.3: the peak of a training step from sizes alone, held against live bytes."""

from collections.abc import Callable, Sequence
from functools import cache
from unittest.mock import patch

import torch

from labkit.architecture import Architecture, count

WITHIN = 0.05


def peak_bytes(arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> int:
    """Bytes at the peak of lm.train_step in 32 bits with AdamW, for a large vocabulary: the larger of two moments."""
    return 4 * max(5 * count(arch), _loss_backward(arch, batch, seq, attention, recompute))


def _loss_backward(arch: Architecture, batch: int, seq: int, attention: str, recompute: str, *, copies: int = 3) -> int:
    """Numbers held when the loss goes backward: weights and moments, what blocks kept, copies of the logits."""
    tokens = batch * seq
    block = tokens * (16 * arch.width + (arch.heads * seq if attention == "math" else 0))
    kept = arch.layers * (block if recompute == "none" else tokens * arch.width)
    return 3 * count(arch) + kept + copies * tokens * arch.vocab


@cache
def measured_bytes(arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> int:
    """Live bytes at the peak of that step, by MemTracker."""
    from labkit import live, lm

    with live.fake():
        model = lm.build(arch, attention=attention, recompute=recompute)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(batch, seq + 1, dtype=torch.long)

        def step() -> None:
            lm.train_step(model, optimizer, tokens)

        step()
        return live.peak(step, model, optimizer, tokens).total_bytes


def drive_peak(fn: Callable, arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> object:
    """What fn says; in place of the course's own answer, what is measured."""
    ask = measured_bytes if fn is peak_bytes else fn
    return ask(arch, batch, seq, attention, recompute)


class _Measures(Exception):
    """An answer that builds the model; never seen outside this module."""


def from_sizes(fn: Callable) -> str | None:
    """None where fn computes from sizes; otherwise that it measures, which would be no napkin."""
    from labkit import live, lm

    def measures(*_: object, **__: object) -> None:
        raise _Measures

    with patch.object(lm, "build", measures), patch.object(live, "peak", measures):
        try:
            fn(_gpt(16_384, 128, 1, 16), 1, 16, "flash", "none")
        except _Measures:
            return "It builds the model and measures: compute the bytes from the sizes alone."
    return None


def napkin_cause(got: float | int, expected: float | int) -> str | None:
    """None within five per cent of the measured peak; otherwise by how much it is off."""
    if abs(got / expected - 1) <= WITHIN:
        return None
    side = "above" if got > expected else "below"
    return f"{abs(got / expected - 1):.0%} {side} the measured peak; {WITHIN:.0%} are allowed."


def _gpt(vocab: int, width: int, layers: int, seq: int) -> Architecture:
    """A small decoder in the manner of GPT-2, with heads 64 wide."""
    heads = width // 64
    return Architecture(
        **{"name": f"gpt-{width}", "vocab": vocab, "width": width, "layers": layers, "heads": heads, "kv_heads": heads},
        **{"head_width": 64, "hidden": 4 * width, "gated": False, "norm": "layer", "positions": seq, "context": seq},
        **{"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    )


def peak_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A short step; many tokens; the same recomputed; scores written out; those recomputed; then drawn at random."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    corners = [
        (_gpt(16_384, 256, 2, 16), 1, 16, "flash", "none"),
        (_gpt(16_384, 512, 2, 256), 8, 256, "flash", "none"),
        (_gpt(16_384, 512, 2, 256), 8, 256, "flash", "full"),
        (_gpt(16_384, 512, 3, 512), 4, 512, "math", "none"),
        (_gpt(16_384, 512, 3, 512), 4, 512, "math", "full"),
    ]
    return [*corners, *(_random_case(draw) for _ in range(2))]


def _random_case(draw: Callable[[int, int], int]) -> tuple:
    """A model whose peak lies where the loss goes backward, or in the optimizer's step."""
    seq = 32 * draw(1, 16)
    arch = _gpt(1000 * draw(16, 64), 64 * draw(4, 9), draw(1, 3), seq)
    return arch, draw(2, 9), seq, ("flash", "math")[draw(0, 2)], ("none", "full")[draw(0, 2)]


def _otherwise(numbers: Callable[..., float]) -> Callable:
    """A napkin with other numbers of the moment when the loss goes backward."""

    def mistaken(arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> float:
        return 4 * max(5 * count(arch), numbers(arch, batch, seq, attention, recompute))

    return mistaken


def _summed(arch: Architecture, *rest: object) -> int:
    """Adds up two moments that never meet."""
    return 4 * (2 * count(arch) + _loss_backward(arch, *rest))


def _with_gradients(arch: Architecture, *rest: object) -> int:
    """Counts the gradients before they are there."""
    return count(arch) + _loss_backward(arch, *rest)


# The first that comes within the tolerance of the learner's number is named.
NAPKIN_MISTAKES = (
    ("Four times is left after a step. In the optimizer's step AdamW's scratch space is there too: five numbers.",)
    + (lambda arch, *_: 16 * count(arch),),
    ("Recomputation is forgotten: a block keeps its input only.",)
    + (_otherwise(lambda arch, batch, seq, attention, _: _loss_backward(arch, batch, seq, attention, "none")),),
    ("With attention written out, a block keeps the scores of all pairs of tokens, for each head.",)
    + (_otherwise(lambda arch, batch, seq, _, recompute: _loss_backward(arch, batch, seq, "flash", recompute)),),
    ("The logits are forgotten: three arrays of that size when the loss goes backward.",)
    + (_otherwise(lambda *given: _loss_backward(*given, copies=0)),),
    ("Three arrays of the logits' size, and not one.", _otherwise(lambda *given: _loss_backward(*given, copies=1))),
    ("Three arrays of the logits' size, and not two.", _otherwise(lambda *given: _loss_backward(*given, copies=2))),
    ("The largest of the moments, and not their sum.", _summed),
    ("When the loss goes backward the gradients are not there yet: three numbers a parameter.",)
    + (_otherwise(_with_gradients),),
    ("A number in 32 bits has four bytes.", lambda *given: peak_bytes(*given) / 4),
    ("Bytes are asked for, and not GB.", lambda *given: peak_bytes(*given) / 1e9),
)
