"""Where records are kept: each run as plain JSON, and one SQLite file beside them to ask, which JSON alone can remake.

A run is written as it begins and as it ends: its JSON file is renamed into place, then SQLite told, so that JSON is
never behind. What it logs in between is appended to a file of its own, line by line, and is in the system's hands when
`log` returns: a kill loses nothing of it, a full disk what did not fit. (Nothing is forced to the disk: a power cut may
take the last seconds.) Whoever reads next brings both sides to one state. No connection stays open between two of these
moments, so that forks, threads and files that others replace do no harm.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.course import CourseError
from labkit.drafts import write_text
from labkit.repro.alive import lives

RUNNING, DONE, FAILED, INTERRUPTED, ENDED = "running", "done", "failed", "interrupted", "ended without a word"
PROBLEMS = (OSError, sqlite3.Error)  # what writing may raise
_WAIT_S = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (n INTEGER PRIMARY KEY, run TEXT NOT NULL, step INTEGER, name TEXT, value);
CREATE INDEX IF NOT EXISTS by_run ON metrics (run);
"""


class Store:
    """The records under one folder, made where it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, record: dict, rows: Sequence[Sequence] = ()) -> None:
        """Write a record with its metrics, as `metrics` gives them; one of the same id is replaced.

        OSError, sqlite3.Error: it was not written, or JSON alone holds it, which the next reader tells SQLite.
        """
        self._make_folder()
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)  # one a line, to be read
        head = json.dumps(record, indent=1, allow_nan=False).removesuffix("\n}")
        write_text(self._json(record["id"]), f'{head},\n "metrics": [\n{lines}\n ]\n}}\n')
        self._do(lambda db: _index(db, record, rows, replace=True))
        if record["status"] != RUNNING:
            self.journal(record["id"]).unlink(missing_ok=True)

    def forget(self, run: str) -> None:
        """Delete a record and its metrics."""
        self._do(lambda db: [db.execute(f"DELETE FROM {t} WHERE {k} = ?", (run,)) for t, k in _TABLES])
        for path in (self._json(run), self.journal(run)):
            path.unlink(missing_ok=True)

    def journal(self, run: str) -> Path:
        """The file to which a running run appends."""
        return self.folder / f"{run}.jsonl"

    def _json(self, run: str) -> Path:
        return self.folder / f"{run}.json"

    def metrics(self, run: str) -> list[list]:
        """[step, name, value] of a run in the order in which they were logged; not-a-numbers and infinities as text."""
        ask = "SELECT step, name, value FROM metrics WHERE run = ? ORDER BY n"
        record = self._read(run) if self.journal(run).exists() else None
        if record and record["status"] == RUNNING:
            return read_journal(self.journal(run))[0]
        with suppress(*PROBLEMS):
            if rows := self._do(lambda db: db.execute(ask, (run,)).fetchall()):
                return [list(row) for row in rows]
        return (self._read(run) or {"metrics": []})["metrics"]

    def all(self) -> list[dict]:
        """Every record, the oldest first; one whose process ended in the middle is marked so."""
        if not self.folder.is_dir():
            return []
        held: dict[str, dict] = {}
        with suppress(*PROBLEMS):  # a folder that may only be read, or no database any more: JSON holds everything
            held = dict(self._do(lambda db: db.execute("SELECT id, record FROM runs").fetchall()))
            held = {run: json.loads(text) for run, text in held.items()}
        for run in {path.stem for path in self.folder.glob("*.json")} - held.keys():
            if record := self._read(run):
                rows = record.pop("metrics")
                held[run] = record
                with suppress(*PROBLEMS):
                    self._do(lambda db, r=record, m=rows: _index(db, r, m, replace=False))
        return [self._settled(held[run]) for run in sorted(held)]

    def find(self, part: str) -> dict:
        """The latest original of that name, else the record whose id has this text in it.

        CourseError: there is none, or more than one such id.
        """
        every = self.all()
        found = [one for one in every if part == one["name"] and not one.get("remakes")][-1:]
        found = found or [one for one in every if part in one["id"]]
        if len(found) == 1:
            return found[0]
        if not every:
            raise CourseError(f"{self.folder} holds no run: a run is recorded by `with run(...)`.")
        told = ", ".join(one["id"] for one in found[-5:]) if found else f"the latest is {every[-1]['id']}"
        raise CourseError(f"{'Several runs' if found else 'No run'} with {part!r} in {self.folder}: {told}.")

    def _settled(self, record: dict) -> dict:
        """A record that says it runs: as JSON has it by now; of a process that has ended, marked and written whole."""
        if record["status"] != RUNNING:
            return record
        alive = lives(record["process"])  # asked before JSON is read: what a process has written, it wrote while alive
        now = self._read(record["id"]) or record | {"metrics": []}
        rows = now.pop("metrics")
        if now["status"] == RUNNING:
            if alive:
                return now
            rows, results = read_journal(self.journal(now["id"]))
            now |= {"status": ENDED, "results": now["results"] | results}
        with suppress(*PROBLEMS):
            self.put(now, rows)
        return now

    def _read(self, run: str) -> dict | None:
        """A record and its metrics from JSON; None for another file of that kind."""
        with suppress(OSError, ValueError):
            record = json.loads(self._json(run).read_text(encoding="utf-8"))
            if isinstance(record, dict) and {"id", "name", "status", "metrics"} <= record.keys():
                return record
        return None

    def _make_folder(self) -> None:
        """The folder, and in it a word to git that nothing there is to be committed, nor a change to be recorded."""
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ".gitignore").write_text("*\n")

    def _do(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do one thing in a transaction; a file that is broken is put aside and made anew from JSON, once."""
        try:
            return self._attempt(action)
        except (sqlite3.OperationalError, sqlite3.IntegrityError):
            raise  # full, locked, read-only: the file is sound
        except sqlite3.DatabaseError:
            self._put_aside()
            for record in filter(None, (self._read(path.stem) for path in sorted(self.folder.glob("*.json")))):
                rows = record.pop("metrics")
                self._attempt(lambda db, r=record, m=rows: _index(db, r, m, replace=False))
            return self._attempt(action)

    def _attempt(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        with closing(sqlite3.connect(self.folder / "runs.sqlite", timeout=_WAIT_S)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'by_run'").fetchone():
                with suppress(sqlite3.OperationalError):  # another process is about to do the same
                    db.execute("PRAGMA journal_mode = WAL")
                db.executescript(_SCHEMA)
            db.execute("PRAGMA synchronous = NORMAL")
            with db:  # commits, or rolls back
                return action(db)

    def _put_aside(self) -> None:
        """Give the broken file a name that says so; nothing of it is lost."""
        when = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
        for path in list(self.folder.glob("runs.sqlite*")):
            with suppress(FileNotFoundError):  # another process was quicker
                path.rename(path.with_name(f"broken-{when}-{path.name}"))


_TABLES = (("runs", "id"), ("metrics", "run"))


def _index(db: sqlite3.Connection, record: dict, rows: Iterable[Sequence], *, replace: bool) -> None:
    """Tell SQLite of a record; one that it knows is replaced or left."""
    how = "REPLACE" if replace else "IGNORE"
    values = (record["id"], json.dumps(record, allow_nan=False))
    if db.execute(f"INSERT OR {how} INTO runs VALUES (?, ?)", values).rowcount > 0:
        db.execute("DELETE FROM metrics WHERE run = ?", (record["id"],))
        add = "INSERT INTO metrics (run, step, name, value) VALUES (?, ?, ?, ?)"
        db.executemany(add, ((record["id"], *row) for row in rows))


def read_journal(path: Path) -> tuple[list[list], dict]:
    """The metrics and results that a run has appended."""
    try:
        return entries(path.read_bytes())
    except FileNotFoundError:
        return [], {}


def entries(lines: bytes) -> tuple[list[list], dict]:
    """The metrics and results in a journal's lines; one that a full disk cut off is none."""
    rows: list[list] = []
    results: dict = {}
    for line in lines.decode(errors="replace").split("\n"):
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                results |= entry
            elif isinstance(entry, list) and len(entry) == 3:
                rows.append(entry)
    return rows, results


def as_numbers(rows: Iterable[Sequence]) -> list[tuple[int | None, str, float]]:
    """Rows of `Store.metrics` with every value as a number again."""
    return [(step, name, float(value)) for step, name, value in rows]
