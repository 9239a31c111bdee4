"""The page of similar pairs, and the command that writes it."""

import json

import pytest
import ways
from test_grading_similar import LESSON, RELEASE, handed_in

from labkit.grading import similar, similar_page


@pytest.fixture
def copied(tmp_path):
    """A graded class with one pair, and one name that is no plain text."""
    folder = tmp_path / "in"
    handed_in(folder, "ann", None, None, ways.SHARP[2] + "\n# <script>")
    handed_in(
        folder, "bob <b>", None, None, ways.renamed(ways.SHARP[2]).replace("return out", "print(1)\n        return out")
    )
    handed_in(folder, "eve", None, None, ways.SHARP[0])
    out = tmp_path / "out"
    out.mkdir()
    told = {"lesson": LESSON.name, "title": "Lesson 01", "submissions": str(folder)}
    (out / "run.json").write_text(json.dumps(told))
    return folder, out


def test_both_stand_side_by_side_with_their_own_words_and_what_both_have_marked(copied):
    found = similar.works(copied[0], RELEASE, LESSON)
    page = similar_page.page(similar.pairs(found), "Lesson 01", len(found))
    assert "3 students; 1 pair shares much." in page
    assert "A review aid, and no evidence." in page
    assert "<span class=both>    def hessian_times(vector):</span>" in page
    assert "<span>        print(1)</span>" in page or "<span class=both>        print(1)</span>" not in page
    assert "bob &lt;b&gt;" in page
    assert "<script>" not in page
    assert "eve" not in page


def test_a_page_of_a_class_without_pairs_says_so():
    assert "2 students; no pair shares much." in similar_page.page([], "Lesson 01", 2)


def test_the_page_ends_somewhere(copied):
    found = similar.pairs(similar.works(copied[0], RELEASE, LESSON)) * 150
    page = similar_page.page(found, "Lesson 01", 3)
    assert "150 pairs share much, of which the first 100 are here." in page
    assert page.count("<section") == 100


def test_the_command(labkit, copied, tmp_path):
    folder, out = copied
    code, said, _ = labkit("similar", out)
    assert code == 0
    assert "shared  ann, bob <b>  (1.3)" in said
    assert f"3 students; 1 pair shares much: {out / 'similar.html'} has them side by side." in said
    assert "no evidence" in said
    assert "bob" in (out / "similar.html").read_text()
    folder.rename(tmp_path / "moved")
    code, _, error = labkit("similar", out)
    assert (code, error) == (2, f"{folder} is no folder of submissions.\n")
    assert labkit("similar", out, "--submissions", tmp_path / "moved")[0] == 0
    code, _, error = labkit("similar", tmp_path)
    assert (code, error) == (2, f"{tmp_path} holds no run.json: it is what labkit grade writes.\n")
