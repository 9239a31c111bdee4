"""Run a lesson's solution in a fresh kernel and store its outputs, all of them or none."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from labkit import build
from labkit.build import Converted
from labkit.course import CourseError, Lesson

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r"Cell In\[(\d+)\], line (\d+)")
_WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(lesson: Lesson, *, force: bool = False) -> list[str]:
    """Execute the lesson and write both notebooks; returns what was written, a line each.

    A cell that fails, that writes to stderr or that kills the kernel is a CourseError naming the line of the source,
    and the notebooks on disk stay as they were.
    """
    _need_jupyter()
    build.clean()
    if not force:
        build.refuse_edited([lesson.student, lesson.solution])
    cells = build.convert(lesson)
    solved = build.solution_notebook(cells, _outputs(lesson, cells), build.code_sha256(cells))
    texts = {lesson.student: build.student_notebook(cells), lesson.solution: solved}
    return [f"wrote {build.name_of(path)}" for path, text in texts.items() if build.write(path, text)]


def _need_jupyter() -> None:
    """A sentence where executing is not possible, before anything starts."""
    missing = [name for name in ("nbclient", "nbformat", "ipykernel") if find_spec(name) is None]
    if missing:
        raise CourseError(f"Executing needs {', '.join(missing)}: run {sys.executable} -m pip install -e '.[lab]'.")


def _outputs(lesson: Lesson, cells: Sequence[Converted]) -> list[list]:
    """The outputs of every code cell, in order."""
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from tqdm import tqdm

    code = [cell for cell in cells if cell.kind == "code"]
    collected = []
    with client_of(build.solution_notebook(cells), lesson.solution) as client:
        places = [i for i, cell in enumerate(client.nb.cells) if cell.cell_type == "code"]
        for number, place in enumerate(tqdm(places, desc=lesson.name, unit="cell", disable=None, leave=False)):
            line = code[number].lines[0] if code[number].lines else 0
            try:
                ran = client.execute_cell(client.nb.cells[place], place)
            except CellExecutionError as error:
                line = _line(error.traceback, code) or line
                raise _failed(lesson, line, f"{error.ename}: {error.evalue}".rstrip(".")) from error
            except DeadKernelError as error:
                raise _failed(lesson, line, "the kernel died in the cell that starts here") from error
            loud = "".join(output["text"] for output in ran.outputs if output.get("name") == "stderr").strip()
            if loud:
                raise _failed(
                    lesson, line, f"the cell that starts here wrote to stderr: {loud.strip().splitlines()[0]}"
                )
            collected.append([tidy for output in ran.outputs if (tidy := _tidy(output, number + 1))])
    return collected


def _failed(lesson: Lesson, line: int, what: str) -> CourseError:
    """The sentence that says why there are no new outputs."""
    return CourseError(f"{lesson.source.name}, line {line}: {what}. No notebook was changed.")


@contextmanager
def client_of(text: str, path: Path, *, budget: str = "full") -> Iterator:
    """An nbclient for a notebook's text, on a fresh kernel of this very Python, in the folder of `path`."""
    import nbformat
    from ipykernel.kernelspec import RESOURCES, get_kernel_dict
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisPython(KernelSpecManager):
        """Ignores what kernels the user has registered: their 'python3' may be another Python."""

        def get_kernel_spec(self, kernel_name: str) -> object:  # noqa: ARG002
            return self.kernel_spec_class(resource_dir=RESOURCES, **get_kernel_dict())

    notebook = nbformat.reads(text, as_version=4)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=None,
        iopub_timeout=60,
        store_widget_state=False,
        record_timing=False,
    )
    with tempfile.TemporaryDirectory() as profile:
        env = os.environ | {
            "IPYTHONDIR": profile,  # nobody's start-up files
            "JPY_SESSION_NAME": str(path),
            "LABKIT_BUDGET": budget,
            "LABKIT_QUIET": "1",
            "LABKIT_STRICT": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        silent = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }  # the kernel's own log, not a cell's words
        with client.setup_kernel(cwd=str(path.parent), env=env, cleanup_kc=True, **silent):
            yield client


def _line(traceback: str, code: Sequence[Converted]) -> int | None:
    """The source line that a kernel's traceback ends in, None where it names no cell of the lesson."""
    named = _PLACE.findall(_COLOUR.sub("", traceback))
    if not named:
        return None
    cell, line = (int(part) for part in named[-1])
    ran = [part for part in code if part.solution]
    inside = 0 < cell <= len(ran) and 0 < line <= len(ran[cell - 1].lines)
    return ran[cell - 1].lines[line - 1] if inside else None


def _tidy(output: dict, count: int) -> dict | None:
    """An output as it is stored: texts as lists of lines, no widget views, None where nothing else was in it."""
    if output["output_type"] == "stream":
        return {"output_type": "stream", "name": output["name"], "text": output["text"].splitlines(keepends=True)}
    data = {mime: _lines(mime, value) for mime, value in output["data"].items() if mime != _WIDGET}
    kept = {"output_type": output["output_type"], "data": data, "metadata": dict(output.get("metadata", {}))}
    if output["output_type"] == "execute_result":
        kept["execution_count"] = count
    return kept if data else None


def _lines(mime: str, value: object) -> object:
    """A text as a list of lines, as nbformat stores it; JSON stays as it is."""
    return value if mime.endswith("json") or not isinstance(value, str) else value.splitlines(keepends=True)
