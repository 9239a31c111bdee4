"""Tests that share what they make stay together; what takes minutes is cut, and begun first."""

from dataclasses import dataclass

import parts
import pytest


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/test_units.py::test_seconds[1.5-2]", "tests/test_units.py"),
        ("tests/test_browser.py::test_every_output_can_be_read[03-dark]", "tests/test_browser.py::[03"),
        ("tests/test_browser.py::test_predictions[03]", "tests/test_browser.py::[03"),
        ("tests/test_checks.py::test_the_reference_passes[2-10.4-cheapest]", "tests/test_checks.py::10.4"),
        ("tests/test_checks.py::test_a_wrong_answer_fails[10.4-the dearest]", "tests/test_checks.py::10.4"),
        ("tests/test_checks.py::test_names_are_unique[name]", "tests/test_checks.py"),
        ("tests/test_gpu_check.py::test_every_lesson_runs", "tests/test_gpu_check.py::every_lesson"),
    ],
)
def test_a_file_is_a_part_unless_it_is_cut(nodeid, part):
    assert parts.part(nodeid) == part


@dataclass
class _Mark:
    name: str


@dataclass
class _Item:
    nodeid: str
    marks: tuple = ()

    def iter_markers(self):
        return map(_Mark, self.marks)


def test_the_part_of_the_longest_test_comes_first_and_keeps_its_order():
    items = [
        _Item("test_a.py::test_1"),
        _Item("test_b.py::test_1"),
        _Item("test_c.py::test_1", ("notebook", "slow")),
        _Item("test_b.py::test_2", ("slow",)),
        _Item("test_browser.py::test_1[03]", ("alone", "browser")),
    ]
    ordered = [item.nodeid for item in sorted(items, key=parts.begins(items))]
    assert ordered == [items[4].nodeid, items[2].nodeid, items[1].nodeid, items[3].nodeid, items[0].nodeid]
