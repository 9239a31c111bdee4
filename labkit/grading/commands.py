"""The grader's commands: what they take, and what they say. Each stands beside the others of `labkit`."""

import json as json_module
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit import course
from labkit.grading import handins, lateness
from labkit.grading import policy as policies
from labkit.grading import roster as rosters
from labkit.grading.lateness import Applied
from labkit.grading.roster import Roster

app = typer.Typer()


@app.command()
def release(
    lesson: Annotated[str, typer.Argument(help="Such as 12 or ddp_in_a_notebook.")],
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Which folder to write.")] = None,
) -> None:
    """Write the notebook to hand out and a signed manifest, by which what comes back is told from what went out."""
    from labkit.grading import release as module

    found = course.find(lesson)
    notebook, manifest = module.release(found, Path(out) if out else Path(f"release_{found.name}"))
    print(f"wrote {notebook}: give this to students, and nothing else.")
    print(f"wrote {manifest}: keep this for labkit grade --release.")
    print(f"It is signed with the key in {module.key_path()}: keep a copy of that file, and show it to nobody.")
    print("Without the key the manifest is refused and private inputs are others: release anew then.")


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


@app.command()
def grade(
    folder: Annotated[str, typer.Argument(help="A folder for each student, as labkit collect makes them.")],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where grades, feedback and what is kept go.")],
    lesson: Annotated[str | None, typer.Option("--lesson", metavar="NN", help="Which lesson was handed in.")] = None,
    nbgrader: Annotated[
        str | None, typer.Option(metavar="SOURCE.ipynb", help="Not a lesson: an instructor's notebook, with its tests.")
    ] = None,
    release: Annotated[str | None, typer.Option(metavar="MANIFEST", help="What labkit release wrote.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the private inputs; without it one that your key gives.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="How many students at a time.")] = 1,
    roster: Annotated[str | None, typer.Option(metavar="CSV", help="Who should have handed in.")] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="TOML", help="Lateness and weights; course.toml beside the roster.")
    ] = None,
    regrade: Annotated[bool, typer.Option("--regrade", help="Judge anew; points set by hand stay.")] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Without a sandbox, for code that you trust.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results, a line each.")] = False,
) -> None:
    """Grade a class; killed or run again, it goes on where it was.

    Exit code 1: an exercise could not be graded, or nobody handed in a notebook of this lesson.
    """
    from labkit.grading import console, locked, tables
    from labkit.grading import grade as module
    from labkit.grading.box import available

    if not trusted and (why := available()):
        raise course.CourseError(why)
    batch = _batch(lesson, nbgrader, release, seed, trusted)
    name = batch.told()["lesson"]
    listed = rosters.load(Path(roster)) if roster else None
    known = [one.id for one in listed.students] if listed else []
    path = policies.find(Path(policy) if policy else None, Path(roster) if roster else None)
    late = _late(path, batch, Path(folder), listed) if path else None
    console.refuse(Path(folder), Path(out), name)
    total = len(console.students(Path(folder)))
    with locked.held(Path(out), 5.0), console.Bar(total) as bar:
        if listed:
            tables.keep_names(listed, Path(out))
        more = {"jobs": jobs, "students": known, "regrade": regrade, "policy": late, "progress": bar.more}
        try:
            rows = module.grade(Path(folder), batch, Path(out), **more)
        except KeyboardInterrupt:
            bar.close()
            print(console.STOPPED, file=sys.stderr)
            raise typer.Exit(130) from None
    if json:
        for row in rows:
            print(json_module.dumps(row, ensure_ascii=False))
    else:
        for line in console.ending(rows, Path(out), bar.kept or 0) + handins.unread(listed if late else None):
            print(line)
        if trusted:
            print("Without a sandbox: run.json says so.")
    if strange := console.strangers(rows, Path(out), name):
        print(strange, file=sys.stderr)
    raise typer.Exit(1 if strange or any(row["status"] == "ungraded" for row in rows) else 0)


def _batch(lesson: str | None, nbgrader: str | None, release: str | None, seed: int | None, trusted: bool) -> Any:
    """What is to be graded. CourseError: these options say nothing, or do not go together."""
    from labkit.grading import advisory, assignment
    from labkit.grading import grade as module
    from labkit.grading import release as releases

    if nbgrader and (lesson or release or seed is not None):
        raise course.CourseError("--nbgrader brings tests of its own: leave --lesson, --release and --seed out.")
    if nbgrader:
        return advisory.Batch(assignment=assignment.load(Path(nbgrader)), trusted=trusted)
    if not lesson:
        raise course.CourseError("Say what was handed in: --lesson NN, or --nbgrader SOURCE.ipynb.")
    asked = course.find(lesson)
    made = releases.load(Path(release)) if release else releases.from_course(asked)
    if made.lesson != asked.name:
        raise course.CourseError(f"{release} is the release of {made.lesson}, not of {asked.name}.")
    return module.Batch(release=made, seed=module.private_seed(made) if seed is None else seed, trusted=trusted)


def _late(path: Path, batch: Any, folder: Path, known: Roster | None) -> Applied:
    """What the course's policy makes of when they handed in."""
    exercises = [row["exercise"] for row in batch.nothing()]
    terms = policies.load(path, batch.told()["lesson"], exercises)
    return lateness.applied(terms, handins.of_class(folder, known))


_Graded = Annotated[str, typer.Option("--out", metavar="DIR", help="What labkit grade wrote.")]


@app.command()
def override(
    student: Annotated[str, typer.Argument(help="The student's id.")],
    exercise: Annotated[str, typer.Argument(help="Such as 1.2.")],
    points: Annotated[float, typer.Argument(help="What it is worth.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="For the student to read.")],
    out: _Graded,
) -> None:
    """Set the points of an exercise by hand; kept apart from the verdict, and through every regrade."""
    from labkit.grading import locked, tables

    tables.results(Path(out))  # a folder that holds none is not touched
    with locked.held(Path(out)):
        row = tables.override(Path(out), student, exercise, points, why)
        tables.refresh(_title_of(Path(out)), Path(out))
    print(f"{row['student']}, exercise {row['exercise']}: {row['points']} of {row['max_points']} points.")


@app.command()
def export(
    out: Annotated[str, typer.Argument(help="What labkit grade wrote.")],
    to: Annotated[str, typer.Option("--to", metavar="FORM", help="csv, canvas, moodle or gradescope.")],
    file: Annotated[str, typer.Option("--file", metavar="PATH", help="The file, for gradescope a folder, to write.")],
    roster: Annotated[str | None, typer.Option(metavar="CSV", help="The grade book's own export.")] = None,
    column: Annotated[str, typer.Option(metavar="NAME", help="Canvas's assignment, such as 'HW 01 (555)'.")] = "",
) -> None:
    """Write the grades as a grade book takes them."""
    from labkit.grading import gradebook, tables

    known = rosters.load(Path(roster)) if roster else None
    if roster and Path(file).resolve() == Path(roster).resolve():
        raise course.CourseError(f"{file} is the roster: give --file another name.")
    for path in gradebook.export(Path(out), to, Path(file), _title_of(Path(out)), known, column):
        print(f"wrote {path}")
    if open_ := tables.still_open(tables.adjusted(Path(out))):
        print(f"{open_} Their cells are empty.")


@app.command()
def similar(
    out: Annotated[str, typer.Argument(help="What labkit grade wrote.")],
    submissions: Annotated[str | None, typer.Option(metavar="DIR", help="Where they are now, if elsewhere.")] = None,
    release: Annotated[str | None, typer.Option(metavar="MANIFEST", help="What labkit release wrote.")] = None,
) -> None:
    """Show who wrote alike, side by side: a review aid, and no evidence."""
    from labkit.grading import release as releases
    from labkit.grading import similar as module
    from labkit.grading import similar_page

    run = _run_of(Path(out))
    if run.get("advisory"):
        raise course.CourseError(
            f"{out} was graded by an instructor's notebook: labkit similar compares lessons alone."
        )
    found = course.find(run["lesson"])
    made = releases.load(Path(release)) if release else releases.from_course(found)
    works = module.works(Path(submissions or run["submissions"]), made, found)
    pairs = module.pairs(works)
    for one in pairs[:20]:
        overlap, shared, exercises = similar_page.numbers(one)
        print(f"{overlap:>4}  {shared:>4} shared  {one.one.student}, {one.other.student}  ({exercises})")
    path = similar_page.write(pairs, run["title"], len(works), Path(out))
    print(f"{len(works)} students; {similar_page.count(pairs)}{f': {path} has them side by side' * bool(pairs)}.")
    print(similar_page.AID)


def _run_of(out: Path) -> dict:
    """What a run says of itself. CourseError: nothing was graded there."""
    path = out / "run.json"
    if not path.is_file():
        raise course.CourseError(f"{out} holds no run.json: it is what labkit grade writes.")
    return json_module.loads(path.read_text(encoding="utf-8"))


def _title_of(out: Path) -> str:
    """What was graded there."""
    path = out / "run.json"
    return json_module.loads(path.read_text(encoding="utf-8"))["title"] if path.is_file() else "?"
