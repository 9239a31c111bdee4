"""When a student handed in: what platforms write, and what collecting left."""

import json
from datetime import datetime, timezone

import pytest

from labkit.course import CourseError
from labkit.grading import handins, roster
from labkit.grading.handins import Handin

NOON = datetime(2027, 3, 1, 12, 0, 30, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text",
    [
        *("2027-03-01 12:00:30.466000000 Z", "2027-03-01 04:00:30 -0800", "2027-03-01 12:00:30 UTC"),
        *("2027-03-01T13:00:30+01:00", "2027-03-01T12:00:30Z", " 2027-03-01T12:00:30.5+0000 "),
    ],
)
def test_times_as_platforms_write_them(text):
    assert handins.moment(text) == NOON


@pytest.mark.parametrize(
    "text",
    ["", "2027-03-01 12:00:30", "2027-03-01", "1 March 2027", "2027-13-01 12:00:30 Z", "0001-01-01 00:00 +14:00"],
)
def test_a_time_without_a_zone_or_none_at_all_is_none(text):
    assert handins.moment(text) is None


@pytest.mark.parametrize(("text", "late_s"), [("26:03:04", 93784), ("00:00:00", 0), ("", None), ("1 day", None)])
def test_lateness_in_hours_minutes_seconds(text, late_s):
    assert handins.lateness_s(text) == late_s


def test_a_row_of_gradescopes_scores():
    row = {"sid": "a1", "submission time": "2027-03-01 04:00:30 -0800", "lateness (h:m:s)": "01:00:00"}
    assert handins.of_row(row) == Handin(late=True, at=NOON, late_s=3600)
    assert handins.of_row({"sid": "a1", "submission time": "", "lateness (h:m:s)": ""}) == Handin()
    assert handins.of_row({"lateness": "02:00:00", "lateness (h:m:s)": "01:00:00"}).late_s == 3600  # Gradescope's own


def test_moodles_times_are_read_where_they_have_a_zone_and_else_it_is_told(tmp_path):
    (tmp_path / "m.csv").write_text(
        "Email address,Last modified (submission)\na1,2027-03-01T13:00:30+01:00\n"
        'b2,"Monday, 1 March 2027, 1:00 PM"\nc3,-\n'
    )
    found = roster.load(tmp_path / "m.csv")
    assert handins.of_class(tmp_path, found)["a1"] == Handin(at=NOON)
    [said] = handins.unread(found)
    assert said.startswith("1 time in the roster's 'last modified (submission)' was not read, such as 'Monday, 1 March")
    assert handins.unread(None) == handins.unread(roster.Roster(found.students[::2])) == []


def known(tmp_path, students, **more):
    (tmp_path / "collected.json").write_text(json.dumps({"students": students} | more))
    (tmp_path / "r.csv").write_text(
        "SID,Submission Time,Lateness (H:M:S)\na1,2027-02-02 00:00:00 Z,01:00:00\nb2,,00:00:00\n"
    )
    return handins.of_class(tmp_path, roster.load(tmp_path / "r.csv"))


def test_what_collecting_found_comes_before_what_a_roster_says(tmp_path):
    ann = {"student": "A1", "status": "collected", "late": False, "handed_in": NOON.isoformat(), "late_s": 7200}
    eve = {"student": "eve", "status": "refused", "late": True}
    assert known(tmp_path, [ann, eve]) == {"a1": Handin(late=True, at=NOON, late_s=7200), "b2": Handin(late_s=0)}
    assert handins.of_class(tmp_path / "none", None) == {}


def test_a_report_of_before_there_were_times_is_read(tmp_path):
    ann = {"student": "b2", "status": "collected", "late": True}
    assert known(tmp_path, [ann])["b2"] == Handin(late=True, late_s=0)


@pytest.mark.parametrize("students", [3, [3], [{}]])
def test_a_report_that_is_none_is_a_sentence(tmp_path, students):
    with pytest.raises(CourseError, match=r"collected.json cannot be read"):
        known(tmp_path, students)


def test_a_folder_that_is_half_collected_is_refused(tmp_path):
    with pytest.raises(CourseError, match="is half collected: .* Collect again."):
        known(tmp_path, [], unfinished=True)
