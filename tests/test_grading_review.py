"""What a person has to look at: all of it, the gravest first, and nothing that was looked at."""

from test_grading_feedback import row

from labkit.grading import review

HIDDEN = "right on the cases of class, and not on others of the same kind"


def kinds(*rows, notes=None):
    return [(one.kind, one.student, one.exercise) for one in review.points(rows, notes or {})]


def test_the_gravest_comes_first_and_then_students_by_name():
    rows = [row("bob", message=HIDDEN), row("dan", status="tampered"), row("cleo", status="ungraded")]
    rows += [row("ann", message="right results, but short of the bar"), row("eve"), row("fay", status="ok")]
    expected = [("ungraded", "cleo", "1.1"), ("tampered", "dan", "1.1"), ("near", "ann", "1.1"), ("near", "bob", "1.1")]
    assert kinds(*rows, notes={"gil": ["odd"]}) == [*expected, ("noted", "gil", "")]


def test_a_notebook_that_cannot_be_read_is_one_thing_to_look_at():
    rows = [row("ann", exercise, "unreadable", message="cut off") for exercise in ("1.1", "1.2", "1.3")]
    assert kinds(*rows) == [("unreadable", "ann", "")]


def test_what_was_set_by_hand_has_been_looked_at():
    assert kinds(row(status="ungraded", why="Read it.")) == []


def test_a_summary_names_the_first_of_each_kind_and_obeys_no_stranger():
    rows = [row(f"s{i}", status="ungraded", message="\x1b[2J" + "x" * 500 + "\nsecond") for i in range(7)]
    lines = review.summary(review.points(rows, {}))
    assert lines[0].startswith("7 ungraded: ")
    assert len(lines) == 1 + 5 + 1
    assert lines[1].startswith("    s0 1.1: \\x1b[2J")
    assert len(lines[1]) <= 170
    assert lines[-1] == "    and 2 more"


def test_notes_are_kept_for_pages_that_are_made_later(tmp_path):
    assert review.notes(tmp_path) == {}
    review.keep(tmp_path, {"ann": ("one", "two"), "bob": ()})
    assert review.notes(tmp_path) == {"ann": ["one", "two"]}
