"""What a run is made of, taken down as it begins: code as it was, packages, data, settings, and the cells that ran.

The environment is not recorded. Texts are scrubbed of what looks like a secret.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from labkit import course
from labkit.repro.files import plain
from labkit.repro.manifests import manifest
from labkit.repro.scrub import scrub, scrubbed

KEPT_BYTES = 1 << 20  # a file that git does not know goes into the patch up to this size; of a larger one its hash
_CHUNK = 1 << 20
_HEADING = re.compile(r"^(@@ [^@]+ @@).*$", re.MULTILINE)  # what follows is a line that has not changed
_GIT_S = 60


def captured(config: object, data: Mapping[str, object], seeds: tuple[int, ...]) -> dict:
    """The record of a run as it begins. CourseError: a value of `data` that has no hash."""
    told = manifest(config=config, data={name: digest(value) for name, value in data.items()}, seeds=seeds)
    told["config"], told["command"] = scrub(told["config"]), scrubbed(told["command"])[0]
    packages = {one.metadata["Name"]: one.version for one in distributions() if one.metadata["Name"]}
    return told | {
        "patch": patch(told["revision"]) if told["revision"] else None,
        "packages": dict(sorted(packages.items(), key=lambda pair: pair[0].lower())),
        "torch": torch_settings(),
        "start": start(),
    }


def digest(value: object) -> str:
    """The SHA-256 of data: of a file or folder by its path, a tensor or array by its bytes, or as a split says its own.

    A text is taken for a hash that was computed elsewhere. CourseError: what has none, or is not there.
    """
    if isinstance(known := getattr(value, "sha256", value), str):
        return known
    if isinstance(value, Path):
        return _digest_path(value)
    if hasattr(value, "detach"):  # a tensor; a bfloat16 one has no NumPy type, and no need of one
        import torch

        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    raise course.CourseError(f"data: {type(value).__name__} has no hash; give a path, a tensor or a hash as text.")


def _digest_path(path: Path) -> str:
    """The hash of a file, or of a folder's files with their names."""
    if not path.exists():
        raise course.CourseError(f"data: there is no {path}.")
    made = hashlib.sha256()
    if path.is_dir():
        for each in sorted(file for file in path.rglob("*") if file.is_file()):
            made.update(f"{each.relative_to(path).as_posix()}\0{_digest_path(each)}\n".encode())
        return made.hexdigest()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            made.update(chunk)
    return made.hexdigest()


def patch(revision: str) -> dict:
    """How the files differ from a revision: text (for `git apply --unidiff-zero`), removed and left_out.

    Files that git does not know are in it up to KEPT_BYTES; left_out has the path, size and hash of larger ones.
    removed: how many places looked like a secret; such a patch makes another text than what ran.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        git = _Git(course.root(), Path(folder))
        unknown = [Path(name) for name in git("ls-files", "-z", "--others", "--exclude-standard").split("\0") if name]
        sizes = {name: (course.root() / name).lstat().st_size for name in unknown}
        kept = [name for name in unknown if sizes[name] <= KEPT_BYTES]
        git("read-tree", revision)
        git("add", "-u")
        git("add", "--pathspec-from-file=-", "--pathspec-file-nul", given="\0".join(f":(literal){n}" for n in kept))
        text = git("diff", "--cached", "--binary", "--no-ext-diff", "--no-color", "-U0", revision)
    text, removed = scrubbed(_HEADING.sub(r"\1", text))
    left_out = [
        {"path": name.as_posix(), "bytes": sizes[name], "sha256": _digest_path(course.root() / name)}
        for name in unknown
        if sizes[name] > KEPT_BYTES
    ]
    return {"text": text, "removed": removed, "left_out": left_out}


class _Git:
    """git with an index and a store of its own, so that looking at a repository leaves nothing in it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        own = folder / "objects"
        own.mkdir()
        theirs = self._said("rev-parse", "--git-path", "objects").strip()
        self._more = {"GIT_INDEX_FILE": str(folder / "index"), "GIT_OBJECT_DIRECTORY": str(own)}
        self._more["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str((root / theirs).resolve())

    def __call__(self, *arguments: str, given: str = "") -> str:
        """What git prints."""
        return self._said(*arguments, given=given)

    def _said(self, *arguments: str, given: str = "") -> str:
        command = ("git", "-C", str(self._root), *arguments)
        more = {"env": os.environ | getattr(self, "_more", {}), "input": given, "timeout": _GIT_S}
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=True, **more)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            raise course.CourseError(f"The uncommitted changes could not be read: {said[-1:] or error}.") from error
        return done.stdout


def torch_settings() -> dict:
    """Torch's settings on which bits depend; empty where torch has not been imported, for then none was used."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "default_dtype": str(torch.get_default_dtype()),
    }


def start() -> dict:
    """How the process began: arguments, current folder (below the course's), and what Python's hashes are seeded by.

    kind: notebook (cells hold what ran), script, or none of both, which cannot be begun again.
    """
    kind = "notebook" if shell() else "script" if _is_script() else "other"
    here = Path.cwd()
    inside = here.is_relative_to(course.root())
    told: dict[str, Any] = {"kind": kind, "argv": [scrubbed(one)[0] for one in sys.orig_argv[1:]]}
    told["folder"] = here.relative_to(course.root()).as_posix() if inside else None
    told["hash_seed"] = os.environ.get("PYTHONHASHSEED", "random")
    return told


def _is_script() -> bool:
    """Whether this process runs a file or a module that can be run anew, and nobody types into it."""
    main = sys.modules.get("__main__")
    return not sys.flags.interactive and bool(getattr(main, "__file__", None))


def shell() -> Any:
    """IPython's shell where a notebook or console runs in one, else None; IPython is never imported for it."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module else None


def cells() -> list[dict]:
    """The cells that ran in this process so far, in their order: count, and source as it was then; [] without IPython.

    The one that is running now is among them.
    """
    running = shell()
    if running is None:
        return []
    sources = list(running.history_manager.input_hist_raw)[1:]
    return [{"count": n, "source": scrubbed(text)[0]} for n, text in enumerate(sources, 1) if text.strip()]


def plain_results(values: Mapping[str, object]) -> object:
    """Results as JSON holds them, scrubbed."""
    return scrub(plain(values))
