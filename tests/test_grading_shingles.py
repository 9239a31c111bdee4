"""Tokens and shingles: what a copy keeps is the same, whatever it changed."""

import pytest
import ways

from labkit.grading.shingles import N_TOKENS, shingles, tokens

LINE = "total = 0.5 * sum(weight[k] * x.mean(dim=1) for k in range(10)) + torch.ones(3)[0]"


def shas(source):
    return [one.sha for one in shingles(source)]


@pytest.mark.parametrize(
    "other",
    [
        LINE.replace("total", "t").replace(" k ", " index ").replace("[k]", "[index]"),
        LINE.replace(" ", "  ").replace("(", "( "),
        "\n\n" + LINE + "  # a comment\n# and another",
        f"'''What it is.'''\n{LINE};",
        "total = (\n    0.5 * sum(weight[k] * x.mean(dim=1,) for k in range(10))\n    + torch.ones(3)[0]\n)",
        LINE.replace("0.5", ".5"),
        LINE.replace("= ", "= \\\n   "),
    ],
)
def test_looks_do_not_count(other):
    assert shas(other) == shas(LINE)
    assert len(shas(LINE)) > 10


@pytest.mark.parametrize(
    ("old", "new"), [("mean", "sum"), ("0.5", "0.25"), ("torch", "numpy"), ("+", "-"), ("dim", "d")]
)
def test_what_it_does_counts(old, new):
    assert set(shas(LINE.replace(old, new))) != set(shas(LINE))


def test_names_are_told_apart_within_a_shingle():
    one, other = "a = b = 1\n" + "c = a + b * a - b" * 2, "a = b = 1\n" + "c = a + b * b - a" * 2
    assert not set(shas(one)) & set(shas(other))


@pytest.mark.parametrize("source", [*ways.RATE, *ways.PICK, *ways.SHARP])
def test_a_renamed_and_newly_laid_out_copy_has_the_same_shingles(source):
    assert len(shas(source)) > 10
    assert shas(ways.laid_out(ways.renamed(source))) == shas(source)


def test_texts_are_one_word_and_prose_that_stands_alone_is_none():
    texts = ["'a'", '"b"', "f'{x} and {y!r:>{z}}'", "'''c\nd'''"]
    assert len({tuple(one.text for one in tokens(f"print({text}, 3)")) for text in texts}) == 1
    assert [one.text for one in tokens("'alone'\nx = 'not'\n'''alone\ntoo'''\n")] == ["x", "=", "'"]
    assert [one.text for one in tokens("'not alone'.join(x)")][0] == "'"


def test_lines_are_those_of_the_cell():
    (first, *_) = shingles("\n\n" + LINE)
    assert first.lines == (3,)
    assert {line for one in shingles(ways.SHARP[0]) for line in one.lines} == set(range(2, 14))


@pytest.mark.parametrize(
    "source", ["", "x", "def f(:", "'''never ends", "\\", "x = (" * 300, "%time x\n!ls", "\0", "\t x\n y"]
)
def test_whatever_a_cell_holds_there_is_an_answer(source):
    shingles(source)


def test_what_is_no_python_still_has_tokens():
    assert len(shingles("def f(x):\n" + "    y = x + 1\n" * 9 + "  return (((")) > N_TOKENS


def test_names_of_others_stay_what_they_are_beside_bound_ones_of_that_name():
    one = "grad = torch.autograd.grad(loss, ü, dim=dim, grad_outputs=grad)\ndim = x.dim(dim)\n" * 2
    other = one.replace("=grad)", "=g)").replace("grad =", "g =")
    assert shas(other) == shas(one)
    assert set(shas(one.replace("autograd.grad", "autograd.vjp"))) != set(shas(one))
    assert set(shas(one.replace("dim=", "axis="))) != set(shas(one))


def test_attributes_that_a_class_sets_are_its_own():
    one = "class A:\n    def __init__(self, x):\n        self.n = x.size\n"
    one += "    def f(self):\n        return self.n.sum() + 1\n"
    assert shas(one.replace(".n", ".count").replace("A", "B").replace("f(", "go(")) == shas(one)
    assert shas(one.replace(".size", ".shape")) != shas(one)
