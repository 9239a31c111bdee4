"""`labkit runs`: what was recorded, how two runs differ, and a run made again."""

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from labkit.units import format_s

app = typer.Typer(help="Recorded runs: list, show, compare, and make one again.", invoke_without_command=True)
_Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
_Id = Annotated[str, typer.Argument(help="A run's name, or any part of its id.")]
_Context: Any = typer.Context.__mro__[1]  # what typer hands in is of the base of the class by which it is asked
_WIDTH = 60


def _store() -> Any:
    """The store of this course."""
    from labkit.repro.places import runs_folder
    from labkit.repro.store import Store

    return Store(runs_folder())


@app.callback()
def runs(context: _Context, json: _Json = False) -> None:
    """List recorded runs, the oldest first."""
    if context.invoked_subcommand:
        return
    kept = _store()
    found = kept.all()
    if json:
        print(json_module.dumps(found, indent=1))
        return
    for one in found:
        took = "" if one["seconds"] is None else format_s(one["seconds"])
        code = (one["revision"] or "no git")[:8] + ("+" if (one["patch"] or {}).get("text") else "")
        print(f"{one['id']}  {one['name'][:24]:24}  {one['status']:20}  {took:>8}  {code}")
    if not found:
        print(f"No run is recorded in {kept.folder}.")
        print("In Python: from labkit.repro import run; with run('name') as it: ...")


@app.command()
def show(run: _Id, json: _Json = False) -> None:
    """What is recorded of a run."""
    kept = _store()
    record = kept.find(run)
    rows = kept.metrics(record["id"])
    if json:
        print(json_module.dumps(record | {"metrics": rows}, indent=1))
        return
    for key in ("id", "name", "status", "why", "remakes", "date", "seconds", "command", "config", "data", "seeds"):
        if record.get(key):
            print(f"{key:12} {record[key]}")
    for line in _code_lines(record):
        print(f"{'code':12} {line}")
    print(f"{'hardware':12} {record['hardware']['name']}")
    print(f"{'packages':12} {len(record['packages'])}, Python {record['versions']['python']}")
    for name, value in {name: value for _, name, value in rows}.items():
        print(f"{'last':12} {name} = {value}")
    for key, value in record["results"].items():
        print(f"{'result':12} {key} = {value}")
    print(f"{'removed':12} {_removed(record)}")
    print(f"{'kept as':12} {kept.folder / record['id']}.json")


def _code_lines(record: dict) -> list[str]:
    """Which code ran, a line for each part."""
    cells = [f"{len(record['cells'])} cells as they ran"] if record.get("cells") else []
    if record["revision"] is None:
        return [*(cells or ["not recorded: there is no git here, or no commit"])]
    from labkit.repro.differ import changed_files

    patch = record["patch"]
    files = [f"with uncommitted changes of {name}" for name in changed_files(patch["text"])]
    left = [f"without {one['path']} ({one['bytes']} bytes): its hash alone is kept" for one in patch["left_out"]]
    why = [f"uncommitted changes could not be read: {patch['why']}"] if patch.get("why") else []
    return [f"revision {record['revision']}", *files, *left, *why, *cells]


def _removed(record: dict) -> str:
    """How many places of a record looked like a secret, and what that means."""
    from labkit.repro.scrub import REMOVED

    count = json_module.dumps(record).count(REMOVED)
    told = f"{count} place{'' if count == 1 else 's'} looked like a secret"
    return told + (": it cannot be made again" if (record["patch"] or {}).get("removed") else "")


@app.command()
def compare(first: _Id, second: _Id, json: _Json = False) -> None:
    """What differs between two runs, what usually matters first, and where their metrics part. Exit code 1: they do."""
    from labkit.repro import differ

    kept = _store()
    a, b = kept.find(first), kept.find(second)
    found = differ.differences(a, b)
    parting = differ.parting(kept.metrics(a["id"]), kept.metrics(b["id"]))
    if json:
        _print_json({"differences": [asdict(one) for one in found], "metrics": asdict(parting)})
    else:
        _print_differences(found)
        print(_agreement(parting))
    raise typer.Exit(0 if parting.same else 1)


@app.command()
def remake(run: _Id, json: _Json = False) -> None:
    """Make a run again from its record and compare what it measures. Exit code 0: alike to the last bit."""
    from labkit.repro import remake as module

    kept = _store()
    old = kept.find(run)
    if not json:
        took = "" if old["seconds"] is None else f", which took {format_s(old['seconds'])}"
        print(f"Making {old['id']} again ({old['name']}){took} ...", file=sys.stderr, flush=True)
    made = module.remake(kept, old)
    if json:
        told = {"remade": made.record and made.record["id"], "why": made.why, "same": made.same}
        told["missing"] = made.missing
        told["differences"] = [asdict(one) for one in made.found]
        told["metrics"] = made.parting and asdict(made.parting)
        _print_json(told)
        raise typer.Exit(0 if made.same else 1)
    for name in made.missing:
        print(f"not recorded: {name}")
    _print_differences(made.found)
    if made.why:
        print(made.why)
    if made.record and made.parting:
        print(f"remade as {made.record['id']}: {_agreement(made.parting)}")
    raise typer.Exit(0 if made.same else 1)


def _print_json(told: dict) -> None:
    """As JSON, which has no word for not-a-numbers and infinities: they become text."""
    from labkit.repro.scrub import scrub

    print(json_module.dumps(scrub(told), indent=1, allow_nan=False))


def _print_differences(found: Sequence[Any]) -> None:
    """A line for each, texts cut to fit."""
    for one in found:
        print(f"{one.kind}: {one.what}: {_cut(one.first)} | {_cut(one.second)}")
    if not found:
        print("No difference in configuration, data, seeds, code, settings, versions or hardware.")


def _cut(text: str) -> str:
    """The first line of a text, cut."""
    line = (text.strip().splitlines() or [""])[0]
    return line if line == text.strip() and len(line) <= _WIDTH else f"{line[:_WIDTH]} ..."


def _agreement(parting: Any) -> str:
    """How metrics agree, in a sentence or two."""
    if not parting.compared:
        return "There is no metric to compare: neither run has logged what the other one has."
    only = f" One run alone has: {', '.join(parting.only)}." if parting.only else ""
    if parting.at is None:
        return f"{parting.compared} values, all alike to the last bit.{only}"
    step, name, a, b = parting.at
    where = "" if step is None else f" at step {step}"
    gap = f"{parting.relative:.1e} of the larger; {parting.worst:.1e} at worst"
    part = f"They part{where} in {name}: {a!r} and {b!r} ({gap})"
    return f"{parting.equal} of {parting.compared} values are alike. {part}.{only}"
