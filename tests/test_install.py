"""What installs this project agrees with itself: pyproject.toml, constraints.txt, environment.yml, the Makefile."""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10.13", "3.11.2", "3.11.7", "3.12.1", "3.13.0")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def wanted():
    """Every requirement in pyproject.toml, by section; read by hand, as Python 3.10 has no tomllib."""
    found = {}
    for section, block in re.findall(r"^(\w+) = \[\n(.*?)^\]", read("pyproject.toml"), re.MULTILINE | re.DOTALL):
        if section in ("dependencies", "lab", "test"):
            found[section] = [Requirement(text) for text in re.findall(r'^\s*"([^"]+)"', block, re.MULTILINE)]
    return found


def pins():
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    return [Requirement(line) for line in lines]


def pinned(python):
    """The version of each package that the constraints give to a Python."""
    found = {}
    for pin in pins():
        if pin.marker is None or pin.marker.evaluate({"python_full_version": python}):
            name = canonicalize_name(pin.name)
            assert name not in found, f"{name} is pinned twice for Python {python}"
            found[name] = str(pin.specifier).removeprefix("==")
    return found


def test_every_pin_is_exact():
    for pin in pins():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin} is no exact pin, or names a local build"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_pinned_within_its_range(python):
    known = pinned(python)
    sections = wanted()
    assert set(sections) == {"dependencies", "lab", "test"}
    for requirement in (one for section in sections.values() for one in section):
        name = canonicalize_name(requirement.name)
        assert name in known, f"{name} has no pin for Python {python}"
        assert requirement.specifier.contains(known[name]), f"{name}=={known[name]} lies outside {requirement}"


def test_the_ranges_stay_wide():
    """Kaggle and Colab bring their own torch: the ranges have a lower end and no upper one."""
    for requirement in (one for section in wanted().values() for one in section):
        assert [part.operator for part in requirement.specifier] == [">="], (
            f"{requirement} should have a lower end only"
        )
    torch = next(one for one in wanted()["dependencies"] if one.name == "torch")
    assert torch.specifier.contains("2.6.0")
    assert 'requires-python = ">=3.10"' in read("pyproject.toml")
    assert pinned("3.11.7")["torch"] == "2.13.0"


def test_these_tests_run_on_what_is_pinned():
    """Only a warning's worth: another environment may run the tests, but the development one must not drift."""
    known = pinned(".".join(str(part) for part in sys.version_info[:3]))
    # Of this environment alone: setuptools, once a compiler has imported it, puts packages of its own on the path.
    here = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    installed = {canonicalize_name(each.name): each.version.split("+")[0] for each in distributions(path=here)}
    drifted = {
        name: f"{installed[name]}, pinned {pin}"
        for name, pin in known.items()
        if installed.get(canonicalize_name(name), pin) != pin
    }
    if drifted and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip(f"another environment than .venv: {drifted}")
    assert not drifted, "the environment and constraints.txt differ: install with -c constraints.txt, or renew the pins"


def test_conda_installs_the_same_project():
    text = read("environment.yml")
    entries = [line.strip().removeprefix("- ") for line in text.splitlines() if line.strip().startswith("- ")]
    assert entries[0] == "conda-forge"
    python = next(entry for entry in entries if entry.startswith("python"))
    range_ = SpecifierSet(python.removeprefix("python"))
    assert all(range_.contains(one) for one in PYTHONS)
    assert not range_.contains("3.9.18")
    assert "pip" in entries
    assert entries[entries.index("pip:") + 1 :] == ["-c constraints.txt", "-e .[lab,test]"]


def test_the_makefile_installs_the_same_extras_with_the_constraints():
    text = read("Makefile")
    assert "-c constraints.txt" in text
    assert re.search(r"call install,lab\b", text)
    assert re.search(r"call install,lab,test\b|call install,lab\$\(COMMA\)test\b", text)


@pytest.fixture
def clone(tmp_path):
    """What make needs of a clone, in a folder with a space in its name."""
    if not shutil.which("make"):
        pytest.skip("needs make")
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def make(folder, target, **variables):
    """The exit code of make, and what it says on stderr."""
    words = [f"{name}={value}" for name, value in variables.items()]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # we may run under make
    done = subprocess.run(["make", target, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "There is no "),
        (
            'case "$2" in *version_info*) exit 1;; esac; [ "$1" = -V ] && echo Python 3.9.18; exit 0',
            "is Python 3.9.18.",
        ),
        ('case "$2" in *ensurepip*) exit 1;; esac; exit 0', "sudo apt-get install python3-venv"),
    ],
)
def test_make_says_what_is_wrong_with_a_python(clone, tmp_path, script, says):
    python = tmp_path / "python"
    if script:
        program(python, script)
    code, error = make(clone, "lint", PYTHON=python)
    assert code == 2
    assert says in error.splitlines()[0]


def test_make_installs_once_and_again_only_for_a_reason(clone, tmp_path):
    log = tmp_path / "log"
    script = f'case "$*" in *"pip install"*) echo "$*" >> "{log}"; [ ! -e "{tmp_path}/broken" ];; esac'
    program(clone / ".venv/bin/python", script)

    def installs(folder, target="lint"):
        before = len(log.read_text().splitlines()) if log.exists() else 0
        make(folder, target)
        return log.read_text().splitlines()[before:]

    (tmp_path / "broken").touch()
    assert len(installs(clone)) == 1
    assert len(installs(clone)) == 1, "an installation that failed is tried again"
    (tmp_path / "broken").unlink()
    assert installs(clone) == ["-m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[lab,test]"]
    assert installs(clone) == []
    assert installs(clone, "lab") == [], "the tests' installation holds all that a learner needs"
    with (clone / "constraints.txt").open("a") as file:
        file.write("# renewed\n")
    assert len(installs(clone, "lab")) == 1
    assert installs(clone, "lab") == []
    assert len(installs(clone)) == 1, "the tests need more than a learner's installation holds"
    moved = clone.rename(tmp_path / "moved")
    assert len(installs(moved)) == 1, "an editable installation points to the old folder"
    assert installs(moved) == []


def test_make_makes_a_half_made_environment_anew(clone, tmp_path):
    program(clone / ".venv/bin/python", "exit 1")
    log = tmp_path / "log"
    python = program(tmp_path / "python", f'echo "$*" >> "{log}"')
    make(clone, "lint", PYTHON=python)
    assert "-m venv --clear .venv" in log.read_text()
