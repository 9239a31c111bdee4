"""The lines that a running run appends to its file, from any thread and from processes that it forks."""

import errno
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class Journal:
    """A file of JSON lines; each call of `add` is one write, so that lines of several writers do not mix."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o644)
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._waiting = bytearray()
        self._cut = b""  # a line's end, where a full disk has cut one off

    def add(self, entries: Iterable[object] = ()) -> None:
        """Append entries. OSError: not all were written; the others wait, and the next call begins with them."""
        lines = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        if self._owner != os.getpid():  # forked: another thread may have held the lock at that moment
            self._owner, self._lock, self._waiting = os.getpid(), threading.Lock(), bytearray()
        with self._lock:
            self._waiting += lines
            text = self._cut + self._waiting
            written = text[: os.write(self._file, text)]
            if len(written) < len(text):
                del self._waiting[: max(0, written.rfind(b"\n") + 1 - len(self._cut))]
                self._cut = b"" if written.endswith(b"\n") else b"\n"
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._waiting, self._cut = bytearray(), b""

    def close(self) -> bytes:
        """Close the file; all lines, even where the file has been deleted, those that could not be written last."""
        with suppress(OSError):
            self.add()
        with self._lock:
            os.lseek(self._file, 0, os.SEEK_SET)
            written = b"".join(iter(lambda: os.read(self._file, 1 << 20), b""))
            os.close(self._file)
            self._file = -1  # the number will be another file's: a late `add` must not write there
            return written + b"\n" + self._waiting
