"""What each rank's collectives were, written down where the launching process can read it, whatever becomes of them."""

import json
import mmap
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch.distributed as dist

from labkit import lines
from labkit.ranks.collectives import Event, observe

START = str(Path(__file__).with_name("worker.py"))  # the frames outside of it started the rank
POINT_TO_POINT = ("send", "recv")
SLOTS, SLOT_BYTES, HEADER_BYTES = 512, 1024, 8
SIZE_BYTES = HEADER_BYTES + SLOTS * SLOT_BYTES


@dataclass(frozen=True, kw_only=True)
class Call:
    """A line of a rank's ledger. number: which of its group's collectives; digest: equal where ranks agree.

    started_s is time.monotonic(), which all processes of a machine share.
    """

    group: str
    ranks: tuple[int, ...]
    number: int
    op: str
    what: str
    digest: int
    started_s: float
    file: str
    line: int


_FIELDS = [each.name for each in fields(Call)]
_FIELDS = [each.name for each in fields(Call)]


class Ledger:
    """A rank's ledger in memory that it shares with the launching process: the last SLOTS calls, one slot each."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory, self._written = memory, 0
        self._numbers: Counter[str] = Counter()
        self._world, self._generation = dist.group.WORLD, 0

    def note(self, event: Event, group: object, digest: int, what: str) -> None:
        """Write down a call, before it runs."""
        if dist.group.WORLD is not self._world:  # destroyed and made anew: names and numbers begin again
            self._world, self._generation = dist.group.WORLD, self._generation + 1
        name, ranks = self._group(group)
        number = 0
        if event.op not in POINT_TO_POINT:
            self._numbers[name] += 1
            number = self._numbers[name]
        file, line = _own_line()
        said = [name, ranks, number, event.op, what[:120], digest, time.monotonic(), file, line]
        text = json.dumps(said, ensure_ascii=False).encode(errors="replace")
        if len(text) > SLOT_BYTES:
            said[7] = f"...{file[-40:]}"
            text = json.dumps(said, ensure_ascii=False).encode(errors="replace")
        at = HEADER_BYTES + self._written % SLOTS * SLOT_BYTES
        self._memory[at : at + SLOT_BYTES] = text[:SLOT_BYTES].ljust(SLOT_BYTES)
        self._written += 1
        self._memory[:HEADER_BYTES] = struct.pack("<q", self._written)

    def _group(self, group: object) -> tuple[str, int | list[int]]:
        """A name that no other group of this program has, and the ranks: how many, where it is the first so many."""
        made = dist.ProcessGroup.unbox(group)
        ranks = dist.get_process_group_ranks(made)
        all_of_them = ranks == list(range(len(ranks)))
        return f"{made.group_name} of {self._generation}", len(ranks) if all_of_them else ranks


def keep(memory: mmap.mmap) -> None:
    """Write this process's collectives into memory from now on."""
    observe(Ledger(memory).note)


def read(memory: mmap.mmap) -> list[Call]:
    """The calls in a ledger, oldest first; one that is being overwritten at this moment is left out."""
    (written,) = struct.unpack("<q", memory[:HEADER_BYTES])
    calls = (_call(memory, i) for i in range(max(0, written - SLOTS), written))
    return [call for call in calls if call is not None]


def last(memory: mmap.mmap) -> Call | None:
    """The latest call in a ledger, None where there is none."""
    (written,) = struct.unpack("<q", memory[:HEADER_BYTES])
    return _call(memory, written - 1) if written else None


def _call(memory: mmap.mmap, i: int) -> Call | None:
    """The call in one slot; None while it is being overwritten."""
    at = HEADER_BYTES + i % SLOTS * SLOT_BYTES
    try:
        values = json.loads(memory[at : at + SLOT_BYTES])
    except ValueError:
        return None
    ranks = range(values[1]) if isinstance(values[1], int) else values[1]
    return Call(**dict(zip(_FIELDS, values, strict=True)) | {"ranks": tuple(ranks)})


def differing(ledgers: Mapping[int, Sequence[Call]]) -> dict[int, Call] | None:
    """The first collective in which ranks of one group do not agree, as rank -> its call; None where all agree."""
    called: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, calls in ledgers.items():
        for call in calls:
            if call.number:
                called.setdefault((call.group, call.number), {})[rank] = call
    apart = [by_rank for by_rank in called.values() if len({call.digest for call in by_rank.values()}) > 1]
    return min(apart, key=lambda by_rank: min(call.started_s for call in by_rank.values()), default=None)


def _own_line() -> tuple[str, int]:
    """File and line of the innermost frame that is the learner's; of no file where there is none on this thread."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != START:
        if not lines.is_foreign(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def blank(fd: int) -> mmap.mmap:
    """A new ledger's memory in a file, shared with whoever is given its descriptor."""
    os.truncate(fd, SIZE_BYTES)
    return mmap.mmap(fd, SIZE_BYTES)
