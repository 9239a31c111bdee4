"""Exercise 19.3: which runs of a notebook's cells found a name that the notebook, read down, would not have given."""

import copy
from collections.abc import Callable, Mapping, Sequence

import torch

Cells = Mapping[str, tuple[Sequence[str], Sequence[str]]]


def stale_names(cells: Cells, ran: Sequence[str], page: Sequence[str]) -> list[tuple[int, str]]:
    """(run, name) where a cell of the page found a name from another cell than the nearest one above that binds it."""
    found, bound = [], {}
    for run, key in enumerate(ran, 1):
        reads, binds = cells[key]
        if key in page:
            above = page[: page.index(key)]
            for name in sorted(reads):
                source = next((other for other in reversed(above) if name in cells[other][1]), None)
                if name in bound and bound[name] != source:
                    found.append((run, name))
        bound |= dict.fromkeys(binds, key)
    return found


_BY_HAND = (
    # a plain run; a name bound further down; a cell that ran twice and changes what it reads; one passed over
    ({"a": ([], ["x"]), "b": (["x"], ["y"]), "c": (["y"], [])}, "abc", "abc"),
    ({"a": ([], ["x"]), "b": (["x"], []), "c": ([], ["x"])}, "acb", "abc"),
    ({"a": ([], ["x"]), "b": (["x"], ["x"]), "c": (["x"], [])}, "abbc", "abc"),
    ({"a": ([], ["x"]), "b": (["x"], ["x"]), "c": (["x"], [])}, "acbc", "abc"),
    # a cell that was deleted, or changed (b became d); the nearest of two above; what nobody binds, such as print
    ({"a": ([], ["x"]), "b": ([], ["x"]), "c": (["x"], [])}, "abc", "ac"),
    ({"a": ([], ["n"]), "b": (["n"], ["m"]), "c": (["m"], []), "d": (["n"], ["m"])}, "abcdc", "adc"),
    ({"a": ([], ["x"]), "b": ([], ["x"]), "c": (["x", "print"], [])}, "abcac", "abc"),
)


def stale_cases(rng: torch.Generator) -> Sequence[tuple]:
    """By hand, then drawn: some cells, names read and bound at random, run mostly downwards, the page without one."""
    by_hand = [(copy.deepcopy(cells), list(ran), list(page)) for cells, ran, page in _BY_HAND]
    return by_hand + [_drawn(rng) for _ in range(25)]


def _drawn(rng: torch.Generator) -> tuple:
    """One drawn notebook and its history."""
    pick = lambda n: int(torch.randint(n, (), generator=rng))
    some = lambda names, most: sorted({names[pick(len(names))] for _ in range(pick(most + 1))})
    keys = "abcdefg"[: 4 + pick(4)]
    cells = {key: (some("uvwx", 2), some("uvwx", 2)) for key in keys}
    ran = [key for key in keys for _ in range(1 + (pick(4) == 0))] + [keys[pick(len(keys))] for _ in range(pick(4))]
    gone = keys[pick(len(keys))] if pick(2) else ""
    return cells, ran, [key for key in keys if key != gone]


def _source_by(source: Callable, *, start: int = 1, read_first: bool = True, gone_binds: bool = True, own: bool = True):
    """`stale_names` with another source for a name, another first number, or another care for what binds."""

    def mistaken(cells: Cells, ran: Sequence[str], page: Sequence[str]) -> list[tuple[int, str]]:
        found, bound = [], {}
        for run, key in enumerate(ran, start):
            reads, binds = cells[key]
            binding = dict.fromkeys(binds if key in page or gone_binds else (), key)
            bound |= {} if read_first else binding
            for name in sorted(reads if key in page else ()):
                given = source(name, key, cells, page)
                if name in bound and bound[name] != given and (own or bound[name] != key):
                    found.append((run, name))
            bound |= binding
        return found

    return mistaken


def _nearest(name: str, key: str, cells: Cells, page: Sequence[str]) -> str | None:
    """The right source."""
    above = page[: page.index(key)]
    return next((other for other in reversed(above) if name in cells[other][1]), None)


def _first(name: str, key: str, cells: Cells, page: Sequence[str]) -> str | None:
    """The first cell above that binds a name."""
    return next((other for other in page[: page.index(key)] if name in cells[other][1]), None)


def _last_anywhere(name: str, _key: str, cells: Cells, page: Sequence[str]) -> str | None:
    """The last cell of the page that binds a name, also below."""
    return next((other for other in reversed(page) if name in cells[other][1]), None)


def _by_name(cells: Cells, ran: Sequence[str], page: Sequence[str]) -> list[tuple[int, str]]:
    """The right pairs in the order of names."""
    return sorted(stale_names(cells, ran, page), key=lambda pair: pair[::-1])


STALE_MISTAKES = (
    ("The right pairs: put them in the order of the runs.", _by_name),
    ("Runs are counted from 1, as in a notebook's brackets.", _source_by(_nearest, start=0)),
    ("Of several cells above that bind a name, the nearest one gives it.", _source_by(_first)),
    ("A cell below gives nothing to one above: look at the cells above only.", _source_by(_last_anywhere)),
    ("A cell reads before it binds: look first, then note what it binds.", _source_by(_nearest, read_first=False)),
    ("What a deleted cell has bound is still in memory: note its names as well.",)
    + (_source_by(_nearest, gone_binds=False),),
    ("A cell that ran twice may find what its own first run left, which the page cannot give.",)
    + (_source_by(_nearest, own=False),),
)
