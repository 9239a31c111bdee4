"""Figures measured here and now beside those that other machines recorded; `labkit record NN` keeps them."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from labkit import course, hardware, repro
from labkit.show import table

Figure = float | int | str
_figures: dict[tuple[str, str], dict[str, Figure]] = {}


def record(lesson: str, name: str, figures: Mapping[str, object]) -> None:
    """Show what was just measured in a table: a row for this machine, a row for every recording of the lesson.

    lesson: its number, `02`. name: what was measured; a second call under it replaces the first. figures: numbers and
    short texts under headings with their units, the same on every machine; `labkit record` keeps them. None stands for
    what this machine could not measure: it is shown so, and not kept.
    ValueError: no name, no figures, or one that is no text and no finite number.
    """
    keep(lesson, name, figures)
    headings, plain = [str(heading) for heading in figures], _figures[lesson, name]
    budget = "" if repro.budget() == "full" else ", smoke budget"
    rows = [[f"this machine, now{budget}", *(_shown(plain.get(heading, "not measured")) for heading in headings)]]
    known, notes = recordings(lesson)
    for made in known:
        held = _figures_of(made, name)
        if not held.keys().isdisjoint(headings):
            rows.append([_label(made), *(_shown(held.get(heading, "")) for heading in headings)])
    if len(rows) == 1:
        notes = ["No other machine has recorded this yet.", *notes]
    table(["", *headings], rows, caption=name[0].upper() + name[1:], varying=True, notes=notes)


def keep(lesson: str, name: str, figures: Mapping[str, object]) -> None:
    """As `record`, without the table: for what a lesson shows in its own way."""
    if not isinstance(name, str) or not name.strip() or not figures:
        raise ValueError(f"There is nothing to record under {name!r}: give a name and at least one figure.")
    measured = {str(heading): figure for heading, figure in figures.items() if figure is not None}
    _figures[lesson, name] = {heading: _plain(name, heading, figure) for heading, figure in measured.items()}


def recorded(lesson: str, name: str, heading: str) -> dict[str, Figure]:
    """What other machines recorded under a name and a heading: {`AMD EPYC, 2 cores, 2026-11-30`: figure}.

    For what this machine cannot measure. Machines with as many GPUs as this one come first.
    """
    known = sorted(recordings(lesson)[0], key=lambda made: made.results.get("tier") != hardware.tier())
    return {_label(made): held[heading] for made in known if heading in (held := _figures_of(made, name))}


def recordings(lesson: str) -> tuple[list[repro.Recording], list[str]]:
    """What `labkit record` wrote for a lesson on any machine, and a sentence for each file that is no recording.

    Nothing for a notebook that stands away from its course.
    """
    known, notes = [], []
    try:
        files = repro.recording_files(course.find(lesson).name)
    except course.CourseError:
        return [], []
    for path in files:
        try:
            known.append(repro.read_recording(path))
        except course.CourseError as error:
            notes.append(str(error))
    return known, notes


def verdicts(claim: str) -> list[str]:
    """What became of a claim wherever it was recorded, a line a machine: `✓ recorded on Tesla T4, 2026-11-30: ...`."""
    marks, lines = {"held": "✓", "refuted": "✗"}, []
    try:
        numbers = [lesson.number for lesson in course.lessons()]
    except course.CourseError:
        return []
    for number in numbers:
        for made in recordings(number)[0]:
            for held in _claims_of(made):
                if held["text"] == claim and held["status"] in marks:
                    figures = "; ".join(held["evidence"].splitlines())
                    lines.append(f"{marks[held['status']]} recorded on {_label(made)}: {figures}")
    return lines


def _label(made: repro.Recording) -> str:
    """`Tesla T4, 2026-11-30`."""
    return f"{made.hardware}, {made.date}"


def _figures_of(made: repro.Recording, name: str) -> dict[str, Figure]:
    """The figures that a recording holds under a name; nothing of what another version may have kept there."""
    named = made.results.get("figures")
    held = named.get(name) if isinstance(named, dict) else None
    return {key: each for key, each in held.items() if isinstance(each, Figure)} if isinstance(held, dict) else {}


def _claims_of(made: repro.Recording) -> list[dict[str, str]]:
    """The claims that a recording holds, those with a text, a status and evidence."""
    claims = made.results.get("claims")
    whole = [each for each in claims if isinstance(each, dict)] if isinstance(claims, list) else []
    return [each for each in whole if all(isinstance(each.get(key), str) for key in ("text", "status", "evidence"))]


def write(lesson: str, claims: list, seconds: float, *, root: Path | None = None) -> Path:
    """Write the figures and claims of a lesson such as `02_progressive_resizing`, run whole in this process.

    root: the course's folder. CourseError: figures that were recorded under another lesson's number.
    """
    from labkit import data

    if strays := sorted({number for number, _ in _figures} - {lesson[:2]}):
        raise course.CourseError(f"{lesson} has a record({strays[0]!r}, ...): it names another lesson.")
    figures = {name: held for (_, name), held in _figures.items()}
    results = {"tier": hardware.tier(), "seconds": round(seconds, 1), "claims": claims, "figures": figures}
    manifest = repro.manifest(command=f"labkit record {lesson[:2]}", data=data.loaded())
    return repro.write_recording(lesson, results, manifest, root=root)


def refuse_unrecordable() -> None:
    """CourseError where nothing measured now may be kept under this machine's name.

    A smoke budget decides nothing; and beside a GPU that torch cannot use, the figures would be the processor's.
    """
    if repro.budget() == "smoke":
        raise course.CourseError("A smoke budget decides nothing, so it is not recorded: unset LABKIT_BUDGET.")
    gpus = hardware.machine().gpus
    if gpus and hardware.tier() == "cpu":
        raise course.CourseError(
            f"torch cannot use the {gpus[0].name} here, and what the processor measures is not recorded as that GPU's: "
            "labkit doctor says what is missing."
        )


def _plain(name: str, heading: object, figure: object) -> Figure:
    """A figure as Python's own type; ValueError for what a recording cannot hold."""
    try:
        plain = figure.item() if hasattr(figure, "item") else figure
    except (ValueError, RuntimeError):  # of more elements than one, or of none that can be read
        plain = None
    if isinstance(plain, (str, int)) or isinstance(plain, float) and isfinite(plain):
        return plain
    raise ValueError(f"{heading!r}, under {name!r}, is {figure!r}: a figure is a finite number or a short text.")


def _shown(figure: Figure) -> str:
    """`12`, `0.916`, `31.2`: a whole number in full, any other with three significant digits."""
    if isinstance(figure, bool):
        return "yes" if figure else "no"
    if isinstance(figure, float):
        return f"{figure:.3g}" if abs(figure) < 999.5 else f"{figure:,.0f}"
    return f"{figure:,}" if isinstance(figure, int) else figure
