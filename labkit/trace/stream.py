"""The events of a Chrome trace file, one after another, in constant memory.

A reader of our own: on 200 MB of real GPU events ijson 3.6 (with its C parser) and this one take the same time and the
same 15 MB, while ijson stops at a trailing comma and at bytes that are not UTF-8, both of which profilers write.
Format: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
LARGEST_VALUE = 1 << 26  # signs: no single event or header entry is longer
# What a value is skipped by: whole strings, brackets, and the beginning of a string whose end is not yet read.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}"]', re.S)
_BLANK = re.compile(r"[\s,\x00]*")  # commas too: between events, after the last one, twice in a row
_GZIP = b"\x1f\x8b"


class TraceError(ValueError):
    """A file that cannot be read as a trace; its message is one sentence for the user."""


class Events:
    """The events of the trace file `path`, gzip or plain, as dicts; `notes` says what was odd, `header` the rest.

    Iterating raises TraceError where nothing can be read. A value that is no JSON, or nests too deeply, is skipped
    where its brackets tell its end, else it ends the events; either with a note.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header: dict[str, Any] = {}
        self.notes: list[str] = []
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._decode_long = json.JSONDecoder(strict=False, parse_int=_whole).raw_decode  # three times slower
        self._skipped = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text, self._place, self._ended = "", 0, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            packed = _checked(self.path)
            with self.path.open("rb") as file:
                self._file = _Unpacked(file) if packed else file
                yield from self._events(listed=self._find_events())
        except OSError as error:
            raise TraceError(f"Cannot read {self.path}: {error.strerror or error}.") from None
        except zlib.error:
            raise TraceError(f"{self.path} is a broken gzip file: export the trace again.") from None

    def _find_events(self) -> bool:
        """Go to the first event; whether the file is a bare list of events."""
        first = self._sign()
        if not first:
            raise TraceError(f"{self.path} is empty: export the trace again.")
        if first == "[":
            return True
        if first != "{":
            raise self._no_json()
        self._place += 1
        while self._sign() == '"':
            key = self._value()
            if self._sign() != ":":
                raise self._no_json()
            self._place += 1
            if key == "traceEvents" and self._sign() == "[":
                return False
            if self._sign():
                self.header[key] = self._value()
        if self._sign() != "}":
            raise self._no_json()
        raise TraceError(f"{self.path} is JSON but not a Chrome trace: it has no list of traceEvents.")

    def _events(self, *, listed: bool) -> Iterator[dict[str, Any]]:
        """What the list holds, other things than dicts left out."""
        self._place += 1
        count = 0
        try:
            while (sign := self._sign()) and sign != "]":
                event = self._value()
                if type(event) is dict:
                    count += 1
                    yield event
            if not sign and not listed:  # a bare list may end without its bracket
                self.notes.append(f"The file is cut off after {count} events: what is said here is about those.")
        except TraceError:
            if not count:
                raise
            self.notes.append(f"The file is cut off or broken after {count} events: what is said here is about those.")
        if self._skipped:
            what = f"{self._skipped} part{'' if self._skipped == 1 else 's'}"
            self.notes.append(f"Skipped {what} of the file, no JSON or nested too deeply: events may be missing there.")

    def _sign(self) -> str:
        """The next sign that is neither blank nor a comma; empty at the end of the file."""
        while True:
            self._place = _BLANK.match(self._text, self._place).end()
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The JSON value that starts here, None for one that was skipped; TraceError where none ends."""
        decode = self._decode
        while True:
            try:
                value, self._place = decode(self._text, self._place)
                return value
            except json.JSONDecodeError:
                if len(self._text) - self._place > LARGEST_VALUE or not self._more():
                    return self._skip()
            except ValueError:  # a whole number of more digits than Python converts
                decode = self._decode_long
            except RecursionError:
                return self._skip()

    def _skip(self) -> None:
        """Go past the value that starts here without taking it; TraceError where it does not end."""
        depth, first = 0, self._sign()
        if first not in ("[", "{", '"'):
            raise self._no_json()
        while True:
            for token in _TOKEN.finditer(self._text, self._place):
                if token[0] == '"':
                    break
                self._place = token.end()
                depth += (token[0] in "[{") - (token[0] in "]}")
                if not depth:
                    self._skipped += 1
                    return
            else:
                self._place = len(self._text)
            if len(self._text) - self._place > LARGEST_VALUE or not self._more():
                raise self._no_json()

    def _more(self) -> bool:
        """Read on: as much as is already waiting, one chunk at least; whether there was more."""
        if self._ended:
            return False
        rest = self._text[self._place :]
        data = self._file.read(max(CHUNK_BYTES, len(rest)))
        self._ended = not data
        self._text, self._place = rest + self._utf8.decode(data, final=self._ended), 0
        return not self._ended

    def _no_json(self) -> TraceError:
        """The sentence for what cannot be JSON."""
        return TraceError(f"{self.path} is not a Chrome trace: it is not JSON, or cut off before its first event.")


def _whole(digits: str) -> float:
    """A whole number; infinity for one of more digits than Python converts."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


class _Unpacked:
    """A gzip file read as far as it goes: what was packed before it breaks or ends too soon is still given."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._unpack, self._rest, self._gave = file, zlib.decompressobj(31), b"", False

    def read(self, n_bytes: int) -> bytes:
        """Up to n_bytes, none at the end. zlib.error: broken from its start."""
        data = b""
        while not data:
            packed = self._rest or self._file.read(CHUNK_BYTES)
            if not packed:
                data, self._unpack = self._unpack.flush(), zlib.decompressobj(31)
                return data
            try:
                data = self._unpack.decompress(packed, n_bytes)
            except zlib.error:
                if not self._gave:
                    raise
                return b""
            ended = self._unpack.eof
            self._rest = self._unpack.unused_data if ended else self._unpack.unconsumed_tail
            self._unpack = zlib.decompressobj(31) if ended else self._unpack
            self._gave |= bool(data)
        return data


def _checked(path: Path) -> bool:
    """Whether the file is packed: it starts as gzip does, whatever its name."""
    if path.is_dir():
        raise TraceError(f"{path} is a directory: name the trace file in it.")
    if not path.exists():
        raise TraceError(f"There is no file {path}.")
    if not path.is_file():
        raise TraceError(f"{path} is a device or a pipe: write the trace to a file.")
    with path.open("rb") as file:
        start = file.read(2)
    if start != _GZIP and path.suffix == ".gz" and start:
        raise TraceError(f"{path} is named .gz but is not gzip: rename it, or export the trace again.")
    return start == _GZIP
