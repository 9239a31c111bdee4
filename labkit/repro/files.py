"""Values as JSON holds them."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass


def plain(value: object) -> object:
    """`value` as JSON can hold it: dataclasses to dictionaries, paths and other objects to text."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Namespace):
        return plain(vars(value))
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)  # their own order is another one in every process
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # of NumPy or torch
        value = value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
