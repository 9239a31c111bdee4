"""Partial credit as nbgrader knows it: the number that a test ends with is what it is worth.

nbgrader reads it from what is printed, where numpy's numbers look like none and a test that ends with 0 once gave full
points. Here the value itself is asked for, after all cells have run.
"""

import math

import numpy as np

from labkit.grading.source import parse

_KEEP = '(lambda given: lambda: given if isinstance(given, __import__("numbers").Real) else None)'


def kept(source: str, name: str) -> str:
    """The test with its last expression kept: `name` becomes a function that gives it where it is a number, else None.

    As it stands where it ends otherwise, with `;` or with what is no plain Python. Lines stay where they are.
    """
    tree = parse(source)
    last = tree.body[-1] if tree and tree.body else None
    if last is None or not hasattr(last, "value") or type(last).__name__ != "Expr":
        return source
    lines = [line.encode() for line in source.split("\n")]
    before, after = lines[: last.lineno - 1], lines[last.end_lineno :]
    head, tail = lines[last.lineno - 1][: last.col_offset], lines[last.end_lineno - 1][last.end_col_offset :]
    if tail.lstrip().startswith(b";"):
        return source
    within = lines[last.lineno - 1 : last.end_lineno]
    within[-1] = within[-1][: last.end_col_offset]
    within[0] = within[0][last.col_offset :]
    begin = f"{name} = {_KEEP}(".encode()
    edited = b"\n".join([*before, head + begin + b"\n".join(within) + b")" + tail, *after]).decode()
    return edited if parse(edited) is not None else source


def points(value: object, most: float) -> float | None:
    """What a test that raised nothing is worth, of `most` points; None where it gave a number that none can be.

    All of them where it gave no number: True and False are none either.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return most
    found = float(value)
    return found if math.isfinite(found) and 0 <= found <= most else None
