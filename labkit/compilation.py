"""torch.compile as a lesson asks it: quietly, from an empty cache or a full one, and what code it wrote."""

import logging
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape

import torch

from labkit import hardware, measure, trace
from labkit.show import show, varying_html, varying_text

# Of a kernel's parameters these are the tensors, in C++ and in Triton; an in_out one is read and written.
_SIGNATURE = re.compile(r"(?:void\s+kernel|def triton_\w+)\s*\(([^)]*)\)")
_POINTER = re.compile(r"\b(in_out|in|out)_ptr\d+")


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What torch.compile wrote for a function: kernels, the tensors that they read or write in all, and the code."""

    kernels: int
    tensors: int
    source: str


def lacks() -> str:
    """What torch.compile lacks to write code for the lessons' device, in words; nothing where nothing is missing.

    Prepares the compiler on the way: what needs no code, such as explaining, works without one.
    """
    prepare()
    return hardware.missing_to_compile(on_gpu=hardware.tier() != "cpu")


@cache
def prepare() -> None:
    """Import the compiler, a second or more that no measurement should count, and have it work in this process alone.

    One compilation at a time and no pool of helper processes, which on a few cores only get in the way. Its log shows
    errors only: that a function broke into graphs, or was compiled too often, is what a lesson measures.
    """
    import torch._inductor.config as config

    config.compile_threads = 1
    if hasattr(config, "cpp_cache_precompile_headers") and not shutil.which("openssl"):
        config.cpp_cache_precompile_headers = False  # openssl names the header that all compilations share
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of a part of torch
        import torch._dynamo
        import torch._inductor.compile_fx
    # On newer GPUs: fp32 stays fp32 in the lessons, compiled or not.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    torch._logging.set_logs(dynamo=logging.ERROR, inductor=logging.ERROR)


@contextmanager
def empty_cache() -> Iterator[None]:
    """Inside, torch.compile finds nothing that it wrote before, and what it writes is deleted afterwards.

    Ignores the precompiled header, which it builds once for all in the system's folder for temporary files.
    """
    prepare()
    from torch._inductor import utils

    with utils.fresh_inductor_cache():
        yield


def first_call_s(fn: Callable, *args: object) -> float:
    """Seconds of one call, the device's work included: for a compiled function's first, the compilation too."""
    prepare()
    measure.synchronize(hardware.device())
    start = time.perf_counter()
    fn(*args)
    measure.synchronize(hardware.device())
    return time.perf_counter() - start


def generated(fn: Callable, *args: object) -> Generated:
    """What torch.compile writes for fn with these arguments.

    Everything compiled before is forgotten on the way, and compiled again, out of the cache, when it is next called.
    """
    prepare()
    from torch._inductor.utils import run_and_get_code

    _, sources = run_and_get_code(torch.compile(fn, dynamic=False), *args)
    text = "\n".join(sources)
    signatures = _SIGNATURE.findall(text)
    uses = [kind for each in signatures for kind in _POINTER.findall(each)]
    starts = [match.start() for match in re.finditer(r'^(?:extern "C"|def triton_)', text, re.MULTILINE)]
    bodies = [text[start : text.index("'''", start)].strip() for start in starts]
    return Generated(kernels=len(signatures), tensors=len(uses) + uses.count("in_out"), source="\n\n".join(bodies))


def show_source(made: Generated | None, elsewhere: Mapping[str, str] | None = None) -> None:
    """Show the code as something that differs from machine to machine.

    made: None where there is no compiler; then what the first machine of elsewhere, {machine: code}, wrote is shown.
    """
    source = made.source if made else "no code: it was not compiled here"
    if made is None and elsewhere:
        machine, written = next(iter(elsewhere.items()))
        source = f"Not compiled here. On {machine}, torch.compile wrote:\n\n{written}"
    show(varying_text(source), varying_html(f"<pre>{escape(source)}</pre>"))


def launched(fn: Callable, *args: object) -> int:
    """How many kernels a call of fn launches on the GPU, as the profiler saw them; copies and fills are no kernels."""
    on_gpu = [each.name for each in _profiled(fn, *args) if str(each.device_type).endswith("CUDA")]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_gpu)


def pieces(fn: Callable, *args: object) -> int:
    """How many compiled graphs a call of fn runs, as the profiler saw them: 0 where it runs eagerly.

    So does a compiled function that met too many shapes, and it says nothing of that: whoever times one looks here.
    """
    return sum(each.name.startswith("Torch-Compiled Region") for each in _profiled(fn, *args))


def _profiled(fn: Callable, *args: object) -> list:
    """The profiler's events of a call of fn, the second one."""
    fn(*args)
    with trace.profiler(hardware.device()) as seen:
        fn(*args)
        measure.synchronize(hardware.device())
    return list(seen.events())
