"""Wrong answers that learners of lesson 19 would give, each with a part of the message that must meet it."""

import itertools
import random
import statistics
import time
import zlib

import numpy as np
import torch

from labkit.checks import paired, stale


def still_leaky(names, seed):
    weights = torch.randn(4)
    torch.manual_seed(seed)
    held_out = random.sample(names, len(names) // 5)
    order = list(set(names) - set(held_out))
    dice = np.random.default_rng()
    noise = {name: dice.normal() for name in names}
    flip = {name: random.Random(hash(name)).random() < 0.5 for name in names}
    return {"weights": weights, "held_out": held_out, "order": order, "noise": noise, "flip": flip}


def _drawn(known, dice):
    shuffled = [known[i] for i in dice.permutation(len(known))]
    return {
        "weights": dice.normal(size=4),
        "held_out": shuffled[: len(known) // 5],
        "order": shuffled[len(known) // 5 :],
        "noise": {name: dice.normal() for name in known},
        "flip": {name: dice.random() < 0.5 for name in known},
    }


def _right(names, seed):
    return _drawn(sorted(names), np.random.default_rng(seed))


def seeds_torch_only(names, seed):
    torch.manual_seed(seed)
    return _right(names, seed) | {"weights": np.random.randn(4)}


def as_the_files_are_listed(names, seed):
    return _drawn(names, np.random.default_rng(seed))


def keeps_the_set(names, seed):
    told = _right(names, seed)
    return told | {"order": list(set(names) - set(told["held_out"]))}


def keeps_the_hash(names, seed):
    return _right(names, seed) | {"flip": {name: random.Random(hash((name, seed))).random() < 0.5 for name in names}}


def hash_of_another_text(names, seed):
    return _right(names, seed) | {"flip": {name: hash(f"{seed} {name}") % 2 == 0 for name in names}}


def forgets_its_own_generator(names, seed):
    dice = np.random.default_rng()
    return _right(names, seed) | {"noise": {name: dice.normal() for name in sorted(names)}}


def noise_as_listed(names, seed):
    dice = np.random.default_rng([seed, 1])
    return _right(names, seed) | {"noise": {name: dice.normal() for name in names}}


def python_is_unseeded(names, seed):
    held_out = random.sample(sorted(names), len(names) // 5)
    order = [name for name in _right(names, seed)["order"] if name not in held_out]
    return _right(names, seed) | {"held_out": held_out, "order": order + sorted(set(names) - {*held_out, *order})}


def seeds_by_the_clock(names, seed):
    return _right(names, int(time.time()) + seed)


def one_seed_for_all(names, seed):
    return _right(names, 0)


def forgets_the_seed_in_one(names, seed):
    by_name = {name: zlib.crc32(name.encode()) % 2 == 0 for name in names}
    return _right(names, seed) | {"flip": by_name}


def without_a_shuffle(names, seed):
    known = sorted(names)
    held_out = _right(names, seed)["held_out"]
    return _right(names, seed) | {"order": [name for name in known if name not in held_out]}


def without_noise(names, seed):
    return _right(names, seed) | {"noise": {name: float(seed) for name in names}}


def one_generator_too_many(names, seed):
    dice, more = np.random.default_rng(seed), np.random.default_rng(seed)
    told = _right(names, seed)
    return told | {"weights": dice.normal(size=4), "noise": {name: more.normal() for name in sorted(names)}}


def flip_from_noise(names, seed):
    told = _right(names, seed)
    return told | {"flip": {name: value > 0 for name, value in told["noise"].items()}}


_kept = np.random.default_rng(0)


def a_generator_for_all_calls(names, seed):
    return _drawn(sorted(names), _kept)


def a_part_is_missing(names, seed):
    told = _right(names, seed)
    del told["flip"]
    return told


def held_out_as_a_set(names, seed):
    told = _right(names, seed)
    return told | {"held_out": set(told["held_out"])}


def orders_all(names, seed):
    told = _right(names, seed)
    return told | {"order": told["held_out"] + told["order"]}


def holds_out_a_quarter(names, seed):
    told = _right(names, seed)
    every = told["held_out"] + told["order"]
    return told | {"held_out": every[: len(names) // 4], "order": every[len(names) // 4 :]}


def _signed(gains):
    return [
        sum(s * g for s, g in zip(flip, gains, strict=True)) for flip in itertools.product((-1, 1), repeat=len(gains))
    ]


def by_place(before, after):
    gains = [b - a for a, b in zip(before.values(), after.values(), strict=False)]
    p = statistics.mean(abs(total) >= abs(sum(gains)) for total in _signed(gains))
    gain = statistics.mean(gains)
    return gain, p, gain > 0 and p <= 0.05


def one_sided(before, after):
    gains = [after[s] - before[s] for s in before if s in after]
    if not gains:
        return 0.0, 1.0, False
    p = sum(total >= sum(gains) for total in _signed(gains)) / 2 ** len(gains)
    gain = sum(gains) / len(gains)
    return gain, p, gain > 0 and p <= 0.05


def beyond_only(before, after):
    gains = [after[s] - before[s] for s in before if s in after]
    if not gains:
        return 0.0, 1.0, False
    p = sum(abs(total) > abs(sum(gains)) for total in _signed(gains)) / 2 ** len(gains)
    gain = sum(gains) / len(gains)
    return gain, p, gain > 0 and p <= 0.05


def missing_is_zero(before, after):
    gains = [after.get(s, 0) - before.get(s, 0) for s in {*before, *after}]
    p = sum(abs(total) >= abs(sum(gains)) for total in _signed(gains)) / 2 ** len(gains)
    gain = sum(gains) / len(gains)
    return gain, p, gain > 0 and p <= 0.05


def heaps(before, after):
    gain = statistics.mean(after.values()) - statistics.mean(before.values())
    error = (
        statistics.variance(after.values()) / len(after) + statistics.variance(before.values()) / len(before)
    ) ** 0.5
    p = 2 * statistics.NormalDist().cdf(-abs(gain) / error)
    return gain, p, gain > 0 and p <= 0.05


def by_drawing(before, after):
    """Gets close to p without going through all ways."""
    gains = [after[s] - before[s] for s in before if s in after]
    if not gains:
        return 0.0, 1.0, False
    dice = np.random.default_rng(0)
    sums = dice.choice([-1, 1], size=(10_000, len(gains))) @ np.array(gains)
    p, gain = float(np.mean(np.abs(sums) >= abs(sum(gains)))), sum(gains) / len(gains)
    return gain, p, gain > 0 and p <= 0.05


def forgets_none_shared(before, after):
    gains = [after[s] - before[s] for s in before if s in after]
    p = sum(abs(total) >= abs(sum(gains)) for total in _signed(gains)) / 2 ** len(gains)
    return sum(gains) / len(gains), p, sum(gains) > 0 and p <= 0.05


def a_loss_is_better(before, after):
    gain, p, _ = paired.improvement(before, after)
    return gain, p, p <= 0.05


def turned_round(before, after):
    return paired.improvement(after, before)


def gives_p_alone(before, after):
    return paired.improvement(before, after)[1]


def _stale(*, start=1, nearest=True, below=False, reads_first=True, gone=True, own=True, key_for_run=False):
    """The reference's way, with parts of it changed."""

    def fn(cells, ran, page):
        faults, bound = [], {}
        for run, key in enumerate(ran, start):
            reads, binds = cells[key]
            if not reads_first:
                bound |= dict.fromkeys(binds, key)
            if key in page:
                where = page if below else page[: page.index(key)]
                for name in sorted(reads):
                    given = [other for other in where if name in cells[other][1]]
                    expected = given[-1 if nearest else 0] if given else None
                    if name in bound and bound[name] != expected and (own or bound[name] != key):
                        faults.append((key if key_for_run else run, name))
            if key in page or gone:
                bound |= dict.fromkeys(binds, key)
        return faults

    return fn


def only_looks_at_the_order(cells, ran, page):
    places = [page.index(key) if key in page else -1 for key in ran]
    return [
        (run, name)
        for run in range(2, len(ran) + 1)
        for name in sorted(cells[ran[run - 1]][0])
        if ran[run - 1] in page and places[run - 1] < max(places[: run - 1])
    ]


def the_last_run_alone(cells, ran, page):
    found = stale.stale_names(cells, ran, page)
    return [pair for pair in found if pair[0] == len(ran)]


def a_set_of_names(cells, ran, page):
    return sorted({name for _, name in stale.stale_names(cells, ran, page)})


WRONG = {
    "19.1": [
        ("still leaky", still_leaky, "weights: another one in each program(.|\n)*before the line that seeds"),
        ("seeds torch only", seeds_torch_only, "weights: another one in each program"),
        ("as the files are listed", as_the_files_are_listed, "held_out: another one(.|\n)*sorted\\(names\\)"),
        ("keeps the set", keeps_the_set, "order: another one(.|\n)*A set has an order of its own"),
        ("keeps the hash", keeps_the_hash, "flip: another one(.|\n)*hash\\(\\) of a text"),
        ("hashes another text", hash_of_another_text, "flip: another one(.|\n)*hash\\(\\) of a text"),
        ("forgets its own generator", forgets_its_own_generator, "noise: another one(.|\n)*without a seed"),
        ("draws noise as listed", noise_as_listed, "noise: another one(.|\n)*order of sorted"),
        ("leaves Python unseeded", python_is_unseeded, "held_out: another one"),
        ("seeds by the clock", seeds_by_the_clock, "weights: another one in each program"),
        ("one generator for all calls", a_generator_for_all_calls, "weights: another one in each program"),
        ("one seed for all", one_seed_for_all, "weights: the same for every seed(.|\n)*seed must count"),
        ("forgets the seed in one", forgets_the_seed_in_one, "flip: the same for every seed"),
        ("does not shuffle", without_a_shuffle, "order: sorted(.|\n)*Keep the chance"),
        ("has no noise", without_noise, "noise: all alike(.|\n)*Keep the chance"),
        ("one generator too many", one_generator_too_many, "weights, noise: the same numbers"),
        ("the flip from the noise", flip_from_noise, "flip, noise: the same numbers"),
        ("a part is missing", a_part_is_missing, "not the five parts"),
        ("held out as a set", held_out_as_a_set, "held_out, order: no lists"),
        ("orders all", orders_all, "not each name once"),
        ("holds out a quarter", holds_out_a_quarter, "not a fifth"),
    ],
    "19.2": [
        ("pairs by place", by_place, "Pair by seed|StatisticsError|ValueError"),
        ("one-sided", one_sided, "One-sided"),
        ("beyond only", beyond_only, ">="),
        ("what is missing is zero", missing_is_zero, "leave out seeds"),
        ("two heaps", heaps, "which share is as far from zero"),
        ("by drawing", by_drawing, "which share is as far from zero"),
        ("forgets that none may be shared", forgets_none_shared, "ZeroDivisionError"),
        ("a loss is better", a_loss_is_better, "A loss is no improvement"),
        ("turned round", turned_round, "after - before"),
        ("p alone", gives_p_alone, "wrong type"),
    ],
    "19.3": [
        ("counts from zero", _stale(start=0), "counted from 1"),
        ("the first above", _stale(nearest=False), "the nearest one gives it"),
        ("looks below", _stale(below=True), "look at the cells above only"),
        ("binds before it reads", _stale(reads_first=False), "look first, then note"),
        ("forgets deleted cells", _stale(gone=False), "deleted cell has bound"),
        ("trusts its own first run", _stale(own=False), "its own\\s+first run"),
        ("gives keys", _stale(key_for_run=True), "which cell bound it last|wrong type"),
        ("only looks at the order", only_looks_at_the_order, "which cell bound it last|items"),
        ("the last run alone", the_last_run_alone, "items"),
        ("names alone", a_set_of_names, "wrong type|wrong length|pair|tuple"),
    ],
}
