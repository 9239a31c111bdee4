"""The cell magic `%%ranks`: a cell that runs on every rank."""

import __future__

import argparse
import ast
import dis
import io
import keyword
import re
import shlex
import sys
import tokenize
from collections.abc import Callable
from functools import reduce
from types import CodeType
from typing import Any, NoReturn

import torch.distributed as dist

from labkit import lines
from labkit.ranks import worker
from labkit.ranks.errors import RankError
from labkit.ranks.launching import run_ranks

_FUTURES = reduce(lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0)
_READS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"}
_GIVEN = {"rank", "world_size", "device"}
# What IPython puts among a notebook's variables: what the cells gave, and names that it may have been asked to rebind.
_HISTORY = re.compile(r"_{1,3}|_i{0,3}\d*|_[iod]h|__annotations__|__conditional_annotations__|__builtins?__|__loader__")
_OF_THE_SHELL = {"In", "Out", "get_ipython", "exit", "quit", "open"}
_NO_IPYTHON = "A rank has no IPython: magics (%) and shell commands (!) do not work in a cell of %%ranks."


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


class _Refused(ValueError):
    """A SyntaxError of the cell, shown like any cell's: to a SyntaxError proper IPython adds this package's lines."""

    def __init__(self, error: SyntaxError, shell: Any) -> None:
        super().__init__(str(error))
        self._shown = shell.SyntaxTB.structured_traceback(SyntaxError, error, [])

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows."""
        return self._shown


_Refused.__name__ = "SyntaxError"  # the name that a notebook's file keeps


def ranks(line: str, cell: str) -> None:
    """The magic `%%ranks 2 [--to NAME] [--devices cpu] [--backend gloo] [--timeout 60]`: run the cell on each rank.

    Each rank has copies of the notebook's variables that the cell uses, and beside them rank, world_size and device;
    what it assigns stays there. The value of the last line is printed by each rank, unless a semicolon ends it, or
    bound in the notebook with --to to that name, as a list by rank.

    ValueError: the line is not understood, or the cell needs IPython. RankError: a rank failed.
    """
    from IPython import get_ipython

    shell, asked = get_ipython(), _options().parse_args(shlex.split(line))
    if asked.to is not None and (not asked.to.isidentifier() or keyword.iskeyword(asked.to)):
        raise ValueError(f"--to takes the name of a variable, not {asked.to!r}.")
    code = "\n" + shell.transform_cell(cell)  # an empty line where %%ranks stands, so that line numbers agree
    name = shell.compile.cache(code, lines.running_cell(shell), raw_code=cell)
    valued = asked.to is not None or not _is_quiet(cell)
    try:
        body, last = compiled(code, name, flags=shell.compile.flags & _FUTURES, valued=valued)
    except SyntaxError as error:
        raise _Refused(error, shell) from None
    how = {"backend": asked.backend, "devices": asked.devices, "timeout_s": asked.timeout}
    carrier = _carrier(_reads(body) | (_reads(last) if last else set()), shell)
    try:
        returned = run_ranks(_run, asked.world_size, carrier, body, last, asked.to is None, **how)
    except RankError as error:
        if error.kind == "unpicklable" and "the variable get_ipython " in str(error):  # a function that it calls does
            raise ValueError(_NO_IPYTHON) from None
        raise
    if asked.to is not None:
        shell.user_ns[asked.to] = returned


def compiled(code: str, name: str, *, flags: int, valued: bool) -> tuple[CodeType, CodeType | None]:
    """A cell as a notebook compiles it: its statements, and the expression on its last line, if its value is wanted.

    flags: the features of the future that the notebook has imported. SyntaxError: the cell is not Python.
    """
    try:
        whole = compile(code, name, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        if "outside" in error.msg and re.search("await|async", error.msg):
            error.msg += ": a cell of %%ranks has no event loop; asyncio.run(...) runs one"
        raise
    tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    if not (valued and tree.body and isinstance(tree.body[-1], ast.Expr)):
        return whole, None
    flags |= whole.co_flags & _FUTURES
    last = ast.Expression(tree.body.pop().value)
    return (
        compile(tree, name, "exec", flags, dont_inherit=True),
        compile(last, name, "eval", flags, dont_inherit=True),
    )


def _is_quiet(cell: str) -> bool:
    """Whether a cell ends with a semicolon, which keeps the value of its last line to itself."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(cell).readline))
    except (tokenize.TokenError, SyntaxError):  # what it is, is said when it is compiled
        return False
    blank = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
    return next((token.string for token in reversed(tokens) if token.type not in blank), "") == ";"


def _reads(code: CodeType) -> set[str]:
    """The global names that a code and what it defines read."""
    inner = (_reads(each) for each in code.co_consts if isinstance(each, CodeType))
    return {each.argval for each in dis.get_instructions(code) if each.opname in _READS}.union(*inner)


def _carrier(names: set[str], shell: Any) -> Callable:
    """A function that takes the notebook's variables of these names along, with what the functions among them use.

    All of them are functions of the notebook, so that in the rank they have one namespace, as they have here. What the
    cell assigns there is then what a function from another cell finds.
    """
    variables, hidden = shell.user_ns, shell.user_ns_hidden
    of_the_shell = {name for name in _OF_THE_SHELL if name in hidden and variables.get(name) is hidden[name]}
    if "get_ipython" in names:
        raise ValueError(_NO_IPYTHON)
    known = (name for name in names - _GIVEN - of_the_shell if name in variables and not _HISTORY.fullmatch(name))
    return eval(f"lambda: [{', '.join(sorted(known))}]", variables)


def _run(carrier: Callable, body: CodeType, last: CodeType | None, shows: bool) -> Any:
    """What a cell gives on this rank; `shows`: it is printed, and None comes back."""
    space = carrier.__globals__
    vars(sys.modules["__main__"])["__getattr__"] = _found_in(space)
    space.update(rank=dist.get_rank(), world_size=dist.get_world_size(), device=worker.device())
    exec(body, space)
    value = None if last is None else eval(last, space)
    if not shows:
        return value
    if value is not None:
        print(value if isinstance(value, str) else repr(value))
    return None


def _found_in(space: dict) -> Callable:
    """A __getattr__ for the module __main__, where pickle looks for the classes of a cell by their names."""

    def found(name: str) -> Any:
        try:
            return space[name]
        except KeyError:
            raise AttributeError(f"module '__main__' has no attribute {name!r}") from None

    return found


def register() -> None:
    """Give the magic to the IPython that runs, if one does."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell:
        shell.register_magic_function(ranks, magic_kind="cell")
