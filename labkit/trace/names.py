"""What kind of thing an event is, from the category and the name that profilers give it.

Sources: PyTorch's kineto (libkineto/src/ActivityType.cpp) for categories, torch.profiler and torch._dynamo for names.
"""

import re

DEVICE_PREFIX = "labkit device: "  # what labkit.device_thread names the operations of its worker
# what labkit's devices name a launch, each time their host waits, and what is noted beside
_HOST_OF_THREAD = re.compile(r"^labkit (launch|wait|compile|data|host): ")
# kineto's categories of what a device does; in older traces they are capitalised
_DEVICE = {"kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset", "mtia_ccp_events"}
# what repeats on a device's rows what is on the host's, and the profiler's own time
_NOTHING = {"trace", "cuda_sync", "overhead", "cuda_profiler_range", "gpu_user_annotation", "mtia_user_annotation"}
_COMMUNICATION = re.compile(r"nccl|rccl|oneccl|nvshmem|(one|two)_shot_all_?reduce|multimem_all", re.I)
_HOST_COMMUNICATION = re.compile(r"^(gloo|mpi|ucc):", re.I)
_COPY = re.compile(r"mem(ory)?cpy|^aten::(copy_|_to_copy|clone)$|^copy (to|from) ", re.I)
_WAIT = re.compile(r"(cuda|hip|xpu|zeEvent|zeFence)\w*Synchronize|^cu(Ctx|Stream|Event)Synchronize", re.I)
_ALLOC = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostFree)|^cuMem(Alloc|Free|Create|Map|Unmap|Release)|"
    r"^aten::(empty(_strided|_like)?|resize_)$|^(malloc|free|mmap|munmap)$",
    re.I,
)
_LAUNCH = re.compile(r"launch|mem(cpy|set)\w*async", re.I)
_COMPILE = re.compile(
    r"dynamo_timed|compile_fx|(entire_frame|backend|inductor|frame|triton)\w*_compile|autotun|"
    r"(cuda|cu|hip)(Module|Library)Load|nvrtc|torch/_dynamo/convert_frame",
    re.I,
)
_GC = re.compile(r"gc\.collect|python gc|garbage.?collect|^gc$", re.I)
_DATA = re.compile(
    r"dataloader|data[ _.]?load|(fetch|next|load|get|read)[ _.]?(an? |the )?(batch|data)|wait\w*[ _](for[ _])?data|"
    r"^data([ _](wait|time|fetch))?$|^(input|batch)[ _](wait|pipeline)$",
    re.I,
)
_STEP = re.compile(r"^(profilerstep|(train(ing)?[ _.-]?)?(step|iteration|iter))(([ _#:=-]|step)*\d+)?\*?$", re.I)


_COMPUTES = re.compile(r"::|^gloo:|CompiledFxGraph")
_HALVES = re.compile("[\ud800-\udfff]")
_WRAPS = re.compile(r"(autograd::engine|torch::autograd|torch::jit|prims|profiler)::")


def readable(text: str) -> str:
    """A text as UTF-8 can hold it: half a surrogate pair, or a byte of a file's name that is none, becomes U+FFFD."""
    return _HALVES.sub("\ufffd", text)


def is_device(category: str) -> bool:
    """Whether events of this category are a device's work."""
    return category.lower() in _DEVICE


def device_name(category: str, identity: object) -> str:
    """`GPU 0`: the name of a device that a trace calls 0; a trace's own word where that is no number."""
    text = str(identity)
    return f"{'MTIA' if category.startswith('mtia') else 'GPU'} {text}" if text.isdigit() else text


def is_operator(category: str) -> bool:
    """Whether events of this category are operators on the CPU."""
    return category.lower() in {"cpu_op", "operator"}


def computes(name: str) -> bool:
    """Whether an operator of this name does work itself, and does not only call others: `aten::mm`, compiled graphs."""
    return bool(_COMPUTES.search(name)) and not _WRAPS.match(name)


def shown(name: str) -> str:
    """A name without the mark that labkit.device_thread gives what its host does."""
    return _HOST_OF_THREAD.sub("", name)


def kind(category: str, name: str) -> str:
    """The kind of span (labkit.timeline.KINDS) that an event is, or nothing where it is no work of anybody."""
    category = category.lower()
    if category in _NOTHING:
        return ""
    if category in _DEVICE:
        return _device_kind(category, name)
    if name.startswith(DEVICE_PREFIX):
        if name.endswith("synchronize"):
            return "annotation"
        return _device_kind("kernel", name.removeprefix(DEVICE_PREFIX))
    marked = _HOST_OF_THREAD.match(name)
    return marked[1] if marked else _host_kind(category, name)


def _device_kind(category: str, name: str) -> str:
    """What a device does: memory operations move data, whatever their direction."""
    if _COMMUNICATION.search(name):
        return "communication"
    return "copy" if "mem" in category or _COPY.search(name) else "kernel"


def _host_kind(category: str, name: str) -> str:
    """What a host does: the first of the patterns that fits; annotations else, or plain work."""
    named = category == "user_annotation"
    patterns = (("gc", _GC), ("compile", _COMPILE), ("data", _DATA), ("communication", _HOST_COMMUNICATION))
    for found, pattern in patterns:
        if pattern.search(name):
            return found
    if named or not category:
        if _STEP.search(name):
            return "step"
        if named:
            return "annotation"
    for found, pattern in (("wait", _WAIT), ("alloc", _ALLOC), ("launch", _LAUNCH)):
        if pattern.search(name):
            return found
    return "copy" if "runtime" in category and _COPY.search(name) else "host"
