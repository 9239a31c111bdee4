"""What a lesson asserts, it measures here and now; and what it is going to measure, the reader guesses first."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from math import isclose, isfinite

from labkit import hardware, recording
from labkit.describe import describe, number
from labkit.repro import budget, strict
from labkit.show import in_notebook, panel, show, varying_html, varying_text
from labkit.widgets import guess_control

Number = float | int
_TIERS = {
    "cpu": "",
    "compiler": "a C++ compiler",
    "accelerate": "accelerate (pip install accelerate)",
    "amx": "a CPU with AMX",
    "gpu": "1 GPU",
    "gpu2": "2 GPUs",
}
_INSTALLED = ("compiler", "accelerate")  # software: whoever has it must decide
_HOW = {"measured": "measurement", "counted": "count", "computed": "computed figure"}
_MARKS = {"held": ("✓", "good"), "refuted": ("✗", "bad"), "undecided": ("–", "neutral")}


class ClaimRefuted(Exception):
    """A claim did not hold, in a run that is held to its claims (LABKIT_STRICT=1)."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one claim: `held`, `refuted` or `undecided`, and the figures behind it."""

    text: str
    status: str
    evidence: str


@dataclass
class _Guess:
    """A question, its default answer and where the reader's own comes from."""

    question: str
    default: float
    unit: str
    control: object = None

    def value(self) -> float:
        """The guess as it stands now."""
        return float(self.control.value) if self.control is not None else self.default


_results: dict[str, Result] = {}
_guesses: dict[str, _Guess] = {}


def results() -> list[Result]:
    """Every claim of this process; of one made twice, the last."""
    return list(_results.values())


def claim(
    text: object, *, holds: object, evidence: object, tier: str = "cpu", needs: str | None = None, cause: str = ""
) -> None:
    """Show whether a claim holds on this machine: one line that stays the same, and the figures, which change.

    holds: None where this machine cannot decide; `needs` then says what could, and is told from the tier. A smoke
    budget decides nothing.
    tier: `cpu`, `compiler` (what torch.compile needs), `accelerate` (the package), `amx`, `gpu` or `gpu2`, the least
    that can decide; a strict run must decide one of tier `cpu`, and one of the next two where that is installed.
    Where this machine lacks it, what other machines recorded of the claim is shown.
    cause: the likely reason, shown where the claim is refuted.
    Errors: ClaimRefuted, after showing, where the run is strict; ValueError for a claim that is badly made.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"A claim is a sentence, not {text!r}.")
    if not isinstance(evidence, str):
        raise ValueError(f"The claim {text!r}: its evidence is text, the figures that it rests on, not {evidence!r}.")
    status = _status(holds)
    if not evidence.strip():
        raise ValueError(f"The claim {text!r} shows no evidence: give the figures that it rests on.")
    if tier not in _TIERS:
        raise ValueError(f"The claim {text!r} has the tier {tier!r}; it may be {', '.join(map(repr, _TIERS))}.")
    if status == "undecided":
        needs = _missing(text, tier, needs)
    elif _lacks(tier):
        raise ValueError(f"The claim {text!r} is of tier {tier!r}, which this machine has not: holds must be None.")
    _results[text] = Result(text=text, status=status, evidence=evidence)
    figures = evidence + _elsewhere(text, tier) if status == "undecided" else evidence
    show(_claim_text(text, status, figures, needs, cause), _claim_html(text, status, figures, needs, cause))
    if status == "refuted" and strict():
        raise ClaimRefuted(f"{text}: {evidence}")


def _status(holds: object) -> str:
    """`holds` (a bool of Python, NumPy or torch, or None) as a status; under a smoke budget always `undecided`."""
    try:
        plain = holds.item() if hasattr(holds, "item") else holds
    except (ValueError, RuntimeError):  # of more or fewer than one element, or of none that can be read
        plain = holds
    if not isinstance(plain, (bool, type(None))):
        raise ValueError(f"holds must be True, False or None, not {holds!r}.")
    if plain is None or budget() == "smoke":
        return "undecided"
    return "held" if plain else "refuted"


def _lacks(tier: str) -> bool:
    """Whether this machine lacks what the tier names."""
    if tier == "compiler":
        return bool(hardware.missing_to_compile(on_gpu=hardware.tier() != "cpu"))
    if tier == "accelerate":
        return find_spec("accelerate") is None
    if tier == "amx":
        return not hardware.has_amx()
    gpus = ("cpu", "gpu", "gpu2")
    return tier != "cpu" and gpus.index(hardware.tier()) < gpus.index(tier)


def _elsewhere(text: str, tier: str) -> str:
    """Lines that say what became of the claim on machines that could decide it."""
    if tier == "cpu" or budget() == "smoke":
        return ""
    lines = recording.verdicts(text) or ["not yet recorded on a machine that can decide it"]
    return "".join(f"\n{line}" for line in lines)


def _missing(text: str, tier: str, needs: str | None) -> str:
    """What would decide a claim of this tier."""
    if _lacks(tier):
        lack = hardware.missing_to_compile(on_gpu=hardware.tier() != "cpu") if tier == "compiler" else _TIERS[tier]
        return needs or lack
    if budget() == "smoke":
        return "the full budget"
    if tier not in ("cpu", *_INSTALLED):
        return needs or _TIERS[tier]
    if not strict():  # a learner's machine may be too busy to tell two times apart, and the lesson goes on
        return needs or "a quieter machine"
    raise ValueError(f"The claim {text!r} is of tier {tier!r}: this machine must decide it, so holds cannot be None.")


def _claim_text(text: str, status: str, evidence: str, needs: str | None, cause: str) -> str:
    """The line, the reason where it is refuted, and the marked figures."""
    line = f"{_MARKS[status][0]} {text}"
    if status == "undecided":
        line += f" · needs: {needs}"
    likely = f"\n  likely cause: {cause}" if cause and status == "refuted" else ""
    return f"{line}{likely}\n{varying_text(evidence)}"


def _claim_html(text: str, status: str, evidence: str, needs: str | None, cause: str) -> str:
    """The same as HTML; whether it held or is undecided lies between the marks, a refutation does not.

    So a stored output, compared without what is marked, is equal on hardware that decides and on hardware that cannot,
    and differs wherever the claim is refuted.
    """
    mark, tone = _MARKS[status]
    start, end = panel(tone, f"<b>{mark}</b> \0").split("\0")
    unmet = f" · <i>needs: {escape(needs or '')}</i>" if status == "undecided" else ""
    figures = varying_html(f'{unmet}<div style="opacity: 0.8; white-space: pre-wrap">{escape(evidence)}</div>')
    if status == "refuted":
        likely = f"<div>Likely cause: {escape(cause)}</div>" if cause else ""
        return f"{start}{escape(text)} <b>(refuted)</b>{likely}{figures}{end}"
    return f"{varying_html(start)}{escape(text)}{figures}{end}"


def predict(
    name: str, question: str, *, default: Number, unit: str = "", low: Number | None = None, high: Number | None = None
) -> None:
    """Ask for a guess, remembered under `name`; where there is no front end the default stands.

    low and high bound a slider, logarithmic where they lie a factor of more than 100 apart; without them the guess is
    typed. Running the cell again keeps a guess that was made.
    """
    if low is not None and high is not None and not low <= default <= high:
        raise ValueError(f"The default guess of {name!r}, {default}, does not lie between {low} and {high}.")
    before = _guesses.get(name)
    start = before.value() if before and (before.question, before.default) == (question, default) else default
    control, views = guess_control(question, start=float(start), unit=unit, low=low, high=high)
    _guesses[name] = guess = _Guess(question, float(default), unit, control)
    line = f"The guess is {_quantity(guess.default, unit)} unless you change it."
    if control is None and in_notebook():
        line += " There is no slider without ipywidgets: change default= in this cell."
    show(f"? {question}\n  {line}", panel("neutral", f"{escape(question)}<br>{escape(line)}"), views=views)


def reveal(
    name: str, measured: object, *, elsewhere: Mapping[str, Number] | None = None, how: str = "measured"
) -> None:
    """Show guess, measurement and their ratio; the guess is read now, so a changed one counts when this runs again.

    measured: None where this machine cannot measure it; elsewhere is then shown, {machine: what it measured}.
    how: "measured", "counted" or "computed", for what no clock and no device has said; the lines then say so.
    """
    if how not in _HOW:
        raise ValueError(f"{name!r} may be {', '.join(map(repr, _HOW))}, and not {how!r}.")
    guess = _guesses.get(name)
    if guess is None:
        line = f"Nothing was guessed under {name!r}. Run the cell with predict({name!r}, ...) first."
        show(line, panel("neutral", escape(line)))
        return
    try:
        measured = None if measured is None else float(measured)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name!r} was guessed as a number, and is measured as {describe(measured)}.") from error
    line = f"= {guess.question}"
    whose = "default guess, left as it was" if isclose(guess.value(), guess.default) else "your guess"
    figures = [f"{whose}: {_quantity(guess.value(), guess.unit)}"]
    if measured is None:
        figures.append(f"not {how} here")
        for machine, value in (elsewhere or {}).items():
            figures.append(f"on {machine}: {_quantity(value, guess.unit)}. {_compared(guess.value(), value, how)}")
    else:
        figures.append(f"{how}: {_quantity(measured, guess.unit)}")
        figures.append(_compared(guess.value(), measured, how))
    rows = "".join(f"<div>{escape(figure)}</div>" for figure in figures)
    html = f"{escape(guess.question)}{varying_html(rows)}"
    show(f"{line}\n{varying_text(chr(10).join(figures))}", panel("neutral", html))


def _quantity(value: float, unit: str) -> str:
    """`12 ms`."""
    return f"{number(float(f'{value:.3g}'))} {unit}".rstrip()


def _compared(guess: float, measured: float, how: str) -> str:
    """How the measurement stands to the guess: a ratio, or where that says nothing, a difference."""
    noun = _HOW[how]
    if not isfinite(measured):
        return f"The {noun} is not a finite number."
    if guess <= 0 or measured <= 0:
        side = "below" if measured < guess else "above"
        return f"The {noun} lies {_quantity(abs(measured - guess), '')} {side} the guess."
    larger, smaller = (noun, "guess") if measured > guess else ("guess", noun)
    ratio = max(measured, guess) / min(measured, guess)
    if ratio < 1.005:
        return "The guess is right."
    return f"The {larger} is {_quantity(ratio, '')} times the {smaller}."
