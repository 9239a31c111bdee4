"""The server that ranks are forked from: one for this process, started at the first launch, with torch loaded.

multiprocessing's own forkserver, but apart from the one that a program may use for itself, so that neither changes what
the other loads, and without running the main program again: what a rank needs travels pickled.
"""

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
from threading import RLock

_LONGEST_PATH = 60  # of a temporary folder: the path of a socket may have 100 characters or so, depending on the system
# How the server starts: in a process group of its own, and silent about hosts without a network, of which torch warns.
_STEP_ASIDE = """import os, sys
os.setpgid(0, 0)
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.execv(sys.argv[1], sys.argv[1:])"""

_lock = RLock()
_server = forkserver.ForkServer()
_server.set_forkserver_preload(["labkit.ranks.preload"])


class Process(process.BaseProcess):
    """A process forked from the server; in it, multiprocessing starts others as it would have here."""

    _start_method = None

    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> popen_forkserver.Popen:  # noqa: N802, multiprocessing's own name
        return _Launch(process_obj)


class _Launch(popen_forkserver.Popen):
    """As multiprocessing's, with another server and without the main program."""

    def _launch(self, process_obj: process.BaseProcess) -> None:
        buffer = io.BytesIO()
        with _start_method_undecided():
            prepared = spawn.get_preparation_data(process_obj._name)
        context.set_spawning_popen(self)
        try:
            reduction.dump({key: value for key, value in prepared.items() if not key.startswith("init_main")}, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, to_child = _connected(self._fds)
        kept = os.dup(to_child)  # the child's sign that this process lives
        self.finalizer = util.Finalize(self, util.close_fds, (kept, self.sentinel))
        with open(to_child, "wb", closefd=True) as file:
            file.write(buffer.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _connected(fds: list[int]) -> tuple[int, int]:
    """Two ends of pipes to a new process. A server whose socket somebody has removed is replaced."""
    with _lock, _apart(), _start_method_undecided():
        _have_short_path()
        try:
            return _server.connect_to_new_process(fds)
        except (FileNotFoundError, ConnectionRefusedError):
            with suppress(FileNotFoundError):
                _server._stop()
            os.makedirs(util.get_temp_dir(), mode=0o700, exist_ok=True)
            return _server.connect_to_new_process(fds)


def _have_short_path() -> None:
    """See to it that a socket's path fits where it stands, however long the path of the temporary folder is."""
    config = process.current_process()._config
    if config.get("tempdir") is None and len(tempfile.gettempdir()) > _LONGEST_PATH and os.path.isdir("/tmp"):
        config["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
        util.Finalize(None, shutil.rmtree, (config["tempdir"], True), exitpriority=-100)


@contextmanager
def _start_method_undecided() -> Iterator[None]:
    """A block that asks for the start method of this program without settling it, for set_start_method may follow."""
    default = context._default_context
    before = default._actual_context
    try:
        yield
    finally:
        default._actual_context = before


@contextmanager
def _apart() -> Iterator[None]:
    """A block in which the server, and multiprocessing's resource tracker, start in process groups of their own.

    A notebook's kernel that is shut down ends the processes of its own group first, and waits 14 s for the tracker,
    which heeds no SIGTERM; the front end kills the kernel before that, so that nobody tidies up.
    """
    original = util.spawnv_passfds
    util.spawnv_passfds = lambda path, args, fds: original(path, [path, "-c", _STEP_ASIDE, *args], fds)
    try:
        yield
    finally:
        util.spawnv_passfds = original
