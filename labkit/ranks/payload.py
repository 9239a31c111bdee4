"""How functions travel to the ranks, and results back."""

import io
import linecache
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import cloudpickle
import torch

from labkit.ranks.errors import RankError

_NO_FILE = "<dynamic-code>"


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with two things otherwise.

    Tensors of a GPU come back as plain ones: the notebook need not hold a GPU to look at a result. And code keeps the
    name of its file, which cloudpickle forgets, for tracebacks name the line.
    """

    def reducer_override(self, obj: Any) -> Any:
        """How one object is taken apart."""
        if isinstance(obj, CodeType):
            make, parts = self.dispatch_table[CodeType](obj)
            is_file = lambda part: isinstance(part, str) and part == _NO_FILE
            return make, tuple(obj.co_filename if is_file(part) else part for part in parts)
        if isinstance(obj, torch.Tensor) and obj.device.type == "cuda":
            return obj.detach().cpu().__reduce_ex__(2)
        return super().reducer_override(obj)


def dumps(value: object) -> bytes:
    """A value as bytes, functions of a notebook and closures included."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def pack(fn: Callable, args: Sequence) -> bytes:
    """What a rank needs to call fn(*args): that, pickled, beside the sources of cells, which its tracebacks show.

    RankError: something in it cannot be pickled; the text names the variable.
    """
    try:
        return pickle.dumps((dumps((fn, tuple(args))), _cells()))
    except Exception as error:
        name, culprit = _culprit(fn, args) or (getattr(fn, "__name__", "the function"), fn)
        text = (
            f"{name} ({type(culprit).__name__}) cannot be sent to the ranks: {type(error).__name__}: {error}\n"
            "Make it inside the function, or pass what it is made from."
        )
        raise RankError(text, kind="unpicklable") from None


def _cells() -> dict[str, list[str]]:
    """The sources that no rank could read from a file: those of a notebook's cells."""
    known = [(name, entry[2]) for name, entry in list(linecache.cache.items()) if len(entry) > 2]
    return {name: text for name, text in known if not os.path.exists(name)}


def _culprit(fn: Callable, args: Sequence) -> tuple[str, object] | None:
    """The first argument, or variable that fn uses, which cannot be pickled by itself, with its name."""
    seen: set[int] = set()

    def search(parts: Iterator[tuple[str, object]]) -> tuple[str, object] | None:
        for name, value in parts:
            if id(value) in seen or _travels(value):
                continue
            seen.add(id(value))
            return search(_parts(value)) or (name, value)
        return None

    arguments = ((f"argument {i + 1}", value) for i, value in enumerate(args))
    return search(arguments) or search(_parts(fn))


def _parts(fn: object) -> Iterator[tuple[str, object]]:
    """The variables that a function uses: those around it, and the global ones that it or a function in it names."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    cells = getattr(fn, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            yield f"the variable {name}", cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    for name in _names(code):
        if name in fn.__globals__:
            yield f"the variable {name}", fn.__globals__[name]


def _names(code: Any) -> list[str]:
    """The global names in a function's code and in that of the functions within it."""
    inner = (each for each in code.co_consts if hasattr(each, "co_names"))
    return [*code.co_names, *(name for each in inner for name in _names(each))]


def _travels(value: object) -> bool:
    """Whether a value can be pickled."""
    try:
        dumps(value)
    except Exception:
        return False
    return True
