"""Values, calls and exceptions in a few words, for messages: a large tensor is named, never written out."""

import inspect
import linecache
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb

import numpy as np
import torch
from torch import Tensor

_FEW = 8
_LONGEST = 120
_STORY = "Traceback (most recent call last):"
# A frame of a traceback in text: the file or the notebook's cell, the line, and what stands there.
_TOLD = re.compile(r'^  (?:File "(.*)"|(\S.*)), line (\d+)(?:, in .*)?\n    (.*)$', re.MULTILINE)
# Where packages are is not where this Python would put them in a sandbox, or with --target: torch's own place tells.
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *(str(Path(module.__file__).parent.parent) for module in (torch, np)),
    str(Path(__file__).parent),
)


def number(value: object) -> str:
    """A number with six significant digits at most; a bool or a whole number as it is."""
    if isinstance(value, (bool, int)):
        return str(value)
    return f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)


def describe(value: object, at: tuple[int, ...] | None = None) -> str:
    """`value` in one line: small ones written out, others by kind; `at` picks one element to be shown."""
    try:
        return _described(value, at)
    except Exception:  # somebody else's __repr__ or __len__, or a list that holds itself
        return f"<{type(value).__name__}>"


def _described(value: object, at: tuple[int, ...] | None = None) -> str:
    """`describe`, for values that let themselves be asked."""
    if isinstance(value, np.generic):
        value = value.item()
    if without_values(value):
        return _tagged(value)
    if isinstance(value, (Tensor, np.ndarray)):
        return _array(torch.as_tensor(value).detach(), "tensor" if isinstance(value, Tensor) else "array", at)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key!r}: {_described(item)}" for key, item in list(value.items())[:_FEW])
        return _cut(f"{{{inner}{', ...' if len(value) > _FEW else ''}}}")
    if isinstance(value, (list, tuple)):
        return _sequence(value, at)
    if isinstance(value, (bool, int, float, complex)):
        return number(value)
    return _cut(repr(value)) if isinstance(value, (str, bytes, type(None), range)) else _tagged(value)


def _tagged(value: object) -> str:
    """`<function relu>`: a value that is not written out."""
    return f"<{kind_of(value).split(' ', 1)[-1]}>"


def _cut(text: str) -> str:
    """`text`, its end left out where it is longer than a line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _sequence(value: Sequence, at: tuple[int, ...] | None) -> str:
    """A list or tuple: up to eight items, or how many there are and the one at `at`."""
    opened, closed = "[]" if isinstance(value, list) else "()"
    shown = ", ".join(_described(item) for item in value[:_FEW])
    if len(value) <= _FEW and len(shown) <= _LONGEST:
        return f"{opened}{shown}{',' if isinstance(value, tuple) and len(value) == 1 else ''}{closed}"
    place = f"; at [{at[0]}]: {_described(value[at[0]])}" if at else ""
    return f"{opened}{_cut(shown)}, ...{closed} ({len(value)} items){place}"


def _array(tensor: Tensor, noun: str, at: tuple[int, ...] | None) -> str:
    """A tensor: written out up to eight numbers, else its shape, dtype and the element at `at`."""
    if tensor.numel() <= _FEW and tensor.ndim <= 2:
        return f"{noun}({_nested(tensor.tolist())})"
    place = f"; at {list(at)}: {number(tensor[at].item())}" if at is not None else ""
    return f"{noun} of shape {tuple(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}{place}"


def _nested(values: object) -> str:
    """Numbers in nested lists, each with six digits at most."""
    return f"[{', '.join(_nested(item) for item in values)}]" if isinstance(values, list) else number(values)


def without_values(value: object) -> str:
    """What makes a tensor or array one without readable numbers: `meta`, `nested`, `sparse`, `object`; else nothing."""
    if isinstance(value, np.ndarray):
        return "" if value.dtype.kind in "biufc" else value.dtype.name
    if isinstance(value, Tensor):
        kinds = {"nested": value.is_nested, "meta": value.is_meta, "sparse": value.layout != torch.strided}
        return next((kind for kind, is_so in kinds.items() if is_so), "")
    return ""


def holds_others(value: object, place: str = "") -> bool:
    """Whether a value is or holds a bool or a text, of which no arithmetic makes another; of a dictionary, what place
    names in it.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        return str(value.dtype).endswith("bool")
    if isinstance(value, Mapping):
        return any(holds_others(item) for key, item in value.items() if place.startswith(f"[{key!r}]"))
    items = value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, (bool, np.bool_, str)) or any(map(holds_others, items))


def kind_of(value: object) -> str:
    """What a value is, in words: `a list`, `a tensor of shape (2, 3)`, `the function relu`."""
    try:
        return _kind_of(value)
    except Exception:  # as in describe
        return f"a value of type {type(value).__name__}"


def _kind_of(value: object) -> str:
    """`kind_of`, for values that let themselves be asked."""
    if value is None or isinstance(value, bool):
        return "None" if value is None else f"the bool {value}"
    if isinstance(value, (int, float, complex, np.number)):
        return f"the number {number(_plain(value))}"
    if isinstance(value, str):
        return f"the text {_cut(repr(value))}"
    if isinstance(value, (Tensor, np.ndarray)):
        odd = without_values(value)
        shape = "" if odd == "nested" else f" of shape {tuple(value.shape)}"  # a nested one raises
        noun = "tensor" if isinstance(value, Tensor) else "array"
        return f"{'an' if (odd or noun)[0] in 'ao' else 'a'} {odd}{' ' if odd else ''}{noun}{shape}"
    if isinstance(value, Iterator):
        return "a generator" if inspect.isgenerator(value) else "an iterator"
    if inspect.isroutine(value) or isinstance(value, type):
        return f"{'the class' if isinstance(value, type) else 'the function'} {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _plain(value: object) -> object:
    """A NumPy number as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def parameters(fn: Callable) -> list[str]:
    """The names of a function's parameters, the positional ones, in order; none where Python cannot say."""
    try:
        listed = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in listed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]


def call_text(name: str, names: Sequence[str], arguments: Sequence) -> str:
    """`lr(step=3, peak=0.1)`: a call as a learner would write it, large values named."""
    given = [describe(argument) for argument in arguments]
    labelled = [f"{names[i]}={text}" if i < len(names) else text for i, text in enumerate(given)]
    return f"{name}({', '.join(labelled)})"


def describe_error(error: BaseException) -> str:
    """`ValueError: too short`: an exception's type and its message, cut to three lines and before a traceback."""
    try:
        lines = takewhile(lambda line: not line.startswith(_STORY), str(error).splitlines())
        said = [line for line in lines if line.strip()][:3]
    except Exception:  # the message is made by somebody else's __str__
        said = []
    return ": ".join(filter(None, [type(error).__name__, " ".join(_cut(line.strip()) for line in said)]))


def learner_line(error: BaseException) -> str:
    """`line 3: y = x[10]`: the deepest line of an exception's traceback that is in no library, and not labkit's.

    An exception that tells in its text what another process raised, a rank or a loader's worker, has that one's line.
    """
    if told := _told_line(error):
        return told
    pairs = walk_tb(error.__traceback__)
    own = [(frame, line) for frame, line in pairs if not _in_library(frame.f_code.co_filename)]
    if not own:
        # A deadline that fires again while the first one unwinds has that one as its context.
        return learner_line(error.__context__) if error.__context__ else ""
    frame, line = own[-1]
    source = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return f"line {line}: {_cut(source)}" if source else f"line {line}"


def _told_line(error: BaseException) -> str:
    """`learner_line` of the traceback that an exception has in its text; nothing where it has none."""
    try:
        story = str(error).partition(_STORY)[2]
    except Exception:  # the message is made by somebody else's __str__
        return ""
    own = [(line, source) for file, _, line, source in _TOLD.findall(story) if not _in_library(file)]
    return f"line {own[-1][0]}: {_cut(own[-1][1].strip())}" if own else ""


def _in_library(filename: str) -> bool:
    """Whether a file belongs to Python, an installed package or labkit, or is generated code."""
    return filename.startswith(("<frozen", "<@beartype", "<__array_function__")) or filename.startswith(_LIBRARIES)
