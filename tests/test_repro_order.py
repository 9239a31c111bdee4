"""Cells that ran in another order than they stand in, or with another text."""

import json

import pytest

from labkit.course import CourseError
from labkit.repro.order import code_cells, out_of_order

CELLS = ["import math\nx = 1", "x = x + 1", "y = x * 10", "def f():\n    return y", "print(f())"]
A, B, C, D, E = CELLS


def found(ran, written=CELLS):
    return [(fault.count, fault.cell, fault.name) for fault in out_of_order(ran, written)]


@pytest.mark.parametrize("ran", [CELLS, CELLS[:3], CELLS * 2, [A, B, C, D, E, E], [A, B, C, D, D, E]])
def test_a_run_downwards_has_no_fault(ran):
    assert found(ran) == []


def test_a_cell_that_changes_what_it_reads_and_ran_twice():
    [fault] = out_of_order([A, B, B], CELLS)
    assert (fault.count, fault.cell, fault.name) == (3, 2, "x")
    assert fault.why == "x came from an earlier run of this very cell; the cell above that binds it is 1."


def test_a_cell_that_was_passed_over():
    assert found([A, C]) == [(2, 3, "x")]


def test_a_cell_that_was_changed_after_it_ran():
    assert found([A, "x = 7", C]) == [(2, None, ""), (3, 3, "x")]


def test_a_cell_that_is_gone_and_whose_name_nothing_else_binds():
    [gone, used] = out_of_order(["n = 3", "print(n)"], ["print(n)"])
    assert gone.cell is None
    assert used.why == "n came from a cell that has been changed or deleted; none of the cells above binds it."


def test_a_function_reads_its_names_where_it_is_called():
    below = ["def f():\n    return y", "y = 1", "f()", "y = 5", "f()"]
    assert found(below, below) == []
    assert found([below[0], below[1], below[0], below[2]], below) == []
    assert found([below[0], below[3], below[2]], below) == [(3, 3, "y")]


def test_a_function_that_calls_another_one_and_names_of_its_own():
    cells = ["y = 1", "def g():\n    return y", "def f(y):\n    z = 2\n    return g() + z", "z = 9", "f(0)", "y = 2"]
    assert found(cells, cells) == []
    assert found([*cells, cells[4]], cells) == [(7, 5, "y")]


def test_a_name_bound_under_a_condition_may_still_come_from_above():
    cells = ["n = 0", "if n:\n    m = 1\nm = n", "m = 5"]
    assert found([cells[0], cells[2], cells[1]], cells) == []


def test_magics_and_cells_that_are_no_python():
    cells = ["%time x = 1", "!ls", "this is no python", "x"]
    assert found(cells[1:3], cells) == []


def test_the_code_cells_of_a_saved_notebook(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"]},
        {"cell_type": "code", "source": "c"},
    ]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert code_cells(path) == ["a = 1\nb = 2", "c"]
    path.write_text("<<<<<<<")
    with pytest.raises(CourseError, match="cannot be read as a notebook"):
        code_cells(path)
