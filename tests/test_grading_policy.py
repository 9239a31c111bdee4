"""A course's policy as TOML: what it means, and a sentence with the line for whatever is wrong with it."""

from datetime import datetime, timedelta, timezone

import pytest

from labkit.course import CourseError
from labkit.grading import policy
from labkit.grading.policy import Leave, Terms

DUE = datetime(2027, 3, 1, 23, 59, tzinfo=timezone(timedelta(hours=1)))
FULL = """# Everything that there is.
[late]
grace_minutes = 15
percent_per_day = 10
most_percent = 50

[late.students.ann]
grace_minutes = 120

[lessons.01]
due = 2027-03-01T23:59:00+01:00
worth = 10
of = "possible"
weights = {"1.2" = 2}

[lessons.01.students]
Ann = {due = 2027-03-04T12:00:00Z}
bob = {excused = true}

[lessons.14_zero_memory_math]
steps = [{after_hours = 24, percent = 30}, {after_hours = 0, percent = 10}]
"""


_STEP = "{{after_hours = {}, percent = {}}}"


def loaded(tmp_path, text, lesson="01_lr_warmup"):
    path = tmp_path / "course.toml"
    path.write_text(text, encoding="utf-8")
    return policy.load(path, lesson, ["1.1", "1.2"])


def test_a_lesson_comes_before_what_holds_for_every_lesson(tmp_path):
    ann = Leave(grace_minutes=120, due=datetime(2027, 3, 4, 12, tzinfo=timezone.utc))
    assert loaded(tmp_path, FULL) == Terms(
        **{"due": DUE, "grace_minutes": 15, "percent_per_day": 10, "most_percent": 50, "of": "possible", "worth": 10},
        **{"weights": {"1.2": 2}, "students": {"ann": ann, "bob": Leave(excused=True)}},
    )
    other = loaded(tmp_path, FULL, "14_zero_memory_math")
    assert (other.steps, other.percent_per_day, other.due) == (((0, 10), (24, 30)), 0, None)
    assert loaded(tmp_path, FULL, "02_progressive_resizing").percent_per_day == 10
    assert loaded(tmp_path, "") == Terms()


@pytest.mark.parametrize(
    ("late_h", "percent"), [(0, 0), (-3, 0), (0.001, 10), (24, 10), (24.01, 20), (48, 20), (96, 40), (120.1, 45)]
)
def test_percent_per_day_begun_up_to_the_most(late_h, percent):
    terms = Terms(percent_per_day=10, most_percent=45)
    assert terms.percent_off(late_h * 3600) == percent


@pytest.mark.parametrize(("late_h", "percent"), [(0, 0), (1, 5), (24, 5), (24.1, 30), (1000, 60)])
def test_steps(late_h, percent):
    terms = Terms(steps=((0, 5), (24, 30), (72, 90)), most_percent=60)
    assert terms.percent_off(late_h * 3600) == percent


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[late]\n\ngrace = 3\n", 3, "'grace' is not known here; did you mean grace_minutes?"),
        ("x = 3\n", 1, "'x' is not known here; there may be late, lessons."),
        ("late = 3\n", 1, "late is a table: write [late] above"),
        ("\n[late]\npercent_per_day = 110", 3, "percent_per_day = 110 will not do: give a number from 0 to 100."),
        ("[late]\nmost_percent = nan", 2, "most_percent = nan will not do"),
        ("[late]\nmost_percent = true", 2, "most_percent = True will not do"),
        ('[late]\ngrace_minutes = "15"', 2, "grace_minutes = '15' will not do: give a number of minutes."),
        ("[late]\nof = 'all'", 2, 'give "reached" or "possible"'),
        ("[late]\ndue = 2027-03-01T23:59:00Z", 2, "'due' is not known here"),
        ("[lessons.01]\ndue = 2027-03-01T23:59:00", 2, "due = 2027-03-01T23:59:00 will not do: give a date and a time"),
        ("[lessons.01]\ndue = 2027-03-01", 2, "with its zone, such as 2027-03-01T23:59:00+01:00."),
        ("[lessons.01]\ndue = '2027-03-01T23:59:00Z'", 2, "will not do"),
        ("[lessons.01]\nworth = 0", 2, "worth = 0 will not do: give a number above 0."),
        ("[lessons.99]\n", 1, "99"),
        ("[lessons.02]\n[lessons.03]\ndeu = 1\n", 3, "did you mean due?"),
        ("[lessons.01]\nworth = 1\n[lessons.01.weights]\n1.2 = 2\n", 4, '"1.2" = 2'),
        ('[lessons.01.weights]\n"1.2" = -1\n', 2, "-1 is no weight"),
        ('[lessons.01.weights]\n"1.2" = 1\n"1.9" = 2\n', 3, "'1.9' is not known here; did you mean"),
        ("[late.students.ann]\nexcused = 'yes'\n", 2, "give true or false"),
        ("[late]\nstudents = 3\n", 2, "students is a table: write [late.students]"),
        ("[late.students]\nann = 3\n", 2, "ann is a table"),
        ("[late]\nsteps = []\n", 2, "steps is a list such as"),
        ("[late]\npercent_per_day = 1\nsteps = [{after_hours=0, percent=1}]\n", 3, "not both"),
        (
            "[late]\nsteps = [\n  {after_hours = 0, percent = 10},\n  {after_hours = 5, percent = -1},\n]\n",
            2,
            "percent = -1",
        ),
        ("[late]\nsteps = [{hours = 0, percent = 10}]\n", 2, "steps is a list such as"),
        (
            f"[late]\nsteps = [{_STEP.format(0, 50)}, {_STEP.format(24, 10)}]\n",
            2,
            "50 % after 0 hours and 10 % after 24",
        ),
        (f"[late]\nsteps = [{_STEP.format(5, 10)}, {_STEP.format(5, 20)}]\n", 2, "give each step once"),
        ('[lessons.01]\nworth = 1\n[lessons."01_lr_warmup"]\nworth = 2\n', 3, "is there before, as '01'"),
        ("[lessons.02]\nworth = 1\n[lessons.2]\nworth = 2\n", 3, "'2' is there before, as '02'"),
        ("[late.students.Ann]\nexcused = true\n[late.students.ann]\n", 3, "'ann' is there before, as 'Ann'"),
        ("[lessons.01.students]\nAnn = {excused = true}\n'ann ' = {}\n", 3, "'ann ' is there before, as 'Ann'"),
    ],
)
def test_what_is_wrong_is_a_sentence_with_its_line(tmp_path, text, line, says):
    with pytest.raises(CourseError) as raised:
        loaded(tmp_path, text)
    assert f"course.toml, line {line}: " in str(raised.value)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[late\n", "is no valid TOML: Expected ']' at the end of a table declaration (at line 1, column 6)."),
        (b"a = 1\na = 2\n", "at line 2"),
        (b"a = " + b"[" * 5000, "is no valid TOML"),
        (b"a = '\xff'", "is not UTF-8 text (byte 5)."),
        (b" " * 2_000_000, "it is no policy"),
    ],
)
def test_what_is_no_toml_is_a_sentence(tmp_path, data, says):
    (tmp_path / "course.toml").write_bytes(data)
    with pytest.raises(CourseError) as raised:
        policy.load(tmp_path / "course.toml", "01_lr_warmup", [])
    assert says in str(raised.value)


def test_a_policy_that_is_not_there_or_is_a_folder_is_a_sentence(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(CourseError, match="cannot be read"):
            policy.load(path, "01_lr_warmup", [])


def test_windows_writes_it_too(tmp_path):
    path = tmp_path / "course.toml"
    path.write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    assert policy.load(path, "01_lr_warmup", ["1.2"]).due == DUE


def test_it_is_found_beside_the_roster_where_none_is_named(tmp_path):
    roster = tmp_path / "class.csv"
    assert policy.find(None, None) is None
    assert policy.find(None, roster) is None
    (tmp_path / "course.toml").touch()
    assert policy.find(None, roster) == tmp_path / "course.toml"
    assert policy.find(tmp_path / "other.toml", roster) == tmp_path / "other.toml"


def test_steps_that_fall_cost_no_less_for_being_later():
    terms = Terms(steps=((0, 50), (24, 10)))
    assert [terms.percent_off(late_h * 3600) for late_h in (1, 25)] == [50, 50]
