"""nbgrader itself, where it is installed: it takes what goes out, and grades an assignment as labkit does."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import assigned
import boxes
import pytest
from test_grading_advisory import class_of

from labkit import course
from labkit.grading import advisory, assignment, grade, release

WHY_NOT = "" if shutil.which("nbgrader") else "nbgrader is not installed, in an environment of its own on the path"
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.slow]
CONFIG = 'c = get_config()\nc.CourseDirectory.course_id = "labs"\n'


@pytest.fixture
def nbgrader(tmp_path):
    """Runs nbgrader in a course of its own, and fails where it does."""
    folder = tmp_path / "course"
    folder.mkdir()
    (folder / "nbgrader_config.py").write_text(CONFIG)

    def run(*arguments):
        asked = ["nbgrader", *map(str, arguments)]
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    return SimpleNamespace(run=run, folder=folder)


def scores(nbgrader, name):
    """What nbgrader gave, by student and cell; None where a person is to grade."""
    exported = nbgrader.folder / "grades.json"
    code = (
        "import json, sys\nfrom nbgrader.api import Gradebook\n"
        f"with Gradebook('sqlite:///{nbgrader.folder}/gradebook.db', 'labs') as book:\n"
        f"    found = {{s.student.id: {{g.name: g.auto_score for n in s.notebooks for g in n.grades}}\n"
        f"             for s in book.assignment_submissions({name!r})}}\n"
        f"json.dump(found, open({str(exported)!r}, 'w'))\n"
    )
    with open(shutil.which("nbgrader"), encoding="utf-8") as script:
        interpreter = script.readline().removeprefix("#!").strip()
    subprocess.run([interpreter, "-c", code], check=True, capture_output=True, timeout=120)
    return json.loads(exported.read_text())


@pytest.mark.parametrize("number", ["01", "14"])
def test_a_release_is_taken_whole(nbgrader, tmp_path, number, monkeypatch):
    monkeypatch.setattr(release, "key_path", lambda: tmp_path / "config" / "release.key")
    lesson = course.find(number)
    source = nbgrader.folder / "source" / "week"
    path, manifest = release.release(lesson, tmp_path / "out")
    source.mkdir(parents=True)
    shutil.copy(path, source)
    nbgrader.run("generate_assignment", "week", "--create")
    given = nbgrader.folder / "release" / "week" / path.name
    texts = [[cell["source"] for cell in json.loads(each.read_text())["cells"]] for each in (path, given)]
    assert texts[0] == texts[1], "nothing is taken out of it"
    for student, cells in (("ann", lesson.solution), ("bob", given)):
        mine, solved = json.loads(given.read_text()), json.loads(cells.read_text())
        for cell, other in zip(mine["cells"], solved["cells"], strict=True):
            cell["source"] = other["source"]
        assigned.write(nbgrader.folder / "submitted" / student / "week", mine, path.name)
    nbgrader.run("validate", given)
    nbgrader.run("autograde", "week", "--create")
    points = release.load(manifest).exercises
    assert scores(nbgrader, "week") == {
        student: {f"exercise-{number.replace('.', '-')}": None for number in points} for student in ("ann", "bob")
    }


@pytest.mark.skipif(bool(boxes.WHY_NOT), reason=f"needs a sandbox: {boxes.WHY_NOT}")
def test_both_give_the_same_points(nbgrader, tmp_path):
    """Of everybody but the student whose cell ends the kernel, with whom nbgrader gives up."""
    path = assigned.write(nbgrader.folder / "source" / "hw1", assigned.source())
    nbgrader.run("generate_assignment", "hw1", "--create")
    given = json.loads((nbgrader.folder / "release" / "hw1" / "hw1.ipynb").read_text())
    ours = assignment.load(path)
    assert ["".join(cell["source"]) for cell in given["cells"]] == [one.given for one in ours.cells]
    class_of(SimpleNamespace(given=given), tmp_path / "in")
    for folder in (tmp_path / "in").iterdir():
        if folder.name != "eve":
            shutil.copytree(folder, nbgrader.folder / "submitted" / folder.name / "hw1")
    nbgrader.run("autograde", "hw1", "--create")
    theirs = scores(nbgrader, "hw1")
    rows = grade.grade(tmp_path / "in", advisory.Batch(assignment=ours), tmp_path / "out")
    mine = {(row["student"], row["exercise"]): row["points"] for row in rows if row["advisory"]}
    told = {key: theirs[key[0]][key[1]] for key in mine if key[0] in theirs}
    assert {key: points for key, points in mine.items() if key in told} == told
