"""The sandbox with honest notebooks: what cells and calls give, how soon a child is there, what is left of it."""

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from boxes import HONEST, SMALL, WHY_NOT, asked

from labkit.deadline import DeadlineExceeded, within
from labkit.grading import box, cell, drop, exchange, frames, launch, seccomp, session, watch
from labkit.grading.wire import decode, encode

needs_a_box = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def shared():
    with box.Box(SMALL) as one:
        yield one


def outcome(one: box.Box, source: str) -> box.CellOutcome:
    with one.run([("cell", source)]) as session:
        return session.outcomes[-1]


@needs_a_box
def test_cells_run_in_order_and_each_has_its_own_outcome_and_output(shared):
    cells = [("a", "x = 1\nprint('first')"), ("b", "x += 1\n\nraise ValueError(f'no {x}')"), ("c", "x * 10")]
    with shared.run(cells) as session:
        a, b, c = session.outcomes
    assert (a.name, a.status, a.output, a.error, a.cut) == ("a", "ok", b"first\n", None, False)
    assert (b.status, b.error) == ("error", box.Error("ValueError", "no 2", 3))
    assert b"ValueError: no 2" in b.output
    assert c.status == "ok"
    assert b"20" in c.output


@needs_a_box
def test_a_call_is_answered_with_plain_data(shared):
    with shared.run([HONEST]) as session:
        answer = session.call("double", encode({"do": "call", "args": [torch.arange(3)]}), 5.0)
        assert answer.status == "ok"
        assert torch.equal(decode(answer.payload)["value"], torch.tensor([0, 2, 4]))
        assert asked(session, "double", "ab") == "abab"
        assert asked(session, "nothing") == "TypeError"


@needs_a_box
@pytest.mark.parametrize("cell_of", ["{}", "def double(x):\n    return x * 2\n{}"])
@pytest.mark.parametrize(
    "line",
    [
        *("double = double(3)", "double, y = 1, 2", "x = double = 3", "for double in (1, 2): pass", "del double"),
        *(
            "with open('/dev/null') as double: pass",
            "double += 1",
            "(double := 3)",
            "[double] = [4]",
            "import os as double",
        ),
        *("class A: pass\ndouble = A()", "def f():\n    global double\n    double = 0\nf()"),
    ],
)
def test_a_name_that_is_used_again_for_something_else_stays_the_functions(shared, line, cell_of):
    with shared.run([HONEST, ("more", cell_of.format(line))]) as session:
        assert asked(session, "double", 21) == 42
        assert asked(session, "double", "ab") == "abab"


@needs_a_box
def test_a_large_answer_arrives_whole_and_one_over_the_limit_is_refused(shared):
    source = "import torch\ndef f(n):\n    return torch.arange(n)\n"
    with shared.run([("f", source)]) as session:
        assert torch.equal(asked(session, "f", 400_000), torch.arange(400_000))
        assert asked(session, "f", 1_000_000) == "output-limit"
        assert torch.equal(asked(session, "f", 3), torch.arange(3))  # the session goes on


@needs_a_box
def test_what_nearly_every_answer_uses_is_loaded_before_there_is_a_child(shared):
    look = "import sys, torch\nbefore = set(sys.modules)\nw = torch.zeros(2, requires_grad=True)\nw.sum().backward()\n"
    step = "torch.optim.AdamW([w]).step()\nprint(len(set(sys.modules) - before))"
    assert int(outcome(shared, look + step).output) < 10  # 800 where torch's compiler is not loaded yet


@pytest.mark.parametrize(
    "told", [b'["a", "b", Infinity]', b"[" + b"[]," * 10**6 + b"0]", b"[" * 10**4, b'"abc"', b"[1]", b"\xff", b"{}"]
)
def test_an_outcome_that_is_none_is_an_error_at_once(told):
    assert session._told((b"r", told)).type == "unreadable"


@needs_a_box
def test_what_a_notebook_puts_in_the_place_of_labkits_functions_is_gone_when_an_answer_is_driven(shared):
    patch = "import sys, labkit.ranks, torch.distributed as d\nlabkit.ranks.run_ranks = d.all_reduce = None\n"
    patch += "sys.modules['labkit.sync'] = None"
    looks = "def f(_):\n    found = labkit.ranks.run_ranks, d.all_reduce, sys.modules['labkit.sync']\n"
    with shared.run([("a", patch), ("b", looks + "    return [one is None for one in found]")]) as session:
        assert asked(session, "f") == [True, True, True]
        session.call("f", encode({"do": "load", "modules": {}}), 5.0)
        assert asked(session, "f") == [False, False, False]


@needs_a_box
def test_a_call_that_its_caller_gives_up_ends_the_session(shared):
    with shared.run([("f", "import time\ndef f():\n    time.sleep(9)")]) as session:
        with pytest.raises(DeadlineExceeded):
            within(0.3, lambda: session.call("f", encode({"do": "call", "args": []}), 5.0))
        assert (session.over, asked(session, "f")) == ("timeout", "died")
    assert session.pids() == []


@needs_a_box
def test_a_syntax_error_names_its_line(shared):
    found = outcome(shared, "x = 1\ndef f(:\n    pass")
    assert found.status == "error"
    assert (found.error.type, found.error.line) == ("SyntaxError", 2)


@needs_a_box
def test_sessions_know_nothing_of_each_other(shared):
    leave = "import torch, builtins, os\ntorch.add = None\nbuiltins.open = None\nx = 1\nos.environ['X'] = '1'\n"
    leave += "torch.set_default_dtype(torch.float64)\nimport IPython\nIPython.get_ipython().run_cell = None"
    assert outcome(shared, leave).status == "ok"
    look = "import torch, os\nassert torch.add and open('/tmp') if False else True\nassert 'X' not in os.environ\n"
    look += "assert torch.ones(1).dtype == torch.float32 and 'x' not in globals()\nopen('/tmp/y', 'w').close()"
    found = outcome(shared, look)
    assert found.status == "ok", found


@needs_a_box
def test_two_sessions_live_side_by_side(shared):
    with shared.run([HONEST]) as one, shared.run([("other", "def double(x):\n    return x + x + 1")]) as other:
        assert [asked(one), asked(other), asked(one)] == [42, 43, 42]


@needs_a_box
def test_nothing_of_a_session_is_left(shared):
    with shared.run([HONEST]):
        pass
    before = len(shared.pids())
    source = "import subprocess\np = [subprocess.Popen(['sleep', '99']) for _ in range(3)]"
    with shared.run([("a", source)]) as session:
        assert len(session.pids()) == 5
    assert session.pids() == []
    time.sleep(0.1)  # the world for the next one is made meanwhile
    assert len(shared.pids()) == before
    n_files = len(os.listdir("/proc/self/fd"))
    for source in ("1", "import os\nos._exit(0)", "1"):
        assert outcome(shared, source).seconds < 5.0
    assert len(os.listdir("/proc/self/fd")) == n_files
    assert shared.ended == {}


@needs_a_box
def test_what_a_notebook_may_well_do_works(shared):
    sources = {
        "shell": "!ls\nfiles = !ls\nx = 5\nassert x == 5",
        "script": "%%bash\nls",
        "install": "%pip install torch",
        "timing": "%%timeit -n 2 -r 1\nsum(range(10))",
        "figures": "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        "await": "import asyncio\nawait asyncio.sleep(0)",
        "bars": "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass",
        "warnings": "import warnings\nwarnings.warn('careful')",
        "labkit": "from labkit import bench, check, plot, train",
        "%%syncs": "%%syncs\nx = 1",
        "gradients": "import torch\nx = torch.ones(2, requires_grad=True)\n(x * x).sum().backward()",
        "pickle": "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))",
        "source": "import inspect\ndef f(): pass\nassert 'pass' in inspect.getsource(f)",
        "pool": "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as pool: pool.map(len, ['a'])",
        "loopback": "from socket import *\na = create_server(('127.0.0.1', 0))\nb = create_connection(a.getsockname())",
        "files": "open('notes.txt', 'w').write('x')\nassert open('/home/learner/notes.txt').read() == 'x'",
    }
    with shared.run(list(sources.items())) as session:
        wrong = {one.name: (one.status, one.error, one.output) for one in session.outcomes if one.status != "ok"}
    assert not wrong
    assert cell.NO_COMMANDS.encode() in session.outcomes[0].output


@needs_a_box
def test_data_sets_are_there_where_the_grader_has_them(shared):
    source = "import os, pathlib\nfor path in pathlib.Path('/cache/labkit').iterdir():\n    assert path.is_file()\n"
    source += (
        "    try: path.open('r+b')\n    except OSError: pass\n    else: 1 / 0\nopen('/cache/labkit/mine', 'w').close()"
    )
    assert outcome(shared, source).status == "ok"


@needs_a_box
@pytest.mark.slow
def test_ranks_meet_inside_the_box():
    source = "import torch, torch.distributed as dist\nfrom labkit.ranks import run_ranks\ndef total():\n"
    source += "    x = torch.ones(2)\n    dist.all_reduce(x)\n    return x.tolist()\nprint(run_ranks(total, 2))"
    cells = [("a", "import torch\ntorch.nn.functional.relu = None\n" + source), ("b", "print(run_ranks(total, 2))")]
    cells += [("c", "%%ranks 2\nimport torch, sys\nassert torch.nn.functional.relu\nassert 'x' not in globals()")]
    with box.Box(replace(SMALL, cell_s=60.0, total_s=90.0, memory_bytes=2 << 30)) as one:
        for at_hand in (True, False):  # with the spare process, and with a new Python as in a notebook
            with one.run(cells if at_hand else cells[:1], ranks=at_hand) as session:
                told = [(found.status, found.output) for found in session.outcomes]
            assert told[0] == ("ok", b"[[2.0, 2.0], [2.0, 2.0]]\n")
            assert told == told[:1] or told[1:] == [told[0], ("ok", b"")]


@needs_a_box
def test_what_the_child_is(shared):
    """No capabilities, no new privileges, a filter, its own process 1, its own loopback and nobody else to see."""
    look = "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
    look += "assert all(int(status[name], 16) == 0 for name in ('CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'CapInh'))\n"
    look += "assert (status['NoNewPrivs'].strip(), status['Seccomp'].strip()) == ('1', '2')\nimport os, socket\n"
    look += "assert sorted(int(n) for n in os.listdir('/proc') if n.isdigit()) == [1, os.getpid()]\n"
    look += "assert socket.gethostname() == 'box' and [n for _, n in socket.if_nameindex()] == ['lo']\n"
    look += "assert os.getuid() == 1000 and len(os.sched_getaffinity(0)) > 0\n"
    look += "assert {int(n) for n in os.listdir('/proc/self/fd')} <= {0, 1, 2, *range(3, 12)}\n"
    look += "import torch, threading\nassert torch.get_num_threads() == 1 and threading.active_count() == 1"
    found = outcome(shared, look)
    assert found.status == "ok", found


@needs_a_box
def test_a_call_is_stopped_in_time_and_the_session_is_over(shared):
    with shared.run([("f", "def double(x):\n    while True: pass")]) as session:
        started_s = time.monotonic()
        assert asked(session, timeout_s=0.3) == "timeout"
        assert time.monotonic() - started_s < 5.0
        assert session.over == "timeout"
        assert asked(session) == "died"
        assert session.pids() == []


@needs_a_box
def test_whoever_prints_without_end_is_told_how_much_and_the_last_line(shared):
    found = outcome(shared, "import itertools\nfor n in itertools.count():\n    print('still at', n)")
    assert (found.status, found.cut) == ("output-limit", True)
    assert re.fullmatch(r"1\.\d+ MB before it was ended, and last 'still at \d+'", found.said)
    found = outcome(shared, "print('guess?', flush=True)\nwhile True: pass")
    assert (found.status, found.said) == ("timeout", "7 B before it was ended, and last 'guess?'")
    assert outcome(shared, "while True: pass").said == outcome(shared, "print(1)").said == ""


@needs_a_box
@pytest.mark.parametrize("asking", ["input('your age? ')", "int(input('your age? '))"])
def test_whoever_asks_is_told_that_nobody_answers(shared, asking):
    found = outcome(shared, asking)
    assert (found.status, found.error.type, found.error.message) == ("error", "EOFError", cell.NO_INPUT)
    assert found.output.startswith(b"your age? ")


@needs_a_box
def test_all_cells_and_calls_share_the_total(shared, monkeypatch):
    monkeypatch.setattr(shared, "limits", replace(SMALL, total_s=0.5))
    with shared.run([("a", "import time\ntime.sleep(0.3)")] * 3) as session:
        assert [found.status for found in session.outcomes] == ["ok", "timeout"]


@needs_a_box
def test_a_box_whose_processes_were_killed_starts_again(shared):
    watch.end(shared.pids())
    with shared.run([HONEST]) as session:
        assert asked(session) == 42


@needs_a_box
def test_closing_a_box_ends_all_of_it():
    one = box.Box(SMALL)
    session = one.run([("a", "import subprocess\nsubprocess.Popen(['sleep', '99'])")])
    pids = one.pids()
    assert len(pids) >= 6
    one.close()
    assert watch.family(pids) == []
    session.close()  # in whichever order


@needs_a_box
def test_a_box_does_not_outlive_its_grader():
    code = "import sys; sys.path.insert(0, 'tests'); from boxes import SMALL; from labkit.grading import box\n"
    code += "one = box.Box(SMALL); s = one.run([('a', 'x = 1')]); print(*one.pids(), flush=True)\n"
    code += "import time; time.sleep(99)"
    grader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in grader.stdout.readline().split()]
    grader.kill()
    grader.wait()
    grader.stdout.close()
    until_s = time.monotonic() + 10.0
    while watch.family(pids) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert pids
    assert watch.family(pids) == []


@needs_a_box
def test_a_child_is_there_at_once(shared):
    """Against the seconds that `import torch` takes; the median is 15 ms on a quiet machine."""
    seconds = []
    for _ in range(5):
        started_s = time.monotonic()
        with shared.run([]):
            seconds.append(time.monotonic() - started_s)
    assert median(seconds) < 0.5


@needs_a_box
def test_a_box_works_from_any_thread(shared):
    found = []
    thread = threading.Thread(target=lambda: found.append(outcome(shared, "1 + 1").status))
    thread.start()
    thread.join()
    assert found == ["ok"]


def test_without_a_sandbox_the_same_answers_come():
    with box.Trusted(SMALL) as one:
        before = len(one.pids())
        with one.run([HONEST, ("b", "1 / 0"), ("c", "import os\nprint(os.getcwd())")]) as session:
            assert asked(session) == 42
            assert [found.status for found in session.outcomes] == ["ok", "error", "ok"]
        folder = session.outcomes[-1].output.decode().strip()
        assert os.path.isdir(folder)
        stays = ("a", "import subprocess\nsubprocess.Popen(['sleep', '99'], start_new_session=True)")
        for source, status in (("while True: pass", "timeout"), ("import os\nos._exit(0)", "died")):
            with one.run([stays]) as session:
                session.run([("b", source)])
                assert session.outcomes[-1].status == status
        assert len(one.pids()) == before
    assert not os.path.exists(folder)


def test_a_machine_without_a_sandbox_says_what_would_help(monkeypatch):
    monkeypatch.setattr(launch.shutil, "which", lambda _name: None)
    assert "sudo apt-get install bubblewrap" in box.available()
    with pytest.raises(box.Refused, match="apt-get install bubblewrap"):
        box.Box()


def test_other_systems_are_told_so(monkeypatch):
    monkeypatch.setattr(launch.sys, "platform", "darwin")
    assert "Linux" in box.available()
    with pytest.raises(box.Refused, match="Linux"):
        box.Trusted()


def test_an_unknown_processor_is_refused(monkeypatch):
    monkeypatch.setattr(launch.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(launch.platform, "machine", lambda: "riscv64")
    assert "riscv64" in launch.missing()


def test_why_a_box_did_not_start_ends_with_what_was_said():
    assert "as most containers do not" in launch.why("warning\nbwrap: No permissions to create new namespace")
    assert "labkit[lab]" in launch.why("ModuleNotFoundError: No module named 'IPython'")
    assert "No permissions" in launch.why("warning\nbwrap: No permissions to create new namespace")


def test_root_mounts_at_neutral_paths_and_others_bind_directly(monkeypatch):
    monkeypatch.setattr(launch, "_is_root", lambda: False)
    command = launch.boxed("pass", {}, 1 << 20)
    assert "bwrap" in command[0]
    assert "--unshare-net" in command
    monkeypatch.setattr(launch, "_is_root", lambda: True)
    assert str(drop.__file__) in launch.boxed("pass", {}, 1 << 20)


def test_what_a_course_keeps_from_learners_is_empty_wherever_it_is_bound(tmp_path, monkeypatch):
    """Installed among packages, or checked out in a folder that is bound for another reason."""
    for name in ("labkit/checks", "solutions", "tests"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(launch, "_PACKAGE", tmp_path / "labkit")
    binds = [(str(tmp_path / "labkit"), "/opt/labkit/labkit"), (str(tmp_path), "/opt/site0")]
    checks = ["/opt/labkit/labkit/checks", "/opt/site0/labkit/checks"]
    assert launch._hidden(binds) == checks
    (tmp_path / "pyproject.toml").touch()
    assert launch._hidden(binds) == [*checks, "/opt/site0/solutions", "/opt/site0/tests"]


def test_the_filter_is_there_for_two_architectures_and_jumps_stay_inside():
    for machine in ("x86_64", "aarch64"):
        code = seccomp.program(machine)
        lines = [seccomp.struct.unpack("=HBBI", code[i : i + 8]) for i in range(0, len(code), 8)]
        assert len(lines) < 4096
        for i, (kind, if_true, if_false, _) in enumerate(lines):
            assert kind == 0x06 or i + 1 + max(if_true, if_false) < len(lines)
        assert lines[-1] == (0x06, 0, 0, 0x7FFF0000)
    with pytest.raises(KeyError):
        seccomp.program("riscv64")


@pytest.mark.parametrize(("column", "header"), [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")])
def test_the_filters_numbers_are_those_of_the_kernels_headers(column, header):
    """64-bit Arm has the generic numbers. Headers older than a call do not have it."""
    if not (path := Path("/usr/include", header)).exists():
        pytest.skip(f"{path} is not here (Debian: linux-libc-dev)")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    denied = seccomp._DENIED | {"clone": seccomp._CLONE, "clone3": seccomp._CLONE3, "socket": seccomp._SOCKET}
    newest = max(map(int, known.values()))
    wrong = {
        name: (numbers[column], known.get(name))
        for name, numbers in denied.items()
        if (numbers[column] or 0) <= newest and str(numbers[column] or "") != known.get(name, "")
    }
    assert wrong == {}


def test_messages_are_found_among_noise():
    token = os.urandom(frames.TOKEN_BYTES)
    inbox = frames.Inbox(token, 100)
    stream = b"noise" + frames.packed(token, b"r", b"one") + b"more noise" + frames.packed(token, b"a", b"two")
    found = []
    for i in range(len(stream)):
        inbox.add(stream[i : i + 1])
        while (message := inbox.take()) is not None:
            found.append(message)
    assert found == [(b"r", b"one"), (b"a", b"two")]
    assert inbox.noise_bytes == len(b"noisemore noise")
    with pytest.raises(frames.TooLong):
        inbox.add(frames.packed(token, b"r", bytes(101)))
    with pytest.raises(frames.TooLong):
        frames.Inbox(token, 100).add(bytes(200))


def test_told_errors_that_are_none_are_errors():
    from labkit.grading.session import _status, _told

    for body in (b"", b"[]", b"{}", b"[1", b"[" * 100_000, b'["a"]', b"3", b'["a", "b", "c"]'):
        assert _told((b"r", body)).type == "unreadable"
    assert _told((b"r", b"null")) is None
    assert _status(_told((b"r", b"{}"))) == "tampered"
    assert _status(box.Error("RuntimeError", "DefaultCPUAllocator: can't allocate memory")) == "memory"


def test_output_is_kept_up_to_a_cap():
    assert box.Limits().output_bytes > exchange.KEPT_BYTES


def test_memory_and_family_of_this_process():
    child = subprocess.Popen(["sleep", "99"])
    try:
        assert child.pid in watch.family([os.getpid()])
        assert (held := watch.memory_bytes([os.getpid()])) > 10 << 20
        assert watch.memory_bytes([os.getpid()], harmless_bytes=1 << 50) > held  # shared pages in full
        assert watch.memory_bytes([os.getpid()], harmless_bytes=held // 2) < 1.1 * held
    finally:
        assert watch.end([child.pid])
        child.wait()
    assert watch.family([child.pid]) == []
