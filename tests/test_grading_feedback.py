"""The pages: nothing of a student's can run in them, no hidden input is told, and a class is summed up."""

from html.parser import HTMLParser

import pytest

from labkit.checks import exercises
from labkit.grading import feedback

LESSON = [one for one in exercises() if one.number.startswith("1.")]
EVIL = '<script>alert(1)</script><img src=x onerror="alert(1)">\'"&'


def row(student="ann", exercise="1.1", status="wrong", points=0, message="wrong result (case 1 of 5)", **more):
    both = {"student": student, "exercise": exercise, "status": status, "points": points}
    return both | {"max_points": 3, "seconds": 0.1, "message": message, "inside": False, **more}


class Tags(HTMLParser):
    """Which tags and attributes a page has."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_what_a_student_or_a_process_wrote_is_text():
    mine = feedback.student_page(EVIL, [row(EVIL, message=EVIL)], LESSON, "Lesson 01")
    for page in (mine, feedback.class_page([row(EVIL, message=EVIL)], LESSON, EVIL)):
        found = Tags(page)
        assert not found.tags & {"script", "img", "link", "iframe"}
        assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href")}
        assert "default-src 'none'" in page


def test_a_page_says_points_status_message_and_a_hint_where_one_helps():
    right = row(exercise="1.2", status="ok", points=3, message="all 6 cases right")
    rows = [row(), right, row(exercise="1.3", status="died")]
    page = feedback.student_page("ann", rows, LESSON, "Lesson 01")
    assert "3 of 9 points" in page
    assert page.count("A hint") == 1
    assert "wrong result (case 1 of 5)" in page
    assert "ended its own process" in page


def test_what_was_measured_inside_is_marked():
    marked, plain = (feedback.student_page("ann", [row(inside=inside)], LESSON, "x") for inside in (True, False))
    assert "own process" in marked
    assert "own process" not in plain


def test_the_class_sees_how_often_and_what():
    one = "wrong result (case 1 of 5)\nreturned  1\nlikely    The sign is turned round."
    two = "wrong result (case 4 of 5)\nreturned  2\nlikely    The sign is turned round."
    rows = [row("a", message=one), row("b", message=two), row("c", status="ok"), row("d", status="timeout")]
    page = feedback.class_page(rows, LESSON, "Lesson 01")
    assert "1 of 4 right; 1 took too long, 2 not right yet" in page
    assert "<td>2</td><td>wrong result. The sign is turned round.</td>" in page


@pytest.mark.parametrize("status", sorted(feedback.SAID))
def test_every_status_has_words(status):
    assert feedback.SAID[status] in feedback.student_page("ann", [row(status=status)], LESSON, "x") or status == "ok"


def test_files_are_written_for_everyone(tmp_path):
    feedback.write([row("ann"), row("bob")], LESSON, "Lesson 01", tmp_path)
    assert sorted(path.name for path in (tmp_path / "feedback").iterdir()) == ["ann.html", "bob.html"]
    assert (tmp_path / "class.html").exists()
