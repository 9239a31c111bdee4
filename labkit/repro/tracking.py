"""`with run("name", config=...) as it:` keeps a record of what is done in the block, by which it can be made again."""

import os
import secrets
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from labkit import course
from labkit.repro import capture, store
from labkit.repro.store import Row, Store

_PROBLEMS = (OSError, sqlite3.Error)
_begun = 0  # runs of this process so far


def folder() -> Path:
    """Where records are kept: LABKIT_RUNS, else runs/ in the course's folder."""
    named = os.environ.get("LABKIT_RUNS")
    return Path(named).expanduser().absolute() if named else course.root() / "runs"


class Run:
    """A run that is being recorded."""

    def __init__(self, kept: Store, record: dict) -> None:
        self._kept, self._record = kept, record
        self._unwritten: list[Row] = []
        self._told = False

    @property
    def id(self) -> str:
        """What `labkit runs` calls it."""
        return self._record["id"]

    def log(self, step: int | None = None, **measured: float) -> None:
        """Note what was measured at a step (without one: of the whole run), every bit of it.

        A value on a device is waited for: log what you have read already, or rarely.
        """
        self._unwritten += [(step, name, float(value)) for name, value in measured.items()]
        self._flush()

    def note(self, **results: object) -> None:
        """Note results of the whole run that are no numbers to compare bit by bit: texts, lists, paths."""
        self._record["results"] |= capture.plain_results(results)

    def _flush(self) -> None:
        """Write what is not written yet; what cannot be is kept for the next time, and that is said once."""
        try:
            self._kept.log(self.id, self._unwritten)
            self._unwritten = []
        except _PROBLEMS as error:
            self._warn(error)

    def _end(self, status: str, seconds: float, why: str = "") -> None:
        """Write the end of the run; a record that cannot be written does not take the run's work with it."""
        if self._unwritten:
            self._flush()
        self._record |= {"status": status, "seconds": seconds, "why": capture.scrubbed(why)[0]}
        self._record |= {"cells": capture.cells(), "torch_at_end": capture.torch_settings()}
        try:
            self._kept.put(self._record)
        except _PROBLEMS as error:
            self._warn(error, always=bool(self._unwritten))
        self._kept.close()

    def _warn(self, error: Exception, *, always: bool = False) -> None:
        if always or not self._told:
            self._told = True
            said = f"Run {self.id} is not recorded whole in {self._kept.folder}: {error}."
            warnings.warn(f"{said} Earlier records are untouched.", RuntimeWarning, stacklevel=4)


@contextmanager
def run(
    name: str, *, config: object = None, data: Mapping[str, object] | None = None, seeds: tuple[int, ...] = ()
) -> Iterator[Run]:
    """Record what is done in the block: code, uncommitted changes, packages, configuration, data, hardware, metrics.

    data: a name for each file, folder, tensor or split that the run depends on; its hash is kept. An exception ends the
    record as `failed` and goes on. CourseError: the record cannot be begun, said before anything has been computed.
    """
    global _begun
    kept, began = Store(folder()), datetime.now(timezone.utc)
    record = {
        "id": f"{began:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        "name": name,
        "status": store.RUNNING,
        "seconds": None,
        "nth": _begun,  # of this process's runs; a remake takes the same one
        "process": store.process(),
        "results": {},
        **capture.captured(config, data or {}, seeds),
    }
    try:
        kept.put(record)
    except _PROBLEMS as error:
        said = f"No record can be written to {kept.folder}: {error}. LABKIT_RUNS names another folder."
        raise course.CourseError(said) from error
    _begun += 1
    it, clock = Run(kept, record), time.perf_counter()
    ended, why = store.DONE, ""
    try:
        yield it
    except BaseException as error:
        ended = store.INTERRUPTED if isinstance(error, KeyboardInterrupt) else store.FAILED
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit) and not error.code:
            ended, why = store.DONE, ""
        raise
    finally:
        it._end(ended, round(time.perf_counter() - clock, 3), why)
