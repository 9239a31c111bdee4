"""What a run is told from outside: how much to do, whether to be held to its claims, which seed."""

import os
import random

from labkit import course


def budget() -> str:
    """`full`, or `smoke` where LABKIT_BUDGET asks for fewer repeats and epochs: a preview that decides no claim."""
    chosen = os.environ.get("LABKIT_BUDGET") or "full"
    if chosen not in ("full", "smoke"):
        raise course.CourseError(f"LABKIT_BUDGET is {chosen!r}; it may be 'full' or 'smoke'.")
    return chosen


def strict() -> bool:
    """Whether a refuted claim raises, as it does in tests (LABKIT_STRICT=1), instead of only saying so."""
    return os.environ.get("LABKIT_STRICT") == "1"


def quiet() -> bool:
    """Whether progress bars stay silent: in tests and while outputs are being stored (LABKIT_QUIET=1)."""
    return os.environ.get("LABKIT_QUIET") == "1"


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators (torch seeds every GPU too)."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
