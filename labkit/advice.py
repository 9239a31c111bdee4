"""What to change first where a training does not fit: each single change tried by what it costs, then the smallest few.

The order of cost is stated, and anyone may hold another one: first what costs nothing, then communication and time,
then what rounds more coarsely, then more cards, and at last what trains something else.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from labkit.states import Plan

Step = tuple[str, Mapping[str, object]]  # how a change is called, and the fields of the plan that it sets
Path = list[tuple[str, Plan]]  # what changed, and the plan then, one after another
MOST_CHANGES = 4
_TIMES_RANKS = (2, 4, 8, 16, 32, 64)
_SHORTEST = 512


@dataclass(frozen=True)
class Lever:
    """One thing that can be changed: what it costs, and its steps from a plan on, the mildest first."""

    name: str
    costs: str
    steps: Callable[[Plan], Sequence[Step]]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Changes that make a plan fit, the lever of each, and the bytes of one rank at the peak after all of them."""

    changes: tuple[str, ...]
    levers: tuple[Lever, ...]
    plan: Plan
    total_bytes: int


def _fused(plan: Plan) -> list[Step]:
    """An optimizer that makes nothing of the size of all parameters while it steps."""
    usable = not plan.fused and plan.optimizer != "adafactor"
    return [("a fused optimizer", {"fused": True})] if usable else []


def _flash(plan: Plan) -> list[Step]:
    """Attention that stores no matrix of sequence by sequence."""
    return [("flash attention", {"attention": "flash"})] if plan.attention == "math" else []


def _sequence_parallel(plan: Plan) -> list[Step]:
    """What tensor parallelism keeps whole, cut along the sequence."""
    usable = plan.tp > 1 and not plan.sequence_parallel
    return [("sequence parallelism", {"sequence_parallel": True})] if usable else []


def _zero(plan: Plan) -> list[Step]:
    """Higher stages; none where there are no other ranks to share with."""
    stages = range(plan.zero + 1, 4) if plan.data_ranks > 1 else ()
    return [(f"ZeRO stage {stage}", {"zero": stage}) for stage in stages]


def _share_wider(plan: Plan) -> list[Step]:
    """What was gathered is freed after the forward pass; one copy is shared by all data ranks and not by a few."""
    found: list[Step] = []
    if plan.zero == 3 and not plan.reshard:
        found.append(("parameters freed after the forward pass", {"reshard": True}))
    if plan.zero and plan.shard_ranks not in (0, plan.data_ranks):
        found.append((f"shards over all {plan.data_ranks} data ranks", {"shard_ranks": 0, "reshard": True}))
    return found


def _batch(plan: Plan) -> list[Step]:
    """The batch halved, down to one sequence."""
    sizes = [plan.batch >> power for power in range(1, plan.batch.bit_length())]
    return [(f"batch {size}, not {plan.batch}", {"batch": size}) for size in sizes]


def _recompute(plan: Plan) -> list[Step]:
    """Activations computed a second time instead of kept."""
    kinds = ("none", "selective", "full")
    return [(f"{kind} recomputation", {"recompute": kind}) for kind in kinds[kinds.index(plan.recompute) + 1 :]]


def _precision(plan: Plan) -> list[Step]:
    """16-bit gradients and activations beside a copy of the weights in fp32."""
    return [("mixed precision", {"precision": "mixed"})] if plan.precision not in ("mixed", "bf16") else []


def _eight_bit(plan: Plan) -> list[Step]:
    """Adam's two averages in 8 bits each."""
    return [("8-bit Adam", {"optimizer": "adam-8bit"})] if plan.optimizer == "adam" else []


def _ranks(plan: Plan) -> list[Step]:
    """Twice the ranks, and twice again."""
    return [(f"{times * plan.ranks} ranks, not {plan.ranks}", {"ranks": times * plan.ranks}) for times in _TIMES_RANKS]


def _tensor(plan: Plan) -> list[Step]:
    """Matrices cut over up to 8 ranks; on as many ranks as before where that is possible."""
    found: list[Step] = []
    for tp in (each for each in (2, 4, 8) if each > plan.tp):
        ranks = plan.ranks if plan.ranks % (tp * plan.pp) == 0 else plan.data_ranks * tp * plan.pp
        more = f" on {ranks} ranks" if ranks != plan.ranks else ""
        found.append((f"tensor parallelism over {tp}{more}", {"tp": tp, "ranks": ranks}))
    return found


def _pure_bf16(plan: Plan) -> list[Step]:
    """No copy of the weights in fp32."""
    return [("pure bf16", {"precision": "bf16"})] if plan.precision != "bf16" else []


def _shorter(plan: Plan) -> list[Step]:
    """The sequence halved, down to 512 tokens."""
    lengths = [plan.seq >> power for power in range(1, plan.seq.bit_length()) if plan.seq >> power >= _SHORTEST]
    return [(f"sequences of {length:,} tokens, not {plan.seq:,}", {"seq": length}) for length in lengths]


def _lora(plan: Plan) -> list[Step]:
    """Adapters alone are trained, over a base that is frozen; then over one of 4 bits."""
    found: list[Step] = [] if plan.lora else [("LoRA of rank 16", {"lora": 16})]
    name = "a base of 4 bits" if plan.lora else "QLoRA (rank 16 over a base of 4 bits)"
    return found if plan.base_bits == 4 else [*found, (name, {"lora": plan.lora or 16, "base_bits": 4})]


LEVERS = (
    Lever("a fused optimizer", "costs nothing", _fused),
    Lever("flash attention", "costs nothing", _flash),
    Lever("sequence parallelism", "costs no more communication", _sequence_parallel),
    Lever("ZeRO", "stages 1 and 2 cost no more communication, stage 3 half as much again", _zero),
    Lever("wider sharding", "costs communication between more ranks", _share_wider),
    Lever("a smaller batch", "costs efficiency; accumulate gradients for the same step", _batch),
    Lever("recomputation", "costs up to a third more computing", _recompute),
    Lever("mixed precision", "rounds to 16 bits while computing", _precision),
    Lever("8-bit Adam", "rounds the optimizer's state", _eight_bit),
    Lever("more ranks", "costs cards", _ranks),
    Lever("tensor parallelism", "costs communication in every layer", _tensor),
    Lever("pure bf16", "rounds every update; small ones are lost", _pure_bf16),
    Lever("shorter sequences", "learns from less context", _shorter),
    Lever("LoRA", "trains adapters and not the model", _lora),
)
"""From what costs nothing to what trains something else."""


def advise(
    plan: Plan,
    total_bytes: Callable[[Plan], int],
    memory_bytes: int,
    *,
    most: int = MOST_CHANGES,
    levers: Sequence[Lever] = LEVERS,
) -> Advice | None:
    """The cheapest single change that makes the plan fit, else the smallest combination of up to `most`; None: none.

    total_bytes says what a plan takes, and raises ValueError for one that is not possible. Of combinations as large,
    the one of the cheapest levers counts, each taken no further than is needed, the dearest looked at first. Where
    more of one lever would take more memory, a combination can be missed.
    """
    seen: dict[Plan, float] = {}

    def takes(candidate: Plan) -> float:
        if candidate not in seen:
            try:
                seen[candidate] = total_bytes(candidate)
            except ValueError:
                seen[candidate] = math.inf
        return seen[candidate]

    for size in range(1, most + 1):
        for chosen in sorted(combinations(range(len(levers)), size), key=lambda each: (sum(each), each)):
            some = [levers[index] for index in chosen]
            found = _fitting(some, plan, lambda each: takes(each) <= memory_bytes)
            if found:
                words, (*_, changed) = zip(*found, strict=True)
                return Advice(changes=words[::-1], levers=tuple(some), plan=changed, total_bytes=int(takes(changed)))
    return None


def _fitting(levers: Sequence[Lever], plan: Plan, fits: Callable[[Plan], bool]) -> Path:
    """A step of each lever, none further than needed, after which the plan fits; empty where there are none.

    Several levers are looked at step by step only where the plan fits with the last step of each.
    """
    if len(levers) > 1 and not any(fits(path[-1][1]) for path in _paths(levers, plan, last_only=True)):
        return []
    return next((path for path in _paths(levers, plan) if fits(path[-1][1])), [])


def _paths(levers: Sequence[Lever], plan: Plan, *, last_only: bool = False) -> Iterator[Path]:
    """Every choice of a step a lever, as (what changed, the plan then), from the dearest lever to the cheapest.

    The dearest comes first since more ranks are what lets ZeRO share, and so varies slowest: its mildest step counts.
    """
    *cheaper, dearest = levers
    steps = _possible(dearest, plan)
    for step in steps[-1:] if last_only else steps:
        if cheaper:
            yield from ([step, *rest] for rest in _paths(cheaper, step[1], last_only=last_only))
        else:
            yield [step]


def _possible(lever: Lever, plan: Plan) -> Path:
    """The lever's steps from the plan on that make a possible plan."""
    found: Path = []
    for words, fields in lever.steps(plan):
        try:
            found.append((words, replace(plan, **fields)))
        except ValueError:
            continue
    return found
