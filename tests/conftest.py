"""What holds for every test."""

import os
import signal
import sys

import parts
import pytest

# torch's profiler greets on stderr from its first start in a process on, and some tests read what was written there.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def pytest_collection_modifyitems(items):
    """The longest parts come first."""
    items.sort(key=parts.begins(items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """For --dist loadfile: parts in place of files, in the order above."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Parts(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return parts.part(nodeid)

    config.option.loadscopereorder = False
    return Parts(config, log)


@pytest.fixture(autouse=True)
def interrupts_as_found():
    """A test leaves Ctrl-C as it found it, or the next one that presses it fails in its place."""
    stand = lambda: (signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    handler, mask = found = stand()
    yield
    left = stand()
    signal.signal(signal.SIGINT, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert left == found


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A course of one lesson as the current folder."""
    import fabricated

    from labkit import course

    monkeypatch.chdir(fabricated.course(tmp_path / "a course"))
    return course.find("01")


@pytest.fixture
def labkit(monkeypatch, capsys):
    """Runs `labkit ...` in this process; returns exit code, stdout, stderr."""
    from labkit import cli

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, *capsys.readouterr()

    return call
