"""What a submission changed in the baseline's script, in short."""

import ast
import difflib
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Lines of code added and gone; functions and classes that are new, gone or changed; imports that are new."""

    added: int
    gone: int
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    changed: tuple[str, ...]
    imports: tuple[str, ...]


def changes(before: str, after: str) -> Changes:
    """How one script differs from another; a text that is no Python has no functions and no imports."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    mine, theirs = _named(before), _named(after)
    both = mine.keys() & theirs.keys()
    return Changes(
        added=sum(line.startswith("+ ") for line in lines),
        gone=sum(line.startswith("- ") for line in lines),
        new=tuple(sorted(theirs.keys() - mine.keys())),
        dropped=tuple(sorted(mine.keys() - theirs.keys())),
        changed=tuple(sorted(name for name in both if mine[name] != theirs[name])),
        imports=tuple(sorted(_imports(after) - _imports(before))),
    )


def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _named(text: str) -> dict[str, str]:
    """The functions and classes of a script, each with its code without comments and docstring layout."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name: ast.dump(node) for node in _tree(text).body if isinstance(node, kinds)}


def _imports(text: str) -> set[str]:
    found = set()
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found
