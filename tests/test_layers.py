"""The shape of labkit: who may import whom, how long things may be, what must be said in a docstring."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

PACKAGE = Path(__file__).parents[1] / "labkit"

# A module imports from its own row only where the row says so, and otherwise from rows above it.
LAYERS = (
    {"units", "hardware", "course", "show", "setting", "unpacking", "budget", "drafts"} | {"architecture", "cards"},
    {"repro", "measure", "data", "formats", "models", "deadline", "ambient", "describe", "compare", "timeline"}
    | {"allocations", "collectives", "scratch"}
    | {"lines", "waits", "cost", "presets", "states", "live", "lm", "activations"} | {"activations_hf"}
    | {"lm_sizes", "tape", "optimizers"},
    {"train", "precision", "resize", "compilation", "figure", "trace", "timing"}
    | {"packing", "blocks", "balance", "loading"}
    | {"launches", "handles", "tasks", "estimate", "traffic", "device_cuda", "opened", "device_thread"}
    | {"watcher", "sync"}
    | {"ranks", "aftermath", "workshop"},
    {"plot", "plot_formats", "plot_roofline", "plot_timeline", "widgets", "explorer", "progress", "exercise", "judge"}
    | {"borrowed", "checker", "plot_masks"}
    | {"checks", "recording", "claims", "plot_links", "plot_memory", "advice", "memory_report"}
    | {"explorer_memory"},
    {"build", "execute", "doctor", "program", "run", "gpu_check", "cli", "parcel", "export", "grading"}
    | {"memory_command", "runs_command", "capstone", "verify", "verify_grid", "verify_real"},
)
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)
ENVIRONMENT = {"hardware", "ranks", "repro"}


def _name(path: Path) -> str:
    """The noun that a file belongs to: its own, or its package's."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> set[str]:
    """The labkit modules that a tree imports, at any depth."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "labkit":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("labkit.")}
    return found


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _body_lines(node: ast.FunctionDef) -> int:
    """Lines of a function's body, its docstring and blank lines left out (multi-line statements count each line)."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_its_own_row_and_those_above(path):
    name = _name(path)
    assert name in ROW, f"{name} stands in no layer: give it one in LAYERS"
    below = {other for other in imports(_tree(path)) - {name, "__version__"} if ROW.get(other, 99) > ROW[name]}
    assert not below, f"{name} (row {ROW[name]}) imports {sorted(below)} from rows below it"


def test_modules_do_not_import_each_other_in_a_circle():
    edges = {}
    for path in MODULES:
        edges.setdefault(_name(path), set()).update(imports(_tree(path)) - {_name(path)})
    while edges:
        free = [name for name, needs in edges.items() if not needs & edges.keys()]
        assert free, f"a circle of imports among {sorted(edges)}"
        for name in free:
            del edges[name]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300, f"{path.name} has more than 300 lines: split it"
    long = {node.name: _body_lines(node) for node in _functions(_tree(path)) if _body_lines(node) > 40}
    assert not long, f"{path.name}: functions of more than 40 lines: {long}"


def test_the_median_function_is_eight_lines_or_fewer():
    lengths = [_body_lines(node) for path in MODULES for node in _functions(_tree(path))]
    assert median(lengths) <= 8


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_everything_public_says_what_it_is(path):
    tree = _tree(path)
    assert ast.get_docstring(tree), f"{path.name} has no docstring"
    scopes = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    named = [node for scope in scopes for node in scope.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    silent = [node.name for node in named if not node.name.startswith("_") and not ast.get_docstring(node)]
    assert not silent, f"{path.name}: no docstring on {silent}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_environment_is_read_in_three_places_only(path):
    if _name(path) not in ENVIRONMENT:
        reads = re.findall(r"os\.environ\.get|os\.getenv|os\.environ\[[^\]]+\](?!\s*=[^=])", path.read_text())
        assert not reads, f"{path.name} reads the environment: that belongs in {sorted(ENVIRONMENT)}"


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_layer_0_and_the_command_line_start_without_torch():
    for statement in ("import labkit", *(f"import labkit.{name}" for name in sorted(LAYERS[0])), "import labkit.cli"):
        assert "torch" not in _loaded_by(statement), f"'{statement}' imports torch"


def test_import_labkit_adds_nothing_heavy_to_torch():
    """`import labkit` may take 1.1 times `import torch`: it brings no third-party package beside it."""
    ours = _loaded_by("import torch, labkit, labkit.checker, labkit.claims, labkit.measure")
    added = ours - _loaded_by("import torch")
    heavy = {"matplotlib", "sklearn", "IPython", "ipywidgets", "accelerate", "pandas", "scipy", "typer", "rich"}
    assert not heavy & {name.split(".")[0] for name in added}


def test_every_lazy_name_is_there():
    import labkit
    import labkit.checker
    import labkit.claims  # loading a module must not put it where a function of the same name belongs

    for name in labkit.__all__:
        assert isinstance(getattr(labkit, name), str) if name.startswith("__") else callable(getattr(labkit, name))
    with pytest.raises(AttributeError, match="labkit has no 'nonsense'"):
        _ = labkit.nonsense


def test_signatures_are_checked_in_this_run():
    """Without the hook every shape and type in a signature would be a comment."""
    from jaxtyping import TypeCheckError

    from labkit.units import format_s

    with pytest.raises(TypeCheckError):
        format_s("3 seconds")


def test_ruff_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", PACKAGE.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
