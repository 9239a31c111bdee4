"""What the README says is there, is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import course, repro
from labkit.grading import policy

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_lesson_has_a_row_under_its_own_title():
    for lesson in course.lessons():
        title = lesson.title.split(":")[0]
        assert f"| [{lesson.number} {title}](notebooks/{lesson.name}.ipynb) |" in README


def _gpus_of(lesson: course.Lesson) -> set[str]:
    """The names of the machines that recorded a lesson with a GPU in use."""
    return {made.hardware for made in repro.recordings(lesson.name) if made.results["tier"] != "cpu"}


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_a_lesson_ran_on_the_gpus_that_recorded_it_and_no_other(lesson):
    (row,) = [line for line in README.splitlines() if f"(notebooks/{lesson.name}.ipynb)" in line]
    one, two = (cell.strip() for cell in row.split("|")[-3:-1])
    ran = _gpus_of(lesson)
    for cell in (one, two):
        assert cell in ("not yet run", "not needed") or any(name in cell for name in ran)
    assert not ran or "not yet run" not in one


def test_no_lesson_is_promised_that_is_not_there():
    named = set(re.findall(r"\(notebooks/(\w+)\.ipynb\)", README))
    assert named == {lesson.name for lesson in course.lessons()}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./]+)\)", README))))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make\s([a-z-]+)", README, re.MULTILINE))
    assert {"lab", "test", "quick", "gpu-check"} <= named <= targets


def test_labkit_commands_exist():
    done = subprocess.run([sys.executable, "-m", "labkit.cli", "--help"], capture_output=True, text=True, check=True)
    named = set(re.findall(r"(?:`|bin/)labkit ([a-z]+)", README))
    assert {"run", "lab", "doctor", "build", "progress", "record"} <= named
    assert all(re.search(rf"\b{name}\b", done.stdout) for name in named)


def test_variables_that_it_names_are_read():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "labkit").glob("*.py"))
    named = set(re.findall(r"LABKIT_[A-Z]+", README))
    assert {"LABKIT_BUDGET", "LABKIT_CACHE", "LABKIT_HOME", "LABKIT_DATA"} <= named
    assert all(f'"{name}"' in sources for name in named)


def test_the_policy_of_the_example_is_one(tmp_path):
    path = tmp_path / "course.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", README, re.DOTALL)[1])
    terms = policy.load(path, "01_lr_warmup", ["1.1", "1.2", "1.3"])
    assert (terms.worth, terms.percent_per_day, terms.weights) == (10, 10, {"1.2": 2})
    assert terms.students["ann"].handed_in.hour == 20
