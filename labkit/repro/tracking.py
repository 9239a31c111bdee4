"""`with run("name", config=...) as it:` keeps a record of what is done in the block, by which it can be made again."""

import os
import secrets
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import SupportsFloat

from labkit import course
from labkit.repro import capture, store
from labkit.repro.alive import process
from labkit.repro.files import plain
from labkit.repro.journal import Journal
from labkit.repro.places import runs_folder
from labkit.repro.store import PROBLEMS, Store

_CASUAL = 3  # records of one name that stay of those that nobody asked for
_begun = 0  # runs of this process so far


class Run:
    """A run that is being recorded, or was to be: then id is nothing, and what it is told goes nowhere."""

    def __init__(self, kept: Store, record: dict, journal: Journal | None) -> None:
        self._kept, self._record, self._journal = kept, record, journal
        self._owner, self._told = os.getpid(), False

    @property
    def id(self) -> str:
        """What `labkit runs` calls it."""
        return self._record["id"] if self._journal else ""

    def log(self, step: SupportsFloat | None = None, **measured: float) -> None:
        """Note what was measured at a step (without one: of the whole run), every bit of it.

        A value on a device is waited for: log what you have read already, or rarely.
        """
        self._add([[plain(step), name, _number(value)] for name, value in measured.items()])

    def note(self, **results: object) -> None:
        """Note results of the whole run that are no numbers to compare bit by bit: texts, lists, paths."""
        told = capture.plain_results(results)
        self._record["results"] |= told
        self._add([told])

    def _add(self, entries: list[object]) -> None:
        """Write entries; what cannot be written waits for the next time, and that is said once."""
        if self._journal:
            try:
                self._journal.add(entries)
            except OSError as error:
                self._warn(error)

    def _end(self, status: str, seconds: float, why: str = "") -> None:
        """Write the end of the run; a record that cannot be written does not take the run's work with it."""
        if not self._journal or self._owner != os.getpid():  # a forked child that leaves the block ends nothing
            return
        rows, _ = store.entries(self._journal.close())
        self._record |= {"status": status, "seconds": seconds, "why": capture.scrubbed(why)[0]}
        self._record |= {"cells": capture.cells(), "torch_at_end": capture.torch_settings()}
        try:
            self._kept.put(self._record, rows)
        except PROBLEMS as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            said = f"Run {self.id} is not recorded whole in {self._kept.folder}: {error}."
            warnings.warn(f"{said} Earlier records are untouched.", RuntimeWarning, stacklevel=4)


@contextmanager
def run(
    name: str,
    *,
    config: object = None,
    data: Mapping[str, object] | None = None,
    seeds: tuple[int, ...] = (),
    casual: bool = False,
) -> Iterator[Run]:
    """Record what is done in the block: code, uncommitted changes, packages, configuration, data, hardware, metrics.

    data: a name for each file, folder, tensor or split that the run depends on; its hash is kept. An exception ends the
    record as `failed` and goes on. CourseError: the record cannot be begun, said before anything has been computed.
    casual: of a lesson, whose cells are run again and again: the latest three of the name stay, and where no record can
    be begun, that is said on stderr and the block runs all the same.
    """
    it, clock = _begin(name, capture.captured(config, data or {}, seeds), casual), time.perf_counter()
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
        it._end(ended, round(time.perf_counter() - clock, 6), why)
        if casual and it.id:
            _tidy(it._kept, name, it.id)


def _begin(name: str, captured: dict, casual: bool) -> Run:
    """Write the record of a run as it begins; nothing of one that cannot be written stays."""
    global _begun
    kept, began = Store(runs_folder()), datetime.now(timezone.utc)
    record = {
        "id": f"{began:%Y%m%d-%H%M%S}-{began.microsecond // 1000:03d}{secrets.token_hex(2)}",
        "name": name,
        "status": store.RUNNING,
        "seconds": None,
        "casual": casual,
        "nth": _begun,  # of this process's runs; a remake takes the same one
        "process": process(),
        "results": {},
        **captured,
    }
    try:
        kept.put(record)
        journal = Journal(kept.journal(record["id"]))
    except PROBLEMS as error:
        with suppress(*PROBLEMS):
            kept.forget(record["id"])
        said = f"No record can be written to {kept.folder}: {error}. LABKIT_RUNS names another folder."
        if not casual:
            raise course.CourseError(said) from error
        print(said, file=sys.stderr)
        return Run(kept, record, None)
    _begun += 1
    return Run(kept, record, journal)


def _tidy(kept: Store, name: str, latest: str) -> None:
    """Forget the older ones of a name's casual records; latest: the one that has just ended, however early it began."""
    with suppress(*PROBLEMS):
        mine = [one for one in kept.all() if one["name"] == name and one["id"] != latest and _may_go(one)]
        for old in mine[: 1 - _CASUAL]:
            kept.forget(old["id"])


def _may_go(record: dict) -> bool:
    """Whether a record is a lesson's, and ended: one that still runs is another kernel's."""
    return bool(record.get("casual") and not record.get("remakes") and record["status"] != store.RUNNING)


def _number(value: float) -> float | str:
    """A number of any kind as JSON keeps it, its bits as a float's; not-a-numbers and infinities as text."""
    found = float(value.detach() if hasattr(value, "detach") else value)
    return found if found - found == 0 else str(found)
