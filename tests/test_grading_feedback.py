"""The pages: nothing of a student's can run in them, no hidden input is told, and a class is summed up."""

from html.parser import HTMLParser

import pytest

from labkit.checks import exercises
from labkit.grading import feedback, page, review
from labkit.grading.lateness import Total

LESSON = [one for one in exercises() if one.number.startswith("1.")]
EVIL = '<script>alert(1)</script><img src=x onerror="alert(1)">\'"&'


def row(student="ann", exercise="1.1", status="wrong", points=0, message="wrong result (case 1 of 5)", **more):
    both = {"student": student, "exercise": exercise, "status": status, "points": points}
    return both | {"max_points": 3, "seconds": 0.1, "message": message, "inside": False, **more}


class Tags(HTMLParser):
    """Which tags, attributes and targets of links a page has, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.links, self.text = set(), set(), set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value for name, value in attrs if name == "href"}

    def handle_data(self, data):
        self.text += data


def student(*rows):
    return feedback.student_page(rows[0]["student"], rows, LESSON, "Lesson 01")


def test_what_a_student_or_a_process_wrote_is_text():
    mine = row(EVIL, message=f"{EVIL}\nreturned  {EVIL}", code=EVIL, printed=EVIL, why=EVIL)
    html = student(mine)
    found = Tags(html)
    assert not found.tags & {"script", "img", "link", "iframe", "a"}
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert "default-src 'none'" in html
    assert found.text.count(EVIL) == 2 + 5  # title, head; message, label, code, printed, why


def test_signs_that_turn_a_line_round_or_command_a_terminal_are_written_out():
    printed = "\x1b[31mred\x1b[0m\n  0%|  | 0/9\r100%|##| 9/9\rdone\r\nnext\x07"
    found = Tags(student(row(message="a\u202eb", printed=printed)))
    assert "a\\u202eb" in found.text
    assert "red\ndone\nnext\\x07" in found.text


def test_a_page_says_points_status_message_and_a_hint_where_one_helps():
    right = row(exercise="1.2", status="ok", points=3, message="all 6 cases right")
    html = student(row(), right, row(exercise="1.3", status="died"))
    assert "3 of 9 points" in html
    assert "1 of 3 exercises right" in html
    assert html.count("A hint for this exercise") == 1
    assert "wrong result (case 1 of 5)" in html
    assert "ended its own process" in html


def test_a_page_shows_the_case_the_line_that_raised_and_what_was_printed():
    message = "raised ZeroDivisionError (case 1 of 5)\ncall   f(x=1)\nerror  division by zero\nand no label"
    html = student(row(status="error", message=message, code="> 2      return 1 / 0", printed="so far\n"))
    assert "<dt>call</dt><dd>f(x=1)</dd><dt>error</dt><dd>division by zero</dd>" in html
    assert "<p>raised ZeroDivisionError (case 1 of 5)\nand no label</p>" in html
    assert "<pre>&gt; 2      return 1 / 0</pre>" in html
    assert "<summary>What your code printed, in the cases of class</summary><pre>so far</pre>" in html
    assert "What your code printed" not in student(row(printed="\n"))


def test_only_what_was_found_is_called_a_likely_cause():
    general = LESSON[0].compare.why
    assert general
    html = student(row(message=f"wrong result (case 1 of 5)\nreturned  1\nlikely  {general}"))
    assert f"<dt>hint</dt><dd>{page.text(general)}</dd>" in html
    assert "likely" not in html
    assert "<dt>likely</dt>" in student(row(message=f"wrong result\nreturned  1\nlikely  It is zero. {general}"))
    assert "trap" not in student(row())


def test_points_set_by_hand_are_not_contradicted_by_the_verdict():
    html = student(row(points=3, why="read by a person"))
    assert "points set by hand · 3 of 3 points</p><p>read by a person</p>" in html
    assert "not right yet" not in html
    assert "1 of 1 point<" in student(row(points=1) | {"max_points": 1})


def test_what_was_odd_about_a_notebook_reaches_its_student(tmp_path):
    review.keep(tmp_path, {"ann": ["b.ipynb was graded; also handed in: a.ipynb."]})
    feedback.write([row("ann"), row("bob")], LESSON, "Lesson 01", tmp_path)
    pages = {name: (tmp_path / "feedback" / f"{name}.html").read_text() for name in ("ann", "bob")}
    assert "b.ipynb was graded; also handed in: a.ipynb." in pages["ann"]
    assert "also handed in" not in pages["bob"]
    assert "1 several: several notebooks" in (tmp_path / "class.html").read_text()


def test_what_lateness_takes_off_stands_apart():
    total = Total(
        points=3, max_points=3, grade=2.4, max_grade=3, deduction=0.6, late_s=90000, late="Handed in 1 day 1 h late."
    )
    html = student(row(status="ok", points=3, total=total))
    assert "<b>3 of 3 points</b>" in html
    assert "Handed in 1 day 1 h late. (0.6 points)" in html
    assert "Grade: <b>2.4 of 3</b>" in html
    in_time = Total(points=3, max_points=3, grade=3, max_grade=3)
    assert "Grade" not in student(row(status="ok", points=3, total=in_time))


def test_how_a_weighted_total_came_about_is_told_line_by_line():
    """3 of 3, and twice 2 of 3: 7 of 9; a tenth is taken off, and 6.3 of 9 are 14 of 20."""
    total = Total(points=7, max_points=9, deduction=0.7, grade=14, max_grade=20, late="Handed in 1 h late: 10 %.")
    rows = [row(status="ok", points=3, total=total, weight=1), row(exercise="1.2", points=2, total=total, weight=2)]
    html = student(*rows)
    for line in (
        "<td>1.1</td><td>3 of 3</td><td>1</td><td>3 of 3</td>",
        "<td>1.2</td><td>2 of 3</td><td>2</td><td>4 of 6</td>",
        "<td>together</td><td></td><td></td><td>7 of 9</td>",
        "<td>taken off for lateness</td><td></td><td></td><td>0.7</td>",
        "<td>what is left</td><td></td><td></td><td>6.3 of 9</td>",
        "<td>the lesson is worth 20</td><td></td><td>20 / 9</td><td>14 of 20</td>",
    ):
        assert f"<tr>{line}</tr>" in html
    plain = Total(points=5, max_points=6, grade=5, max_grade=6)
    assert "<table>" not in student(*(one | {"total": plain, "weight": 1} for one in rows))
    weighed = student(*(one | {"total": Total(points=7, max_points=9, grade=7, max_grade=9)} for one in rows))
    assert "<td>together</td>" in weighed
    assert "lateness" not in weighed
    assert "worth" not in weighed


def test_an_exercise_that_is_not_of_the_course_has_a_page_as_well():
    assert "<h2>cell-abc</h2>" in student(row(exercise="cell-abc"))


def test_what_was_measured_inside_is_marked():
    marked, plain = (feedback.student_page("ann", [row(inside=inside)], LESSON, "x") for inside in (True, False))
    assert "beside your own code" in marked
    assert "beside your own code" not in plain


@pytest.mark.parametrize("status", sorted(page.SAID))
def test_every_status_has_words(status):
    assert page.SAID[status] in student(row(status=status))


def test_files_are_written_for_everyone(tmp_path):
    feedback.write([row("ann"), row("bob")], LESSON, "Lesson 01", tmp_path)
    assert sorted(path.name for path in (tmp_path / "feedback").iterdir()) == ["ann.html", "bob.html"]
    assert (tmp_path / "class.html").exists()
    feedback.write([row("bob")], LESSON, "Lesson 01", tmp_path)
    assert [path.name for path in (tmp_path / "feedback").iterdir()] == ["bob.html"]
