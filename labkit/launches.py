"""What a host knows of a torch operation before it has run: whether it must wait for it, and what will come back.

Shape, strides and type of a result follow from those of the arguments, from whole numbers (a dim, a size) and from
flags. So they are remembered by these: floats, and numbers that are calculated with, count by their type alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, no_type_check

import torch
from torch import Tensor

from labkit.waits import has_mask


@dataclass(frozen=True, eq=False, slots=True)
class Meta:
    """Size, strides, offset and type of a tensor; there is one for all tensors that agree in these.

    conj, neg: its values are still to be conjugated, or negated: torch puts that off. form: the same object for all
    that agree in all but the offset, on which no result but a view's depends.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conj: bool
    neg: bool
    form: object = field(repr=False)

    @no_type_check
    def marked(self, tensor: Tensor) -> Tensor:
        """The tensor, told what is put off."""
        if self.conj:
            torch._C._set_conj(tensor, True)
        if self.neg:
            torch._C._set_neg(tensor, True)
        return tensor


MOST = 50_000  # kinds of tensors that are remembered; then all are forgotten
_metas: dict[tuple, Meta] = {}
_forms: dict[tuple, object] = {}


@no_type_check
def meta_of(tensor: Tensor) -> Meta:
    """What a tensor is without its values; the same object for equal tensors. NotImplementedError: it is not dense."""
    if tensor.layout is not torch.strided:
        raise NotImplementedError("a tensor that is not dense: the device thread cannot hold it")
    size, stride, offset, dtype = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
    parts = (size, stride, offset, dtype, tensor.is_conj(), tensor.is_neg())
    found = _metas.get(parts)
    if found is None:
        if len(_metas) >= MOST:
            _metas.clear()
            _forms.clear()
        form = _forms.setdefault((size, stride, *parts[3:]), object())
        found = _metas.setdefault(parts, Meta(*parts, form))
    return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one operation is launched.

    name: as the course writes it, `mm`. waits: asks arguments whether the host must wait for the result. is_view: it
    only looks at another tensor's memory, which costs a device nothing. refused: what it does that cannot be done here.
    writes: the arguments that it changes. returns: for each result, the argument that it is, or None; gives: it returns
    what it was given, and nothing else.
    numbers: the arguments that are calculated with, whose value shapes nothing. reads: it gives one value to the host,
    for whatever the code asked: item, bool, float. fills: it draws random numbers, whatever its tensor's values are.
    call: what the worker calls.
    """

    name: str
    waits: Callable[[Sequence, dict], bool]
    is_view: bool
    refused: str
    writes: tuple[int | str, ...]
    returns: tuple[int | str | None, ...]
    gives: bool
    numbers: frozenset[int | str]
    reads: bool
    fills: bool
    call: Callable


@cache
def plan_of(func: Any) -> Plan:
    """The plan of an ATen operation, read from its schema and its tags."""
    schema = func._schema
    place = {a.name: a.name if a.kwarg_only else i for i, a in enumerate(schema.arguments)}
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    returned = [_argument_with(r.alias_info, written) for r in schema.returns]
    return Plan(
        name=_NAMES.get(schema.name, schema.name.removeprefix("aten::")),
        waits=_waiting(func),
        is_view=func.is_view or schema.name.startswith("aten::unsafe_"),  # views that say they are none
        refused=_refused(func),
        writes=tuple(place[a.name] for a in written),
        returns=tuple(place.get(name) for name in returned),
        gives=bool(returned) and all(name is not None for name in returned),
        numbers=frozenset(place[a.name] for a in schema.arguments if "number" in str(a.type)),
        reads=schema.name == "aten::_local_scalar_dense",
        fills=_draws(func) and _is_blind(func),
        call=_for_training(func) if schema.name == "aten::mkldnn_rnn_layer" else func,
    )


_NAMES = {"aten::_local_scalar_dense": "item"}


def _refused(func: Any) -> str:
    """What an operation does that the device thread cannot do, or nothing."""
    name = func._schema.name
    if torch.Tag.inplace_view in func.tags:
        return "changes a tensor's size in place"
    if "sparse_coo" in name or name == "aten::_nested_tensor_from_mask":
        return "makes a tensor that is not dense"
    return "packs sequences (mask them instead)" if name == "aten::_pack_padded_sequence" else ""


def _for_training(func: Any) -> Callable:
    """The operation where gradients are wanted: an LSTM keeps what its backward pass needs only there."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return func(*args, **kwargs)

    return call


def _argument_with(alias: Any, written: Sequence) -> str | None:
    """The name of the argument that a result is, where the operation writes into it."""
    if alias is None or not alias.is_write:
        return None
    return next((a.name for a in written if a.alias_info.before_set & alias.before_set), None)


def _draws(func: Any) -> bool:
    """Whether an operation takes random numbers from a generator (attention, on a CPU, does not)."""
    drawing = torch.Tag.nondeterministic_seeded in func.tags or any(
        a.name == "generator" for a in func._schema.arguments
    )
    return drawing and "attention" not in func._schema.name


def _is_blind(func: Any) -> bool:
    """Whether what an operation draws hangs on its one tensor's shape alone: `normal_`, `rand_like`."""
    tensors = ["Tensor" in str(a.type) for a in func._schema.arguments]
    return sum(tensors) == 1 == sum(tensors[:1]) and func._schema.name.endswith(("_", "_like"))


def _waiting(func: Any) -> Callable[[Sequence, dict], bool]:
    """Whether the host must wait: where values decide what comes back, as on a GPU."""
    name = func._schema.name
    if name == "aten::index":
        return lambda args, _kwargs: has_mask(args[1])
    if name in ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        return lambda args, _kwargs: has_mask(args[1]) and not _is_number(args[2])
    if name == "aten::repeat_interleave":
        return lambda _args, kwargs: kwargs.get("output_size") is None
    decided = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags) or _draws(func)
    return lambda _args, _kwargs: bool(decided)


@no_type_check
def _is_number(value: Tensor) -> bool:
    """Whether a value is one the host knows: with a mask, it makes a masked_fill."""
    return type(value) is Tensor and value.numel() == 1


@no_type_check
def outline(result: object) -> object:
    """A result with a Meta in place of each tensor: what the host needs to hand out handles before it is there."""
    if isinstance(result, Tensor):
        return meta_of(result)
    return type(result)(map(outline, result)) if isinstance(result, (tuple, list)) else result


def outline_of_view(func: Any, args: Sequence, kwargs: dict) -> object:
    """The outline of a view, computed without values; args hold a Meta for each tensor."""
    return outline(func(*map(_shadow, args), **kwargs))


def _shadow(value: object) -> object:
    """A tensor without memory for a Meta; anything else as it is."""
    if isinstance(value, Meta):
        return value.marked(_memory(value.dtype).as_strided(value.size, value.stride, value.offset))
    return value


@cache
def _memory(dtype: torch.dtype) -> Tensor:
    """More memory than anyone has, of the kind that holds nothing: every view of a tensor fits into it."""
    return torch.empty(2**50, dtype=dtype, device="meta")


@no_type_check
def given(plan: Plan, args: Sequence, kwargs: dict) -> Any:
    """The arguments that an operation wrote into and returns."""
    given = tuple(args[place] if isinstance(place, int) else kwargs[place] for place in plan.returns)
    return given[0] if len(given) == 1 else given
