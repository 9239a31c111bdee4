"""Exercise 19.1: everything that a run draws, from its seed alone; and how a learner's form of it is looked at."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite

import numpy as np
import torch

from labkit.checks.shares import as_program
from labkit.compare import Finding

PARTS = ("weights", "held_out", "order", "noise", "flip")


def draws(names: Sequence[str], seed: int) -> dict:
    """What a run draws by chance, by part: first weights, who is held out, the others' order, noise, flips."""
    known, dice = sorted(names), np.random.default_rng(seed)
    shuffled = [known[i] for i in dice.permutation(len(known))]
    return {
        "weights": dice.normal(size=4),
        "held_out": shuffled[: len(known) // 5],
        "order": shuffled[len(known) // 5 :],
        "noise": {name: dice.normal() for name in known},
        "flip": {name: dice.random() < 0.5 for name in known},
    }


class _Name(str):
    """A file's name whose hash is another one in each program, as it is where Python salts it."""

    program = 0

    def __hash__(self) -> int:
        return hash((self.program, str(self)))


def _named(n: int, program: int) -> list[_Name]:
    """Names of n files, in an order and with hashes of this program's own."""
    names = [_Name(f"{i:03}.png") for i in np.random.default_rng([n, program]).permutation(n)]
    for name in names:
        name.program = program
    return names


@contextmanager
def _later(seconds: int) -> Iterator[None]:
    """A block in which it is later."""
    now, now_ns = time.time, time.time_ns
    time.time, time.time_ns = lambda: now() + seconds, lambda: now_ns() + seconds * 10**9
    try:
        yield
    finally:
        time.time, time.time_ns = now, now_ns


def drive_draws(fn: Callable, n: int, seed: int) -> list:
    """What fn draws for n files: in two programs with one seed, and in the second one with another seed."""
    told = []
    for program, sown in ((1, seed), (2, seed), (2, seed + 1000)):
        with as_program(fn, program, len(told)), _later(1000 * program):
            told.append(_plain(fn(_named(n, program), sown)))
    return told


def _plain(plan: object) -> object:
    """Draws as plain values, names as plain text; what is no dictionary as it is."""
    if isinstance(plan, Mapping):
        return {str(key): _plain(value) for key, value in plan.items()}
    if isinstance(plan, (torch.Tensor, np.ndarray, np.generic)):
        return _plain(plan.tolist())
    if isinstance(plan, (list, tuple)):
        return [_plain(value) for value in plan]
    return str(plan) if isinstance(plan, str) else plan


def draws_found(got: Sequence, _expected: object, n: int, _seed: int) -> Finding:
    """`right`, or what is wrong with the draws of three programs."""
    names = [f"{i:03}.png" for i in range(n)]
    one, again, other = got
    fault = next((told for plan in got if (told := _malformed(plan, names))), "")
    fault = fault or next((f"{part}: another one in each program" for part in PARTS if one[part] != again[part]), "")
    fault = fault or next((f"{part}: the same for every seed" for part in PARTS if again[part] == other[part]), "")
    return Finding(fault or _without_chance(one, names) or "right")


def _is_number(value: object) -> bool:
    """Whether something is a finite number, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _malformed(plan: object, names: Sequence[str]) -> str:
    """What is wrong with the form of one program's draws; nothing where that is right."""
    if not isinstance(plan, dict) or set(plan) != set(PARTS):
        return "not the five parts"
    weights, held_out, order, noise, flip = (plan[part] for part in PARTS)
    if not isinstance(weights, list) or len(weights) != 4 or not all(map(_is_number, weights)):
        return "weights: not four numbers"
    if not isinstance(held_out, list) or not isinstance(order, list):
        return "held_out, order: no lists"
    if len(held_out) != len(names) // 5:
        return "held_out: not a fifth"
    if sorted(map(str, held_out + order)) != names:
        return "held_out, order: not each name once"
    for part, right in (("noise", _is_number), ("flip", lambda value: value in (False, True))):
        told = plan[part]
        if not isinstance(told, dict) or sorted(told) != names or not all(map(right, told.values())):
            return f"{part}: not one for each name"
    return ""


def _without_chance(plan: dict, names: Sequence[str]) -> str:
    """A part that is no draw by chance, or that has its numbers from another part."""
    weights, _, order, noise, flip = (plan[part] for part in PARTS)
    noisy, flips = [noise[name] for name in names], [bool(flip[name]) for name in names]
    if order in (sorted(order), sorted(order, reverse=True)):
        return "order: sorted"
    for part, values in (("noise", noisy), ("weights", weights), ("flip", flips)):
        if len(set(values)) == 1:
            return f"{part}: all alike"
    if len(set(weights) & set(noisy)) > 1:
        return "weights, noise: the same numbers"
    signs = [value > 0 for value in noisy]
    if flips in (signs, [not sign for sign in signs]):
        return "flip, noise: the same numbers"
    return ""


_LEAKS = {
    "weights": "They come from dice that nobody seeded, or were drawn before the line that seeds.",
    "held_out": "Python's or NumPy's own dice, the order of a set, or the order in which files are listed: begin with "
    "sorted(names), and draw from a generator that knows the seed.",
    "order": "A set has an order of its own in each program, and files are listed in another one on each machine: "
    "begin with sorted(names), and shuffle by a generator that knows the seed.",
    "noise": "A generator without a seed, np.random.default_rng(), is new in each program; and where the seed is "
    "known, draw in the order of sorted(names).",
    "flip": "hash() of a text is another number in each program: draw in the order of sorted(names), or seed by "
    "zlib.crc32(name.encode()).",
}
_CAUSES = {
    "not the five parts": f"Return a dictionary with {', '.join(PARTS)}, and nothing else.",
    "weights: not four numbers": "weights is four numbers.",
    "held_out, order: no lists": "A set has no order that one could repeat: held_out and order are lists.",
    "held_out: not a fifth": "held_out has len(names) // 5 names.",
    "held_out, order: not each name once": "What is not held out is in order, once.",
    "noise: not one for each name": "noise is a dictionary, name to number, of all names.",
    "flip: not one for each name": "flip is a dictionary, name to True or False, of all names.",
    "order: sorted": "Repeatable, for nothing was shuffled. Keep the chance, and seed it.",
    "noise: all alike": "Repeatable, for there is no noise in it. Keep the chance, and seed it.",
    "weights: all alike": "Repeatable, for nothing was drawn. Keep the chance, and seed it.",
    "flip: all alike": "Repeatable, for nothing was drawn. Keep the chance, and seed it.",
    "weights, noise: the same numbers": "Two generators with one seed give the same numbers twice: draw all parts from "
    "one, or seed by [seed, 1], [seed, 2].",
    "flip, noise: the same numbers": "The flip follows from the noise: draw it by itself.",
}


def draws_cause(got: object, expected: object) -> str | None:
    """None where the draws are right, otherwise the likely cause."""
    if got == expected:
        return None
    part, _, fault = str(got).partition(": ")
    if fault == "another one in each program":
        return _LEAKS[part]
    if fault == "the same for every seed":
        return "Runs over seeds would share this part: the seed must count in each."
    return _CAUSES.get(str(got), "")


def draws_cases(rng: torch.Generator) -> Sequence[tuple]:
    """So many files that two right draws are never alike by chance; numbers of files and seeds drawn at random."""
    sizes, seeds = (torch.randint(low, high, (4,), generator=rng).tolist() for low, high in ((40, 90), (0, 900)))
    return list(zip(sizes, seeds, strict=True))
