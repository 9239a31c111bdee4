"""The grader's commands: what they take, and what they say. Each stands beside the others of `labkit`."""

import json as json_module
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from labkit import course

app = typer.Typer()


@app.command()
def release(
    lesson: Annotated[str, typer.Argument(help="Such as 12 or ddp_in_a_notebook.")],
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Which folder to write.")] = None,
) -> None:
    """Write the notebook to hand out and a signed manifest, by which what comes back is told from what went out."""
    from labkit.grading import release as module

    found = course.find(lesson)
    for path in module.release(found, Path(out) if out else Path(f"release_{found.name}")):
        print(f"wrote {path}")


@app.command()
def collect(
    source: Annotated[str, typer.Argument(help="A folder, a zip from Canvas, Moodle or Gradescope, or a notebook.")],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where a folder for each student goes.")],
    pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="What the whole of an id looks like.")] = None,
    roster: Annotated[str | None, typer.Option(metavar="CSV", help="Who may hand in; a grade book will do.")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Sort what was handed in by student; exit code 1 where anything was refused, with the rest there all the same."""
    from labkit.grading import collect as module
    from labkit.grading import roster as rosters

    known = rosters.load(Path(roster)) if roster else None
    found = module.collect(Path(source), Path(out), pattern, known)
    counted = Counter(one.status for one in found)
    if json:
        print(json_module.dumps([asdict(one) for one in found], indent=1))
    else:
        for one in found:
            late = " (late)" * one.late
            print(f"{one.student:24} {one.status:10} {', '.join(one.files)}{late}".rstrip())
            for sentence in one.sentences:
                print(f"    {sentence}")
        print(", ".join(f"{counted[status]} {status}" for status in sorted(counted)) or "Nothing was handed in.")
    raise typer.Exit(1 if counted["refused"] else 0)
