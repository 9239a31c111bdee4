"""The cell magic %%ranks: a cell means on a rank what it means in the notebook."""

import re

import pytest
from kernels import Kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    yield made
    made.close()


def test_a_cell_with_the_magic_runs_on_every_rank(kernel):
    kernel.run("factor = 10")
    cell = "%%ranks 2 --to answers\nx = torch.ones(2) * rank * factor\ndist.all_reduce(x)\nx.tolist()"
    text, error = kernel.run(cell)
    assert (text, error) == ("", "")
    assert kernel.run("print(answers)") == ("[[10.0, 10.0], [10.0, 10.0]]\n", "")
    cell = "%%ranks 2 --devices cpu,cpu --backend gloo\nfactor += rank\n(rank, world_size, factor, str(device))"
    text, _ = kernel.run(cell)
    assert sorted(text.splitlines()) == ["[rank 0] (0, 2, 10, 'cpu')", "[rank 1] (1, 2, 11, 'cpu')"]
    _, error = kernel.run("%%ranks 2\nif rank:\n    1 / 0")
    assert re.search(r"In\[\d+\], line 3, in <module>\n +1 / 0", error), error
    assert "invalid int value: 'two'" in kernel.run("%%ranks two\npass")[1]
    assert "name of a variable" in kernel.run("%%ranks 2 --to 3x\npass")[1]
    _, error = kernel.run("door = threading.Lock()\n")
    assert "the variable door (lock) cannot be sent" in kernel.run("%%ranks 2\nprint(door)")[1]


# What the cell before says, the cell on the ranks, and what rank 1 prints.
CELLS = {
    "a function of another cell finds what this one assigns": ("one = 1\ndef f(): return one", "one = 5\nf()", "5"),
    "a function of another cell finds the rank": ("def g(): return rank", "g()", "1"),
    "a method of another cell finds the rank": (
        "class C:\n    def h(self): return rank, own",
        "own = 3\nC().h()",
        "(1, 3)",
    ),
    "a name with an underscore": ("_s, __t = 3, 4\ndef h(): return _s", "h() + _s + __t", "10"),
    "a function that uses one": ("_u = 7\ndef h(): return _u", "h()", "7"),
    "an annotated name": ("", "x: int = 3\nx", "3"),
    "a star": ("", "from math import *\nsqrt(4)", "2.0"),
    "the future": (
        "",
        "from __future__ import annotations\ndef f(x: not_there): pass\nf.__annotations__['x']",
        "not_there",
    ),
    "a variable named cell": ("cell = 5", "cell + 1", "6"),
    "a variable named In": ("In, Out = 3, 4", "In * Out", "12"),
    "a variable named rank": ("rank = threading.Lock()", "rank", "1"),
    "a name that is rebound": ("zz = 3", "del zz\nzz = rank\nzz", "1"),
    "a class, pickled": ("", "import pickle\nclass P: pass\ntype(pickle.loads(pickle.dumps(P()))).__name__", "P"),
    "a file opened": ("", "open.__module__ in ('io', '_io')", "True"),
    "a string": ("", '"as it is"', "as it is"),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_means_what_it_means_in_the_notebook(kernel, name):
    before, cell, said = CELLS[name]
    kernel.run(before)
    text, error = kernel.run(f"%%ranks 2\n{cell}")
    assert error == ""
    assert f"[rank 1] {said}" in text.splitlines()


def test_a_future_of_the_cell_stays_in_it_and_one_of_the_notebook_holds_there():
    from labkit.ranks.magic import compiled

    body, last = compiled("from __future__ import annotations\n(lambda: 0)", "x", flags=0, valued=True)
    assert body.co_flags & last.co_flags & 0x1000000
    assert not compiled("1", "x", flags=0, valued=True)[1].co_flags & 0x1000000
    assert compiled("1", "x", flags=0x1000000, valued=True)[1].co_flags & 0x1000000


def test_a_semicolon_keeps_the_value_to_itself(kernel):
    assert kernel.run("%%ranks 2\n7;") == ("", "")
    assert kernel.run("%%ranks 2\n7 ;  # so\n\n") == ("", "")
    assert "[rank 0] 7" in kernel.run("%%ranks 2\n7  # not so;")[0]
    assert kernel.run("%%ranks 2 --to kept\nrank;") == ("", "")
    assert kernel.run("print(kept)") == ("[0, 1]\n", "")


@pytest.mark.parametrize(
    ("cell", "line", "said"),
    [
        ("x = 1\nreturn 7", 3, "'return' outside function"),
        ("yield 7", 2, "'yield' outside function"),
        ("import asyncio\nawait asyncio.sleep(0)", 3, "no event loop; asyncio.run(...) runs one"),
        ("[x async for x in y]", 2, "no event loop"),
        ("x = (\n1 +", 2, "'(' was never closed"),
    ],
)
def test_what_is_not_python_is_refused_as_in_any_cell(kernel, cell, line, said):
    _, error = kernel.run(f"%%ranks 2\n{cell}")
    assert re.search(rf"^ *(Cell )?In\[\d+\], line {line}\n", error), error
    assert re.search(rf"\nSyntaxError: .*{re.escape(said)}", error), error
    assert "magic.py" not in error


@pytest.mark.parametrize("cell", ["!ls", "%time x = 1", "%%time\nx = 1", "x = get_ipython()", "lists()"])
def test_a_cell_that_needs_ipython_is_refused_in_a_sentence(kernel, cell):
    kernel.run("def lists():\n    !ls")
    _, error = kernel.run(f"%%ranks 2\n{cell}")
    said = "ValueError: A rank has no IPython: magics (%) and shell commands (!) do not work in a cell of %%ranks."
    assert error.rstrip().endswith(said), error
    assert "sqlite3" not in error


def test_the_notebooks_history_does_not_travel(kernel):
    kernel.run("threading.Lock()")
    for name in ("_", "_1", "_i", "_ih", "_oh"):
        assert f"name '{name}' is not defined" in kernel.run(f"%%ranks 2\n{name}")[1]


def test_a_variable_that_cannot_be_sent_is_named_wherever_it_is_used(kernel):
    kernel.run("_door = threading.Lock()\ndef enter():\n    with _door:\n        return rank")
    for cell in ("_door", "enter()", "def within():\n    return _door", "[enter for _ in range(2)]"):
        assert "the variable _door (lock) cannot be sent" in kernel.run(f"%%ranks 2\n{cell}")[1]
    text, _ = kernel.run("%%ranks 2\n_door = threading.Lock()\nrank")
    assert "[rank 1] 1" in text  # what the cell only assigns need not be sent
