"""A course under git with a script that keeps a record of itself, for the tests of records."""

import subprocess
import sys

from labkit.repro import store

SCRIPT = """
import random
import sys
from pathlib import Path
from labkit.repro import run
seed = int(sys.argv[1])
if seed:
    random.seed(seed)
with run("train", config={"lr": 0.1, "password": "words"}, data={"x": Path("data.txt")}, seeds=(seed,)) as it:
    weight = random.random()
    for step in range(5):
        weight = weight * 0.9
        it.log(step, loss=weight**2)
    it.note(said="done")
"""


def course(folder):
    """Make a folder a course under git; returns it."""
    for name in ("solutions", "labkit"):
        (folder / name).mkdir()
        (folder / name / ".keep").touch()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "data.txt").write_text("data")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"]):
        git(folder, *arguments)
    return folder


def git(folder, *arguments):
    """What git prints."""
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kept(folder):
    """The records of a folder."""
    return store.Store(folder / "runs")


def script(folder, *arguments):
    """Run the script; returns its record."""
    subprocess.run([sys.executable, "train.py", *arguments], cwd=folder, check=False, capture_output=True)
    return kept(folder).all()[-1]


def child(folder, code):
    """Start Python on some code in the folder."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=pipe, stderr=pipe, text=True)
