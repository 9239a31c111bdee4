"""Python code as runs of tokens that do not depend on names, spaces, comments or brackets: what a copy keeps.

A shingle is a few tokens in a row. Names that a cell binds itself are numbered within each shingle, so that a copy with
other names has the same ones; names from outside, attributes of libraries and numbers stand as they are.
"""

import ast
import builtins
import hashlib
import io
import keyword
import tokenize
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from labkit.grading.source import parse, plain

N_TOKENS = 12
_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
_SKIPPED |= {tokenize.ENDMARKER}
_BRACKETS = {"(", ")", ";"}
_FIXED = frozenset(dir(builtins)) | frozenset(keyword.kwlist) | {"self"}
_BINDERS = {ast.arg: "arg", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name", ast.ClassDef: "name"}
_BINDERS |= {ast.ExceptHandler: "name", ast.alias: "asname"}
_F_START, _F_END = getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None)  # from Python 3.12


class Token(NamedTuple):
    """A token on its line; free: a name that the code itself binds, which a copy may change."""

    text: str
    line: int
    free: bool


class Shingle(NamedTuple):
    """The hash of a few tokens in a row, and the lines that they stand on."""

    sha: bytes
    lines: tuple[int, ...]


@lru_cache(maxsize=4_000)  # most cells are those of every other student
def shingles(source: str) -> tuple[Shingle, ...]:
    """The shingles of a cell, in its order; fewer tokens than one needs make none."""
    found, window = [], deque(maxlen=N_TOKENS)
    for token in tokens(source):
        window.append(token)
        if len(window) == N_TOKENS:
            found.append(_shingle(tuple(window)))
    return tuple(found)


def _shingle(window: tuple[Token, ...]) -> Shingle:
    """A shingle, its free names numbered as they come."""
    numbers: dict[str, int] = {}
    texts = [f"${numbers.setdefault(one.text, len(numbers))}" if one.free else one.text for one in window]
    sha = hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=8).digest()
    return Shingle(sha, tuple(sorted({one.line for one in window})))


def tokens(source: str) -> list[Token]:
    """The tokens of a cell that say what it does; of one that is no Python, those up to where it stops being any."""
    code = plain(source) or source
    free = _free(code)
    found: list[Token] = []
    for kind, text, line, column in _raw(code):
        if text in (")", "]", "}") and found and found[-1].text == ",":
            found.pop()  # a trailing comma
        if text in _BRACKETS:
            continue
        before = found[-1].text if found else ""
        bound = before in ("def", "class", "as") or (before != "." if free is None else (line, column) in free)
        found.append(Token(text, line, bound and kind == tokenize.NAME and text not in _FIXED))
    return found


def _raw(code: str) -> Iterator[tuple[int, str, int, int]]:
    """Kind, text, line and column in bytes of tokens: numbers are floats, a string is one word, or none as prose."""
    lines = code.split("\n")
    starts, depth = True, 0
    held = None  # a string that begins a statement, which says nothing if it is all of it
    try:
        for kind, text, (line, start), _, _ in tokenize.generate_tokens(io.StringIO(code).readline):
            if kind in _SKIPPED:
                held = None if kind == tokenize.NEWLINE else held
                starts = starts or kind == tokenize.NEWLINE
                continue
            within, depth = depth, depth + (kind == _F_START) - (kind == _F_END)
            if within or kind in (tokenize.STRING, _F_START):
                if not within and starts:
                    held = (tokenize.STRING, "'", line, 0)
                elif not within:
                    yield tokenize.STRING, "'", line, 0
                starts = False
                continue
            if held:
                yield held
            held, starts = None, False
            column = len(lines[line - 1][:start].encode()) if kind == tokenize.NAME else 0
            yield kind, _number(text) if kind == tokenize.NUMBER else text, line, column
    except (tokenize.TokenError, SyntaxError):
        return


def _number(text: str) -> str:
    """A number without the way in which it is written."""
    try:
        return str(float(ast.literal_eval(text)))
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError):
        return text


def _free(code: str) -> set[tuple[int, int]] | None:
    """Where names stand that code binds itself, and attributes that it sets; None where it is no Python."""
    tree = parse(code)
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    binding = [
        node for node in nodes if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    ]
    attributes = {node.attr for node in binding if isinstance(node, ast.Attribute)}
    names = {node.id for node in binding if isinstance(node, ast.Name)}
    names |= {
        getattr(node, field) or "" for node in nodes for kind, field in _BINDERS.items() if isinstance(node, kind)
    }
    found = {_place(node) for node in nodes if isinstance(node, ast.Name) and node.id in names}
    found |= {_place(node) for node in nodes if isinstance(node, ast.arg)}
    set_here = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in attributes]
    return found | {(node.end_lineno, node.end_col_offset - len(node.attr.encode())) for node in set_here}


def _place(node: ast.expr | ast.arg) -> tuple[int, int]:
    """Line, and bytes before it on that line."""
    return node.lineno, node.col_offset
