"""Exercise 10.4: the option that costs least, among those which fit the cards and are done in time."""

from collections.abc import Sequence

import torch

from labkit import cost
from labkit.describe import number

GIB = 2**30
NONE = "none"


class _Choice(str):
    """The right name, with the case that it was chosen from; never seen by a learner's code."""

    case: tuple


def _hours(option: dict, n_steps: int, bytes_per_s: float) -> float:
    """Hours of the run: shared work, then a ring of the gradients, in each step."""
    ring_s = cost.ring_all_reduce_s(option["gradient_bytes"], option["cards"], bytes_per_s)
    return n_steps * (option["work_s"] / option["cards"] + ring_s) / 3600


def _card_bytes(option: dict) -> float:
    """Bytes on each card."""
    return option["state_bytes"] / (option["cards"] if option["sharded"] else 1) + option["activation_bytes"]


def cheapest(
    options: list, n_steps: int, deadline_h: float, card_gib: float, bytes_per_s: float, price: float
) -> str | None:
    """The name of the cheapest option that fits and is done in time, of equals the first done; "none" without one."""
    good = []
    for option in options:
        hours = _hours(option, n_steps, bytes_per_s)
        if _card_bytes(option) <= card_gib * GIB and hours <= deadline_h:
            good.append((hours * option["cards"] * price, hours, option["name"]))
    chosen = _Choice(min(good)[-1] if good else NONE)
    chosen.case = options, n_steps, deadline_h, card_gib, bytes_per_s, price
    return chosen


def chosen_cause(got: str, expected: str) -> str | None:
    """None where the choice is right; otherwise what the case is there for, and the figures of both options."""
    if got == expected:
        return None
    options = {option["name"]: option for option in expected.case[0]}
    if got != NONE and got not in options:
        return f"No option is called {got!r}."
    lines = [line for line, case in CORNERS if case == expected.case]
    lines += [f"{name}: {_figures(options[name], expected.case)}." for name in (got, expected) if name != NONE]
    return " ".join([*lines, *(["No option both fits and is done in time."] if expected == NONE else [])])


def _figures(option: dict, case: tuple) -> str:
    """Bytes, hours and cost of an option, each held against what it must not pass."""
    _, n_steps, deadline_h, card_gib, bytes_per_s, price = case
    gib, hours = _card_bytes(option) / GIB, _hours(option, n_steps, bytes_per_s)
    told = f"{number(gib)} of {number(card_gib)} GiB{'' if gib <= card_gib else ', which does not fit'}"
    told += f"; {number(hours)} of {number(deadline_h)} h{'' if hours <= deadline_h else ', which is too late'}"
    return f"{told}; costs {number(hours * option['cards'] * price)}"


def tell(
    options: list, n_steps: int, deadline_h: float, card_gib: float, bytes_per_s: float, price: float
) -> dict[str, str]:
    """A case in lines: the call, then an option a line, as a learner would write them."""
    rest = {"n_steps": n_steps, "deadline_h": deadline_h, "card_gib": card_gib}
    rest |= {"bytes_per_s": bytes_per_s, "price": price}
    call = ", ".join(["options", *(f"{name}={number(value)}" for name, value in rest.items())])
    shown = lambda option: ", ".join(f"{k!r}: {v if isinstance(v, bool) else _written(v)}" for k, v in option.items())
    return {"call": f"cheapest({call})"} | {f"[{i}]": f"{{{shown(option)}}}" for i, option in enumerate(options)}


def _written(value: object) -> str:
    """A text or a number."""
    return repr(value) if isinstance(value, str) else number(value)


def _option(name: str, cards: int, state: float, activation: float, work_s: float, **others: object) -> dict:
    """An option under the names that the lesson gives."""
    sizes = {"state_bytes": state, "activation_bytes": activation, "work_s": work_s}
    return {"name": name, "cards": cards, "sharded": True, "gradient_bytes": 0, **sizes, **others}


def _corners() -> list[tuple[str, tuple]]:
    """(what the case is there for, the case): each turns on one condition, and what came before is known to be right.

    Work is in powers of two times an hour, sizes in powers of two times a GiB, so that ties and limits are exact.
    """
    day = 8 * 3600.0
    case = lambda *options, h=100.0: (list(options), 4, h, 80, 1e9, 2)
    return [
        (
            "Cards share the work of a step: work_s is that of one card alone.",
            case(_option("four", 4, 60e9, 10e9, 2 * day), h=20.0),
        ),
        ("It must be done within deadline_h.", case(_option("late", 1, 9e9, 1e9, day), h=31.0)),
        (
            "In deadline_h or less: exactly at the deadline is in time.",
            case(_option("sharp", 1, 9e9, 1e9, day), h=32.0),
        ),
        ("What does not fit cannot be chosen.", case(_option("big", 1, 99e9, 1e9, day))),
        ("A GiB is 2^30 bytes, and not 10^9: this fits.", case(_option("close", 1, 80e9, 4e9, day))),
        ("What takes exactly card_gib GiB fits.", case(_option("full", 1, 64.0 * GIB, 16.0 * GIB, day))),
        (
            "activation_bytes are there besides state_bytes, and must fit as well.",
            case(_option("both", 1, 60e9, 30e9, day)),
        ),
        (
            "Where sharded is True, each card holds a part of state_bytes: divide by cards.",
            case(_option("parts", 2, 120e9, 1e9, day)),
        ),
        (
            "Where sharded is False, each card holds all of state_bytes.",
            case(_option("copies", 4, 90e9, 1e9, day, sharded=False)),
        ),
        (
            "activation_bytes are each card's already: do not divide them.",
            case(_option("crowded", 4, 10e9, 99e9, day)),
        ),
        *_rings(),
        *_bills(),
    ]


def _rings() -> list[tuple[str, tuple]]:
    """Corners of one option each: an hour of computing, and a ring of an hour times its share, against h hours."""
    ring = {"gradient_bytes": 3600 * 10**9}
    at_once = lambda name, k, h: ([_option(name, k, 9e9, 1e9, k * 3600.0, **ring)], 1, h, 80, 1e9, 2)
    share = "A ring sends 2 (k-1)/k of gradient_bytes: "
    return [
        ("k cards do not give k times the speed: a ring comes on top, in each step.", at_once("wired", 8, 1.5)),
        ("The ring comes after the computing: add its seconds, for nothing overlaps.", at_once("after", 2, 1.25)),
        (share + "of two cards each sends as much as there is, and not less.", at_once("pair", 2, 1.75)),
        (share + "of two cards each sends as much as there is, and not more.", at_once("couple", 2, 2.0)),
        (share + "of eight cards each sends 1.75 times what there is, and not more.", at_once("many", 8, 2.75)),
        (share + "of eight cards each sends 1.75 times what there is, and not less.", at_once("more", 8, 2.625)),
        (share + "one card sends none.", at_once("alone", 1, 1.0)),
    ]


def _bills() -> list[tuple[str, tuple]]:
    """Corners of two options, which both fit and are in time."""
    day = 8 * 3600.0
    case = lambda *options: (list(options), 4, 100.0, 80, 1e9, 2)
    ties = [_option("one", 1, 9e9, 1e9, day), _option("four", 4, 9e9, 1e9, day)]
    return [
        (
            "All cards are paid for, and the cheapest is asked for, not the quickest.",
            case(_option("one", 1, 60e9, 10e9, day), _option("eight", 8, 60e9, 10e9, 1.5 * day)),
        ),
        (
            "The cheapest is asked for, and not the fewest cards.",
            case(_option("one", 1, 9e9, 1e9, 2 * day), _option("four", 4, 9e9, 1e9, day)),
        ),
        ("Of equally cheap ones, the one that is done first.", case(*ties)),
        ("Of equally cheap ones, the one that is done first.", case(*ties[::-1])),
    ]


CORNERS = _corners()


def option_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A corner for each thing that may be forgotten, each with a line of its own; then drawn at random."""
    return [*(case for _, case in _corners()), *(_random_case(rng) for _ in range(40))]


def _random_case(rng: torch.Generator) -> tuple:
    """Two to six options, some of which fit and are done."""
    draw = lambda low, high: low * (high / low) ** float(torch.rand((), generator=rng))
    names = ("plain", "recomputed", "LoRA", "ZeRO", "wired", "small")
    state, work_s, options = draw(1e10, 1e12), draw(1, 1000), []
    for name in names[: int(draw(2, 7))]:
        cards, sharded = int(draw(1, 65)), torch.rand((), generator=rng).item() < 0.7
        sizes = state * draw(0.1, 1), draw(1e9, 5e10), work_s * draw(0.7, 1.5)
        more = {"sharded": sharded, "gradient_bytes": int(draw(1e8, 1e11))}
        options.append(_option(name, cards, *sizes, **more))
    hours = sorted(_hours(option, 1000, 1e10) for option in options)
    return options, 1000, 1.01 * hours[len(hours) // 2], 80, 1e10, draw(0.5, 10)
