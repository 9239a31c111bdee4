"""CIFAR-10, where its files are at hand: 60,000 colour pictures of 32x32 pixels in ten classes. Never downloaded."""

import codecs
import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from labkit import hardware
from labkit.course import CourseError
from labkit.data import Split, choose, sha256_of

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = ("train", "validation", "test")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # red, green, blue, of the 50,000 training pictures
ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
ARCHIVE_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
BATCH_MD5 = {  # the published sums; for files one by one there is nothing newer than MD5
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def load(split: str = "train", folder: str | Path | None = None) -> Split:
    """The pictures of one split, [N, 3, 32, 32] in float32, each colour as (value / 255 - MEAN) / STD.

    Train is the first 45,000 of the training pictures, validation the last 5,000, test the 10,000 test pictures.
    folder holds the archive or the unpacked one, at most one level below; without it, LABKIT_DATA or Kaggle's inputs.
    ValueError for an unknown split; CourseError where the files are missing or are not the published ones.
    """
    return _load(choose(split, SPLITS), folder, archive_sha256=ARCHIVE_SHA256, batch_md5=BATCH_MD5)


def _load(split: str, folder: str | Path | None, *, archive_sha256: str, batch_md5: Mapping[str, str]) -> Split:
    """`load` for a copy with the given hashes."""
    names = [name for name in batch_md5 if (name == "test_batch") == (split == "test")]
    batches = [_arrays(content) for content in _contents(_find(folder), names, archive_sha256, batch_md5)]
    images, labels = (np.concatenate([batch[k] for batch in batches]) for k in (0, 1))
    held_out = len(images) // 10
    part = {"train": slice(0, len(images) - held_out), "validation": slice(len(images) - held_out, None)}
    images, labels = (array[part.get(split, slice(None))] for array in (images, labels))
    mean, std = (torch.tensor(colours).view(3, 1, 1) for colours in (MEAN, STD))
    return Split(
        name=f"cifar10-{split}",
        inputs=torch.from_numpy(images).to(torch.float32).div_(255).sub_(mean).div_(std),
        targets=torch.from_numpy(labels),
        classes=CLASSES,
        sha256=sha256_of({"images": images, "labels": labels}),
    )


def _find(folder: str | Path | None) -> Path:
    """The archive or the unpacked folder: in `folder`, one level below it, or `folder` itself."""
    start = Path(folder) if folder is not None else hardware.data_folder()
    if start is None:
        raise CourseError(
            f"CIFAR-10 is not at hand: set LABKIT_DATA, or pass folder=, to the folder that holds {ARCHIVE} "
            "(from https://www.cs.toronto.edu/~kriz/cifar.html; labkit does not download it)."
        )
    below = sorted(path for path in start.iterdir() if path.is_dir()) if start.is_dir() else []
    for place in (start, *below):
        for found in (place, place / FOLDER, place / ARCHIVE):
            if found.name in (FOLDER, ARCHIVE) and found.exists():
                return found
    raise CourseError(
        f"CIFAR-10 is not in {start}: neither it nor a folder directly in it holds {FOLDER} or {ARCHIVE} "
        "(from https://www.cs.toronto.edu/~kriz/cifar.html; labkit does not download it)."
    )


def _contents(found: Path, names: list[str], archive_sha256: str, batch_md5: Mapping[str, str]) -> Iterator[bytes]:
    """The bytes of each batch file, read once and held against the hashes before anything looks inside."""
    if found.name == ARCHIVE:
        packed = _read(found)
        _hold(found, hashlib.sha256(packed).hexdigest(), archive_sha256)
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for name in names:
                yield archive.extractfile(f"{FOLDER}/{name}").read()
        return
    for name in names:
        content = _read(found / name)
        _hold(found / name, hashlib.md5(content, usedforsecurity=False).hexdigest(), batch_md5[name])
        yield content


def _read(path: Path) -> bytes:
    """The bytes of a file; CourseError saying why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}); CIFAR-10 needs it.") from error


def _hold(path: Path, got: str, expected: str) -> None:
    """CourseError unless a file's hash is the published one."""
    if got != expected:
        raise CourseError(
            f"{path} is not the published file (hash {got[:12]}..., expected {expected[:12]}...): "
            "it may be incomplete, so fetch it again."
        )


class _ArraysOnly(pickle.Unpickler):
    """Reads pickles of dicts, lists, numbers, bytes and NumPy arrays; whatever else one may ask for is refused."""

    _ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],  # its home moved in NumPy 2
        ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,  # how Python 3 writes bytes in Python 2's pickles
    }

    def find_class(self, module: str, name: str) -> object:
        """What a pickle means by module.name, from the short list of what arrays need; UnpicklingError otherwise."""
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"A data file asks for {module}.{name}, which no array needs: refused.")
        return self._ALLOWED[module, name]


def _arrays(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [N, 3, 32, 32] and labels int64 [N] of one batch file."""
    batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    return batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[b"labels"], dtype=np.int64)
