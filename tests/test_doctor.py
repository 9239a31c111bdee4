"""What labkit doctor says of machines that this one is not."""

import json
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import fabricated
import pytest

from labkit import doctor, hardware
from labkit.hardware import Gpu, Machine

T4 = Gpu(name="Tesla T4", memory_bytes=15 * 2**30)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A course of one lesson, an empty cache and home; returns a function that sets the machine."""
    monkeypatch.chdir(fabricated.course(tmp_path / "course"))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))

    def machine(*gpus, build="cpu", os_name="Linux"):
        processor = {"cpu": "Imaginary", "cpu_features": (), "cores": 2, "memory_bytes": 2**34}
        made = Machine(os=os_name, python="3.12.1", gpus=gpus, place="local", **processor)
        monkeypatch.setattr(hardware, "machine", lambda: made)
        monkeypatch.setattr(doctor, "torch_build", lambda: build)
        return doctor.report()

    return machine


def without(monkeypatch, *packages):
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name in packages else real(name))


def found(report, what):
    return next((item for item in report.missing if what in item.what), None)


@pytest.mark.parametrize(
    ("gpus", "build", "tier"),
    [
        ((), "cpu", "cpu"),
        ((), "cuda 12.6", "cpu"),
        ((T4,), "cuda 12.6", "gpu"),
        ((T4, T4), "cuda 12.6", "gpu2"),
        ((T4,) * 8, "cuda 12.6", "gpu2"),
        ((T4, T4), "cpu", "cpu"),
        ((T4,), "missing", "cpu"),
    ],
)
def test_the_tier_is_told_from_the_driver_and_the_build_of_torch(here, gpus, build, tier):
    assert here(*gpus, build=build).tier == tier


def test_a_cpu_build_beside_a_gpu_is_reported_with_its_cure(here):
    item = found(here(T4, build="cpu"), "CUDA build")
    assert "Tesla T4" in item.why
    assert "pip uninstall -y torch && " in item.fix
    assert "+cpu" not in item.fix
    assert "get-started" in found(here(T4, build="cpu", os_name="Windows"), "CUDA build").fix
    assert found(here(T4, build="cuda 12.6"), "CUDA build") is None
    assert found(here(build="cpu"), "CUDA build") is None


def test_this_torch_build_is_read_without_importing_torch():
    torch = pytest.importorskip("torch")
    expected = f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu"
    assert torch.version.hip or doctor.torch_build() == expected


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n", "cuda 12.6"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", "hip 6.4"),
        ("cuda = '11.8'\n", "cuda 11.8"),
    ],
)
def test_the_build_stands_in_torchs_version_file(tmp_path, monkeypatch, text, build):
    (tmp_path / "version.py").write_text(text)
    spec = namedtuple("Spec", "origin")(str(tmp_path / "__init__.py"))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: spec)
    assert doctor.torch_build() == build
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    assert doctor.torch_build() == "missing"


def test_what_a_lesson_gains_here_and_from_more(here):
    lesson = here().lessons[0]
    assert (lesson["lesson"], lesson["here"], lesson["more"]) == ("01_toy", "everything", "gpu: the same, faster")
    lesson = here(T4, build="cuda 12.6").lessons[0]
    assert (lesson["here"], lesson["more"]) == ("everything; the same, faster", "")


def test_a_missing_dependency_is_needed_and_a_missing_jupyter_is_not(here, monkeypatch):
    without(monkeypatch, "matplotlib", "jupyterlab", "nbval", "ipykernel")
    report = here()
    assert not report.healthy
    assert found(report, "matplotlib").level == "needed"
    assert found(report, "matplotlib").fix.endswith("-m pip install -c constraints.txt matplotlib")
    assert found(report, "jupyterlab").level == "wanted"
    assert found(report, "jupyterlab").fix.endswith("'.[lab]'")
    assert found(report, "ipykernel").level == "wanted"
    assert found(report, "nbval").level == "optional"


def test_a_dependency_that_is_too_old_is_needed(here, monkeypatch):
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "1.9.0" if name == "torch" else real(name))
    assert "(this is 1.9.0)" in found(here(), "torch>=").what


def test_a_python_that_is_too_old_is_needed(here, monkeypatch):
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.9.18")
    assert found(here(), "Python 3.10 (this is 3.9.18)").level == "needed"


def test_a_full_disk_and_a_locked_folder_are_needed(here, monkeypatch, tmp_path):
    assert here().healthy
    usage = namedtuple("Usage", "total used free")(10**12, 10**12, 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    item = found(here(), "disk space")
    assert item.level == "needed"
    assert "1 GB free" in item.what
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file" / "home"))
    assert found(here(), "permission").fix == "export LABKIT_HOME=/another/folder"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not here().healthy


def test_missing_programs_come_with_a_command(here, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "platform", "linux")
    without(monkeypatch, "triton")
    report = here()
    assert report.healthy
    assert (found(report, "compiler").level, found(report, "compiler").fix) == ("wanted", "sudo apt-get install g++")
    assert found(report, "chromium").level == "optional"
    assert found(report, "triton").level == "optional"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert found(here(), "compiler").fix == "xcode-select --install"
    assert found(here(), "triton") is None


def test_a_kernel_that_moved_is_found(here, monkeypatch, tmp_path):
    kernel = tmp_path / "share/jupyter/kernels/python3/kernel.json"
    kernel.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for argv, missing in (
        (["python", "-m"], False),
        ([sys.executable], False),
        (["/old/place/bin/python"], True),
        ([], True),
    ):
        kernel.write_text(json.dumps({"argv": argv}))
        assert bool(found(here(), "notebook kernel")) == missing
    kernel.write_text("not json")
    assert found(here(), "notebook kernel").fix.endswith("-m ipykernel install --sys-prefix")


def test_a_path_with_spaces_stays_one_word(here, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my courses/.venv/bin/python")
    without(monkeypatch, "jupyterlab")
    assert found(here(), "jupyterlab").fix.startswith('"/my courses/.venv/bin/python" -m pip')


def test_outside_a_course_it_still_answers(here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor.course, "__file__", str(tmp_path / "site" / "labkit" / "course.py"))
    assert here().lessons == ()


def test_in_a_file_it_reads_well_and_commands_are_whole_lines(here, capsys, monkeypatch):
    without(monkeypatch, "jupyterlab")
    report = here(T4, build="cpu")
    doctor.show(report)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = [line.strip() for line in out.splitlines()]
    assert all(item.fix in lines for item in report.missing)
    assert "Tesla T4 (15 GiB)" in out
    assert "01_toy" in out


def test_as_json_it_is_complete(here):
    report = here(T4, build="cuda 12.6")
    read = json.loads(doctor.as_json(report))
    assert read["machine"]["gpus"] == [{"name": "Tesla T4", "memory_bytes": 15 * 2**30}]
    assert (read["tier"], read["healthy"], read["name"]) == ("gpu", True, "Tesla T4")
    assert set(read) >= {"versions", "lessons", "missing", "torch_build"}


def test_the_lists_agree_with_pyproject():
    """What doctor asks for under an extra is what that extra installs."""
    pytest.importorskip("packaging")
    from packaging.requirements import Requirement

    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    block = text.split("\nlab = [")[1].split("\n]")[0]
    lab = {Requirement(line.split('"')[1]).name for line in block.splitlines() if '"' in line}
    assert set(doctor._LAB) == lab


@pytest.mark.parametrize(
    ("variable", "value"), [("LABKIT_BUDGET", "nonsense"), ("LABKIT_HOME", "here/below"), ("LABKIT_CACHE", "below")]
)
def test_a_setting_that_means_nothing_is_needed(here, monkeypatch, variable, value):
    here()
    monkeypatch.setenv(variable, value)
    report = doctor.report()
    item = found(report, variable)
    assert (item.level, report.healthy) == ("needed", False)
    assert repr(value) in item.what
    assert variable in item.fix


@pytest.mark.parametrize(
    ("lack", "fix"),
    [
        ("a C++ compiler", "sudo apt-get install g++"),
        ("Python's header files", "sudo apt-get install python3-dev"),
        ("Triton", "-m pip install triton"),
    ],
)
def test_what_torch_compile_lacks_comes_with_its_cure(here, monkeypatch, lack, fix):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(hardware, "missing_to_compile", lambda **_: lack)
    item = found(here(), lack)
    assert (item.level, item.why) == ("wanted", "torch.compile needs it")
    assert item.fix.endswith(fix)
    monkeypatch.setattr(hardware, "missing_to_compile", lambda **_: "")
    assert found(here(), lack) is None
