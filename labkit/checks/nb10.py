"""The checks of lesson 10: MFU, the FLOPs of a step, a napkin for its memory, and the cheapest way that fits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch

from labkit import cost
from labkit.architecture import Architecture, count, parameters, weights
from labkit.checker import Exercise, close
from labkit.checks import napkins, options
from labkit.checks.napkins import peak_bytes
from labkit.checks.options import cheapest
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
    met = _head(arch) if arch.tied else 0
    for weight in weights(arch):
        if len(weight.shape) == 2 and weight.part not in ("embedding", "positions"):
            expert = arch.experts and weight.part == "mlp"
            met += weight.total * arch.experts_per_token // arch.experts if expert else weight.total
    return 6 * batch * seq * (met + seq * _pairs(arch))


def _by_hand(fn: Callable) -> str | None:
    """None where fn adds up weights itself; otherwise that somebody else counted."""
    if asked := napkins.calls_of(lambda: fn(_GPT, 1, 16), ("cost", "lm")):
        what = "builds the model and lets torch count" if "lm" in asked else "asks labkit.cost"
        return f"It {what}: add up the weights that a token meets."
    return None


_BASES = {"a small GPT": "gpt2", "a small Llama": "llama-3-8b", "a small Mixtral": "mixtral-8x7b"}


def _tell_flops(arch: Architecture, batch: int, seq: int) -> dict[str, str]:
    """A case as a learner would make it again, from a preset; and what decides in it."""
    base = preset(_BASES[arch.name])
    other = {k: v for k, v in vars(arch).items() if k != "name" and v != getattr(base, k)}
    experts = f"{arch.experts} experts, {arch.experts_per_token} of them met" if arch.experts else "no experts"
    kind = f"{arch.name}, {'tied' if arch.tied else 'untied'}; {arch.heads} heads, {arch.kv_heads} of keys; {experts}"
    made = "".join(f", {k}={v}" for k, v in other.items())
    return {
        "call": f"step_flops(arch, {batch}, {seq})",
        "arch": f"replace(preset({_BASES[arch.name]!r}){made})",
        "kind": kind,
    }


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


def _slept(arch: Architecture, part: str = "mlp", others: int | None = None) -> int:
    """Numbers in the experts that do not serve a token, or in as many others of a part's share for each expert."""
    others = arch.experts - arch.experts_per_token if others is None else others
    return parameters(arch)[part] // arch.experts * others if arch.experts else 0


def _biases(arch: Architecture) -> int:
    """Numbers in biases, which norms are not counted among."""
    return sum(weight.total for weight in weights(arch) if len(weight.shape) == 1 and weight.part != "norms")


def _one_layer(arch: Architecture) -> int:
    """Numbers that a token meets, of every kind of weight those of one layer, or of one expert, only."""
    kinds = [w for w in weights(arch) if len(w.shape) == 2 and w.part not in ("embedding", "positions")]
    return arch.tied * _head(arch) + sum(prod(w.shape) for w in kinds)


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
    ("Biases are added: they multiply no matrices.", _counted(lambda arch: _met(arch) + _biases(arch), _pairs)),
    ("The router is a matrix, too, and every token meets it whole.",)
    + (_counted(lambda arch: _met(arch) - parameters(arch)["router"], _pairs),),
    ("The router is no expert: every token meets it whole.",)
    + (_counted(lambda arch: _met(arch) - _slept(arch, "router"), _pairs),),
    ("A token meets experts_per_token experts of a layer, and not one.",)
    + (_counted(lambda arch: _met(arch) - _slept(arch, "mlp", others=arch.experts_per_token - 1), _pairs),),
    ("A weight's .shape is that of one layer: .total counts all of its kind.", _counted(_one_layer, _pairs)),
    ("Queries of every head meet keys, also where heads share them: heads, and not kv_heads.",)
    + (_counted(_met, lambda arch: 2 * arch.layers * arch.kv_heads * arch.head_width),),
    ("Attention's products have a backward pass, too, of twice the forward one.",)
    + (lambda arch, batch, seq: batch * seq * (6 * _met(arch) + 2 * seq * _pairs(arch)),),
    ("A token meets seq others: seq squared pairs in a sequence.",)
    + (lambda arch, batch, seq: 6 * batch * seq * (_met(arch) + _pairs(arch)),),
    ("Tokens meet those of their own sequence only.",)
    + (lambda arch, batch, seq: 6 * batch * seq * (_met(arch) + batch * seq * _pairs(arch)),),
    ("There are batch sequences.", lambda arch, _, seq: step_flops(arch, 1, seq)),
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
        tell=_tell_flops,
        mechanism=_by_hand,
        library=(cost.step_flops, cost.forward_flops),
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
        cases=napkins.peak_cases,
        reference=peak_bytes,
        compare=napkins.napkin_cause,
        drive=napkins.drive_peak,
        tell=napkins.tell,
        mechanism=napkins.from_sizes,
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
        cases=options.option_cases,
        reference=cheapest,
        compare=options.chosen_cause,
        tell=options.tell,
        points=3,
        hints=(
            "For each option three numbers: bytes on a card, hours of the run, what it costs. Then filter, then min.",
            "A step takes work_s / cards, and a ring: 2 (k-1)/k of gradient_bytes over bytes_per_s.",
            "min() of tuples (cost, hours, name) breaks ties by the hours.",
        ),
    ),
)
