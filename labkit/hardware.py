"""What this machine is: cores, memory, GPUs, and where labkit may keep files.

Nothing here imports torch but `tier` and `device`, which ask what torch can use: so `labkit doctor` answers at once.
"""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.course import CourseError

_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")  # between two GPUs, as nvidia-smi names it
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_fp16")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the driver names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine as the operating system and the GPU driver describe it; no torch involved."""

    os: str
    python: str
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    place: str

    @property
    def name(self) -> str:
        """`2x Tesla T4` or `AMD EPYC, 2 cores`: what a figure recorded here is labelled with."""
        if self.gpus:
            return f"{len(self.gpus)}x {self.gpus[0].name}" if len(self.gpus) > 1 else self.gpus[0].name
        amx = " with AMX" if "amx_bf16" in self.cpu_features else ""  # it trains several times faster than its twin
        return f"{self.cpu}{amx}, {self.cores} core{'s' if self.cores > 1 else ''}"

    @property
    def slug(self) -> str:
        """`name` as a folder's name; one that plain letters cannot spell gets a hash, so that no two share a folder."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        spelt = self.name.isascii() and (self.gpus or self.cpu.strip(" ."))
        return plain if spelt else f"{plain or 'machine'}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"


def cores() -> int:
    """CPU cores that this process may use: the affinity mask, cut to a container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def _cpu_name() -> str:
    """The processor's name: from /proc on Linux, sysctl on a Mac, platform elsewhere."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)|CPU|Processor|@.*", "", match.group(1))).strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def _cpu_features() -> tuple[str, ...]:
    """Which of the units that decide how fast a format is this processor has; none where /proc does not say."""
    try:
        flags = re.search(r"^flags\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ()
    present = set(flags.group(1).split()) if flags else set()
    return tuple(name for name in FEATURES if name in present)


def has_amx() -> bool:
    """Whether this processor multiplies bf16 matrices in tiles (Intel's AMX)."""
    return "amx_bf16" in machine().cpu_features


def _output(*command: str) -> str:
    """What a command prints, or nothing where it is missing, fails or takes more than 5 s."""
    if not shutil.which(command[0]):
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def cpp_compiler() -> str:
    """The C++ compiler that torch.compile calls on a CPU: CXX, else this system's usual one; nothing if none answers.

    Source: torch/_inductor/cpp_builder.py, get_cpp_compiler (torch 2.13).
    """
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    name = os.environ.get("CXX", usual)
    answers = shutil.which(name) if sys.platform == "win32" else _output(name, "--version")
    return name if answers else ""


def missing_to_compile(*, on_gpu: bool) -> str:
    """What torch.compile lacks on this machine, such as `a C++ compiler`; nothing where nothing is missing.

    For a CPU it writes C++, for a GPU it writes Triton, which has a C compiler build its launcher; both include
    Python's headers. Ignores how old any of them is.
    """
    if on_gpu and not importlib.util.find_spec("triton"):
        return "Triton"
    if on_gpu and not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return "a C compiler"
    if not on_gpu and not cpp_compiler():
        return "a C++ compiler"
    folder = Path(sysconfig.get_path("include"))
    framework = Path(sysconfig.get_path("stdlib")).parent.parent / "Headers"  # of a Mac's own Python
    return "" if any((place / "Python.h").exists() for place in (folder, framework)) else "Python's header files"


def _memory_bytes() -> int:
    """Bytes of memory that this machine, or the container around this process, has; 0 where nothing says."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows
        match = re.search(r"\d+", _output("wmic", "ComputerSystem", "get", "TotalPhysicalMemory", "/value"))
        return int(match.group()) if match else 0
    return min(total, int(limit)) if limit.isdigit() else total


def _gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that the driver lists."""
    rows = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits").splitlines()
    pairs = [row.rsplit(",", 1) for row in rows if row.rsplit(",", 1)[-1].strip().isdigit()]
    return tuple(Gpu(name=name.strip(), memory_bytes=int(mib) * 2**20) for name, mib in pairs)


def gpu_link(n_gpus: int) -> str:
    """`NVLink` where all pairs of the first n_gpus have one, `PCIe` where some have not; nothing where nothing says.

    Source: the matrix of `nvidia-smi topo -m` and the legend below it.
    """
    if n_gpus < 2:
        return ""
    rows = re.findall(r"^\W*(GPU\d+\s.*)$", _output("nvidia-smi", "topo", "-m"), re.MULTILINE)
    kinds = {kind for row in rows for kind in row.split()[1 : n_gpus + 1] if _LINK.fullmatch(kind)}
    if not kinds:
        return ""
    return "NVLink" if all(kind.startswith("NV") for kind in kinds) else "PCIe"


def place() -> str:
    """`kaggle`, `colab` or `local`."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "kaggle"
    return "colab" if "COLAB_RELEASE_TAG" in os.environ else "local"


@cache
def machine() -> Machine:
    """This machine, asked once."""
    return Machine(
        os=platform.system(),
        python=platform.python_version(),
        cpu=_cpu_name(),
        cpu_features=_cpu_features(),
        cores=cores(),
        memory_bytes=_memory_bytes(),
        gpus=_gpus(),
        place=place(),
    )


def tier() -> str:
    """`cpu`, `gpu` or `gpu2`: how many GPUs torch can use here, two or more counting as two."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ("cpu", "gpu", "gpu2")[min(count, 2)]


def device() -> str:
    """The device that lessons run on: `cuda` where torch can use one, else `cpu`."""
    return "cpu" if tier() == "cpu" else "cuda"


def named_folder(variable: str) -> Path | None:
    """The folder that an environment variable names, None where it is not set; a CourseError unless it is a whole path.

    A notebook and a terminal stand in different folders, in which a relative path would be another one each.
    """
    value = os.environ.get(variable)
    if not value:
        return None
    folder = Path(os.path.expanduser(value))
    if not folder.is_absolute():
        raise CourseError(f"{variable} is {value!r}: give the whole path of a folder, such as ~/labkit.")
    return folder


def _users(kind: str) -> Path:
    """Where this system keeps a user's files of a kind, `cache` or `data`."""
    import platformdirs

    return getattr(platformdirs, f"user_{kind}_path")("labkit")


def cache_folder() -> Path:
    """Where rendered data is kept and may be deleted at any time; LABKIT_CACHE names another place."""
    return named_folder("LABKIT_CACHE") or _users("cache")


def user_folder() -> Path:
    """Where this learner's progress is kept; LABKIT_HOME names another place."""
    return named_folder("LABKIT_HOME") or _users("data")


def data_folder() -> Path | None:
    """Where the user keeps data sets of their own: LABKIT_DATA, else Kaggle's input folder, else nowhere."""
    return named_folder("LABKIT_DATA") or (Path("/kaggle/input") if place() == "kaggle" else None)


def python_path() -> str:
    """PYTHONPATH for a child that must find this labkit, installed or not: its folder, then what the variable holds."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))


def notebook_path() -> str | None:
    """The notebook that this kernel serves, as the Jupyter server names it; None elsewhere."""
    return os.environ.get("JPY_SESSION_NAME")
