"""Plain data between the grader and a boxed process: numbers, text, tensors, arrays, lists and dictionaries of them.

A message is a length, a JSON tree of that many bytes, and then the raw bytes of the arrays that the tree names. Nothing
in it can run: whoever decodes a stranger's message gets values, or WireError. What is no plain data (a function, a
generator, a tensor without values) travels as `Odd`, by the name of its kind alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from labkit.describe import kind_of, without_values

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_DTYPES += ("complex64", "complex128")
_NUMPY = {np.dtype(name): name for name in _DTYPES if name != "bfloat16"}
_TORCH = {getattr(torch, name): name for name in _DTYPES}
_DEEPEST, _MOST_DIGITS, _MOST_NODES = 40, 4000, 1_000_000
_MOST_SEPARATORS = 4 * _MOST_NODES  # as many as encode writes at most, but for tensors alone and text full of commas
_MOST_ODD_KEYS = 2_000  # a stranger can choose these so that all have one hash, and a set then takes quadratic time


class WireError(ValueError):
    """A message that is none, or a value that is too deep or too large for one."""


class TooMuch(WireError):
    """A message that may well be one, of more than is taken."""


@dataclass(frozen=True)
class Odd:
    """What is no plain data, by the words that say what it is: `a generator`, `the function relu`."""

    kind: str

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def encode(value: object) -> bytes:
    """The message that `decode` turns back into value. WireError: lists in lists 40 deep, or a million values."""
    parts: list[bytes] = []
    tree = json.dumps(_Tree(parts).of(value, 0)).encode()
    return b"".join([len(tree).to_bytes(8, "big"), tree, *parts])


class _Tree:
    """Makes the JSON tree of a value and collects the bytes of its arrays."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts, self._n_nodes = parts, 0

    @no_type_check  # a check of the types of every number in a list would take longer than all else
    def of(self, value: object, depth: int) -> object:
        """One value: itself where JSON has it, otherwise an object whose key says what it is."""
        self._n_nodes += 1
        if depth > _DEEPEST or self._n_nodes > _MOST_NODES:
            raise WireError(f"A value with more than {_DEEPEST} levels or {_MOST_NODES:,} parts is not passed on.")
        if value is None or type(value) in (bool, float) or type(value) is int and -(2**63) < value < 2**63:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return self._integer(int(value))
        if isinstance(value, np.generic):
            return {"number": self.of(np.asarray(value), depth + 1)}
        if isinstance(value, (Tensor, np.ndarray)):
            return self._array(value)
        if isinstance(value, (list, tuple, range, set, frozenset, Mapping)):
            return self._collection(value, depth)
        plain = {str: lambda: str(value), float: lambda: float(value)}
        plain |= {bytes: lambda: {"bytes": self._kept(bytes(value))}}
        plain |= {complex: lambda: {"complex": [value.real, value.imag]}, torch.dtype: lambda: {"dtype": str(value)}}
        return next((make() for kind, make in plain.items() if isinstance(value, kind)), {"odd": kind_of(value)})

    def _integer(self, value: int) -> object:
        """A whole number; JSON's other readers would round a large one, and Python refuses to read a huge one."""
        if abs(value) >= 10**_MOST_DIGITS:
            raise WireError(f"A whole number of more than {_MOST_DIGITS} digits is not passed on.")
        return value

    def _collection(self, value: object, depth: int) -> object:
        """A list as itself; others by their kind. A dictionary goes as pairs, for its keys may be numbers."""
        of = lambda items: [self.of(item, depth + 1) for item in items]
        if isinstance(value, list):
            return of(value)
        if isinstance(value, Mapping):
            return {"dict": of([list(pair) for pair in value.items()])}
        kind = "tuple" if isinstance(value, tuple) else "range" if isinstance(value, range) else "set"
        items = (value.start, value.stop, value.step) if kind == "range" else value
        return {kind: of(sorted(items, key=repr) if kind == "set" else items)}

    def _array(self, value: Tensor | np.ndarray) -> object:
        """A tensor or array: its dtype, its shape and where its bytes lie."""
        if without_values(value):
            return {"odd": kind_of(value)}
        kind = "tensor" if isinstance(value, Tensor) else "array"
        bare = value.detach().as_subclass(Tensor) if kind == "tensor" else torch.as_tensor(np.array(value, subok=False))
        plain = bare.cpu().resolve_conj().resolve_neg().contiguous()
        if plain.dtype not in _TORCH:
            return {"odd": kind_of(value)}
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return {kind: [_TORCH[plain.dtype], list(plain.shape), self._kept(raw)]}

    def _kept(self, raw: bytes) -> int:
        """Keep bytes for the message's end; returns how many they are."""
        self._parts.append(raw)
        return len(raw)


def decode(message: bytes) -> object:
    """The value that a message holds. WireError: anything that `encode` would not have written."""
    try:
        n_tree = int.from_bytes(message[:8], "big")
        text = message[8 : 8 + n_tree]
        if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_SEPARATORS:
            raise TooMuch("The message has too many parts.")
        tree = json.loads(text)
        reader = _Reader(message, 8 + n_tree)
        value = reader.of(tree, 0)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"The message cannot be read: {type(error).__name__}.") from None
    if reader.place != len(message):
        raise WireError("The message has bytes that belong to nothing.")
    return value


class _Reader:
    """Makes a value of a JSON tree; arrays take their bytes one after another, from `place` on."""

    def __init__(self, message: bytes, place: int) -> None:
        self._message, self.place, self._n_odd_keys = message, place, 0

    @no_type_check  # as above
    def of(self, tree: object, depth: int) -> object:
        """One value."""
        if depth > 2 * _DEEPEST:
            raise WireError("The message nests too deep.")
        if isinstance(tree, list):
            return [self.of(item, depth + 1) for item in tree]
        if not isinstance(tree, dict):
            return tree
        [(kind, inside)] = tree.items()
        return getattr(self, f"_{kind}_of")(inside, depth + 1) if kind in _KINDS else self._unknown(kind)

    def _unknown(self, kind: str) -> object:
        """Never returns."""
        raise WireError(f"The message has a value of an unknown kind: {kind[:40]!r}.")

    def _taken(self, n_bytes: object) -> bytes:
        """The next bytes of the message."""
        if type(n_bytes) is not int or not 0 <= n_bytes <= len(self._message) - self.place:
            raise WireError("The message is cut short.")
        self.place += n_bytes
        return self._message[self.place - n_bytes : self.place]

    def _tensor_of(self, inside: list, _depth: int) -> Tensor:
        """A tensor of its own memory."""
        dtype, shape, n_bytes = inside
        if dtype not in _DTYPES or not all(type(size) is int and 0 <= size < 2**40 for size in shape):
            raise WireError("The message has an array of an unknown dtype or shape.")
        kind = getattr(torch, dtype)
        if prod(shape) * kind.itemsize != n_bytes or len(shape) > 60:
            raise WireError("The message has an array whose bytes do not fit its shape.")
        raw = bytearray(self._taken(n_bytes))
        if not raw:
            return torch.empty(shape, dtype=kind)
        if dtype == "bool":  # any byte but 0 and 1 would be a bool that is neither
            return (torch.frombuffer(raw, dtype=torch.uint8) != 0).reshape(shape)
        return torch.frombuffer(raw, dtype=kind).reshape(shape)

    def _array_of(self, inside: list, depth: int) -> np.ndarray:
        return self._tensor_of(inside, depth).numpy()

    def _number_of(self, inside: dict, depth: int) -> np.generic:
        return self.of(inside, depth)[()]

    def _tuple_of(self, inside: list, depth: int) -> tuple:
        return tuple(self.of(inside, depth))

    def _set_of(self, inside: list, depth: int) -> set:
        return set(self._as_keys(self.of(inside, depth)))

    def _as_keys(self, items: list) -> list:
        """The items, if not too many of them are of a kind whose hashes can be chosen."""
        self._n_odd_keys += sum(type(item) is not str and not _is_small(item) for item in items)
        if self._n_odd_keys > _MOST_ODD_KEYS:
            raise TooMuch(f"The message has more than {_MOST_ODD_KEYS:,} keys that are no text or usual number.")
        return items

    def _range_of(self, inside: list, depth: int) -> range:
        return range(*self.of(inside, depth))

    def _dict_of(self, inside: list, depth: int) -> dict:
        pairs = self.of(inside, depth)
        self._as_keys([key for key, _ in pairs])
        return dict(pairs)

    def _complex_of(self, inside: list, _depth: int) -> complex:
        return complex(*map(float, inside))

    def _dtype_of(self, inside: str, _depth: int) -> torch.dtype:
        name = inside.removeprefix("torch.")
        if name not in _DTYPES:
            raise WireError("The message has an unknown dtype.")
        return getattr(torch, name)

    def _bytes_of(self, inside: int, _depth: int) -> bytes:
        return self._taken(inside)

    def _odd_of(self, inside: str, _depth: int) -> Odd:
        return Odd("".join(sign for sign in str(inside)[:200] if sign.isprintable()))


def _is_small(item: object) -> bool:
    """Whether an item is a number of 64 bits, None or a bool: few of them share a hash."""
    return type(item) in (bool, float, type(None)) or type(item) is int and -(2**61) < item < 2**61


_KINDS = {"tensor", "array", "number", "tuple", "set", "range", "dict", "complex", "dtype", "bytes", "odd"}
