"""Notebooks that come back: whatever happened to one, every cell is known for what it is, and nothing raises."""

import copy
import json
import os
import re
import resource
import time
import unicodedata

import handed_out
import pytest
from handed_out import CHECK_DOUBLE, COUNTER, DOUBLE, RIGHT, code

from labkit import build, course
from labkit.grading import notebook, release, submission
from labkit.grading.source import names, normalised, sha256


@pytest.fixture
def out(tmp_path):
    """The release of a small lesson."""
    return release.from_course(handed_out.lesson(tmp_path / "course"))


@pytest.fixture
def made(tmp_path):
    """The notebook of that lesson, to be spoiled."""
    return handed_out.handed_out(handed_out.lesson(tmp_path / "course"))


@pytest.fixture
def hand_in(tmp_path, out):
    """Hands in a notebook, or bytes, as a student called ada; returns how it is read."""

    def call(what, name="01_out.ipynb"):
        path = tmp_path / "in" / "ada" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(what if isinstance(what, bytes) else json.dumps(what).encode())
        return submission.read(path, out)

    return call


def kinds(found):
    return {cell.index: (cell.kind, cell.exercise) for cell in found.cells}


def answers(found):
    return {cell.exercise: cell.index for cell in found.cells if cell.kind == "exercise"}


def solve(made, index=DOUBLE, source=RIGHT):
    made["cells"][index]["source"] = source
    return made


def without_ids(made):
    for cell in made["cells"]:
        cell.pop("id", None)
    return made | {"nbformat_minor": 4}


UNTOUCHED = {"1.1": DOUBLE, "1.2": COUNTER}


def test_what_was_handed_out_comes_back_as_such(hand_in, made):
    found = hand_in(made)
    assert (found.student, found.status, found.why, found.missing, found.notes) == ("ada", "ok", "", (), ())
    assert found.untouched == ("1.1", "1.2")
    assert kinds(found) == {
        **{1: ("released", None), 2: ("released", None), 3: ("released", None), DOUBLE: ("exercise", "1.1")},
        **{CHECK_DOUBLE: ("check", "1.1"), 7: ("released", None), COUNTER: ("exercise", "1.2"), 10: ("check", "1.2")},
    }


def test_an_answer_is_an_answer(hand_in, made):
    found = hand_in(solve(made))
    assert (answers(found), found.untouched, found.missing, found.notes) == (UNTOUCHED, ("1.2",), (), ())
    assert found.answer("1.1").source == RIGHT
    assert found.answer("1.1").sha256 == sha256(RIGHT)
    assert found.answer("1.3") is None


@pytest.mark.parametrize("change", [str.upper, lambda s: s.replace("2", "3"), lambda s: s + "\nprint(1)"])
def test_a_demonstration_that_was_changed_is_the_learners_own(hand_in, made, change):
    made["cells"][2]["source"] = change("".join(made["cells"][2]["source"]))
    assert kinds(hand_in(made))[2] == ("changed", None)
    assert kinds(hand_in(without_ids(made)))[2] == ("added", None)


@pytest.mark.parametrize(
    "change", [lambda s: s.replace("\n", "\r\n"), lambda s: f"\n\n{s}  \n\n", lambda s: s.replace("\n", " \n")]
)
def test_what_editors_do_by_themselves_changes_nothing(hand_in, made, change):
    for cell in made["cells"]:
        cell["source"] = change("".join(cell["source"]))
    found = hand_in(made)
    assert (found.untouched, {kind for kind, _ in kinds(found).values()}) == (
        ("1.1", "1.2"),
        {"exercise", "released", "check"},
    )


def test_indentation_is_no_such_thing():
    assert normalised("if a:\n  b") != normalised("if a:\nb")
    assert normalised("x = 'a  b'") != normalised("x = 'a b'")


# The shapes of notebooks, one a test.


def test_a_deleted_cell_is_missing_and_the_rest_is_there(hand_in, made):
    del made["cells"][DOUBLE]
    found = hand_in(solve(made, COUNTER - 1, "class Counter:\n    pass"))
    assert (found.status, found.missing, found.untouched) == ("ok", ("1.1",), ())
    assert answers(found) == {"1.2": COUNTER - 1}


def test_a_deleted_demonstration_is_said(hand_in, made):
    del made["cells"][2]
    assert "gone: 2" in " ".join(hand_in(made).notes)


def test_a_copy_with_the_same_id_does_not_hide_the_answer(hand_in, made):
    """The stub, kept under the answer for comparison, runs last and would be the answer of a kernel."""
    stub = copy.deepcopy(made["cells"][DOUBLE])
    solve(made)["cells"].insert(DOUBLE + 1, stub)
    found = hand_in(made)
    assert answers(found)["1.1"] == DOUBLE
    assert kinds(found)[DOUBLE + 1][0] == "check", "a spare stub must not run after the answer"
    assert any("stub of exercise 1.1" in note for note in found.notes)


@pytest.mark.parametrize("lost", [without_ids, lambda made: made])
def test_of_two_answers_the_last_one_counts_as_it_does_in_a_kernel(hand_in, made, lost):
    solve(made)["cells"].append(code("def double(x):\n    return x + x\n"))
    found = hand_in(lost(made))
    assert answers(found)["1.1"] == len(made["cells"]) - 1
    assert kinds(found)[DOUBLE][0] in ("changed", "added")
    assert any("all define double" in note for note in found.notes)


def test_a_second_answer_that_is_no_python_does_not_replace_the_first(hand_in, made):
    solve(made)["cells"].append(code("def double(x:\n    return 3\n"))
    assert answers(hand_in(made))["1.1"] == DOUBLE


def test_an_answer_in_a_new_cell_is_found_although_the_stub_is_there(hand_in, made):
    made["cells"].append(code(RIGHT))
    found = hand_in(made)
    assert (answers(found)["1.1"], found.untouched) == (len(made["cells"]) - 1, ("1.2",))


@pytest.mark.parametrize(
    "source", ["double = lambda x: 2 * x", "from functools import partial\ndouble = partial(max, 3)"]
)
def test_an_answer_need_not_be_a_def(hand_in, made, source):
    made["cells"].append(code(source))
    found = hand_in(made)
    assert (answers(found)["1.1"], found.untouched) == (len(made["cells"]) - 1, ("1.2",)), "beside the stub"
    del made["cells"][DOUBLE]
    assert hand_in(made).missing == ()


def test_a_syntax_error_is_an_answer_to_its_exercise(hand_in, made):
    found = hand_in(without_ids(solve(made, DOUBLE, "def double(x):\n    return (x\n")))
    assert (answers(found), found.untouched) == (UNTOUCHED, ("1.2",))


def test_reordered_cells_are_known_and_stay_in_the_students_order(hand_in, made):
    cells = solve(made)["cells"]
    cells.insert(0, cells.pop(COUNTER))
    found = hand_in(made)
    assert answers(found) == {"1.2": 0, "1.1": DOUBLE + 1}
    assert [cell.index for cell in found.cells] == sorted(cell.index for cell in found.cells)


@pytest.mark.parametrize("kind", ["markdown", "raw", "heading", "", None, 3])
def test_an_answer_in_a_retyped_cell_counts_with_a_note(hand_in, made, kind):
    solve(made)["cells"][DOUBLE]["cell_type"] = kind
    found = hand_in(made)
    assert (answers(found)["1.1"], found.missing) == (DOUBLE, ())
    assert any("run as code" in note for note in found.notes)


def test_a_retyped_draft_does_not_replace_an_answer(hand_in, made):
    solve(made)["cells"].append({"cell_type": "raw", "metadata": {}, "source": "def double(x):\n    return 7"})
    assert answers(hand_in(made))["1.1"] == DOUBLE


def test_prose_that_became_code_is_not_run(hand_in, made):
    made["cells"][0]["cell_type"] = "code"
    found = hand_in(made)
    assert (kinds(found)[0], found.untouched) == (("check", None), ("1.1", "1.2"))


@pytest.mark.parametrize("metadata", [None, [], "lost", 3, {}, {"labkit": []}, {"kernelspec": 3, "language_info": []}])
def test_lost_or_edited_metadata_costs_nothing(hand_in, made, metadata):
    made["metadata"] = metadata
    for cell in made["cells"]:
        cell["metadata"] = metadata
    found = hand_in(without_ids(solve(made)))
    assert (answers(found), found.untouched, found.notes) == (UNTOUCHED, ("1.2",), ())


def test_forged_metadata_and_ids_do_not_make_an_answer(hand_in, made):
    """A cell that carries the id of the exercise and nothing of it is no answer where another cell is."""
    stub_id = made["cells"][DOUBLE]["id"]
    made["cells"][DOUBLE] = code(RIGHT, id="mine")
    made["cells"].append(code("print('nothing')", id=stub_id))
    assert answers(hand_in(made))["1.1"] == DOUBLE


def test_a_renamed_function_is_said(hand_in, made):
    found = hand_in(solve(made, DOUBLE, "def twice(x):\n    return 2 * x"))
    assert (answers(found)["1.1"], found.untouched) == (DOUBLE, ("1.2",))
    assert any("no longer defines double" in note for note in found.notes)


def test_two_exercises_merged_into_one_cell_are_both_there(hand_in, made):
    solve(made, DOUBLE, f"{RIGHT}\n\nclass Counter:\n    pass\n")
    del made["cells"][COUNTER]
    found = hand_in(made)
    assert sorted((cell.index, cell.exercise) for cell in found.cells if cell.kind == "exercise") == [
        (DOUBLE, "1.1"),
        (DOUBLE, "1.2"),
    ]
    assert (found.missing, found.untouched) == ((), ())


def old(made, version=3):
    """The notebook in the format of version 2 or 3."""
    cells = []
    for cell in made["cells"]:
        is_code = cell["cell_type"] == "code"
        cells.append({"cell_type": cell["cell_type"], ("input" if is_code else "source"): cell["source"]})
        cells[-1] |= {"language": "python", "outputs": [], "prompt_number": 3} if is_code else {}
    return {"nbformat": version, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": [{"cells": cells}]}


@pytest.mark.parametrize("version", [2, 3])
def test_old_formats(hand_in, made, version):
    found = hand_in(old(solve(made), version))
    assert (answers(found), found.untouched, found.missing) == (UNTOUCHED, ("1.2",), ())


def test_an_old_notebook_of_several_worksheets(hand_in, made):
    notebook_3 = old(solve(made))
    cells = notebook_3["worksheets"][0]["cells"]
    notebook_3["worksheets"] = [{"cells": cells[:4]}, {}, 7, {"cells": None}, {"cells": cells[4:]}]
    assert answers(hand_in(notebook_3)) == UNTOUCHED


@pytest.mark.parametrize("version", [5, 47, "4", None, 4.5, [4]])
def test_future_formats_are_read_as_what_they_look_like(hand_in, made, version):
    found = hand_in(solve(made) | {"nbformat": version, "new": {"things": [1]}})
    assert answers(found) == UNTOUCHED
    assert any("not known" in note for note in found.notes)


def test_colab_keeps_the_id_in_the_metadata(hand_in, made):
    for cell in made["cells"]:
        cell["metadata"] = {"id": cell.pop("id")}
    made["cells"][2]["source"] = "FACTOR = 3"
    assert kinds(hand_in(made))[2] == ("changed", None)


def test_another_kernel_is_said_and_costs_nothing(hand_in, made):
    made["metadata"]["kernelspec"] = {"language": "R", "name": "ir"}
    found = hand_in(solve(made))
    assert (found.status, answers(found)) == ("ok", UNTOUCHED)
    assert any("'R'" in note for note in found.notes)


def test_attachments_and_megabytes_of_output_are_nothing_to_the_reader(hand_in, made):
    made["cells"][0]["attachments"] = {"a.png": {"image/png": "A" * 1_000_000}}
    made["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x" * 1000 + "\n"] * 10_000}]
    found = hand_in(solve(made))
    assert (found.status, answers(found), found.notes) == ("ok", UNTOUCHED, ())


def test_a_renamed_file_is_read_like_any_other(hand_in, made):
    assert answers(hand_in(solve(made), "Final (2) versión.IPYNB")) == UNTOUCHED


@pytest.mark.parametrize("lines", [["def double(x):", "    return 2 * x"], ["def double(x):\n", "    return 2 * x"]])
def test_lines_with_and_without_their_ends(hand_in, made, lines):
    assert hand_in(solve(made, DOUBLE, lines)).answer("1.1").source == "def double(x):\n    return 2 * x"


@pytest.mark.parametrize(
    "cell", [3, None, "code", [], {"cell_type": "code", "source": 5}, {"cell_type": "code", "source": [1]}]
)
def test_a_cell_that_is_none_costs_nothing_but_itself(hand_in, made, cell):
    solve(made)["cells"].insert(0, cell)
    found = hand_in(made)
    assert answers(found) == {"1.1": DOUBLE + 1, "1.2": COUNTER + 1}
    if cell != []:
        assert any("Cell 0" in note for note in found.notes)


def test_another_lessons_notebook_is_said_to_be_one(hand_in, made):
    found = hand_in(made | {"cells": [code("print(1)")]})
    assert (found.missing, found.status) == (("1.1", "1.2"), "ok")
    assert any("another lesson" in note for note in found.notes)


def test_a_notebook_that_shares_only_its_imports_is_another_lessons(tmp_path):
    other = course.find("02").student
    folder = tmp_path / "ada"
    folder.mkdir()
    (folder / other.name).write_bytes(other.read_bytes())
    found = submission.read(folder / other.name, release.from_course(course.find("01")))
    assert found.notes == ("No cell of 01_lr_warmup is in it: it looks like the notebook of 02_progressive_resizing.",)
    assert found.other == found.notes[0]


@pytest.mark.parametrize("said", ["Exercise 99.1", "exercise 9999999999.1", "Exercise one", "Exercise \u0661.1"])
def test_a_lesson_that_nobody_knows_is_another_lessons(hand_in, made, said):
    found = hand_in(made | {"cells": [code("print(1)"), {"cell_type": "markdown", "metadata": {}, "source": said}]})
    assert found.other == "No cell of 01_out is in it: it is perhaps the notebook of another lesson."


def test_a_notebook_of_the_lesson_is_no_other(hand_in, made):
    assert hand_in(made).other == hand_in(solve(made)).other == ""


def test_many_cells_that_are_gone_are_counted(tmp_path):
    lesson = course.find("01")
    body = json.loads(lesson.student.read_text(encoding="utf-8"))
    body["cells"] = [cell for cell in body["cells"] if cell["cell_type"] != "code" or "def " in "".join(cell["source"])]
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "01.ipynb").write_text(json.dumps(body), encoding="utf-8")
    [note] = submission.read(tmp_path / "ada" / "01.ipynb", release.from_course(lesson)).notes
    assert re.fullmatch(r"\d+ code cells of the lesson are gone\.", note)


def test_points_that_were_changed_in_the_metadata_are_said(hand_in, made):
    solve(made)["cells"][DOUBLE]["metadata"]["nbgrader"] = {"points": 100}
    assert "Its metadata give exercise 1.1 100 points: the release's 1 count." in hand_in(made).notes
    made["cells"][DOUBLE]["metadata"]["nbgrader"] = {"points": 1}
    assert not hand_in(made).notes


def test_a_check_of_the_learners_own_is_said(hand_in, made):
    own = "def check(*given):\n    print('right')"
    made["cells"].insert(2, code(own))
    assert "It defines check itself, which no verdict depends on." in hand_in(made).notes
    made["cells"][2] = code(own.replace("check", "record"))
    assert not hand_in(made).notes


def test_marks_of_a_merge_within_cells_are_said(hand_in, made):
    marked = "<<<<<<< HEAD\ndef double(x):\n    return 2\n=======\ndef double(x):\n    return 3\n>>>>>>> theirs"
    found = hand_in(solve(made, DOUBLE, marked))
    assert any(f"merge conflict are in cell {DOUBLE}" in note for note in found.notes)
    assert answers(found)["1.1"] == DOUBLE


def test_halves_of_characters_can_be_written_on(hand_in, made):
    found = hand_in(json.dumps(solve(made, DOUBLE, RIGHT + "# \ud83d")).encode())
    found.answer("1.1").source.encode("utf-8")
    assert answers(found) == UNTOUCHED


def test_a_name_in_other_letters_is_the_same_name_to_python(hand_in, made):
    assert answers(hand_in(solve(made, DOUBLE, "def ｄouble(x):\n    return 2 * x")))["1.1"] == DOUBLE


# What cannot be read is one sentence that names the file.

SAVED = b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
UNREADABLE = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\0\0", "is empty"),
    "not json": (b"x = 1\n", "no valid JSON (line 1: Expecting value): save the notebook"),
    "cut off": (SAVED[:-2], "cut off): save the notebook, open it once more"),
    "cut off in a text": (SAVED[:15], "(line 1: it is cut off): save the notebook"),
    "conflict": (b'{"cells": [\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> b\n]}', "merge conflict (line 2)"),
    "latin": ('{"cells": ["é"]}'.encode("latin-1"), "not UTF-8"),
    "zip": (b"PK\x03\x04" + bytes(range(256)), "not UTF-8"),
    "html": (b"<!DOCTYPE html><html>", "no valid JSON"),
    "deep": (b'{"cells": ' + b"[" * 200_000, "nested too deeply"),
    "list": (b"[1, 2]", "no notebook"),
    "number": (b"7", "no notebook"),
    "object": (b'{"a": 1}', "no notebook"),
    "cells": (b'{"cells": 3}', "no notebook"),
    "digits": (b'{"cells": [' + b"7" * 10_000 + b"]}", "too long"),
    "many cells": (b'{"cells": [' + b"{}," * notebook.MAX_CELLS + b"{}]}", "cells, and at most"),
    "many values": (b'{"cells": [' + b"1," * notebook.MAX_VALUES + b"1]}", "million values"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_files_are_one_sentence(hand_in, name):
    data, says = UNREADABLE[name]
    found = hand_in(data)
    assert (found.status, found.cells) == ("unreadable", ())
    assert found.why.startswith("01_out.ipynb ")
    assert says in found.why
    assert found.why.count(". ") == 0
    assert found.why.endswith(".")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_windows_makes_of_the_encoding_is_read(hand_in, made, encoding):
    assert answers(hand_in(json.dumps(solve(made), ensure_ascii=False).encode(encoding))) == UNTOUCHED


def test_an_unsaved_notebook_is_said_to_be_one(hand_in):
    assert any("before it was saved" in note for note in hand_in(SAVED).notes)


def test_links_pipes_folders_and_nothing_are_not_opened(tmp_path, out):
    folder = tmp_path / "ada"
    folder.mkdir()
    (folder / "link.ipynb").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "folder.ipynb").mkdir()
    for name, says in {"link": "is a link", "pipe": "no plain file", "folder": "plain file", "none": "opened"}.items():
        found = submission.read(folder / f"{name}.ipynb", out)
        assert found.status == "unreadable"
        assert says in found.why


def test_a_large_file_is_refused_before_it_is_read(tmp_path, out):
    path = tmp_path / "ada.ipynb"
    with open(path, "wb") as file:
        file.truncate(10**12)
    started_s = time.monotonic()
    assert "at most 50 MB" in submission.read(path, out).why
    assert time.monotonic() - started_s < 5


def test_a_cell_too_large_is_left_out_and_too_much_code_is_refused(hand_in, made):
    solve(made)["cells"].append(code("#" * (notebook.MAX_CHARACTERS + 1)))
    found = hand_in(made)
    assert answers(found) == UNTOUCHED
    assert any("left out" in note for note in found.notes)
    made["cells"] += [code("x = 1\n" * 10_000)] * 10
    assert "characters of code" in hand_in(made).why


@pytest.mark.parametrize(
    "source",
    [
        *("-" * 29_000 + "1", "(" * 29_000, "x" + ".a" * 14_000, "x" + "()" * 14_000, "a" + "+a" * 14_000),
        *("x=f'" + "{a}" * 9_000 + "'", "if 1:pass\n" + "elif 1:pass\n" * 2_000, "lambda:" * 4_000 + "1"),
        *("%time x\n" * 3_000, "!ls\n" * 29 + "x = 1\n" * 4_000, "a?\n" * 20, "\0", "'" * 29_999, "\\\n" * 14_000),
        *(
            "def f():\n" * 3,
            "return 1",
            "await x",
            "print 'two'",
            "global double\ndouble = 1",
            "\ufeffx = 1",
            "\x0cx = 1",
        ),
        *("def double(double):\n" * 90, "class double(double): double = double", "match x:\n case _: double = 1"),
        *(
            "*double, = 1",
            "[double := 1 for _ in x]",
            "import double",
            "from double import *",
            "del double",
            "%%writefile",
        ),
    ],
)
def test_no_source_breaks_the_reader(hand_in, made, source):
    solve(made)["cells"] += [code(source), code(source + "\ncheck(double)")]
    started_s = time.process_time()
    found = hand_in(made)
    assert (found.status, "1.1" in answers(found)) == ("ok", True)
    assert time.process_time() - started_s < 20


def test_reading_runs_nothing(hand_in, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = "import pathlib\npathlib.Path('ran').touch()\nopen('ran', 'w')"
    solve(made)["cells"] += [code(bad), code(f"!touch ran\n{bad}"), code("%%bash\ntouch ran"), code("%run ran.py")]
    assert hand_in(made).status == "ok"
    assert not (tmp_path / "ran").exists()


def test_memory_stays_bounded(hand_in):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    hand_in(b'{"cells": [' + b"{}," * (notebook.MAX_VALUES // 2 - 2) + b"{}]}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000


# A student's folder.


@pytest.fixture
def folder(tmp_path):
    """A student's folder of notebooks, given as name=notebook."""

    def call(**notebooks):
        home = tmp_path / "in" / "zoe"
        for name, each in notebooks.items():
            path = home / name.replace("__", "/")
            path = path.with_name(f"{path.name}.ipynb")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(each if isinstance(each, bytes) else json.dumps(each).encode())
        home.mkdir(parents=True, exist_ok=True)
        return home

    return call


def test_of_two_notebooks_the_one_with_more_answers_is_graded(folder, made, out):
    empty, solved = copy.deepcopy(made), solve(copy.deepcopy(made))
    found = submission.read_folder(folder(a=empty, b=solved, c=b"broken"), out)
    assert (found.student, found.path.name, found.untouched) == ("zoe", "b.ipynb", ("1.2",))
    assert found.notes == ("b.ipynb was graded; also handed in: a.ipynb, c.ipynb.",)


def test_of_equals_the_first_by_name_is_graded(folder, made, out):
    assert submission.read_folder(folder(b=made, a=made), out).path.name == "a.ipynb"


def test_notebooks_in_deeper_folders_are_found_and_editors_copies_are_not(folder, made, out):
    home = folder(deep__er__x=solve(made))
    checkpoint = home / ".ipynb_checkpoints" / "y.ipynb"
    checkpoint.parent.mkdir()
    checkpoint.write_text(json.dumps(made))
    found = submission.read_folder(home, out)
    assert (found.student, found.path.name, found.notes) == ("zoe", "x.ipynb", ())


def test_a_folder_without_a_notebook_is_said_to_be_one(folder, out):
    home = folder()
    (home / "link.ipynb").symlink_to("/etc/passwd")
    (home / "folder.ipynb").mkdir()
    os.mkfifo(home / "pipe.ipynb")
    assert submission.notebooks(home) == []
    found = submission.read_folder(home, out)
    assert (found.status, found.why) == ("unreadable", "zoe holds no notebook that is a plain file.")


def test_a_student_is_called_by_the_composed_form_of_the_folders_name(tmp_path, made, out):
    home = tmp_path / unicodedata.normalize("NFD", "josé")
    home.mkdir()
    (home / "a.ipynb").write_text(json.dumps(made))
    assert submission.read(home / "a.ipynb", out).student == unicodedata.normalize("NFC", "josé")
    assert submission.read_folder(home, out).student == unicodedata.normalize("NFC", "josé")


# The real lessons.


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_every_real_lesson_comes_back_as_it_went_out_and_its_solution_is_found(lesson, tmp_path):
    out, cells = release.from_course(lesson), build.convert(lesson)
    path = tmp_path / "ada" / "a.ipynb"
    path.parent.mkdir()
    path.write_text(build.student_notebook(cells), encoding="utf-8")
    found = submission.read(path, out)
    assert found.untouched == tuple(out.exercises) == tuple(build.exercises(lesson))
    assert (found.missing, found.notes) == ((), ())
    assert {cell.kind for cell in found.cells} <= {"exercise", "released", "check"}
    code_cells = [cell for cell in out.cells if cell.role != "text"]
    assert [cell.sha256 for cell in found.cells] == [cell.sha256 for cell in code_cells]
    path.write_text(build.solution_notebook(cells), encoding="utf-8")
    solved = submission.read(path, out)
    assert (solved.missing, solved.untouched, solved.notes) == ((), (), ())
    assert answers(solved) == {number: cell.index for number, cell in out.exercises.items()}
    path.write_text(json.dumps(old(json.loads(build.solution_notebook(cells)))), encoding="utf-8")
    assert answers(submission.read(path, out)) == answers(solved), "and without ids, in an old format"


@pytest.mark.parametrize("lesson", [one for one in course.lessons() if one.solution.exists()], ids=lambda one: one.name)
def test_the_executed_notebooks_with_all_their_outputs_are_read(lesson):
    assert submission.read(lesson.solution, release.from_course(lesson)).missing == ()


def test_names_of_python_that_is_none_are_guessed():
    found = names("def double(x):\n    return (\nclass A")
    assert (found.binds, found.parsed, found.needs) == ({"double", "A"}, False, set())  # nothing of it runs
    too_long = names(f"def double(x):\n    return {'x + ' * 20_000}x")
    assert (found.parsed, "x" in too_long.needs, "return" in too_long.needs) == (False, True, False)
