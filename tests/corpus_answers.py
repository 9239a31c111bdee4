"""Answers to a lesson's exercises as source that stands alone: what learners would type into a cell, right and wrong.

Wrong ones are those of tests/wrong_answers and the known mistakes that the checks declare, each with all that it needs
of its module, taken out name by name; so one more there is one more here.
"""

import ast
import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit import build, checks, course
from labkit.exercise import Exercise

HERE = Path(__file__).parent
CHECKS = Path(checks.__file__).parent


@dataclass(frozen=True)
class Answer:
    """A cell's source; right: whether it deserves the points."""

    what: str
    source: str
    right: bool


# What other people write who have understood it.
OTHERS = {
    "1.1": """def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    if step < n_warmup:
        return peak * (step + 1) / n_warmup
    if n_steps - step <= n_decay:
        return peak * (n_steps - step) / n_decay
    return peak""",
    "1.2": """import math

def pick_rate(rates, losses):
    lowest, best = math.inf, 0.0
    for rate, loss in zip(rates.tolist(), losses.tolist()):
        if math.isfinite(loss) and loss < lowest:
            lowest, best = loss, rate
    return best / 10""",
    "1.3": """def sharpness(loss_at, w, n_iterations):
    w = w.clone().requires_grad_(True)
    slope = torch.autograd.grad(loss_at(w), w, create_graph=True)[0]
    direction = torch.ones_like(w) + torch.rand_like(w)
    for _ in range(n_iterations):
        direction = direction / direction.norm()
        product = torch.autograd.grad((slope * direction).sum(), w, retain_graph=True)[0]
        value, direction = torch.dot(direction, product).item(), product
    return value""",
    "14.1": """def bytes_per_rank(layers, stage, ranks, precision):
    sizes = dict(parameters=4, gradients=4, optimizer=8) if precision == "fp32" else None
    sizes = sizes or dict(parameters=2, gradients=2, optimizer=12)
    numbers = {}
    for kind, since in (("optimizer", 1), ("gradients", 2), ("parameters", 3)):
        numbers[kind] = 0
        for n in layers:
            numbers[kind] += (n + ranks - 1) // ranks if stage >= since else n
    return {kind: sizes[kind] * n for kind, n in numbers.items()}""",
    "14.5": """def smallest_stage(layers, ranks, room_bytes):
    n, shard = sum(layers), sum((size + ranks - 1) // ranks for size in layers)
    if 16 * n <= room_bytes:
        return 0
    if 4 * n + 12 * shard <= room_bytes:
        return 1
    if 2 * n + 14 * shard + 2 * max(layers) <= room_bytes:
        return 2
    return 3 if 16 * shard + 4 * max(layers) <= room_bytes else None""",
    "14.6": """def forgotten_bytes(batch, seq, vocab, kept_bytes):
    logits = batch * seq * vocab
    return 3 * 4 * logits + kept_bytes * logits""",
}


@cache
def answers(number: str) -> tuple[Answer, ...]:
    """All answers to an exercise, the course's own first."""
    [exercise] = [each for each in checks.exercises() if each.number == number]
    made = [Answer("the course's own", _solution(exercise), True)]
    made += [Answer("another way", OTHERS[number], True)] if number in OTHERS else []
    home = f"nb{int(number.split('.')[0]):02}"
    wrong = _Cell(exercise, HERE / "wrong_answers" / f"{home}.py")
    made += [Answer(what, wrong.source(node), False) for what, node in _declared_wrong(wrong.tree, number)]
    known = _Cell(exercise, CHECKS / f"{home}.py")
    made += [Answer(what, known.source(node), False) for what, node in _declared_mistakes(known.tree, number)]
    return (*made, *_halfway(exercise))


def _solution(exercise: Exercise) -> str:
    """The cell that answers an exercise in the lesson's solution."""
    lesson = course.find(exercise.number.split(".")[0].zfill(2))
    stub = f'raise NotImplementedError("exercise {exercise.number}")'
    return next(cell.solution for cell in build.convert(lesson) if cell.kind == "code" and stub in cell.student)


def _halfway(exercise: Exercise) -> list[Answer]:
    """What is handed in by those who ran out of time, made of the course's own answer."""
    source, name = _solution(exercise), exercise.name
    head = source[: source.index("\n")]
    started = source.splitlines()[: max(2, len(source.splitlines()) // 2)]
    fails = "\n".join([*started[:-1], "    to_be_done"]) if head.startswith("def") else f"class {name}:\n    todo"
    return [
        Answer("does not parse", f"{source}\nreturn (", False),
        Answer("gives nothing", f"def {name}(*args, **kwargs):\n    pass", False),
        Answer("a name that is not there", fails, False),
        Answer("another name", source.replace(name, f"my_{name}"), False),
    ]


def _declared_wrong(tree: ast.Module, number: str) -> list[tuple[str, ast.expr]]:
    """What is in WRONG for an exercise: what is wrong, and the name of the answer."""
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "WRONG")
    rows = next(rows for key, rows in zip(table.keys, table.values, strict=True) if key.value == number)
    return [(row.elts[0].value, row.elts[1]) for row in rows.elts]


def _declared_mistakes(tree: ast.Module, number: str) -> list[tuple[str, ast.expr]]:
    """The known mistakes that an exercise declares: the cause, and the expression that makes the function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Exercise":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if given["number"].value == number and "mistakes" in given:
                return [_pair(row) for row in _value(tree, given["mistakes"]).elts]
    return []


def _value(tree: ast.Module, node: ast.expr) -> ast.expr:
    """What a name of the module is bound to; anything else itself."""
    if not isinstance(node, ast.Name):
        return node
    return next(each.value for each in tree.body if node.id in _bound(each) and isinstance(each, ast.Assign))


def _pair(row: ast.expr) -> tuple[str, ast.expr]:
    """A row (cause, function), written as one tuple or as the sum of two."""
    cause, fn = row.elts if isinstance(row, ast.Tuple) else (*row.left.elts, *row.right.elts)
    return cause.value, fn


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement of a module binds."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


class _Cell:
    """Makes a cell of an answer that lives in a module: it and all that it needs from there, under the asked name."""

    def __init__(self, exercise: Exercise, path: Path) -> None:
        self.tree, self._name = _parsed(path), exercise.name

    def source(self, node: ast.expr) -> str:
        """The cell whose answer is what this expression of the module stands for."""
        found: dict[tuple[int, str], str] = {}
        if isinstance(node, ast.Name) and not isinstance(self._statement(node.id), ast.Assign):
            self._take(self.tree, node.id, found, answer=node.id)
            return "\n\n".join(found.values())
        self._follow(self.tree, node, found)
        return "\n\n".join([*found.values(), f"{self._name} = {ast.unparse(self._renamed(node))}"])

    def _statement(self, name: str) -> ast.stmt:
        return next(each for each in self.tree.body if name in _bound(each))

    def _follow(self, tree: ast.Module, node: ast.AST, found: dict) -> None:
        """Add what a piece of code needs of its module."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                self._take(tree, each.id, found)

    def _take(self, tree: ast.Module, name: str, found: dict, answer: str = "") -> None:
        """Add what binds a name after what that needs; answer: the name that is the exercise's from now on."""
        statement = next((each for each in tree.body if name in _bound(each)), None)
        key = (id(tree), name)
        if statement is None or key in found:
            return
        module = getattr(statement, "module", None) or ""
        if module.startswith("labkit.checks."):
            self._take(_parsed(CHECKS / f"{module.rpartition('.')[2]}.py"), name, found)
            return
        found[key] = ""  # so that what needs itself ends
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._follow(tree, statement, found)
        del found[key]
        found[key] = ast.unparse(self._renamed(statement, answer))

    def _renamed(self, node: ast.AST, answer: str = "") -> ast.AST:
        """The code with the asked name for the answer, and another for whatever had that one."""
        changed = copy.deepcopy(node)
        for each in ast.walk(changed):
            for field in ("id", "name"):
                if (name := getattr(each, field, None)) == self._name or (answer and name == answer):
                    setattr(each, field, self._name if name == answer else f"the_other_{self._name}")
        return changed


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
