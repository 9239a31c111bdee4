"""What was handed in, as a folder or a zip holds it: entries that are looked at before a byte of them is read."""

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labkit.course import CourseError

MAX_ENTRIES = 200_000
_MAX_DEPTH = 12
_UTF8_NAME = 0x800
_DIRECTORY, _HEAD_BYTES, _NOBODYS = b"PK\x01\x02", 46, 0x1A  # of an entry of a zip's directory, without its name


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file that somebody handed in: its name as it came, how to open it, and why it is refused before that."""

    name: str
    parts: tuple[str, ...]
    n_bytes: int
    fault: str
    open: Callable[[], AbstractContextManager[BinaryIO]]

    def read(self, most_bytes: int) -> bytes:
        """Its bytes. ValueError: why they cannot be had; more than `most_bytes` are, whatever it says of its size."""
        if self.n_bytes > most_bytes:
            raise ValueError(_too_large(most_bytes))
        try:
            with self.open() as file:
                data = file.read(most_bytes + 1)
        except NotImplementedError:
            raise ValueError("is packed in a way that is not known here") from None
        except RuntimeError:
            raise ValueError("is encrypted") from None
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, MemoryError) as error:
            raise ValueError(f"cannot be read ({type(error).__name__})") from None
        if len(data) > most_bytes:
            raise ValueError(_too_large(most_bytes))
        return data


def shown(text: str) -> str:
    """A stranger's text as it may be printed: what a terminal would obey is an escape, and the end is cut."""
    safe = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return safe if len(safe) <= 80 else f"{safe[:79]}…"


def _too_large(most_bytes: int) -> str:
    """Why a file is not read."""
    return f"is larger than {most_bytes / 1e6:.0f} MB"


def split(name: str) -> tuple[tuple[str, ...], str]:
    """The parts of a name from whatever system, and why it is no name to be used, or nothing."""
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    if name.startswith(("/", "\\")) or name[1:2] == ":":
        return parts, "has an absolute name"
    if ".." in parts:
        return parts, "has a name that leads out of its folder"
    if "\0" in name or not all(sign.isprintable() for sign in name):
        return parts, "has signs in its name that nobody can see"
    if len(parts) > _MAX_DEPTH or max(map(len, parts), default=0) > 255:
        return parts, "has a name that is too deep or too long"
    return parts, "" if parts else "has no name"


def in_folder(root: Path) -> list[Entry]:
    """The files under a folder, by name; links are entries with a fault, and are not followed."""
    found = []
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            inside = sorted(os.scandir(folder), key=lambda item: item.name)
        except OSError as error:
            found.append(_from_disk(root, folder, f"cannot be opened ({error.strerror})"))
            continue
        for item in inside:
            path = Path(item.path)
            if item.is_dir(follow_symlinks=False) and len(path.relative_to(root).parts) <= _MAX_DEPTH:
                waiting.append(path)
            else:
                found.append(_from_disk(root, path))
            if len(found) > MAX_ENTRIES:
                raise CourseError(f"{root} holds more than {MAX_ENTRIES} files: is it the right folder?")
    return sorted(found, key=lambda entry: entry.name)


def one_file(path: Path) -> list[Entry]:
    """The entry that a single file is."""
    return [_from_disk(path.parent, path)]


def _from_disk(root: Path, path: Path, why: str = "") -> Entry:
    """The entry of a path under root."""
    name = path.relative_to(root).as_posix()
    size, mode = 0, 0
    try:
        about = path.lstat()
        size, mode = about.st_size, about.st_mode
    except OSError as error:
        why = why or f"cannot be opened ({error.strerror})"
    parts, odd = split(name)
    kind = "is a link" if stat.S_ISLNK(mode) else "" if stat.S_ISREG(mode) else "is no plain file"
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    opened = lambda: os.fdopen(os.open(path, flags), "rb")
    return Entry(name=name, parts=parts, n_bytes=size, fault=why or odd or kind, open=opened)


class Zipped(io.BufferedReader):
    """A zip's bytes of which, until it is open, names that are not the UTF-8 they say are made names of nobody.

    Python's zipfile would refuse the whole archive for one. Each byte beyond ASCII becomes a sign that `split` refuses.
    """

    opening = True

    def read(self, size: int | None = -1) -> bytes:
        """As of any file; the directory of a zip is read at once."""
        data = super().read(size)
        return _mended(bytearray(data)) if self.opening and data.startswith(_DIRECTORY) else data


def _mended(data: bytearray) -> bytes:
    """A zip's directory with names that can be read."""
    at = 0
    while data.startswith(_DIRECTORY, at) and at + _HEAD_BYTES <= len(data):
        flags, lengths = struct.unpack_from("<H", data, at + 8)[0], struct.unpack_from("<3H", data, at + 28)
        name = slice(at + _HEAD_BYTES, at + _HEAD_BYTES + lengths[0])
        try:
            data[name].decode("utf-8" if flags & _UTF8_NAME else "latin-1")
        except UnicodeDecodeError:
            data[name] = bytes(byte if byte < 0x80 else _NOBODYS for byte in data[name])
        at += _HEAD_BYTES + sum(lengths)
    return bytes(data)


def archive(file: Zipped) -> zipfile.ZipFile:
    """Such bytes as an archive. BadZipFile, ValueError, NotImplementedError: they are none."""
    made = zipfile.ZipFile(file)
    file.opening = False
    return made


def in_zip(path: Path, archive: zipfile.ZipFile) -> list[Entry]:
    """The files of a zip, in its own order. CourseError: more of them than any class hands in."""
    if len(archive.infolist()) > MAX_ENTRIES:
        raise CourseError(f"{path} holds more than {MAX_ENTRIES} files: is it the right archive?")
    return list(from_zip(archive))


def from_zip(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """The entries of an archive's members, folders left out."""
    for member in archive.infolist():
        name, mode = _name(member), member.external_attr >> 16
        parts, odd = split(name)
        if name.endswith(("/", "\\")) and not odd:
            continue
        kind = stat.S_IFMT(mode) if member.create_system == 3 else 0  # 3: a Unix made it
        link = "is a link" if kind == stat.S_IFLNK else "is no plain file" if kind not in (0, stat.S_IFREG) else ""
        opened = lambda member=member: archive.open(member)
        yield Entry(name=name, parts=parts, n_bytes=member.file_size, fault=odd or link, open=opened)


def _name(member: zipfile.ZipInfo) -> str:
    """A member's name; UTF-8 that is not marked as such, which Moodle writes, is read as UTF-8."""
    name = member.orig_filename
    if member.flag_bits & _UTF8_NAME:
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name
