"""The global state of torch, NumPy and Python around somebody else's function: made standard before, put back after.

A learner may have set another default dtype three cells ago, or draw from a global generator in the function that is
judged. Neither is a fault, and neither may decide a verdict.
"""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch


def _deterministic() -> tuple[bool, bool]:
    """Whether torch insists on deterministic algorithms, and whether it only warns."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(state: tuple[bool, bool]) -> None:
    """Put back what `_deterministic` said."""
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _set_device(device: torch.device) -> None:
    """Set torch's default device; the CPU by taking the default away, which costs later calls nothing."""
    torch.set_default_device(None if device.type == "cpu" else device)


def _autocast(kind: str) -> tuple[bool, torch.dtype]:
    """Whether torch casts by itself on `cpu` or `cuda`, and to which dtype."""
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _set_autocast(kind: str, state: tuple[bool, torch.dtype]) -> None:
    """Put back what `_autocast` said."""
    torch.set_autocast_enabled(kind, state[0])
    torch.set_autocast_dtype(kind, state[1])


# Each pair says and sets one thing; set only where it has changed.
_SETTINGS: tuple[tuple[Callable, Callable], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_deterministic, _set_deterministic),
    *((partial(_autocast, kind), partial(_set_autocast, kind)) for kind in ("cpu", "cuda")),
)


def _gpus_in_use() -> bool:
    """Whether torch has started CUDA; asking must not start it."""
    return torch.cuda.is_initialized()


@contextmanager
def settled() -> Iterator[None]:
    """A block after which global settings and generators are as they were before it; in it no warning is an error."""
    settings = [(read, write, read()) for read, write in _SETTINGS]
    generators = [
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),
        (random.setstate, random.getstate()),
    ]
    if _gpus_in_use():
        generators.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    try:
        with ExitStack() as blocks, warnings.catch_warnings():
            _leave_blocks(blocks)
            lenient = [
                ("default", *rest) if action == "error" else (action, *rest) for action, *rest in warnings.filters
            ]
            warnings.filters[:] = lenient
            yield
    finally:
        for read, write, before in settings:
            if read() != before:
                write(before)
        for write, before in generators:
            write(before)


def _leave_blocks(blocks: ExitStack) -> None:
    """Undo the blocks around this code, in which plain code would not be right: inference, another device."""
    if torch.is_inference_mode_enabled():
        blocks.enter_context(torch.inference_mode(False))
    _set_device(torch.device("cpu"))
    if torch.get_default_device().type != "cpu":  # a `with torch.device(...)`, which only another one outdoes
        blocks.enter_context(torch.device("cpu"))


def settle(seed: int = 0) -> None:
    """Standard settings (float32, gradients, CPU, no autocast), seeded global generators; for use within `settled`."""
    standard = ((_SETTINGS[0], torch.float32), (_SETTINGS[1], torch.device("cpu")), (_SETTINGS[2], True))
    for (read, write), value in standard:
        if read() != value:
            write(value)
    for kind in ("cpu", "cuda"):
        torch.set_autocast_enabled(kind, False)
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if _gpus_in_use():
        torch.cuda.manual_seed_all(seed)
