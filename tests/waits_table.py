"""What waits for the device and what does not: the table that the tests of labkit.sync go by, on a CPU and on a GPU."""

import copy
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn import functional


def tensors(device: str) -> SimpleNamespace:
    """The tensors that the table's lines work on."""
    return SimpleNamespace(
        device=device,
        number=torch.tensor(2.0, device=device),
        whole=torch.tensor(1, device=device),
        x=torch.arange(4.0, device=device),
        mask=torch.tensor([True, False, True, False], device=device),
        positions=torch.tensor([0, 1, 1], device=device),
        parameter=torch.nn.Parameter(torch.ones(4, device=device)),
    )


# name -> (the operation as a report calls it, a line that waits)
WAITS = {
    "item": ("item", lambda t: t.number.item()),
    "float": ("float", lambda t: float(t.number)),
    "int": ("int", lambda t: int(t.whole)),
    "bool": ("bool", lambda t: bool(t.number)),
    "if": ("bool", lambda t: 1 if t.number > 1 else 0),
    "if isnan": ("bool", lambda t: "bad" if t.x.isnan().any() else "good"),
    "and": ("bool", lambda t: t.number and 1),
    "max of Python": ("bool", lambda t: max(t.x[0], t.x[1])),
    "in": ("in", lambda t: 2.0 in t.x),
    "range": ("int", lambda t: range(t.whole)),
    "tolist": ("tolist", lambda t: t.x.tolist()),
    "cpu": ("cpu", lambda t: t.x.cpu()),
    "to": ("to", lambda t: t.x.to("cpu")),
    "to with a keyword": ("to", lambda t: t.x.to(device="cpu", dtype=torch.float64)),
    "repr": ("print", lambda t: repr(t.x)),
    "str": ("print", lambda t: str(t.number)),
    "f-string": ("print", lambda t: f"{t.number:.3f}"),
    "f-string of many": ("print", lambda t: f"{t.x}"),
    "percent": ("float", lambda t: "%.3f" % t.number),  # noqa: UP031 (people write it so)
    "repr of a parameter": ("print", lambda t: repr(t.parameter)),
    "nonzero": ("nonzero", lambda t: t.x.nonzero()),
    "argwhere": ("argwhere", lambda t: torch.argwhere(t.x)),
    "where with one argument": ("where", lambda t: torch.where(t.mask)),
    "masked_select": ("masked_select", lambda t: t.x.masked_select(t.mask)),
    "boolean indexing": ("boolean indexing", lambda t: t.x[t.mask]),
    "boolean indexing of rows": ("boolean indexing", lambda t: t.x.view(4, 1)[t.mask, 0]),
    "boolean assignment": ("boolean assignment", lambda t: t.x.__setitem__(t.mask, t.x[:2] + 1)),
    "unique": ("unique", lambda t: t.positions.unique()),
    "unique_consecutive": ("unique_consecutive", lambda t: torch.unique_consecutive(t.positions)),
    "bincount": ("bincount", lambda t: t.positions.bincount()),
    "one_hot": ("one_hot", lambda t: functional.one_hot(t.positions)),
    "repeat_interleave": ("repeat_interleave", lambda t: t.positions.repeat_interleave(t.positions)),
    "equal": ("equal", lambda t: torch.equal(t.x, t.x + 1)),
    "allclose": ("allclose", lambda t: torch.allclose(t.x, t.x + 1)),
    "indexing by a scalar": ("indexing by a tensor", lambda t: t.x[t.whole]),
    "a slice to a scalar": ("indexing by a tensor", lambda t: t.x[: t.whole]),
    "assignment by a scalar": ("indexing by a tensor", lambda t: t.x.__setitem__(t.whole, 3.0)),
    "indexing by a list": ("indexing by a list", lambda t: t.x[[0, 1]]),
    "assignment by a list": ("indexing by a list", lambda t: t.x.__setitem__([0, 1], 0.0)),
    "indexing by an array": ("indexing by a list", lambda t: t.x[np.array([0, 1])]),
    "a slice in steps of a scalar": ("indexing by a tensor", lambda t: t.x[:: t.whole]),
    "zeros of a scalar": ("zeros", lambda t: torch.zeros(t.whole)),
    "a size with a scalar": ("view", lambda t: t.x.view((4, t.whole))),
    "scalars made a tensor": ("tensor", lambda t: torch.tensor([t.number, t.number])),
    "a list made a tensor": ("tensor", lambda t: torch.tensor([1.0, 2.0], device=t.device)),
    "an array made a tensor": ("as_tensor", lambda t: torch.as_tensor(np.ones(3), device=t.device)),
    "new_tensor": ("new_tensor", lambda t: t.x.new_tensor([1.0])),
    "full of a scalar": ("full", lambda t: torch.full((3,), t.number)),
    "a keyword that is a scalar": ("add", lambda t: t.x.add(t.x, alpha=t.number)),
    "a norm that must be finite": ("bool", lambda t: _clipped(t, error_if_nonfinite=True)),
}
# On a GPU these raise: NumPy reads the host's memory only.
WAITS_BESIDE_NO_GPU = {
    "numpy": ("numpy", lambda t: t.x.numpy()),
    "asarray": ("numpy", lambda t: np.asarray(t.x)),
}
WAITS_NOT = {
    "arithmetic": lambda t: (t.x * t.number + t.x).sum(),
    "where with three arguments": lambda t: torch.where(t.mask, t.x, -t.x),
    "masked_fill": lambda t: t.x.masked_fill(t.mask, 0.0),
    "a number assigned by a mask": lambda t: t.x.__setitem__(t.mask, 0.0),
    "repeat_interleave with output_size": lambda t: t.positions.repeat_interleave(t.positions, output_size=2),
    "repeat_interleave by a number": lambda t: t.x.repeat_interleave(2),
    "one_hot with num_classes": lambda t: functional.one_hot(t.positions, 3),
    "one_hot with num_classes, named": lambda t: functional.one_hot(t.positions, num_classes=3),
    "clip_grad_norm_": lambda t: _clipped(t),
    "a copy that is not waited for": lambda t: t.x.to("cpu", non_blocking=True),
    "another type": lambda t: (t.x.to(torch.float64), t.x.half(), t.x.to(t.x)),
    "slices": lambda t: (t.x[1], t.x[1:3], t.x[None, ..., ::2], t.x[-1]),
    "positions": lambda t: t.x[t.positions],
    "positions assigned": lambda t: t.x.__setitem__(t.positions, t.x[t.positions]),
    "gather and scatter": lambda t: t.x.index_add(0, t.positions, t.x[t.positions]),
    "shapes": lambda t: (t.x.shape, t.x.size(0), t.x.dtype, t.x.device, len(t.x), t.x.numel()),
    "a loop over rows": lambda t: list(t.x),
    "sort and topk": lambda t: (t.x.sort(), t.x.topk(2), t.x.argmax()),
    "copy_ on the device": lambda t: t.x.copy_(t.x.flip(0)),
    "deepcopy": lambda t: copy.deepcopy(t.x),
    "isnan kept on the device": lambda t: t.number.add_(t.x.isnan().any()),
    "cross_entropy": lambda t: functional.cross_entropy(t.x.view(1, 4), t.positions[:1]),
    "a list made a tensor of the host": lambda t: torch.tensor([1.0, 2.0]),  # noqa: ARG005
    "Adam": lambda t: _step(t, torch.optim.Adam),
    "AdamW, one by one": lambda t: _step(t, torch.optim.AdamW, foreach=False),
    "SGD": lambda t: _step(t, torch.optim.SGD, momentum=0.9),
    "a data loader": lambda t: _loaded(),  # noqa: ARG005
}


def _clipped(t: SimpleNamespace, **options: bool) -> None:
    t.parameter.grad = torch.ones_like(t.parameter)
    torch.nn.utils.clip_grad_norm_([t.parameter], 1.0, **options)


def _step(t: SimpleNamespace, kind: type, **options: object) -> None:
    optimizer = kind([t.parameter], lr=0.1, **options)
    for _ in range(2):
        optimizer.zero_grad()
        (t.parameter * t.x).sum().backward()
        optimizer.step()


def _loaded() -> None:
    held = torch.utils.data.TensorDataset(torch.arange(8.0), torch.arange(8))
    for _ in torch.utils.data.DataLoader(held, batch_size=4, shuffle=True):
        pass
