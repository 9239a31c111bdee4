"""The docstrings of Python's own standard library, as characters for a small language model: a stream, or one by one.

They are read from the source files of the Python that runs this; no module is imported for it.
"""

import ast
import hashlib
import inspect
import os
import platform
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from labkit.course import CourseError
from labkit.data import Arrays, Split, cached, choose, note

CLASSES = ("\n", *(chr(code) for code in range(32, 127)))  # the vocabulary: a token is a place in it
SPLITS = ("train", "validation")

_LEAVE_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_LEAST = 10_000  # characters: with fewer, this Python came without its sources
_TOKEN = {char: token for token, char in enumerate(CLASSES)}


def load(split: str = "train") -> Split:
    """The docstrings of one split, as a stream of N tokens (inputs) and the token after each of them (targets).

    A source file belongs to one split as a whole: one file in ten, by the hash of its path, is for validation.
    ValueError for an unknown split; CourseError where this Python has no source files.
    """
    name, arrays, digest = _kept(split, "", _stream)
    tokens = torch.from_numpy(arrays["tokens"]).to(torch.int64)
    return Split(
        name=name,
        inputs=tokens[:-1],
        targets=tokens[1:],
        classes=CLASSES,
        sha256=digest,
    )


def documents(split: str = "train") -> list[Int64[Tensor, " N"]]:
    """The docstrings of one split one by one, in the order of files and lines: tokens, as uneven as people write them.

    Those of one character or none are left out: nothing comes after them that could be learned. Errors as for load.
    """
    name, arrays, digest = _kept(split, "-one-by-one", _apart)
    note(name, digest)
    tokens = torch.from_numpy(arrays["tokens"]).to(torch.int64)
    return list(tokens.split(arrays["lengths"].tolist()))


def _kept(split: str, form: str, make: Callable[[list[str]], Arrays]) -> tuple[str, Arrays, str]:
    """A split's name, and what `make` does with its docstrings, from the cache or into it, with its hash."""
    choose(split, SPLITS)
    place = Path(sysconfig.get_path("stdlib"))
    version = platform.python_version()
    where = hashlib.sha256(str(place).encode()).hexdigest()[:8]  # two installations of one version may differ
    name = f"docs{form}-{split}"
    arrays, digest = cached(f"{name}-{version}-{where}-v1", lambda: make(_read_all(place, split)))
    return f"{name}-python-{version}", arrays, digest


def encode(text: str) -> Int64[Tensor, " N"]:
    """The tokens of a text; tabs become spaces, and characters outside the vocabulary are left out."""
    return torch.tensor([_TOKEN[char] for char in text.expandtabs() if char in _TOKEN], dtype=torch.int64)


def decode(tokens: Int64[Tensor, " N"]) -> str:
    """The text of a stream of tokens."""
    return "".join(CLASSES[token] for token in tokens.tolist())


def files(place: Path, split: str) -> list[Path]:
    """The source files under a folder that belong to one split, in the order of their paths."""
    chosen = []
    for folder, below, names in os.walk(place):
        below[:] = sorted(set(below) - _LEAVE_OUT)
        inside = Path(folder).relative_to(place).parts
        for name in (name for name in names if name.endswith(".py")):
            held_out = hashlib.sha256("/".join((*inside, name)).encode()).digest()[0] % 10 == 0
            if held_out == (split == "validation"):
                chosen.append((*inside, name))
    return [place.joinpath(*parts) for parts in sorted(chosen)]


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of one source file, in the order of its lines; none of a file that is not valid Python."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in the library's own strings
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for node in _owners(tree):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield inspect.cleandoc(text)


def _owners(node: ast.AST) -> Iterator[ast.AST]:
    """What may have a docstring, in the order of its lines; expressions hold none and are not entered."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            yield from _owners(child)


def _read_all(place: Path, split: str) -> list[str]:
    """All docstrings of a split. CourseError: too few for a Python that has its sources."""
    texts = [doc for path in files(place, split) for doc in docstrings(path)]
    if sum(map(len, texts)) < _LEAST:
        raise CourseError(
            f"This Python has no readable source files in {place}, so there are no docstrings to learn from."
        )
    return texts


def _stream(texts: list[str]) -> Arrays:
    """All texts, a blank line between two, as uint8 tokens."""
    return {"tokens": encode("\n\n".join(texts)).numpy().astype(np.uint8)}


def _apart(texts: list[str]) -> Arrays:
    """The tokens of all texts that have two or more, and how many each has."""
    kept = [tokens for tokens in map(encode, texts) if len(tokens) > 1]
    tokens = torch.cat(kept).numpy().astype(np.uint8)
    return {"tokens": tokens, "lengths": np.array([len(tokens) for tokens in kept], dtype=np.int64)}
