"""The learner's own lines: which frames of a running program are theirs, and what a line is called."""

import linecache
import os
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch

# With a separator at the end: labkit_notes.py beside the folder labkit is the learner's.
TORCH, LABKIT = (f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
_PYTHON = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_FOREIGN = (TORCH, LABKIT, *{f"{folder}{os.sep}" for folder in _PYTHON})
_TYPED = ("<stdin>", "<string>", "<ipython-input")  # other names in brackets are those of generated code


@cache
def is_foreign(file: str) -> bool:
    """Whether a file is torch's, the standard library's, an installed package's or labkit's, or generated code."""
    return file.startswith(_FOREIGN) or (file.startswith("<") and not file.startswith(_TYPED))


def source(file: str, line: int) -> str:
    """The text of a line, without its indent; empty where it cannot be read."""
    return linecache.getline(file, line).strip()


def place(file: str, line: int) -> str:
    """`In[5], line 3` for a cell of a notebook, `train.py, line 12` for a file."""
    return f"{cell(file) or Path(file).name}, line {line}"


def cell(file: str) -> str | None:
    """`In[5]`, what a notebook calls the cell that was compiled under this name; None where it is a file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    named = shell.compile.format_code_name(file) if shell else None
    return named[1] if named else None


def running_cell(shell: Any) -> int:
    """The number of the cell that runs now; IPython's own counter is ahead of it in some versions."""
    frame = sys._getframe(1)
    while frame is not None:
        if label := cell(frame.f_code.co_filename):
            return int(re.sub(r"\D", "", label) or shell.execution_count)
        frame = frame.f_back
    return shell.execution_count
