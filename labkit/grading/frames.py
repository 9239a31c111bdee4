"""What travels between the grader and the box: messages to and from learners' code, and records to the warm parent.

A message is a token, a kind, a length and bytes; both sides load this module.

The token is random and new for each session. It tells messages from noise, such as a program that writes to every
descriptor it finds; it is no secret from the learner's code, which runs where it lies. Whoever reads a message must
take it for what it is: something that the learner's process said.
"""

import array
import socket
import struct
from dataclasses import dataclass, field

TOKEN_BYTES = 16
_HEAD = struct.Struct("!cQ")
HEAD_BYTES = TOKEN_BYTES + _HEAD.size


class TooLong(Exception):
    """A message, or noise between messages, of more bytes than are taken."""


def packed(token: bytes, kind: bytes, body: bytes) -> bytes:
    """One message."""
    return token + _HEAD.pack(kind, len(body)) + body


def head(data: bytes | bytearray) -> tuple[bytes, int]:
    """Kind and length of the message that starts with these HEAD_BYTES."""
    return _HEAD.unpack_from(data, TOKEN_BYTES)


@dataclass
class Inbox:
    """What has arrived and is not yet a whole message. noise_bytes: how much was none."""

    token: bytes
    most_bytes: int
    noise_bytes: int = 0
    _arrived: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Take bytes as they come. TooLong: they are more than anybody may send."""
        self._arrived += data
        start = self._arrived.find(self.token)
        noise = start if start >= 0 else max(0, len(self._arrived) - TOKEN_BYTES + 1)
        del self._arrived[:noise]
        self.noise_bytes += noise
        if self.noise_bytes > self.most_bytes or (self._whole() and head(self._arrived)[1] > self.most_bytes):
            raise TooLong

    def take(self) -> tuple[bytes, bytes] | None:
        """The next whole message as (kind, body), None while there is none."""
        if not self._whole():
            return None
        kind, length = head(self._arrived)
        if length > self.most_bytes:
            raise TooLong
        if len(self._arrived) < HEAD_BYTES + length:
            return None
        body = bytes(self._arrived[HEAD_BYTES : HEAD_BYTES + length])
        del self._arrived[: HEAD_BYTES + length]
        self.add(b"")
        return kind, body

    def _whole(self) -> bool:
        """Whether the head of a message has arrived."""
        return len(self._arrived) >= HEAD_BYTES and self._arrived.startswith(self.token)


# Records: what it is, which session, a number. The grader and the warm parent trust each other.
RECORD = struct.Struct("!cIq")
START, WARM, STARTED, ENDED, FAILED = b"s", b"w", b"+", b"x", b"!"
_ROOM_FOR_DESCRIPTORS = struct.calcsize("i") * 16


def send(link: socket.socket, kind: bytes, session: int = 0, value: int = 0, fds: tuple[int, ...] = ()) -> None:
    """Send a record, with descriptors."""
    carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    link.sendmsg([RECORD.pack(kind, session, value)], carried)


def receive(link: socket.socket) -> tuple[bytes, int, int, list[int]] | None:
    """The next record as (what, session, value, descriptors); None when the other end is closed."""
    data, carried, _, _ = link.recvmsg(RECORD.size, socket.CMSG_SPACE(_ROOM_FOR_DESCRIPTORS))
    fds = array.array("i")
    for level, kind, body in carried:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
    while 0 < len(data) < RECORD.size:
        data += link.recv(RECORD.size - len(data))
    return (*RECORD.unpack(data), list(fds)) if data else None
