"""The part of a lesson's checks that may stand beside a stranger's code: what draws the cases and drives an answer.

`labkit.checks` holds references, known mistakes and comparisons as well, and none of those may be where a submission
could read it. A slice is the source of those statements alone that an exercise's cases, drive and mechanism need,
followed from name to name and from module to module. Where a drive asks whether it has the reference in hand, the slice
has the answer that is true in a box: no.
"""

import ast
import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit import checks
from labkit.exercise import Exercise

_PACKAGE = "labkit.checks"
_FOLDER = Path(checks.__file__).parent
PARTS = ("cases", "drive", "mechanism")
TIMED = ("ready", "run")  # in the learner's process; in the baseline's these and BASELINE
BASELINE = ("then", "baseline")


@dataclass
class Slice:
    """Source by module, and the name in the exercise's own module that each part is bound to."""

    modules: dict[str, str]  # in the order in which they can be loaded
    home: str
    parts: tuple[str, ...]


class _Module:
    """A module's statements, and which of them bind a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        self.binds: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for bound in _bound(statement):
                self.binds.setdefault(bound, []).append(statement)


@cache
def _module(name: str) -> _Module:
    """The parsed module of labkit.checks."""
    return _Module(name)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement of a module binds."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    own = (ast.comprehension, ast.Lambda)  # their variables are nobody else's
    inner = {id(part) for node in ast.walk(statement) if isinstance(node, own) for part in ast.walk(node)}
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and id(node) not in inner)
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


@cache
def sliced(exercise: Exercise, parts: tuple[str, ...] = PARTS) -> Slice:
    """The slice of an exercise, of such parts as it has: of PARTS, or where it is timed, of TIMED.

    ValueError where its reference would be in it: then it cannot be graded.
    """
    home = _home(exercise)
    keywords = _declaration(exercise, home)
    keywords |= {part.arg: part.value for part in getattr(keywords.get("timing"), "keywords", ())}
    parts = tuple(part for part in parts if part in keywords)
    secret = _origin(home, keywords["reference"])
    following = _Following(secret)
    for part in parts:
        following.follow(home, keywords[part])
    if secret in following.names:
        raise ValueError(f"Exercise {exercise.number}: its cases, drive or mechanism need the reference, {secret[1]}.")
    ends = [f"{part.upper()} = {ast.unparse(keywords[part])}" for part in parts]
    order = dict.fromkeys([*following.loaded(home), home])
    return Slice({name: following.source(name, ends if name == home else []) for name in order}, home, parts)


def _home(exercise: Exercise) -> str:
    """The module that declares an exercise."""
    return f"nb{int(exercise.number.split('.')[0]):02}"


def _declaration(exercise: Exercise, home: str) -> dict[str, ast.expr]:
    """The keyword arguments of the Exercise(...) that declares it."""
    for node in ast.walk(_module(home).tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Exercise":
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if getattr(keywords.get("number"), "value", None) == exercise.number:
                return keywords
    raise ValueError(f"Exercise {exercise.number} is not declared in {home}.")


def _origin(home: str, node: ast.expr) -> tuple[str, str] | None:
    """Where a name, or a module's attribute, is bound: (module, name); None where it is not in labkit.checks."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        source = _imported(home, node.value.id)
        return (source[1], node.attr) if source and source[0] == _PACKAGE else None
    if not isinstance(node, ast.Name):
        return None
    source = _imported(home, node.id)
    if source and source[0].startswith(f"{_PACKAGE}."):
        return _origin(source[0].rpartition(".")[2], ast.Name(source[1]))
    return (home, node.id)


def _imported(home: str, name: str) -> tuple[str, str] | None:
    """Where an imported name comes from: (module, name there)."""
    for statement in _module(home).binds.get(name, []):
        if isinstance(statement, ast.ImportFrom):
            found = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
            return statement.module, found.name
    return None


class _Following:
    """What has been found to be needed on the way from name to name."""

    def __init__(self, secret: tuple[str, str]) -> None:
        self._secret = secret
        self._needed: dict[str, dict[int, ast.stmt]] = {}
        self._imports: dict[str, list[str]] = {}
        self.names: set[tuple[str, str]] = set()

    def follow(self, home: str, node: ast.AST) -> None:
        """Add every statement that a piece of code needs, in its own module and in others."""
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and (origin := _origin(home, part)):
                self._add(*origin)
            if isinstance(part, ast.Name):
                self._add(home, part.id)

    def _add(self, home: str, name: str) -> None:
        """Add what binds a name, once, and what that needs in turn."""
        if (home, name) in self.names or name not in _module(home).binds:
            return
        self.names.add((home, name))
        for statement in _module(home).binds[name]:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._import(home, name, statement)
            else:
                told = _InTheBox(home, self._secret).visit(copy.deepcopy(statement))
                self._needed.setdefault(home, {})[statement.lineno * 1000] = told
                self.follow(home, told)

    def _import(self, home: str, name: str, statement: ast.Import | ast.ImportFrom) -> None:
        """Add one name of an import, and where it is one of labkit.checks, what it stands for."""
        alias = next(each for each in statement.names if (each.asname or each.name).partition(".")[0] == name)
        module = getattr(statement, "module", None) or ""
        one = ast.Import([alias]) if isinstance(statement, ast.Import) else ast.ImportFrom(module, [alias], 0)
        self._needed.setdefault(home, {})[statement.lineno * 1000 + statement.names.index(alias)] = one
        if module.partition(f"{_PACKAGE}.")[2]:
            self._imports.setdefault(home, []).append(module.rpartition(".")[2])
            self._add(module.rpartition(".")[2], alias.name)
        elif module == _PACKAGE:
            self._imports.setdefault(home, []).append(alias.name)

    def loaded(self, name: str) -> list[str]:
        """A module after all those that it imports."""
        return [*(each for other in self._imports.get(name, []) for each in self.loaded(other)), name]

    def source(self, name: str, ends: list[str]) -> str:
        """A module's source, its statements in their order."""
        statements = self._needed.get(name, {})
        told = (ast.unparse(ast.fix_missing_locations(statements[place])) for place in sorted(statements))
        return "\n".join([*told, *ends, ""])


class _InTheBox(ast.NodeTransformer):
    """Answers `fn is reference` with no, and leaves away what would follow from a yes."""

    def __init__(self, home: str, secret: tuple[str, str]) -> None:
        self._home, self._secret = home, secret

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """False for the question whether something is the reference."""
        asked = isinstance(node.ops[0], ast.Is) and _origin(self._home, node.comparators[0]) == self._secret
        return ast.Constant(False) if asked else self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """The other branch, where the answer is no."""
        node = self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Constant) and node.test.value is False else node
