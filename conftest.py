"""What every test run has in common: refuted claims raise, progress bars are silent, nobody's own files are touched."""

import os
import signal
import tempfile

_HOME = tempfile.mkdtemp(prefix="labkit-tests-")
os.environ["LABKIT_STRICT"] = "1"
os.environ["LABKIT_QUIET"] = "1"
os.environ["LABKIT_HOME"] = _HOME
os.environ["LABKIT_RUNS"] = os.path.join(_HOME, "runs")
if "PYTEST_XDIST_WORKER" in os.environ:  # two workers with two threads each would wait for one another's cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background shell ignores Ctrl-C; what tests start must not
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Remove the learner's folder that these tests used."""
    import shutil

    shutil.rmtree(_HOME, ignore_errors=True)
