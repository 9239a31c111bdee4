"""The untouched student notebooks run from top to bottom, on the smoke budget; with a browser test_browser does so."""

import browser
import pytest

from labkit import build, course
from labkit.execute import client_of

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.skipif(browser.chromium() is not None, reason="test_browser runs them all, in a browser"),
]


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_restart_and_run_all_works_for_an_untouched_notebook(lesson):
    text = build.student_notebook(build.convert(lesson))
    with client_of(text, lesson.student, budget="smoke") as client:
        for place, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, place)  # a cell that raises fails the test with its traceback
        loud = [
            output.text
            for cell in client.nb.cells
            for output in cell.get("outputs", [])
            if output.get("name") == "stderr"
        ]
    assert not loud
