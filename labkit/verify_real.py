"""What is measured on real ranks, in real processes and on a real card, for labkit.verify."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from labkit.states import Plan, states
from labkit.verify_grid import Row, describe, gpt_style, llama_style

_PROCESS = """
import torch
from labkit import lm
from labkit.optimizers import Optimizer
from labkit.states import Plan
from labkit.verify_grid import gpt_style, llama_style
from labkit.verify_real import resident_bytes

torch.set_num_threads(1)

def peak(arch, plan):
    model = lm.build(arch, attention=plan.attention, recompute=plan.recompute)
    optimizer, tokens = Optimizer(model, plan), torch.zeros(plan.batch, plan.seq + 1, dtype=torch.int64)
    for _ in range(2):
        lm.train_step(model, optimizer, tokens)
    return resident_bytes()

peak(gpt_style(width=16, vocab=16, layers=1, heads=1), Plan(precision="fp32", batch=1, seq=8))
before = resident_bytes(anew=True)
print(peak({arch}, {plan}) - before)
"""
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes(*, anew: bool = False) -> int:
    """The most memory that this process had resident since it began, or since the last call with anew.

    anew: from now on; where the kernel does not allow that, the peak so far is what the next one is compared with.
    getrusage's peak is not that: a child starts with its parent's. OSError where there is no /proc/self/status.
    """
    if anew:
        with suppress(OSError):
            _RESET.write_text("5", encoding="ascii")
    (line,) = [line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def not_measured() -> list[str]:
    """A sentence for each kind of measurement that this machine does not have."""
    import torch

    said = []
    if not _STATUS.exists():
        said.append("Real processes are not measured: their peak is read from Linux's /proc/self/status.")
    if not torch.cuda.is_available():
        said.append("A card's peak is not measured: there is no CUDA device.")
    return said


def _all_at_rest(cases: list[tuple]) -> list[int]:
    """On a rank: the bytes of each case, one after another."""
    return [_at_rest(*case) for case in cases]


def _at_rest(arch, plan: Plan, kind: str) -> int:
    """On a rank: bytes of parameters, gradients and state after one step, Adam's step counters left out."""
    import torch
    from torch.distributed.tensor import DTensor

    from labkit import lm

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = lm.build(arch)
    model, optimizer = (_fully_sharded if kind == "fully_shard" else _replicated)(model, plan)
    lm.train_step(model, optimizer, torch.zeros(1, 9, dtype=torch.int64))
    local = lambda t: t.to_local() if isinstance(t, DTensor) else t
    inner = getattr(optimizer, "optim", optimizer)
    kept = [p for p in model.parameters()] + [p.grad for p in model.parameters()]  # noqa: C416
    kept += [t for state in inner.state.values() for name, t in state.items() if name != "step"]
    return sum(local(t).numel() * local(t).element_size() for t in kept)


def _replicated(model, plan: Plan):
    """DDP, and at stage 1 torch's ZeroRedundancyOptimizer."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if plan.zero:
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def _fully_sharded(model, plan: Plan):  # noqa: ARG001 - made alike
    """torch's fully_shard, block by block."""
    import torch
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def rest_rows() -> Iterator[Row]:
    """States on 2 and 4 real ranks, the rank that holds most: DDP, ZeroRedundancyOptimizer, fully_shard."""
    from labkit.ranks import run_ranks

    kinds = (("DDP", 0, "flat"), ("ZeroRedundancyOptimizer", 1, "whole"), ("fully_shard", 3, "rows"))
    for ranks in (2, 4):
        plans = {
            kind: Plan(precision="fp32", ranks=ranks, zero=zero, layout=layout, batch=1, seq=8)
            for kind, zero, layout in kinds
        }
        cases = [
            (arch, plan, kind)
            for arch in (gpt_style(vocab=250), llama_style(vocab=250))
            for kind, plan in plans.items()
        ]
        by_rank = run_ranks(_all_at_rest, ranks, cases, timeout_s=300)
        for (arch, plan, kind), *measured in zip(cases, *by_rank, strict=True):
            words = f"{kind} on {ranks} ranks, {describe(arch, plan)}"
            yield Row("at rest", words, "at rest", states(arch, plan).total_bytes, max(measured))


def process_rows() -> Iterator[Row]:
    """Resident memory of fresh processes above what a tiny model's step took there; Linux only.

    malloc is told to hand freed memory back at once: left alone, it keeps up to a fifth more.
    """
    from labkit.estimate import estimate

    if not _STATUS.exists():
        return
    plan = Plan(precision="fp32", batch=8, seq=256)
    cases = (
        ("gpt_style(width=256)", gpt_style(width=256), plan),
        ("llama_style(width=256)", llama_style(width=256), replace(plan, optimizer="sgd")),
        ("gpt_style(layers=6)", gpt_style(layers=6), replace(plan, recompute="full", optimizer="momentum")),
    )
    for name, arch, each in cases:
        settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        code = _PROCESS.replace("{arch}", name).replace("{plan}", repr(each))
        words = ["env", *(f"{key}={value}" for key, value in settings.items()), sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found = estimate(arch, each, overhead=False)
        yield Row("a process", describe(arch, each), found.phase, found.total_bytes, int(done.stdout))


def card_rows() -> Iterator[Row]:
    """The most that torch's allocator had handed out on a card, in blocks of 512 bytes; none without a CUDA card."""
    import torch

    from labkit import lm
    from labkit.estimate import estimate
    from labkit.optimizers import Optimizer

    if not torch.cuda.is_available():
        return
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    for arch in (gpt_style(width=512, layers=4), llama_style(width=512, layers=4)):
        for precision in ("fp32", *(("autocast",) if native else ())):
            plan = Plan(precision=precision, batch=8, seq=256)
            with torch.device("cuda"):
                model = lm.build(arch)
                tokens = torch.zeros(plan.batch, plan.seq + 1, dtype=torch.int64)
            optimizer = Optimizer(model, plan)
            for _ in range(2):
                torch.cuda.reset_peak_memory_stats()
                lm.train_step(model, optimizer, tokens, autocast=precision == "autocast")
            measured = torch.cuda.max_memory_allocated()
            found = estimate(arch, plan, overhead=False)
            yield Row("a card", describe(arch, plan), found.phase, found.total_bytes, measured)
            del model, optimizer
