"""The `labkit` command. Whatever a user can put right is said in one sentence, with exit code 2; never a traceback."""

import errno
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from labkit import __version__, course, runs_command
from labkit.capstone import commands as capstone_commands
from labkit.course import CourseError
from labkit.grading import commands
from labkit.memory_command import memory
from labkit.show import lenient_streams

app = typer.Typer(
    help="A bootcamp in notebooks: machine learning made fast, many-device and reproducible.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def main() -> NoReturn:
    """Run the command line; exits with its code."""
    lenient_streams()
    try:
        app()
    except CourseError as error:
        _stop(str(error))
    except OSError as error:
        _stop(_sentence(error))
    sys.exit(0)


def _stop(sentence: str, code: int = 2) -> NoReturn:
    """Say why and leave; what a terminal would obey, as in a file's name, is written as an escape."""
    signs = (sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in sentence)
    print("".join(signs), file=sys.stderr)
    sys.exit(code)


def _sentence(error: OSError) -> str:
    """What an error of the operating system means to the user."""
    where = error.filename or "the course's folder"
    if error.errno in _FULL:
        return f"The disk is full: could not write to {where}. Free some space and say it again."
    if error.errno in _DENIED:
        return f"Permission denied: {where}. Change its permissions, or copy the course to a folder of your own."
    return f"{error.strerror or error}" + (f": {error.filename}." if error.filename else ".")


def _version(asked: bool) -> bool:
    """Print the version, where it was asked for, and leave."""
    if asked:
        print(f"labkit {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which labkit.")
    ] = False,
) -> None:
    """A bootcamp in notebooks: machine learning made fast, many-device and reproducible."""


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False) -> None:
    """What this machine is, what each lesson gains from it, what is missing and how to get it."""
    from labkit import doctor as module

    report = module.report()
    if json:
        print(module.as_json(report))
    else:
        module.show(report)
    raise typer.Exit(0 if report.healthy else 1)


@app.command()
def run(lesson: Annotated[str, typer.Argument(help="Such as 01 or lr_warmup.")]) -> None:
    """Run a lesson without Jupyter; exit code 0 if no claim was refuted, 1 if one was or the lesson failed."""
    from labkit.run import run as run_lesson

    raise typer.Exit(run_lesson(course.find(lesson)).code)


@app.command()
def record(lesson: Annotated[str, typer.Argument(help="Such as 02 or progressive_resizing.")]) -> None:
    """Run a lesson and keep what it measured, under datasets/recorded/ and this machine's name, for others to see."""
    from labkit.run import run as run_lesson

    raise typer.Exit(run_lesson(course.find(lesson), record=True).code)


@app.command(context_settings={"ignore_unknown_options": True})
def lab(
    lesson: Annotated[str, typer.Argument(help="Which lesson to open.")] = "00",
    options: Annotated[list[str] | None, typer.Argument(help="Options for JupyterLab, such as --no-browser.")] = None,
) -> None:
    """Open JupyterLab on a lesson's notebook."""
    if find_spec("jupyterlab") is None:
        raise CourseError(f"JupyterLab is not installed: run {sys.executable} -m pip install -e '.[lab]'.")
    notebook = course.find(lesson).student
    if not notebook.exists():
        raise CourseError(f"{notebook.parent.name}/{notebook.name} is not there: run labkit build.")
    place = [f"--ServerApp.root_dir={course.root()}", f"--LabApp.default_url=/lab/tree/notebooks/{notebook.name}"]
    command = [sys.executable, "-m", "jupyterlab", *place, *(options or [])]
    os.chdir(course.root())
    if os.name == "nt":
        raise typer.Exit(subprocess.call(command))
    os.execv(command[0], command)  # Ctrl-C and the end of the terminal then reach JupyterLab itself


@app.command()
def build(
    execute: Annotated[str | None, typer.Option("--execute", metavar="NN", help="Also run this lesson.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; say what is not as it should be.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite notebooks that were edited by hand.")] = False,
) -> None:
    """Make the notebooks from solutions/NN_topic.py."""
    from labkit import build as module

    if check:
        problems = module.check()
        for line in problems or ["Every notebook is what its source makes."]:
            print(line)
        raise typer.Exit(1 if problems else 0)
    try:
        if execute is not None:
            from labkit import execute as executing

            lines = executing.execute(course.find(execute), force=force)
        else:
            lines = module.build(course.lessons(), force=force)
    except KeyboardInterrupt:
        _stop("Interrupted; no notebook is left half-written.", 130)
    for line in lines or ["Nothing to do: every notebook is what its source makes."]:
        print(line)


_Lesson = Annotated[str, typer.Argument(help="Such as 12 or ddp_in_a_notebook.")]
_Solution = Annotated[bool, typer.Option("--solution", help="The solved notebook, not the learner's.")]
_Out = Annotated[str | None, typer.Option("--out", metavar="DIR", help="Which folder to write.")]


@app.command()
def kaggle(
    lesson: _Lesson,
    solution: _Solution = False,
    out: _Out = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Your name on Kaggle.")] = None,
) -> None:
    """Write a folder to push to Kaggle: one notebook that needs no installation and no network, for two T4s."""
    _export("kaggle", lesson, solution, out, user)


@app.command()
def colab(lesson: _Lesson, solution: _Solution = False, out: _Out = None) -> None:
    """Write a folder with a notebook to upload to Colab: it needs no installation and no network, for one GPU."""
    _export("colab", lesson, solution, out)


def _export(place: str, lesson: str, solved: bool, out: str | None, user: str | None = None) -> None:
    """Write the notebook that travels and say so."""
    from labkit import export

    folder = None if out is None else Path(out)
    for line in export.export(course.find(lesson), export.PLACES[place], solved=solved, folder=folder, user=user):
        print(line)


@app.command()
def trace(
    file: Annotated[str, typer.Argument(help="A Chrome trace, as torch.profiler exports it; gzip or not.")],
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    html: Annotated[str | None, typer.Option("--html", metavar="OUT", help="Also as a page of its own.")] = None,
) -> None:
    """What the device did in a profiler trace, why it stood idle, and which steps were slow."""
    from labkit import trace as module

    page = None if html is None else _page_file(html, file)
    try:
        report = module.report(file)
    except module.TraceError as error:
        _stop(str(error))
    if page is not None:
        page.write_bytes(report.html().encode())
    print(report.json() if json else report.text())


def _page_file(html: str, trace_file: str) -> Path:
    """Where the page goes. CourseError: a name for no file, or the trace itself, which would be lost."""
    page, read = Path(html), Path(trace_file)
    if html in ("", "-"):
        raise CourseError("Name a file for the page, such as --html page.html.")
    if page.exists() and read.exists() and page.samefile(read):
        raise CourseError(f"{page} is the trace itself: give the page another name.")
    return page


app.command()(memory)
app.add_typer(commands.app)
app.add_typer(runs_command.app, name="runs")
app.add_typer(capstone_commands.app)


@app.command()
def progress(reset: Annotated[bool, typer.Option("--reset", help="Forget what was solved.")] = False) -> None:
    """Which exercises you have solved."""
    from labkit import build as module
    from labkit import progress as marks

    if reset:
        count = marks.reset()
        print(f"Forgot {count} solved exercise{'' if count == 1 else 's'}.")
        return
    solved = marks.solved()
    for lesson in course.lessons():
        numbers = module.exercises(lesson)
        done = " ".join(f"{'✓' if number in solved else '·'} {number}" for number in numbers)
        print(f"{lesson.name:24} {sum(n in solved for n in numbers)} of {len(numbers)}   {done}")


if __name__ == "__main__":
    main()
