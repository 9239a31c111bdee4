"""run_ranks: real processes, their results and output, and what they say when they fail."""

import gc
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from labkit import deadline
from labkit.ranks import RankError, counting, device, run_ranks


def _everything(given):
    x = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(x)
    return dist.get_rank(), dist.get_world_size(), given, x.tolist(), str(device())


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_rank_runs_the_function_and_the_results_come_back_by_rank(world_size):
    total = float(sum(range(world_size)))
    expected = [(rank, world_size, "given", [total] * 3, "cpu") for rank in range(world_size)]
    assert run_ranks(_everything, world_size, "given", devices="cpu") == expected


def test_a_closure_and_what_it_closes_over_travel():
    weights = torch.arange(4.0)

    def doubled(factor):
        return (weights * factor * (dist.get_rank() + 1)).tolist()

    assert run_ranks(doubled, 2, 10) == [[0, 10, 20, 30], [0, 20, 40, 60]]


def _fails(how):
    if dist.get_rank() == 1:
        how()
    dist.all_reduce(torch.ones(4))


def _raises():
    raise KeyError("no such weight")


def _takes_too_much():
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    torch.empty(1 << 40, dtype=torch.uint8)


def _sleeps():
    time.sleep(1000)


def _calls_another():
    dist.broadcast(torch.ones(4), 0)


def _has_another_shape():
    dist.all_reduce(torch.ones(8))


FAULTS = {
    "raises": (_raises, "raised", ["rank 1 of 2 raised KeyError: 'no such weight'", "in _raises", "all_reduce"]),
    "exits": (lambda: os._exit(3), "exited", ["rank 1 of 2 left with exit code 3"]),
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed", ["rank 1 of 2 was killed by SIGKILL"]),
    "out of memory": (_takes_too_much, "raised", ["rank 1 of 2 raised RuntimeError", "memory"]),
    "sleeps": (_sleeps, "waited", ["waited for rank 1", "rank 0 in all_reduce", "time.sleep(1000)"]),
    "another collective": (_calls_another, "differed", ["rank 0 called all_reduce", "rank 1 called broadcast"]),
    "another shape": (_has_another_shape, "differed", ["all_reduce of float32 [4]", "all_reduce of float32 [8]"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_rank_and_nothing_is_left(name, capfd):
    how, kind, said = FAULTS[name]
    began_s = time.monotonic()
    with pytest.raises(RankError) as caught:
        run_ranks(_fails, 2, how, timeout_s=1.0)
    assert time.monotonic() - began_s < 1.0 + 3.0 + 4.0  # the first launch loads torch
    assert caught.value.kind == kind
    missing = [each for each in said if each not in str(caught.value)]
    assert not missing, f"{missing} not in:\n{caught.value}"
    capfd.readouterr()


def test_a_variable_that_cannot_be_pickled_is_named():
    door = threading.Lock()

    def uses_it():
        return door

    with pytest.raises(RankError, match=r"the variable door \(lock\) cannot be sent") as caught:
        run_ranks(uses_it, 2)
    assert caught.value.kind == "unpicklable"
    with pytest.raises(RankError, match=r"argument 2 \(lock\) cannot be sent"):
        run_ranks(_everything, 2, 1, door)


def test_a_result_that_cannot_come_back_is_named():
    with pytest.raises(RankError, match="rank 0 of 2 returned a generator that cannot be sent back"):
        run_ranks(lambda: None if dist.get_rank() else (i for i in range(3)), 2)


def _prints():
    rank = dist.get_rank()
    print("first", rank)
    print("half", end="", flush=True)
    os.write(1, b" of a line\n")
    print("10 %\r20 %\rdone")
    os.write(2, "from C: \xfc\n".encode("latin-1"))


def test_output_comes_whole_line_by_line_with_the_ranks_name(capsys):
    run_ranks(_prints, 2)
    out, err = capsys.readouterr()
    for rank in (0, 1):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in out.splitlines() if line.startswith(f"[rank {rank}]")]
        assert sorted(mine) == sorted([f"first {rank}", "half of a line", "done"])
    assert sorted(err.splitlines()) == [f"[rank {rank}] from C: \N{REPLACEMENT CHARACTER}" for rank in (0, 1)]


def _counts():
    from torch.distributed._functional_collectives import all_reduce
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()
    x, shards = torch.ones(6), torch.empty(size * 6)
    with counting() as by_hand:
        dist.all_reduce(x)
        dist.all_gather(list(shards.split(6)), x)
        dist.broadcast(x, 0)
        dist.barrier()
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, shards[:6], 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    with counting() as functional:
        all_reduce(x, "sum", dist.group.WORLD).sum().item()
    with torch.inference_mode(), counting() as inferring:
        dist.all_reduce(torch.ones(3))
    assert dict(inferring.bytes) == {"all_reduce": 12}
    assert dict(functional.bytes) == {"all_reduce": 24}
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    with counting() as by_ddp:
        model(torch.ones(2, 10)).sum().backward()
    return dict(by_hand.calls), dict(by_hand.bytes), by_hand.n_calls, by_hand.n_bytes, dict(by_ddp.bytes)


def test_collectives_are_counted_whoever_calls_them():
    for calls, n_bytes, in_all, bytes_in_all, by_ddp in run_ranks(_counts, 2):
        assert calls == {"all_reduce": 1, "all_gather": 1, "broadcast": 1, "barrier": 1, "send": 1, "recv": 1}
        assert n_bytes == {"all_reduce": 24, "all_gather": 24, "broadcast": 24, "barrier": 0, "send": 24, "recv": 24}
        assert (in_all, bytes_in_all) == (5, 96)
        assert by_ddp == {"all_reduce": 110 * 4}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"world_size": 0}, "number of ranks"),
        ({"world_size": True}, "number of ranks"),
        ({"devices": ["cpu"]}, "a list of 2"),
        ({"devices": "tpu"}, "'cpu' or like 'cuda:0'"),
        ({"backend": "mpi"}, "'gloo', 'nccl' or None"),
        ({"backend": "nccl", "devices": "cpu"}, "NCCL needs a GPU for each rank"),
        ({"timeout_s": 0}, "seconds above 0"),
        ({"timeout_s": float("nan")}, "seconds above 0"),
        ({"fn": 3}, "takes a function"),
    ],
)
def test_what_cannot_work_gets_a_sentence(asked, said):
    asked = {"fn": _everything, "world_size": 2} | asked
    with pytest.raises(ValueError, match=said):
        run_ranks(**asked)


def _started_by_this_process():
    servers = [each for each in psutil.Process().children() if "forkserver" in " ".join(each.cmdline())]
    return [each for server in servers for each in server.children()]


def test_a_deadline_ends_the_ranks_too():
    for _ in range(5):
        with pytest.raises(deadline.DeadlineExceeded):
            deadline.within(0.5, lambda: run_ranks(_sleeps, 2))
        gc.collect()
        assert _started_by_this_process() == []
    assert run_ranks(dist.get_rank, 2) == [0, 1]


def test_numpy_and_large_results_come_back():
    def large():
        return np.full(25_000_000, dist.get_rank())

    zeros, ones = run_ranks(large, 2)
    assert zeros.nbytes == 200_000_000
    assert not zeros.any()
    assert ones.all()


def _another_dtype():
    mine = torch.ones(4, dtype=torch.int32 if dist.get_rank() else torch.float32)
    dist.all_reduce(mine)
    return mine.tolist()


def test_ranks_that_differ_are_named_even_where_the_backend_computes_nonsense():
    with pytest.raises(RankError, match=r"all_reduce of float32 \[4\][\s\S]*all_reduce of int32 \[4\]") as caught:
        run_ranks(_another_dtype, 2)
    assert caught.value.kind == "differed"


def _all_in_order():
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_gather_object([None] * size, "x" * (10 + 1000 * rank))
    dist.gather_object(rank, [None] * size if rank == 0 else None)
    dist.broadcast_object_list([rank] * 2, 0)
    dist.scatter(torch.empty(2), [torch.ones(2)] * size if rank == 1 else None, src=1)
    dist.all_to_all(list(torch.empty(3 * size).split(3)), list(torch.ones(3 * size).split(3)))
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(5), group=pair)
        dist.all_reduce(torch.ones(5), group=pair)
    dist.reduce(torch.ones(2), 0)
    dist.barrier()
    return True


def test_what_is_in_order_raises_no_alarm():
    assert run_ranks(_all_in_order, 3) == [True] * 3


def _many(n):
    x = torch.ones(1)
    for _ in range(n):
        dist.all_reduce(x)
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.barrier()


def test_a_wait_is_found_after_more_collectives_than_a_ledger_holds():
    with pytest.raises(RankError, match=r"barrier \(collective 1501\) waited for rank 1"):
        run_ranks(_many, 2, 1500, timeout_s=1)
