"""Inside the box, beside a stranger's code: answers the grader's requests with plain data.

Whoever shares a process with this module can change it, so nothing that it says of *how* an answer came about is proof;
what it says of the answer itself is compared outside, with a reference that is not here.
"""

import inspect
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch

from labkit.ambient import settle, settled
from labkit.borrowed import borrowed, is_ours
from labkit.compare import same
from labkit.describe import describe_error, kind_of, learner_line
from labkit.grading.wire import WireError, decode, encode

_PACKAGE = "labkit.checks"
_KEPT_OF, _CODE = ("labkit.", "torch.distributed"), (FunctionType, BuiltinFunctionType, type)
_kept: dict[str, tuple[ModuleType, dict]] = {}


def answer(namespace: dict, name: str, payload: bytes) -> bytes:
    """The reply to one request about the global `name` of a learner's namespace; whatever it raises is in the reply."""
    try:
        request = decode(payload)
        with settled():
            settle()
            value = _ACTIONS[request["do"]](namespace.get(name), request)
        return encode(value)
    except BaseException as error:
        return encode({"raised": _raised(error)})


def _raised(error: BaseException) -> dict:
    """What the grader is told of an exception: its type, what it says, the learner's line, and if it is a stub's."""
    text = _safely(lambda: str(error))
    stub = isinstance(error, NotImplementedError) and text.startswith("exercise ")
    said, line = _safely(lambda: describe_error(error)), _safely(lambda: learner_line(error))
    kind = "WireError" if isinstance(error, WireError) else type(error).__name__
    return {"type": str(kind)[:100], "said": said[:1000], "line": line[:300], "stub": stub}


def _safely(make: Callable[[], str]) -> str:
    """A text that somebody else's code has a part in; nothing where it fails."""
    try:
        return str(make())
    except BaseException:
        return ""


def _look(fn: object, _request: dict) -> dict:
    """What the name stands for, and how a function is called; None for what Python has no signature of."""
    try:
        listed = inspect.signature(fn).parameters.values() if callable(fn) else None
    except (TypeError, ValueError):
        listed = None
    if listed is not None:
        listed = [[one.name, int(one.kind), one.default is not one.empty] for one in listed]
    return {"callable": callable(fn), "kind": kind_of(fn), "parameters": listed}


def _call(fn: Callable, request: dict) -> dict:
    """The value for plain arguments, and what became of them."""
    arguments = request["args"]
    value = fn(*arguments)
    return {"value": value, "args": list(arguments)}


def keep() -> None:
    """Before any learner's code runs: remember the functions and classes of labkit and torch.distributed."""
    for name, module in sys.modules.items():
        if name.startswith(_KEPT_OF):
            _kept[name] = module, {key: value for key, value in vars(module).items() if isinstance(value, _CODE)}


def _put_back() -> None:
    """Undo what a notebook has put in their places, as a demonstration may, or somebody who wants to be miscounted."""
    for name, (module, values) in _kept.items():
        sys.modules[name] = module
        vars(module).update(values)


def _load(_fn: object, request: dict) -> dict:
    """Make the modules of a slice, as if they had been imported; they go to ranks by their source."""
    import cloudpickle

    _put_back()
    package = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    package.__path__ = []
    for name in request["modules"]:
        module = ModuleType(f"{_PACKAGE}.{name}")
        sys.modules[module.__name__] = module
        setattr(package, name, module)
        cloudpickle.register_pickle_by_value(module)
    for name, source in request["modules"].items():
        module = sys.modules[f"{_PACKAGE}.{name}"]
        exec(compile(source, module.__name__, "exec"), vars(module))
    return {"loaded": len(request["modules"])}


def _borrowed(fn: object, request: dict) -> dict:
    """Whether the function is labkit's own, and which of the named answers, (module, name), it uses."""
    _put_back()
    known = [reduce(getattr, name.split("."), import_module(home)) for home, name in request["answers"]]
    return {"ours": is_ours(fn), "used": borrowed(fn, known)}


def _part(request: dict, part: str) -> Callable:
    """A slice's cases, drive or mechanism."""
    return getattr(sys.modules[f"{_PACKAGE}.{request['home']}"], part)


def _case(request: dict) -> tuple:
    """Case `index` of those that the generator's state gives, drawn anew."""
    generator = torch.Generator().manual_seed(request["seed"])
    settle()
    case = tuple(list(_part(request, "CASES")(generator))[request["index"]])
    settle()
    return case


def _drive(fn: Callable, request: dict) -> dict:
    """What driving the function gives for one case, and the names of arguments that it changed."""
    given, untouched = _case(request), _case(request)
    value = _part(request, "DRIVE")(fn, *given) if request["driven"] else fn(*given)
    settle()
    changed = [i for i, pair in enumerate(zip(given, untouched, strict=True)) if not same(*pair[::-1])]
    return {"value": value, "changed": changed}


def _mechanism(fn: Callable, request: dict) -> dict:
    """What is wrong with how the function works; None where nothing is."""
    return {"value": _part(request, "MECHANISM")(fn)}


def _time(fn: Callable, request: dict) -> dict:
    """What one part of a bar's measurement gives: for the learner's function, or where one is told, for a baseline."""
    fn = _part(request, "BASELINE") if request["baseline"] else fn
    part, given = _part(request, request["part"]), request["given"]
    return {"value": part(*given) if request["part"] == "THEN" else part(fn, *given)}


_ACTIONS = {"look": _look, "call": _call, "borrowed": _borrowed}
_ACTIONS |= {"load": _load, "drive": _drive, "mechanism": _mechanism, "time": _time}
