"""What only GPUs can show of labkit.ranks: a kernel that has used CUDA, ranks that share a GPU, NCCL with one each."""

import pytest
import torch
import torch.distributed as dist

from labkit.ranks import RankError, counting, device, run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
two = [pytest.mark.gpu2, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


def _summed():
    x = torch.full((3,), float(dist.get_rank() + 1), device=device())
    with counting() as c:
        dist.all_reduce(x)
    return x, dist.get_backend(), str(x.device), c.n_bytes


def test_ranks_share_a_gpu_after_this_process_has_used_it():
    torch.ones(3, device="cuda").sum().item()
    for x, backend, where, n_bytes in run_ranks(_summed, 2, devices=["cuda:0", "cuda:0"]):
        assert (x.tolist(), x.device.type) == ([3.0] * 3, "cpu")
        assert (backend, where, n_bytes) == ("gloo", "cuda:0", 12)


def test_one_rank_on_the_gpu_and_one_on_the_cpu():
    assert [where for _, _, where, _ in run_ranks(_summed, 2, devices=["cpu", "cuda:0"])] == ["cpu", "cuda:0"]


def test_nccl_refuses_to_share_and_says_what_to_do():
    with pytest.raises(ValueError, match="NCCL needs a GPU for each rank.*backend='gloo' does without"):
        run_ranks(_summed, 2, devices=["cuda:0", "cuda:0"], backend="nccl")


def _out_of_memory():
    torch.empty(1 << 50, dtype=torch.uint8, device=device())


def test_a_gpu_without_room_is_named():
    with pytest.raises(RankError, match="rank 0 of 1 raised .*OutOfMemoryError"):
        run_ranks(_out_of_memory, 1, devices=["cuda:0"])


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=two)])
def test_with_a_gpu_each_ranks_speak_nccl(world_size):
    for rank, (x, backend, where, _) in enumerate(run_ranks(_summed, world_size)):
        assert x.tolist() == [3.0] * 3
        assert "nccl" in backend
        assert where == f"cuda:{rank}"


def _waits_in_vain():
    if dist.get_rank() == 1:
        import time

        time.sleep(1000)
    x = torch.ones(4, device=device())
    dist.all_reduce(x)
    return x.sum().item()


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=two)])
def test_a_rank_that_does_not_come_is_named_under_nccl(world_size):
    with pytest.raises(RankError, match="waited for rank 1") as caught:
        run_ranks(_waits_in_vain, world_size, timeout_s=2)
    assert caught.value.kind == "waited"
