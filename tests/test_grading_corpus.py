"""A class of every kind of submission gets the expected points, in the same bytes however it is graded.

A part of what tests/grading_corpus.py does with 200 submissions and 30 kills.
"""

import ast
import importlib

import corpus
import corpus_answers
import grading_corpus
import pytest
from boxes import WHY_NOT

from labkit import checks, course
from labkit.grading import release, submission

needs_a_box = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
LESSONS = ("01", "14")
# Of the class of lesson 01, a round of every kind of student with every edit; of 14, whose checks start ranks, a few.
N_PART = {"01": 26, "14": 6}
N_KILLED, N_KILLS = 6, 3
each_lesson = pytest.mark.parametrize("lesson", LESSONS)


@pytest.fixture(scope="module")
def classes():
    return {lesson: corpus.handed_in(lesson) for lesson in LESSONS}


@each_lesson
def test_a_class_is_the_same_each_time_and_has_everything_in_it(lesson, classes):
    made = classes[lesson]
    assert made == corpus.handed_in(lesson)
    assert made != corpus.handed_in(lesson, seed=1)
    assert len({each.student for each in made}) == corpus.N_STUDENTS
    told = "\n".join(each.made for each in made)
    assert all(edit.__name__ in told for edit in corpus.EDITS)
    for number in made[0].expected:
        points = [each.expected[number] for each in made]
        assert 25 <= sum(each > 0 for each in points) <= 70
        left_out = [answer.what for answer in corpus_answers.answers(number) if repr(answer.what) not in told]
        assert not left_out, number


@each_lesson
def test_every_wrong_answer_and_known_mistake_is_in_the_corpus(lesson):
    wrong = importlib.import_module(f"wrong_answers.nb{lesson}").WRONG
    for exercise in checks.exercises():
        if exercise.number.split(".")[0] == str(int(lesson)):
            known = corpus_answers.answers(exercise.number)
            given = [each.what for each in known if not each.right]
            assert set(given) >= {what for what, *_ in wrong[exercise.number]} | {why for why, _ in exercise.mistakes}
            for each in known:
                if each.what != "does not parse":
                    ast.parse(each.source)
            assert len({each.source for each in known}) == len(known)


@each_lesson
def test_an_edit_hides_no_answer_and_makes_none(lesson, classes, tmp_path):
    made = release.from_course(course.find(lesson))
    for each in classes[lesson]:
        each.write(tmp_path)
        read = submission.read_folder(tmp_path / each.student, made)
        assert read.status == "ok", read.why
        answered = [number for number, points in each.expected.items() if points]
        assert not set(answered) & {*read.missing, *read.untouched}, each.made
        untouched = {number for number in each.expected if f"'{number}': 'untouched'" in each.made}
        assert untouched <= set(read.untouched), each.made


def test_a_score_that_is_not_the_expected_one_is_found(classes):
    made = classes["01"][:3]
    rows = [
        {"student": each.student, "exercise": number, "points": points, "status": "ok"}
        for each in made
        for number, points in each.expected.items()
    ]
    assert not grading_corpus.misjudged(rows, made)
    rows[0]["points"] += 1
    rows[1]["status"] = "ungraded"
    assert len(grading_corpus.misjudged(rows[:-1], made)) == 3


@needs_a_box
@pytest.mark.slow
@each_lesson
def test_every_score_of_a_part_of_the_class_is_as_expected(lesson, classes, tmp_path):
    made = classes[lesson][: N_PART[lesson]]
    folder = grading_corpus.class_in(tmp_path / "in", made)
    rows = grading_corpus.graded(folder, tmp_path / "out", lesson)
    assert not grading_corpus.misjudged(rows, made)


@needs_a_box
@pytest.mark.slow
def test_grades_are_the_same_bytes_with_other_jobs_and_after_kills(classes, tmp_path):
    folder = grading_corpus.class_in(tmp_path / "in", classes["01"][:N_KILLED])
    rows = grading_corpus.graded(folder, tmp_path / "whole", "01", jobs=2)
    assert not grading_corpus.misjudged(rows, classes["01"][:N_KILLED])
    done = grading_corpus.kill_and_resume(folder, tmp_path / "killed", "01", kills=N_KILLS, jobs=1)
    assert done[0] < N_KILLED  # it was killed before it was done
    whole, killed = ((tmp_path / out / "grades.csv").read_bytes() for out in ("whole", "killed"))
    assert killed == whole
    assert not list((tmp_path / "killed").rglob("*.tmp"))
