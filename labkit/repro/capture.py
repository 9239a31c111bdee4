"""What a run is made of, taken down as it begins: code as it was, packages, data, settings, and the cells that ran.

The environment is not recorded. Texts are scrubbed of what looks like a secret.
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit import course
from labkit.repro.files import plain
from labkit.repro.manifests import described
from labkit.repro.patches import code, file_digest
from labkit.repro.places import home
from labkit.repro.scrub import scrub, scrub_command, scrubbed
from labkit.repro.settings import budget

_HASH = re.compile(r"[0-9a-fA-F]{32,}")


def captured(config: object, data: Mapping[str, object], seeds: tuple[int, ...]) -> dict:
    """The record of a run as it begins. CourseError: a value of `data` that has no hash."""
    told = described(config=config, data={name: digest(value) for name, value in data.items()}, seeds=seeds)
    told["config"], told["command"] = scrub(told["config"]), scrubbed(told["command"])[0]
    told["revision"], told["patch"] = code(home())
    return told | {"packages": packages(), "torch": torch_settings(), "start": start(), "cells": cells()}


def digest(value: object) -> str:
    """The SHA-256 of data: of a file or folder by its path, a tensor or array by its type, shape and bytes.

    A text is a hash that was computed elsewhere; what has one of its own, as a split does, is taken at its word.
    CourseError: what has none, or is not there.
    """
    if isinstance(known := getattr(value, "sha256", value), str):
        if not _HASH.fullmatch(known):
            raise course.CourseError(f"data: {known!r} is no hash; give a path as Path({known!r}).")
        return known
    if isinstance(value, Path):
        return _digest_path(value)
    kind = f"{getattr(value, 'dtype', '')} {tuple(getattr(value, 'shape', ()))}\n".removeprefix("torch.")
    if hasattr(value, "detach"):  # a tensor; a bfloat16 one has no NumPy type, and no need of one
        import torch

        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if hasattr(value, "tobytes"):
        return hashlib.sha256(kind.encode() + value.tobytes()).hexdigest()
    raise course.CourseError(f"data: {type(value).__name__} has no hash; give a path, a tensor or a hash as text.")


def _digest_path(path: Path) -> str:
    """The hash of a file, or of a folder's files with their names."""
    if not path.exists():
        raise course.CourseError(f"data: there is no {path}.")
    if not path.is_dir():
        return file_digest(path)
    made = hashlib.sha256()
    for each in sorted(file for file in path.rglob("*") if file.is_file()):
        made.update(f"{each.relative_to(path).as_posix()}\0{file_digest(each)}\n".encode())
    return made.hexdigest()


def packages() -> dict[str, str]:
    """Every installed distribution and its version, read off the names of their folders: their metadata take longer."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if match := re.fullmatch(r"(.+?)-([^-]+)\.dist-info|(.+?)-([^-]+?)(?:-py[\d.]+)?\.egg-info", name):
                package, version = match.group(1, 2) if match[1] else match.group(3, 4)
                found.setdefault(re.sub(r"[-_.]+", "-", package).lower(), version)  # the first is what is imported
    return dict(sorted(found.items()))


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
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "default_dtype": str(torch.get_default_dtype()),
    }


def start() -> dict:
    """How the process began: arguments, current folder (below the run's own), and three variables.

    LABKIT_BUDGET, the seed of Python's hashes, and how much memory cuBLAS may use, which decides whether it gives the
    same bits twice. kind: notebook (cells hold what ran), script (its hash is kept too, for it may lie outside of what
    git knows), or none of both, which cannot be begun again.
    """
    top, here, script = home(), Path.cwd(), _script()
    kind = "notebook" if shell() else "script" if script else "other"
    told: dict[str, Any] = {"kind": kind, "argv": scrub_command(sys.orig_argv[1:])}
    told["folder"] = here.relative_to(top).as_posix()
    told["script"] = None if script is None else file_digest(script)
    told["budget"], told["hash_seed"] = budget(), os.environ.get("PYTHONHASHSEED", "random")
    told["cublas"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    return told


def _script() -> Path | None:
    """The file that this process runs and that can be run anew; None of handed in code, of a prompt, of one of many."""
    processes = sys.modules.get("multiprocessing.process")
    child = processes is not None and processes.parent_process() is not None
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else None
    usable = script is not None and script.is_file() and not sys.flags.interactive
    rank = "WORLD_SIZE" in os.environ  # of torchrun: without the others it would wait, or do all of the work
    return script if usable and not child and not rank else None


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


def plain_results(values: Mapping[str, object]) -> dict:
    """Results as JSON holds them, scrubbed."""
    return scrub(plain(values))
