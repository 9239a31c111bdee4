"""run_ranks in a real notebook kernel: every fault is named in its time, the kernel lives on, and nothing is left."""

import os
import re
import time

import psutil
import pytest
from kernels import Kernel

REPEATS = int(os.environ.get("LABKIT_FAULT_REPEATS", "1"))


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
        assert error == "KeyboardInterrupt"
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
