"""The course's own calls in a cell (check, attempt, predict, claim, reveal, record): known, and taken out as text.

Where the learner's code is run for grading, there is nothing that could answer them: the checks stay outside.
"""

import ast
from collections.abc import Collection, Iterator

from labkit.grading.source import names, parse, plain, unix

ANSWERED = frozenset({"check", "attempt", "predict", "claim", "reveal", "record"})
_HOMES = {"labkit", "checker", "claims", "widgets", "recording"}


def only_calls(source: str, own: Collection[str] = ()) -> bool:
    """Whether a cell does nothing but such calls; `own` are names among them that the learner has defined."""
    tree = parse(_body(unix(source)))
    return bool(tree and tree.body) and all(_is_call(node, own) for node in tree.body)


def checked(source: str) -> set[str]:
    """The names that a cell gives to check."""
    tree = parse(_body(unix(source)))
    calls = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.Call) and node.args]
    return {
        node.args[0].id for node in calls if _called(node) == "check" and isinstance(node.args[0], ast.Name)
    }  # fmt: skip


def defined_by(sources: Collection[str]) -> set[str]:
    """The names among such calls that these cells define for themselves."""
    return {name for source in sources for name in names(source).defines} & ANSWERED


def without_calls(source: str, own: Collection[str] = (), answers: Collection[str] = ()) -> str:
    """The cell with such calls out of it and every other line in its place; `attempt(f)` becomes `(f)`.

    Out of it too are top-level lines that give the name of an answer away to a result, as in `double = double(3)`:
    answers are called once all cells have run. The cell as it stands where there is nothing of this, or no Python.
    """
    source = unix(source)
    head, body = source[: len(source) - len(_body(source))], _body(source)
    code = plain(body)
    tree = parse(code) if code else None
    if tree is None or not (any(name in body for name in ANSWERED) or names(body).binds & set(answers)):
        return source
    edited = _edited(code, [*_edits(tree, own), *_given_away(tree, answers)])
    return head + edited if edited != code and parse(edited) is not None else source


def _body(source: str) -> str:
    """What a cell magic is given, or the whole cell where there is none."""
    first, line_end, rest = source.partition("\n")
    return rest if line_end and first.startswith("%%") else source


def _called(node: ast.AST) -> str:
    """The name of the course's function that a call is of, or nothing."""
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in _HOMES:
        return func.attr if func.attr in ANSWERED else ""
    return func.id if isinstance(func, ast.Name) and func.id in ANSWERED else ""


def _is_call(node: ast.stmt, own: Collection[str]) -> bool:
    """Whether a statement is such a call and nothing else."""
    return isinstance(node, ast.Expr) and _called(node.value) not in ("", *own)


def _edits(tree: ast.Module, own: Collection[str]) -> Iterator[tuple[ast.AST, bytes]]:
    """Nodes and what takes their place."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt) and _is_call(node, own):
            yield node, _nothing(node)
            continue
        single = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        if single and _called(node) == "attempt" not in own and not isinstance(node.args[0], ast.Starred):
            yield node.func, b""
        waiting += ast.iter_child_nodes(node)


def _nothing(node: ast.stmt) -> bytes:
    """A statement of as many lines that does nothing."""
    return b"pass" + b"\\\n" * (node.end_lineno - node.lineno)


def _given_away(tree: ast.Module, answers: Collection[str]) -> Iterator[tuple[ast.AST, bytes]]:
    """Statements that bind an answer's name to a constant or to what the answer returns, or delete it."""
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        taken = {target.id for target in targets if isinstance(target, ast.Name)} & set(answers)
        value = getattr(node, "value", None)
        called = (one.func for one in ast.walk(value or node) if isinstance(one, ast.Call))
        is_result = isinstance(value, ast.Constant) or any(isinstance(f, ast.Name) and f.id in taken for f in called)
        binds = isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and is_result
        if len(targets) == 1 and taken and (binds or isinstance(node, ast.Delete)):
            yield node, _nothing(node)


def _edited(code: str, edits: list[tuple[ast.AST, bytes]]) -> str:
    """The code with each node replaced; Python counts columns in bytes."""
    text = code.encode("utf-8", "surrogatepass")
    starts = [0]
    for line in text.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = text[:begin] + new + text[end:]
    return text.decode("utf-8", "surrogatepass")
