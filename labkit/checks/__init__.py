"""The exercises, one module a lesson: nb01 holds the EXERCISES of lesson 01.

A module here imports at its top what the checks of every lesson need (labkit, torch, NumPy), and the rest where it is
used: one check loads them all to find its exercise by name.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules


@cache
def exercises() -> tuple:
    """Every exercise of the course, in its order."""
    names = sorted(module.name for module in iter_modules(__path__) if module.name.startswith("nb"))
    return tuple(one for name in names for one in import_module(f"{__name__}.{name}").EXERCISES)
