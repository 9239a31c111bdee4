"""What differs between two records, what usually matters first; and where their metrics part."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labkit.repro.store import as_numbers

ABSENT = "(nothing)"
_SHORT = 12
_CORE = ("python", "torch", "numpy")  # versions that change results more often than others do


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which two records differ, in words; kind: which part of a run it belongs to."""

    kind: str
    what: str
    first: str
    second: str


def differences(first: Mapping, second: Mapping) -> list[Difference]:
    """What two records do not share, in the order in which one would look for a cause.

    Configuration, data, seeds; the code; torch's settings; the versions of what computes; hardware; other packages.
    """
    parts = (
        ("configuration", _flat(first["config"]), _flat(second["config"])),
        ("data", first["data"], second["data"]),
        ("seeds", {"seeds": first["seeds"]}, {"seeds": second["seeds"]}),
        ("code", _code(first), _code(second)),
        ("settings", _settings(first), _settings(second)),
        ("version", _versions(first, core=True), _versions(second, core=True)),
        ("hardware", _hardware(first), _hardware(second)),
        ("package", _versions(first, core=False), _versions(second, core=False)),
    )
    return [one for kind, mine, theirs in parts for one in _between(kind, mine, theirs)]


def _between(kind: str, mine: Mapping, theirs: Mapping) -> Iterator[Difference]:
    """The keys with unlike values, in the order of both."""
    for key in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(key, ABSENT), theirs.get(key, ABSENT)
        if a != b:
            yield Difference(kind=kind, what=str(key), first=str(a), second=str(b))


def _flat(value: object, name: str = "") -> dict[str, object]:
    """A nested configuration by dotted names."""
    if not isinstance(value, Mapping):
        return {name or "config": value}
    found: dict[str, object] = {}
    for key, item in value.items():
        found |= _flat(item, f"{name}.{key}" if name else str(key))
    return found


def _code(record: Mapping) -> dict[str, object]:
    """The code of a run: revision, what was not committed, the cells as run, the command."""
    changed = (record["patch"] or {}).get("text") or ""
    told: dict[str, object] = {"revision": (record["revision"] or "none")[:_SHORT]}
    told["uncommitted changes"] = ", ".join(changed_files(changed)) or "none"
    told |= {f"changes of {file}": _extent(part) for file, part in _by_file(changed).items()}
    told |= {f"cell run as number {n}": cell["source"] for n, cell in enumerate(record.get("cells", []), 1)}
    start = record["start"]
    told["script"] = (start.get("script") or "none")[:_SHORT]
    told["command"] = " ".join(start["argv"]) if start["kind"] == "script" else f"a {start['kind']}"
    return told


def _by_file(changed: str) -> dict[str, str]:
    """A patch by the files that it changes."""
    parts = ("\n" + changed).split("\ndiff --git ")[1:]
    return {part.splitlines()[0].rpartition(" b/")[2]: part for part in parts}


def _extent(part: str) -> str:
    """How much a patch of one file changes, and a short hash of what."""
    lines = part.partition("\n@@")[2].splitlines()  # behind the names of the file
    added, gone = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    made = hashlib.sha256(part.encode(errors="surrogateescape"))
    return f"{added} lines added, {gone} gone, {made.hexdigest()[:8]}"


def changed_files(patch: str) -> list[str]:
    """The files that a patch changes."""
    return list(_by_file(patch))


def _settings(record: Mapping) -> dict[str, object]:
    """Torch's settings at the end of a run, and what Python's hashes were seeded by."""
    return {**(record.get("torch_at_end") or record["torch"]), **_asked(record["start"])}


def _asked(start: Mapping) -> dict[str, object]:
    """What a process was asked for by the three variables that a record holds."""
    told = {"LABKIT_BUDGET": start["budget"], "PYTHONHASHSEED": start["hash_seed"]}
    return told | {"CUBLAS_WORKSPACE_CONFIG": start["cublas"]}


def _versions(record: Mapping, *, core: bool) -> dict[str, str]:
    """Versions of what computes, or of everything else."""
    every = {"python": record["versions"]["python"]} | record["packages"]
    return {name: version for name, version in every.items() if (name.lower() in _CORE) == core}


def _hardware(record: Mapping) -> dict[str, object]:
    """The machine's description but Python's version, which is said elsewhere."""
    return {key: value for key, value in record["hardware"].items() if key not in ("python", "name")}


@dataclass(frozen=True, kw_only=True)
class Parting:
    """How the metrics of two runs agree: equal of compared values are alike to the last bit.

    unlike: those that are not, as (step, name, first, second); relative: the relative difference of the first; worst:
    the largest of all. only: names that one run alone has, or has more often.
    """

    compared: int
    equal: int
    unlike: tuple[tuple[int | None, str, float, float], ...]
    relative: float
    worst: float
    only: tuple[str, ...]

    @property
    def at(self) -> tuple[int | None, str, float, float] | None:
        """The first that is not alike."""
        return self.unlike[0] if self.unlike else None

    @property
    def same(self) -> bool:
        """Whether there is something to compare, and all of it is alike."""
        return self.compared > 0 and self.equal == self.compared and not self.only


def parting(first: Sequence[Sequence], second: Sequence[Sequence]) -> Parting:
    """Where two lists of metrics, as `Store.metrics` gives them, part; the k-th of a name and step meets the k-th."""
    mine, theirs = _keyed(first), _keyed(second)
    shared = [key for key in mine if key in theirs]
    unlike = [key for key in shared if not _alike(mine[key], theirs[key])]
    gaps = [_relative(mine[key], theirs[key]) for key in unlike]
    only = sorted({key[1] for key in mine.keys() ^ theirs.keys()})
    return Parting(
        compared=len(shared),
        equal=len(shared) - len(unlike),
        unlike=tuple((*key[:2], mine[key], theirs[key]) for key in unlike),
        relative=gaps[0] if gaps else 0.0,
        worst=max(gaps, default=0.0),
        only=tuple(only),
    )


def _keyed(rows: Sequence[Sequence]) -> dict[tuple[int | None, str, int], float]:
    """Values by step, name, and how often that pair had come before."""
    found: dict[tuple[int | None, str, int], float] = {}
    counts: dict[tuple[int | None, str], int] = {}
    for step, name, value in as_numbers(rows):
        n = counts.get((step, name), 0)
        counts[step, name] = n + 1
        found[step, name, n] = value
    return found


def _alike(a: float, b: float) -> bool:
    """Whether two numbers have the same bits, the sign of a zero included; any two not-a-numbers count as alike."""
    return a.hex() == b.hex()


def _relative(a: float, b: float) -> float:
    """The difference as a share of the larger; infinite where one is no finite number."""
    gap, most = abs(a - b), max(abs(a), abs(b))
    return gap / most if most and gap - gap == 0 else float("inf") if gap != 0 else 0.0
