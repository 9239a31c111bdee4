"""Bytes that a rank hands to each collective in one training step, for every way to split it."""

from collections import Counter
from math import ceil

from labkit.architecture import Architecture
from labkit.states import PRECISIONS, Plan, check, held


def communication_bytes(model: Architecture | int, plan: Plan, stage: int = 0) -> dict[str, int]:
    """Bytes per step that a rank of this pipeline stage hands in, by collective, named as `labkit.ranks.counting` does.

    all_reduce: the whole array; reduce_scatter: the whole, padded; all_gather: this rank's part; send: what is sent.
    Left out: the vocabulary-parallel loss (a number or two a token), norms of gradients, and what keeps order.
    Sources: Rajbhandari et al., ZeRO (arXiv:1910.02054), section 7; Korthikanti et al. (arXiv:2205.05198), section 4.2.
    """
    found = Counter(_of_states(model, plan, stage))
    if isinstance(model, Architecture):
        found += _of_tensor_parallel(model, plan, stage) + _of_pipeline(model, plan, stage)
    return {op: n_bytes for op, n_bytes in found.items() if n_bytes}


def _micro_batches(plan: Plan) -> int:
    """Micro-batches in a step."""
    return plan.micro_batches or plan.pp


def _of_states(model: Architecture | int, plan: Plan, stage: int) -> Counter:
    """What data-parallel ranks exchange: gradients once a step, parameters as often as stage 3 frees them.

    Stages 0 and 1 add gradients up over micro-batches before they send; 2 and 3 have no room for that. Gradients
    travel in their own format and parameters in that of the weights (autocast: fp32).
    """
    if plan.data_ranks == 1:
        return Counter()
    tensors = held(model, plan, stage) if isinstance(model, Architecture) else None
    trained = sum(each.total for each in tensors if not each.bits) if tensors else model
    frozen_bits = sum(each.total * each.bits for each in tensors) if tensors else 0
    weight_bytes, gradient_bytes, *_ = PRECISIONS[plan.precision]
    part = -(-trained // plan.shards)
    if plan.zero == 0:
        return Counter(all_reduce=gradient_bytes * trained)
    times = _micro_batches(plan) if plan.zero > 1 else 1
    found = Counter(reduce_scatter=times * gradient_bytes * part * plan.shards, all_gather=weight_bytes * part)
    if plan.zero == 3:
        gathers = _micro_batches(plan) * (2 if plan.reshard else 1)
        found["all_gather"] = gathers * (weight_bytes * part + ceil(frozen_bits / 8 / plan.shards))
    if plan.shards < plan.data_ranks:  # HSDP: copies agree on the part that each of them has summed
        found["all_reduce"] = times * gradient_bytes * part
    return found


def _of_tensor_parallel(arch: Architecture, plan: Plan, stage: int) -> Counter:
    """Two all-reduces forward and two backward in a block, and one at either end of the model.

    With sequence parallelism each is a reduce-scatter and an all-gather, and a backward pass gathers once more what
    each of the two matrices began from. Full recomputation repeats a block's forward pass.
    """
    if plan.tp == 1:
        return Counter()
    check(arch, plan)
    whole = plan.batch * plan.seq * arch.width * PRECISIONS[plan.precision][4] * _micro_batches(plan)
    layers = arch.layers // plan.pp
    forward = 2 * layers * (2 if plan.recompute == "full" else 1)
    sums = forward + 2 * layers + (stage == 0) + (stage == plan.pp - 1)
    if not plan.sequence_parallel:
        return Counter(all_reduce=sums * whole)
    return Counter(reduce_scatter=sums * whole, all_gather=(sums + 2 * layers) * whole // plan.tp)


def _of_pipeline(arch: Architecture, plan: Plan, stage: int) -> Counter:
    """Activations sent to the next stage and their gradients to the one before, a tensor-parallel rank's part of them.

    A tied head's gradient is added up between the first and the last stage.
    """
    if plan.pp == 1:
        return Counter()
    whole = plan.batch * plan.seq * arch.width * PRECISIONS[plan.precision][4] * _micro_batches(plan)
    neighbours = (stage > 0) + (stage < plan.pp - 1)
    share = plan.tp if plan.sequence_parallel else 1
    found = Counter(send=neighbours * whole // share, recv=neighbours * whole // share)
    if arch.tied and stage in (0, plan.pp - 1):
        found["all_reduce"] = PRECISIONS[plan.precision][1] * -(-arch.vocab // plan.tp) * arch.width
    return found
