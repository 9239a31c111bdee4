"""How the box is started: what is bound where, with which environment, and as whom."""

import json
import os
import platform
import shutil
import site
import sys
from dataclasses import dataclass, field
from pathlib import Path

from labkit import hardware
from labkit.grading import drop, seccomp

_NOBODY = 65534
_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_CHROOT", "CAP_SETPCAP")  # the warm parent's; no child's
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/etc/alternatives")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_HOLDS_LABKIT = "/opt/labkit"
_PACKAGE = Path(__file__).resolve().parents[1]
_OF_THE_COURSE = ("solutions", "tests", "datasets", ".git")  # beside labkit, where it is not installed but checked out
DATA = "/opt/data"
_INSTALL = "sudo apt-get install bubblewrap"


@dataclass
class _Place:
    """Folders that are bound into the box: where each is, and where it will be."""

    binds: list[tuple[str, str]] = field(default_factory=list)

    def put(self, folder: str, wanted: str) -> str:
        """Bind a folder, unless it is within one that is bound already or of the system; where it is in the box."""
        folder = os.path.realpath(folder)
        for source, target in (("/usr", "/usr"), *self.binds):
            if folder == source or folder.startswith(f"{source}/"):
                return target + folder[len(source) :]
        self.binds.append((folder, wanted))
        return wanted


def elsewhere() -> str:
    """What to say on other systems, "" on Linux."""
    return "" if sys.platform == "linux" else "Grading needs Linux (on Windows, WSL)."


def missing() -> str:
    """What keeps boxes from being started here that can be seen without trying, "" for nothing."""
    if elsewhere():
        return elsewhere()
    if not shutil.which("bwrap"):
        return f"bubblewrap is not installed: {_INSTALL}"
    if not seccomp.supported(platform.machine()):
        return f"The sandbox knows x86_64 and aarch64, not {platform.machine()}."
    return ""


def why(said: str) -> str:
    """A sentence for a box that would not start, with the command that mends it where one does."""
    said = (said.strip().splitlines() or ["no reason was given"])[-1]
    if "No module named" in said:
        return f"Grading runs cells as a notebook does ({said}): pip install 'labkit[lab]'"
    for name, closed, command in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    ):
        setting = Path("/proc/sys", name)
        if setting.exists() and setting.read_text().strip() == closed:
            return f"This system allows no user namespaces ({said}): sudo sysctl -w {command}"
    return f"This system does not allow what the sandbox needs, as most containers do not ({said})."


def command(code: str, told: dict, disk_bytes: int) -> tuple[list[str], dict[str, str] | None]:
    """Command and environment (None: this process's) of a Python that runs `code` with `told` as JSON in sys.argv[1].

    told["boxed"]: in the box; otherwise in this system, with told["home"] as its home folder.
    """
    if told["boxed"]:
        return boxed(code, told, disk_bytes), None
    sites = [str(_PACKAGE.parent), *_sites()]
    kept = {name: value for name, value in _variables("/tmp").items() if name != "PATH"}
    kept |= {"PYTHONPATH": os.pathsep.join(sites), "PATH": os.defpath, "HOME": told["home"]}
    kept |= {"LABKIT_CACHE": str(hardware.cache_folder())}
    return [sys.executable, "-c", code, json.dumps(told)], kept


def boxed(code: str, told: dict, disk_bytes: int) -> list[str]:
    """The command that starts a Python in the box, which runs `code` with `told` as JSON in sys.argv[1].

    Its environment is set by the command. Standard error and what is passed as descriptors stay what they are.
    """
    place = _Place()
    python = place.put(sys.base_prefix, "/opt/python")
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    executable = place.put(os.path.dirname(base), "/opt/bin") + f"/{os.path.basename(base)}"
    sites = [place.put(folder, f"/opt/site{number}") for number, folder in enumerate(_sites())]
    binds = [*place.binds, (str(_PACKAGE), f"{_HOLDS_LABKIT}/labkit"), *_data()]
    variables = _variables(f"{python}/bin:/usr/bin:/bin") | {"PYTHONPATH": ":".join([_HOLDS_LABKIT, *sites])}
    if not python.startswith("/usr"):
        variables["LD_LIBRARY_PATH"] = f"{python}/lib"
    staged = [(source, f"{drop.STAGE}/{number}") for number, (source, _) in enumerate(binds)] if _is_root() else None
    sources = [stage for _, stage in staged] if staged else [source for source, _ in binds]
    mounts = []
    for source, (_, target) in zip(sources, binds, strict=True):
        mounts += ["--ro-bind", source, target]
    hidden = [word for folder in _hidden(binds) for word in ("--tmpfs", folder, "--remount-ro", folder)]
    words = [shutil.which("bwrap") or "bwrap", *_bare(disk_bytes), *mounts, *hidden, *_assigned(variables)]
    words += ["--remount-ro", "/", "--chdir", "/", executable, "-c", code, json.dumps(told)]
    if staged is None:
        return words
    plan = {"user": _NOBODY, "binds": staged, "command": words}
    return [sys.executable, "-I", str(Path(drop.__file__)), json.dumps(plan)]


def _data() -> list[tuple[str, str]]:
    """The data sets that this user's cache holds, which no learner's process has to make again then."""
    files = sorted(hardware.cache_folder().glob("*.npz"))
    return [(str(file), f"{DATA}/{file.name}") for file in files if file.is_file()]


def _is_root() -> bool:
    return os.geteuid() == 0


def _sites() -> list[str]:
    """The folders in which this Python finds its packages."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    known = [*site.getsitepackages(), *users]
    return [folder for folder in dict.fromkeys(known) if folder in sys.path and os.path.isdir(folder)]


def _hidden(binds: list[tuple[str, str]]) -> list[str]:
    """Folders of the box that are to be empty there: the checks, and what else of a course lies in what is bound."""
    course = _PACKAGE.parent
    beside = [course / name for name in _OF_THE_COURSE] if (course / "pyproject.toml").is_file() else []
    found = []
    for folder in (_PACKAGE / "checks", *(each for each in beside if each.is_dir())):
        for source, target in (("/usr", "/usr"), *binds):
            if str(folder).startswith(f"{source}/"):
                found.append(target + str(folder)[len(source) :])
    return found


def _bare(disk_bytes: int) -> list[str]:
    """Options for bubblewrap: new namespaces, and a system that nothing can be written to."""
    words = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-ipc", "--unshare-net"]
    words += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    words += [word for name in _CAPABILITIES for word in ("--cap-add", name)]
    words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc"]
    for name in _SYSTEM:
        if os.path.islink(f"/{name}"):
            words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    words += [word for name in _FILES for word in ("--ro-bind-try", name, name)]
    words += ["--ro-bind-try", "/sys/devices/system/cpu", "/sys/devices/system/cpu"]
    words += [word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        words += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    words += ["--dir", "/dev/shm", "--dir", "/home/learner", "--dir", "/stage", "--dir", DATA]
    for name in ("/tmp", "/cache"):  # the warm parent's own; each child gets others in their place
        words += ["--size", str(disk_bytes), "--tmpfs", name]
    return words


def _variables(path: str) -> dict[str, str]:
    """The environment of the box: nothing of the grader's own."""
    variables = dict.fromkeys(_THREADS, "1")
    variables |= {"PATH": path, "HOME": "/home/learner", "USER": "learner", "LANG": "C.UTF-8", "TZ": "UTC"}
    variables |= {"MPLBACKEND": "agg", "MPLCONFIGDIR": "/tmp/matplotlib", "PYTHONDONTWRITEBYTECODE": "1"}
    variables |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2", "LABKIT_QUIET": "1"}
    return variables | {"TORCH_CPP_LOG_LEVEL": "ERROR", "IPYTHONDIR": "/tmp/ipython", "XDG_CACHE_HOME": "/cache"}


def _assigned(variables: dict[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--setenv", name, value)]
