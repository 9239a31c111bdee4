"""A file of tokens larger than memory: mapped, read in blocks, shuffled as far as the memory goes.

A disk reads neighbours in one go, and the system reads ahead; a full shuffle asks for one sample here and one there.
Between the two stands the block shuffle: whole blocks in a random order, some of them in memory at a time, and only the
samples of these mixed. What it saves is counted in bytes; what it leaves of the shuffle is measured too.
"""

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

PAGE_BYTES = mmap.PAGESIZE


class TokenFile:
    """A file of one-byte tokens, mapped into memory, as samples of `sample` tokens that do not overlap.

    memory_bytes: what it may keep of the file, not counting what the system reads ahead; once its reads have asked for
    more, it gives all of it back, as a system short of memory would. None: as much as the system leaves it. A remainder
    shorter than a sample is left out. read_ahead: let the system guess what will be asked for next, as it does by
    default; otherwise it is told. ValueError: a file of less than one sample.
    """

    def __init__(self, path: Path | str, sample: int, *, memory_bytes: int | None = None, read_ahead: bool = False):
        self.sample, self.memory_bytes = sample, memory_bytes
        self._told = not read_ahead and hasattr(mmap, "MADV_RANDOM")
        self.asked_bytes = 0  # whole pages that reads have touched since the file was opened
        self._kept_bytes = 0
        with open(path, "rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes < sample:
                raise ValueError(f"{path} holds {n_bytes} tokens, less than one sample of {sample}")
            self._n = n_bytes // sample
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._fd = os.dup(file.fileno())
        if self._told:
            self._map.madvise(mmap.MADV_RANDOM)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, number: int) -> Int64[Tensor, " L"]:
        """One sample. IndexError: there is none of this number."""
        if not 0 <= number < self._n:
            raise IndexError(f"sample {number} of {self._n}")
        return self.read(number, number + 1)[0].long()

    def read(self, start: int, stop: int) -> UInt8[Tensor, "N L"]:
        """The samples from start up to stop, copied out of the file, a byte a token; fewer where it ends."""
        first, last = start * self.sample, min(stop, self._n) * self.sample
        page = first // PAGE_BYTES * PAGE_BYTES
        pages_bytes = -(-last // PAGE_BYTES) * PAGE_BYTES - page
        if self.memory_bytes is not None and self._kept_bytes + pages_bytes > self.memory_bytes:
            self.forget()
        self.asked_bytes += pages_bytes
        self._kept_bytes += pages_bytes
        if self._told and pages_bytes > PAGE_BYTES:
            self._map.madvise(mmap.MADV_WILLNEED, page, last - page)  # all of it at once, not page by page
        tokens = np.frombuffer(self._map, np.uint8, last - first, first)
        return torch.from_numpy(tokens.copy()).view(-1, self.sample)

    def forget(self) -> None:
        """Give back all pages of the file, the system's own copy too where it does that: the next read goes to disk."""
        self._kept_bytes = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Harmless when done twice."""
        if not self._map.closed:
            self._map.close()
            os.close(self._fd)

    def __enter__(self) -> "TokenFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write(path: Path | str, parts: Iterable[Int64[Tensor, " _"]]) -> int:
    """Write tokens below 256 to a file, a byte each, and onto the disk; returns the bytes. Holds one part at a time."""
    with open(path, "wb") as file:
        for part in parts:
            file.write(part.to(torch.uint8).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())  # or there is nothing on the disk that could be read from there
        return file.tell()


def disk_bytes() -> int | None:
    """Bytes that this process has fetched from disks so far, read-ahead included; None where that is not counted."""
    try:
        counts = Path("/proc/self/io").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in counts.splitlines() if line.startswith("read_bytes:"))


def block_order(n: int, block: int, pool: int, seed: int) -> Int64[Tensor, " N"]:
    """The order in which a block shuffle gives n samples: each once.

    block: neighbours that are read in one go. pool: blocks in memory at a time, whose samples are mixed.
    """
    return torch.cat([numbers[mixed] for _, numbers, mixed in _pools(n, block, pool, seed)])


def stream(file: TokenFile, block: int, pool: int, seed: int) -> Iterator[Int64[Tensor, " L"]]:
    """The samples of a file in the order of block_order; every block is read once, one pool held as bytes."""
    for blocks, _, mixed in _pools(len(file), block, pool, seed):
        held = torch.cat([file.read(at * block, (at + 1) * block) for at in blocks])
        for row in mixed.tolist():
            yield held[row].long()


def _pools(n: int, block: int, pool: int, seed: int) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Pool by pool: the blocks that are in memory together, their samples' numbers, and the order in which these go."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(-(-n // block), generator=generator).tolist()
    for at in range(0, len(order), pool):
        blocks = order[at : at + pool]
        numbers = torch.cat([torch.arange(b * block, min((b + 1) * block, n)) for b in blocks])
        yield blocks, numbers, torch.randperm(len(numbers), generator=generator)


def neighbour_share(order: Int64[Tensor, " N"], batch: int, within: int) -> float:
    """The share of pairs in a batch that come from the same `within` neighbours of the file, from 0 to 1.

    1 in the order of the file, where `within` is a multiple of the batch; after a full shuffle what chance gives,
    about within / N; with p blocks of `within` mixed, about 1 / p. The last, shorter batch is left out.
    """
    home = (order[: len(order) // batch * batch] // within).view(-1, batch)
    same = (home.unsqueeze(2) == home.unsqueeze(1)).sum(dim=(1, 2)) - batch
    return same.double().mean().item() / (batch * (batch - 1))
