"""Which operations make the host wait for the device, and what to write instead.

A wait has one of two reasons: a value has to come to the host (`.item()`, `if`, printing, a shape that hangs on the
data), or bytes cross between host and device and the call stays until they have.
Sources: PyTorch, torch.cuda.set_sync_debug_mode, and CUDA semantics, "Asynchronous execution"
(https://docs.pytorch.org/docs/stable/notes/cuda.html); aten/src/ATen/native: TensorAdvancedIndexing.cpp (a mask and a
number become masked_fill), Onehot.cpp, Repeat.cpp.
"""

from collections.abc import Mapping, Sequence
from typing import Any, no_type_check

import numpy as np
import torch

VALUE = "keep it on the device (add it up there, read it every k steps), or fetch it with non_blocking=True"
BRANCH = "the branch needs the value: use torch.where on the device, or check every k steps"
SHOWN = "showing a tensor fetches it: keep the tensor, print every k steps"
SHAPE = "the size of the result hangs on the data: keep the full shape, mask with torch.where or masked_fill"
COPY = "copy with non_blocking=True, from pinned memory, and use the copy later"
MADE = "make it on the device (torch.full, arange, zeros), or once before the loop"
COMPARE = "compare on the device, (a == b).all(), and read the answer later"
INDEX = "index_select (or a slice whose bounds are Python numbers) keeps the index on the device"
INDEXED = "make the index a tensor on the device once, before the loop"
CLASSES = "name the sizes: one_hot(x, num_classes); for bincount, index_add_ ones to torch.zeros(n)"
REPEATS = "give output_size, the sum of the repeats, if you know it"
PINNED = "pin once, before the loop, or let the DataLoader do it (pin_memory=True)"
EXPLICIT = "a timing needs it, a training loop does not"

# Functions that fetch a value without the dispatcher noticing, and functions that may copy between host and device.
FETCHES = {"tolist", "numpy", "__array__", "cpu", "__repr__", "__format__"}
COPIES = {"to", "cuda", "copy_", "tensor", "as_tensor", "new_tensor", "pin_memory", "put"}
EXPLICIT_WAITS = {"synchronize", "get"}
_NUMBERS = {int, type(None), type(...)}
MASKS = (torch.bool, torch.uint8)

MAKERS = {"zeros", "ones", "empty", "rand", "randn"}  # of HARMLESS those whose first argument is a size

# Operations of the dispatcher that always wait, and the advice.
OPERATIONS = {
    "_local_scalar_dense": VALUE,
    "is_nonzero": BRANCH,
    "nonzero": SHAPE,
    "masked_select": SHAPE,
    "_unique": SHAPE,
    "_unique2": SHAPE,
    "unique_dim": SHAPE,
    "unique_consecutive": SHAPE,
    "unique_dim_consecutive": SHAPE,
    "bincount": CLASSES,
    "equal": COMPARE,
    "allclose": COMPARE,
}
OPERATION_CALLED = {"_local_scalar_dense": "item", "_unique2": "unique", "index": "boolean indexing"}
# Operations that wait with some arguments; nothing else has to be looked at.
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
CANDIDATES = {*OPERATIONS, *_INDEXING, "repeat_interleave"}
# Functions that never wait unless a number among their arguments is a tensor: they are let through, which is quicker
# than looking into them. tests/test_sync.py looks, with the sample inputs that torch tests its operations with.
HARMLESS = frozenset(
    {
        "__get__", "__rdiv__", "__rpow__", "__rsub__", "__set__", "abs", "add", "add_", "addcdiv_", "addcmul_",
        "addmm", "all", "amax", "amin", "any", "argmax", "baddbmm", "batch_norm", "bfloat16", "bmm", "cat", "ceil",
        "chunk", "clamp", "clamp_", "clone", "contiguous", "conv1d", "conv2d", "cos", "cross_entropy", "cumsum",
        "detach", "detach_", "dim", "div", "div_", "double", "dropout", "einsum", "embedding", "empty", "empty_like",
        "eq", "exp", "exp_", "expand", "expand_as", "fill_", "flatten", "float", "floor", "full_like", "gather", "ge",
        "gelu", "group_norm", "gt", "half", "index_select", "is_contiguous", "is_floating_point", "isfinite", "isinf",
        "isnan", "layer_norm", "le", "lerp", "lerp_", "linear", "log", "log1p", "log_softmax", "logical_and",
        "logical_not", "logical_or", "logsumexp", "long", "lt", "masked_fill", "masked_fill_", "matmul", "max",
        "max_pool2d", "maximum", "mean", "min", "minimum", "mm", "movedim", "mul", "mul_", "ne", "neg", "norm",
        "numel", "ones", "ones_like", "outer", "permute", "pow", "rand", "rand_like", "randn", "randn_like",
        "reciprocal", "relu", "relu_", "repeat", "requires_grad_", "reshape", "rms_norm", "round", "rsqrt", "rsub",
        "scaled_dot_product_attention", "scatter_add_", "sigmoid", "sigmoid_", "sign", "silu", "sin", "size",
        "softmax", "softplus", "sort", "sqrt", "square", "squeeze", "stack", "std", "stride", "sub", "sub_", "sum",
        "t", "tanh", "topk", "transpose", "tril", "triu", "unbind", "unflatten", "unsqueeze", "var", "view", "zero_",
        "zeros", "zeros_like",
    }
)
# What a function is called in a report, and its advice where it differs from that of the operation inside it.
CALLED: Mapping[str, tuple[str, str]] = {
    "item": ("item", VALUE),
    "__float__": ("float", VALUE),
    "__int__": ("int", VALUE),
    "__index__": ("int", VALUE),
    "__complex__": ("complex", VALUE),
    "__bool__": ("bool", BRANCH),
    "__contains__": ("in", BRANCH),
    "__repr__": ("print", SHOWN),
    "__format__": ("print", SHOWN),
    "__array__": ("numpy", VALUE),
    "numpy": ("numpy", VALUE),
    "tolist": ("tolist", VALUE),
    "where": ("where", SHAPE),
    "one_hot": ("one_hot", CLASSES),
    "repeat_interleave": ("repeat_interleave", REPEATS),
    "cpu": ("cpu", COPY),
    "to": ("to", COPY),
    "cuda": ("cuda", COPY),
    "copy_": ("copy_", COPY),
    "tensor": ("tensor", MADE),
    "as_tensor": ("as_tensor", MADE),
    "new_tensor": ("new_tensor", MADE),
    "pin_memory": ("pin_memory", PINNED),
    "put": ("put", COPY),
    "get": ("get", "ask done() first, or get it some steps later"),
    "synchronize": ("synchronize", EXPLICIT),
}


def is_harmless(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function surely cannot wait with these arguments."""
    if name == "__getitem__":
        return _reads_nothing(args[1])
    if name == "to":
        return len(args) == 2 and type(args[1]) is torch.dtype and not kwargs
    if name == "where":
        return len(args) == 3
    if name not in HARMLESS:
        return False
    for arg in (*args[name not in MAKERS :], *kwargs.values()):  # in the way of every operation: be quick
        if isinstance(arg, torch.Tensor):
            if not arg.dim():
                return False
        elif type(arg) in (tuple, list) and any(isinstance(each, torch.Tensor) and not each.dim() for each in arg):
            return False
    return True


def _reads_nothing(index: object) -> bool:
    """Whether an index holds numbers, slices between numbers, and tensors of positions: nothing that must be read."""
    for each in _as_tuple(index):
        kind = type(each)
        if kind is slice:
            if any(isinstance(end, torch.Tensor) for end in (each.start, each.stop, each.step)):
                return False
        elif isinstance(each, torch.Tensor):
            if each.dtype in MASKS or not each.dim():
                return False
        elif kind not in _NUMBERS:
            return False
    return True


def operation_waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The advice if this operation of the dispatcher waits with these arguments, else None."""
    if name in OPERATIONS:
        return OPERATIONS[name]
    if name in _INDEXING and has_mask(args[1]):
        return SHAPE
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return REPEATS
    return None


@no_type_check  # each indexing on the device thread passes here, and tests time it
def has_mask(indices: Sequence[Any]) -> bool:
    """Whether one of the indices is a mask, whose True entries have to be counted before anything is indexed."""
    return any(index is not None and index.dtype in MASKS for index in indices)


def function_waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this function waits by itself, if its tensors live on a device: it fetches, copies, or takes a list."""
    if name in ("__getitem__", "__setitem__"):
        return _on_host(args[1])
    return name in FETCHES or name in EXPLICIT_WAITS or (name in COPIES and _copy_waits(name, args, kwargs))


def _copy_waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of COPIES, called so, stays until its bytes have arrived."""
    if name in ("tensor", "as_tensor"):
        return kwargs.get("device") is not None or _holds_tensor(args[:1])
    if name == "copy_":
        return not kwargs.get("non_blocking") and args[2:3] != (True,) and _crosses(args)
    if name in ("new_tensor", "pin_memory"):
        return True
    if kwargs.get("non_blocking") or any(arg is True for arg in args[1:]):
        return False
    named = [each for each in (kwargs.get("device"), *args[1:2]) if _names_device(each)]
    return name != "to" or any(not _is_there(args[0], device) for device in named)


def _crosses(args: Sequence[Any]) -> bool:
    """Whether `a.copy_(b)` goes between host and device: only of two kinds of tensor can that be told."""
    return len(args) > 1 and isinstance(args[1], torch.Tensor) and args[0].device != args[1].device


def _is_there(tensor: object, device: object) -> bool:
    """Whether a tensor lies on this very device already, by its number: a stand-in, on plain `cpu`, never does."""
    place = getattr(tensor, "device", None)
    return place is not None and place.index is not None and torch.device(device) == place


def _names_device(value: object) -> bool:
    """Whether this argument of `to` names a device (a dtype or another tensor does not)."""
    return isinstance(value, (str, int, torch.device)) and not isinstance(value, bool)


def called(name: str, args: Sequence[Any]) -> tuple[str, str] | None:
    """(what a report calls it, advice) of a function that waited; None: the operation in it says more."""
    if name in ("__getitem__", "__setitem__"):
        indices = _as_tuple(args[1])
        if _on_host(args[1]):
            return "indexing by a list", INDEXED
        masked = any(isinstance(index, torch.Tensor) and index.dtype in MASKS for index in indices)
        what = "boolean indexing" if name == "__getitem__" else "boolean assignment"
        return (what, SHAPE) if masked else ("indexing by a tensor", INDEX)
    return CALLED.get(name)


def _as_tuple(index: object) -> tuple:
    return index if isinstance(index, tuple) else (index,)


def _on_host(index: object) -> bool:
    """Whether an index holds positions that have to be brought to the device first: a list, or an array of NumPy's."""
    return any(isinstance(each, (list, np.ndarray)) for each in _as_tuple(index))


def _holds_tensor(values: Sequence[Any]) -> bool:
    """Whether a tensor stands in a list or tuple among these, or deeper."""
    nested = [value for value in values if isinstance(value, (list, tuple))]
    return any(isinstance(each, torch.Tensor) for value in nested for each in value) or any(map(_holds_tensor, nested))


def harmless(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this function reads values on a CPU only: on a GPU it does not wait, whatever the dispatcher shows here.

    one_hot with num_classes checks its input on a CPU only; a number assigned by a mask becomes masked_fill.
    """
    if name == "one_hot":
        return (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) != -1
    if name != "__setitem__" or isinstance(args[2], torch.Tensor):
        return False
    tensors = [index for index in _as_tuple(args[1]) if isinstance(index, torch.Tensor)]
    return all(index.dtype in MASKS for index in tensors)
