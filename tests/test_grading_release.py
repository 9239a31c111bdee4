"""What goes out: the student notebook, a manifest nobody else can sign, and nothing that gives an answer away."""

import json
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import handed_out
import nbformat
import pytest

from labkit import build, course
from labkit.course import CourseError
from labkit.grading import release, submission


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """An instructor's configuration folder of this test's own; returns where the key will be."""
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_config_path", lambda name: tmp_path / "config" / name)
    return tmp_path / "config" / "labkit" / "release.key"


@pytest.fixture
def lesson(tmp_path):
    return handed_out.lesson(tmp_path / "course")


def test_what_a_release_says_of_each_cell(lesson):
    made = release.from_course(lesson)
    assert [(cell.role, cell.exercise, cell.names) for cell in made.cells] == [
        *(("text", None, ()), *[("released", None, ())] * 3, ("text", None, ())),
        *(("exercise", "1.1", ("double",)), ("check", "1.1", ()), ("released", None, ()), ("text", None, ())),
        *(("exercise", "1.2", ("Counter",)), ("check", "1.2", ())),
    ]  # fmt: skip
    assert list(made.exercises) == ["1.1", "1.2"]
    assert (made.lesson, made.signed, made.exercises["1.1"].points) == ("01_out", False, 1)


def test_what_is_given_beside_a_stub_is_not_asked_for(tmp_path):
    """A helper in the exercise's cell is the lesson's own: a student who copies it answers nothing."""
    lesson = handed_out.lesson(tmp_path / "course")
    text = lesson.source.read_text(encoding="utf-8")
    lesson.source.write_text(text.replace("# %%\ndef double", "# %%\ndef helper(x):\n    return x\n\n\ndef double"))
    assert release.from_course(lesson).exercises["1.1"].names == ("double",)


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_every_real_lesson_goes_out_whole_and_gives_nothing_away(lesson, tmp_path):
    from labkit import checks

    notebook, manifest = release.release(lesson, tmp_path)
    declared = {one.number: (one.points, (one.name,)) for one in checks.exercises()}
    made = release.load(manifest)
    assert made.signed
    assert replace(made, signed=False) == release.from_course(lesson)
    for number, cell in made.exercises.items():
        assert (cell.points, cell.names) == declared[number]
        assert number in {other.exercise for other in made.cells if other.role == "check"}
    found = json.loads(notebook.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(found))
    assert refused(found["cells"]) == []
    graded = [cell["metadata"]["nbgrader"] for cell in found["cells"] if "nbgrader" in cell["metadata"]]
    assert [each["points"] for each in graded] == [cell.points for cell in made.exercises.values()]
    plain = json.loads(build.student_notebook(build.convert(lesson)))
    assert [cell["source"] for cell in found["cells"]] == [cell["source"] for cell in plain["cells"]]
    back = submission.read(notebook, made)
    assert (back.untouched, back.missing, back.notes) == (tuple(made.exercises), (), ())


def test_what_goes_out_is_what_nbgrader_reads(lesson, tmp_path):
    """Tasks of its schema 3; a cell of tests would give everybody full points, because check never raises."""
    notebook, _ = release.release(lesson, tmp_path / "out")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    graded = {index: cell["metadata"]["nbgrader"] for index, cell in enumerate(cells) if cell["metadata"]}
    assert [each["grade_id"] for each in graded.values()] == ["exercise-1-1", "exercise-1-2"]
    assert list(graded) == [handed_out.DOUBLE - 1, handed_out.COUNTER - 1]
    for each in graded.values():
        assert each | {"grade_id": ""} == {
            **{"schema_version": 3, "grade": False, "solution": False, "locked": True, "task": True},
            **{"points": 1, "grade_id": ""},
        }


def refused(cells):
    """What nbgrader 0.9.6 would say against the metadata of these cells, by the rules of its schema 3."""
    flags, seen, found = ("grade", "solution", "locked"), set(), []
    kinds = {"schema_version": int, "points": (int, float), "grade_id": str, "checksum": str, "cell_type": str}
    kinds |= dict.fromkeys((*flags, "task"), bool)
    for cell in cells:
        if (kept := cell["metadata"].get("nbgrader")) is None:
            continue
        odd = [key for key, value in kept.items() if not isinstance(value, kinds.get(key, ()))]
        found += [f"{key} is unknown or of a wrong kind" for key in odd]
        found += [f"{key} is missing" for key in ("schema_version", *flags) if key not in kept]
        found += ["schema"] if kept.get("schema_version") != 3 else []
        grade_id, task, grade, solution = (kept.get(key) for key in ("grade_id", "task", "grade", "solution"))
        found += ["id"] if not re.fullmatch(r"[a-zA-Z0-9_\-]+", grade_id or "") or grade_id in seen else []
        found += ["no points"] if (grade or task) and kept.get("points", -1) < 0 else []
        found += ["a task that is no text"] if task and cell["cell_type"] != "markdown" else []
        is_text = cell["cell_type"] == "markdown" and not task
        found += ["text that is half an answer"] if is_text and grade != solution else []
        seen.add(grade_id)
    return found


REFUSED = {
    "schema": {"schema_version": 2},
    "id": {"grade_id": "exercise 1.1"},
    "no points": {"points": -1},
    "locked is missing": {"locked": None},
    "text that is half an answer": {"task": False, "grade": True},
    "more is unknown or of a wrong kind": {"more": 1},
}


@pytest.mark.parametrize("fault", REFUSED)
def test_the_rules_refuse_what_nbgrader_refuses(lesson, tmp_path, fault):
    """Each was seen to be refused by nbgrader itself."""
    notebook, _ = release.release(lesson, tmp_path / "out")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert refused(cells) == []
    kept = cells[handed_out.DOUBLE - 1]["metadata"]["nbgrader"]
    kept |= REFUSED[fault]
    for key in [key for key, value in kept.items() if value is None]:
        del kept[key]
    assert fault in refused(cells)


def test_the_same_lesson_goes_out_as_the_same_bytes(lesson, tmp_path):
    first, second = (release.release(lesson, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


# The signature.


def changed(manifest, change):
    body = json.loads(manifest.read_text())
    change(body)
    manifest.write_text(json.dumps(body))


CHANGES = {
    "points": lambda body: body["cells"][5].update(points=100),
    "hash": lambda body: body["cells"][5].update(sha256="0" * 64),
    "role": lambda body: body["cells"][5].update(role="released"),
    "a cell less": lambda body: body["cells"].pop(),
    "lesson": lambda body: body.update(lesson="02_other"),
    "version": lambda body: body.update(labkit="9"),
    "something more": lambda body: body.update(extra=1),
    "signature": lambda body: body.update(signature="0" * 64),
    "empty signature": lambda body: body.update(signature=""),
    "signature not ASCII": lambda body: body.update(signature="é"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_that_was_changed_is_refused(lesson, tmp_path, name):
    _, manifest = release.release(lesson, tmp_path / "out")
    assert release.load(manifest).signed
    changed(manifest, CHANGES[name])
    with pytest.raises(CourseError, match=r"release\.json was changed after it was signed"):
        release.load(manifest)


def test_another_instructors_key_is_refused_and_says_where_the_key_goes(lesson, tmp_path, config):
    _, manifest = release.release(lesson, tmp_path / "out")
    config.unlink()
    with pytest.raises(CourseError, match=r"another key.*release\.key"):
        release.load(manifest)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "7", "null", "\xff", "[" * 100_000, '{"signature": "a"}', '{"signature": "a", "cells": 3}'),
        *('{"signature": 3, "cells": [], "lesson": "a", "labkit": "b"}',),
        *('{"signature": "a", "cells": [{}], "lesson": "a", "labkit": "b"}',),
        *('{"signature": "a", "cells": [3], "lesson": "a", "labkit": "b"}',),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_one_sentence(tmp_path, text):
    path = tmp_path / "a.release.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CourseError, match="a.release.json is no manifest of a release"):
        release.load(path)
    with pytest.raises(CourseError, match="none.json is not there"):
        release.load(tmp_path / "none.json")


def test_the_key_is_made_once_and_for_its_owner_alone(config):
    old = os.umask(0)
    try:
        made = release.key()
    finally:
        os.umask(old)
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    assert release.key() == made
    assert len(made) == 32
    assert [path.name for path in config.parent.iterdir()] == ["release.key"]
    config.unlink()
    assert release.key() != made


def test_two_that_make_the_key_at_once_have_the_same_one(config):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: release.key(), range(32)))) == 1
    assert [path.name for path in config.parent.iterdir()] == ["release.key"]


def test_a_key_that_others_read_or_that_is_none_is_refused(config):
    release.key()
    config.chmod(0o640)
    with pytest.raises(CourseError, match=r"release\.key can be read by others.*chmod 600"):
        release.key()
    config.chmod(0o600)
    config.write_text("abc")
    with pytest.raises(CourseError, match=r"release\.key is no key"):
        release.key()


# The leak test, seen finding each kind of leak.


def spoiled(lesson, spoil):
    notebook = json.loads(build.student_notebook(build.convert(lesson)))
    spoil(notebook)
    return release.leaks(lesson, json.dumps(notebook))


LEAKS = {
    "a solution in a cell": lambda n: n["cells"][7].update(source="def other(x):\n  y = FACTOR * x\n  return y"),
    "a solution in prose": lambda n: n["cells"][0].update(source="Write\n\n    y = FACTOR * x\n    return y\n"),
    "one line of it in metadata": lambda n: n["metadata"].update(note="first y = FACTOR * x, then"),
    "one line in a cell's metadata": lambda n: n["cells"][2]["metadata"].update(old=["\n", "    y = FACTOR * x\n"]),
    "a solution's line in a new cell": lambda n: n["cells"].append(handed_out.code("def g(x):\n    y = FACTOR * x")),
    "an output": lambda n: n["cells"][2].update(outputs=[{"output_type": "stream", "name": "stdout", "text": "6"}]),
    "an attachment": lambda n: n["cells"][0].update(attachments={"a.png": {"image/png": "aa"}}),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found(lesson, name):
    assert spoiled(lesson, dict) == []
    assert spoiled(lesson, LEAKS[name]) != []


@pytest.mark.parametrize("part", ["reference", "cases"])
def test_the_checks_own_code_is_a_leak(part):
    from labkit import checks

    lesson = course.find("01")
    body = release._body_of(getattr(checks.exercises()[2], part))
    assert len(body) > 1
    source = "def mine(rng):\n" + "\n".join(f"    {line}" for line in body)
    found = spoiled(lesson, lambda notebook: notebook["cells"].append(handed_out.code(source)))
    assert any(part in one for one in found)


def test_a_lesson_that_leaks_is_not_released(lesson, tmp_path):
    """The author pasted the solution into a demonstration."""
    text = lesson.source.read_text(encoding="utf-8")
    shown = "def shown(x):\n    y = FACTOR * x\n    return y"
    lesson.source.write_text(f"{text}\n# %%\n{shown}\n", encoding="utf-8")
    with pytest.raises(CourseError, match=r"01_out is not released: the code of exercise 1\.1"):
        release.release(lesson, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The command.


@pytest.mark.usefixtures("toy")
def test_release_writes_a_notebook_and_a_manifest(labkit, tmp_path):
    code, out, error = labkit("release", "01", "--out", tmp_path / "out")
    assert (code, error) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["01_toy.ipynb", "01_toy.release.json"]
    told = out.splitlines()
    assert [line.rpartition(": ")[2] for line in told[:2]] == [
        "give this to students, and nothing else.",
        "keep this for labkit grade --release.",
    ]
    assert told[2].startswith(f"It is signed with the key in {release.key_path()}: keep a copy")
    assert "Without the key" in told[3]
    assert release.load(tmp_path / "out" / "01_toy.release.json").exercises["1.1"].names == ("double",)
    assert labkit("release", "01", "--out", tmp_path / "out")[0] == 0, "and again, over its own"


@pytest.mark.usefixtures("toy")
def test_release_without_a_folder_names_one_itself(labkit):
    assert labkit("release", "1")[0] == 0
    assert os.path.isfile("release_01_toy/01_toy.ipynb")


@pytest.mark.usefixtures("toy")
def test_release_refuses_what_would_lose_work(labkit, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, error = labkit("release", "01", "--out", tmp_path / "file")
    assert (code, error.count("\n")) == (2, 1)
    assert "is a file" in error
    labkit("release", "01", "--out", tmp_path / "out")
    notebook = tmp_path / "out" / "01_toy.ipynb"
    notebook.write_text(notebook.read_text().replace("Some prose", "Some edit"))
    code, _, error = labkit("release", "01", "--out", tmp_path / "out")
    assert (code, "edited by hand" in error) == (2, True)
    assert labkit("release", "77")[0] == 2


def test_the_command_line_starts_without_what_only_grading_needs():
    code = "import sys, labkit.cli; print([n for n in ('torch', 'zipfile', 'IPython') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
