"""Data sets as `Split` records, each verified by hash and kept in the user's cache folder.

One module a data set: glyphs, digits, docs, cifar10. All answer to `load(split)` and none of them downloads anything.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Shaped
from torch import Tensor

from labkit import hardware

Arrays = dict[str, np.ndarray]
_loaded: dict[str, str] = {}


def loaded() -> dict[str, str]:
    """The SHA-256 of every split that this process has made, by its name: what a recording rests on."""
    return dict(_loaded)


def note(name: str, sha256: str) -> None:
    """Remember that this process has made the data called `name`, for a recording that rests on it."""
    _loaded[name] = sha256


@dataclass(frozen=True, kw_only=True)
class Split:
    """One part of a data set; sha256 is of the stored arrays (pixels or tokens, and labels), before normalisation."""

    name: str
    inputs: Shaped[Tensor, "..."]
    targets: Int64[Tensor, "..."]
    classes: tuple[str, ...]
    sha256: str

    def __post_init__(self) -> None:
        note(self.name, self.sha256)

    def __len__(self) -> int:
        return len(self.targets)


def sha256_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 in hex of named arrays: names, types, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def cached(name: str, make: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """The arrays kept as `name`, made and kept when the cache has none or a damaged one; and their SHA-256.

    A cache that cannot be written costs one warning and the time to make the arrays again, never the lesson.
    """
    path = hardware.cache_folder() / f"{name}.npz"
    kept = _read(path)
    if kept is not None:
        return kept
    arrays = make()
    digest = sha256_of(arrays)
    try:
        _write(path, arrays, digest)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        warnings.warn(
            f"{name} could not be kept in {path.parent} ({reason}), so it is made again next time; "
            "LABKIT_CACHE can name another folder.",
            stacklevel=3,
        )
    return arrays, digest


def _read(path: Path) -> tuple[Arrays, str] | None:
    """The arrays of a cache file whose contents match the hash stored with them; None for any other file."""
    try:
        if not path.is_file():  # opening a named pipe would wait for ever
            return None
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        digest = str(arrays.pop("sha256"))
    except Exception:  # a damaged file fails in a dozen ways, and all of them mean: make it again
        return None
    return (arrays, digest) if sha256_of(arrays) == digest else None


def _write(path: Path, arrays: Arrays, digest: str) -> None:
    """Writes a whole file beside `path`, then renames it: a reader sees the old file, the new one or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, sha256=np.array(digest), **arrays)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)  # also when interrupted: no half-written files are left lying about
        raise


def choose(split: str, allowed: tuple[str, ...]) -> str:
    """`split` itself when it is one of those allowed; ValueError naming them otherwise."""
    if split not in allowed:
        raise ValueError(f"There is no split {split!r}; choose one of {', '.join(allowed)}.")
    return split
