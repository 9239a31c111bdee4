"""A file larger than memory: read with less, in blocks, and how much of a shuffle is left then."""

import subprocess
import sys

import pytest
import torch

from labkit import blocks
from labkit.data import docs

SAMPLE = 64
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and counts of Linux")


@pytest.fixture
def path(tmp_path):
    """A file of 1,000 samples and half a one, each of which starts with its number."""
    rows = torch.randint(96, (1000, SAMPLE), generator=torch.Generator().manual_seed(0))
    rows[:, 0], rows[:, 1] = torch.arange(1000) // 96, torch.arange(1000) % 96
    assert blocks.write(tmp_path / "tokens", [*rows, torch.zeros(SAMPLE // 2, dtype=torch.int64)]) == 64_032
    return tmp_path / "tokens"


def _number(sample: torch.Tensor) -> int:
    return int(sample[0] * 96 + sample[1])


def test_samples_are_what_was_written(path):
    with blocks.TokenFile(path, SAMPLE) as file:
        assert len(file) == 1000
        assert [_number(file[i]) for i in (0, 999, 31)] == [0, 999, 31]
        assert file.read(990, 2000).shape == (10, SAMPLE)
        with pytest.raises(IndexError, match="sample 1000 of 1000"):
            file[1000]
        assert [_number(sample) for sample in file] == list(range(1000))
    with pytest.raises(ValueError, match="64032 tokens, less than one sample of 64033"):
        blocks.TokenFile(path, 64_033)


def test_written_documents_are_read_back(tmp_path):
    texts = docs.documents("validation")
    n = blocks.write(tmp_path / "docs", texts)
    with blocks.TokenFile(tmp_path / "docs", n) as file:
        assert torch.equal(file[0], torch.cat(texts))


@pytest.mark.parametrize(("block", "pool"), [(1, 1), (30, 1), (30, 4), (256, 2), (1000, 1), (5000, 3)])
def test_a_block_shuffle_gives_every_sample_once_and_follows_its_seed(path, block, pool):
    order = blocks.block_order(1000, block, pool, seed=3)
    assert order.sort().values.tolist() == list(range(1000))
    assert torch.equal(order, blocks.block_order(1000, block, pool, seed=3))
    assert not torch.equal(order, blocks.block_order(1000, block, pool, seed=4))
    with blocks.TokenFile(path, SAMPLE) as file:
        assert [_number(sample) for sample in blocks.stream(file, block, pool, seed=3)] == order.tolist()


def test_samples_of_one_pool_come_from_as_many_blocks_as_it_holds():
    order = blocks.block_order(1000, 50, 4, seed=0)
    homes = [set((order[at : at + 200] // 50).tolist()) for at in range(0, 1000, 200)]
    assert [len(home) for home in homes] == [4] * 5


def test_blocks_ask_for_every_page_about_once_and_a_full_shuffle_for_many_times_more(path):
    asked = {}
    for name, block in (("blocks", 128), ("full", 1)):
        with blocks.TokenFile(path, SAMPLE) as file:
            for _ in blocks.stream(file, block, 1000 // block, seed=0):
                pass
            asked[name] = file.asked_bytes
    assert asked["blocks"] == 8 * 2 * blocks.PAGE_BYTES  # 128 samples fill two pages, and the last 104 touch two
    assert asked["full"] == 1000 * blocks.PAGE_BYTES


def test_neighbour_share_tells_shuffled_blocks_from_a_full_shuffle():
    n, batch, within = 6400, 16, 64
    full = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    order = blocks.block_order(n, within, 1, seed=0)
    assert blocks.neighbour_share(torch.arange(n), batch, within) == 1
    assert blocks.neighbour_share(order, batch, within) == 1
    assert blocks.neighbour_share(full, batch, within) == pytest.approx(63 / 6399, abs=0.003)
    for pool in (4, 10):
        share = blocks.neighbour_share(blocks.block_order(n, within, pool, seed=0), batch, within)
        assert share == pytest.approx(1 / pool, abs=0.02)


# A process that may allocate less than the file holds. A shared, read-only mapping does not count as allocated.
_LIMITED = """
import resource, sys
import numpy as np, torch
from labkit import blocks
torch.set_num_threads(1)
path, more = sys.argv[1], int(sys.argv[2])
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + more, used + more))
try:
    np.fromfile(path, np.uint8)
    print("it fits")
except MemoryError:
    print("larger than memory")
with blocks.TokenFile(path, 4096, memory_bytes=more // 4) as file:
    total = sum(int(sample.sum()) for sample in blocks.stream(file, 64, 8, 0))
    print(len(file), total, file.asked_bytes)
"""


@ON_LINUX
def test_a_file_larger_than_memory_is_read_to_its_end(tmp_path):
    part = torch.arange(1 << 20) % 96
    n_bytes = blocks.write(tmp_path / "large", (part for _ in range(64)))
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "large"), str(32 << 20)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said, counts = done.stdout.splitlines()
    assert said == "larger than memory"
    assert counts.split() == [str(n_bytes // 4096), str(64 * int(part.sum())), str(n_bytes)]


def _fetched_bytes(path, block: int, pool: int, *, read_ahead: bool = False) -> int:
    """What the disk reads for one pass over samples of 256 bytes, with a quarter of a MiB kept."""
    with blocks.TokenFile(path, 256, memory_bytes=1 << 18, read_ahead=read_ahead) as file:
        file.forget()
        before = blocks.disk_bytes()
        assert sum(1 for _ in blocks.stream(file, block, pool, seed=0)) == len(file)
        return blocks.disk_bytes() - before


@ON_LINUX
def test_a_disk_reads_a_file_once_for_blocks_and_many_times_for_a_full_shuffle(tmp_path):
    n_bytes = blocks.write(tmp_path / "tokens", (torch.randint(96, (1 << 19,)) for _ in range(4)))
    in_blocks = _fetched_bytes(tmp_path / "tokens", block=256, pool=4)
    if in_blocks == 0:
        pytest.skip("these files are not read from a disk")
    full = _fetched_bytes(tmp_path / "tokens", block=1, pool=256)
    assert n_bytes <= in_blocks < 1.5 * n_bytes
    assert full > 8 * in_blocks  # 16 samples share a page, and each asks for a page of its own
    assert _fetched_bytes(tmp_path / "tokens", block=1, pool=256, read_ahead=True) > 1.5 * full
