"""What a training takes of each rank's memory: as a table with a bar for a terminal, and as JSON."""

import json
import textwrap
from dataclasses import asdict, dataclass
from functools import lru_cache

from labkit.advice import LEVERS, MOST_CHANGES, Advice, advise
from labkit.architecture import Architecture, count
from labkit.cards import CARDS, Card
from labkit.estimate import estimate
from labkit.plot_memory import PARTS
from labkit.states import Plan, States, states
from labkit.traffic import communication_bytes
from labkit.units import format_bytes, format_count

STATES = PARTS[:3]
NARROWEST = 26  # columns: fewer are taken for as many
BLOCKS, ASCII = "█▓▒░%.", "#=+-%."  # a sign a part, told apart without colour
_UNKNOWN = "States only: activations and logits follow from a model's sizes, which --model or --config gives."


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one rank holds at its peak, by part (None: not known), and hands to each collective in a step, in bytes.

    phases: what it holds in every moment of a step, the peak's phase among them. rest: its states between two steps,
    gradients kept.
    """

    model: Architecture | int
    plan: Plan
    card: Card | None
    parts: dict[str, int | None]
    phase: str
    stage: int
    phases: dict[str, int]
    rest: States
    communication: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """All that is known."""
        return sum(size for size in self.parts.values() if size is not None)

    @property
    def states_only(self) -> bool:
        """Whether a bare number of parameters was given, of which nothing but the states follows."""
        return isinstance(self.model, int)

    @property
    def fits(self) -> bool | None:
        """Whether what is known fits into the card's memory; None without a card."""
        return None if self.card is None else self.total_bytes <= self.card.memory_bytes


_estimate = lru_cache(maxsize=1 << 12)(estimate)  # what a reader comes back to is there at once


def report(model: Architecture | int, plan: Plan, card: Card | None = None) -> Report:
    """What training the model by this plan takes. ValueError, in one sentence, where it cannot be done."""
    if isinstance(model, int):
        rest, phase, stage = states(model, plan), "", 0
        found = asdict(rest) | {"phases": {}}
    else:
        guess = _estimate(model, plan)
        found, phase, stage = asdict(guess), guess.phase, guess.stage
        rest = states(model, plan, stage)
    parts = {part: found.get(f"{part}_bytes") for part in PARTS}
    sent = communication_bytes(model, plan, stage)
    when = {"phase": phase, "stage": stage, "phases": found["phases"]}
    return Report(model=model, plan=plan, card=card, parts=parts, **when, rest=rest, communication=sent)


def advice(found: Report, *, most: int = MOST_CHANGES) -> list[Advice]:
    """What to change first so that it fits, then what costs less but is more than one change; at worst neither."""

    def total_bytes(plan: Plan) -> int:
        rest = states(found.model, plan).total_bytes
        if (
            found.states_only or rest > found.card.memory_bytes
        ):  # too much already: the peak, which is dear, is not asked
            return rest
        return _estimate(found.model, plan).total_bytes

    best = advise(found.plan, total_bytes, found.card.memory_bytes, most=most)
    if best is None or len(best.changes) > 1:
        return [best] if best else []
    cheaper = LEVERS[: LEVERS.index(best.levers[0])]
    several = advise(found.plan, total_bytes, found.card.memory_bytes, most=most, levers=cheaper)
    return [best, several] if several else [best]


def as_json(found: Report) -> str:
    """The report as JSON; null is what is not known: activations of a bare number, `fits` without a card."""
    said = {f"{part}_bytes": size for part, size in found.parts.items()}
    said |= {"total_bytes": found.total_bytes, "fits": found.fits, "states_only": found.states_only}
    said |= {"phase": found.phase or None, "stage": found.stage, "at_rest": asdict(found.rest)}
    said |= {"phases_bytes": found.phases, "communication_bytes": found.communication}
    card = None if found.card is None else {"name": found.card.name, "memory_bytes": found.card.memory_bytes}
    model = found.model if isinstance(found.model, int) else asdict(found.model)
    return json.dumps(said | {"gpu": card, "model": model, "plan": asdict(found.plan)}, indent=1, ensure_ascii=False)


def text(found: Report, *, columns: int = 80, signs: str = BLOCKS) -> str:
    """The report for a terminal so many columns wide; signs: one for each part in the bar."""
    columns = max(columns, NARROWEST)
    said = [headline(found), "\n".join(_table(found, columns, signs))]
    said += [bar(found.parts, _memory(found), columns, signs), _UNKNOWN if found.states_only else moment(found)]
    said.append(at_rest(found))
    said += [verdict(found), *_advice(found), sent(found)]
    return "\n\n".join(part if "\n" in part else textwrap.fill(part, columns) for part in said if part)


def _memory(found: Report) -> int | None:
    """What the card has."""
    return None if found.card is None else found.card.memory_bytes


def headline(found: Report) -> str:
    """The model and the plan in a line."""
    plan, named = found.plan, not found.states_only
    size = found.model if found.states_only else count(found.model)
    said = [f"{_printable(found.model.name) if named else 'a model'}, {format_count(size)} parameters ({size:,})"]
    said.append(f"precision {plan.precision}, optimizer {'fused ' * plan.fused}{plan.optimizer}")
    if plan.lora:
        said.append(f"LoRA of rank {plan.lora} over a frozen base of {plan.frozen_bits} bits")
    split = [f"{name} {n}" for name, n in (("tp", plan.tp), ("pp", plan.pp)) if n > 1]
    ways = f" ({', '.join([*split, f'{plan.data_ranks} data-parallel'])})" if split else ""
    said.append(f"{plan.ranks} rank{'s' * (plan.ranks > 1)}{ways}, ZeRO {plan.zero}")
    if named:
        said.append(f"batch {plan.batch} a rank, {plan.seq:,} tokens, {plan.attention} attention")
        said.append(f"recomputation {plan.recompute}")
        if plan.seq > found.model.context:
            said.append(f"more tokens than the {found.model.context:,} that {found.model.name} was made for")
    return "; ".join(said)


def _printable(name: str) -> str:
    """A name, which may be a folder's, without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in name)


def _table(found: Report, columns: int, signs: str) -> list[str]:
    """Each part with its sign in the bar, its bytes, the same rounded, and its share; narrow terminals get less."""
    rows = [("", "one rank", "bytes", "", "share")]
    for sign, (part, size) in zip(signs, found.parts.items(), strict=True):
        known = ("not known", "", "") if size is None else _sizes(size, found.total_bytes)
        rows.append((sign, part, *known))
    rows.append(("", "total" if not found.states_only else "states", *_sizes(found.total_bytes, found.total_bytes)))
    for kept in ((0, 1, 2, 3, 4), (0, 1, 2, 4), (0, 1, 3, 4), (0, 1, 3)):
        widths = [max(len(row[i]) for row in rows) for i in kept]
        lines = [_line([row[i] for i in kept], widths) for row in rows]
        if max(map(len, lines)) <= columns:
            break
    return lines


def _line(cells: list[str], widths: list[int]) -> str:
    """One row: sign and name to the left, figures to the right."""
    left = f"{cells[0]:{widths[0]}} {cells[1]:{widths[1]}}"
    return "  ".join([left, *map(str.rjust, cells[2:], widths[2:])]).rstrip()


def _sizes(size: int, total: int) -> tuple[str, str, str]:
    """A size exactly, rounded, and as a share."""
    return f"{size:,}", format_bytes(size), f"{size / total:.1%}" if total else ""


def bar(parts: dict[str, int | None], memory_bytes: int | None, columns: int, signs: str) -> str:
    """One stacked bar of text, as wide as the terminal, and below it how far the card's memory reaches."""
    total = sum(size or 0 for size in parts.values())
    whole, drawn, done = max(total, memory_bytes or 0), "", 0
    for sign, size in zip(signs, parts.values(), strict=True):
        done += size or 0
        drawn += sign * (done * columns // whole - len(drawn))
    reach, label = total, format_bytes(total)
    if memory_bytes is not None:
        reach, label = memory_bytes, f"{format_bytes(memory_bytes)} on the card"
    return f"{drawn}\n{_ruler(reach * columns // whole, label, columns)}"


def at_rest(found: Report) -> str:
    """The states between two steps, gradients kept: what papers count, where the peak has other gradients or none."""
    if found.states_only:
        return ""
    states_bytes = {name.removesuffix("_bytes"): size for name, size in asdict(found.rest).items()}
    each = ", ".join(f"{part} {format_bytes(size)}" for part, size in states_bytes.items())
    return f"Its states at rest take {format_bytes(found.rest.total_bytes)}: {each}."


def _ruler(width: int, label: str, columns: int) -> str:
    """`|---- label ----|`; the label stands beside or below it where there is no room within."""
    if width >= len(label) + 6:
        return f"|{f' {label} ':-^{width - 2}}|"
    line = "|" if width < 2 else f"|{'-' * (width - 2)}|"
    return f"{line}{' ' if len(line) + 1 + len(label) <= columns else chr(10)}{label}"


def moment(found: Report) -> str:
    """When the peak is."""
    where = f" of pipeline stage {found.stage}" if found.plan.pp > 1 else ""
    return f"The peak{where} is in this moment: {found.phase}.{_step(found)}"


def _step(found: Report) -> str:
    """What of a peak at the optimizer's step is there for that step alone; empty where the peak is another."""
    if found.phase != "optimizer step":
        return ""
    size = sum(found.parts[part] for part in STATES) - found.rest.total_bytes
    fusable = not found.plan.fused and found.plan.optimizer != "adafactor"
    lever = ", most of which a fused optimizer does without" if fusable else ""
    said = f" {format_bytes(size)} of it are temporaries of that step"
    return f"{said}{lever}." if size > 0 else ""


def verdict(found: Report) -> str:
    """`Fits on an A100-80 with 3 GB to spare.`, or by how much it does not; empty without a card."""
    if found.card is None:
        return ""
    name, rest = found.card.name, found.card.memory_bytes - found.total_bytes
    what, more = ("What is known", "; activations come on top") if found.states_only else ("It", "")
    memory = f"{format_bytes(found.card.memory_bytes)}, {format_bytes(found.card.memory_bytes, binary=True)}"
    if rest >= 0:
        return f"{what} fits: {name} ({memory}) has {format_bytes(rest)} left{more}."
    return f"{what} does not fit: {format_bytes(-rest)} too much for {name} ({memory}){more}."


def _advice(found: Report) -> list[str]:
    """What to change first, where it does not fit."""
    if found.fits is not False:
        return []
    order = f"Tried in this order of cost: {', '.join(lever.name for lever in LEVERS)}."
    return [change(found), order]


def change(found: Report, most: int = MOST_CHANGES) -> str:
    """What to change first, in a few sentences, and the smallest card that takes the plan as it is."""
    cards = [card for card in CARDS.values() if card.memory_bytes >= found.total_bytes]
    other = min(cards, key=lambda card: card.memory_bytes, default=None)
    larger = f" As it is, it fits on {other.name} ({format_bytes(other.memory_bytes)})." if other else ""
    best, *cheaper = advice(found, most=most) or [None]
    if best is None:
        return f"No combination of up to {most} changes makes it fit.{larger}"
    first = "Change first: " if len(best.changes) == 1 else "No single change is enough. Change together: "
    said = first + _change(found, best)
    for each in cheaper:
        said += f" Costs less, but needs {len(each.changes)} changes: {_change(found, each)}"
    return said + larger


def _change(found: Report, best: Advice) -> str:
    """Changes, what they cost, and what is left of the bytes."""
    costs = "; ".join(dict.fromkeys(lever.costs for lever in best.levers))
    size = f"{format_bytes(best.total_bytes)}, {format_bytes(found.total_bytes - best.total_bytes)} less"
    return f"{' + '.join(best.changes)} ({costs}). It then takes {size}."


def sent(found: Report) -> str:
    """What a step hands to which collective; empty where there is nobody to send to."""
    each = ", ".join(f"{op} {format_bytes(size)}" for op, size in found.communication.items() if size)
    return f"Each rank hands to collectives in a step: {each}." if each else ""
