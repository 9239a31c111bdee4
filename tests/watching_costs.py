"""Prints, as JSON, how many times longer operations take under labkit.sync.watch; tests/test_sync.py runs this."""

import json
import time
import timeit
from statistics import median

import torch
from torch.nn import functional

from labkit import sync

torch.set_num_threads(1)
x, w, bias, rows = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64), torch.arange(64)
OPERATIONS = {
    "add": lambda: x + w,
    "multiply by a number": lambda: x * 2,
    "matmul": lambda: x @ w,
    "linear": lambda: functional.linear(x, w, bias),
    "relu": lambda: functional.relu(x),
    "softmax": lambda: x.softmax(-1),
    "layer_norm": lambda: functional.layer_norm(x, (64,)),
    "cross_entropy": lambda: functional.cross_entropy(x, rows),
    "sum": lambda: x.sum(),
    "clone": lambda: x.clone(),
    "cat": lambda: torch.cat([x, w]),
    "slice": lambda: x[:, 1:3],
    "positions": lambda: x[rows],
    "where": lambda: torch.where(x > 0, x, w),
    "view": lambda: x.view(-1),
}


def times(fn, rounds=15, calls=200):
    """Median over rounds of watched over bare, both timed in each round by the processor's clock."""
    fn()
    ratios = []
    for _ in range(rounds):
        bare_s = timeit.timeit(fn, timer=time.thread_time, number=calls)
        with sync.watch():
            ratios.append(timeit.timeit(fn, timer=time.thread_time, number=calls) / bare_s)
    return median(ratios)


print(json.dumps({name: round(times(fn), 2) for name, fn in OPERATIONS.items()}))
