"""Text in a verdict's message that is no text of the learner's: a call to repeat, ranks in order, weights in short."""

import operator
from collections.abc import Iterable

from labkit.describe import describe


class Shown(str):
    """Text that a message shows as it is, without quotes; `about` is what it stands for. Equal where the text is."""

    about: object = None

    @classmethod
    def of(cls, text: str, about: object = None) -> "Shown":
        """The text, standing for something."""
        shown = cls(text)
        shown.about = about
        return shown

    def __repr__(self) -> str:
        return "".join(self)

    def __str__(self) -> str:
        return self  # str(...) keeps what it is about


def whole(value: object) -> str:
    """A whole number of Python, NumPy or torch as `3`; anything else as messages describe it."""
    try:
        return str(operator.index(value))
    except (TypeError, ValueError, RuntimeError):
        return describe(value)


def listed(ranks: object) -> str:
    """Ranks in any collection, in order: `[0, 2]`; anything else as messages describe it."""
    try:
        return str(sorted(map(operator.index, ranks))) if isinstance(ranks, Iterable) else describe(ranks)
    except (TypeError, ValueError, RuntimeError):
        return describe(ranks)
