"""run_ranks in a script: by itself, as a rank of torchrun's or accelerate's, and without a network."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from kernels import Kernel

from labkit import hardware
from labkit.ranks import worker

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# --multi_gpu is how accelerate is told to start several processes; without a GPU they run on the CPU.
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
ACCELERATE += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
ACCELERATE += ["--num_cpu_threads_per_process=1"]

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
        print(returned, "a rank" if dist.is_initialized() else "no rank")
"""
ANSWER = "[([30.0, 30.0, 30.0], 0, 12), ([30.0, 30.0, 30.0], 1, 12)]"


def _script(folder, *, before=(), launcher=(), text=SCRIPT, **variables):
    """What a script said, run by these commands."""
    script = folder / "work.py"
    script.write_text(text)
    environ = os.environ | {"PYTHONPATH": hardware.python_path(), "CUDA_VISIBLE_DEVICES": ""} | variables
    command = [*before, sys.executable, *launcher, script]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)


@pytest.mark.parametrize(
    ("launcher", "it_is"),
    [([], "no rank"), (TORCHRUN, "a rank"), (ACCELERATE, "a rank")],
    ids=["python", "torchrun", "accelerate"],
)
def test_the_same_script_runs_by_itself_and_under_the_usual_launchers(launcher, it_is, tmp_path):
    done = _script(tmp_path, launcher=launcher)
    assert f"{ANSWER} {it_is}" in done.stdout, done.stderr[-2000:]
    assert done.returncode == 0


HEAD = """
import os, threading, torch, torch.distributed as dist
from labkit.ranks import RankError, device, run_ranks

def add(i):
    x = torch.ones(1) * i
    dist.all_reduce(x)
    return x.item()

def says(text):
    os.write(1, f"<{os.environ['RANK']} {text}>\\n".encode())  # in one piece: both ranks write at once

def tells(fn, *args, **how):
    try:
        says(run_ranks(fn, *args, **how))
    except (ValueError, RankError) as error:
        says(f"{type(error).__name__}: {error}")
"""


def _said(folder, text, launcher=TORCHRUN):
    """What both ranks said, each by its number."""
    done = _script(folder, launcher=launcher, text=HEAD + text)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("<")]
    return tuple([line[3:-1] for line in lines if line.startswith(f"<{rank} ")] for rank in (0, 1))


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_a_script_may_call_it_again_and_again(launcher, tmp_path):
    text = """
    from labkit.ranks import worker
    joins, join = [], worker.join
    worker.join = lambda *given, **how: (joins.append(given), join(*given, **how))
    for i in range(30):
        assert run_ranks(add, 2, i) == [2 * i, 2 * i]
    says(len(joins))
    for i in range(6):
        assert run_ranks(add, 2, i, timeout_s=10 + i) == [2 * i, 2 * i]
    says(len(joins))
    """
    first, second = _said(tmp_path, "if True:" + text, launcher)
    assert first == second == ["1", "7"]


def test_a_group_of_the_scripts_own_is_used_and_stays(tmp_path):
    text = """
dist.init_process_group("gloo")
mine = id(dist.group.WORLD)  # not the group itself: one that outlives the interpreter aborts it
assert run_ranks(lambda: id(dist.group.WORLD) == mine, 2) == [True, True]
says(id(dist.group.WORLD) == mine)
dist.destroy_process_group()
says(run_ranks(add, 2, 3))
"""
    assert _said(tmp_path, text) == (["True", "[6.0, 6.0]"],) * 2


def test_what_a_function_raises_ends_the_run_on_every_rank_and_the_next_one_works(tmp_path):
    text = """
def fails():
    if dist.get_rank() == 1:
        raise KeyError("mine")
for _ in range(3):
    try:
        run_ranks(fails, 2, timeout_s=30)
    except (KeyError, RuntimeError) as error:
        says(type(error).__name__)
    says(run_ranks(add, 2, 3))
"""
    first, second = _said(tmp_path, text)
    assert first == ["RuntimeError", "[6.0, 6.0]"] * 3
    assert second == ["KeyError", "[6.0, 6.0]"] * 3


def test_functions_come_back_as_results_and_what_cannot_is_named(tmp_path):
    text = """
says([made(2) for made in run_ranks(lambda: (lambda x, rank=dist.get_rank(): x + rank), 2)])
tells(lambda: threading.Lock(), 2)
"""
    for rank, said in enumerate(_said(tmp_path, text)):
        assert said[0] == "[2, 3]"
        assert said[1].startswith(f"RankError: rank {rank} of 2 returned a lock that cannot be sent back: TypeError")


def test_devices_are_obeyed_and_what_cannot_work_gets_the_usual_sentence(tmp_path):
    text = """
where = lambda: str(device())
tells(where, 2, devices=["cpu", "cpu"])
tells(where, 2, devices="cuda")
tells(where, 2, devices=["cpu"])
tells(where, 2, backend="nccl")
tells(where, "2")
tells(where, 3)
"""
    for said in _said(tmp_path, text):
        assert said[0] == "['cpu', 'cpu']"
        assert said[1].startswith("ValueError: devices='cuda', but torch finds no GPU here.")
        assert said[2] == "ValueError: devices is 'cpu', 'cuda' or a list of 2, one a rank, not ['cpu']."
        assert said[3].startswith("ValueError: NCCL needs a GPU for each rank")
        assert said[4] == "ValueError: world_size is the number of ranks, 1 or more, not '2'."
        assert said[5] == "ValueError: 3 ranks are asked for, but torchrun started 2 (the variable WORLD_SIZE)."


LEFT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}


def test_variables_left_in_the_environment_by_hand_do_not_make_a_script_a_rank(tmp_path):
    done = _script(tmp_path, **LEFT)
    assert f"{ANSWER} no rank" in done.stdout, done.stderr[-2000:]


def test_a_notebook_is_never_a_rank_of_torchruns(tmp_path):
    kernel = Kernel(tmp_path, **LEFT, TORCHELASTIC_RUN_ID="none")
    try:
        assert kernel.run("print(run_ranks(dist.get_rank, 2))") == ("[0, 1]\n", "")
    finally:
        kernel.close()


def test_where_no_torchrun_is_the_variables_are_named(tmp_path):
    text = "from labkit.ranks import launching\nlaunching._MEET_S = 1.0\ntells(add, 2, 1)"
    done = _script(tmp_path, text=HEAD + text, **LEFT | {"RANK": "1"}, TORCHELASTIC_RUN_ID="none")
    assert (
        "RankError: The ranks of torchrun did not meet at 127.0.0.1:29512 (MASTER_ADDR and MASTER_PORT)" in done.stdout
    )
    assert "remove TORCHELASTIC_RUN_ID from its environment" in done.stdout


def test_a_list_of_devices_has_one_for_each_rank_of_every_machine(monkeypatch):
    from labkit.ranks import launching

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank, own in enumerate(["cuda:1", "cuda:0", "cpu", "cuda:0"]):
        monkeypatch.setenv("RANK", str(rank))
        assert launching._own_place(4, ["cuda:1", "cuda:0", "cpu", "cuda:0"], None) == (own, "gloo")
        assert launching._own_place(4, None, None) == (f"cuda:{rank % 2}", "nccl")
        assert launching._own_place(4, "cpu", None) == ("cpu", "gloo")
    monkeypatch.setattr(worker, "_placed", None)  # and None again after the test
    worker.place("cuda:1")
    assert str(worker.device()) == "cuda:1"


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
        done = _script(tmp_path, before=words)
    assert ANSWER in done.stdout, done.stderr


def test_a_machine_without_free_ports_says_so(tmp_path):
    with _no_network_but("40000 40000") as words:
        done = _script(tmp_path, before=words)
    assert done.returncode
    assert "RankError" in done.stderr
    assert "ddress already in use" in done.stderr or "Cannot assign requested address" in done.stderr, done.stderr
