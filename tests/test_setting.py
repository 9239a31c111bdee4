"""What a notebook says that it found, and what follows from the GPUs: a T4's branches, on machines made up here."""

from types import SimpleNamespace

import pytest
import torch

from labkit import hardware, setting
from labkit.setting import Card, Setting

T4 = Card(name="Tesla T4", memory_bytes=15 * 2**30, capability=(7, 5), bf16=False)
V100 = Card(name="Tesla V100", memory_bytes=16 * 2**30, capability=(7, 0), bf16=False)
A100 = Card(name="NVIDIA A100", memory_bytes=40 * 2**30, capability=(8, 0), bf16=True)
H200 = Card(name="NVIDIA H200", memory_bytes=139 * 2**30, capability=(9, 0), bf16=True)


def here(*cards, place="local", link=""):
    host = {"cpu": "Intel Xeon", "cores": 4, "memory_bytes": 31 * 2**30, "versions": "Python 3.12.1, torch 2.6.0"}
    return Setting(place=place, cards=cards, link=link, **host)


@pytest.mark.parametrize(
    ("cards", "narrow", "flash", "device", "backend"),
    [
        ((), "bfloat16", True, "cpu", "gloo"),
        ((T4,), "float16", False, "cuda", "gloo"),
        ((T4, T4), "float16", False, "cuda", "nccl"),
        ((V100,), "float16", False, "cuda", "gloo"),
        ((A100,), "bfloat16", True, "cuda", "gloo"),
        ((H200,) * 8, "bfloat16", True, "cuda", "nccl"),
        ((A100, T4), "float16", False, "cuda", "nccl"),  # ranks do the same work: what one lacks, none uses
    ],
)
def test_what_follows_from_the_cards(cards, narrow, flash, device, backend):
    made = here(*cards)
    assert (made.narrow, made.device, made.backend) == (narrow, device, backend)
    assert made.has_bf16 == (narrow == "bfloat16")
    assert getattr(torch, made.narrow).itemsize == 2
    assert ("FLASH_ATTENTION" in made.attention) == flash
    assert "MATH" in made.attention
    assert all(hasattr(torch.nn.attention.SDPBackend, name) for name in made.attention)


def test_two_t4s_on_kaggle_in_words():
    found, used = setting.sentences(here(T4, T4, place="kaggle", link="PCIe"))
    assert found == (
        "Found on Kaggle: 2x Tesla T4 (15 GiB each, PCIe between them), 4 cores of Intel Xeon, 31 GiB of memory, "
        "Python 3.12.1, torch 2.6.0."
    )
    assert used == (
        "Uses: cuda; float16 as the narrow format, for there are no units for bfloat16 here; attention without flash "
        "kernels; NCCL between ranks, one a GPU."
    )


def test_one_gpu_is_shared_and_a_place_that_lends_gpus_is_asked_for_one():
    assert "Tesla T4 (15 GiB)" in setting.sentences(here(T4, place="colab"))[0]
    assert "which share the GPU" in setting.sentences(here(T4, place="colab"))[1]
    assert "GPU T4 x2" in setting.sentences(here(place="kaggle"))[2]
    assert "T4 GPU" in setting.sentences(here(place="colab"))[2]
    assert len(setting.sentences(here())) == 2
    mixed = setting.sentences(here(A100, T4, T4))[0]
    assert "NVIDIA A100 (40 GiB), 2x Tesla T4 (15 GiB each)" in mixed


@pytest.fixture
def t4_pair(monkeypatch):
    """torch and the driver as they answer on Kaggle's pair; like torch there, it says yes to bf16 unless asked well."""
    props = SimpleNamespace(name="Tesla T4", total_memory=15 * 2**30, major=7, minor=5)
    head = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m"
    rows = head, "GPU0\t X \tPHB\t0-3", "GPU1\tPHB\t X \t0-3", "", "Legend:", "  X    = Self"
    matrix = "\n".join(rows)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: props)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(hardware, "_output", lambda *command: matrix if "topo" in command else "")
    hardware.machine.cache_clear()
    yield
    hardware.machine.cache_clear()


@pytest.mark.usefixtures("t4_pair")
def test_a_t4_is_asked_without_emulation():
    made = setting.found()
    assert made.cards == (T4, T4)
    assert (made.narrow, made.backend, made.link) == ("float16", "nccl", "PCIe")


@pytest.mark.usefixtures("t4_pair")
def test_a_torch_that_counts_emulation_in_is_not_believed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert not setting.found().has_bf16


def test_what_is_said_here(capsys):
    setting.announce()
    found, used = capsys.readouterr().out.splitlines()[:2]
    assert found.startswith("Found on this machine: ")
    assert f"torch {torch.__version__}" in found
    assert used.startswith("Uses: ")


@pytest.mark.parametrize(
    ("n_gpus", "row", "link"),
    [
        (2, "GPU0\t X \tPHB\t0-3", "PCIe"),
        (2, "GPU0\t X \tNV4\t0-3", "NVLink"),
        (2, "GPU0\t X \tSYS\tPIX\t0-3", "PCIe"),
        (3, "GPU0\t X \tNV1\tSYS\t0-3", "PCIe"),
        (2, "GPU0\t X \tNV1\tSYS\t0-3", "NVLink"),  # of a third GPU, or a network card, that is not used
        (2, "GPU0\t X \tN/A\t0-3", ""),
        (2, "", ""),
        (1, "GPU0\t X \t0-3", ""),
        (0, "GPU0\t X \tPHB\t0-3", ""),
    ],
)
def test_the_link_is_read_from_the_driver(monkeypatch, n_gpus, row, link):
    printed = f"\tGPU0\tGPU1\tCPU Affinity\n{row}\n\nLegend:\n  SYS  = PCIe\n"
    monkeypatch.setattr(hardware, "_output", lambda *_: printed)
    assert hardware.gpu_link(n_gpus) == link
