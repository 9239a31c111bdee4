"""Slices of the checks: what may stand beside a stranger's code, and that the answer is not in it."""

import ast
from dataclasses import replace

import pytest

from labkit.checks import exercises
from labkit.grading import slices
from labkit.grading.slices import sliced

EXERCISES = exercises()
COMPARES_INSIDE = """
def double(x):
    return 2 * x


def compared(fn, x):
    return fn(x) == double(x)


EXERCISES = (Exercise(number="1.1", reference=double, drive=compared),)
"""
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.number)


@each_exercise
def test_no_slice_has_the_reference_or_a_known_mistake_in_it(exercise):
    found = sliced(exercise)
    defined = {
        node.name
        for source in found.modules.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert exercise.reference.__name__ not in defined
    assert "undivided" not in found.modules
    hidden = {fn.__name__ for _, fn in exercise.mistakes if hasattr(fn, "__name__")} - {"<lambda>"}
    assert not hidden & defined
    text = "\n".join(found.modules.values())
    assert not any(cause in text for cause, _ in exercise.mistakes)


def test_an_exercise_whose_drive_needs_the_reference_is_refused(tmp_path, monkeypatch):
    (tmp_path / "nb01.py").write_text(COMPARES_INSIDE)
    monkeypatch.setattr(slices, "_FOLDER", tmp_path)
    monkeypatch.setattr(slices, "_module", slices._Module)
    with pytest.raises(ValueError, match="Exercise 1.1: its cases, drive or mechanism need the reference, double"):
        sliced.__wrapped__(replace(EXERCISES[0], number="1.1"))


@each_exercise
def test_modules_come_after_those_that_they_import(exercise):
    loaded = []
    for name, source in sliced(exercise).modules.items():
        for node in ast.walk(ast.parse(source)):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.startswith("labkit.checks."):
                assert module.rpartition(".")[2] in loaded
        loaded.append(name)


def test_a_question_after_the_reference_is_answered_with_no():
    [exercise] = [each for each in EXERCISES if each.number == "12.2"]
    text = sliced(exercise).modules["nb12"]
    assert "shared_accuracy" not in text
    assert "ask = in_ranks" in text
