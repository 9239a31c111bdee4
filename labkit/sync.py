"""Which lines of the learner's own code make the host wait for the device.

On CUDA the driver's side tells: torch's sync debug mode warns at each wait, and the warning is laid to the line that
runs. Elsewhere the operations that would wait on a GPU are watched for, by two modes of torch: one sees functions
(`.cpu()`, printing), the other the operations beneath (`nonzero` inside `where`). While a `device_thread` is open, its
handles are the device's tensors and others the host's; where there is no device at all, every tensor stands in for one.
"""

import ast
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit import lines, show
from labkit.units import format_s


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line that made the host wait: where it stands, the operation, how often, how long, what to write instead.

    seconds: what the host spent inside the call; not a number where only the driver noticed the wait.
    """

    file: str
    line: int
    op: str
    count: int
    seconds: float
    advice: str

    @property
    def source(self) -> str:
        """The text of the line; empty where it cannot be read."""
        return lines.source(self.file, self.line)

    @property
    def place(self) -> str:
        """`In[5], line 3` for a cell, `train.py, line 12` for a file."""
        return lines.place(self.file, self.line)


class Report:
    """The waits that `watch` noticed, as rows; grows while the watch goes on."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], list[Any]] = {}

    def add(self, place: tuple[str, int], op: str, seconds: float, advice: str) -> None:
        """Count one wait at a place (file, line)."""
        entry = self._found.setdefault((*place, op), [0, 0.0, advice])
        entry[0] += 1
        entry[1] += seconds

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row a line and operation, in the order in which they first waited."""
        return tuple(
            Row(file=file, line=line, op=op, count=count, seconds=seconds, advice=advice)
            for (file, line, op), (count, seconds, advice) in self._found.items()
        )

    def show(self) -> None:
        """Show the rows as a table, or that there are none; a stored output is not held to places and seconds.

        (The number of a cell hangs on what ran before it.)
        """
        if not self.rows:
            show.show("No line made the host wait.")
            return
        headings = ["source", "line", "waits in", "times", "host seconds", "write instead"]
        body = [
            [row.source[:60], row.place, row.op, row.count, _seconds(row.seconds), row.advice] for row in self.rows
        ]
        show.table(headings, body, varying=["line", "host seconds"])


def _seconds(seconds: float) -> str:
    """Seconds for people; not a number where nobody measured them."""
    return "not known" if math.isnan(seconds) else format_s(seconds)


@contextmanager
def watch(device: object = None) -> Iterator[Report]:
    """Report each line of this thread's own code that makes the host wait for the device, while the block runs.

    device: where only one device's waits count, that device or its name; "cpu" lets every tensor stand in. Ignores, on
    a machine without a GPU, what only a driver knows: operations that check their input (multinomial, linalg), saving
    to a file; on a GPU, what its driver does not report: torch.distributed, torch.sparse.
    """
    from labkit.watcher import watching

    report = Report()
    with watching(report.add, device):
        yield report


def syncs(line: str, cell: str) -> None:  # noqa: ARG001 (what stands behind the magic's name)
    """The cell magic `%%syncs`: run the cell, then show which of its lines made the host wait.

    As in any cell, an expression at the end is shown, unless a semicolon follows. SyntaxError: a cell with `await`.
    """
    from IPython import get_ipython

    shell = get_ipython()
    code = "\n" + shell.transform_cell(cell)  # an empty line where %%syncs stands, so that line numbers agree
    name = shell.compile.cache(code, lines.running_cell(shell), raw_code=cell)
    body = ast.parse(code, name).body
    report = Report()
    try:
        with watch() as report:
            for node in body:
                last = node is body[-1] and isinstance(node, ast.Expr) and not cell.rstrip().endswith(";")
                unit = ast.Interactive([node]) if last else ast.Module([node], [])
                exec(shell.compile(unit, name, "single" if last else "exec"), shell.user_ns)
    finally:
        report.show()


def load_ipython_extension(shell: Any) -> None:
    """Register `%%syncs` (also: %load_ext labkit.sync)."""
    shell.register_magic_function(syncs, magic_kind="cell")


if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
    load_ipython_extension(shell)
