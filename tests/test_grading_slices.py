"""Slices of the checks: what may stand beside a stranger's code, and that the answer is not in it."""

import ast

import pytest

from labkit.checks import exercises
from labkit.grading.slices import sliced

EXERCISES = exercises()
# Their drive or mechanism runs the reference itself to compare with it: to be graded, it has to give values instead.
COMPARE_INSIDE = {"12.4", "14.2", "14.3", "14.4"}
each_gradable = pytest.mark.parametrize(
    "exercise", [each for each in EXERCISES if each.number not in COMPARE_INSIDE], ids=lambda each: each.number
)


@each_gradable
def test_no_slice_has_the_reference_or_a_known_mistake_in_it(exercise):
    found = sliced(exercise)
    defined = {
        node.name
        for source in found.modules.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert exercise.reference.__name__ not in defined
    hidden = {fn.__name__ for _, fn in exercise.mistakes if hasattr(fn, "__name__")} - {"<lambda>"}
    assert not hidden & defined
    text = "\n".join(found.modules.values())
    assert not any(cause in text for cause, _ in exercise.mistakes)


@pytest.mark.parametrize("number", sorted(COMPARE_INSIDE))
def test_an_exercise_whose_drive_needs_the_reference_is_refused(number):
    [exercise] = [each for each in EXERCISES if each.number == number]
    with pytest.raises(ValueError, match=f"Exercise {number}: its cases, drive or mechanism need the reference"):
        sliced(exercise)


@each_gradable
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
