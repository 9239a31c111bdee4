"""Similar pairs: copies are found whatever was done to hide them, and nobody else is."""

import itertools
import json
import time

import ways

from labkit import build, course
from labkit.grading import release, similar, similar_page
from labkit.grading.shingles import Shingle

LESSON = course.find("01")
RELEASE = release.from_course(LESSON)
GIVEN = build.convert(LESSON)
NOTEBOOK = json.loads(build.student_notebook(GIVEN))
STUBS = {number: f'raise NotImplementedError("exercise {number}")' for number in RELEASE.exercises}


def handed_in(folder, student, *answers, more=(), form=NOTEBOOK):
    """A notebook with these answers, None for the stub; more: cells of the student's own at its end."""
    notebook = json.loads(json.dumps(form))
    for cell in notebook["cells"]:
        for (_, stub), answer in zip(STUBS.items(), answers, strict=True):
            if stub in "".join(cell["source"]) and answer:
                cell["source"] = answer
    extra = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook["cells"] += [{**extra, "id": f"own{n}", "source": text} for n, text in enumerate(more)]
    (folder / student).mkdir(parents=True)
    (folder / student / "01.ipynb").write_text(json.dumps(notebook))


def names(folder):
    """The pairs found in a folder, by name."""
    found = similar.pairs(similar.works(folder, RELEASE, LESSON))
    return [(one.one.student, one.other.student) for one in found]


def independent(folder):
    """A student for each way of each exercise, so that all ways meet."""
    for n, (rate, pick, sharp) in enumerate(zip(ways.RATE, ways.PICK, ways.SHARP, strict=True)):
        handed_in(folder, f"own{n}", rate, pick, sharp)


def test_answers_that_people_found_by_themselves_are_no_pairs(tmp_path):
    independent(tmp_path)
    assert names(tmp_path) == []
    found = similar.works(tmp_path, RELEASE, LESSON)
    assert all(len(one.own) > 80 for one in found)
    shared = max(len(a.own & b.own) for a, b in itertools.combinations(found, 2))
    assert shared <= 5  # of the hundred and more that each has


def test_two_who_found_the_shortest_answers_are_no_pair(tmp_path):
    for student in ("ann", "bob"):
        handed_in(tmp_path, student, *ways.SHORTEST)
    assert names(tmp_path) == []


def test_the_courses_own_answer_and_the_lessons_code_are_nobodys(tmp_path):
    solved = json.loads(build.solution_notebook(GIVEN))
    demonstrations = ["".join(cell["source"]) for cell in solved["cells"] if cell["cell_type"] == "code"]
    for student in ("ann", "bob"):
        handed_in(tmp_path, student, None, None, None, form=solved, more=demonstrations[:12])
    assert names(tmp_path) == []


def test_a_copy_is_found_whatever_was_done_to_its_looks(tmp_path):
    independent(tmp_path)
    for n in (0, 2, 4, 5):
        copied = (ways.RATE[n], ways.PICK[n], ways.laid_out(ways.renamed(ways.SHARP[n])))
        handed_in(tmp_path, f"zcopy{n}", *copied)
    assert sorted(names(tmp_path)) == [(f"own{n}", f"zcopy{n}") for n in (0, 2, 4, 5)]


def test_a_copy_with_changes_here_and_there_is_found(tmp_path):
    changed = ways.SHARP[2].replace("    v = torch.ones", "    print(n_iterations)\n    v = torch.ones")
    changed = changed.replace("product = (grad * vector).sum()", "product = grad @ vector")
    handed_in(tmp_path, "ann", None, None, ways.SHARP[2])
    handed_in(tmp_path, "bob", None, None, changed)
    handed_in(tmp_path, "eve", None, None, ways.SHARP[0])
    assert names(tmp_path) == [("ann", "bob")]


def test_a_cell_beside_the_answers_counts_too(tmp_path):
    helper = ways.SHARP[5].replace("sharpness", "helper")
    handed_in(tmp_path, "ann", None, None, ways.SHARP[1], more=[helper])
    handed_in(tmp_path, "bob", None, None, ways.SHARP[0], more=["x = 1", ways.renamed(helper)])
    assert names(tmp_path) == [("ann", "bob")]


def test_larger_overlap_comes_first(tmp_path):
    handed_in(tmp_path, "ann", None, None, ways.SHARP[2])
    handed_in(tmp_path, "bob", None, None, ways.SHARP[2], more=[ways.SHARP[5].replace("sharpness", "other")])
    handed_in(tmp_path, "cyd", ways.RATE[4], ways.PICK[4], ways.SHARP[0])
    handed_in(tmp_path, "dan", ways.RATE[3], ways.PICK[5], ways.SHARP[0])
    assert names(tmp_path) == [("ann", "bob"), ("cyd", "dan")]


def test_larger_overlap_comes_before_more_that_is_shared():
    def work(student, *parts):
        own = tuple(Shingle(f"{name}{n}".encode(), (1,)) for name, count in parts for n in range(count))
        return similar.Work(student, (similar.Part("1.1", "", own, 45),))

    much = [work(name, ("much", 200), (name, 200)) for name in ("a", "b")]
    whole = [work(name, ("whole", 100)) for name in ("c", "d")]
    assert [one.one.student for one in similar.pairs([*much, *whole])] == ["c", "a"]


def test_what_many_have_counts_little(tmp_path):
    for n in range(12):
        handed_in(tmp_path, f"s{n:02}", None, None, ways.SHARP[2])  # as it stood in a lecture, say
    assert names(tmp_path) == []
    for n in (10, 11):
        (tmp_path / f"s{n}" / "01.ipynb").unlink()
        (tmp_path / f"s{n}").rmdir()
        handed_in(tmp_path, f"s{n}", None, None, ways.SHARP[4])
    assert names(tmp_path) == [("s10", "s11")]


def test_what_a_group_hands_round_is_found_and_what_most_have_is_not(tmp_path):
    for n in range(6):
        handed_in(tmp_path, f"ring{n}", None, None, ways.SHARP[2])
    for n in range(6):
        handed_in(tmp_path, f"own{n}", None, ways.PICK[n], ways.SHARP[0] if n == 0 else None)
    assert {name for pair in names(tmp_path) for name in pair} == {f"ring{n}" for n in range(6)}


def test_what_is_no_notebook_is_nobodys_copy(tmp_path):
    for student in ("ann", "bob"):
        (tmp_path / student).mkdir()
        (tmp_path / student / "a.ipynb").write_text("{" * 1000)
        handed_in(tmp_path, f"{student}2", None, None, "def sharpness(:\n" + "((( '" * 200)
    names(tmp_path)


def test_two_hundred_students_take_seconds(tmp_path):
    for n in range(200):
        both = n // 2
        own = f"\n\ndef note_{n}():\n" + "\n".join(f"    v{k} = {k * both} + len('x') ** {k + both}" for k in range(20))
        handed_in(tmp_path, f"s{n:03}", ways.RATE[n % 6], ways.PICK[n % 5], ways.SHARP[n % 6] + own)
    start = time.process_time()
    found = similar.works(tmp_path, RELEASE, LESSON)
    pairs = similar.pairs(found)
    similar_page.page(pairs, "Lesson 01", len(found))
    first = sorted((one.one.student, one.other.student) for one in pairs[:100])
    assert first == [(f"s{n:03}", f"s{n + 1:03}") for n in range(0, 200, 2)]
    assert time.process_time() - start < 10
