"""The manifest of a run: what is needed to make it again."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labkit import hardware
from labkit.repro.files import plain
from labkit.repro.places import git

_PACKAGES = ("labkit", "torch", "numpy", "matplotlib", "accelerate", "triton")


def _version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def manifest(
    *,
    config: object = None,
    data: Mapping[str, str] | None = None,
    seeds: tuple[int, ...] = (),
    command: str | None = None,
) -> dict:
    """What is needed to make a run again: code, versions, hardware, configuration, data hashes and seeds.

    revision and diff_sha256 name the code: the commit, and the hash of what differs from it (None where nothing does
    or git is missing). Files that git does not know are not part of the hash. command: by default that of this process.
    """
    known = bool(git("ls-files"))  # not the repository of a folder around an unpacked zip
    diff = git("diff", "HEAD") if known else None
    code = {"revision": git("rev-parse", "HEAD") if known else None}
    code["diff_sha256"] = hashlib.sha256(diff.encode()).hexdigest() if diff else None
    return code | described(config=config, data=data, seeds=seeds, command=command)


def described(
    *,
    config: object = None,
    data: Mapping[str, str] | None = None,
    seeds: tuple[int, ...] = (),
    command: str | None = None,
) -> dict:
    """The manifest without the code."""
    machine = hardware.machine()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {"python": machine.python} | {name: _version(name) for name in _PACKAGES if _version(name)},
        "hardware": {"name": machine.name, **asdict(machine)},
        "config": plain(config),
        "data": dict(data or {}),
        "seeds": plain(list(seeds)),
    }
