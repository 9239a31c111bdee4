"""The checks of lesson 10: MFU, the FLOPs of a step, a napkin for its memory, and the cheapest way that fits."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from labkit import cost
from labkit.architecture import Architecture, count, parameters
from labkit.checker import Exercise, close
from labkit.checks.napkins import NAPKIN_MISTAKES, drive_peak, from_sizes, napkin_cause, peak_bytes, peak_cases
from labkit.checks.options import OPTION_MISTAKES, cheapest, chosen_cause, option_cases
from labkit.presets import preset

# ---- 10.1: model FLOPs utilisation ----------------------------------------------------------------------------------


def mfu(
    n_parameters: int, n_tokens: int, seconds: list[float], n_warmup: int, n_cards: int, peak_flops_per_s: float
) -> float:
    """The share of their peak that the cards reached after the warm-up: all FLOPs over all seconds."""
    kept = seconds[n_warmup:]
    n_flops = cost.train_flops(n_parameters, n_tokens * len(kept))
    return cost.mfu(n_flops, sum(kept), n_cards * peak_flops_per_s)


def _mfu_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A slow first step and four cards; no warm-up; then drawn at random."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    some = lambda n: [draw(1, 1000) / 100 for _ in range(n)]
    plain = [(1000, 100, [9.0, 1.0, 1.0, 4.0, 2.0], 1, 4, 2e5), (500, 60, [1.0, 2.0], 0, 1, 1e6)]
    return [*plain, *((10**6 * draw(1, 99), 2**14, some(9), draw(1, 5), draw(2, 65), 1e14) for _ in range(5))]


def _shared(change: Callable) -> Callable:
    """mfu with one thing changed: change(seconds, n_warmup, n_cards) -> (times, seconds of all, cards)."""

    def mistaken(
        n_parameters: int, n_tokens: int, seconds: list[float], n_warmup: int, n_cards: int, peak_flops_per_s: float
    ) -> float:
        times, took_s, cards = change(seconds, n_warmup, n_cards)
        return times * n_parameters * n_tokens / took_s / (cards * peak_flops_per_s)

    return mistaken


def _of_rates(seconds: list[float], n_warmup: int, n_cards: int) -> tuple:
    """The mean of each step's rate."""
    kept = seconds[n_warmup:]
    return 6 * sum(1 / s for s in kept) / len(kept), 1, n_cards


def _median(seconds: list[float], n_warmup: int, n_cards: int) -> tuple:
    """The middle step for all."""
    kept = sorted(seconds[n_warmup:])
    return 6, (kept[(len(kept) - 1) // 2] + kept[len(kept) // 2]) / 2, n_cards


_MFU_MISTAKES = (
    ("The first n_warmup steps do not count.", _shared(lambda s, _, k: (6 * len(s), sum(s), k))),
    ("All cards could do n_cards times the peak of one; n_tokens are of all cards already.",)
    + (_shared(lambda s, w, _: (6 * len(s[w:]), sum(s[w:]), 1)),),
    ("A mean of the steps' rates: a quick step counts for too much. All FLOPs over all seconds.", _shared(_of_rates)),
    ("The middle step hides the slow ones, which cost as well. All FLOPs over all seconds.", _shared(_median)),
    ("Two is the forward pass alone: training takes 6 N D.",)
    + (_shared(lambda s, w, k: (2 * len(s[w:]), sum(s[w:]), k)),),
    ("n_tokens are those of one step: there are several.", _shared(lambda s, w, k: (6, sum(s[w:]), k))),
    ("A share between 0 and 1, and not in per cent.", _shared(lambda s, w, k: (600 * len(s[w:]), sum(s[w:]), k))),
)

# ---- 10.2: the FLOPs of a step --------------------------------------------------------------------------------------


def step_flops(arch: Architecture, batch: int, seq: int) -> int:
    """FLOPs of the matrix products of a step, forward and backward; attention counts all pairs of tokens."""
    return cost.step_flops(arch, batch=batch, seq=seq)


_GPT = replace(preset("gpt2"), name="a small GPT", vocab=1000, width=96, layers=2, heads=4, kv_heads=4, head_width=24)
_LLAMA = replace(preset("llama-3-8b"), name="a small Llama", vocab=500, width=64, layers=3, heads=8, kv_heads=2)
_MIXTRAL = replace(preset("mixtral-8x7b"), name="a small Mixtral", vocab=300, width=64, layers=2, heads=4, kv_heads=4)


def _flops_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Tied with biases; untied; grouped heads wider than the model; experts; then each of them at random."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    gpt = replace(_GPT, hidden=384, positions=64, context=64)
    llama = replace(_LLAMA, head_width=24, hidden=176, context=512)
    mixtral = replace(_MIXTRAL, head_width=16, hidden=96, context=512)
    kinds = (gpt, replace(gpt, tied=False), llama, mixtral)
    plain = [(arch, 1 + i % 2, 32) for i, arch in enumerate(kinds)]
    sizes = lambda: {"vocab": draw(10, 2000), "layers": draw(1, 9), "hidden": 8 * draw(1, 99)}
    more = [(replace(arch, **sizes(), tied=draw(0, 2) == 1), draw(1, 9), draw(1, 65)) for arch in kinds * 3]
    return [*plain, *more]


def _counted(met: Callable[[Architecture], int], pairs: Callable[[Architecture], int], times: int = 6) -> Callable:
    """step_flops with other numbers met by a token, and other FLOPs for its pairs with a token."""

    def mistaken(arch: Architecture, batch: int, seq: int) -> int:
        return times * batch * seq * (met(arch) + seq * pairs(arch))

    return mistaken


def _met(arch: Architecture) -> int:
    """Numbers in matrices that a token meets."""
    return cost.step_flops(arch, batch=1, seq=1) // 6 - _pairs(arch)


def _pairs(arch: Architecture) -> int:
    """Multiplications of attention for a pair of tokens."""
    return 2 * arch.layers * arch.heads * arch.head_width


def _head(arch: Architecture) -> int:
    """Numbers in the head's matrix."""
    return arch.vocab * arch.width


def _everything(arch: Architecture) -> int:
    """All parameters but those that are looked up, and a tied head: with biases and norms."""
    parts = parameters(arch)
    looked_up = parts["positions"] + (0 if arch.tied else parts["embedding"])
    slept = parts["mlp"] // arch.experts * (arch.experts - arch.experts_per_token) if arch.experts else 0
    return count(arch) - looked_up - slept


def _slept(arch: Architecture) -> int:
    """Numbers in the experts that do not serve a token."""
    return parameters(arch)["mlp"] // arch.experts * (arch.experts - arch.experts_per_token) if arch.experts else 0


_FLOPS_MISTAKES = (
    ("The backward pass is missing: it has two products for each one forward.", _counted(_met, _pairs, 2)),
    ("The forward pass is missing.", _counted(_met, _pairs, 4)),
    ("6 N D of all parameters: an embedding is looked up, and attention multiplies tokens with tokens.",)
    + (_counted(count, lambda _: 0),),
    ("Attention multiplies tokens with tokens, which no parameter is part of.", _counted(_met, lambda _: 0)),
    ("Attention has two products for each pair of tokens, and counts pairs that are masked, too.",)
    + (_counted(_met, lambda arch: _pairs(arch) // 2),),
    ("Heads together need not be as wide as the model: heads times head_width.",)
    + (_counted(_met, lambda arch: 2 * arch.layers * arch.width),),
    ("A tied head multiplies, though its weights are listed as the embedding's.",)
    + (_counted(lambda arch: _met(arch) - arch.tied * _head(arch), _pairs),),
    ("An embedding is looked up, and multiplies nothing.",)
    + (_counted(lambda arch: _met(arch) + (0 if arch.tied else _head(arch)), _pairs),),
    ("A tied matrix is looked up as the embedding, and multiplies once, as the head.",)
    + (_counted(lambda arch: _met(arch) + arch.tied * _head(arch), _pairs),),
    ("Positions are looked up, or added: they multiply nothing.",)
    + (_counted(lambda arch: _met(arch) + arch.positions * arch.width, _pairs),),
    ("A token meets experts_per_token of a layer's experts, and not all.",)
    + (_counted(lambda arch: _met(arch) + _slept(arch), _pairs),),
    ("Biases and norms add and scale: they multiply no matrices.", _counted(_everything, _pairs)),
)

EXERCISES = (
    Exercise(
        number="10.1",
        name="mfu",
        cases=_mfu_cases,
        reference=mfu,
        compare=close(1e-9, 0.0, "The FLOPs of all steps that count, over their seconds, over all cards' peak."),
        mistakes=_MFU_MISTAKES,
        points=2,
        hints=(
            "Cut the warm-up off with seconds[n_warmup:], and count the steps that are left.",
            "6 * n_parameters * n_tokens is one step. Multiply by the steps, divide by the sum of their seconds.",
        ),
    ),
    Exercise(
        number="10.2",
        name="step_flops",
        cases=_flops_cases,
        reference=step_flops,
        compare=close(0.0, 0.0, "The numbers in matrices that a token meets, and its pairs; two and four FLOPs each."),
        mistakes=_FLOPS_MISTAKES,
        points=3,
        hints=(
            "6 * batch * seq * (numbers in matrices that a token meets + what it takes to meet all tokens).",
            "A matrix has a shape of two numbers. Embedding and positions are no products; a tied head is one more.",
            "For each pair of tokens and each layer: heads * head_width multiplications for the score, and as many for "
            "the mean of the values.",
        ),
    ),
    Exercise(
        number="10.3",
        name="peak_bytes",
        cases=peak_cases,
        reference=peak_bytes,
        compare=napkin_cause,
        drive=drive_peak,
        mechanism=from_sizes,
        mistakes=NAPKIN_MISTAKES,
        points=4,
        hints=(
            "Two moments: five numbers a parameter; or three, and what the blocks kept, and three arrays of logits.",
            "sum(kept(arch, batch, seq, attention='math')) grows by heads * seq / width: scores of each head.",
            "Recomputed, a block keeps one width a token, whatever its attention.",
        ),
    ),
    Exercise(
        number="10.4",
        name="cheapest",
        cases=option_cases,
        reference=cheapest,
        compare=chosen_cause,
        mistakes=OPTION_MISTAKES,
        points=3,
        hints=(
            "For each option three numbers: bytes on a card, hours of the run, what it costs. Then filter, then min.",
            "A step takes work_s / cards, and a ring: 2 (k-1)/k of gradient_bytes over bytes_per_s.",
            "min() of tuples (cost, hours, name) breaks ties by the hours.",
        ),
    ),
)
