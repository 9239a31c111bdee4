"""What a rank keeps between two steps: parameters, gradients and optimizer state, however they are split.

Bytes are those of the rank that holds most. Left out, and stated: Adam's step counters (4 bytes a tensor) and buffers
that are no parameters. What a step needs besides is `labkit.activations`' matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from labkit.architecture import Architecture, Weight, weights

PRECISIONS = {  # bytes of an element: weights, gradients, a master copy, what the optimizer keeps, activations
    "fp32": (4, 4, 0, 4, 4),
    "bf16": (2, 2, 0, 2, 2),
    "mixed": (2, 2, 4, 4, 2),
    "mixed-fp32-grads": (2, 4, 4, 4, 2),
    "autocast": (4, 4, 0, 4, 2),
}
"""fp32 and bf16: everything in that format. mixed: 16-bit weights and gradients and a master copy of the weights in
fp32 (Micikevicius et al., arXiv:1710.03740; the ZeRO paper counts it so); mixed-fp32-grads: the same, gradients added
up in fp32 (Megatron). autocast: torch's, weights and gradients in fp32, copied to 16 bits while an operation runs."""

OPTIMIZERS = ("sgd", "momentum", "adam", "adam-8bit", "adafactor", "muon")
LAYOUTS = ("flat", "rows", "whole")
_BLOCK, _SMALL = 256, 4096  # bitsandbytes: elements that share a scale; smaller tensors stay in 32 bits
_NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)  # QLoRA, section 3: a scale per 64, itself in 8 bits with one per 256


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained. ValueError, in one sentence that names the numbers, where it cannot be done.

    batch: sequences per rank in one micro-batch; zero: the ZeRO stage; ranks: all of them, tp and pp included;
    shard_ranks: ranks that share one copy (HSDP; 0: all data-parallel ranks); reshard: stage 3 frees parameters after
    the forward pass; micro_batches: in a step (0: as many as pp); lora: the adapters' rank, on every matrix of the
    blocks; base_bits: of the frozen matrices under them. layout, of what is split: "flat" as ZeRO has it, one array
    padded to equal parts; "rows": every tensor by its first dimension (fully_shard); "whole": tensors undivided
    (ZeroRedundancyOptimizer). bucket_view: gradients live in DDP's buckets; otherwise there are two copies.
    fused: the optimizer works tensor by tensor in one kernel (torch's AdamW(fused=True), apex, Megatron): no
    temporaries of the size of all parameters, and in mixed precision no widened copy of all gradients. torch's default
    is foreach, all tensors at once.
    """

    precision: str = "mixed"
    optimizer: str = "adam"
    batch: int = 1
    seq: int = 1024
    zero: int = 0
    ranks: int = 1
    tp: int = 1
    pp: int = 1
    sequence_parallel: bool = False
    shard_ranks: int = 0
    reshard: bool = True
    micro_batches: int = 0
    recompute: str = "none"
    attention: str = "flash"
    lora: int = 0
    base_bits: int = 16
    layout: str = "flat"
    bucket_view: bool = True
    fused: bool = False

    def __post_init__(self):
        choices = {"precision": tuple(PRECISIONS), "optimizer": OPTIMIZERS, "recompute": ("none", "selective", "full")}
        choices |= {"attention": ("flash", "math"), "zero": (0, 1, 2, 3), "base_bits": (4, 16), "layout": LAYOUTS}
        for key, allowed in choices.items():
            if getattr(self, key) not in allowed or isinstance(getattr(self, key), (bool, float)):
                names = ", ".join(map(str, allowed))
                raise ValueError(f"{key} is {getattr(self, key)!r}, and must be one of {names}.")
        lowest = {"batch": 1, "seq": 1, "ranks": 1, "tp": 1, "pp": 1, "shard_ranks": 0, "micro_batches": 0, "lora": 0}
        for key, least in lowest.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{key} is {value!r}, and must be a whole number from {least} up.")
        for key in ("sequence_parallel", "reshard", "bucket_view", "fused"):
            if not isinstance(getattr(self, key), bool):
                raise ValueError(f"{key} is {getattr(self, key)!r}, and must be True or False.")
        self._check_ranks()
        if self.base_bits == 4 and not self.lora:
            raise ValueError("Weights of 4 bits cannot be trained: they need adapters, such as lora=16.")
        if self.optimizer == "adafactor" and self.zero:
            raise ValueError(f"Adafactor sums rows and columns of whole matrices, which ZeRO {self.zero} cuts.")
        if self.optimizer == "adafactor" and self.fused:
            raise ValueError("Adafactor has no fused kernel: leave fused out.")
        if self.layout == "whole" and self.zero > 1:
            raise ValueError(f"Undivided tensors are ZeRO 1's layout, and zero is {self.zero}.")

    def _check_ranks(self) -> None:
        """That the ways to split the ranks go together."""
        each = self.tp * self.pp
        if self.ranks % each:
            raise ValueError(f"{self.ranks} ranks cannot be split into groups of tp {self.tp} x pp {self.pp} = {each}.")
        if self.data_ranks % self.shards:
            raise ValueError(f"{self.data_ranks} data-parallel ranks cannot be split into groups of {self.shards}.")
        if self.sequence_parallel and (self.tp == 1 or self.seq % self.tp):
            why = "and tp is 1" if self.tp == 1 else f"and {self.tp} does not divide {self.seq}"
            raise ValueError(f"Sequence parallelism cuts {self.seq} tokens among {self.tp} tp ranks, {why}.")

    @property
    def frozen_bits(self) -> int:
        """Bits of an element of a base that adapters leave frozen: 4, or the width that the precision gives weights."""
        return 4 if self.base_bits == 4 else 8 * PRECISIONS[self.precision][0]

    @property
    def data_ranks(self) -> int:
        """Ranks that see different data with the same weights."""
        return self.ranks // (self.tp * self.pp)

    @property
    def shards(self) -> int:
        """Ranks among which ZeRO splits one copy."""
        return self.shard_ranks or self.data_ranks


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes at rest of one rank; a frozen base counts among the parameters, a master copy with the optimizer."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


@dataclass(frozen=True)
class Held:
    """Tensors of one shape that a rank holds before ZeRO splits them; bits: of a frozen one, 0 for one that trains."""

    shape: tuple[int, ...]
    times: int
    part: str = ""
    bits: float = 0

    @property
    def total(self) -> int:
        """Elements of all of them."""
        return self.times * prod(self.shape)


def check(arch: Architecture, plan: Plan) -> None:
    """ValueError, in one sentence that names the numbers, where this model cannot be trained by this plan."""
    for what, size in (("heads", arch.heads), ("key and value heads", arch.kv_heads), ("columns", arch.hidden)):
        if size % plan.tp:
            raise ValueError(f"{arch.name} has {size} {what}, which tp {plan.tp} does not divide.")
    if arch.layers % plan.pp:
        raise ValueError(f"{arch.name} has {arch.layers} layers, which pp {plan.pp} does not divide.")
    if arch.positions and plan.seq > arch.positions:
        raise ValueError(f"{arch.name} has {arch.positions} positions, too few for sequences of {plan.seq}.")


def held(arch: Architecture, plan: Plan, stage: int = 0) -> list[Held]:
    """What a rank of this pipeline stage holds: layers cut by tp, ends where they belong, adapters beside their base.

    A vocabulary that tp does not divide is padded up to the next multiple, as Megatron does (to one of 128 tp).
    """
    check(arch, plan)
    found = []
    for weight in weights(arch):
        times = weight.times // plan.pp if weight.per_layer else weight.times * _lives_here(weight, arch, plan, stage)
        if not times:
            continue
        adapted = plan.lora and weight.per_layer and len(weight.shape) == 2 and weight.part in ("attention", "mlp")
        whole_bits = 8 * PRECISIONS[plan.precision][0]
        bits = 0 if not plan.lora else _NF4_BITS if adapted and plan.base_bits == 4 else whole_bits
        found.append(Held(_cut(weight.shape, weight.split, plan.tp), times, weight.part, bits))
        if adapted:  # B @ A beside the matrix; the side that tp cuts is cut here as well
            (rows, columns), split = weight.shape, weight.split
            found.append(Held(_cut((plan.lora, columns), 1 if split == 1 else None, plan.tp), times, weight.part))
            found.append(Held(_cut((rows, plan.lora), 0 if split == 0 else None, plan.tp), times, weight.part))
    return found


def _lives_here(weight: Weight, arch: Architecture, plan: Plan, stage: int) -> bool:
    """Whether the first or the last pipeline stage, or both for a tied matrix, holds a tensor of the model's ends."""
    first, last = stage == 0, stage == plan.pp - 1
    if weight.part == "embedding":
        return first or (last and arch.tied)
    return first if weight.part == "positions" else last


def _cut(shape: tuple[int, ...], split: int | None, tp: int) -> tuple[int, ...]:
    """The shape of a tensor-parallel rank's part, padded up where tp does not divide it."""
    return tuple(_up(size, tp) if dim == split else size for dim, size in enumerate(shape))


def states(model: Architecture | int | Sequence[Sequence[int]], plan: Plan, stage: int = 0) -> States:
    """Bytes at rest of a rank of this pipeline stage: the one that holds most.

    model: sizes, the shapes of all parameters, or their bare number. ValueError: what a number or shapes cannot tell.
    Source: Rajbhandari et al., ZeRO (arXiv:1910.02054), section 5, and the padding that real shards need.
    """
    tensors = held(model, plan, stage) if isinstance(model, Architecture) else _bare(model, plan)
    weight_bytes, gradient_bytes, master_bytes, _, _ = PRECISIONS[plan.precision]
    trained = [each for each in tensors if not each.bits]
    frozen = [each for each in tensors if each.bits]
    at = lambda stage: plan.shards if plan.zero >= stage else 1
    elements = lambda shards: _elements(trained, plan.layout, shards)
    copies = 2 if plan.zero < 2 and plan.data_ranks > 1 and not plan.bucket_view else 1
    optimizer = master_bytes * elements(at(1)) + _optimizer_bytes(trained, plan, at(1))
    frozen_bytes = sum(ceil(_elements([each], plan.layout, at(3)) * each.bits / 8) for each in frozen)
    return States(
        parameters_bytes=frozen_bytes + weight_bytes * elements(at(3)),
        gradients_bytes=copies * gradient_bytes * elements(at(2)),
        optimizer_bytes=optimizer,
    )


def _bare(model: int | Sequence[Sequence[int]], plan: Plan) -> list[Held]:
    """Tensors of which only the shapes are known, or only how many elements they have together."""
    counted = isinstance(model, int)
    if isinstance(model, bool):
        raise ValueError(f"The number of parameters is {model}, and must be a whole number.")
    unknown = {"tp": plan.tp > 1, "pp": plan.pp > 1, "lora": plan.lora > 0, "muon": plan.optimizer == "muon"}
    unknown |= {"adafactor": counted and plan.optimizer == "adafactor", "layout": counted and plan.layout != "flat"}
    for what, asked in unknown.items():
        if asked:
            raise ValueError(f"What {what} splits or keeps depends on the model's sizes: name a model or a config.")
    if counted and model < 1:
        raise ValueError(f"The number of parameters is {model}, and must be 1 or more.")
    return [Held((model,), 1)] if counted else [Held(tuple(shape), 1) for shape in model]


def _elements(tensors: Sequence[Held], layout: str, shards: int) -> int:
    """Elements of a rank's part, the largest one's, padding included."""
    if layout == "rows":
        return sum(_up(each.shape[0], shards) * prod(each.shape[1:]) * each.times for each in tensors)
    if layout == "whole":
        return max(sum(prod(shape) for shape in mine) for mine in _dealt(tensors, shards))
    return _up(sum(each.total for each in tensors), shards)


def _up(size: int, parts: int) -> int:
    """The largest of so many nearly equal parts; in whole numbers, for floats lose some above 2**53."""
    return -(-size // parts)


def _dealt(tensors: Sequence[Held], shards: int) -> list[list[tuple[int, ...]]]:
    """Each rank's shapes where tensors stay whole: from the largest down, each to the rank that has least so far.

    Source: torch/distributed/optim/zero_redundancy_optimizer.py, _partition_parameters (torch 2.13).
    """
    shapes = [each.shape for each in tensors for _ in range(each.times)]
    mine, sizes = [[] for _ in range(shards)], [0] * shards
    for shape in sorted(shapes, key=prod, reverse=True):
        least = sizes.index(min(sizes))
        mine[least].append(shape)
        sizes[least] += prod(shape)
    return mine


def _optimizer_bytes(tensors: Sequence[Held], plan: Plan, shards: int) -> int:
    """What the optimizer itself keeps, a master copy left out."""
    element_bytes = PRECISIONS[plan.precision][3]
    if plan.optimizer == "adafactor":
        return element_bytes * sum(each.times * _factors(each.shape) for each in tensors)
    if plan.optimizer == "muon":  # momentum for the blocks' matrices, Adam for the rest
        by_muon = [each for each in tensors if len(each.shape) == 2 and each.part in ("attention", "mlp", "router")]
        by_adam = [each for each in tensors if each not in by_muon]
        return element_bytes * sum(n * _elements(some, plan.layout, shards) for n, some in ((1, by_muon), (2, by_adam)))
    if plan.optimizer == "adam-8bit":
        return 2 * sum(_quantised_bytes(each, plan, shards) for each in tensors)
    kept = {"sgd": 0, "momentum": 1, "adam": 2}[plan.optimizer]
    return kept * element_bytes * _elements(tensors, plan.layout, shards)


def _factors(shape: tuple[int, ...]) -> int:
    """Numbers that Adafactor keeps: a matrix's rows and columns; every element of a vector.

    Source: Shazeer and Stern (arXiv:1804.04235), section 3; torch.optim.Adafactor.
    """
    return prod(shape[:-2]) * (shape[-2] + shape[-1]) if len(shape) > 1 else prod(shape)


def _quantised_bytes(each: Held, plan: Plan, shards: int) -> int:
    """One of Adam's two averages in 8 bits: a byte an element and a scale of 4 bytes a block; small tensors in fp32.

    Source: Dettmers et al., 8-bit optimizers (arXiv:2110.02861); bitsandbytes, optim/optimizer.py (0.45).
    """
    elements = _elements([each], plan.layout, shards)
    return 4 * elements if prod(each.shape) < _SMALL else elements + 4 * _up(elements, _BLOCK)
