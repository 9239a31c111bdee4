"""Every exercise of the course through a real box: the lesson's own answer gets all points, wrong ones get none, and
what is said of these is what is said in class. Bars are left out: test_grading_bars.py has them."""

import ast
import importlib.util
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import boxes
import pytest
import torch

from labkit import build, checks, course
from labkit.checks import exercises
from labkit.grading.box import Box, Limits
from labkit.grading.slices import sliced
from labkit.judge import generator_for, verdict

HERE = Path(__file__).parent
SEED = 20_27
LIMIT_S = 300.0  # so that a busy machine decides nothing
EXERCISES = exercises()
LESSONS = {int(each.number): each for each in course.lessons()}
# These train, run loops, compile or start ranks: two wrong answers go through a box, and one that evades the mechanism.
SLOW = {"2.3", "4.2", "4.3", "5.4", "6.4", "10.3", "11.3", "12.2", "12.3", "12.4", "13.4", "14.2", "14.3", "14.4"}
BAR = re.compile("times as fast as|does not learn enough")  # in the message of what only falls short of a bar

in_a_box = pytest.mark.skipif(bool(boxes.WHY_NOT), reason=boxes.WHY_NOT)
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.number)

# Wrong answers are written with the modules of the checks, which no box holds: a session of these tests is given them.
GIVEN = """
import importlib.abc, importlib.util, sys
SOURCES = {sources!r}

class Given(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name == "labkit.checks")

    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__], module.__name__, "exec"), vars(module))

sys.meta_path.insert(0, Given())
from {home} import EXERCISES
MISTAKES = {{one.number: one.mistakes for one in EXERCISES}}
"""


def _lesson(exercise):
    return int(exercise.number.split(".")[0])


@cache
def _sources():
    """What the modules of labkit.checks are made of; the package itself is empty."""
    folder = Path(checks.__file__).parent
    found = {f"labkit.checks.{path.stem}": path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    return {"labkit.checks": "", **found}


@cache
def _wrong_answers(lesson):
    """The source of a lesson's wrong answers, and the table of them."""
    path = HERE / "wrong_answers" / f"nb{lesson:02}.py"
    spec = importlib.util.spec_from_file_location(f"boxed_wrong_{lesson}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path.read_text(encoding="utf-8"), module.WRONG


def _rows(exercise):
    """(expression that gives a wrong answer, what its message must match) of those that are tried."""
    wrong = _wrong_answers(_lesson(exercise))[1][exercise.number]
    rows = [(f"WRONG[{exercise.number!r}][{i}][1]", said) for i, (_, _, said) in enumerate(wrong)]
    rows = [row for row in rows if not BAR.search(row[1])]
    if exercise.number in SLOW:
        evading = [row for row in rows[2:] if "in the way asked for" in row[1]]
        return [*rows[:2], *evading[:1]]
    return rows + [(f"MISTAKES[{exercise.number!r}][{i}][1]", "") for i in range(len(exercise.mistakes))]


def _solved(exercise):
    """The imports of the lesson's cells, and the one that answers an exercise."""
    stub, imports = f'raise NotImplementedError("exercise {exercise.number}")', []
    for cell in build.convert(LESSONS[_lesson(exercise)]):
        if cell.kind == "code" and stub in cell.student:
            return [*imports, ("own", cell.solution)]
        found = ast.parse(cell.solution).body if cell.kind == "code" else []
        imports += [("import", ast.unparse(each)) for each in found if isinstance(each, (ast.Import, ast.ImportFrom))]
    raise AssertionError(f"no cell answers {exercise.number}")


def _in_ranks(exercise):
    return any("run_ranks" in source for source in sliced(exercise).modules.values())


@pytest.fixture(scope="module")
def box():
    with Box(Limits(cell_s=LIMIT_S, total_s=10 * LIMIT_S)) as one:
        yield one


@in_a_box
@each_exercise
def test_the_answer_of_the_lesson_gets_all_points(box, exercise):
    with box.run(_solved(exercise), ranks=_in_ranks(exercise)) as session:
        found = boxes.judged(session, exercise, seed=SEED, time_limit_s=LIMIT_S)
    assert (found.status, found.points) == ("ok", exercise.points), found.message


@in_a_box
@each_exercise
def test_wrong_answers_get_none_and_are_told_why(box, exercise):
    given = GIVEN.format(sources=_sources(), home=f"labkit.checks.nb{_lesson(exercise):02}")
    cells = [("given", given), ("wrong", _wrong_answers(_lesson(exercise))[0])]
    with box.run(cells, ranks=_in_ranks(exercise)) as session:
        for expression, said in _rows(exercise):
            session.run([("own", f"{exercise.name} = {expression}")])
            assert [each.error for each in session.outcomes if each.error] == []
            found = boxes.judged(session, exercise, seed=SEED, time_limit_s=LIMIT_S)
            assert found.status in ("wrong", "error"), expression
            assert found.points == 0
            assert re.search(said, found.message), (expression, found.message)


# ---- what a drive gives, forged: it is compared outside, and nothing but the right numbers is right ------------------


def _moved(value):
    """The same with every number a little off, and no text."""
    if isinstance(value, torch.Tensor):
        return value + 1e-3
    if isinstance(value, dict):
        return {key: _moved(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_moved(each) for each in value]
    return {float: lambda: value + 0.01, int: lambda: value + 1, str: lambda: ""}.get(type(value), lambda: value)()


def _forged(due):
    """What a forger may send in place of what is due."""
    anything = [None, 3, "right", "as it should", {}, [], [due], [{}], {"form": "as it should"}, {"form": ""}]
    if isinstance(due, dict):
        return [*anything, _moved(due), *({key: due[key] for key in due if key != left} for left in due)]
    return [*anything, _moved(due), due[:-1], [*due, due[0]]]


def _given(known, other, fn, *_case):
    return known.get(fn, other)


@pytest.mark.parametrize("exercise", [each for each in EXERCISES if each.find], ids=lambda each: each.number)
def test_forged_values_of_a_drive_gain_nothing(exercise):
    cases = list(exercise.cases(generator_for(exercise, SEED)))
    for case in (cases[0], cases[-1]):
        due = exercise.run(exercise.reference, case)
        for given in [due, *_forged(due)]:
            drive = partial(_given, {exercise.reference: due}, given)
            asked = replace(exercise, drive=drive, cases=lambda _, case=case: [case], mechanism=None, bar=None)
            found = verdict(lambda: None, asked, generator=generator_for(exercise, SEED))
            assert found.status == ("passed" if given is due else "failed"), given
