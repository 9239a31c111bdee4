"""What this machine is, what the lessons gain from it, what is missing, and the command that puts it right.

Versions come from the packages' metadata and torch is never imported, so the answer takes less than a second.
"""

import importlib.metadata as metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit import course, hardware, repro
from labkit.units import format_bytes

_NEEDED_BYTES = 2_000_000_000
_TIERS = ("cpu", "gpu", "gpu2")
_SHOWN = ("labkit", "torch", "numpy", "matplotlib", "jupyterlab", "ipywidgets", "accelerate", "triton")
_LAB = {
    "jupyterlab": "to work in notebooks (labkit run needs none)",
    "ipykernel": "the kernel that runs a notebook's cells",
    "ipywidgets": "sliders for your predictions",
    "nbclient": "to execute a lesson without a browser",
    "nbformat": "to read and write notebooks",
    "accelerate": "taught beside our own launcher",
    "torchdata": "a loader that goes on in the middle of an epoch, in lesson 09",
}
_COMPILERS = {
    "win32": "https://visualstudio.microsoft.com/visual-cpp-build-tools/ (then start from its x64 Native Tools prompt)",
    "darwin": "xcode-select --install",
}
_APT = {
    "a C++ compiler": "sudo apt-get install g++",
    "a C compiler": "sudo apt-get install gcc",
    "Python's header files": "sudo apt-get install python3-dev",
}
_TEST = {"pytest": "to run the tests", "nbval": "to hold stored outputs to fresh ones"}


@dataclass(frozen=True, kw_only=True)
class Missing:
    """One thing that is not there; level is `needed`, `wanted` (some lessons or tools go without) or `optional`."""

    what: str
    level: str
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `labkit doctor` says."""

    machine: hardware.Machine
    tier: str
    torch_build: str
    versions: dict[str, str | None]
    lessons: tuple[dict[str, str], ...]
    missing: tuple[Missing, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing needed is missing."""
        return not any(item.level == "needed" for item in self.missing)


def version(package: str) -> str | None:
    """The installed version of a package, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> str:
    """`cuda 12.6`, `cpu` or `missing`, read from torch's version file without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "missing"
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return "cpu"
    match = re.search(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return f"{match[1]} {match[2]}" if match else "cpu"


def report() -> Report:
    """What this machine is and has, in a fraction of a second."""
    machine, build = hardware.machine(), torch_build()
    usable = 0 if build in ("cpu", "missing") else len(machine.gpus)
    tier = _TIERS[min(usable, 2)]
    settings = (*_folders(), _budget())
    checks = (_python(), *_dependencies(), _gpu_build(machine, build), *settings, *_notebooks(), *_tools(tier))
    return Report(
        machine=machine,
        tier=tier,
        torch_build=build,
        versions={name: version(name) for name in _SHOWN},
        lessons=tuple(_gains(tier)),
        missing=tuple(item for item in checks if item),
    )


def _pip(arguments: str) -> str:
    """A pip command for this very Python."""
    quoted = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f"{quoted} -m pip {arguments}"


def _python() -> Missing | None:
    """The Python in use, if it is too old."""
    here = platform.python_version()
    if tuple(int(part) for part in here.split(".")[:2]) >= (3, 10):
        return None
    return Missing(
        what=f"Python 3.10 (this is {here})", level="needed", why="", fix="https://www.python.org/downloads/"
    )


def _dependencies() -> list[Missing]:
    """The packages that labkit needs and that are absent or too old."""
    try:
        from packaging.requirements import Requirement

        lines = metadata.requires("labkit") or []
    except (ImportError, metadata.PackageNotFoundError):
        return [Missing(what="labkit's own installation", level="needed", why="", fix=_pip("install -e .[lab]"))]
    found = []
    for wanted in (Requirement(line) for line in lines if "extra ==" not in line):
        have = version(wanted.name)
        if have is None or not wanted.specifier.contains(have, prereleases=True):
            what = str(wanted) if have is None else f"{wanted} (this is {have})"
            fix = _pip(f"install -c constraints.txt {wanted.name}")
            found.append(Missing(what=what, level="needed", why="every lesson uses it", fix=fix))
    return found


def _gpu_build(machine: hardware.Machine, build: str) -> Missing | None:
    """A torch that cannot use the GPUs that are there."""
    if not machine.gpus or build != "cpu":
        return None
    plain = (version("torch") or "").split("+")[0]
    source = "" if machine.os == "Linux" else " (with the --index-url that https://pytorch.org/get-started names)"
    fix = f"{_pip('uninstall -y torch')} && {_pip(f'install torch=={plain}')}{source}"
    why = f"this torch is a CPU build: it cannot use the {machine.gpus[0].name}"
    return Missing(what="a CUDA build of torch", level="wanted", why=why, fix=fix)


def _folders() -> list[Missing]:
    """Folders of labkit's that cannot be written to, or that lie on a full disk."""
    found = []
    for variable, ask in (("LABKIT_CACHE", hardware.cache_folder), ("LABKIT_HOME", hardware.user_folder)):
        elsewhere = f"export {variable}=/another/folder"
        try:
            folder = ask()
        except course.CourseError as error:
            found.append(Missing(what=str(error), level="needed", why="", fix=elsewhere))
            continue
        above = next(path for path in (folder, *folder.parents) if path.exists())
        if not (above.is_dir() and os.access(above, os.W_OK)):
            what = f"permission to write to {folder}"
            found.append(Missing(what=what, level="needed", why="data and progress are kept there", fix=elsewhere))
        elif (free := shutil.disk_usage(above).free) < _NEEDED_BYTES:
            what = f"disk space in {folder} ({format_bytes(free)} free)"
            why = f"lessons need up to {format_bytes(_NEEDED_BYTES)}"
            found.append(Missing(what=what, level="needed", why=why, fix=f"free some, or {elsewhere}"))
    return found


def _budget() -> Missing | None:
    """A budget that there is none of, with which no lesson starts."""
    try:
        repro.budget()
    except course.CourseError as error:
        return Missing(what=str(error), level="needed", why="no lesson starts", fix="unset LABKIT_BUDGET")
    return None


def _notebooks() -> list[Missing]:
    """What is missing for working in notebooks and for the tests."""
    found = []
    for extra, packages in (("lab", _LAB), ("test", _TEST)):
        fix = _pip(f"install -c constraints.txt -e '.[{extra}]'")
        absent = [(name, why) for name, why in packages.items() if version(name) is None]
        level = "wanted" if extra == "lab" else "optional"
        found += [Missing(what=name, level=level, why=why, fix=fix) for name, why in absent]
    kernel = Path(sys.prefix, "share/jupyter/kernels/python3/kernel.json")
    if version("ipykernel") and kernel.exists() and not _starts(kernel):
        fix = f"{_pip('').removesuffix(' -m pip ')} -m ipykernel install --sys-prefix"
        found.append(Missing(what="a notebook kernel that starts", level="wanted", why=f"{kernel} is stale", fix=fix))
    return found


def _starts(kernel: Path) -> bool:
    """Whether a kernel's description names a program that exists."""
    try:
        program = json.loads(kernel.read_text(encoding="utf-8"))["argv"][0]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return program.startswith("python") or shutil.which(program) is not None


def _tools(tier: str) -> list[Missing]:
    """Programs beside Python."""
    found = []
    if lack := hardware.missing_to_compile(on_gpu=tier != "cpu"):
        fix = _COMPILERS.get(sys.platform, _APT.get(lack) or _pip("install triton"))
        found.append(Missing(what=lack, level="wanted", why="torch.compile needs it", fix=fix))
    if version("triton") is None and sys.platform == "linux":
        why = "the lesson on kernels; on a CPU it interprets them"
        found.append(Missing(what="triton", level="optional", why=why, fix=_pip("install triton")))
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        fix = "sudo apt-get install chromium"
        found.append(Missing(what="chromium", level="optional", why="the browser test alone uses it", fix=fix))
    return found


def _gains(tier: str) -> list[dict[str, str]]:
    """Per lesson: what it shows on this tier, and what a larger one would add."""
    try:
        known = course.lessons()
    except course.CourseError:
        return []
    here = _TIERS[: _TIERS.index(tier) + 1]
    return [
        {
            "lesson": lesson.name,
            "title": lesson.title,
            "here": "; ".join(lesson.gains[t] for t in here if t in lesson.gains),
            "more": "; ".join(f"{t}: {lesson.gains[t]}" for t in _TIERS if t not in here and t in lesson.gains),
        }
        for lesson in known
    ]


def as_json(found: Report) -> str:
    """The report as JSON, `healthy` and the machine's name included."""
    extra = {"healthy": found.healthy, "name": found.machine.name}
    return json.dumps(asdict(found) | extra, indent=1, ensure_ascii=False)


def show(found: Report) -> None:
    """Print the report: two tables, then what is missing, each command on a line of its own to copy."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=110)
    machine = found.machine
    gpus = ", ".join(f"{gpu.name} ({format_bytes(gpu.memory_bytes, binary=True)})" for gpu in machine.gpus) or "none"
    memory = format_bytes(machine.memory_bytes, binary=True)
    facts = {
        "machine": f"{machine.cpu}, {machine.cores} cores, {memory} of memory, {machine.os}",
        "GPUs": gpus,
        "where": machine.place,
        "tier": f"{found.tier} (torch: {found.torch_build} build)",
        "Python": f"{machine.python} at {sys.executable}",
        "packages": ", ".join(f"{name} {number}" for name, number in found.versions.items() if number),
    }
    console.print(_table(["This machine", ""], facts.items()))
    rows = [(lesson["lesson"], lesson["here"], lesson["more"]) for lesson in found.lessons]
    if rows:
        console.print(_table(["Lesson", f"what it shows here ({found.tier})", "what more hardware adds"], rows))
    for item in found.missing:
        console.print(f"{item.level}: {item.what}" + (f" ({item.why})" if item.why else ""), soft_wrap=True)
        console.print(f"    {item.fix}", soft_wrap=True)
    console.print("Nothing needed is missing." if found.healthy else "Something needed is missing: see 'needed' above.")


def _table(columns: list[str], rows: Iterable[tuple[str, ...]]) -> object:
    """A rich table without a frame, so that it reads well in a file too."""
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
