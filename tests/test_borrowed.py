"""An answer that is the course's own, or that calls it, is told from one that a learner wrote."""

from dataclasses import replace
from functools import partial, wraps

import pytest
import torch

from labkit import checker, precision, resize, workshop
from labkit.borrowed import another, answers, borrowed, is_ours
from labkit.checks import exercises
from labkit.exercise import Verdict

BY_NUMBER = {exercise.number: exercise for exercise in exercises()}
BEFORE = """
import labkit, torch
from functools import partial
from labkit import formats, precision, resize, timeline, train, workshop
from labkit.resize import growing_sizes as sizes_of
"""
BORROWED = {
    "by a module": ("2.1", "def f(*given):\n    return resize.growing_sizes(*given)"),
    "by its package": ("2.1", "def f(*given):\n    return labkit.resize.growing_sizes(*given)"),
    "under another name": ("2.1", "def f(*given):\n    return sizes_of(*given)"),
    "imported within": (
        "2.1",
        "def f(*given):\n    from labkit.resize import growing_sizes\n    return growing_sizes(*given)",
    ),
    "a module imported within": (
        "2.1",
        "def f(*given):\n    from labkit import resize as r\n    return r.growing_sizes(*given)",
    ),
    "a submodule imported within": (
        "2.1",
        "def f(*given):\n    import labkit.resize as r\n    return r.growing_sizes(*given)",
    ),
    "a package imported within": (
        "2.1",
        "def f(*given):\n    import labkit.resize\n    return labkit.resize.growing_sizes(*given)",
    ),
    "in a comprehension": ("2.1", "def f(*given):\n    return [s for s in (lambda: resize.growing_sizes(*given))()]"),
    "by a helper": ("2.1", "def help(*given):\n    return sizes_of(*given)\ndef f(*given):\n    return help(*given)"),
    "as a default": ("2.1", "def f(*given, how=sizes_of):\n    return how(*given)"),
    "a partial": ("2.1", "f = partial(sizes_of, multiple=8)"),
    "a lambda's partial": ("2.1", "def own(how, *given):\n    return how(*given)\nf = partial(own, sizes_of)"),
    "from the checks": (
        "1.3",
        "def f(*given):\n    from labkit.checks.nb01 import sharpness\n    return sharpness(*given)",
    ),
    "a subclass": ("3.2", "class f(precision.LossScaler):\n    pass"),
    "a method": ("3.2", "class f:\n    def __init__(self):\n        self.its = precision.LossScaler()"),
    "the library's": ("3.1", "def f(x, *given):\n    return formats.round_to(x, formats.FP16)"),
    "of intervals": (
        "5.1",
        "def f(busy, start_s, end_s):\n    return timeline.complement(busy, start_s, end_s).tolist()",
    ),
    "the loop": (
        "5.4",
        "def f(dev, shelf, n_steps, log):\n    return workshop.loop(dev, shelf, n_steps, log, faults=())",
    ),
    "a schedule": ("1.1", "def f(step, *given):\n    return train.warmup_stable_decay(*given)(step)"),
}
OWN = {
    "another's answer": (
        "2.3",
        "def f(loader, n):\n    for size in resize.growing_sizes(n, 8, 16, 3):\n        yield from loader.epoch(size)",
    ),
    "what the lesson gives": (
        "5.4",
        "def f(dev, shelf, n_steps, log):\n    return workshop.network(dev), workshop.tidied",
    ),
    "a name of its own": (
        "2.1",
        "def f(n, growing_sizes):\n    return growing_sizes.growing_sizes, torch.growing_sizes",
    ),
    "itself": ("2.1", "def f(n):\n    return f(n - 1) if n else []"),
    "an unbound name": ("2.1", "def f(n):\n    return no_such_name.growing_sizes"),
}


def made(code):
    space = {"__name__": "__main__"}
    exec(BEFORE + code, space)
    return space["f"]


@pytest.mark.parametrize(("number", "code"), BORROWED.values(), ids=BORROWED)
def test_an_answer_that_uses_the_courses_is_found(number, code):
    assert borrowed(made(code), answers(BY_NUMBER[number])).startswith("labkit.")


@pytest.mark.parametrize(("number", "code"), OWN.values(), ids=OWN)
def test_an_honest_answer_is_left_alone(number, code):
    assert borrowed(made(code), answers(BY_NUMBER[number])) == ""
    assert not is_ours(made(code))


class Touchy:
    """An object that refuses to be looked at."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __call__(self):
        return 1


def test_what_cannot_be_looked_at_counts_as_the_learners():
    assert not is_ours(Touchy())
    assert borrowed(Touchy(), answers(BY_NUMBER["2.1"])) == ""


def test_what_labkit_defines_is_ours_however_it_is_wrapped():
    @wraps(resize.growing_sizes)
    def wrapped(*given):
        return resize.growing_sizes(*given)

    assert all(map(is_ours, (resize.growing_sizes, precision.LossScaler, partial(workshop.loop, faults=()), wrapped)))
    assert not any(map(is_ours, (torch.relu, torch.nn.Linear, len, made(OWN["itself"][1]))))


def test_what_passes_and_is_not_the_learners_is_said_kindly():
    exercise = BY_NUMBER["2.1"]
    found = Verdict(exercise=exercise, status="passed", message="all right", n_cases=3)
    ours, used = another(found, resize.growing_sizes), another(found, made(BORROWED["by a helper"][1]))
    assert ours == replace(found, status="not attempted", message=ours.message)
    assert "the course's own growing_sizes" in ours.message
    assert (used.status, used.message.splitlines()[0]) == ("failed", "right, and not yours")
    assert "labkit.resize.growing_sizes, which is the answer" in used.message
    assert another(found, made(OWN["itself"][1])) is found


def test_check_says_so_and_records_nothing(monkeypatch, capsys):
    recorded = []
    monkeypatch.setattr(checker.progress, "record", recorded.append)
    for given, mark in ((resize.growing_sizes, "–"), (made(BORROWED["under another name"][1]), "✗")):
        if mark == "✗":
            given.__name__ = "growing_sizes"
        checker.check(given)
        assert capsys.readouterr().out.startswith(f"{mark} Exercise 2.1 · growing_sizes · ")
    assert recorded == []
