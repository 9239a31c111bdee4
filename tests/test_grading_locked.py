"""One labkit at a time in a folder of grades."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.course import CourseError
from labkit.grading import locked


def test_who_comes_second_waits_or_gets_a_sentence(tmp_path):
    said = pytest.raises(CourseError, match="Another labkit is at work in .*out: say it again when that is done")
    with locked.held(tmp_path / "out"), said, locked.held(tmp_path / "out", 0.1):
        raise AssertionError("both have it")
    with locked.held(tmp_path / "out", 0.0):
        pass


def test_whoever_fails_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), locked.held(tmp_path):
        1 / 0  # noqa: B018
    with locked.held(tmp_path, 0.0):
        pass


def test_of_many_at_once_none_is_lost(tmp_path):
    file = tmp_path / "n"
    file.write_text("0")

    def one(_):
        with locked.held(tmp_path):
            file.write_text(str(int(file.read_text()) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    assert file.read_text() == "24"
