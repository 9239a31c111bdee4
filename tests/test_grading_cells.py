"""Which cells are run: all that a verdict needs, and of the lesson's own cells no others."""

import json
import subprocess
import sys
from pathlib import Path

import handed_out
import pytest
from handed_out import COUNTER, DOUBLE, RIGHT, code

from labkit import build, course
from labkit.grading import release, submission
from labkit.grading.calls import only_calls, without_calls
from labkit.grading.cells import needed
from labkit.grading.source import names

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_of(tmp_path):
    """The cells that are run for a notebook, given as a dictionary: their indices, and the sources joined."""

    def call(made, *numbers):
        out = release.from_course(handed_out.lesson(tmp_path / "course"))
        path = tmp_path / "ada" / "a.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(made))
        found = needed(submission.read(path, out), numbers or ("1.1", "1.2"))
        return [cell.index for cell in found], "\n".join(cell.source for cell in found)

    return call


@pytest.fixture
def made(tmp_path):
    return handed_out.handed_out(handed_out.lesson(tmp_path / "course"))


def solve(made, source=RIGHT):
    made["cells"][DOUBLE]["source"] = source
    return made


def test_of_the_lessons_cells_those_that_an_answer_needs_are_run(run_of, made):
    assert run_of(solve(made), "1.1")[0] == [1, 2, DOUBLE], "FACTOR, and what its cell needs: math"
    assert run_of(solve(made, "def double(x):\n    return 2 * x"), "1.1")[0] == [DOUBLE]
    assert run_of(solve(made))[0] == [1, 2, DOUBLE, COUNTER]
    assert run_of(made, "1.2")[0] == [COUNTER]
    assert run_of(made, "7.7")[0] == []


def test_what_a_learner_added_is_run_in_its_place(run_of, made):
    solve(made, "def double(x):\n    return helper(x)")
    made["cells"].insert(DOUBLE, code("def helper(x):\n    return slow[0] + 2 * x"))
    assert run_of(made, "1.1")[0] == [1, 2, DOUBLE, DOUBLE + 1]
    made["cells"].append(code("unrelated = 3"))
    assert run_of(made, "1.1")[0][-1] == len(made["cells"]) - 1


def test_what_a_learner_changed_is_run(run_of, made):
    made["cells"][2]["source"] = "FACTOR = 3"
    assert run_of(solve(made), "1.1")[0] == [2, DOUBLE]
    made["cells"][3]["source"] = "print('changed, and needed by nothing')"
    assert run_of(made, "1.1")[0] == [2, 3, DOUBLE]


def test_a_spare_stub_is_not_run_after_the_answer_that_a_cell_needs(run_of, made):
    made["cells"].insert(DOUBLE + 1, dict(made["cells"][DOUBLE]))
    solve(made)["cells"].append(code("print(double(2))"))
    assert run_of(made, "1.1")[0] == [1, 2, DOUBLE, len(made["cells"]) - 1]


def test_another_exercises_answer_is_run_where_it_is_needed(run_of, made):
    made["cells"][COUNTER]["source"] = "class Counter:\n    def add(self):\n        return double(1)"
    assert run_of(solve(made), "1.2")[0] == [1, 2, DOUBLE, COUNTER]
    assert run_of(solve(made), "1.1")[0] == [1, 2, DOUBLE]


def test_the_courses_own_calls_are_not_run(run_of, made):
    solve(made, f"{RIGHT}\n\ncheck(double)\n")
    made["cells"] += [code("check(double)\nclaim('a', holds=True)"), code("mine = attempt(double)(show_off(1))")]
    indices, text = run_of(made, "1.1")
    assert indices == [1, 2, 3, DOUBLE, len(made["cells"]) - 1]
    assert "check(" not in text
    assert "claim(" not in text
    assert "mine = (double)(show_off(1))" in text


def test_a_learners_own_function_of_such_a_name_is_the_learners(run_of, made):
    solve(made, "def check(x):\n    return 2 * x\n\n\ncheck(1)\n\n\ndef double(x):\n    return check(x)")
    assert "check(1)" in run_of(made, "1.1")[1]


def test_a_name_that_is_used_again_for_a_result_stays_the_answers(run_of, made):
    """Answers are called when all cells have run: `double = double(3)` would leave a number to be called."""
    solve(made)["cells"].append(code("double = double(3)\nprint(double)\ncount = 5"))
    text = run_of(made, "1.1")[1]
    assert "double = double(3)" not in text
    assert "count = 5" in text
    space = {}
    exec(text, space)
    assert space["double"](4) == 8


@pytest.mark.parametrize("again", ["double = memoised(double)", "def double(x):\n    return 2", "double = lambda x: 1"])
def test_a_name_that_is_bound_again_to_a_function_is_bound(run_of, made, again):
    solve(made)["cells"].append(code(again))
    assert again in run_of(made, "1.1")[1]


def test_needs_are_followed_through_magics(run_of, made):
    solve(made)["cells"] += [code("%timeit -n 1 show_off(1)"), code("%%time\nz = best")]
    assert run_of(made, "1.1")[0] == [1, 2, 3, DOUBLE, 7, len(made["cells"]) - 2, len(made["cells"]) - 1]


def test_a_star_import_of_the_lessons_is_always_run(tmp_path):
    lesson = handed_out.lesson(tmp_path / "course")
    lesson.source.write_text(lesson.source.read_text().replace("import math\n", "from math import *\n"))
    path = tmp_path / "ada" / "a.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps(solve(handed_out.handed_out(lesson), "def double(x):\n    return 2 * sqrt(x * x)")))
    assert [cell.index for cell in needed(submission.read(path, release.from_course(lesson)), ["1.1"])] == [1, DOUBLE]


# Names: (source, bound, needed).
NAMES = [
    ("x = 3\nprint(x)", "x", "print"),
    ("def f(a):\n    return g(a) + h\n\n\ndef g(b):\n    return b", "f g", "h"),
    ("x += 1", "x", "x"),
    ("x = 0\nx += y", "x", "y"),
    ("table['a'] = 1\nnet.rate.value = 2", "table net", "table net"),
    ("for i in z:\n    i", "i", "z"),
    ("if a:\n    b = 1\nb", "b", "a b"),
    ("if a:\n    b = 1\nelse:\n    b = 2\nb", "b", "a"),
    ("[q for q in w]\nq", "", "w q"),
    ("import a.b as c, d.e\nfrom f import g as h", "c d h", ""),
    ("from f import *", "*", ""),
    ("@dec\ndef f(x=default): pass", "f", "dec default"),
    ("class A(B):\n    z = q\n    def m(self): return rr\nz", "A", "B q rr z"),
    ("def f():\n    global u\n    u = t", "f u", "t"),
    ("try:\n    import c as n\nexcept E as e:\n    import n\nn", "n e", "E"),
    ("with open(p) as f:\n    d = f.read()\nd", "f d", "open p"),
    ("print(y := 5, y)", "y", "print"),
    ("    a = 1\n    b = a", "a b", ""),
    ("files = !ls {folder}", "files", "get_ipython ls folder"),
    ("%%time\ndef f():\n    return k", "f", "get_ipython k"),
    ("%timeit f(x)", "", "get_ipython f x"),
    ("k?", "", "get_ipython k"),
    ("f'{a} {b!r:{c}}'", "", "a b c"),
    ("x: T = v", "x", "T v"),
    ("def f(x: T) -> R: ...", "f", ""),
    ("lambda x: x + y", "", "y"),
    ("match m:\n    case [a, *b]: c = a\n", "a b c", "m"),
]


@pytest.mark.parametrize(("source", "bound", "wanted"), NAMES, ids=[source[:20] for source, *_ in NAMES])
def test_names(source, bound, wanted):
    found = names(source)
    assert (found.binds, found.parsed) == (set(bound.split()), True)
    extra = found.needs - set(wanted.split())
    assert set(wanted.split()) <= found.needs
    assert extra <= {"T", "R", "a", "y"}, "annotations and what an expression binds; too much is only slower"


@pytest.mark.parametrize("broken", ["def f(x):\n    return k(x\nreturn (", "for k in", "f(k)) ; a = (1"])
def test_a_cell_that_is_no_python_needs_nothing_since_nothing_of_it_runs(broken):
    found = names(broken)
    assert (found.needs, found.parsed) == (frozenset(), False)


# Taking the course's calls out: (source, what is left of it).
TAKEN_OUT = [
    ("check(f)", "pass"),
    ("x = 1; check(f); y = 2", "x = 1; pass; y = 2"),
    ("if a:\n    claim(\n        'a',\n    )\nelse:\n    b = 2", "if a:\n    pass\\\n\\\n\nelse:\n    b = 2"),
    ("r = attempt(f)(3)", "r = (f)(3)"),
    ("print(attempt(f), attempt(g)(attempt(h)))", "print((f), (g)((h)))"),
    ("attempt(f, g)", "pass"),
    ("x = attempt(f, g)", "x = attempt(f, g)"),
    ("x = attempt(*f)", "x = attempt(*f)"),
    ("%%time\ncheck(f)\nx = 2", "%%time\npass\nx = 2"),
    ("é = 'ü'; check(é); q = attempt(é)", "é = 'ü'; pass; q = (é)"),
    ("é = 'ü'\ncheck(é)", "é = 'ü'\npass"),
    ("check(g)\nx = attempt(*f)", "pass\nx = attempt(*f)"),
    ("labkit.check(f)", "pass"),
    ("model.check(f)", "model.check(f)"),
    ("checked = check", "checked = check"),
    ("print('check(f)')", "print('check(f)')"),
    ("check(f", "check(f"),
]


@pytest.mark.parametrize(("source", "left"), TAKEN_OUT, ids=[source[:20] for source, _ in TAKEN_OUT])
def test_the_courses_calls_are_taken_out(source, left):
    assert without_calls(source) == left
    assert without_calls(source).count("\n") == source.count("\n"), "or an error would name another line"


def test_a_cell_of_nothing_else_is_known():
    assert only_calls("check(f)\nclaim('a', holds=1)")
    assert only_calls("%%time\ncheck(f)")
    for source in ("", "x = check(f)", "check(f); x", "check(", "# check(f)", "model.check(f)"):
        assert not only_calls(source)
    assert not only_calls("check(f)", own={"check"})


# The real lessons.

HARNESS = """
import json, sys
space = {"__name__": "__main__"}
for source in json.load(sys.stdin):
    exec(compile(source, "cell", "exec"), space)
print(json.dumps([name for name, value in space.items() if callable(value)]))
"""


@pytest.mark.parametrize("number", ["00", "01", "04", "05", "12", "13"])
def test_the_cells_of_a_real_lesson_define_every_answer_in_plain_python(number, tmp_path):
    lesson = course.find(number)
    out, cells = release.from_course(lesson), build.convert(lesson)
    path = tmp_path / "ada" / "a.ipynb"
    path.parent.mkdir()
    path.write_text(build.solution_notebook(cells), encoding="utf-8")
    found = needed(submission.read(path, out), list(out.exercises))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HARNESS],
        input=json.dumps([cell.source for cell in found]),
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 100},
    )
    assert done.returncode == 0, done.stderr
    assert {name for cell in out.exercises.values() for name in cell.names} <= set(
        json.loads(done.stdout.splitlines()[-1])
    )


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_of_a_real_lesson_few_cells_are_run_and_none_of_them_calls_the_course(lesson, tmp_path):
    out, cells = release.from_course(lesson), build.convert(lesson)
    path = tmp_path / "ada" / "a.ipynb"
    path.parent.mkdir()
    path.write_text(build.solution_notebook(cells), encoding="utf-8")
    found = needed(submission.read(path, out), list(out.exercises))
    assert len(found) <= len(out.exercises) + 3
    for cell in found:
        assert without_calls(cell.source) == cell.source
    path.write_text(build.student_notebook(cells), encoding="utf-8")
    assert needed(submission.read(path, out), []) == []
