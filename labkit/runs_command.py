"""`labkit runs`: what was recorded, how two runs differ, and a run made again."""

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from labkit.units import format_s

app = typer.Typer(help="Recorded runs: list, show, compare, and make one again.", invoke_without_command=True)
_Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
_Id = Annotated[str, typer.Argument(help="Any part of a run's id, or its name.")]
_Context: Any = typer.Context.__mro__[1]  # what typer hands in is of the base of the class by which it is asked
_WIDTH = 60


def _store() -> Any:
    """The store of this course."""
    from labkit.repro import store, tracking

    return store.Store(tracking.folder())


@app.callback()
def runs(context: _Context, json: _Json = False) -> None:
    """List recorded runs, the oldest first."""
    if context.invoked_subcommand:
        return
    found = _store().all()
    if json:
        print(json_module.dumps(found, indent=1))
        return
    for one in found:
        took = "" if one["seconds"] is None else format_s(one["seconds"])
        code = (one["revision"] or "no git")[:8] + ("+" if (one["patch"] or {}).get("text") else "")
        print(f"{one['id']}  {one['name'][:24]:24}  {one['status']:20}  {took:>8}  {code}")
    if not found:
        print("No run is recorded. In Python: from labkit.repro import run; with run('name') as it: ...")


@app.command()
def show(run: _Id, json: _Json = False) -> None:
    """What is recorded of a run."""
    kept = _store()
    record = kept.find(run)
    rows = kept.metrics(record["id"])
    if json:
        print(json_module.dumps(record | {"metrics": rows}, indent=1))
        return
    for key in ("id", "name", "status", "why", "date", "seconds", "command", "revision", "config", "data", "seeds"):
        if record.get(key):
            print(f"{key:12} {record[key]}")
    print(f"{'hardware':12} {record['hardware']['name']}")
    for name, value in {name: value for _, name, value in rows}.items():
        print(f"{'last':12} {name} = {value}")
    for key, value in record["results"].items():
        print(f"{'result':12} {key} = {value}")


@app.command()
def compare(first: _Id, second: _Id, json: _Json = False) -> None:
    """What differs between two runs, what usually matters first, and where their metrics part. Exit code 1: they do."""
    from labkit.repro import differ

    kept = _store()
    a, b = kept.find(first), kept.find(second)
    found = differ.differences(a, b)
    parting = differ.parting(kept.metrics(a["id"]), kept.metrics(b["id"]))
    if json:
        print(json_module.dumps({"differences": [asdict(one) for one in found], "metrics": asdict(parting)}, indent=1))
    else:
        _print_differences(found)
        print(_agreement(parting))
    raise typer.Exit(0 if parting.same else 1)


@app.command()
def remake(run: _Id, json: _Json = False) -> None:
    """Make a run again from its record and compare what it measures. Exit code 0: alike to the last bit."""
    from labkit.repro import remake as module

    kept = _store()
    made = module.remake(kept, kept.find(run))
    if json:
        told = {"remade": made.record and made.record["id"], "why": made.why, "same": made.same}
        told["missing"] = made.missing
        told["differences"] = [asdict(one) for one in made.found]
        told["metrics"] = made.parting and asdict(made.parting)
        print(json_module.dumps(told, indent=1))
        raise typer.Exit(0 if made.same else 1)
    for name in made.missing:
        print(f"not recorded: {name}")
    _print_differences(made.found)
    if made.why:
        print(made.why)
    if made.record and made.parting:
        print(f"remade as {made.record['id']}: {_agreement(made.parting)}")
    raise typer.Exit(0 if made.same else 1)


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
