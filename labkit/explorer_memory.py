"""What a training takes of each card's memory, as a reader turns its knobs; plain text where there is no front end."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from labkit import cards, memory_report, presets
from labkit.architecture import Architecture
from labkit.figure import VERMILLION
from labkit.memory_report import Report
from labkit.plot_memory import LOOKS, PARTS
from labkit.show import in_notebook, panel, show
from labkit.states import OPTIMIZERS, PRECISIONS, Plan
from labkit.units import format_bytes

STAGES = range(4)
_START = {"ranks": 8}  # ZeRO has nothing to share on one
_TRAINED = {"all weights": (0, 16)} | {
    f"{name} of rank {rank}": (rank, bits) for name, bits in (("LoRA", 16), ("QLoRA", 4)) for rank in (8, 16, 64)
}
_MOST_CHANGES = 2  # those of the advice: more would be looked for longer than a reader waits
_PAUSE_S = 0.15  # advice takes longer than bars, and comes when the knobs rest


def explore(model: str = "llama-3-8b", card: str = "A100-80", **plan: object) -> None:
    """Show what each rank holds at ZeRO 0 to 3 against the card's memory; in a notebook all of it can be changed.

    plan: fields of labkit.states.Plan; 8 ranks unless it says otherwise. ValueError, in one sentence: no such model or
    card, or an impossible plan.
    """
    wanted, chosen = Plan(**_START | plan), cards.card(card)
    rows = compared(presets.preset(model), wanted, chosen)
    found = memory_report.report(presets.preset(model), wanted, chosen)
    whole = html(rows, found) + _advised(_advice(found))
    show(_text(rows, found), whole, views=_controls(model, chosen.name, wanted))


def compared(model: Architecture, plan: Plan, card: cards.Card) -> dict[str, Report | str]:
    """The report of each ZeRO stage, the plan otherwise unchanged; a sentence where that stage is impossible."""
    found: dict[str, Report | str] = {}
    for stage in STAGES:
        try:
            found[f"ZeRO {stage}"] = memory_report.report(model, replace(plan, zero=stage), card)
        except ValueError as error:
            found[f"ZeRO {stage}"] = str(error)
    return found


def _text(rows: dict[str, Report | str], found: Report) -> str:
    """The comparison as plain text."""
    lines = [memory_report.headline(found)]
    for label, each in rows.items():
        mark = "*" if label == f"ZeRO {found.plan.zero}" else " "
        lines.append(f"{mark} {label}: {each if isinstance(each, str) else _figures(each)}")
    said = (memory_report.verdict(found), _advice(found), *_sentences(found))
    return "\n".join([*lines, *filter(None, said)])


def _sentences(found: Report) -> tuple[str, ...]:
    """When the peak is, what stays between steps, what a step sends."""
    return memory_report.moment(found), memory_report.at_rest(found), memory_report.sent(found)


def _advice(found: Report) -> str:
    """What to change first; empty where it fits."""
    return "" if found.fits else memory_report.change(found, _MOST_CHANGES)


def _figures(each: Report) -> str:
    """`59.2 GB: parameters 15 GB, ...`."""
    parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in each.parts.items())
    return f"{format_bytes(each.total_bytes)}: {parts}"


def html(rows: dict[str, Report | str], found: Report) -> str:
    """The comparison as HTML: a bar a stage against the card's line, a table of all figures, and whether it fits."""
    reports = [each for each in rows.values() if isinstance(each, Report)]
    memory = found.card.memory_bytes
    whole = max(memory, *(each.total_bytes for each in reports)) * 1.01
    chosen = f"ZeRO {found.plan.zero}"
    bars = "".join(_bar(label, each, whole, memory, label == chosen) for label, each in rows.items())
    label = f"{found.card.name}: {format_bytes(memory)}"
    side = "right" if memory > whole / 2 else "left"
    place = 100 * (1 - memory / whole) if side == "right" else 100 * memory / whole
    line = f'<div style="text-align: {side}; padding-{side}: {place:.2f}%; font-size: 85%">{escape(label)}</div>'
    tone = "good" if found.fits else "bad"
    below = "".join(f"<div>{escape(each)}</div>" for each in _sentences(found) if each)
    verdict = panel(tone, f"<b>{escape(memory_report.verdict(found))}</b>{below}")
    return _page(f"{_row('', line, '')}{bars}{_table(rows, chosen)}{verdict}")


def _page(body: str) -> str:
    """What is shown, as wide as there is room and no wider: a table that is too wide scrolls by itself."""
    style = "color: var(--jp-content-font-color1, inherit); line-height: 1.4; max-width: 60em"
    return f'<div style="width: 0; min-width: 100%"><div style="{style}">{body}</div></div>'


def _row(label: str, middle: str, end: str) -> str:
    """A label, what stands in the middle as wide as there is room, and what stands at the end."""
    return (
        '<div style="display: flex; align-items: center; margin: 3px 0">'
        f'<div style="flex: 0 0 5.5em">{label}</div><div style="flex: 1 1 auto; min-width: 0">{middle}</div>'
        f'<div style="flex: 0 0 min(12em, 30%); padding-left: 8px">{end}</div></div>'
    )


def _bar(label: str, each: Report | str, whole: float, memory: int, chosen: bool) -> str:
    """One stacked bar with the card's line across it, its total, and by how much that is too large."""
    name = f"<b>▸ {label}</b>" if chosen else label
    if isinstance(each, str):
        return _row(name, escape(each), "not possible")
    sizes = zip(each.parts.items(), LOOKS, strict=False)
    pieces = "".join(_piece(part, size, 100 * size / whole, look) for (part, size), look in sizes)
    line = f"position: absolute; top: -4px; bottom: -4px; left: {100 * memory / whole:.2f}%"
    line += f"; border-left: 2px dashed {VERMILLION}; box-shadow: -1px 0 0 #fff"
    bar = f'<div style="position: relative"><div role="img" aria-label="{escape(f"{label}: {_figures(each)}")}"'
    bar += f' style="display: flex; height: 26px">{pieces}</div><div style="{line}"></div></div>'
    over = each.total_bytes - memory
    end = f"{format_bytes(each.total_bytes)}, " + ("fits" if over <= 0 else f"<br>{format_bytes(over)} too much")
    return _row(name, bar, f"<b>{end}</b>" if chosen else end)


def _piece(part: str, size: int, percent: float, look: tuple[str, str, str]) -> str:
    """One part of a bar, with its figure where there is room."""
    colour, hatch, ink = look
    ground = f"position: relative; z-index: 1; background-color: {colour}; padding: 0 2px; white-space: nowrap"
    # The card's line does not cross the figure; without room beside the empty piece, the figure wraps out of sight.
    figure = f'<i style="height: 26px"></i><span style="{ground}">{format_bytes(size)}</span>'
    style = f"width: {percent:.3f}%; background-color: {colour}; color: {ink}; {_STRIPES if hatch else ''}"
    style += "display: flex; flex-wrap: wrap; justify-content: center; height: 26px; overflow: hidden; "
    style += "box-shadow: inset -1px 0 0 #fff; font-size: 80%; line-height: 26px"
    return f'<div title="{part} {format_bytes(size)}" style="{style}">{figure}</div>'


_STRIPES = "background-image: repeating-linear-gradient(45deg, #0000 0 5px, #0006 5px 7px); "


_RIGHT = "text-align: right; white-space: nowrap"


def _table(rows: dict[str, Report | str], chosen: str) -> str:
    """Every figure of every bar; a column a part, headed by its look."""
    looks = zip(PARTS, LOOKS, strict=False)
    heads = "".join(f'<th style="{_RIGHT}">{_swatch(look)} {part}</th>' for part, look in looks)
    body = ""
    for label, each in rows.items():
        if isinstance(each, Report):
            cells = "".join(f'<td style="{_RIGHT}">{format_bytes(size)}</td>' for size in each.parts.values())
            name = f"<b>{label}</b>" if label == chosen else label
            body += f'<tr><th scope="row" style="font-weight: normal; white-space: nowrap">{name}</th>{cells}</tr>'
    style = "font-size: 90%; margin: 8px 0; border-spacing: 12px 0"
    return f'<div style="overflow-x: auto"><table style="{style}"><tr><th></th>{heads}</tr>{body}</table></div>'


def _swatch(look: tuple[str, str, str]) -> str:
    """A small piece of a bar, for the table's head."""
    colour, hatch, _ = look
    style = f"display: inline-block; width: 12px; height: 12px; background-color: {colour}; {_STRIPES if hatch else ''}"
    return f'<span style="{style}"></span>'


def _controls(model: str, card: str, plan: Plan) -> dict:
    """Display data of the controls; nothing where there is no front end for it."""
    if not in_notebook():
        return {}
    try:
        import ipywidgets
    except ImportError:
        return {}
    box = controls(ipywidgets, model, card, plan)
    return {mime: data for mime, data in box._repr_mimebundle_().items() if mime != "text/plain"}


def controls(ipywidgets: object, model: str, card: str, plan: Plan) -> object:
    """The box: menus and sliders, and below them bars, figures and advice, new with each change."""
    knobs = _knobs(ipywidgets, model, card, plan)
    shown, advised = (ipywidgets.HTML(layout={"width": "auto"}) for _ in range(2))
    waiting: list[asyncio.TimerHandle] = []

    def update(change: object = None) -> None:
        while waiting:
            waiting.pop().cancel()
        found, shown.value = _shown({name: knob.value for name, knob in knobs.items()}, plan)
        advised.value = "" if found is None or found.fits else _advised("Looking for what to change first ...")
        if advised.value:
            waiting.extend(_soon(lambda: setattr(advised, "value", _advised(_advice(found))), at_once=change is None))

    for knob in knobs.values():
        knob.observe(update, "value")
    update()
    wrapped = {"display": "flex", "flex_flow": "row wrap"}
    return ipywidgets.VBox([ipywidgets.Box(list(knobs.values()), layout=wrapped), shown, advised])


def _soon(do: Callable[[], None], *, at_once: bool) -> list[asyncio.TimerHandle]:
    """Do it once the reader has paused, so that no change waits for it; at once where there is no loop to wait in."""
    try:
        if not at_once:
            return [asyncio.get_running_loop().call_later(_PAUSE_S, do)]
    except RuntimeError:
        pass
    do()
    return []


def _advised(said: str) -> str:
    """The advice as HTML, below the verdict; empty as it is."""
    return said and _page(panel("bad", escape(said)))


def _shown(values: dict, plan: Plan) -> tuple[Report | None, str]:
    """The report on what the knobs say, and its HTML; None and a sentence where it is impossible."""
    fields = {name: value for name, value in values.items() if name not in ("model", "card", "trained")}
    fields["lora"], fields["base_bits"] = values["trained"]
    try:
        model, card, wanted = presets.preset(values["model"]), cards.card(values["card"]), replace(plan, **fields)
        found = memory_report.report(model, wanted, card)
    except ValueError as error:
        return None, panel("bad", escape(str(error)))
    return found, html(compared(model, wanted, card), found)


def _knobs(ipywidgets: object, model: str, card: str, plan: Plan) -> dict:
    """A control for each thing that can be changed, by the name of what it sets."""
    style = {"style": {"description_width": "8.6em"}, "layout": {"width": "21.5em", "max_width": "100%"}}
    own = (plan.lora, plan.base_bits)
    trained = (
        _TRAINED
        if own in _TRAINED.values()
        else _TRAINED | {f"{'QLoRA' if own[1] == 4 else 'LoRA'} of rank {own[0]}": own}
    )

    def menu(name: str, options: object, value: object) -> object:
        return ipywidgets.Dropdown(options=options, value=value, description=name, **style)

    def slider(name: str, options: Sequence[int], value: int) -> object:
        numbers = sorted({*options, value})
        named = [(f"{number:,}", number) for number in numbers]
        return ipywidgets.SelectionSlider(options=named, value=value, description=name, **style)

    powers = [2**power for power in range(21)]
    return {
        "model": menu("Model", list(presets.PRESETS), model.lower()),
        "card": menu("Card", list(cards.CARDS), card),
        "trained": menu("Trained", trained, own),
        "ranks": slider("Ranks", powers[:13], plan.ranks),
        "zero": slider("ZeRO stage", STAGES, plan.zero),
        "tp": slider("Tensor parallel", powers[:5], plan.tp),
        "batch": slider("Batch a rank", powers[:9], plan.batch),
        "seq": slider("Tokens", powers[7:18], plan.seq),
        "recompute": menu("Recomputation", ["none", "selective", "full"], plan.recompute),
        "precision": menu("Precision", list(PRECISIONS), plan.precision),
        "optimizer": menu("Optimizer", list(OPTIMIZERS), plan.optimizer),
        "attention": menu("Attention", ["flash", "math"], plan.attention),
        "fused": ipywidgets.Checkbox(value=plan.fused, description="Fused optimizer", **style),
    }
