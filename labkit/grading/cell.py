"""What runs a learner's cells and answers the grader's calls, in the forked child. The learner's code runs right here,
so nothing that this module says is believed: it carries answers, and others judge them."""

import builtins
import contextlib
import json
import os
import struct
import sys
import traceback
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

from labkit.grading import frames, harness

HELLO, RUN, CALL, READY, RAN, ANSWER, ERROR = b"h", b"r", b"c", b"h", b"r", b"a", b"e"
NO_INPUT = "input() waits for somebody to type, and nobody does when notebooks are graded."
NO_COMMANDS = "Shell commands (!, %%bash) are not run when notebooks are graded."
_LONGEST_MESSAGE = 2000
_CELL = "<ipython-input-"
_FUNCTIONS = (FunctionType, type, partial, type(lru_cache(len)))


def shell() -> Any:
    """The IPython that runs cells, made in the warm parent: without history, colours and commands of the system."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False  # it would start a thread
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.xmode = "Plain"
    made = InteractiveShell.instance(config=config)
    made.system = made.system_piped = made.system_raw = _refused
    made.ask_exit, made.enable_gui = sys.exit, lambda *_args: None
    made.getoutput = lambda *_args, **_kwargs: _refused() or []
    for name in ("bash", "sh", "script", "system", "sx", "pip", "conda", "uv"):
        for kind in ("line", "cell"):
            if name in made.magics_manager.magics[kind]:
                made.register_magic_function(_refused, kind, name)
    made.register_magic_function(lambda _line: None, "line", "matplotlib")  # figures are drawn, and shown to nobody
    return made


def _refused(*_args: object, **_kwargs: object) -> None:
    """Instead of a command of the system: a sentence, and the cell goes on."""
    print(NO_COMMANDS, file=sys.stderr)


def _unanswered(prompt: object = "", /) -> str:
    """Instead of input: the prompt, and that nobody answers."""
    print(prompt)
    raise EOFError(NO_INPUT)


class Harness:
    """One talk with the grader, from the first cell to the end."""

    def __init__(self, link: Any, ip: Any) -> None:
        self._link, self._shell, self._here = link, ip, os.getpid()
        self._token, self._most_bytes = b"", 0
        self._made: dict[str, Any] = {}
        self._run_code, ip.run_code = ip.run_code, self._one_statement

    def serve(self) -> None:
        """Run and answer until the grader has closed its end."""
        self._token = self._exactly(frames.TOKEN_BYTES)
        while True:
            kind, body = self._receive()
            reply = self._reply(kind, body)
            self._flush()
            if os.getpid() != self._here:  # a fork that the learner's code made and forgot to end
                os._exit(0)
            self._send(*reply)

    def _reply(self, kind: bytes, body: bytes) -> tuple[bytes, bytes]:
        """What to say to one message."""
        try:
            if kind == HELLO:
                self._most_bytes = json.loads(body)["message_bytes"]
                return READY, b""
            if kind == RUN:
                return RAN, self._run(**json.loads(body))
            (length,) = struct.unpack_from("!H", body)
            return ANSWER, self._answer(body[2 : 2 + length].decode(), body[2 + length :])
        except BaseException as error:  # whatever the learner's objects raise
            return ERROR, json.dumps(told(error)).encode()

    def _run(self, name: str, source: str) -> bytes:
        """Run a cell; its error as JSON, null without one."""
        result = self._shell.run_cell(source, store_history=True, cell_id=name)
        error = result.error_before_exec or result.error_in_exec
        return json.dumps(told(error) if error is not None else None).encode()

    async def _one_statement(self, *given: Any, **named: Any) -> bool:
        """Run one statement of a cell, as the shell does, and remember the functions and classes that have names then.

        Nothing else is: what a learner deletes to make room has to go.
        """
        failed = await self._run_code(*given, **named)
        self._made |= {name: value for name, value in self._shell.user_ns.items() if type(value) in _FUNCTIONS}
        return failed

    def _answer(self, name: str, payload: bytes) -> bytes:
        """What a function of the learner's gives, in the form of the wire.

        A name that has been given to something else since, such as in `for double in (1, 2)`, is the function's again.
        """
        if name in self._made and not callable(self._shell.user_ns.get(name)):
            self._shell.user_ns[name] = self._made[name]
        return harness.answer(self._shell.user_ns, name, payload)

    def _flush(self) -> None:
        """Have all that was printed leave before the reply does."""
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(BaseException):
                stream.flush()

    def _send(self, kind: bytes, body: bytes) -> None:
        if len(body) > self._most_bytes:
            kind, body = ERROR, json.dumps(("TooLong", f"an answer of {len(body)} bytes", 0)).encode()
        self._link.sendall(frames.packed(self._token, kind, body))

    def _receive(self) -> tuple[bytes, bytes]:
        kind, length = frames.head(self._exactly(frames.HEAD_BYTES))
        return kind, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        """So many bytes; the process ends when the grader is gone."""
        data = bytearray()
        while len(data) < count:
            more = self._link.recv(min(count - len(data), 1 << 20))
            if not more:
                os._exit(0)
            data += more
        return bytes(data)


def told(error: BaseException) -> tuple[str, str, int]:
    """An exception as (type, message, line of the cell it passed last, 0 for none)."""
    try:
        message = str(error)[:_LONGEST_MESSAGE]
    except BaseException:
        message = ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_CELL)]
    if isinstance(error, SyntaxError) and str(error.filename).startswith(_CELL):
        lines.append(error.lineno)
    return type(error).__name__[:100], message, int((lines or [0])[-1] or 0)


def serve(link: Any) -> None:
    """Talk over a connected socket with the shell that the warm parent has made."""
    from IPython.core.interactiveshell import InteractiveShell

    ip = InteractiveShell.instance()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    builtins.input = _unanswered
    Harness(link, ip).serve()
