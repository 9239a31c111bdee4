"""Is what a function returned the answer, and if not, how does it differ? Answers are numbers, text, tensors, arrays,
and lists, tuples or dictionaries of them.

First `fit` brings an equivalent form (a NumPy number, a tensor of no dimensions, a list for a tensor) into that of the
answer, or says what is wrong with the form. Then an exercise's comparison, `exact` or `close`, looks at the values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Number, Real

import numpy as np
import torch
from torch import Tensor

from labkit.describe import describe, holds_others, kind_of, number, without_values

_NUMBERS = (int, float, complex, np.number)


class Unfit(Exception):
    """An answer that cannot be right whatever its values: what is wrong (`wrong shape`), and the likely cause."""

    def __init__(self, what: str, cause: str = "") -> None:
        super().__init__(what, cause)
        self.what, self.cause = what, cause


class Finding(str):
    """What a drive saw a learner's code do, in words, where it gives no value to be compared: `right`, or a fault."""


def fit(got: object, expected: object, *, strict_dtype: bool = False) -> object:
    """`got` in the form of `expected`; Unfit where type, shape, dtype or a value that is not finite rules it out."""
    fitted = _fit(got, expected, strict_dtype)
    for (place, mine), (_, right) in zip(leaves(fitted), leaves(expected), strict=False):
        lost = ~mine.isfinite() & right.isfinite()
        if lost.any():
            raise _not_finite(place, mine, lost)
    return fitted


def _not_finite(place: str, values: Tensor, lost: Tensor) -> Unfit:
    """The fault of values that are NaN or infinite, marked in `lost`, where the answer's are not."""
    first = lost.nonzero()[0].tolist()
    name = "NaN" if values[tuple(first)].isnan() else "inf"
    if not place and not first:
        return Unfit(f"{name} in the result", "The answer is a finite number.")
    count, at = f"{int(lost.sum())} of {lost.numel()} values", f"{place}{first or ''}"
    return Unfit(f"{name} in the result", f"The answer is finite; here {count} are not, first at {at}.")


def _fit(got: object, expected: object, strict_dtype: bool) -> object:
    """`fit` without the look at values."""
    if got is None and expected is not None:
        raise Unfit("nothing returned (None)", "Is the `return` missing, or on a path that this case does not take?")
    if without_values(got):
        raise _wrong_type(got, expected)
    if isinstance(expected, (bool, np.bool_)):
        return _fit_bool(got)
    if isinstance(expected, _NUMBERS):
        return _fit_number(got, expected)
    if isinstance(expected, (Tensor, np.ndarray)):
        return _fit_array(got, expected, strict_dtype)
    if isinstance(expected, Mapping):
        return _fit_mapping(got, expected, strict_dtype)
    if type(expected) in (list, tuple):
        return _fit_sequence(got, expected, strict_dtype)
    if isinstance(expected, str) and not isinstance(got, str) or callable(expected) and not callable(got):
        raise _wrong_type(got, expected)
    return str(got) if isinstance(expected, str) else got


def _wrong_type(got: object, expected: object, advice: str = "") -> Unfit:
    """The fault of a value of another kind."""
    return Unfit("wrong type", f"It returned {kind_of(got)}; {kind_of(expected)} is expected.{advice}")


def _scalar(value: object) -> object:
    """A NumPy number, or the number in a tensor or array of no dimensions, as Python's own; others as they are."""
    bare = isinstance(value, np.generic) or isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0
    return value.item() if bare else value


def _fit_bool(got: object) -> bool:
    """A bool of Python, NumPy or torch."""
    value = _scalar(got)
    if not isinstance(value, bool):
        raise _wrong_type(got, True)
    return value


def _fit_number(got: object, expected: object) -> object:
    """A number of Python, NumPy or torch, a bool not being one."""
    value = _scalar(got)
    if isinstance(value, (Tensor, np.ndarray)):
        advice = " Take the number out with .item()." if set(value.shape) == {1} else ""
        raise Unfit("wrong shape", f"It has shape {tuple(value.shape)}; one number is expected.{advice}")
    if isinstance(value, bool) or not isinstance(value, Number):
        raise _wrong_type(got, expected)
    if isinstance(value, complex) and not isinstance(expected, (complex, np.complexfloating)):
        raise _wrong_type(got, expected)
    return value if isinstance(value, (int, float, complex)) else float(value)


def _fit_array(got: object, expected: Tensor | np.ndarray, strict_dtype: bool) -> object:
    """A tensor, array, number or nested list with the shape and the kind of dtype that `expected` has."""
    mine, right = _tensor_of(got, expected), torch.as_tensor(expected)
    if mine.shape != right.shape:
        same = " The numbers are as many, in another arrangement." if mine.numel() == right.numel() else ""
        raise Unfit("wrong shape", f"It has shape {tuple(mine.shape)}; {tuple(right.shape)} is expected.{same}")
    counts = strict_dtype or _dtype_kind(mine) != _dtype_kind(right)
    if counts and mine.dtype != right.dtype and isinstance(got, (Tensor, np.ndarray)):
        raise Unfit("wrong dtype", f"It has dtype {mine.dtype}; {right.dtype} is expected.".replace("torch.", ""))
    return mine if isinstance(expected, Tensor) else mine.numpy()


def _tensor_of(got: object, expected: object) -> Tensor:
    """`got` as a plain tensor on the CPU, cut off from autograd; Unfit where it holds no numbers."""
    if isinstance(got, Tensor):
        return got.detach().as_subclass(Tensor).cpu()
    if isinstance(got, (np.ndarray, np.generic, list, tuple, int, float, complex)):
        try:
            return torch.as_tensor(np.array(got, subok=False))
        except (TypeError, ValueError):
            pass
    raise _wrong_type(got, expected)


def _dtype_kind(tensor: Tensor) -> str:
    """`float`, `complex`, `bool` or `int`."""
    if tensor.is_floating_point() or tensor.is_complex():
        return "complex" if tensor.is_complex() else "float"
    return "bool" if tensor.dtype == torch.bool else "int"


def _fit_mapping(got: object, expected: Mapping, strict_dtype: bool) -> dict:
    """A dictionary with the keys of `expected`, each value fitted."""
    if not isinstance(got, Mapping):
        raise _wrong_type(got, expected)
    if set(got) != set(expected):
        raise Unfit("wrong keys", f"It has the keys {describe(list(got))}; {describe(list(expected))} are expected.")
    return {key: _fit(got[key], value, strict_dtype) for key, value in expected.items()}


def _fit_sequence(got: object, expected: list | tuple, strict_dtype: bool) -> list | tuple:
    """A list, tuple, range, or for numbers a tensor, as long as `expected`, each item fitted."""
    if isinstance(got, (Tensor, np.ndarray)) and got.ndim:
        if any(isinstance(right, (Tensor, np.ndarray)) for right in expected):
            raise _wrong_type(got, expected, " Return the parts as they are, without stacking them.")
        got = list(got)
    if isinstance(got, Iterator):
        raise _wrong_type(got, expected, " Collect what it yields with list(...).")
    if not isinstance(got, (list, tuple, range)):
        raise _wrong_type(got, expected)
    if len(got) != len(expected):
        raise Unfit("wrong length", f"It has {len(got)} items; {len(expected)} are expected.")
    return type(expected)(_fit(mine, right, strict_dtype) for mine, right in zip(got, expected, strict=True))


def leaves(value: object, place: str = "") -> list[tuple[str, Tensor]]:
    """The numbers in a value, as (place, tensor) pairs; a list of plain numbers counts as one tensor."""
    if isinstance(value, (Tensor, np.ndarray, *_NUMBERS)) or _is_vector(value):
        try:
            # By way of NumPy: torch would round Python's own floats to 32 bits.
            tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return []
        wide = {"complex": torch.complex128, "float": torch.float64}.get(_dtype_kind(tensor), torch.int64)
        return [(place, tensor.detach().cpu().to(wide))]
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{place}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{place}[{i}]")]
    return []


def _is_vector(value: object) -> bool:
    """Whether a list or tuple holds real numbers only."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, Real) for item in value)


@dataclass(frozen=True)
class Tolerance:
    """A comparison of values: called with (got, expected), it returns None or the likely cause, which may be empty."""

    rtol: float
    atol: float
    why: str

    def differs(self, got: Tensor, expected: Tensor) -> Tensor:
        """Which values are further apart than atol + rtol * |expected|; NaN equals NaN."""
        if got.dtype == expected.dtype == torch.int64 and self.rtol == self.atol == 0:
            return got != expected
        wide = torch.complex128 if got.is_complex() or expected.is_complex() else torch.float64
        got, expected = got.to(wide), expected.to(wide)
        return ~torch.isclose(got, expected, rtol=self.rtol, atol=self.atol, equal_nan=True)

    def __call__(self, got: object, expected: object) -> str | None:
        for (place, mine), (_, right) in zip(leaves(got), leaves(expected), strict=True):
            if self.differs(mine, right).any():
                return f"{'' if holds_others(expected, place) else self._pattern(mine, right)} {self.why}".strip()
        return None if _same_apart_from_numbers(got, expected) else self.why

    def _pattern(self, got: Tensor, expected: Tensor) -> str:
        """What turns the answer into what was returned, where it is something simple."""
        patterns = {
            "The sign is turned round.": -expected,
            "Every value is zero." if expected.numel() > 1 else "It is zero.": torch.zeros_like(expected),
        }
        if expected.ndim == 1 and len(expected) > 2:
            patterns |= {
                "The order is turned round.": expected.flip(0),
                "Everything stands one place too late.": torch.cat([got[:1], expected[:-1]]),
                "Everything stands one place too early.": torch.cat([expected[1:], got[-1:]]),
            }
        if expected.ndim == 2 and expected.shape[0] == expected.shape[1] > 1:
            patterns["Rows and columns are exchanged."] = expected.T
        if got.is_floating_point() and expected.is_floating_point() and not _ROUNDED.differs(got, expected).any():
            return f"Right but for rounding, off by {(got - expected).abs().max():.0e}: was it computed in float32?"
        simple = next((text for text, tensor in patterns.items() if not self.differs(got, tensor).any()), "")
        return simple or self._factor(got, expected) or self._offset(got, expected)

    def _factor(self, got: Tensor, expected: Tensor) -> str:
        """The factor between all values, where there is one; for a single value only a whole one or its inverse."""
        if got.is_complex() or not expected.isfinite().all() or not expected.any():
            return ""
        largest = expected.abs().argmax()
        factor = float(got.flatten()[largest] / expected.flatten()[largest])
        if factor <= 0 or self.differs(got, expected * factor).any():
            return ""
        times = max(factor, 1 / factor)
        if abs(times - round(times)) > 1e-3 * times and (expected != 0).sum() < 3:
            return ""
        every = "Every value" if got.numel() > 1 else "The value"
        return f"{every} is {number(float(f'{times:.4g}'))} times too {'large' if factor > 1 else 'small'}."

    def _offset(self, got: Tensor, expected: Tensor) -> str:
        """The constant between all values, where there is one; for a single value only a difference of one."""
        if got.is_complex() or not got.numel() or not expected.isfinite().all():
            return ""
        offset = float((got - expected).flatten()[0])
        if self.differs(got, expected + offset).any() or got.numel() < 3 and abs(abs(offset) - 1) > 1e-9:
            return ""
        every = "Every value" if got.numel() > 1 else "The value"
        return f"{every} is {number(float(f'{abs(offset):.4g}'))} too {'large' if offset > 0 else 'small'}."


def _same_apart_from_numbers(got: object, expected: object) -> bool:
    """Whether text, bools and anything else that holds no numbers is equal."""
    if leaves(expected):
        if isinstance(expected, Mapping):
            return all(_same_apart_from_numbers(got[key], value) for key, value in expected.items())
        if isinstance(expected, (list, tuple)) and not _is_vector(expected):
            return all(_same_apart_from_numbers(*pair) for pair in zip(got, expected, strict=True))
        return True
    return bool(got == expected)


def close(rtol: float = 1e-5, atol: float = 1e-8, why: str = "") -> Tolerance:
    """The comparison of numbers within atol + rtol * |expected|; `why` tells a learner what is behind a difference."""
    return Tolerance(rtol, atol, why)


_ROUNDED = Tolerance(2e-6, 0.0, "")
exact = Tolerance(0.0, 0.0, "")
"""The comparison of whole numbers, text, bools and lists of them."""


def same(before: object, after: object) -> bool:
    """Whether an argument is still what it was.

    Looks at tensors, arrays, modules' parameters, plain values, and lists and dictionaries of them. Anything else
    counts as the same: a generator that was drawn from has done its work.
    """
    if isinstance(before, torch.nn.Module) and isinstance(after, torch.nn.Module):
        return same(list(before.parameters()), list(after.parameters()))
    if isinstance(before, (Tensor, np.ndarray)) and isinstance(after, (Tensor, np.ndarray)):
        old, new = torch.as_tensor(before), torch.as_tensor(after)
        alike = (old.shape, old.dtype) == (new.shape, new.dtype)
        return alike and bool(((old == new) | (old != old) & (new != new)).all())
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return list(before) == list(after) and all(same(item, after[key]) for key, item in before.items())
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        return len(before) == len(after) and all(map(same, before, after))
    return not isinstance(before, (str, set, Number)) or before == after or before != before


def changed(before: object, after: object) -> tuple[str, object, object]:
    """Of two values that are not the same, where their first difference lies (`[2]['cards']`), and both ends there."""
    parts = ()
    if isinstance(before, Mapping) and isinstance(after, Mapping) and list(before) == list(after):
        parts = before
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after):
        parts = range(len(before))
    for key in parts:
        if not same(before[key], after[key]):
            place, old, new = changed(before[key], after[key])
            return f"[{key!r}]{place}", old, new
    return "", before, after
