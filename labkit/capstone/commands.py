"""`labkit capstone` and `labkit leaderboard`."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit import hardware
from labkit.course import CourseError

app = typer.Typer()
PAIRS = 5
_Pairs = Annotated[int, typer.Option("--pairs", min=1, help="How often each script is run; 5 decide, 2 are a look.")]
_Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


@app.command()
def capstone(
    submission: Annotated[str | None, typer.Argument(help="A train.py, or a folder with one.")] = None,
    pairs: _Pairs = PAIRS,
    json: _Json = False,
    html: Annotated[str | None, typer.Option("--html", metavar="OUT", help="Also as a page of its own.")] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="DIR", help="Only write the data to train on.")] = None,
    waterfall: Annotated[
        bool, typer.Option("--waterfall", help="What each of the course's own changes gives.")
    ] = False,
) -> None:
    """Run the slow script and yours in turns: how many times faster to the same accuracy. Some minutes."""
    from labkit.capstone import report, task

    if data is not None:
        given = task.glyphs_task()
        task.hand_out(given, Path(data), task.numbering(given, 0))
        print(f"Wrote train.npz and validation.npz to {data}. The target is {given.target:g}.")
        return
    if waterfall:
        _waterfall(pairs, json)
        return
    if submission is None:
        raise CourseError("Name a submission: labkit capstone my/train.py.")
    found = _contest(Path(submission), pairs)
    print(report.as_json(found) if json else report.text(found), flush=True)  # first: the page may not be writable
    if html is not None:
        Path(html).write_text(report.html(found), encoding="utf-8")


@app.command()
def leaderboard(
    folder: Annotated[str, typer.Argument(help="A folder of submissions: a train.py or a folder with one, each.")],
    pairs: _Pairs = PAIRS,
    json: _Json = False,
) -> None:
    """Run every submission in a folder against the slow script on this machine, and rank them."""
    from labkit.capstone import report

    every = submissions(Path(folder))
    if not every:
        raise CourseError(f"{folder} holds no submission: a .py file, or a folder with a train.py.")
    found = [one for each in every if (one := _tried(each, pairs))]
    if json:
        print(json_module.dumps([report.as_dict(one) for one in report.ranked(found)], indent=1))
    else:
        print(report.leaderboard(found))


def submissions(folder: Path) -> list[Path]:
    """The submissions in a folder, by name."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [one for one in found if (one.is_file() and one.suffix == ".py") or (one / "train.py").is_file()]


def _contest(submission: Path, pairs: int) -> Any:
    from labkit.capstone import contest, task

    slow = contest.baseline_script()
    return contest.contest(task.glyphs_task(), submission, baseline=slow, pairs=pairs, say=_say)


def _tried(submission: Path, pairs: int) -> Any:
    """A contest, or None and a sentence where a submission cannot be run: it does not keep the others from theirs."""
    from labkit.capstone.report import ratio_told

    try:
        found = _contest(submission, pairs)
        _say(f"{submission.name}: {ratio_told(found.ratio)}")
        return found
    except Exception as error:  # a submission may leave anything: a folder without rights, a record that is none
        _say(f"{submission.name}: {error if isinstance(error, CourseError) else repr(error)}")
        return None


def _waterfall(pairs: int, json: bool) -> None:
    from labkit.capstone import waterfall

    found = waterfall.measured(pairs, say=_say)
    kept = {"machine": hardware.machine().name, "arms": found}
    print(json_module.dumps(kept, indent=1) if json else waterfall.text(found))


def _say(line: str) -> None:
    """Progress, beside the result."""
    print(line, file=sys.stderr, flush=True)
