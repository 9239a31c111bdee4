"""Figures measured here and now beside those that other machines recorded; `labkit record NN` keeps them."""

from collections.abc import Mapping
from html import escape
from math import isfinite
from pathlib import Path

from labkit import course, hardware, repro
from labkit.show import show, varying_html, varying_text

Figure = float | int | str
_figures: dict[str, dict[str, Figure]] = {}


def record(lesson: str, name: str, figures: Mapping[str, object]) -> None:
    """Show what was just measured in a table: a row for this machine, a row for every recording of the lesson.

    lesson: its number, `02`. name: what was measured. figures: numbers and short texts under headings with their units,
    the same on every machine; where `labkit record` runs the lesson they are kept under `name`.
    ValueError: no figures, or one that is no text and no finite number.
    """
    plain = {heading: _plain(name, heading, figure) for heading, figure in figures.items()}
    if not plain:
        raise ValueError(f"There is nothing to record under {name!r}: give at least one figure.")
    _figures[name] = plain
    budget = "" if repro.budget() == "full" else ", smoke budget"
    rows = [[f"this machine, now{budget}", *map(_shown, plain.values())]]
    for made in recordings(lesson):
        held = made.results.get("figures", {}).get(name, {})
        if held:
            cells = [_shown(held[heading]) if heading in held else "" for heading in plain]
            rows.append([f"{made.hardware}, {made.date}", *cells])
    _show_rows(name, list(plain), rows)


def recordings(lesson: str) -> list[repro.Recording]:
    """What `labkit record` wrote for a lesson on any machine; nothing for a notebook that stands away from the course.

    CourseError: a file among them that is no recording.
    """
    try:
        name = course.find(lesson).name
    except course.CourseError:
        return []
    return repro.recordings(name)


def verdicts(claim: str) -> list[str]:
    """What became of a claim wherever it was recorded, a line a machine: `✓ recorded on Tesla T4, 2026-11-30: ...`."""
    marks, lines = {"held": "✓", "refuted": "✗"}, []
    try:
        known = [made for lesson in course.lessons() for made in repro.recordings(lesson.name)]
    except course.CourseError:
        return []
    for made in known:
        for held in made.results.get("claims", []):
            if held["text"] == claim and held["status"] in marks:
                figures = "; ".join(held["evidence"].splitlines())
                lines.append(f"{marks[held['status']]} recorded on {made.hardware}, {made.date}: {figures}")
    return lines


def write(lesson: str, claims: list, seconds: float) -> Path:
    """Write the figures and claims of a lesson such as `02_progressive_resizing`, run whole in this process."""
    from labkit import data

    results = {"tier": hardware.tier(), "seconds": round(seconds, 1), "claims": claims, "figures": _figures}
    manifest = repro.manifest(command=f"labkit record {lesson[:2]}", data=data.loaded())
    return repro.write_recording(lesson, results, manifest)


def _plain(name: str, heading: str, figure: object) -> Figure:
    """A figure as Python's own type; ValueError for what a recording cannot hold."""
    plain = figure.item() if hasattr(figure, "item") else figure
    if isinstance(plain, str) or (isinstance(plain, (int, float)) and isfinite(plain)):
        return plain
    raise ValueError(f"{heading!r}, under {name!r}, is {figure!r}: a figure is a finite number or a short text.")


def _shown(figure: Figure) -> str:
    """`12`, `0.916`, `31.2`: a whole number in full, any other with three significant digits."""
    if isinstance(figure, float):
        return f"{figure:.3g}" if abs(figure) < 1000 else f"{figure:,.0f}"
    return f"{figure:,}" if isinstance(figure, int) else figure


def _show_rows(name: str, headings: list[str], rows: list[list[str]]) -> None:
    """The table, its rows marked as what may differ from run to run."""
    lines = [
        "   ".join([row[0], *(f"{heading} {cell}" for heading, cell in zip(headings, row[1:], strict=True) if cell)])
        for row in rows
    ]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f'<tr><td style="text-align:left">{escape(row[0])}</td>{"".join(f"<td>{escape(c)}</td>" for c in row[1:])}</tr>'
        for row in rows
    )
    alone = "" if len(rows) > 1 else "No other machine has recorded this yet."
    html = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{varying_html(body)}</tbody></table>"
    text = "\n".join([f"{name}:", varying_text("\n".join([*lines, alone] if alone else lines))])
    show(text, f"<p>{escape(name[0].upper() + name[1:])}</p>{html}{varying_html(f'<p>{alone}</p>' if alone else '')}")
