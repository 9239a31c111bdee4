"""A small assignment as an instructor writes it with nbgrader, and what students make of such a notebook."""

import copy
import json

from labkit.grading import assignment

HIDDEN = "### BEGIN HIDDEN TESTS\nassert double(-3) == -6\n### END HIDDEN TESTS"

SCHEME = "### BEGIN MARK SCHEME\naxes: 1\n### END MARK SCHEME"


def marked(kind, grade_id, **more):
    """nbgrader's metadata, schema 3; kind: test, manual, task, answer or locked."""
    made = {"grade": kind in ("test", "manual"), "solution": kind in ("manual", "answer"), "task": kind == "task"}
    made |= {"locked": kind in ("test", "task", "locked"), "schema_version": 3, "grade_id": grade_id}
    return made | more


def cell(source, kind="", grade_id="", *, cell_type="code", **more):
    """A cell of a notebook."""
    metadata = {"nbgrader": marked(kind, grade_id, **more)} if kind else {}
    made = {"cell_type": cell_type, "metadata": metadata, "source": source, "id": f"c-{grade_id or abs(hash(source))}"}
    return made | ({"outputs": [], "execution_count": None} if cell_type == "code" else {})


def notebook(*cells):
    """A notebook of these cells."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": list(cells), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def source():
    """Two functions, a test of each (one of them half hidden), partial credit, an essay, a plot and a task."""
    double = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
    half = "def half(x):\n    ### BEGIN SOLUTION\n    return x / 2\n    ### END SOLUTION"
    return notebook(
        cell("# Homework", cell_type="markdown"),
        cell("import math\nFACTOR = 2", "locked", "setup"),
        cell(double, "answer", "double"),
        cell(f"assert double(2) == 4\n{HIDDEN}", "test", "test-double", points=2),
        cell(half, "answer", "half"),
        cell("assert half(4) == 2", "test", "test-half", points=1),
        cell("right = sum(half(n) == n / 2 for n in range(4))\nright / 4 * 3", "test", "test-partly", points=3),
        cell("BECAUSE.", "manual", "essay", cell_type="markdown", points=4),
        cell(f"Draw one.\n{SCHEME}", "task", "plot", points=5, cell_type="markdown"),
    )  # fmt: skip


def write(folder, made, name="hw1.ipynb"):
    """Put a notebook into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(made), encoding="utf-8")
    return folder / name


def handed_out(path):
    """The notebook as nbgrader hands it out."""
    given = {one.index: one.given for one in assignment.load(path).cells}
    made = json.loads(path.read_text(encoding="utf-8"))
    for index, each in enumerate(made["cells"]):
        each["source"] = given[index]
    return made


def answered(made, **answers):
    """A student's copy, with other sources in the cells of these ids; `_` in an id stands for `-`."""
    mine = copy.deepcopy(made)
    for name, text in answers.items():
        found(mine, name.replace("_", "-"))["source"] = text
    return mine


def found(made, grade_id):
    """The cell of an id."""
    return next(each for each in made["cells"] if each["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)
