"""run_ranks in a real notebook kernel: every fault is named in its time, the kernel lives on, and nothing is left."""

import os
import re
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from labkit import hardware

REPEATS = int(os.environ.get("LABKIT_FAULT_REPEATS", "1"))
SETUP = """
import os, resource, signal, sys, threading, time
import torch, torch.distributed as dist
from labkit.ranks import run_ranks
torch.set_num_threads(2); torch.randn(700, 700) @ torch.randn(700, 700)  # OpenMP's threads run in this kernel
def faulty(fault, rank=1):
    if dist.get_rank() == rank:
        fault()
    dist.all_reduce(torch.ones(4))
"""


class Kernel:
    """A kernel with its own temporary folder, and what it leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environ = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": hardware.python_path()}
        self.manager, self.client = start_new_kernel(env=environ)
        self.pid = self.manager.provisioner.process.pid
        self.run(SETUP)

    def send(self, code: str) -> str:
        """Start a cell; its message's id."""
        return self.client.execute(textwrap.dedent(code))

    def wait(self, sent: str, *, on_text=lambda _text: None, timeout_s: float = 60.0) -> tuple[str, str]:
        """What the cell printed, and the text of its error."""
        text, error, until_s = "", "", time.monotonic() + timeout_s
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, until_s - time.monotonic()))
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                text += content["text"]
                on_text(text)
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return text, re.sub(r"\x1b\[[\d;]*m", "", error)

    def run(self, code: str, **how: object) -> tuple[str, str]:
        return self.wait(self.send(code), **how)

    def ranks(self) -> list[psutil.Process]:
        """The processes that this kernel has started, but for the server that ranks are forked from and its tracker."""
        all_of_them = psutil.Process(self.pid).children(recursive=True)
        servers = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
        return [each for each in all_of_them if not _is_server(each, servers) or _is_server(each.parent(), servers)]

    def left(self) -> dict:
        """What a launch must not leave: processes, files, shared memory, ports."""
        return {
            "ranks": [each.pid for each in self.ranks()],
            "files": sorted(path.name for path in self.folder.iterdir()),
            "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith("torch_")),
            "descriptors": len(os.listdir(f"/proc/{self.pid}/fd")),
        }

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _is_server(process, servers) -> bool:
    try:
        return any(name in " ".join(process.cmdline()) for name in servers)
    except (psutil.NoSuchProcess, AttributeError):
        return False


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    made.run("print(run_ranks(dist.get_rank, 2))")
    yield made
    made.close()


def test_the_cells_line_stands_in_the_traceback(kernel):
    _, error = kernel.run(
        """
        def one():
            if dist.get_rank() == 1:
                raise ValueError("no")
            dist.barrier()
        run_ranks(one, 2)
        """
    )
    story = r"rank 1 of 2 raised ValueError: no\n\nTraceback.*\n  In\[\d+\], line 3, in one\n +raise"
    assert re.search(story, error), error
    assert "launching.py" not in error


# How rank 1 fails, what must be said of it, and how long that may take.
FAULTS = {
    "raises": ("lambda: 1 / 0", "rank 1 of 2 raised ZeroDivisionError", 3.0),
    "exits": ("lambda: os._exit(3)", "rank 1 of 2 left with exit code 3", 3.0),
    "is killed": ("lambda: os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 2 was killed by SIGKILL", 3.0),
    "crashes": ("lambda: os.kill(os.getpid(), signal.SIGSEGV)", "rank 1 of 2 was killed by SIGSEGV", 3.0),
    "is out of memory": (
        "lambda: (resource.setrlimit(resource.RLIMIT_AS, (1 << 30,) * 2), torch.empty(1 << 40))",
        "rank 1 of 2 raised RuntimeError",
        3.0,
    ),
    "sleeps": ("lambda: time.sleep(1000)", "waited for rank 1, for longer than 1 s", 4.0),
    "loops": ("lambda: [None for _ in iter(int, 1)]", "waited for rank 1, for longer than 1 s", 4.0),
    "calls another": ("lambda: dist.broadcast(torch.ones(4), 0)", "rank 1 called broadcast from rank 0", 4.0),
    "has another shape": ("lambda: dist.all_reduce(torch.ones(8))", "rank 1 called all_reduce of float32 [8]", 4.0),
    "waits for a message": ("lambda: dist.recv(torch.ones(4), 0)", "rank 1 in recv from rank 0", 8.0),
    "returns before": ("lambda: sys.exit(5)", "rank 1 of 2 raised SystemExit: 5", 3.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_in_its_time_and_leaves_nothing(kernel, name):
    fault, said, in_s = FAULTS[name]
    before = kernel.left()
    for _ in range(REPEATS):
        began_s = time.monotonic()
        _, error = kernel.run(f"run_ranks(faulty, 2, {fault}, timeout_s=1)")
        assert time.monotonic() - began_s < in_s
        assert said in error, error
        assert kernel.left() == before
    assert kernel.run("print(sum(run_ranks(dist.get_rank, 2)))") == ("1\n", "")


def test_an_interrupted_cell_says_where_the_ranks_stood_and_leaves_nothing(kernel):
    before = kernel.left()
    for _ in range(REPEATS):
        interrupted = []

        def interrupt(text, interrupted=interrupted):
            if "asleep" in text and not interrupted:
                interrupted.append(True)
                kernel.manager.interrupt_kernel()

        text, error = kernel.run(
            """
            def sleep():
                print("asleep")
                time.sleep(1000)
            run_ranks(sleep, 2)
            """,
            on_text=interrupt,
        )
        assert "KeyboardInterrupt" in error
        assert re.search(r"Interrupted\. *\n +rank 0 at In\[\d+\], line 3: time.sleep\(1000\)", text), text
        assert kernel.left() == before


def test_a_kernel_that_has_run_ranks_shuts_down_at_once_and_tidies_up(tmp_path):
    mortal = Kernel(tmp_path)
    mortal.run("run_ranks(dist.get_rank, 2)")
    children = psutil.Process(mortal.pid).children(recursive=True)
    began_s = time.monotonic()
    mortal.client.shutdown()
    while mortal.manager.is_alive() and time.monotonic() - began_s < 20:
        time.sleep(0.05)
    took_s = time.monotonic() - began_s
    psutil.wait_procs(children, timeout=5)
    left = list(tmp_path.iterdir())
    mortal.close()
    assert (left, took_s < 4) == ([], True), took_s


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_ranks_end_with_their_kernel(end, tmp_path):
    mortal = Kernel(tmp_path)
    started = []
    try:
        sent = mortal.send(
            """
            def sleep():
                import subprocess
                subprocess.Popen(["sleep", "1000"])
                print("asleep")
                time.sleep(1000)
            run_ranks(sleep, 2)
            """
        )
        with pytest.raises(StopIteration):
            mortal.wait(sent, on_text=lambda text: next(iter([])) if text.count("asleep") == 2 else None)
        started = mortal.ranks()
        assert len(started) >= 4
        if end == "kill":
            os.kill(mortal.pid, 9)
        else:
            mortal.manager.restart_kernel(now=True)
        _, alive = psutil.wait_procs(started, timeout=5)
        assert not alive
        until_s = time.monotonic() + 5
        while list(tmp_path.iterdir()) and time.monotonic() < until_s:  # the server goes a moment later
            time.sleep(0.05)
        assert not list(tmp_path.iterdir())
    finally:
        mortal.close()


def test_ten_launches_in_a_row_leave_nothing_and_the_later_ones_are_quick(kernel):
    before = kernel.left()
    text, _ = kernel.run(
        """
        took_s = []
        for i in range(10):
            began_s = time.monotonic()
            assert run_ranks(dist.get_rank, 2) == [0, 1]
            took_s.append(time.monotonic() - began_s)
        print(sorted(took_s)[5])
        """
    )
    assert float(text) < 0.5
    assert kernel.left() == before


def test_two_notebooks_at_once(kernel, tmp_path):
    other = Kernel(tmp_path)
    try:
        code = "print(sum(sum(run_ranks(dist.get_rank, 2)) for _ in range(5)))"
        sent = [(each, each.send(code)) for each in (kernel, other)]
        assert [each.wait(message) for each, message in sent] == [("5\n", "")] * 2
    finally:
        other.close()


def test_more_ranks_than_cores_and_a_large_result(kernel):
    before = kernel.left()
    assert kernel.run("print(sum(run_ranks(dist.get_rank, 6)))", timeout_s=60) == ("15\n", "")
    code = "print(run_ranks(lambda: torch.full((50_000_000,), dist.get_rank()), 2)[1].sum().item())"
    assert kernel.run(code) == ("50000000\n", "")
    assert kernel.left() == before


def test_output_arrives_while_the_ranks_run(kernel):
    seen_s = []
    code = """
    def slow():
        print("begins")
        time.sleep(1.5)
    run_ranks(slow, 2)
    """
    kernel.run(code, on_text=lambda _text: seen_s.append(time.monotonic()))
    assert time.monotonic() - seen_s[0] > 1.0


def test_what_a_rank_started_ends_with_it(kernel):
    before = kernel.left()
    kernel.run(
        """
        def starts():
            import subprocess
            subprocess.Popen(["sleep", "1000"])
            loader = torch.utils.data.DataLoader(range(8), num_workers=2, persistent_workers=True)
            next(iter(loader))
            if dist.get_rank():
                os.kill(os.getpid(), 9)
        run_ranks(starts, 2)
        """
    )
    assert kernel.left() == before


def test_a_cell_with_the_magic_runs_on_every_rank(kernel):
    kernel.run("factor = 10")
    cell = "%%ranks 2 --to answers\nx = torch.ones(2) * rank * factor\ndist.all_reduce(x)\nx.tolist()"
    text, error = kernel.run(cell)
    assert (text, error) == ("", "")
    assert kernel.run("print(answers)") == ("[[10.0, 10.0], [10.0, 10.0]]\n", "")
    cell = "%%ranks 2 --devices cpu,cpu --backend gloo\nfactor += rank\n(rank, world_size, factor, str(device))"
    text, _ = kernel.run(cell)
    assert sorted(text.splitlines()) == ["[rank 0] (0, 2, 10, 'cpu')", "[rank 1] (1, 2, 11, 'cpu')"]
    _, error = kernel.run("%%ranks 2\nif rank:\n    1 / 0")
    assert re.search(r"In\[\d+\], line 3, in cell\n +1 / 0", error), error
    assert "invalid int value: 'two'" in kernel.run("%%ranks two\npass")[1]
    assert "name of a variable" in kernel.run("%%ranks 2 --to 3x\npass")[1]
    _, error = kernel.run("door = threading.Lock()\n")
    assert "the variable door (lock) cannot be sent" in kernel.run("%%ranks 2\nprint(door)")[1]


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from labkit.ranks import counting, device, run_ranks

def work(scale):
    x = torch.ones(3, device=device()) * (dist.get_rank() + 1) * scale
    with counting() as c:
        dist.all_reduce(x)
    return x.tolist(), dist.get_rank(), c.n_bytes

if __name__ == "__main__":
    returned = run_ranks(work, 2, 10, timeout_s=2)
    if os.environ.get("RANK", "0") == "0":
        print(returned)
"""


def _script(before, folder, launcher=()):
    """What the script said, run by these commands."""
    script = folder / "work.py"
    script.write_text(SCRIPT)
    environ = os.environ | {"PYTHONPATH": hardware.python_path(), "CUDA_VISIBLE_DEVICES": ""}
    command = [*before, sys.executable, *launcher, script]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)


@pytest.mark.parametrize(
    "launcher",
    [
        [],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        ["-m", "accelerate.commands.launch", "--cpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]
        + ["--dynamo_backend=no", "--main_process_port=0", "--num_cpu_threads_per_process=1"],
    ],
    ids=["python", "torchrun", "accelerate"],
)
def test_the_same_script_runs_by_itself_and_under_the_usual_launchers(launcher, tmp_path):
    done = _script([], tmp_path, launcher)
    assert "[([30.0, 30.0, 30.0], 0, 12), ([30.0, 30.0, 30.0], 1, 12)]" in done.stdout, done.stderr[-2000:]


@contextmanager
def _no_network_but(ports: str):
    """The words that run a command in a network of its own, with loopback and so many ports; skips where forbidden."""
    inside = f"ip link set lo up && echo '{ports}' > /proc/sys/net/ipv4/ip_local_port_range && exec \"$@\""
    words = ["unshare", "--map-root-user", "--net", "sh", "-c", inside, "sh"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a network namespace of its own (unshare --net): {error}")
    yield words


def test_ranks_meet_without_a_network(tmp_path):
    with _no_network_but("32768 60999") as words:
        done = _script(words, tmp_path)
    assert "[([30.0, 30.0, 30.0], 0, 12)" in done.stdout, done.stderr


def test_a_machine_without_free_ports_says_so(tmp_path):
    with _no_network_but("40000 40000") as words:
        done = _script(words, tmp_path)
    assert done.returncode
    assert "RankError" in done.stderr
    assert "ddress already in use" in done.stderr or "Cannot assign requested address" in done.stderr, done.stderr
