"""Which tests go to one worker together, and which of these parts are begun first.

The tests of a file share what they have made, so a file is a part; only a file that takes minutes is cut further.
"""

import re
from pathlib import Path

# What tells a file's parts apart: the lesson or exercise in a test's name, or the name of one that takes minutes.
_CUTS = {"test_browser.py": r"\[\d\d", "test_checks.py": r"\b\d+\.\d+\b", "test_gpu_check.py": "every_lesson"}
_LONGEST = ("browser", "notebook", "slow")


def part(nodeid):
    """The name of the part that a test belongs to."""
    file, _, name = nodeid.partition("::")
    cut = _CUTS.get(Path(file).name)
    found = re.search(cut, name) if cut else None
    return f"{file}::{found[0]}" if found else file


def begins(items):
    """The key that sorts tests: the part of the longest first, for begun last it would leave other workers idle."""
    places = {}
    for item in items:
        own = [_LONGEST.index(mark.name) for mark in item.iter_markers() if mark.name in _LONGEST]
        places[part(item.nodeid)] = min([places.get(part(item.nodeid), len(_LONGEST)), *own])
    return lambda item: places[part(item.nodeid)]
