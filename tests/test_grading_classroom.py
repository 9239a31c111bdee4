"""The page of a class: how often, in which way, and what a person has to look at."""

from test_grading_feedback import EVIL, LESSON, Tags, row

from labkit.grading import classroom, review
from labkit.grading.lateness import Total


def page(*rows, notes=None):
    return classroom.page(rows, LESSON, "Lesson 01", review.points(rows, notes or {}))


def test_the_class_sees_how_often_and_what():
    one = "wrong result (case 1 of 5)\nreturned  1\nexpected  3\nlikely    The sign is turned round."
    two = "wrong result (case 4 of 5)\nreturned  2\nexpected  3\nlikely    The sign is turned round."
    failing = [row("a", message=two), row("b", message=one), row("e", message=one)]
    html = page(*failing, row("c", status="ok"), row("d", status="timeout", message="", seconds=9.0))
    assert "5 students" in html
    assert "1 of 5 right; 1 took too long, 3 not right yet" in html
    assert "<td>3</td><td>wrong result. The sign is turned round.</td>" in html
    assert '<span class="soft">returned</span> 1<br>' in html  # the commonest of the three
    assert "Median 0.1 s, longest 9 s." in html


def test_points_are_weighted_as_a_policy_says_and_lateness_stands_beside_them():
    late = "Handed in 1 h late: 10 % is taken off."
    total = Total(points=7.5, max_points=20, deduction=0.75, grade=3.38, max_grade=10, late=late)
    html = page(row("ann", status="ok", points=3, total=total, weight=2.5), row("ann", "1.2", total=total))
    assert "median 7.5, highest 7.5 of 20 points" in html
    assert f"<td>7.5<br><small>grade 3.38 of 10</small><br><small>{late}</small></td>" in html
    assert "1.1 counts 2.5 times. The lesson is worth 10: a grade is 10 / 20 of what lateness leaves" in html
    assert "counts" not in page(row("ann", total=Total(points=0, max_points=3, grade=0, max_grade=3), weight=1))


def test_errors_of_one_type_and_other_texts_are_two_ways_to_fail():
    said = [f"raised TypeError (case 1 of 2)\nerror  TypeError: {why}" for why in ("one", "two", "one")]
    html = page(*(row(str(i), status="error", message=each) for i, each in enumerate(said)))
    assert "<td>2</td><td>raised TypeError. TypeError: one</td>" in html
    assert "<td>1</td><td>raised TypeError. TypeError: two</td>" in html


def test_the_page_of_a_class_leads_to_each_student_and_nowhere_else():
    names = ("ann", "a b#c?d", EVIL)
    found = Tags(page(*(row(name, message=EVIL) for name in names), notes={EVIL: [EVIL]}))
    assert "feedback/a%20b%23c%3Fd.html" in found.links
    assert len(found.links) == 3
    assert all(link.startswith("feedback/") and link.endswith(".html") and link.count("/") == 1 for link in found.links)
    assert not found.tags & {"script", "img", "link", "iframe"}
    assert not {name for name in found.attributes if name.startswith("on") or name == "src"}


def test_what_a_person_has_to_look_at_comes_first():
    html = page(row("ann", status="ungraded", message="The grader failed"), row("bob"), notes={"bob": ["Twice there."]})
    assert html.index("For you to look at") < html.index("1.1 · ")
    assert "1 ungraded" in html
    assert "Twice there." in html
    assert "For you to look at" not in page(row("bob"))


def test_many_points_of_a_kind_are_folded():
    html = page(*(row(str(i), status="ungraded") for i in range(30)))
    assert "<details><summary>30 ungraded" in html
    assert "<details open><summary>1 ungraded" in page(row(status="ungraded"))


def test_of_many_ways_to_be_wrong_the_commonest_are_shown_first():
    n = classroom._MOST_KINDS + 2
    said = [f"way {way}" for way in range(n) for _ in range(way + 1)]
    html = page(*(row(str(i), message=each) for i, each in enumerate(said)))
    at = [html.find(f"<td>way {way}.</td>") for way in reversed(range(n))]
    assert at[: n - 2] == sorted(at[: n - 2])
    assert at[0] > 0
    assert at[n - 2 :] == [-1, -1]
