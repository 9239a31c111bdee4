"""Every exercise's check, against the solution, the untouched stub and answers that learners really give.

tests/wrong_answers/nbNN.py holds WRONG: exercise number -> list of (what is wrong, function, regular expression that
the message must match), at least two for an exercise, and where it has a mechanism, one that gets the right result
without it.
"""

import ast
import importlib.util
import linecache
import re
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from labkit import build, course
from labkit.ambient import settle, settled
from labkit.borrowed import answers, borrowed
from labkit.checker import generator_for, verdict
from labkit.checks import exercises, uneven
from labkit.compare import Unfit, fit, same

HERE = Path(__file__).parent
EXERCISES = exercises()
BY_NUMBER = {exercise.number: exercise for exercise in EXERCISES}
LESSONS = {int(lesson.number): lesson for lesson in course.lessons()}


def _wrong_answers():
    """The wrong answers of all lessons: exercise number -> list of (what, function, expression)."""
    found = {}
    for path in sorted((HERE / "wrong_answers").glob("nb*.py")):
        spec = importlib.util.spec_from_file_location(f"wrong_answers_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= module.WRONG
    return found


def _marks(number):
    """What make quick leaves out."""
    return [pytest.mark.slow] if number in SLOW else []


WRONG = _wrong_answers()
# These train, run a loop until two times can be told apart, or judge in ranks.
SLOW = {"2.3", "4.2", "4.3", "5.4", "11.3", "12.2", "12.3", "12.4", "13.4", "14.2", "14.3", "14.4"}
each_exercise = pytest.mark.parametrize(
    "exercise",
    [pytest.param(each, id=f"{each.number}-{each.name}", marks=_marks(each.number)) for each in EXERCISES],
)


@pytest.fixture(autouse=True)
def one_thread():
    """On a busy machine two threads wait for each other at every small operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def judge(fn, exercise, seed=0):
    """The verdict; the limit is a minute, so that a busy machine decides nothing."""
    return verdict(fn, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)


def _cells(exercise):
    """The code cells of the exercise's lesson up to the one that defines it."""
    lesson = LESSONS[int(exercise.number.split(".")[0])]
    before = []
    for cell in build.convert(lesson):
        if cell.kind == "code":
            before.append(cell)
            if cell.student != cell.solution and exercise.name in _defined(cell.solution):
                return before
    raise AssertionError(f"{lesson.source.name} has no cell with a solution region that defines {exercise.name}")


def _defined(source):
    """The functions and classes that a cell defines."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(source).body if isinstance(node, kinds)}


def _from_cell(exercise, form):
    """What the exercise's cell defines as `student` or `solution`, run with nothing but the imports above it."""
    *before, cell = _cells(exercise)
    space = {"__name__": "exercise"}
    for source in (earlier.solution for earlier in before):
        imports = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        exec(compile(ast.Module(imports, []), "<imports>", "exec"), space)
    source, name = getattr(cell, form), f"<exercise {exercise.number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)
    return space[exercise.name]


@pytest.mark.parametrize("what", ["name", "number"])
def test_names_and_numbers_are_unique(what):
    values = [getattr(exercise, what) for exercise in EXERCISES]
    assert len(set(values)) == len(values)


@each_exercise
def test_a_declaration_is_whole(exercise):
    assert exercise.points > 0
    assert 1 <= len(exercise.hints) <= 3
    reference_name = getattr(exercise.reference, "__name__", "")
    assert reference_name.lstrip("_") in (exercise.name, f"reference_{exercise.name}", f"{exercise.name}_reference")
    assert len(exercise.cases(generator_for(exercise, 0))) >= 2


# Whose drive says of every right answer the same: what is drawn is what it is tried on.
SAID_ALIKE = {"4.2", "5.3", "12.1"}


@each_exercise
def test_another_seed_draws_cases_that_no_list_of_the_answers_of_class_gets_right(exercise):
    with settled():
        known = _cases_and_answers(exercise, 0)
        for seed in (1, 2, 3):
            drawn = _cases_and_answers(exercise, seed)
            if exercise.number in SAID_ALIKE:
                assert not same([case for case, _ in known], [case for case, _ in drawn])
            else:
                n_other = len(drawn) - sum(map(partial(_is_right, exercise), known, drawn))
                assert n_other >= min(2, len(drawn) // 2)


def _cases_and_answers(exercise, seed):
    settle()
    cases = [tuple(case) for case in exercise.cases(generator_for(exercise, seed))]
    again = exercise.cases(generator_for(exercise, seed))
    settle()
    return [(case, exercise.run(exercise.reference, tuple(used))) for case, used in zip(cases, again, strict=True)]


def _is_right(exercise, known, drawn):
    """Whether the answer to one case passes for that to another."""
    (_, got), (case, expected) = known, drawn
    try:
        if exercise.find:
            got, expected = exercise.find(got, expected, *case), exercise.find(expected, expected, *case)
        return exercise.compare(fit(got, expected), expected) is None
    except (Unfit, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
        return False


@each_exercise
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reference_passes(exercise, seed, monkeypatch):
    if seed:  # a bar draws nothing from the generator, so once is enough
        monkeypatch.setenv("LABKIT_BUDGET", "smoke")
    found = judge(exercise.reference, exercise, seed)
    assert found.status == "passed", found.message


@each_exercise
def test_the_solution_in_the_lesson_passes(exercise):
    fn = _from_cell(exercise, "solution")
    found = judge(fn, exercise)
    assert found.status == "passed", found.message
    assert not borrowed(fn, answers(exercise)), "it uses what a learner may not use"


@each_exercise
def test_the_stub_is_not_attempted(exercise):
    found = judge(_from_cell(exercise, "student"), exercise)
    assert found.status == "not attempted", found.message


@pytest.mark.parametrize(
    ("number", "fn", "expression"),
    [
        pytest.param(n, fn, said, id=f"{n}-{what}", marks=_marks(n))
        for n, rows in WRONG.items()
        for what, fn, said in rows
    ],
)
def test_a_wrong_answer_fails_and_is_told_why(number, fn, expression, monkeypatch):
    monkeypatch.setattr(uneven, "TIMEOUT_S", 2.0)  # some hang, in every round
    for seed in (0, 1):
        found = judge(fn, BY_NUMBER[number], seed)
        assert found.status == "failed", "the check accepts it"
        assert re.search(expression, found.message), found.message
        assert len(found.message.splitlines()) <= 8
        assert len(found.message) < 1500


@each_exercise
def test_there_are_wrong_answers_enough(exercise):
    rows = WRONG.get(exercise.number, [])
    assert len(rows) >= 2
    if exercise.mechanism:
        messages = [judge(fn, exercise, 0).message for _, fn, _ in rows]  # as above, so that it is remembered
        assert any("not in the way asked for" in message for message in messages), "none evades the mechanism"


def test_every_exercise_of_a_lesson_is_checked():
    told = {number for lesson in LESSONS.values() for number in build.exercises(lesson)}
    assert told <= BY_NUMBER.keys()
    assert WRONG.keys() <= BY_NUMBER.keys()
