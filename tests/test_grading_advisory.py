"""Notebooks made with nbgrader: the instructor's tests in the sandbox, whatever the student's copy of them says."""

import json
from types import SimpleNamespace

import assigned
import boxes
import pytest
from assigned import cell, notebook

from labkit.course import CourseError
from labkit.grading import advisory, assignment, box, credit, harness, release
from labkit.grading.box import CellOutcome, Error

needs_box = pytest.mark.skipif(bool(boxes.WHY_NOT), reason=f"needs a sandbox: {boxes.WHY_NOT}")
DOUBLE, HALF = "def double(x):\n    return x + x", "def half(x):\n    return x * 0.5"
RIGHT = {"double": DOUBLE, "half": HALF}


class Session:
    """As a box's, here: a cell that calls die() ends it."""

    def __init__(self, cells):
        self.over, self.outcomes, self.namespace = "", [], {"die": self.die}
        self.run(cells)

    def run(self, cells):
        for name, source in cells:
            error = None
            try:
                exec(compile(source, name, "exec"), self.namespace)
            except SystemExit:
                self.over = "died"
            except BaseException as raised:
                trace, line = raised.__traceback__, 0
                while trace:
                    line, trace = trace.tb_lineno if trace.tb_frame.f_code.co_filename == name else line, trace.tb_next
                error = Error(type(raised).__name__, str(raised), line)
            status = self.over or ("error" if error else "ok")
            self.outcomes.append(CellOutcome(name=name, status=status, seconds=0.0, error=error))
            if self.over:
                return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = "died"

    def die(self):
        raise SystemExit

    def call(self, name, payload, timeout_s):  # noqa: ARG002
        return SimpleNamespace(status="ok", payload=harness.answer(self.namespace, name, payload))


class Here:
    """A box that is none."""

    def __init__(self):
        self.ran = []

    def run(self, cells):
        session = Session(cells)
        run, ran = session.run, self.ran

        def noted(cells):
            ran.append(dict(cells))
            run(cells)

        session.run = noted
        return session


@pytest.fixture
def hw1(tmp_path):
    """The assignment, and what students are given of it."""
    path = assigned.write(tmp_path / "source", assigned.source())
    batch = advisory.Batch(assignment=assignment.load(path))
    return SimpleNamespace(path=path, batch=batch, given=assigned.handed_out(path))


def judged(tmp_path, hw1, made, box=None, name="hw1.ipynb"):
    """The rows of one student, by id, and the notes."""
    assigned.write(tmp_path / "in" / "ann", made, name)
    told = hw1.batch.judge(tmp_path / "in" / "ann", box or Here())
    return {one["exercise"]: one for one in told["results"]}, told["notes"]


def points(rows):
    return {number: (one["status"], one["points"]) for number, one in rows.items()}


# What the instructor's notebook says.


def test_what_is_graded_and_what_students_are_given(hw1):
    found = hw1.batch.assignment
    assert [(one.grade_id, one.kind, one.points) for one in found.graded] == [
        *(("test-double", "test", 2.0), ("test-half", "test", 1.0), ("test-partly", "test", 3.0)),
        *(("essay", "manual", 4.0), ("plot", "task", 5.0)),
    ]  # fmt: skip
    given = {one.grade_id: one.given for one in found.cells}
    assert given["double"] == "def double(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    assert (given["test-double"], given["essay"]) == ("assert double(2) == 4", "YOUR ANSWER HERE")
    assert given["plot"] == "Draw one."


OLD = {"schema_version": 1, "grade": True, "solution": False, "locked": False, "grade_id": "t", "points": 2}


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (OLD, ("test", 2.0)),
        (OLD | {"schema_version": 2, "cell_type": "code"}, ("test", 2.0)),
        ({"grade": True, "grade_id": "t", "points": "3"}, ("test", 3.0)),
        ({"grade": True, "grade_id": "t", "points": ""}, ("test", 0.0)),
        ({"grade": True, "grade_id": "t", "points": -1}, ("test", 0.0)),
        ({"grade": True, "solution": True, "grade_id": "t"}, ("manual", 0.0)),
    ],
)
def test_older_schemas_are_taken_as_nbgrader_takes_them(tmp_path, kept, expected):
    made = notebook(cell("assert True") | {"metadata": {"nbgrader": kept}})
    [one] = assignment.load(assigned.write(tmp_path, made)).graded
    assert (one.kind, one.points) == expected


TEST = ("assert True", "test", "t")
WRONG = {
    "hw1.ipynb has no cell that nbgrader would grade": [cell("x = 1")],
    "cell 0: its nbgrader schema is 4, and 3 is the newest": [cell(*TEST, points=1, schema_version=4)],
    "cell 1: the id 't' is that of cell 0 too": [cell(*TEST, points=1), cell(*TEST, points=1)],
    "cell 0: its nbgrader id is 'a b'": [cell("assert True", "test", "a b", points=1)],
    "cell 0: its points are 'many'": [cell(*TEST, points="many")],
    "cell 0: its points are nan": [cell(*TEST, points=float("nan"))],
    "cell 0: a test has to be code, and this is markdown": [cell(*TEST, points=1, cell_type="markdown")],
    "cell 0: hidden tests are in a cell that is no test": [cell(assigned.HIDDEN, "answer", "t")],
    "cell 0: 'BEGIN HIDDEN TESTS' is never closed": [cell("### BEGIN HIDDEN TESTS", "test", "t", points=1)],
    "cell 0: 'BEGIN HIDDEN TESTS' inside": [cell("### BEGIN HIDDEN TESTS\n" * 2, "test", "t", points=1)],
    "makes its tests of AUTOTEST lines": [cell("### AUTOTEST f(3)", "test", "t", points=1)],
}


@pytest.mark.parametrize("message", WRONG)
def test_what_nbgrader_would_refuse_is_one_sentence(tmp_path, message):
    with pytest.raises(CourseError) as caught:
        assignment.load(assigned.write(tmp_path, notebook(*WRONG[message])))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_notebook_is_one_sentence(tmp_path):
    (tmp_path / "hw1.ipynb").write_text("{")
    with pytest.raises(CourseError, match=r"hw1\.ipynb is no valid JSON"):
        assignment.load(tmp_path / "hw1.ipynb")
    with pytest.raises(CourseError, match="cannot be opened"):
        assignment.load(tmp_path / "none.ipynb")


# Verdicts.

FULL = {"test-double": ("ok", 2), "test-half": ("ok", 1), "test-partly": ("ok", 3)}
BY_HAND = {"essay": ("not-attempted", 0), "plot": ("manual", 0)}


def test_right_answers_have_all_points_and_are_marked_advisory(tmp_path, hw1):
    rows, notes = judged(tmp_path, hw1, assigned.answered(hw1.given, **RIGHT, essay="Since."))
    assert points(rows) == FULL | BY_HAND | {"essay": ("manual", 0)}
    assert {number: one["advisory"] for number, one in rows.items()} == {
        **dict.fromkeys(FULL, True),
        **dict.fromkeys(BY_HAND, False),
    }
    assert notes == []


def test_the_notebook_as_given_out_has_no_points(tmp_path, hw1):
    rows, _ = judged(tmp_path, hw1, hw1.given)
    assert points(rows) == dict.fromkeys(FULL, ("not-attempted", 0)) | BY_HAND


def test_a_failing_assert_is_shown_and_a_hidden_one_is_not(tmp_path, hw1):
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, double="def double(x):\n    return abs(2 * x)"))
    assert rows["test-double"]["message"] == "The tests that you have pass, and a hidden one does not."
    assert points(rows)["test-double"] == ("wrong", 0)
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, double="def double(x):\n    return 0"))
    assert rows["test-double"]["message"] == "AssertionError\ntest  assert double(2) == 4"


def test_a_student_who_prints_the_callers_source_reads_no_hidden_test(tmp_path, hw1):
    """The process that a student hears from has never had them."""
    spying = "def double(x):\n    import sys\n    raise ValueError(str(sys._getframe(1).f_code.co_consts) + str(In))"
    box = Here()
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, double=f"In = []\n{spying}"), box)
    first, second = box.ran
    assert "double(-3)" not in json.dumps(first)
    assert "double(-3)" in json.dumps(second)
    assert "-3" not in json.dumps(rows)


def test_partial_credit_is_the_number_that_a_test_ends_with(tmp_path, hw1):
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, half="def half(x):\n    return x / 2 if x < 2 else 0"))
    assert points(rows)["test-partly"] == ("wrong", 1.5)
    assert rows["test-partly"]["message"] == "Partial credit: 1.5 of 3 points."
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, half="def half(x):\n    return -1"))
    assert points(rows)["test-partly"] == ("wrong", 0), "nothing is nothing, not everything"


def test_a_number_that_no_credit_can_be_is_for_a_person(tmp_path, hw1):
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, half=f"sum = lambda _: 8\n{HALF}"))
    assert points(rows)["test-partly"] == ("ungraded", 0)
    assert rows["test-partly"]["message"] == "The test gave 6.0 of 3 points."


# What students do to their copy.


def test_changed_deleted_and_copied_tests_are_put_back(tmp_path, hw1):
    changed = assigned.answered(hw1.given, double="def double(x):\n    return 0", test_double="assert True")
    rows, notes = judged(tmp_path, hw1, changed)
    assert points(rows)["test-double"] == ("wrong", 0)
    assert notes == ["Cell 3, test-double, was changed: the instructor's is run."]
    less = assigned.answered(hw1.given, **RIGHT)
    less["cells"] = [each for each in less["cells"] if each["metadata"].get("nbgrader", {}).get("grade") is not True]
    rows, notes = judged(tmp_path, hw1, less)
    assert points(rows) == FULL | {"essay": ("missing", 0), "plot": ("manual", 0)}
    assert notes[0] == "test-double was deleted: it is run all the same."
    twice = assigned.answered(hw1.given, **RIGHT)
    twice["cells"].insert(0, assigned.found(twice, "test-double"))
    box = Here()
    rows, _ = judged(tmp_path, hw1, twice, box)
    assert points(rows)["test-double"] == ("ok", 2)
    assert [name for name, text in box.ran[0].items() if "assert double" in text] == ["test test-double"]


def test_a_copied_cell_with_work_in_it_is_run(tmp_path, hw1):
    """Whoever copies a test to write the answer there has lost nothing."""
    mine = assigned.answered(hw1.given, half=HALF)
    copy = json.loads(json.dumps(assigned.found(mine, "test-double"))) | {"source": DOUBLE}
    mine["cells"].insert(3, copy)
    rows, _ = judged(tmp_path, hw1, mine)
    assert points(rows)["test-double"] == ("ok", 2)


def test_locked_cells_are_the_instructors(tmp_path, hw1):
    rows, notes = judged(tmp_path, hw1, assigned.answered(hw1.given, **RIGHT, setup="FACTOR = 3\nassert 0"))
    assert points(rows)["test-double"] == ("ok", 2)
    assert notes == ["Cell 1, setup, was changed: the instructor's is run."]


@pytest.mark.parametrize("lost", ["metadata", "all"])
def test_lost_metadata_cost_nothing(tmp_path, hw1, lost):
    mine = assigned.answered(hw1.given, **RIGHT, essay="Since.")
    if lost == "all":  # and the tests too
        mine["cells"] = [each for each in mine["cells"] if "assert" not in each["source"]]
    for each in mine["cells"]:
        each["metadata"] = {}
        each.pop("id")
    rows, _ = judged(tmp_path, hw1, mine)
    assert points(rows) == FULL | {"essay": ("manual", 0), "plot": ("manual", 0)}


def test_a_test_is_run_behind_its_answer_wherever_the_student_has_put_it(tmp_path, hw1):
    mine = assigned.answered(hw1.given, **RIGHT)
    mine["cells"].reverse()
    rows, _ = judged(tmp_path, hw1, mine)
    assert points(rows) == FULL | BY_HAND


def test_tests_see_the_names_as_they_are_at_their_place(tmp_path, hw1):
    """Run at the end, they would see what a later cell has made of a name."""
    mine = assigned.answered(hw1.given, **RIGHT)
    mine["cells"].append(cell("double = half = 7"))
    rows, _ = judged(tmp_path, hw1, mine)
    assert points(rows) == FULL | BY_HAND


def test_code_that_became_text_is_run_and_a_failing_cell_is_named(tmp_path, hw1):
    mine = assigned.answered(hw1.given, double=DOUBLE, half="1 / 0")
    assigned.found(mine, "double")["cell_type"] = "markdown"
    rows, notes = judged(tmp_path, hw1, mine)
    assert points(rows)["test-double"] == ("ok", 2)
    assert notes == ["Cell 2 was code and is markdown: it is run as code."]
    assert rows["test-half"]["message"].endswith("\nbefore  cell 4 raised ZeroDivisionError: division by zero")
    assert points(rows)["test-half"] == ("error", 0)


def test_what_ends_the_process_costs_its_own_test(tmp_path, hw1):
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, double="def double(x):\n    die()", half=HALF))
    assert points(rows) == FULL | BY_HAND | {"test-double": ("died", 0)}
    rows, _ = judged(tmp_path, hw1, assigned.answered(hw1.given, double=f"{DOUBLE}\ndie()", half=HALF))
    assert points(rows) == FULL | BY_HAND | {"test-double": ("error", 0)}
    assert "before  cell 2 ended with: died" in rows["test-double"]["message"]


def test_a_notebook_that_ends_again_and_again_is_given_up(tmp_path, hw1):
    mine = assigned.answered(hw1.given, **RIGHT)
    mine["cells"] = [*(cell(f"die()  # {n}") for n in range(9)), *mine["cells"]]
    box = Here()
    rows, _ = judged(tmp_path, hw1, mine, box)
    assert points(rows) == dict.fromkeys(FULL, ("died", 0)) | BY_HAND
    assert len(box.ran) == 2 * 4


def test_which_of_several_notebooks_counts(tmp_path, hw1):
    assigned.write(tmp_path / "in" / "ann", assigned.answered(hw1.given, **RIGHT), "HW1.ipynb")
    rows, notes = judged(tmp_path, hw1, hw1.given, name="a copy.ipynb")
    assert points(rows)["test-half"] == ("ok", 1)
    assert notes == ["HW1.ipynb was graded; also handed in: a copy.ipynb."]
    (tmp_path / "in" / "ann" / "HW1.ipynb").rename(tmp_path / "in" / "ann" / "b copy.ipynb")
    rows, notes = judged(tmp_path, hw1, notebook(cell("x = 1")), name="a copy.ipynb")
    assert points(rows)["test-half"] == ("ok", 1)
    rows, notes = judged(tmp_path, hw1, notebook(cell("x = 1")), name="b copy.ipynb")
    assert points(rows)["test-half"] == ("error", 0)
    assert notes[0] == "No cell of hw1 is in it: it is perhaps another notebook."


def test_what_cannot_be_read_is_unreadable_and_nothing_is_missing(tmp_path, hw1):
    (tmp_path / "in" / "ann").mkdir(parents=True)
    told = hw1.batch.judge(tmp_path / "in" / "ann", Here())
    assert {one["status"] for one in told["results"]} == {"unreadable"}
    assert {one["status"] for one in hw1.batch.nothing()} == {"missing"}
    assert sum(one["max_points"] for one in hw1.batch.nothing()) == 15


# Partial credit, on its own.


@pytest.mark.parametrize(
    ("source", "value"),
    [
        *(("2", 2), ("1\n(\n 2 +\n 1\n)  # so", 3), ("x = 5\nx", 5), ("'é'; 4", 4), ("print(1)", None), ("'a'", None)),
        *(("[1]", None), ("True", True)),
    ],
)  # fmt: skip
def test_the_last_value_is_kept(source, value):
    space = {}
    edited = credit.kept(source, "kept")
    exec(edited, space)
    assert space["kept"]() == value
    assert edited.count("\n") == source.count("\n")


@pytest.mark.parametrize("source", ["x = 5", "2;", "if True:\n    3", "", "# so", "%magic", "2 +"])
def test_what_ends_with_no_value_stays(source):
    assert credit.kept(source, "kept") == source


def test_points_of_a_value():
    import numpy as np

    given = [None, True, False, 0, 1.5, np.float64(1.5), np.True_, "1", 3, 4, -1, float("nan")]
    expected = [3.0, 3.0, 3.0, 0.0, 1.5, 1.5, 3.0, 3.0, 3.0, None, None, None]
    assert [credit.points(value, 3.0) for value in given] == expected


# The command, in a sandbox.


@needs_box
@pytest.mark.slow
def test_files_beside_the_notebook_go_along(tmp_path):
    """Where they lie as nbgrader wants them: what else lies about, such as hand-ins, goes nowhere."""
    test = "import helper, pathlib\nassert helper.x == pathlib.Path('data/a.txt').read_text()"
    made = notebook(cell(test, "test", "t", points=1))
    assigned.write(tmp_path / "in" / "ann", made)
    with box.Box() as sandbox:
        for folder, files, status in (("source", ["data/a.txt", "helper.py"], "ok"), ("elsewhere", [], "error")):
            path = assigned.write(tmp_path / folder / "hw1", made)
            (path.parent / "data").mkdir()
            (path.parent / "data" / "a.txt").write_text("é", encoding="utf-8")
            (path.parent / "helper.py").write_text("x = 'é'", encoding="utf-8")
            (path.parent / "link").symlink_to("/etc/passwd")
            batch = advisory.Batch(assignment=assignment.load(path))
            assert sorted(batch.assignment.files) == files
            [one] = batch.judge(tmp_path / "in" / "ann", sandbox)["results"]
            assert one["status"] == status, one


def test_too_much_beside_the_notebook_gets_a_sentence(tmp_path, monkeypatch):
    path = assigned.write(tmp_path / "source" / "hw1", assigned.source())
    (path.parent / "a.txt").write_text("12")
    monkeypatch.setattr(assignment, "_MOST_BYTES", 1)
    with pytest.raises(CourseError, match="holds too much beside the notebook"):
        assignment.load(path)


def test_a_fault_of_the_grader_passes_for_nobodys(tmp_path, hw1):
    rows, _ = judged(tmp_path, hw1, hw1.given, SimpleNamespace(run=None))
    assert {one["status"] for one in rows.values()} == {"ungraded"}


@pytest.fixture
def own_key(tmp_path, monkeypatch):
    """A key of this test's own."""
    monkeypatch.setattr(release, "key_path", lambda: tmp_path / "config" / "release.key")


def class_of(hw1, folder):
    """Right with noise; wrong; nothing done; asserts that a student has taken away; and a cell without end."""
    noise = "import sys, warnings\nwarnings.warn('old')\nprint('x', file=sys.stderr)\n"
    loop = f"{DOUBLE}\nimport os\nos._exit(0)"
    assigned.write(folder / "ann", assigned.answered(hw1.given, double=noise + DOUBLE, half=HALF, essay="Since."))
    assigned.write(folder / "bob", assigned.answered(hw1.given, double="def double(x):\n    return 4", half=HALF))
    assigned.write(folder / "cleo", hw1.given)
    stripped = assigned.answered(hw1.given, half="def half(x):\n    return 0", test_half="", test_partly="3")
    assigned.write(folder / "dan", stripped)
    assigned.write(folder / "eve", assigned.answered(hw1.given, double=loop, half=HALF))


GRADES = """student,test-double (advisory),test-half (advisory),test-partly (advisory),essay,plot,points,max_points
ann,2,1,3,,,6,15
bob,0,1,3,0,,4,15
cleo,0,0,0,0,,0,15
dan,0,0,0.75,0,,0.75,15
eve,0,1,3,0,,4,15
"""


@needs_box
@pytest.mark.slow
@pytest.mark.usefixtures("own_key")
def test_a_class_with_an_instructors_notebook(labkit, tmp_path, hw1):
    class_of(hw1, tmp_path / "in")
    out = tmp_path / "out"
    code, said, error = labkit("grade", tmp_path / "in", "--nbgrader", hw1.path, "--out", out)
    assert (code, error) == (0, "")
    assert (out / "grades.csv").read_text() == GRADES
    assert "6 manual: for a person to grade: labkit override STUDENT ID POINTS" in said
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(row["exercise"], row["advisory"]) for row in rows if row["exercise"] in ("essay", "test-half")} == {
        *(("essay", False), ("test-half", True))
    }
    assert json.loads((out / "run.json").read_text())["advisory"] is True
    page = (out / "feedback" / "bob.html").read_text()
    assert "a hidden one does not" in page
    assert "the points are advisory" in page
    assert not any("-3" in path.read_text() for path in out.rglob("*.html"))
    assert labkit("override", "ann", "essay", "3.5", "--why", "Well said.", "--out", out)[0] == 0
    assert labkit("grade", tmp_path / "in", "--nbgrader", hw1.path, "--out", out)[0] == 0, "from what is kept"
    assert "ann,2,1,3,3.5,,9.5,15" in (out / "grades.csv").read_text()


def test_options_that_do_not_go_together_get_a_sentence(labkit, tmp_path, hw1):
    both = ("grade", tmp_path, "--out", tmp_path / "out", "--trusted")
    for more in (["--lesson", "01"], ["--seed", "3"]):
        code, _, error = labkit(*both, "--nbgrader", hw1.path, *more)
        assert (code, error.count("\n")) == (2, 1)
        assert "leave --lesson, --release and --seed out" in error
    code, _, error = labkit(*both)
    assert (code, error) == (2, "Say what was handed in: --lesson NN, or --nbgrader SOURCE.ipynb.\n")
