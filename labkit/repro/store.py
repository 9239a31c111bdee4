"""Where records are kept: one SQLite file to ask, and beside it each run as plain JSON, from which the other is remade.

A run is written as it begins, at every logged step, and as it ends, each time whole or not at all: SQLite commits, JSON
files are renamed into place. So a kill loses what had not been logged yet, and a full disk what did not fit; what
stands stays as it is. The file can be written by many processes at a time, each of which waits for its turn.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.course import CourseError
from labkit.repro.files import write_text

Row = tuple[int | None, str, float]  # step (None: of the whole run), name, value
RUNNING, DONE, FAILED, INTERRUPTED, ENDED = "running", "done", "failed", "interrupted", "ended without a word"
_WAIT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (n INTEGER PRIMARY KEY, run TEXT NOT NULL, step INTEGER, name TEXT, value);
CREATE INDEX IF NOT EXISTS by_run ON metrics (run);
"""


class Store:
    """The records under one folder, made where it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._open: tuple[int, sqlite3.Connection] | None = None

    def put(self, record: dict) -> None:
        """Write a record as it stands; one of the same id is replaced. OSError, sqlite3.Error: it was not written."""
        text = json.dumps(record, allow_nan=False)
        self._do(lambda db: db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (record["id"], text)))
        rows = ",\n".join(f"  {json.dumps(row)}" for row in self.metrics(record["id"]))  # one a line, to be read
        head = json.dumps(record, indent=1, allow_nan=False).removesuffix("\n}")
        write_text(self.folder / f"{record['id']}.json", f'{head},\n "metrics": [\n{rows}\n ]\n}}\n')

    def log(self, run: str, rows: Sequence[Row]) -> None:
        """Add measured values; every bit of them is kept. sqlite3.Error, OSError: none was added."""
        wanted = [(run, step, name, _written(value)) for step, name, value in rows]
        add = "INSERT INTO metrics (run, step, name, value) VALUES (?, ?, ?, ?)"
        self._do(lambda db: db.executemany(add, wanted))

    def metrics(self, run: str) -> list[list]:
        """[step, name, value] of a run in the order in which they were logged; not-a-numbers and infinities as text."""
        ask = "SELECT step, name, value FROM metrics WHERE run = ? ORDER BY n"
        return [list(row) for row in self._do(lambda db: db.execute(ask, (run,)).fetchall())]

    def all(self) -> list[dict]:
        """Every record, the oldest first; one whose process ended in the middle is marked so."""
        if not self.folder.is_dir():
            return []
        found = self._do(lambda db: db.execute("SELECT record FROM runs ORDER BY id").fetchall())
        return [self._settled(json.loads(text)) for (text,) in found]

    def find(self, part: str) -> dict:
        """The record whose id, or whose name if none, has this text in it. CourseError: none, or more than one."""
        every = self.all()
        found = [one for one in every if part in one["id"]] or [one for one in every if part == one["name"]]
        if len(found) == 1:
            return found[0]
        if not every:
            raise CourseError(f"{self.folder} holds no run: a run is recorded by `with run(...)`.")
        told = ", ".join(one["id"] for one in found[-5:]) if found else f"the latest is {every[-1]['id']}"
        raise CourseError(f"{'Several runs' if found else 'No run'} with {part!r} in {self.folder}: {told}.")

    def _settled(self, record: dict) -> dict:
        """A record that says it runs, of a process that does not: marked, and written with the metrics that it has."""
        if record["status"] == RUNNING and not _lives(record["process"]):
            record["status"] = ENDED
            with suppress(OSError, sqlite3.Error):  # a folder that may only be read is read all the same
                self.put(record)
        return record

    def _do(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do one thing in a transaction; a file that is broken is made anew from the JSON beside it, once."""
        with self._lock:
            try:
                return self._attempt(action)
            except sqlite3.DatabaseError as error:
                if isinstance(error, (sqlite3.OperationalError, sqlite3.IntegrityError)):
                    raise  # full, locked, read-only: the file is sound
                self._remake()
                return self._attempt(action)

    def _attempt(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        with self._connection() as db:  # commits, or rolls back
            return action(db)

    def _connection(self) -> sqlite3.Connection:
        """This process's connection; one that was open before a fork is not used after it."""
        if self._open is None or self._open[0] != os.getpid():
            self.folder.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.folder / "runs.sqlite", timeout=_WAIT_S, check_same_thread=False)
            self._open = (os.getpid(), db)
            with suppress(sqlite3.OperationalError):  # a file that may only be read keeps its mode
                db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            with suppress(sqlite3.OperationalError):
                db.executescript(_SCHEMA)
        return self._open[1]

    def _remake(self) -> None:
        """Put the broken file aside, under a name that says so, and make another from the JSON files."""
        self.close()
        when = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
        for path in list(self.folder.glob("runs.sqlite*")):
            if "broken" not in path.name:
                path.rename(path.with_name(f"broken-{when}-{path.name}"))
        with self._connection() as db:
            for record in self._beside():
                rows = [(record["id"], *row) for row in record.pop("metrics")]
                db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (record["id"], json.dumps(record)))
                db.executemany("INSERT INTO metrics (run, step, name, value) VALUES (?, ?, ?, ?)", rows)

    def _beside(self) -> Iterable[dict]:
        """The records that stand beside as JSON; another file of that kind is none of ours."""
        for path in sorted(self.folder.glob("*.json")):
            with suppress(OSError, ValueError):
                record = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(record, dict) and {"id", "metrics"} <= record.keys():
                    yield record

    def close(self) -> None:
        """Let the file go; it is opened again when it is needed."""
        if self._open is not None and self._open[0] == os.getpid():
            with suppress(sqlite3.Error):
                self._open[1].close()
        self._open = None


def _written(value: float) -> float | str:
    """A number as SQLite and JSON keep it: what is none of theirs as text."""
    return value if value - value == 0 else str(value)


def process() -> dict:
    """This process, so that another one can tell whether it still runs: its number, its start, the machine's name."""
    import platform

    return {"pid": os.getpid(), "began": _began(os.getpid()), "machine": platform.node()}


def _began(pid: int) -> str:
    """When a process began, as the system counts; a number that is used again has another. Nothing where none says."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _lives(told: dict) -> bool:
    """Whether a process still runs; of another machine's it is taken for granted."""
    import platform

    if told["machine"] != platform.node():
        return True
    try:
        os.kill(told["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _began(told["pid"]) == told["began"]


def values(rows: Iterable[Sequence]) -> list[tuple[int | None, str, float]]:
    """Rows of `Store.metrics` with every value as a number again."""
    return [(step, name, float(value)) for step, name, value in rows]
