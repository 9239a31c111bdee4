"""`check(my_fn)` answers a learner; `attempt(my_fn)` lets the lesson go on where an exercise is not solved yet.

How a function is judged stands in `judge`, how values are compared in `compare`.
"""

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from html import escape
from importlib import import_module
from weakref import WeakKeyDictionary

from labkit import progress
from labkit.borrowed import another
from labkit.compare import Tolerance, close, exact
from labkit.describe import kind_of
from labkit.exercise import Exercise, Verdict
from labkit.judge import generator_for, verdict
from labkit.show import panel, show

__all__ = ["Exercise", "Tolerance", "Verdict", "attempt", "check", "close", "exact", "find", "generator_for", "verdict"]

_MARKS = {"passed": ("✓", "good"), "failed": ("✗", "bad"), "not attempted": ("–", "neutral")}
# What check found is what attempt needs a cell later: judging twice would double the learner's wait.
_judged: WeakKeyDictionary[Callable, Verdict] = WeakKeyDictionary()
_failures: Counter[str] = Counter()


def find(name: str) -> Exercise | None:
    """The exercise whose function is called `name`; None where there is none."""
    return next((one for one in _exercises() if one.name == name), None)


def _exercises() -> tuple:
    """Every exercise; found at run time, because the modules that declare them import this one."""
    return import_module("labkit.checks").exercises()


def _sought(fn: object, asked_by: str) -> Exercise | None:
    """The exercise that `fn` is an attempt at; where there is none, say why and give None."""
    name = None
    with suppress(Exception):
        name = fn.__name__ if isinstance(fn.__name__, str) else None
    exercise = find(name) if callable(fn) and name else None
    if exercise is None:
        line = f"– {asked_by}: {_why_not_found(fn, name)}"
        show(line, panel("neutral", escape(line)))
    return exercise


def _why_not_found(fn: object, name: str | None) -> str:
    """What is wrong with what `check` was given, in a sentence with a way out."""
    if not callable(fn) or not name:
        return f"give it the function itself, as in check(my_function), without a call: this is {kind_of(fn)}."
    names = [one.name for one in _exercises()]
    if not names:
        return f"there is no exercise called {name}; there are no exercises yet."
    nearest = get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
    return f"no exercise is called {name}. Keep the name that the exercise gave, such as {' or '.join(nearest)}."


def check(fn: object, *, seed: int = 0, time_limit_s: float = 10.0) -> None:
    """Judge a learner's function and show the verdict, with hints where it is wrong; a pass is recorded.

    time_limit_s bounds the learner's own code, all cases together. A learner's fault is shown, never raised.
    """
    exercise = _sought(fn, "check")
    if exercise is None:
        return
    found = _judge(fn, exercise, seed=seed, time_limit_s=time_limit_s)
    _remember(fn, found)
    _failures[exercise.name] += found.status == "failed"
    show(_text(found, n_hints=_failures[exercise.name]), _html(found))
    if found.status == "passed":
        progress.record(exercise.number)


def attempt(fn: Callable) -> Callable:
    """`fn` where it passes its check, otherwise the course's own version, saying so in a line."""
    exercise = _sought(fn, "attempt")
    if exercise is None:
        return fn
    found = _remembered(fn) or _judge(fn, exercise)
    _remember(fn, found)
    if found.status == "passed":
        return fn
    state = "is not attempted yet" if found.status == "not attempted" else "does not pass its check yet"
    line = f"– {exercise.name} (exercise {exercise.number}) {state}: the cells below use the course's own version."
    show(line, panel("neutral", escape(line)))
    return exercise.reference


def _judge(fn: Callable, exercise: Exercise, *, seed: int = 0, time_limit_s: float = 10.0) -> Verdict:
    """The verdict; what passes must be the learner's own as well."""
    found = verdict(fn, exercise, generator=generator_for(exercise, seed), time_limit_s=time_limit_s)
    return another(found, fn) if found.status == "passed" else found


def _remember(fn: Callable, found: Verdict) -> None:
    """Keep a verdict as long as its function lives; of an object that cannot be a key, keep none."""
    with suppress(Exception):
        _judged[fn] = found


def _remembered(fn: Callable) -> Verdict | None:
    """The verdict kept for a function."""
    with suppress(Exception):
        return _judged.get(fn)
    return None


def _headline(found: Verdict) -> str:
    """`✓ Exercise 1.1 · warmup · all 5 cases right`."""
    first = found.message.splitlines()[0]
    return f"{_MARKS[found.status][0]} Exercise {found.exercise.number} · {found.exercise.name} · {first}"


def _text(found: Verdict, n_hints: int) -> str:
    """The verdict as plain text; each failed check adds a hint."""
    hints = found.exercise.hints[:n_hints] if found.status == "failed" else ()
    numbered = [f"hint {i + 1} of {len(found.exercise.hints)}: {hint}" for i, hint in enumerate(hints)]
    return "\n    ".join([_headline(found), *found.message.splitlines()[1:], *numbered])


def _html_line(line: str) -> str:
    """One labelled line of a message; where it is broken, its text stays in its column."""
    column = re.match(r"\S+ +", line).end()
    style = f"white-space: pre-wrap; padding-left: {column}ch; text-indent: -{column}ch"
    return f'<div style="font-family: var(--jp-code-font-family, monospace); {style}">{escape(line)}</div>'


def _html(found: Verdict) -> str:
    """The verdict as HTML, its hints folded."""
    body = "".join(map(_html_line, found.message.splitlines()[1:]))
    hints = found.exercise.hints if found.status != "passed" else ()
    folded = "".join(
        f"<details><summary>Hint {i + 1} of {len(hints)}</summary>{escape(hint)}</details>"
        for i, hint in enumerate(hints)
    )
    return panel(_MARKS[found.status][1], f"<b>{escape(_headline(found))}</b>{body}{folded}")
