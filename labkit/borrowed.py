"""Whether an answer is a learner's own, or the course's: handed in as it is, or called where it should be written.

Only what stands in the code of the learner's function, and of what it uses of the learner's own, is looked at.
"""

import dis
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType

import labkit
from labkit.exercise import Exercise, Verdict


def is_ours(fn: object) -> bool:
    """Whether a function or class, or what is wrapped in it, was defined in labkit."""
    with suppress(Exception):  # a learner's object may refuse to be looked at
        while isinstance(fn, partial):
            fn = fn.func
        return _of_labkit(unwrap(fn))
    return False


def answers(exercise: Exercise) -> tuple[Callable, ...]:
    """What labkit has that answers an exercise."""
    return exercise.reference, *exercise.library


def borrowed(fn: object, known: Sequence[Callable]) -> str:
    """The full name of the one of the `known` answers that a learner's function uses; empty where it uses none."""
    known = [unwrap(answer) for answer in known]
    seen, left = set(), [fn]
    while left:
        each = left.pop()
        with suppress(Exception):
            each = unwrap(each)
            if any(each is answer for answer in known):
                return f"{each.__module__}.{each.__qualname__}"
            if id(each) not in seen and _stands_beside(each, fn):
                seen.add(id(each))
                left += _used(each)
    return ""


def _stands_beside(each: object, fn: object) -> bool:
    """Whether something was defined where the learner's function was; what libraries call is their affair."""
    while isinstance(fn, partial):
        fn = fn.func
    return isinstance(each, partial) or each.__module__ == fn.__module__


def _of_labkit(fn: object) -> bool:
    """Whether a function or class was defined in labkit."""
    return str(getattr(fn, "__module__", "")).split(".")[0] == "labkit"


def _used(fn: object) -> list[object]:
    """What the code of a function, of a partial or of a class names."""
    if isinstance(fn, partial):
        return [fn.func, *fn.args, *fn.keywords.values()]
    if isinstance(fn, type):
        return [*fn.__bases__, *(getattr(each, "__func__", each) for each in vars(fn).values())]
    if not isinstance(fn, FunctionType):
        return []
    cells = [cell.cell_contents for cell in fn.__closure__ or () if _is_filled(cell)]
    given = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    return [*cells, *given, *_named(fn.__code__, fn.__globals__)]


def _is_filled(cell: object) -> bool:
    """Whether a closure's variable has a value."""
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def _named(code: CodeType, space: dict) -> Iterator[object]:
    """The functions and classes that code refers to by name, through modules and in the code of inner functions."""
    at, module, own = None, None, {}
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            at = space.get(name)
        elif step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            at = own.get(name)
        elif step.opname == "IMPORT_NAME":
            at, module = (labkit, import_module(name)) if name.split(".")[0] == "labkit" else (None, None)
        elif step.opname == "IMPORT_FROM":
            at = getattr(module, name, module)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            at = getattr(at, name, None) if isinstance(at, ModuleType) else None
        elif step.opname.startswith("STORE_"):
            own[name] = at
        if callable(at):
            yield at
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named(inner, space)


def another(found: Verdict, fn: object) -> Verdict:
    """The verdict on `fn`, once it has passed: another where the answer is not the learner's own."""
    exercise = found.exercise
    if is_ours(fn) or fn is exercise.reference:
        return replace(found, status="not attempted", message=its_own(exercise.name))
    if name := borrowed(fn, answers(exercise)):
        return replace(found, status="failed", message=not_yours(name))
    return found


def its_own(name: str) -> str:
    """What to say of the course's own function of this name, handed in as it is."""
    return f"the course's own {name}\nRun the cell with your own function, then this one again."


def not_yours(name: str) -> str:
    """What to say of a right answer that uses what has this full name."""
    return f"right, and not yours\nlikely  It uses {name}, which is the answer. Write its steps yourself."
