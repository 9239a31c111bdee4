"""labkit: what the lessons need and do not teach: data, timing, plots, checks, launching.

Names load when first used, so that `import labkit` costs next to nothing and the command line never waits for torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "attempt": "checker",
    "bench": "measure",
    "check": "checker",
    "claim": "claims",
    "predict": "claims",
    "record": "recording",
    "reveal": "claims",
    "table": "show",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"labkit has no {name!r}")
    return getattr(import_module(f"labkit.{_HOME[name]}"), name)
