"""What ranks print, line by line, each line with its rank's name."""

import os
import sys

_LONGEST = 1 << 20  # of a line that does not end, so much is kept before it is shown


class Stream:
    """A rank's stdout or stderr: bytes that come through a pipe, shown in whole lines."""

    def __init__(self, fd: int, label: str, to: str) -> None:
        os.set_blocking(fd, False)
        self.fd, self.label, self._to, self._left, self.open = fd, label, to, b"", True

    def take(self) -> None:
        """Show the lines that have come."""
        for _ in range(64):  # the other ranks' turn comes after 4 MiB
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.open = False
                return
            *whole, self._left = (self._left + data).split(b"\n")
            if len(self._left) > _LONGEST:
                whole, self._left = [*whole, self._left], b""
            self._show(whole)

    def finish(self) -> None:
        """Show what is left, a last line without an end too."""
        self.take()
        self._show([self._left] if self._left else [])
        self._left = b""

    def _show(self, whole: list[bytes]) -> None:
        """Print lines; of one that a progress bar has overwritten, what stands there in the end."""
        if not whole:
            return
        texts = (line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in whole)
        stream, shown = getattr(sys, self._to), "".join(f"{self.label} {text}\n" for text in texts)
        if stream is None:  # a program may have closed it
            return
        try:
            stream.write(shown)
        except UnicodeEncodeError:
            stream.write(shown.encode("ascii", "backslashreplace").decode())
        stream.flush()
