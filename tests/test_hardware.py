"""What labkit says this machine is."""

import re
import subprocess

import pytest

from labkit import hardware
from labkit.course import CourseError


@pytest.fixture(autouse=True)
def _fresh():
    hardware.machine.cache_clear()
    yield
    hardware.machine.cache_clear()


def test_this_machine_is_described_in_full():
    machine = hardware.machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**28
    assert machine.cpu
    assert machine.slug == machine.slug.lower()
    assert " " not in machine.slug


def _with_smi(monkeypatch, printed):
    def answer(*command):
        return printed if command[0] == "nvidia-smi" else ""

    monkeypatch.setattr(hardware, "_output", answer)


def test_gpus_are_read_from_the_driver(monkeypatch):
    _with_smi(monkeypatch, "Tesla T4, 15360\nTesla T4, 15360")
    machine = hardware.machine()
    assert machine.gpus == (hardware.Gpu(name="Tesla T4", memory_bytes=15 * 2**30),) * 2
    assert (machine.name, machine.slug) == ("2x Tesla T4", "2x-tesla-t4")


@pytest.mark.parametrize("printed", ["", "No devices were found", "NVIDIA GeForce, [N/A]"])
def test_a_driver_without_devices_is_no_gpu(monkeypatch, printed):
    _with_smi(monkeypatch, printed)
    assert hardware.machine().gpus == ()


def test_a_command_that_fails_says_nothing(monkeypatch):
    def fail(*_, **__):
        raise subprocess.TimeoutExpired("nvidia-smi", 5)

    monkeypatch.setattr(hardware.shutil, "which", lambda name: name)
    monkeypatch.setattr(hardware.subprocess, "run", fail)
    assert hardware._output("nvidia-smi") == ""


def test_a_container_quota_cuts_the_cores(monkeypatch):
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for text, expected in (("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1)):
        monkeypatch.setattr(hardware.Path, "read_text", lambda _, text=text: text)
        assert hardware.cores() == expected


def test_tier_counts_the_gpus_that_torch_can_use(monkeypatch):
    import torch

    for available, count, expected in ((False, 2, "cpu"), (True, 1, "gpu"), (True, 2, "gpu2"), (True, 8, "gpu2")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert hardware.tier() == expected
        assert hardware.device() == ("cpu" if expected == "cpu" else "cuda")


def test_folders_follow_the_environment(monkeypatch, tmp_path):
    for variable, ask in (("LABKIT_CACHE", hardware.cache_folder), ("LABKIT_HOME", hardware.user_folder)):
        monkeypatch.setenv(variable, str(tmp_path))
        assert ask() == tmp_path
        monkeypatch.delenv(variable)
        assert "labkit" in str(ask())


FOLDERS = [
    ("LABKIT_CACHE", hardware.cache_folder),
    ("LABKIT_HOME", hardware.user_folder),
    ("LABKIT_DATA", hardware.data_folder),
]


@pytest.mark.parametrize(("variable", "ask"), FOLDERS)
def test_a_folder_may_be_given_from_home_and_not_from_wherever_one_stands(monkeypatch, tmp_path, variable, ask):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv(variable, "~/mine")
    assert ask() == tmp_path / "mine"
    for unclear in ("mine", "./mine", "~nobody-of-this-name/mine"):
        monkeypatch.setenv(variable, unclear)
        with pytest.raises(CourseError, match=f"{variable} is '{unclear}': give the whole path"):
            ask()


def test_where_this_runs(monkeypatch):
    for variable in ("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG", "LABKIT_DATA"):
        monkeypatch.delenv(variable, raising=False)
    assert (hardware.place(), hardware.data_folder()) == ("local", None)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "r")
    assert hardware.place() == "colab"
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    assert hardware.place() == "kaggle"
    assert hardware.data_folder().as_posix() == "/kaggle/input"
    monkeypatch.setenv("LABKIT_DATA", "/data")
    assert hardware.data_folder().as_posix() == "/data"


def _named(cpu, features=(), gpus=()):
    made = {"os": "Linux", "python": "3.12.1", "cores": 2, "memory_bytes": 2**34, "place": "local"}
    return hardware.Machine(cpu=cpu, cpu_features=features, gpus=gpus, **made)


def test_machines_that_differ_do_not_share_a_folder():
    """A recording replaces the one in its folder, so a name that letters cannot spell gets a folder of its own."""
    card = {"gpus": (hardware.Gpu(name="昇腾", memory_bytes=1),)}
    made = [
        *(_named("Intel Xeon"), _named("Intel Xeon", ("amx_bf16",)), _named("飞腾"), _named("龙芯"), _named("")),
        *(_named(".."), _named("AMD EPYC"), _named("x", **card)),
    ]
    slugs = [each.slug for each in made]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", slug) for slug in slugs)
    assert made[1].name == "Intel Xeon with AMX, 2 cores"
    assert made[6].slug == "amd-epyc-2-cores"


@pytest.fixture
def headers(tmp_path, monkeypatch):
    """A folder with Python's headers, and nothing else that torch.compile needs."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(hardware.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(hardware.shutil, "which", lambda _: None)
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda _: None)
    return tmp_path / "Python.h"


@pytest.mark.parametrize(
    ("platform", "cxx", "there", "found"),
    [
        ("linux", None, "g++", "g++"),
        ("linux", None, "clang++", ""),
        ("linux", "clang++", "clang++", "clang++"),
        ("linux", "clang++", "g++", ""),
        ("darwin", None, "clang++", "clang++"),
        ("win32", None, "cl", "cl"),
        ("win32", None, "g++", ""),
    ],
)
def test_the_compiler_is_the_one_that_torch_would_call(monkeypatch, platform, cxx, there, found):
    monkeypatch.delenv("CXX", raising=False)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    monkeypatch.setattr(hardware.sys, "platform", platform)
    monkeypatch.setattr(hardware.shutil, "which", lambda name: name if name == there else None)
    monkeypatch.setattr(hardware, "_output", lambda *command: "13" if command == (there, "--version") else "")
    assert hardware.cpp_compiler() == found


def test_a_compiler_that_does_not_answer_is_none(monkeypatch):
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    monkeypatch.setenv("CXX", "false")
    assert hardware.cpp_compiler() == ""


def test_what_is_missing_is_named_one_thing_at_a_time(monkeypatch, headers):
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "")
    assert hardware.missing_to_compile(on_gpu=False) == "a C++ compiler"
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "g++")
    assert hardware.missing_to_compile(on_gpu=False) == ""
    assert hardware.missing_to_compile(on_gpu=True) == "Triton"
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: name)
    assert hardware.missing_to_compile(on_gpu=True) == "a C compiler"
    monkeypatch.setattr(hardware.shutil, "which", lambda name: name)
    assert hardware.missing_to_compile(on_gpu=True) == ""
    headers.unlink()
    assert hardware.missing_to_compile(on_gpu=True) == "Python's header files"
    assert hardware.missing_to_compile(on_gpu=False) == "Python's header files"
