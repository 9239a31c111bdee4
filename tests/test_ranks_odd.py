"""run_ranks with odd functions, odd results, interrupts at bad moments, and ranks that change what they stand on."""

import atexit
import io
import mmap
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit.ranks import RankError, collectives, launching, ledger, run_ranks, server, worker
from labkit.ranks.rank import Rank


def _started_here():
    servers = [each for each in psutil.Process().children() if "forkserver" in " ".join(each.cmdline())]
    return [each for one in servers for each in one.children()]


def _none_left(within_s=3.0):
    until_s = time.monotonic() + within_s
    while _started_here() and time.monotonic() < until_s:
        time.sleep(0.02)
    return _started_here() == []


def test_an_interrupt_while_a_rank_starts_harms_no_later_launch(monkeypatch):
    run_ranks(dist.get_rank, 1)

    def starts_and_is_interrupted(self):
        real(self)
        raise KeyboardInterrupt

    real = server.Process.start
    with monkeypatch.context() as patched:
        patched.setattr(server.Process, "start", starts_and_is_interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_ranks(dist.get_rank, 2)
    assert _none_left()
    assert run_ranks(dist.get_rank, 2) == [0, 1]


def test_a_server_whose_socket_was_removed_is_replaced():
    run_ranks(dist.get_rank, 1)
    shutil.rmtree(Path(os.fsdecode(server._server._forkserver_address)).parent)
    assert run_ranks(dist.get_rank, 2) == [0, 1]


def test_a_long_path_of_the_temporary_folder_is_no_obstacle(tmp_path):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    code = "import torch.distributed as d; from labkit.ranks import run_ranks; print(run_ranks(d.get_rank, 2))"
    done = _python(code, TMPDIR=str(folder))
    assert done.stdout == "[0, 1]\n", done.stderr
    assert list(folder.iterdir()) == []


def _python(code, *options, **environ):
    whole = os.environ | environ
    whole.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "torchinductor"))  # torch keeps it
    return subprocess.run([sys.executable, *options, "-c", code], env=whole, capture_output=True, text=True, timeout=60)


def test_a_launch_that_fails_keeps_no_descriptor(monkeypatch):
    run_ranks(dist.get_rank, 1)
    before = len(os.listdir("/proc/self/fd"))

    def refuses(_self):
        raise OSError("no more processes")

    with monkeypatch.context() as patched:
        patched.setattr(server.Process, "start", refuses)
        for _ in range(5):
            with pytest.raises(OSError, match="no more processes"):
                run_ranks(dist.get_rank, 2)
    assert len(os.listdir("/proc/self/fd")) == before


class _Cut:
    def recv(self):
        raise KeyboardInterrupt


def test_a_word_that_an_interrupt_cut_short_is_not_read_on():
    rank = Rank(number=0, world_size=1, on_gpu=False, control=_Cut(), calls=None, stacks=None, streams=[])
    with pytest.raises(KeyboardInterrupt):
        rank._hear()
    rank.said = ("raised", 0.0)
    assert rank.sources() == []


def test_an_interrupt_while_ranks_start_is_one_line_in_a_notebook(monkeypatch):
    def interrupted(_seat):
        raise KeyboardInterrupt

    monkeypatch.setattr(Rank, "start", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_ranks(dist.get_rank, 2)
    assert caught.value._render_traceback_() == ["KeyboardInterrupt"]


def _tidies_up(done):
    with launching._undisturbed():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append(True)


def test_signals_wait_until_all_is_tidied_up():
    done = []
    with pytest.raises(KeyboardInterrupt):
        _tidies_up(done)
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _makes_a_group_alone():
    if dist.get_rank() == 0:
        dist.new_group([0, 1])


def _waits_in_a_group():
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        dist.recv(torch.ones(3), 1, group=group)
    else:
        time.sleep(1000)


@pytest.mark.parametrize("fault", [_makes_a_group_alone, _waits_in_a_group])
def test_a_group_made_later_keeps_to_the_time_limit(fault):
    began_s = time.monotonic()
    with pytest.raises(RankError) as caught:
        run_ranks(fault, 2, timeout_s=1)
    assert time.monotonic() - began_s < 10
    assert caught.value.kind == "waited"


class Rows(torch.utils.data.Dataset):
    """Not to be found by name in a worker that starts afresh."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.tensor(i)


def test_loaders_of_a_rank_may_have_workers_and_lambdas():
    def loads():
        class Local(Rows):
            pass

        loader = torch.utils.data.DataLoader(Local(), num_workers=1, collate_fn=lambda rows: torch.stack(rows) * 10)
        return [batch.tolist() for batch in loader]

    assert run_ranks(loads, 2) == [[[0], [10], [20], [30]]] * 2


def test_the_start_method_is_still_to_be_chosen_after_a_launch():
    code = """
import multiprocessing, torch.distributed as d
from labkit.ranks import run_ranks
run_ranks(d.get_rank, 1)
multiprocessing.set_start_method("spawn")
print("chosen")
"""
    done = _python(code)
    assert done.stdout == "chosen\n", done.stderr


def test_a_program_that_takes_bytes_for_no_text_launches_too():
    done = _python("from labkit.ranks import run_ranks; print(run_ranks(lambda: 1, 2))", "-bb")
    assert done.stdout == "[1, 1]\n", done.stderr


def _sparse():
    x = torch.sparse_coo_tensor([[dist.get_rank()]], [2.0], (3,))
    with collectives.counting() as c:
        dist.all_reduce(x)
    return x.to_dense().tolist(), c.n_bytes


def test_sparse_tensors_are_summed_and_counted():
    assert run_ranks(_sparse, 2) == [([2.0, 2.0, 0.0], 8 + 4)] * 2


def _calls_and_goes_on():
    x = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        time.sleep(2.5)
        work.wait()
    else:
        time.sleep(2)
        dist.all_reduce(x)
    return x.tolist()


def test_a_rank_that_has_called_and_gone_on_waits_for_nobody():
    assert run_ranks(_calls_and_goes_on, 2, timeout_s=1) == [[2.0] * 3] * 2


def _makes_the_group_anew(folder):
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(3), group=pair)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    other = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(torch.ones(5), group=other)
        dist.all_reduce(torch.ones(7), group=other)
    return True


def test_groups_of_another_life_are_not_held_against_each_other(tmp_path):
    assert run_ranks(_makes_the_group_anew, 3, str(tmp_path)) == [True] * 3


def _reduces_otherwise():
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)


def test_ranks_that_reduce_in_different_ways_are_named():
    with pytest.raises(RankError, match="do not call the same"):
        run_ranks(_reduces_otherwise, 2)


def test_files_are_written_to_their_end_and_exit_handlers_run(tmp_path):
    def writes(folder):
        global left_open
        left_open = open(f"{folder}/open", "w")  # noqa: SIM115, that it is never closed is what is tried here
        left_open.write("data")
        atexit.register(lambda: Path(f"{folder}/handler").write_text("ran"))

    run_ranks(writes, 1, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"open": "data", "handler": "ran"}


class Two(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_a_result_that_cannot_be_put_together_again_is_named():
    with pytest.raises(RankError, match="What rank 0 of 2 returned cannot be put together.*TypeError") as caught:
        run_ranks(lambda: Two(1, 2), 2)
    assert caught.value.kind == "unreturnable"


class _Interrupts:
    def __reduce__(self):
        raise KeyboardInterrupt


def test_whatever_pickling_a_result_raises_is_told():
    with pytest.raises(RankError, match="returned a _Interrupts that cannot be sent back: KeyboardInterrupt"):
        run_ranks(_Interrupts, 1)


@pytest.mark.parametrize("how", ["sys.stdout.close()", "sys.stdout = None", "os.close(1)"])
def test_a_rank_may_close_its_output(how):
    def closes():
        exec(how, {"sys": sys, "os": os})
        return 7

    assert run_ranks(closes, 2) == [7, 7]


def test_letters_that_the_notebooks_output_lacks_are_spelt_out(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        run_ranks(lambda: print("caf\xe9"), 1)
    out.flush()
    assert out.buffer.getvalue() == b"[rank 0] caf\\xe9\n"
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        assert run_ranks(lambda: print("lost"), 1) == [None]


def test_a_rank_error_goes_through_pickle():
    error = pickle.loads(pickle.dumps(RankError("text", kind="raised", rank=1, standing={0: "here"})))
    assert (str(error), error.kind, error.rank, error.standing) == ("text", "raised", 1, {0: "here"})


def _own_errors():
    if dist.get_rank() == 1:
        raise TimeoutError("Timed out: the torch.distributed tutorial's server, Connection refused")
    time.sleep(0.2)
    raise ValueError("later")


def test_a_ranks_own_words_about_time_are_not_taken_for_the_backends():
    with pytest.raises(RankError, match="rank 1 of 2 raised TimeoutError: Timed out") as caught:
        run_ranks(_own_errors, 2)
    assert (caught.value.kind, caught.value.rank) == ("raised", 1)


def test_a_long_name_fits_a_ledger(monkeypatch):
    memory = mmap.mmap(-1, ledger.SIZE_BYTES)
    monkeypatch.setattr(ledger, "_own_line", lambda: ("/" + "\N{CYRILLIC SMALL LETTER ZHE}" * 900 + ".py", 3))
    monkeypatch.setattr(ledger.Ledger, "_group", lambda *_: ("world of 0", 300))
    event = collectives.Event(op="all_reduce", n_bytes=4, shape=((1,),))
    ledger.Ledger(memory).note(event, None, 1, "all_reduce of \N{CYRILLIC SMALL LETTER ZHE}" * 100)
    (call,) = ledger.read(memory)
    assert (call.line, len(call.ranks), call.number) == (3, 300, 1)
    assert call.file.endswith("\N{CYRILLIC SMALL LETTER ZHE}.py")


def _no_longer_takes_the_signal():
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.barrier()


def test_a_rank_that_cannot_be_asked_is_not_ended_by_asking():
    with pytest.raises(RankError) as caught:
        run_ranks(_no_longer_takes_the_signal, 2, timeout_s=1)
    assert caught.value.kind == "waited"
    assert caught.value.standing[1] == "does not say where it stands"


def test_torchs_debug_level_is_that_of_the_notebook(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert run_ranks(lambda: str(dist.get_debug_level()), 1) == ["DebugLevel.DETAIL"]


def test_threads_that_never_end_cost_one_second_in_all():
    def starts_a_thread():
        threading.Thread(target=time.sleep, args=(1000,)).start()

    run_ranks(dist.get_rank, 4)
    began_s = time.monotonic()
    run_ranks(starts_a_thread, 4)
    assert time.monotonic() - began_s < 3.5
    assert _none_left()


def test_a_fork_of_a_rank_does_not_answer_for_it():
    def forks():
        return "child" if os.fork() == 0 else "rank"

    assert run_ranks(forks, 2) == ["rank", "rank"]


def test_a_rank_outside_of_ranks_is_told_so():
    assert not worker.inside()
    with pytest.raises(RankError, match="run_ranks within a rank"):
        run_ranks(lambda: run_ranks(dist.get_rank, 2), 1)
