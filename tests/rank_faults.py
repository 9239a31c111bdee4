"""Ways in which rank 1 fails the others."""

import os
import signal

import torch
import torch.distributed as dist


def kills():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def raises():
    if dist.get_rank() == 1:
        raise ValueError("no labels")
    dist.all_reduce(torch.ones(4))
