"""The checks of lesson 19 take right answers that are written in another way than the course's own."""

import random
import zlib
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

from labkit.checker import find, generator_for, verdict
from labkit.checks import sown, stale
from labkit.repro.order import out_of_order


def draws_by_python(names, seed):
    """Python's dice for all, seeded with a text; tuples, NumPy's bools."""
    dice, names = random.Random(f"run {seed}"), sorted(set(names))
    dice.shuffle(names)
    n = len(names) // 5
    return {
        "flip": {name: np.bool_(dice.getrandbits(1)) for name in names},
        "noise": {name: dice.gauss(0, 1) for name in names},
        "order": tuple(names[n:]),
        "held_out": sorted(names[:n]),
        "weights": [dice.gauss(0, 1) for _ in range(4)],
    }


def draws_by_torch(names, seed):
    """The process's own generators, seeded here; sets put in order; a generator for each name, by its checksum."""
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    held_out = set(random.sample(sorted(names), len(names) // 5))
    order = sorted(set(names) - held_out)
    np.random.shuffle(order)
    own = {name: np.random.default_rng([seed, zlib.crc32(name.encode())]) for name in names}
    return {
        "weights": torch.randn(4),
        "held_out": sorted(held_out),
        "order": order,
        "noise": {name: torch.tensor(own[name].normal()) for name in names},
        "flip": {name: own[name].random() < 0.5 for name in names},
    }


def improvement_by_counting(before, after):
    """How often each sum comes about, one difference after the other; exact fractions."""
    shared = sorted(set(before) & set(after))
    ways = Counter({0: 1})
    for seed in shared:
        more = Counter()
        for total, n in ways.items():
            for sign in (-1, 1):
                more[total + sign * (after[seed] - before[seed])] += n
        ways = more
    seen = sum(after[seed] - before[seed] for seed in shared)
    p = Fraction(sum(n for total, n in ways.items() if abs(total) >= abs(seen)), 2 ** len(shared))
    return seen / len(shared) if shared else 0, float(p), bool(np.bool_(seen > 0 and p <= Fraction(1, 20)))


def stale_by_tables(cells, ran, page):
    """What each cell should find, worked out first; pairs as lists."""
    given, bound = {}, {}
    for key in page:
        given[key] = {name: bound.get(name) for name in cells[key][0]}
        bound |= dict.fromkeys(cells[key][1], key)
    last, faults = {}, []
    for run, key in enumerate(ran):
        for name, source in sorted(given.get(key, {}).items()):
            if last.get(name, source) != source:
                faults.append([run + 1, name])
        for name in cells[key][1]:
            last[name] = key
    return faults


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("draws", draws_by_python),
        ("draws", draws_by_torch),
        ("improvement", improvement_by_counting),
        ("stale_names", stale_by_tables),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_right_answer_written_another_way_passes(name, answer, seed):
    exercise = find(name)
    found = verdict(answer, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
    assert found.status == "passed", found.message


def test_each_program_lists_names_in_its_own_order_and_has_its_own_hashes():
    seen = []

    def draws(names, seed):
        seen.append((list(names), [hash(name) for name in sorted(names)], list({*names}), seed))
        return {}

    found = sown.drive_draws(draws, 40, 3)
    assert found == [{}, {}, {}]
    one, again, other = seen
    assert sorted(one[0]) == sorted(again[0])
    assert all(mine != theirs for mine, theirs in zip(one[:3], again[:3], strict=True))
    assert again[:3] == other[:3]
    assert one[3] == again[3] != other[3]


def test_what_a_drive_gives_is_plain():
    told = sown.drive_draws(draws_by_torch, 40, 0)
    kinds = {type(value) for plan in told for part in plan.values() for value in (part if type(part) is list else part)}
    assert kinds == {str, float}
    assert {type(value) for plan in told for value in plan["flip"].values()} == {bool}


@pytest.mark.parametrize("wrong", [None, 3, {}, dict.fromkeys(sown.PARTS), {part: [] for part in sown.PARTS}])
def test_an_answer_of_another_form_is_told_so(wrong):
    exercise = find("draws")
    found = verdict(lambda *_: wrong, exercise, generator=generator_for(exercise, 0))
    assert found.status == "failed"
    assert "wrong result" in found.message, found.message


def test_names_by_hand_and_names_read_from_text_give_the_same_faults():
    """The exercise's idea is that of labkit's own check."""
    for cells, ran, page in stale.stale_cases(generator_for(find("stale_names"), 0)):
        written = {key: _source(key, *cells[key]) for key in cells}
        faults = out_of_order([written[key] for key in ran], [written[key] for key in page])
        mine = [(fault.count, fault.name) for fault in faults if fault.cell is not None]
        assert mine == stale.stale_names(cells, ran, page)


def _source(key, reads, binds):
    """A cell's text that reads and binds these names."""
    return "\n".join([f"'{key}'", *(f"{name}" for name in reads), *(f"{name} = 1" for name in binds)])
