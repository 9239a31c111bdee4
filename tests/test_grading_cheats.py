"""Submissions that cheat, break, flood and are odd, graded as a class: each gets what its honest answers are worth.

They are graded in one batch beside each other, and what is outside the sandbox is looked at before and after.
"""

import hashlib
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import cheats
import pytest
import torch
from boxes import WHY_NOT

import labkit
from labkit import course
from labkit.checks import exercises
from labkit.grading import grade, jobs, release, watch
from labkit.grading.box import Limits
from labkit.judge import generator_for

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.slow]
LESSON = course.find("01")
LIMITS = Limits(cell_s=3.0, calls_s=3.0, memory_bytes=1 << 30, output_bytes=1 << 20, message_bytes=16 << 20)
SEED = 20_26


@dataclass
class Class:
    """A graded class: rows by student, what it wrote, and what was seen outside."""

    rows: dict[str, dict[str, dict]]
    out: Path
    changed: list[str]
    heard: list[str]
    left: list[int]


def _student(name: str) -> str:
    """A folder's name for a kind."""
    return re.sub(r"\W+", "-", name).strip("-")


def _tree(*folders: Path) -> dict[str, str]:
    """Every file under folders and its hash."""
    files = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
    told = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}
    return told | {str(path): "folder" for path in files if path.is_dir()}


def _listeners(folder: Path) -> list[socket.socket]:
    """What a submission might send to: TCP, UDP, an abstract socket, and one in a folder."""
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    abstract, local = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind("")  # the system chooses a name
    local.bind(str(folder / "socket"))
    for one in (tcp, udp, abstract, local):
        one.setblocking(False)
        if one is not udp:
            one.listen()
    return [tcp, udp, abstract, local]


def _heard(one: socket.socket) -> bool:
    """Whether something has come."""
    try:
        return bool(one.recv(1) if one.type == socket.SOCK_DGRAM else one.accept())
    except BlockingIOError:
        return False


def _hand_in(folder: Path, names: dict[str, object]) -> None:
    """Every kind as a student's folder."""
    released = json.loads(LESSON.student.read_text(encoding="utf-8"))
    for name, kind in (cheats.KINDS | cheats.FORGED_INSIDE).items():
        for file in kind.files:
            path = folder / _student(name) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(cheats.written(kind, released, names), encoding="utf-8")
    for name, data in cheats.ODD_FILES.items():
        (folder / _student(name)).mkdir()
        (folder / _student(name) / "answer.ipynb").write_bytes(data)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder, out, shared = (tmp_path_factory.mktemp(name) for name in ("in", "out", "open"))
    shared.chmod(0o777)
    listeners = _listeners(shared)
    names = {"PORT": listeners[0].getsockname()[1], "UDP": listeners[1].getsockname()[1], "FOLDER": str(shared)}
    names["ABSTRACT"] = listeners[2].getsockname()[1:].decode()
    _hand_in(folder, names)
    watched = (folder, shared, Path(labkit.__file__).parent, LESSON.student.parent)
    os.environ["GRADERS_SECRET"] = "secret"
    jobs.context()
    for kept in (resource_tracker, forkserver):  # which multiprocessing keeps until this process ends
        kept.ensure_running()
    ours = watch.family([os.getpid()])
    before = _tree(*watched)
    try:
        batch = grade.Batch(release=release.from_course(LESSON), seed=SEED, limits=LIMITS)
        rows = grade.grade(folder, batch, out, jobs=2)
        after = _tree(*watched)
        heard = [str(one.getsockname()) for one in listeners if _heard(one)]
    finally:
        os.environ.pop("GRADERS_SECRET")
        for one in listeners:
            one.close()
    ends_s = time.monotonic() + 5.0
    while (left := set(watch.family([os.getpid()])) - set(ours)) and time.monotonic() < ends_s:
        time.sleep(0.05)
    by_student: dict[str, dict[str, dict]] = {}
    for row in rows:
        by_student.setdefault(row["student"], {})[row["exercise"]] = row
    return Class(by_student, out, sorted(before.items() ^ after.items()), heard, sorted(left))


def _points(graded: Class, name: str) -> dict[str, float]:
    return {number: row["points"] for number, row in graded.rows[_student(name)].items()}


@pytest.mark.parametrize("name", cheats.KINDS)
def test_a_submission_gets_what_its_honest_answers_are_worth(graded, name):
    kind = cheats.KINDS[name]
    rows = graded.rows[_student(name)]
    due = {number: kind.points.get(number, 0) for number in cheats.POINTS}
    found = _points(graded, name)
    told = {number: (row["status"], row["message"][:300]) for number, row in rows.items()}
    assert all(found[number] <= due[number] for number in due), told
    assert kind.at_most or found == due, told
    assert "ungraded" not in {row["status"] for row in rows.values()}, told


@pytest.mark.parametrize("name", cheats.FORGED_INSIDE)
def test_what_was_measured_beside_the_answer_is_marked_so(graded, name):
    rows = graded.rows[_student(name)]
    assert all(row["inside"] or not row["points"] for row in rows.values())
    assert sum(row["points"] for row in rows.values()) <= sum(cheats.FORGED_INSIDE[name].points.values())


@pytest.mark.parametrize("name", cheats.ODD_FILES)
def test_a_file_that_is_no_notebook_is_unreadable(graded, name):
    rows = graded.rows[_student(name)].values()
    assert {(row["status"], row["points"]) for row in rows} == {("unreadable", 0)}


def test_nothing_outside_is_changed_or_heard_and_nothing_is_left(graded):
    assert graded.changed == []
    assert graded.heard == []
    assert graded.left == []
    told = (graded.out / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(told) == len(cheats.POINTS) * len(graded.rows)


def test_what_students_read_is_short_and_runs_nothing(graded):
    for rows in graded.rows.values():
        for row in rows.values():
            assert len(row["message"]) < 5_000, (row["student"], len(row["message"]))
    for path in graded.out.rglob("*.html"):
        assert "<script>alert" not in path.read_text(encoding="utf-8")


def _held(value: object) -> set[int]:
    """Where the parts of a value lie that a call could change in place."""
    if isinstance(value, torch.Tensor):
        return {value.data_ptr()} if value.numel() else set()
    if isinstance(value, (list, tuple)):
        return set().union({id(value)} if isinstance(value, list) else (), *map(_held, value))
    return set().union({id(value)}, *map(_held, value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("exercise", [one for one in exercises() if not one.drive], ids=lambda one: one.number)
def test_what_an_answer_changes_in_place_is_nobody_elses(exercise):
    """The grader puts an answer's changes back into what it gave: that must not be what the reference is given."""
    one, other = (list(exercise.cases(generator_for(exercise, SEED))) for _ in range(2))
    assert not _held(one) & _held(other)


def test_there_are_sixty_kinds():
    assert len(cheats.KINDS) + len(cheats.ODD_FILES) >= 60
