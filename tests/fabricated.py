"""Small courses made up for the tests of the machinery: no torch, so that they run in an instant."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = "# title: Toy\n# minutes: 5\n# cpu: everything\n# gpu: the same, faster\n"

LESSON = '''# %% [markdown]
# # 01 · Toy
#
# ## Question
# Some prose.

# %%
x = 2
print("x is", x)

# %% [markdown]
# ### Exercise 1.1 · Double (3 min, easy)
# Double it.

# %%
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    y = x + x
    return y
    ### END SOLUTION


# %%
try:
    print(double(x))
except NotImplementedError as error:
    print(error)
'''


def course(folder: Path, **lessons: str) -> Path:
    """A course in `folder` with the given lessons, called by name without the leading letter: n01_toy=..."""
    for name in ("solutions", "notebooks", "labkit"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, body in (lessons or {"n01_toy": LESSON}).items():
        (folder / "solutions" / f"{name[1:]}.py").write_text(HEADER + body, encoding="utf-8")
    return folder
