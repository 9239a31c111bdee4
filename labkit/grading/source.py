"""The source of a cell as text: what it binds, what it needs, its hash. Nothing here runs what it reads.

A learner's cell may be anything: not Python, a hundred thousand brackets, a megabyte. Python's own parser answers those
with an error, and what cannot be parsed is still searched for the words in it.
"""

import ast
import hashlib
import keyword
import re
import symtable
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

PARSED_CHARACTERS = 30_000
_BRACES = 2_000  # the parser is quadratic in an f-string with many of them
_CACHED_CHARACTERS = 30_000
_MAGIC_CHARACTERS = 200_000  # IPython rewrites magics one at a time, and reads the whole cell again for each
_WORD = re.compile(r"[^\W\d]\w*")
_DEFINED = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+([^\W\d]\w*)", re.MULTILINE)
_UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAGICS = {"run_line_magic", "run_cell_magic", "system", "getoutput"}


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of a cell at its top level: bound (`*`: unknown ones too), defined by def or class, needed from outside.

    parsed: whether the cell is Python; where it is not, the names are guessed from its words.
    """

    binds: frozenset[str]
    defines: frozenset[str]
    needs: frozenset[str]
    parsed: bool


def normalised(source: str) -> str:
    """The source without what editors change by themselves: line ends, spaces there, blank lines around it, NFC."""
    lines = unix(source).split("\n")
    return unicodedata.normalize("NFC", "\n".join(line.rstrip() for line in lines).strip("\n"))


def unix(source: str) -> str:
    """The source with line ends as Python reads them."""
    return source.replace("\r\n", "\n").replace("\r", "\n")


def sha256(source: str) -> str:
    """The hash of the normalised source, in hexadecimal; it exists for lone surrogates too, which JSON may hold."""
    return hashlib.sha256(normalised(source).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=4)  # a cell is asked about several times in a row
def parse(source: str) -> ast.Module | None:
    """The tree of a cell as it stands; None where it is no plain Python, or too much of it to be looked at."""
    if len(source) > PARSED_CHARACTERS or source.count("{") > _BRACES:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner's invalid escape is no warning of ours
        with suppress(*_UNPARSED):
            return ast.parse(source)
    return None


@lru_cache(maxsize=4)
def plain(source: str) -> str | None:
    """The cell as plain Python, magics and `!` rewritten as IPython rewrites them; None where it is none even then."""
    if parse(source) is not None:
        return source
    if _is_too_much(source):
        return None
    rewritten = None
    with suppress(Exception), warnings.catch_warnings():  # its tokenizer raises whatever a broken cell makes it raise
        warnings.simplefilter("ignore")
        rewritten = _rewritten(source)
    return rewritten if rewritten is not None and parse(rewritten) is not None else None


def _is_too_much(source: str) -> bool:
    """Whether a cell is too much for IPython to rewrite it."""
    magic = sum(line.lstrip()[:1] in "%!?" or line.rstrip().endswith("?") for line in source.split("\n") if line)
    return len(source) > PARSED_CHARACTERS or magic * len(source) > _MAGIC_CHARACTERS


def _rewritten(source: str) -> str:
    """The cell as IPython rewrites it, or what IPython raises."""
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(source)


def names(source: str) -> Names:
    """What a cell binds and needs; of magics, what their text would."""
    return _cached(source) if len(source) <= _CACHED_CHARACTERS else _found(source)


@lru_cache(maxsize=1_500)  # most cells are those of every other student
def _cached(source: str) -> Names:
    """The names of a cell of usual length."""
    return _found(source)


def _found(source: str) -> Names:
    """The names of a cell."""
    code = plain(source)
    if code is None:
        found = frozenset(_DEFINED.findall(source[:PARSED_CHARACTERS]))
        needs = frozenset() if _is_broken(source) else _words(source) - found
        return Names(binds=found, defines=found, needs=needs, parsed=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _names(code)
    except _UNPARSED as error:  # what the parser takes, the table of symbols may still refuse: a `return` outside
        found = frozenset(_DEFINED.findall(code))
        needs = frozenset() if isinstance(error, SyntaxError) else _words(code) - found
        return Names(binds=found, defines=found, needs=needs, parsed=False)


def _is_broken(source: str) -> bool:
    """Whether a cell raises SyntaxError before any line of it runs, so that it needs nothing."""
    if _is_too_much(source) or source.count("{") > _BRACES:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(_rewritten(source))
        except SyntaxError:
            return True
        except Exception:
            return False
    return False


def _words(source: str) -> frozenset[str]:
    """The words of a source that could be names."""
    return frozenset(_WORD.findall(source[:PARSED_CHARACTERS])) - frozenset(keyword.kwlist)


def _names(code: str) -> Names:
    """The names of plain Python."""
    tree, top = parse(code), symtable.symtable(code, "cell", "exec")
    binds, defines, referred, deferred = _symbols(top)
    binds |= _changed_in_place(tree) | ({"*"} if _has_star(tree) else set())
    early: set[str] = set()
    certain = _flow(tree.body, set(), early)
    added_to = {name for node in _outside_functions(tree) for name in _augmented(node)}
    needs = (early & (referred | deferred | added_to)) | (deferred - certain)
    for name, text in _magics(tree):
        inner = names(text)
        needs |= (inner.needs if inner.parsed else _words(text) - inner.binds) - certain
        if name == "run_cell_magic":
            binds, defines = binds | inner.binds, defines | inner.defines
    return Names(binds=frozenset(binds), defines=frozenset(defines), needs=frozenset(needs), parsed=True)


def _symbols(top: symtable.SymbolTable) -> tuple[set[str], set[str], set[str], set[str]]:
    """Names that a cell binds and defines, that its top level refers to, and that scopes within refer to."""
    symbols = top.get_symbols()
    binds = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()}
    defines = {one.get_name() for one in symbols if one.is_namespace()}
    referred = {one.get_name() for one in symbols if one.is_referenced()}
    deferred, scopes = set(), list(top.get_children())
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for one in scope.get_symbols():
            if one.is_global() and one.is_referenced():
                deferred.add(one.get_name())
            if one.is_declared_global() and one.is_assigned():
                binds.add(one.get_name())
    return binds, defines, referred, deferred


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes from this one on down that run when it does: not the bodies of functions."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _FUNCTIONS):
            waiting += [*getattr(node, "decorator_list", []), *node.args.defaults, *filter(None, node.args.kw_defaults)]
        else:
            waiting += ast.iter_child_nodes(node)


def _has_star(tree: ast.Module) -> bool:
    """Whether it imports everything of a module."""
    imports = (node for node in _outside_functions(tree) if isinstance(node, ast.ImportFrom))
    return any(alias.name == "*" for node in imports for alias in node.names)


def _changed_in_place(tree: ast.Module) -> set[str]:
    """Names whose items or attributes the top level sets: `table["a"] = 1` binds no name, and yet makes the table."""
    found = set()
    for node in _outside_functions(tree):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            while isinstance(node, (ast.Subscript, ast.Attribute)):
                node = node.value
            found |= {node.id} if isinstance(node, ast.Name) else set()
    return found


def _loads(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Names that are read when these nodes run."""
    inner = (each for node in nodes if node is not None for each in _outside_functions(node))
    return {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _stores(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Names that are surely bound once these nodes ran; those of an import are its first part."""
    found, waiting = set(), [node for node in nodes if node is not None]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, _SCOPES):
            found |= {node.name} if hasattr(node, "name") else set()
        else:
            waiting += ast.iter_child_nodes(node)
    return found


def _flow(body: list[ast.stmt], bound: set[str], early: set[str]) -> set[str]:
    """Names surely bound after these statements; adds to `early` what they read before it is bound."""
    for node in body:
        if isinstance(node, ast.If):
            early |= _loads([node.test]) - bound
            bound = _flow(node.body, set(bound), early) & _flow(node.orelse, set(bound), early)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            head = [node.test] if isinstance(node, ast.While) else [node.iter]
            early |= _loads(head) - bound
            inner = bound | (set() if isinstance(node, ast.While) else _stores([node.target]))
            _flow([*node.body, *node.orelse], inner, early)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            early |= _loads(node.items) - bound
            bound = _flow(node.body, bound | _stores(node.items), early)
        elif isinstance(node, ast.Try):
            early |= _loads(one.type for one in node.handlers) - bound
            tried = _flow([*node.body, *node.orelse], set(bound), early)
            ends = [_flow(one.body, bound | {one.name or ""}, early) for one in node.handlers]
            bound = _flow(node.finalbody, set.intersection(tried, *ends), early)
        else:
            early |= (_loads([node]) | _augmented(node)) - bound
            bound = bound | _stores([node])
    return bound


def _augmented(node: ast.AST) -> set[str]:
    """The name that `x += 1` reads too."""
    target = node.target if isinstance(node, ast.AugAssign) else None
    return {target.id} if isinstance(target, ast.Name) else set()


def _magics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What IPython is asked for in a rewritten cell: the method, and the text it is given last."""
    for node in _outside_functions(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MAGICS:
            last = node.args[-1] if node.args else None
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                yield node.func.attr, last.value
