"""Archives that students hand in: what is in a zip is as if it had been handed in by itself, one level deep."""

import io
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.grading import arrivals, layouts
from labkit.grading.arrivals import Entry
from labkit.grading.layouts import Owner

MAX_ENTRIES = 1_000  # of one archive
_ZIP = re.compile(r".+\.zip", re.IGNORECASE | re.DOTALL)
_OTHER = re.compile(r".+\.(7z|rar|tar|tgz|tar\.(gz|bz2|xz|zst)|gz|bz2|xz|zst)", re.IGNORECASE | re.DOTALL)


@dataclass
class Room:
    """How many bytes of archives may still be held, of one student."""

    left_bytes: int


def opened(files: Sequence[tuple[Owner, Entry]], room: Room, said: list[str]) -> list[tuple[Owner, Entry]]:
    """A student's files, those in zips in place of the zips; adds to `said` what was not opened and why.

    A zip is held in memory for as long as its entries are: those of one student at a time, and no more than there is
    room for. What is refused of a name or a size outside an archive is refused inside it.
    """
    found: list[tuple[Owner, Entry]] = []
    for owner, entry in files:
        if not _ZIP.fullmatch(owner.file):
            if _OTHER.fullmatch(owner.file):
                said.append(f"{arrivals.shown(entry.name)} was not opened: of archives only zip is.")
            found.append((owner, entry))
            continue
        try:
            inside = _inside(entry, room)
        except ValueError as fault:
            said.append(f"{arrivals.shown(entry.name)} {fault}.")
            continue
        for each in inside:
            if each.fault:
                said.append(f"{arrivals.shown(each.name)} {each.fault}.")
            elif _ZIP.fullmatch(each.parts[-1]):
                said.append(f"{arrivals.shown(each.name)} was not opened: it is an archive in an archive.")
            else:
                found.append((replace(owner, file=each.parts[-1]), each))
    return found


def _inside(entry: Entry, room: Room) -> list[Entry]:
    """What is in a zip, without what systems and editors leave. ValueError: why it cannot be told."""
    data = entry.read(room.left_bytes)
    room.left_bytes -= len(data)
    try:
        archive = arrivals.archive(arrivals.Zipped(io.BytesIO(data)))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError):
        raise ValueError("is no zip that can be opened") from None
    if len(archive.infolist()) > MAX_ENTRIES:
        raise ValueError(f"holds more than {MAX_ENTRIES} files")
    inside = filter(layouts.is_kept, arrivals.from_zip(archive))
    return [replace(each, name=f"{entry.name}: {each.name}") for each in inside]
