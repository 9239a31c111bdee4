"""A small lesson with two exercises as it is handed out, and what students make of such a notebook."""

import json

import fabricated

from labkit import build, course

LESSON = '''# %% [markdown]
# # 01 · Handed out
# Some prose. What is it?

# %%
import math

from labkit import attempt, check, claim, predict, reveal

# %%
FACTOR = 2
slow = [math.sqrt(n) for n in range(3)]

# %%
def show_off(n):
    return slow[n]


claim("shown off", holds=show_off(1) == 1)

# %% [markdown]
# ### Exercise 1.1 · Double (3 min, easy)
# Double it.

# %%
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    y = FACTOR * x
    return y
    ### END SOLUTION

# %%
check(double)

# %%
best = attempt(double)
print(best(3))

# %% [markdown]
# ### Exercise 1.2 · A counter (3 min, hard)
# Count.

# %%
class Counter:
    def __init__(self):
        ### BEGIN SOLUTION
        self.n = 0
        ### END SOLUTION

    def add(self):
        """One more."""
        ### BEGIN SOLUTION
        self.n += 1
        return self.n
        ### END SOLUTION

# %%
check(Counter)
'''
DOUBLE, COUNTER, CHECK_DOUBLE = 5, 9, 6  # indices of cells
RIGHT = "def double(x):\n    return FACTOR * x\n"


def lesson(folder):
    """The lesson, in a course of its own."""
    fabricated.course(folder, n01_out=LESSON)
    return course._read(folder / "solutions" / "01_out.py")


def handed_out(made, *, solved=False):
    """The notebook as a dictionary."""
    cells = build.convert(made)
    return json.loads(build.solution_notebook(cells) if solved else build.student_notebook(cells))


def code(source, **fields):
    """A new code cell."""
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source, **fields}
