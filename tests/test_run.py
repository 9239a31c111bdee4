"""labkit run: one fresh process, whose every way of ending is said in a sentence and an exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fabricated
import pytest

from labkit import course, progress, run

CLAIMS = """# %% [markdown]
# # 01 · Toy
# ## Question

# %%
import sys, types
claims = types.ModuleType("labkit.claims")
claims.results = lambda: [types.SimpleNamespace(status=status) for status in {statuses}]
sys.modules["labkit.claims"] = claims
print("✓ something")
"""
START = "# %% [markdown]\n# # 01 · Toy\n# ## Question\n\n# %%\nprint('started', flush=True)\n\n"
MEASURE = START + "# %% [markdown]\n# ## Measure\n\n# %%\n"


@pytest.fixture
def labkit_run(tmp_path, monkeypatch):
    """Runs a lesson with the given body; returns exit code, stdout, stderr."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))

    def call(body):
        root = fabricated.course(tmp_path / "a course", n01_toy=body)
        monkeypatch.chdir(root)
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=60, env=_environment())
        return done.returncode, done.stdout, done.stderr

    return call


ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "labkit.cli", "run", "01"]


def _environment(**more):
    """That of a process that runs the labkit beside these tests, wherever another one is installed."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


@pytest.mark.parametrize(
    ("statuses", "code", "says"),
    [
        (["held"], 0, "1 claim held, 0 undecided, 0 refuted"),
        (["held", "held", "undecided"], 0, "2 claims held, 1 undecided, 0 refuted"),
        (["held", "refuted"], 1, "1 claim held, 0 undecided, 1 refuted"),
        ([], 0, "0 claims held, 0 undecided, 0 refuted"),
    ],
)
def test_the_exit_code_says_whether_the_claims_held(labkit_run, statuses, code, says):
    left, out, _ = labkit_run(CLAIMS.format(statuses=statuses))
    assert left == code
    assert out.startswith("✓ something\n")
    assert out.splitlines()[-1].startswith(says)


def test_these_tests_run_the_tree_they_stand_in(labkit_run):
    _, out, _ = labkit_run(MEASURE + "import labkit\nprint(labkit.__file__)\n")
    assert Path(out.splitlines()[1]) == ROOT / "labkit" / "__init__.py"


def test_the_child_finds_labkit_where_it_is_not_installed(tmp_path):
    """-S: without site-packages, and so without the link that an editable installation leaves there."""
    command = [sys.executable, "-S", "-c", "import labkit; print(labkit.__file__)"]
    alone = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    assert alone.returncode != 0
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=run._environment())
    assert Path(done.stdout.strip()).parent == Path(run.__file__).parent


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_signs_that_the_output_cannot_show_stay_two_signs(labkit_run, monkeypatch, encoding):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    code, out, error = labkit_run(MEASURE + "print('✓ held')\nprint('✗ refuted')\n")
    assert (code, out.splitlines()[1:3]) == (0, ["v held", "x refuted"]), error


def test_without_a_terminal_each_section_is_a_plain_line(labkit_run):
    code, out, error = labkit_run(MEASURE + "print('unfinished', end='')\n")
    assert code == 0
    assert out.startswith("started\nunfinished\n0 claims held")
    assert [line.split("] ")[1] for line in error.splitlines()] == ["cell 1 of 2: Question", "cell 2 of 2: Measure"]


def test_an_error_names_the_line_of_the_source(labkit_run):
    code, _, error = labkit_run(MEASURE + "def f():\n    raise ValueError('no good')\n\n\nf()\n")
    assert code == 1
    assert '01_toy.py", line 20, in <module>' in error
    assert '01_toy.py", line 17, in f\n    raise ValueError' in error
    assert "labkit/run.py" not in error
    assert error.endswith("ValueError: no good\nThe lesson stopped in cell 2 of 2 (Measure), line 16.\n")


def test_a_syntax_error_names_the_line_of_the_source(labkit_run):
    code, _, error = labkit_run(MEASURE + "x = = 1\n")
    assert code == 1
    assert '01_toy.py", line 16' in error


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ("import os; os._exit(0)", "its process left with exit code 0 in cell 2 of 2 (Measure), line 16."),
        ("import os; os._exit(3)", "its process left with exit code 3 in cell 2 of 2 (Measure), line 16."),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL (often: out of memory) in cell 2 of 2 (Measure), line 16."),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="needs the signals of Unix")
def test_a_process_that_dies_is_a_sentence(labkit_run, ending, says):
    code, out, error = labkit_run(MEASURE + ending + "\n")
    assert (code, out) == (1, "started\n")
    assert error.endswith(says + "\n")


def test_sys_exit_is_not_taken_for_the_end(labkit_run):
    code, _, error = labkit_run(MEASURE + "import sys\nsys.exit(0)\n")
    assert code == 1
    assert "The lesson stopped in cell 2 of 2" in error


@pytest.mark.skipif(os.name == "nt", reason="needs the signals of Unix")
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the parent", "to both, as a terminal does"])
def test_ctrl_c_says_where_and_leaves_nothing_behind(tmp_path, send):
    body = MEASURE + "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    root = fabricated.course(tmp_path, n01_toy=body)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(COMMAND, cwd=root, start_new_session=True, env=_environment(), **pipes) as running:
        assert running.stdout.readline() == "started\n"
        child = int(running.stdout.readline())
        send(running.pid, signal.SIGINT)
        error = running.stderr.read()
        assert running.wait(30) == 130
    assert error.endswith("Interrupted in cell 2 of 2 (Measure), line 16.\n")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


STUBBORN = (
    MEASURE
    + """import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(60)
"""
)


def _gone(pid, within_s=20.0):
    """Whether a process ends in time; one that nobody waits for counts as ended."""
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(os.name == "nt", reason="needs the signals of Unix")
def test_ctrl_c_on_a_lesson_that_ignores_it(tmp_path):
    root = fabricated.course(tmp_path, n01_toy=STUBBORN)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(COMMAND, cwd=root, start_new_session=True, env=_environment(), **pipes) as running:
        running.stdout.readline()
        child = int(running.stdout.readline())
        while running.poll() is None:  # each Ctrl-C goes one step further
            os.killpg(running.pid, signal.SIGINT)
            time.sleep(0.3)
        error = running.stderr.read()
    assert running.returncode == 130
    assert error.endswith("Interrupted in cell 2 of 2 (Measure), line 16.\n")
    assert "Traceback" not in error
    assert _gone(child)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
def test_the_lesson_ends_with_its_parent_however_that_ends(tmp_path):
    root = fabricated.course(tmp_path, n01_toy=STUBBORN)
    with subprocess.Popen(COMMAND, cwd=root, env=_environment(), stdout=subprocess.PIPE, text=True) as running:
        running.stdout.readline()
        child = int(running.stdout.readline())
        running.kill()
        assert _gone(child)


@pytest.mark.skipif(os.name == "nt", reason="pipes")
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_when_the_reader_leaves_the_run_leaves_silently(tmp_path, both):
    """As in `labkit run 01 | head -1`."""
    body = MEASURE + "import time\nfor i in range(200):\n    print(i, flush=True)\n    time.sleep(0.02)\n"
    root = fabricated.course(tmp_path, n01_toy=body + START.replace("Question", "Limits"))
    with (tmp_path / "errors").open("w+") as errors:
        error = subprocess.STDOUT if both else errors
        with subprocess.Popen(COMMAND, cwd=root, env=_environment(), stdout=subprocess.PIPE, stderr=error) as running:
            running.stdout.readline()
            running.stdout.close()
        errors.seek(0)
        said = errors.read()
    assert running.returncode == 141
    assert [line for line in said.splitlines() if not line.startswith("[ ")] == []


def test_a_lessons_own_broken_pipe_is_its_failure(labkit_run):
    code, _, error = labkit_run(MEASURE + "raise BrokenPipeError('mine')\n")
    assert code == 1
    assert error.endswith("BrokenPipeError: mine\nThe lesson stopped in cell 2 of 2 (Measure), line 16.\n")


def test_a_limit_that_comes_after_the_last_cell_is_none(tmp_path, monkeypatch, capfd):
    """Python's own end may take long (a pool of processes, a profiler's file); the lesson has come to its end."""
    root = fabricated.course(tmp_path, n01_toy=MEASURE + "import atexit, time\natexit.register(time.sleep, 600)\n")
    monkeypatch.chdir(root)
    outcome = run.run(course.find("01"), limit_s=8.0)
    assert (outcome.code, outcome.why) == (0, "")
    assert "0 claims held" in capfd.readouterr().out


def test_a_process_that_dies_after_its_last_cell_is_said(labkit_run):
    code, _, error = labkit_run(MEASURE + "import atexit, os\natexit.register(os._exit, 9)\n")
    assert code == 1
    assert error.endswith("01_toy: its process left with exit code 9 after its last cell.\n")


def test_an_unknown_budget_is_a_sentence_before_the_lesson_starts(labkit_run, monkeypatch):
    monkeypatch.setenv("LABKIT_BUDGET", "nonsense")
    assert labkit_run(MEASURE) == (2, "", "LABKIT_BUDGET is 'nonsense'; it may be 'full' or 'smoke'.\n")


def test_the_reference_solves_no_exercise(labkit_run):
    code, out, _ = labkit_run(MEASURE + "from labkit import progress\nprint(progress.record('1.1'))\n")
    assert (code, out.splitlines()[1]) == (0, "False")
    assert progress.solved() == set()


def test_what_a_lesson_launches_does_not_run_the_lesson_again(labkit_run):
    body = MEASURE + (
        "import concurrent.futures, multiprocessing, math\n"
        "spawn = multiprocessing.get_context('spawn')\n"
        "with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:\n"
        "    print(pool.submit(math.factorial, 5).result())\n"
    )
    code, out, error = labkit_run(body)
    assert (code, out.splitlines()[:2]) == (0, ["started", "120"]), error


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals")
def test_on_a_terminal_lines_stand_above_the_bar(tmp_path):
    import fcntl
    import pty
    import struct
    import termios

    inner = "from tqdm import tqdm\nfor i in tqdm(range(3), leave=False):\n    print('epoch', i)\n"
    root = fabricated.course(tmp_path, n01_toy=MEASURE + inner)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
    with subprocess.Popen(COMMAND, cwd=root, stdout=theirs, stderr=theirs, env=_environment()) as running:
        os.close(theirs)
        text, end = b"", time.monotonic() + 60
        while time.monotonic() < end:
            try:
                text += os.read(ours, 65536)
            except OSError:  # the other side was closed
                break
        os.close(ours)
        assert running.wait(30) == 0
    screen = text.decode().replace("\x1b[A", "").replace("\r\n", "\n")
    lines = [line.split("\r")[-1] for line in screen.split("\n")]  # what stands before a \r is overwritten
    assert [line for line in lines if "epoch" in line] == ["epoch 0", "epoch 1", "epoch 2"]
    assert "01_toy, cell 2 of 2: Measure |" in screen
