"""Executing a lesson: all outputs or none, in this very Python, and nothing in them that is not the lesson's."""

import json
import os
import sys

import pytest

from labkit import build, execute, progress
from labkit.course import CourseError

pytestmark = pytest.mark.notebook

SPOTS = """
# %%
import os, sys
print(sys.executable)
print(os.path.basename(os.getcwd()), os.environ["LABKIT_BUDGET"], os.environ["LABKIT_STRICT"])

# %%
from labkit import progress
print("recorded:", progress.record("1.1"))

# %%
import ipywidgets
from IPython.display import HTML, display
display(ipywidgets.IntSlider(), HTML("<b>a</b>\\n<i>b</i>"))
"""


@pytest.fixture
def toy(toy, tmp_path, monkeypatch):
    """The same for a user who has registered another Python as 'python3', and who is in a hurry."""
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    spec = {"argv": ["/no/such/python", "-f", "{connection_file}"], "display_name": "Mine", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("LABKIT_BUDGET", "smoke")
    return toy


def append(lesson, code):
    lesson.source.write_text(lesson.text() + code, encoding="utf-8")


def test_outputs_are_stored_tidy_and_a_second_time_the_same(toy):
    append(toy, SPOTS)
    assert execute.execute(toy) == ["wrote notebooks/01_toy.ipynb", "wrote solutions/01_toy.ipynb"]
    assert build.check() == []
    outputs = build.stored(toy.solution).outputs
    assert "".join(outputs[2][0]["text"]) == "4\n"
    assert "".join(outputs[3][0]["text"]) == f"{sys.executable}\nsolutions full 1\n"
    assert "".join(outputs[4][0]["text"]) == "recorded: False\n"
    assert [sorted(output["data"]) for output in outputs[5]] == [["text/plain"], ["text/html", "text/plain"]]
    text = toy.solution.read_text(encoding="utf-8")
    assert "widget" not in text.replace("ipywidgets", "")
    assert "iopub" not in text
    assert execute.execute(toy) == []
    assert progress.solved() == set()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "\n# %%\ndef f():\n    y = 1\n    raise ValueError('no good.')\n\n\n# %%\nf()\n",
            "line 37: ValueError: no good.",
        ),
        ("\n# %%\nx = = 1\n", "line 35: SyntaxError"),
        ("\n# %%\nimport os\nos._exit(0)\n", "line 35: the kernel died"),
        (
            "\n# %%\nimport sys\nprint('odd', file=sys.stderr)\n",
            "line 35: the cell that starts here wrote to stderr: odd",
        ),
    ],
)
def test_a_failure_names_the_line_and_changes_no_notebook(toy, code, says):
    build.build([toy])
    before = [path.read_bytes() for path in (toy.student, toy.solution)]
    append(toy, code)
    with pytest.raises(CourseError, match=f"01_toy.py, {says}"):
        execute.execute(toy)
    assert [path.read_bytes() for path in (toy.student, toy.solution)] == before
    assert sorted(os.listdir(toy.solution.parent)) == ["01_toy.ipynb", "01_toy.py"]


def test_hand_edited_notebooks_are_not_overwritten(toy):
    build.build([toy])
    toy.student.write_text(toy.student.read_text(encoding="utf-8").replace("Some", "My"), encoding="utf-8")
    with pytest.raises(CourseError, match=r"Edited by hand: notebooks/01_toy\.ipynb"):
        execute.execute(toy)


def test_without_jupyter_there_is_a_sentence(toy, monkeypatch):
    monkeypatch.setattr(execute, "find_spec", lambda _: None)
    with pytest.raises(CourseError, match=r"needs nbclient, nbformat, ipykernel: run .* -m pip install"):
        execute.execute(toy)
