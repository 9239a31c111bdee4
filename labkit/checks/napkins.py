"""Exercise 10.3: the peak of a training step from sizes alone, held against live bytes."""

import gc
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import no_type_check

import torch

import labkit
from labkit.architecture import Architecture, count

WITHIN, ALIKE = 0.03, 0.001
MEASURING = ("lm", "lm_sizes", "live", "estimate", "activations", "tape")  # labkit's modules that know the answer


class _Measured(int):
    """Measured bytes, with the case that was measured; never seen by a learner's code."""

    case: tuple


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
        found = _Measured(live.peak(step, model, optimizer, tokens).total_bytes)
    found.case = arch, batch, seq, attention, recompute
    return found


def drive_peak(fn: Callable, arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> object:
    """What fn says; in place of the course's own answer, what is measured."""
    ask = measured_bytes if fn is peak_bytes else fn
    return ask(arch, batch, seq, attention, recompute)


def tell(arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> dict[str, str]:
    """A case as a learner would make it again, with the lesson's own gpt."""
    sizes = f"{arch.vocab}, {arch.width}, {arch.layers}, {arch.positions}, tied={arch.tied}"
    return {"call": f"peak_bytes(gpt({sizes}), {batch}, {seq}, {attention!r}, {recompute!r})"}


def from_sizes(fn: Callable) -> str | None:
    """None where fn computes from sizes; otherwise that it measures, or has the course compute: no napkin."""
    if asked := calls_of(lambda: fn(_gpt(16_384, 128, 1, 16), 1, 16, "flash", "none"), MEASURING):
        builds = {"lm", "live"} & asked
        what = "builds the model and measures" if builds else f"asks labkit.{min(asked)}"
        return f"It {what}: compute the bytes from the sizes alone."
    return None


def calls_of(call: Callable[[], object], modules: Sequence[str]) -> set[str]:
    """Which of labkit's modules ran anything during a call, by whatever name they were reached."""
    files = {str(Path(labkit.__file__).parent / f"{name}.py"): name for name in modules}
    found, before, collecting = set(), sys.getprofile(), gc.isenabled()

    @no_type_check  # it runs at every call there is
    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            found.add(files[frame.f_code.co_filename])

    gc.disable()  # finalizers of what others have left behind are calls as well, sometimes hundreds of thousands
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return found


def napkin_cause(got: float | int, expected: float | int) -> str | None:
    """None near the measured peak; else the one mistake that gives this very number, or by how much it is off."""
    if abs(got / expected - 1) <= WITHIN:
        return None
    alike = {line for line, wrong in NAPKIN_MISTAKES if abs(got / wrong(*expected.case) - 1) <= ALIKE}
    return alike.pop() if len(alike) == 1 else _how_far(got, expected)


def _how_far(got: float | int, expected: _Measured) -> str:
    """By how much a number is off, and what most of the measured peak is in this case."""
    arch, batch, seq, attention, recompute = expected.case
    logits, states = 3 * batch * seq * arch.vocab, 3 * count(arch)
    blocks = _loss_backward(*expected.case, copies=0) - states
    sizes = {"the logits": logits, "what the blocks keep": blocks, "weights and moments": states}
    where = f"the largest part of it is {max(sizes, key=sizes.__getitem__)}"
    if 5 * count(arch) >= states + blocks + logits:
        where = "it is reached in the optimizer's step"
    side = "above" if got > expected else "below"
    how = f"with attention={attention!r} and recompute={recompute!r}"
    off = f"{abs(got / expected - 1):.1%} {side} the measured peak; {WITHIN:.0%} are allowed."
    return f"{off} Here, {how}, {where}."


def _gpt(vocab: int, width: int, layers: int, seq: int) -> Architecture:
    """A small decoder in the manner of GPT-2, with heads 64 wide."""
    heads = width // 64
    return Architecture(
        **{"name": f"gpt-{width}", "vocab": vocab, "width": width, "layers": layers, "heads": heads, "kv_heads": heads},
        **{"head_width": 64, "hidden": 4 * width, "gated": False, "norm": "layer", "positions": seq, "context": seq},
        **{"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    )


def peak_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A short step; many tokens; recomputed; scores written out; those recomputed; many blocks; then at random."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    corners = [
        (_gpt(16_384, 256, 2, 16), 1, 16, "flash", "none"),
        (_gpt(16_384, 512, 2, 256), 8, 256, "flash", "none"),
        (_gpt(16_384, 512, 2, 256), 8, 256, "flash", "full"),
        (_gpt(16_384, 512, 3, 512), 4, 512, "math", "none"),
        (_gpt(16_384, 512, 3, 512), 4, 512, "math", "full"),
        (_gpt(16_384, 512, 8, 512), 32, 512, "flash", "none"),  # a block's widths decide: one of 16 is too much
        (_gpt(16_384, 512, 6, 512), 32, 512, "flash", "full"),
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


def _scores(arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> int:
    """Scores that blocks keep."""
    return arch.layers * batch * seq * arch.heads * seq if (attention, recompute) == ("math", "none") else 0


def _keeps_scores(arch: Architecture, batch: int, seq: int, attention: str, recompute: str) -> int:
    """Keeps them though blocks are recomputed."""
    more = _scores(arch, batch, seq, attention, "none") if recompute == "full" else 0
    return _loss_backward(arch, batch, seq, attention, recompute) + more


def _one_head(arch: Architecture, *rest: object) -> int:
    """Keeps the scores of one head."""
    scores = _scores(arch, *rest)
    return _loss_backward(arch, *rest) - scores + scores // arch.heads


# One is named only where its number is the learner's, and no other's is.
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
    ("Attention written out keeps one array of scores, after the softmax: what came before it is gone.",)
    + (_otherwise(lambda *given: _loss_backward(*given) + _scores(*given)),),
    ("Recomputed, a block keeps its input only: the scores go as well.",) + (_otherwise(_keeps_scores),),
    ('recompute is a text: "none" counts as true.',)
    + (_otherwise(lambda arch, batch, seq, attention, _: _loss_backward(arch, batch, seq, attention, "full")),),
    ("Three arrays of the logits' size, and not four.", _otherwise(lambda *given: _loss_backward(*given, copies=4))),
    ("Scores are those of each head, and there are several.", _otherwise(_one_head)),
    ("A number in 32 bits has four bytes.", lambda *given: peak_bytes(*given) / 4),
    ("Bytes are asked for, and not GB.", lambda *given: peak_bytes(*given) / 1e9),
)
