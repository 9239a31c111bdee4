"""Exercise 10.4: the option that costs least, among those which fit the cards and are done in time."""

from collections.abc import Callable, Sequence

import torch

from labkit import cost

GIB = 2**30
NONE = "none"


def _hours(option: dict, n_steps: int, bytes_per_s: float) -> float:
    """Hours of the run: shared work, then a ring of the gradients, in each step."""
    ring_s = cost.ring_all_reduce_s(option["gradient_bytes"], option["cards"], bytes_per_s)
    return n_steps * (option["work_s"] / option["cards"] + ring_s) / 3600


def _card_bytes(option: dict) -> float:
    """Bytes on each card."""
    return option["state_bytes"] / (option["cards"] if option["sharded"] else 1) + option["activation_bytes"]


def _chosen(
    *,
    card_bytes: Callable = _card_bytes,
    hours: Callable = _hours,
    gib: float = GIB,
    deadline: bool = True,
    rank: Callable = lambda run: (run["bill"], run["hours"]),
) -> Callable:
    """`cheapest`, or with one thing changed, a mistake."""

    def choose(
        options: list, n_steps: int, deadline_h: float, card_gib: float, bytes_per_s: float, price: float
    ) -> str:
        good = []
        for option in options:
            took_h = hours(option, n_steps, bytes_per_s)
            if card_bytes(option) <= card_gib * gib and (took_h <= deadline_h or not deadline):
                run = {"cards": option["cards"], "hours": took_h, "bill": took_h * option["cards"] * price}
                good.append((*rank(run), option["name"]))
        return min(good)[-1] if good else NONE

    return choose


def cheapest(
    options: list, n_steps: int, deadline_h: float, card_gib: float, bytes_per_s: float, price: float
) -> str | None:
    """The name of the cheapest option that fits and is done in time, of equals the first done; "none" without one."""
    return _chosen()(options, n_steps, deadline_h, card_gib, bytes_per_s, price)


def chosen_cause(got: object, expected: object) -> str | None:
    """None where the choice is right."""
    if got == expected:
        return None
    if expected == NONE:
        return "No option both fits and is done in time."
    return "For each option: bytes on a card, hours, and what they cost. Another one fits, is done, and costs less."


def _option(name: str, cards: int, state: float, activation: float, work_s: float, **others: object) -> dict:
    """An option under the names that the lesson gives."""
    sizes = {"state_bytes": state, "activation_bytes": activation, "work_s": work_s}
    return {"name": name, "cards": cards, "sharded": True, "gradient_bytes": 0, **sizes, **others}


def option_cases(rng: torch.Generator) -> Sequence[tuple]:
    """A corner for each thing that may be forgotten, told apart by round figures; then drawn at random."""
    day = 8 * 3600.0  # of work on one card, in powers of two times an hour, so that ties are exact
    slow = {"gradient_bytes": 2 * 10**9}
    plain = [
        (
            [_option("one", 1, 60e9, 10e9, day), _option("eight", 8, 60e9, 10e9, 1.5 * day, **slow)],
            4,
            100.0,
            80,
            1e9,
            2,
        ),
        ([_option("one", 1, 80e9, 4e9, day), _option("two", 2, 80e9, 4e9, 1.5 * day, **slow)], 4, 100.0, 80, 1e9, 2),
        ([_option("one", 1, 60e9, 30e9, day), _option("two", 2, 60e9, 30e9, day)], 4, 100.0, 80, 1e9, 2),
        ([_option("copies", 4, 90e9, 1e9, day, sharded=False), _option("zero", 4, 90e9, 1e9, day, **slow)],)
        + (4, 100.0, 80, 1e9, 2),
        ([_option("activations", 4, 10e9, 99e9, day), _option("small", 4, 10e9, 9e9, 2 * day)], 4, 100.0, 80, 1e9, 2),
        ([_option("one", 1, 60e9, 10e9, day), _option("four", 4, 60e9, 10e9, 2 * day)], 4, 20.0, 80, 1e9, 2),
        ([_option("wired", 8, 9e9, 1e9, 16.0, gradient_bytes=16 * 10**9), _option("one", 1, 9e9, 1e9, 18.0)],)
        + (1000, 6.0, 80, 1e9, 2),
        ([_option("big", 1, 99e9, 1e9, day)], 4, 100.0, 80, 1e9, 2),
        ([_option("late", 1, 9e9, 1e9, day)], 4, 31.0, 80, 1e9, 2),
        ([_option("one", 1, 9e9, 1e9, 2 * day), _option("four", 4, 9e9, 1e9, day)], 4, 100.0, 80, 1e9, 2),
        ([_option("one", 1, 9e9, 1e9, day), _option("four", 4, 9e9, 1e9, day)], 4, 100.0, 80, 1e9, 2),
        ([_option("four", 4, 9e9, 1e9, day), _option("one", 1, 9e9, 1e9, day)], 4, 100.0, 80, 1e9, 2),
    ]
    return [*plain, *(_random_case(rng) for _ in range(40))]


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


def _ring_of(share: Callable[[int], float]) -> Callable:
    """Hours with another ring."""

    def hours(option: dict, n_steps: int, bytes_per_s: float) -> float:
        ring_s = share(option["cards"]) * option["gradient_bytes"] / bytes_per_s
        return n_steps * (option["work_s"] / option["cards"] + ring_s) / 3600

    return hours


def _each_as_alone(option: dict, n_steps: int, bytes_per_s: float) -> float:
    """Hours as if cards did not share the work."""
    ring_s = cost.ring_all_reduce_s(option["gradient_bytes"], option["cards"], bytes_per_s)
    return n_steps * (option["work_s"] + ring_s) / 3600


# Of mistakes that choose alike the first is named: those come first that leave a whole condition out.
OPTION_MISTAKES = (
    ("Not all of these fit: compare the bytes on a card with what the card has.", _chosen(card_bytes=lambda _: 0)),
    ("A GiB is 2^30 bytes, and not 10^9.", _chosen(gib=1e9)),
    ("Where cards share the copy, each holds a part of state_bytes: divide by cards.",)
    + (_chosen(card_bytes=lambda o: o["state_bytes"] + o["activation_bytes"]),),
    ("Where sharded is False each card holds all of state_bytes.",)
    + (_chosen(card_bytes=lambda o: o["state_bytes"] / o["cards"] + o["activation_bytes"]),),
    ("activation_bytes are each card's already, and they are there besides.",)
    + (_chosen(card_bytes=lambda o: _card_bytes(o) - o["activation_bytes"]),),
    ("activation_bytes are each card's already: do not divide them.",)
    + (_chosen(card_bytes=lambda o: _card_bytes({**o, "activation_bytes": o["activation_bytes"] / o["cards"]})),),
    ("It must be done within deadline_h.", _chosen(deadline=False)),
    ("k cards do not give k times the speed: the gradients go round a ring in each step.",)
    + (_chosen(hours=_ring_of(lambda _: 0)),),
    ("All cards are paid for.", _chosen(rank=lambda run: (run["bill"] / run["cards"],))),
    ("Of equally cheap ones the one that is done first.",) + (_chosen(rank=lambda run: (run["bill"], -run["hours"])),),
    ("The cheapest is asked for, and not the quickest.", _chosen(rank=lambda run: (run["hours"],))),
    ("The cheapest is asked for, and not the fewest cards.", _chosen(rank=lambda run: (run["cards"],))),
    ("A ring sends 2 (k-1)/k of the gradients' bytes.", _chosen(hours=_ring_of(lambda k: (k - 1) / k))),
    ("A ring sends 2 (k-1)/k of the gradients' bytes: one card sends none.", _chosen(hours=_ring_of(lambda _: 2))),
    ("A ring sends 2 (k-1)/k of the gradients' bytes, however many cards.",)
    + (_chosen(hours=_ring_of(lambda k: 2 * (k - 1))),),
    ("Cards share the work of a step: work_s is that of one card alone.", _chosen(hours=_each_as_alone)),
)
