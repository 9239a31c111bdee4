"""Whether a notebook's results can come from its text: which names a cell found that the text, read down, has not.

Each run of a cell reads names that an earlier run has bound; what a function reads counts where it is called. Read from
top to bottom, a name comes from the nearest cell above that binds it. Where the two are not the same cell with the same
text, the result on the page is not the page's. What a cell changes within an object, such as a model that is trained a
second time, no name tells: that is not seen here.
"""

import ast
import copy
import json
import symtable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit import course


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A run of a cell that the notebook's text does not explain. cell: its place in the notebook, from 1; None: gone.

    count: the number in its brackets. why: a sentence.
    """

    count: int
    cell: int | None
    name: str
    why: str


def out_of_order(ran: Sequence[str], written: Sequence[str]) -> list[Fault]:
    """What in `ran`, sources in the order in which they ran, cannot come from `written`, the cells from top to bottom.

    Empty where one run from top to bottom gives every cell the same names from the same cells.
    """
    place = _places(ran, written)
    names = [_Names.of(source) for source in written]
    faults: list[Fault] = []
    bound: dict[str, int] = {}  # name to the run that bound it last
    later: dict[str, frozenset[str]] = {}  # of a function, the names that it reads when it is called
    for count, source in enumerate(ran, 1):
        cell, mine = place[count - 1], _Names.of(source)
        if cell is None and source.strip():
            faults.append(Fault(count=count, cell=None, name="", why="No cell of the notebook has this text any more."))
        for name in sorted(_all_read(mine, later) & bound.keys()):
            if cell is not None and (why := _why(name, place[bound[name] - 1], cell, names)):
                faults.append(Fault(count=count, cell=cell + 1, name=name, why=why))
        bound |= dict.fromkeys(mine.binds, count)
        later |= {name: mine.later.get(name, frozenset()) for name in mine.binds}
    return faults


def _all_read(mine: "_Names", later: Mapping[str, frozenset[str]]) -> set[str]:
    """Names that a run of a cell reads, with those that functions read which it may call."""
    found: set[str] = set()
    wanted = set(mine.reads)
    while wanted:
        name = wanted.pop()
        found.add(name)
        wanted |= (later.get(name, frozenset()) - found) - mine.binds
    return found


def _why(name: str, source: int | None, cell: int, names: "Sequence[_Names]") -> str:
    """Why `cell` should not have found `name` as the cell `source` left it; nothing where it should."""
    above = next((i for i in range(cell - 1, -1, -1) if name in names[i].binds), None)
    if source == above and source is not None:
        return ""
    there = "none of the cells above binds it" if above is None else f"the cell above that binds it is {above + 1}"
    if source is None:
        return f"{name} came from a cell that has been changed or deleted; {there}."
    if source == cell:
        return f"{name} came from an earlier run of this very cell; {there}."
    return f"{name} came from cell {source + 1}; {there}."


def _places(ran: Sequence[str], written: Sequence[str]) -> list[int | None]:
    """Where in the notebook each run's text stands; of cells with the same text, the next one in turn."""
    left: dict[str, list[int]] = {}
    for i, source in enumerate(written):
        left.setdefault(source.strip(), []).append(i)
    found: list[int | None] = []
    for source in ran:
        places = left.get(source.strip())
        found.append(places[0] if places else None)
        if places and len(places) > 1:
            places.append(places.pop(0))
    return found


@dataclass(frozen=True)
class _Names:
    """Global names of a cell: read before it binds them itself, bound, and read by each function that it binds."""

    reads: frozenset[str] = frozenset()
    binds: frozenset[str] = frozenset()
    later: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str) -> "_Names":
        """Of a cell's source; one that is no Python has none."""
        try:
            body = ast.parse(_python(source)).body
            table = symtable.symtable(_python(source), "cell", "exec")
        except (SyntaxError, ValueError):
            return cls()
        binds = _assigned(table) | {name for inner in _inner(table) for name in _global_binds(inner)}
        reads: set[str] = set()
        surely: set[str] = set()  # bound by now; what stands under an `if` or in a loop may not be
        later: dict[str, frozenset[str]] = {}
        for statement in body:
            targets = _assigned(symtable.symtable(ast.unparse(statement), "statement", "exec"))
            every, now = _read(statement), _read(_Hollow().visit(copy.deepcopy(statement)))
            later |= dict.fromkeys(targets, frozenset(every - now))
            reads |= (now if targets else every) - surely
            if not isinstance(statement, (ast.If, ast.For, ast.While, ast.Try)):
                surely |= targets
        return cls(frozenset(reads), frozenset(binds), later)


class _Hollow(ast.NodeTransformer):
    """Takes the bodies out of functions: what is left is read at once."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A function without its body; its defaults and decorators stay."""
        node.body = [ast.Pass()]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """A lambda without its body."""
        node.body = ast.Constant(None)
        return node


def _assigned(table: symtable.SymbolTable) -> set[str]:
    """Names that a scope binds itself."""
    return {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}


def _inner(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    """All scopes within a scope."""
    return [each for child in table.get_children() for each in (child, *_inner(child))]


def _global_binds(table: symtable.SymbolTable) -> set[str]:
    """Names that a function declares global and assigns."""
    return {one.get_name() for one in table.get_symbols() if one.is_declared_global() and one.is_assigned()}


def _read(statement: ast.stmt) -> set[str]:
    """Global names that a statement reads, those within functions that it defines among them."""
    table = symtable.symtable(ast.unparse(statement), "statement", "exec")
    found = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    found |= {one.get_name() for inner in _inner(table) for one in inner.get_symbols() if one.is_global()}
    targets = (node.target for node in ast.walk(statement) if isinstance(node, ast.AugAssign))
    return found | {node.id for node in targets if isinstance(node, ast.Name)}


def _python(source: str) -> str:
    """A cell as Python; magics are read by IPython where it is there, else taken out."""
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        return "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in source.splitlines())
    return TransformerManager().transform_cell(source)


def code_cells(notebook: Path) -> list[str]:
    """The sources of a saved notebook's code cells. CourseError: the file is no notebook."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        found = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise course.CourseError(f"{notebook} cannot be read as a notebook: {type(error).__name__}.") from error
    return [source if isinstance(source, str) else "".join(source) for source in found]
