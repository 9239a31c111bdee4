"""The checks of lesson 14: bytes by stage, three stages in real ranks, the stage that fits, the forgotten line."""

from collections.abc import Callable, Sequence

import torch

from labkit.checker import Exercise, close, exact
from labkit.checks import gathered, scattered, sharded, zero
from labkit.checks.replicas import seeds

# ---- 14.1: bytes by stage -------------------------------------------------------------------------------------------

_ELEMENT_BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}
_KINDS = ("parameters", "gradients", "optimizer")


def bytes_per_rank(layers: list[int], stage: int, ranks: int, precision: str) -> dict[str, int]:
    """Bytes at rest of a rank by kind; what a stage splits is split layer by layer, each padded.

    Source: Rajbhandari et al., ZeRO (SC 2020), section 3.1 and figure 1.
    """
    whole, part = sum(layers), sum(-(-n // ranks) for n in layers)
    weight, gradient, state = _ELEMENT_BYTES[precision]
    return {
        "parameters": weight * (part if stage >= 3 else whole),
        "gradients": gradient * (part if stage >= 2 else whole),
        "optimizer": state * (part if stage >= 1 else whole),
    }


def _by_stage_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Each stage in each precision, with a rest; then one rank; then layers drawn at random."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    plain = [([10, 7], stage, 4, precision) for precision in _ELEMENT_BYTES for stage in range(4)]
    drawn = [([draw(1, 10**6) for _ in range(draw(1, 6))], draw(0, 4), draw(2, 65), "mixed") for _ in range(8)]
    return [*plain, ([5], 3, 1, "mixed"), *drawn]


def _by_stage(bytes_of: dict, first: tuple[int, int, int], part_of: Callable[[list[int], int], object]) -> Callable:
    """Bytes by stage with other element sizes, other first stages for the three kinds, or another part."""

    def mistaken(layers: list[int], stage: int, ranks: int, precision: str) -> dict:
        whole, part = sum(layers), part_of(layers, ranks)
        rows = zip(_KINDS, bytes_of[precision], first, strict=True)
        return {kind: size * (part if stage >= since else whole) for kind, size, since in rows}

    return mistaken


def _padded(layers: list[int], ranks: int) -> int:
    """The right part."""
    return sum(-(-n // ranks) for n in layers)


def _padded_everywhere(layers: list[int], stage: int, ranks: int, precision: str) -> dict[str, int]:
    """Padding also where nothing is split."""
    return bytes_per_rank([ranks * -(-n // ranks) for n in layers], stage, ranks, precision)


def _same_whole_numbers(got: object, expected: object) -> str | None:
    """None for the same whole numbers, otherwise the likely cause."""
    kinds = [{type(each) for each in values.values()} for values in (got, expected)]
    if got == expected and float in kinds[0] - kinds[1]:
        return "Bytes are whole numbers: / gives a float, -(-n // ranks) rounds up and stays whole."
    return exact(got, expected)


_SINCE = (3, 2, 1)
_NO_MASTER = {"fp32": (4, 4, 8), "mixed": (2, 2, 8)}
_HALF_ADAM = {"fp32": (4, 4, 8), "mixed": (2, 2, 4)}
_WIDE_GRADIENTS = {"fp32": (4, 4, 8), "mixed": (2, 4, 12)}
_MASTER_APART = {"fp32": (4, 4, 8), "mixed": (6, 2, 8)}
_ONE_AVERAGE = {"fp32": (4, 4, 4), "mixed": (2, 2, 8)}
_BY_STAGE_MISTAKES = (
    ("Layers are padded one by one: a rank's part of each is rounded up.",)
    + (_by_stage(_ELEMENT_BYTES, _SINCE, lambda layers, ranks: -(-sum(layers) // ranks)),),
    ("A part is rounded up, for the padding takes memory as well.",)
    + (_by_stage(_ELEMENT_BYTES, _SINCE, lambda layers, ranks: sum(n // ranks for n in layers)),),
    ("What a stage splits is split layer by layer, each padded: a part of each layer is rounded up, then summed.",)
    + (_by_stage(_ELEMENT_BYTES, _SINCE, lambda layers, ranks: sum(layers) // ranks),),
    ("Only what a stage splits is padded: what it leaves whole has the layers' own numbers.", _padded_everywhere),
    ("A rank holds whole numbers: its part of a layer is rounded up.",)
    + (_by_stage(_ELEMENT_BYTES, _SINCE, lambda layers, ranks: sum(layers) / ranks),),
    ("Mixed precision keeps a master copy of the weights in fp32: 4 bytes more in the optimizer's state.",)
    + (_by_stage(_NO_MASTER, _SINCE, _padded),),
    ("Adam's two averages stay in fp32, and there is a master copy: 12 bytes.", _by_stage(_HALF_ADAM, _SINCE, _padded)),
    ("Adam keeps two averages of each number, not one.", _by_stage(_ONE_AVERAGE, _SINCE, _padded)),
    ("Here gradients have 16 bits in mixed precision: 2 bytes.", _by_stage(_WIDE_GRADIENTS, _SINCE, _padded)),
    ("The master copy is the optimizer's, which stage 1 splits.", _by_stage(_MASTER_APART, _SINCE, _padded)),
    ("Stage 1 splits the optimizer's state, 2 the gradients too, 3 the parameters too: each is one stage early.",)
    + (_by_stage(_ELEMENT_BYTES, (2, 1, 0), _padded),),
    ("Each stage splits what those before it split, too.",)
    + (
        lambda layers, stage, ranks, precision: {
            kind: size * (_padded(layers, ranks) if stage == since else sum(layers))
            for kind, size, since in zip(_KINDS, _ELEMENT_BYTES[precision], _SINCE, strict=True)
        },
    ),
    ("Stage 1 splits the optimizer's state, the last parameters.", _by_stage(_ELEMENT_BYTES, (1, 2, 3), _padded)),
)

# ---- 14.5: the smallest stage that fits -----------------------------------------------------------------------------


def smallest_stage(layers: list[int], ranks: int, room_bytes: int) -> int | None:
    """The smallest stage whose states fit into room_bytes at their worst moment, in mixed precision; None: none does.

    From stage 2 on a layer's whole gradient is there for a moment, in stage 3 its whole parameters as well.
    """
    return next((stage for stage, n_bytes in enumerate(_needs(layers, ranks)) if n_bytes <= room_bytes), None)


def _needs(layers: list[int], ranks: int) -> list[int]:
    """Bytes of each stage at its worst moment."""
    whole, part, largest = sum(layers), _padded(layers, ranks), max(layers)
    return [16 * whole, 4 * whole + 12 * part, 2 * whole + 14 * part + 2 * largest, 16 * part + 4 * largest]


def _fit_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Room for exactly each stage, and a byte less; layers with a rest, one that is larger than all; order drawn.

    The ranks divide the largest layer, so that it does not matter whether what is gathered counts with its padding.
    """
    drawn = [*(int(torch.randint(1000, 9000, (), generator=rng)) for _ in range(5)), 16 * 600]
    cases = []
    for layers, ranks in (([100, 60, 41], 4), ([10, 10, 504], 8), (drawn, 16)):
        needs = _needs(layers, ranks)
        cases += [(layers, ranks, room) for n_bytes in needs for room in (n_bytes, n_bytes - 1)]
    others = [*cases[1:], ([100, 100], 2, 10), ([8, 4032, 8], 64, 24_000)]
    return [cases[0], *(others[i] for i in torch.randperm(len(others), generator=rng))]


def _chosen(needs: Callable[[list[int], int], list]) -> Callable:
    """The smallest stage by other needs."""

    def mistaken(layers: list[int], ranks: int, room_bytes: int) -> int | None:
        return next((stage for stage, n in enumerate(needs(layers, ranks)) if n <= room_bytes), None)

    return mistaken


def _at_rest(layers: list[int], ranks: int) -> list[int]:
    """The needs between steps."""
    whole, part = sum(layers), _padded(layers, ranks)
    return [16 * whole, 4 * whole + 12 * part, 2 * whole + 14 * part, 16 * part]


_FIT_MISTAKES = (
    ("That is between steps. From stage 2 on the largest layer is whole for a moment: 2 or 4 bytes a number.",)
    + (_chosen(_at_rest),),
    ("Stage 3 has a layer's parameters whole, and its gradient as well: 4 bytes a number of the largest.",)
    + (_chosen(lambda ls, r: [*_needs(ls, r)[:3], _at_rest(ls, r)[3] + 2 * max(ls)]),),
    ("In stage 2 a layer's gradient is whole until it is scattered.",)
    + (_chosen(lambda ls, r: [*_at_rest(ls, r)[:3], _needs(ls, r)[3]]),),
    ("What is whole for a moment is one layer, the largest, not the mean of them.",)
    + (
        _chosen(
            lambda ls, r: [
                *_at_rest(ls, r)[:2],
                _at_rest(ls, r)[2] + 2 * sum(ls) / len(ls),
                _at_rest(ls, r)[3] + 4 * sum(ls) / len(ls),
            ]
        ),
    ),
    ("Exactly full still fits.", lambda layers, ranks, room_bytes: smallest_stage(layers, ranks, room_bytes - 1)),
)

# ---- 14.6: the forgotten line ---------------------------------------------------------------------------------------


def forgotten_bytes(batch: int, seq: int, vocab: int, kept_bytes: int) -> int:
    """Bytes at the peak of the loss that states and blocks do not explain: three fp32 copies of the logits' size.

    Log-probabilities, their gradient, and the gradient of the logits; kept_bytes more a logit where a name still holds
    them. Holds for torch's cross_entropy on fp32 logits; a test counts it.
    """
    return (12 + kept_bytes) * batch * seq * vocab


def _forgotten_cases(rng: torch.Generator) -> Sequence[tuple]:
    """One of each; then sizes drawn at random."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    some = [(draw(1, 9), draw(2, 2048), draw(2, 200_000), (0, 2, 4)[draw(0, 3)]) for _ in range(6)]
    return [(1, 1, 1, 0), (2, 3, 5, 0), (2, 3, 5, 4), (2, 3, 5, 2), *some]


def _copies(n_bytes: int) -> Callable:
    """Another number of bytes a logit, besides the kept ones."""
    return lambda batch, seq, vocab, kept_bytes: (n_bytes + kept_bytes) * batch * seq * vocab


_FORGOTTEN_MISTAKES = (
    ("That is the logits alone, once: measure at the peak, which lies in the backward pass of the loss.", _copies(0)),
    ("One copy of four bytes is too few: at the peak three stand side by side.", _copies(4)),
    ("Where a name still holds the logits, they are there as well: kept_bytes for each.",)
    + (lambda batch, seq, vocab, _: 12 * batch * seq * vocab,),
    ("Two copies are those of the forward pass: the backward pass has one more.", _copies(8)),
    ("Logits that no name holds are gone at the peak: kept_bytes counts them where they stay.", _copies(16)),
    ("Each number has bytes: the loss computes in fp32, 4 for each.",)
    + (lambda batch, seq, vocab, kept_bytes: (3 + bool(kept_bytes)) * batch * seq * vocab,),
)


_SHAPES1 = ((2, (((4,), (3, 2)),)), (3, (((2,),), ((5, 3), (7,), (2, 2)))))
_SIZES2 = ((2, (6, 4)), (3, (7, 2, 5)))

EXERCISES = (
    Exercise(
        number="14.1",
        name="bytes_per_rank",
        cases=_by_stage_cases,
        reference=bytes_per_rank,
        compare=_same_whole_numbers,
        mistakes=_BY_STAGE_MISTAKES,
        points=2,
        hints=(
            "Two numbers first: all parameters, and a rank's part of them. -(-n // ranks) is n / ranks rounded up.",
            "A kind is split from its stage on: the optimizer's from 1, gradients from 2, parameters from 3.",
            "fp32: 4, 4 and 8 bytes. mixed: 2, 2, and 12: a master copy and two averages, 4 each.",
        ),
    ),
    Exercise(
        number="14.2",
        name="FlatStage1",
        cases=lambda rng: [(w, shapes, s) for (w, shapes), s in zip(_SHAPES1, seeds(rng, 2), strict=True)],
        reference=zero.FlatStage1,
        compare=sharded.stage1_cause,
        drive=sharded.drive_stage1,
        find=sharded.stage1_found,
        mechanism=sharded.in_shards,
        points=5,
        hints=(
            "Unit, above, does the same for a layer: one padded vector, broadcast, and each p.data a view of it.",
            "The shard is a view of the vector as well: what the optimizer changes is then in its place already.",
            "step(): pack, reduce_scatter, divide, step, all_gather, with the padding of __init__.",
        ),
    ),
    Exercise(
        number="14.3",
        name="ClippedStage2",
        cases=lambda rng: [(w, sizes, s) for (w, sizes), s in zip(_SIZES2, seeds(rng, 2), strict=True)],
        reference=zero.ClippedStage2,
        compare=scattered.stage2_cause,
        drive=scattered.drive_stage2,
        find=scattered.stage2_found,
        mechanism=scattered.gradients_in_shards,
        points=5,
        hints=(
            "ready() is what averaged does, above; the result is added to the gradient that the shard has already.",
            "The norm of everything: the sum of all squares of this rank's parts, dist.all_reduce of that one number, "
            "then the root.",
            "max_norm / norm, but at most 1, is a factor that all ranks have alike. Then optimizer, then all_gather.",
        ),
    ),
    Exercise(
        number="14.4",
        name="GatheredStage3",
        cases=lambda rng: [(w, sizes, s) for (w, sizes), s in zip(_SIZES2, seeds(rng, 2), strict=True)],
        reference=zero.GatheredStage3,
        compare=gathered.stage3_cause,
        drive=gathered.drive_stage3,
        find=gathered.stage3_found,
        mechanism=gathered.freed_between,
        points=4,
        hints=(
            "A shard needs memory of its own before its vector loses it. Then free every layer.",
            "A vector's memory is its untyped_storage(): Sharded, above, empties and fills it with resize_, in place.",
            "ready is what averaged does, above, with the result kept as the shard's gradient, until step drops it.",
        ),
    ),
    Exercise(
        number="14.5",
        name="smallest_stage",
        cases=_fit_cases,
        reference=smallest_stage,
        compare=lambda got, expected: None if got == expected else "Compare each stage's worst moment with the room.",
        mistakes=_FIT_MISTAKES,
        points=2,
        hints=(
            "A list of four needs, one a stage, and the first that is not above the room.",
            "At rest: 16 whole; 4 whole + 12 part; 2 whole + 14 part; 16 part. Then the largest layer's moment.",
        ),
    ),
    Exercise(
        number="14.6",
        name="forgotten_bytes",
        cases=_forgotten_cases,
        reference=forgotten_bytes,
        compare=close(0.0, 0.0, "A number of bytes for each logit, and there are batch x seq x vocab of them."),
        mistakes=_FORGOTTEN_MISTAKES,
        points=2,
        hints=(
            "Divide what is missing by batch * seq * vocab: the same number of bytes, whatever the width.",
            "That number is 12 where no name holds the logits: three fp32 copies. And where one does?",
        ),
    ),
)
