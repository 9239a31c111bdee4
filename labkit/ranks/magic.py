"""The cell magic `%%ranks`: a cell that runs on every rank."""

import argparse
import ast
import shlex
import symtable
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist

from labkit import lines
from labkit.ranks import worker
from labkit.ranks.launching import run_ranks


class _Options(argparse.ArgumentParser):
    """The words after %%ranks; what is wrong with them is a ValueError, not the end of the program."""

    def error(self, message: str) -> NoReturn:
        """ValueError with what argparse has to say, and how the line should look."""
        raise ValueError(f"{message[0].upper()}{message[1:]}. {self.format_usage().strip()}")


def _options() -> _Options:
    """What %%ranks takes."""
    options = _Options(prog="%%ranks", add_help=False, allow_abbrev=False)
    options.add_argument("world_size", type=int)
    options.add_argument("--backend")
    options.add_argument("--devices", type=lambda text: text.split(",") if "," in text else text)
    options.add_argument("--timeout", type=float, default=60.0)
    options.add_argument("--to", metavar="NAME")
    return options


def ranks(line: str, cell: str) -> None:
    """The magic `%%ranks 2 [--to NAME] [--devices cpu] [--backend gloo] [--timeout 60]`: run the cell on each rank.

    Each rank has copies of the notebook's variables that the cell uses, and beside them rank, world_size and device;
    what it assigns stays there. The value of the last line is printed by each rank or, with --to, bound in the
    notebook to that name, as a list by rank. ValueError: the line is not understood. RankError: a rank failed.
    """
    from IPython import get_ipython

    shell, asked = get_ipython(), _options().parse_args(shlex.split(line))
    if asked.to is not None and not asked.to.isidentifier():
        raise ValueError(f"--to takes the name of a variable, not {asked.to!r}.")
    code = "\n" + shell.transform_cell(cell)  # an empty line where %%ranks stands, so that line numbers agree
    name = shell.compile.cache(code, lines.running_cell(shell), raw_code=cell)
    fn = as_function(code, name, shell.user_ns)
    how = {"backend": asked.backend, "devices": asked.devices, "timeout_s": asked.timeout}
    returned = run_ranks(_run, asked.world_size, fn, asked.to is None, **how)
    if asked.to is not None:
        shell.user_ns[asked.to] = returned


def as_function(code: str, name: str, variables: dict) -> Callable:
    """A cell as a function without arguments: it returns the value of its last line, and what it assigns is global."""
    tree = ast.parse(code, name)
    table = symtable.symtable(code, name, "exec")
    assigned = [each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()]
    body: list[ast.stmt] = [ast.Global(names=assigned)] if assigned else []
    *most, last = tree.body or [ast.Pass()]
    body += [*most, ast.Return(value=last.value) if isinstance(last, ast.Expr) else last]
    empty = ast.parse("def cell(): pass").body[0]
    empty.body = body
    module = ast.fix_missing_locations(ast.Module(body=[empty], type_ignores=[]))
    scope = {"__name__": "__main__", **{key: value for key, value in variables.items() if not key.startswith("_")}}
    exec(compile(module, name, "exec"), scope)
    return scope["cell"]


def _run(fn: Callable, shows: bool) -> Any:
    """What a cell's function gives on this rank; `shows`: it is printed, and None comes back."""
    fn.__globals__.update(rank=dist.get_rank(), world_size=dist.get_world_size(), device=worker.device())
    value = fn()
    if not shows:
        return value
    if value is not None:
        print(value if isinstance(value, str) else repr(value))
    return None


def register() -> None:
    """Give the magic to the IPython that runs, if one does."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell:
        shell.register_magic_function(ranks, magic_kind="cell")
