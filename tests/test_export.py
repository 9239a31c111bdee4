"""Notebooks that travel: what is in them, what is refused, and that they run without labkit and without a network."""

import ast
import base64
import errno
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from functools import cache

import bare
import fabricated
import nbformat
import pytest
from test_layers import LAYERS, imports

import labkit
from labkit import build, course, export, parcel, unpacking

RANKS = '''# %% [markdown]
# # 01 · Two ranks

# %%
import torch
import torch.distributed as dist

from labkit.ranks import run_ranks

# %%
scale = 3.0


def work():
    """The sum over ranks of a tensor made by a function of the notebook."""
    total = torch.ones(2) * scale * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return dist.get_world_size(), total.tolist()


# %%
print(run_ranks(work, 2, devices="cpu"))
'''


def files_in(notebook):
    """The files that the first cell of a notebook unpacks."""
    source = "".join(notebook["cells"][0]["source"])
    packed = base64.b64decode(re.search(r'unpack\("""\n(.*?)"""', source, re.DOTALL).group(1))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


@cache
def imported(source):
    """The packages that a source imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in names}


@cache
def brought_along():
    """What one can import in the bare environment, beside Python's own."""
    return {file.parts[0].removesuffix(".py") for made in bare.closure().values() for file in made.files}


def exported(lesson, place="kaggle", **options):
    return json.loads(export.notebook_text(lesson, export.PLACES[place], **{"solved": False} | options))


@pytest.mark.parametrize("place", ["kaggle", "colab"])
@pytest.mark.parametrize("solved", [False, True])
def test_a_valid_notebook_one_cell_longer_than_the_courses(toy, place, solved):
    notebook = exported(toy, place, solved=solved)
    nbformat.validate(nbformat.from_dict(notebook))
    cells = build.convert(toy)
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    assert sources[1:] == [cell.solution if solved else cell.student for cell in cells]
    ast.parse(sources[0])
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    assert notebook["cells"][0]["metadata"].keys() == {"_kg_hide-input", "cellView", "jupyter"}
    assert ("recording(False)" in sources[0]) == solved


def test_the_same_lesson_makes_the_same_bytes(toy):
    texts = {export.notebook_text(toy, export.PLACES["kaggle"], solved=False) for _ in range(2)}
    assert len(texts) == 1
    assert texts.pop().isascii()


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_what_travels_with_each_lesson(lesson):
    """The learner's notebook holds no solved line, and of the checks those of its own lesson; Kaggle takes its size."""
    text = export.notebook_text(lesson, export.PLACES["kaggle"], solved=False)
    assert len(text) < export.KAGGLE_BYTES / 2
    files = files_in(json.loads(text))
    assert {name for name in files if re.search(r"nb\d\d\.py$", name)} <= {f"labkit/checks/nb{lesson.number}.py"}
    assert re.fullmatch(rb"(# \w+: .+\n)+", files.pop(f"solutions/{lesson.source.name}"))
    assert not [name for name in files if name.startswith("solutions/")]
    root = lesson.source.parents[1]
    recorded = {path.relative_to(root).as_posix() for path in root.glob(f"datasets/recorded/*/{lesson.name}*.json")}
    opened = {"datasets/capstone/train.py"} if lesson.number == "21" else set()
    assert recorded | opened == {name for name in files if name.startswith("datasets/")}
    for name in parcel.TRAVELLING:
        mine = [path for path in files if path.startswith(f"{unpacking.PACKAGES}/{name}/")]
        assert any("LICEN" in path for path in mine), f"{name} travels without its licence"
        assert any(path.endswith("METADATA") for path in mine)


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_nothing_that_a_lesson_can_reach_needs_another_package(lesson):
    """Whatever is imported where a lesson may come: Python's own, the six and what they need, what travels."""
    files = {name: text for name, text in parcel.contents(lesson).items() if unpacking.PACKAGES not in name}
    files = {name: text for name, text in files.items() if name.endswith(".py")} | {"": lesson.text().encode()}
    names = set().union(*map(imported, files.values()))
    known = brought_along() | set(sys.stdlib_module_names) | set(parcel.TRAVELLING) | {"labkit"}
    asked_for = {name for name in ("torchdata",) if f'find_spec("{name}")' in lesson.text()}  # and does without
    assert names - known - asked_for == set()


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.name)
def test_what_a_lesson_imports_of_labkit_travels_and_no_other_data(lesson):
    files = parcel.contents(lesson)
    sources = [text for name, text in files.items() if name.endswith(".py") and unpacking.PACKAGES not in name]
    wanted = set().union(*(imports(ast.parse(text)) for text in [*sources, lesson.text()]))
    wanted = {labkit._HOME.get(name, name) for name in wanted} - parcel.STAYING - {"__version__"}
    there = {name.split("/")[1].removesuffix(".py") for name in files if name.startswith("labkit/")}
    assert wanted <= there
    assert ("labkit/data/digits.npz" in files) == ("from labkit.data import digits" in lesson.text())


def test_what_no_lesson_needs_stays():
    """The last row of LAYERS makes and runs lessons; a module that joins it has to be decided about."""
    assert LAYERS[-1] == parcel.STAYING


def test_what_travels_is_pure_python():
    for name in parcel.TRAVELLING.values():
        files = bare.closure([name])[name].files
        assert not [file for file in files if file.suffix in (".so", ".pyd", ".dll")], f"{name} is compiled"


@pytest.mark.usefixtures("toy")
def test_a_package_that_cannot_travel_is_a_sentence(labkit, monkeypatch):
    monkeypatch.setitem(parcel.TRAVELLING, "nobody_has", "nobody-has")
    says = "nobody-has is not installed, and it travels along: install it with pip.\n"
    assert labkit("kaggle", "1") == (2, "", says)
    assert [path.name for path in course.root().iterdir() if "kaggle" in path.name] == []


@pytest.mark.usefixtures("toy")
def test_a_folder_for_kaggle(labkit):
    code, out, error = labkit("kaggle", "1", "--user", "ada")
    assert (code, error) == (0, "")
    folder = course.root() / "kaggle_01_toy"
    assert sorted(path.name for path in folder.iterdir()) == ["01_toy.ipynb", "kernel-metadata.json"]
    held = json.loads((folder / "kernel-metadata.json").read_text())
    assert held["id"] == "ada/" + held["title"].replace(" ", "-") == "ada/labkit-01-toy"
    assert (folder / held["code_file"]).exists()
    wanted = {"language": "python", "kernel_type": "notebook", "machine_shape": "NvidiaTeslaT4", "enable_gpu": True}
    assert wanted.items() <= held.items()
    assert held["enable_internet"] is False
    assert re.fullmatch(
        r"wrote kaggle_01_toy/01_toy.ipynb \(\d+ kB\)\nwrote kaggle_01_toy/kernel-metadata.json\n"
        r"Then: kaggle kernels push -p kaggle_01_toy\n",
        out,
    )


@pytest.mark.usefixtures("toy")
def test_a_folder_for_colab(labkit):
    code, out, _ = labkit("colab", "1", "--solution", "--out", "to/colab")
    assert code == 0
    assert "wrote to/colab/01_toy_solved.ipynb" in out
    (notebook,) = (course.root() / "to" / "colab").iterdir()
    held = json.loads(notebook.read_text())["metadata"]
    assert (held["accelerator"], held["colab"]["gpuType"]) == ("GPU", "T4")


@pytest.mark.usefixtures("toy")
def test_who_pushes_is_asked_once(labkit):
    assert "YOUR_KAGGLE_NAME" in labkit("kaggle", "1")[1]
    path = course.root() / "kaggle_01_toy" / "kernel-metadata.json"
    path.write_text(path.read_text().replace("YOUR_KAGGLE_NAME", "ada"))
    assert "YOUR_KAGGLE_NAME" not in labkit("kaggle", "1")[1]
    assert json.loads(path.read_text())["id"] == "ada/labkit-01-toy"
    path.write_text("no JSON")
    assert "YOUR_KAGGLE_NAME" in labkit("kaggle", "1")[1]


@pytest.mark.parametrize("command", ["kaggle", "colab"])
@pytest.mark.usefixtures("toy")
def test_an_unknown_lesson_is_a_sentence(labkit, command):
    assert labkit(command, "42") == (2, "", "There is no lesson '42'. There are: 01 (toy).\n")


@pytest.mark.usefixtures("toy")
def test_a_folder_with_other_things_stays_as_it_is(labkit):
    code, _, error = labkit("kaggle", "1", "--out", ".")
    assert (code, error) == (
        2, ". holds other things (labkit, notebooks, solutions): give --out a new or empty folder.\n"
    )  # fmt: skip
    assert labkit("kaggle", "1", "--out", "solutions/01_toy.py")[2] == (
        "solutions/01_toy.py is a file: give --out a folder.\n"
    )
    (course.root() / "solutions" / "01_toy.py").write_text("# title: broken\n")
    assert labkit("kaggle", "1", "--out", "x")[0] == 2
    assert not (course.root() / "x").exists()


@pytest.mark.usefixtures("toy")
def test_work_in_an_exported_notebook_is_not_overwritten(labkit):
    labkit("kaggle", "1", "--out", "mine")
    path = course.root() / "mine" / "01_toy.ipynb"
    path.write_text(path.read_text().replace("x = 2", "x = 3"))
    before = path.read_bytes()
    code, _, error = labkit("kaggle", "1", "--out", "mine")
    assert (code, error) == (2, "mine/01_toy.ipynb was edited by hand: move it away, or give --out another folder.\n")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["", "ada lovelace", "a/b", "ada@home"])
@pytest.mark.usefixtures("toy")
def test_a_name_that_is_none_of_kaggles_is_a_sentence(labkit, name):
    code, _, error = labkit("kaggle", "1", "--user", name)
    assert (code, error.count("\n")) == (2, 1)
    assert "is no name of a Kaggle user" in error
    assert not (course.root() / "kaggle_01_toy").exists()


@pytest.mark.usefixtures("toy")
def test_a_folder_that_cannot_be_written_is_a_sentence(labkit, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), "/some/place")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    code, _, error = labkit("kaggle", "1")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("Permission denied: /some/place.")


def test_a_notebook_too_large_for_kaggle_is_a_sentence(labkit, toy):
    toy.source.write_text(toy.text().replace("x = 2", "x = 2\n" + "# a long comment\n" * 60_000), encoding="utf-8")
    code, _, error = labkit("kaggle", "1")
    assert (code, error.count("\n")) == (2, 1)
    assert "Kaggle takes less than 1 MB" in error
    assert labkit("colab", "1")[0] == 0


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    if os.name == "nt":
        pytest.skip("needs symbolic links, which Windows gives to administrators alone")
    return bare.environment(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def cut_off():
    command = bare.no_network()
    if command is None:
        pytest.skip("needs a network namespace: unshare (util-linux), and a kernel that lets this user make one")
    return command


def test_the_bare_environment_is_bare_and_cut_off(bare_python, cut_off, tmp_path):
    """What the two tests below rest on."""
    notebook = nbformat.v4.new_notebook()
    look = "import importlib.util as u; print([u.find_spec(n) for n in ('labkit', 'jaxtyping', 'cloudpickle', 'rich')])"
    call = "import socket\nwith socket.socket() as s: print(s.connect_ex(('192.0.2.1', 80)))"
    notebook.cells = [nbformat.v4.new_code_cell(look), nbformat.v4.new_code_cell(call)]
    nbformat.write(notebook, tmp_path / "look.ipynb")
    cells = bare.run(bare_python, tmp_path / "look.ipynb", cut_off=cut_off)
    found, called = (cell["outputs"][0]["text"] for cell in cells)
    assert found == "[None, None, None, None]\n"
    assert called == f"{errno.ENETUNREACH}\n"


def run_exported(lesson, python, cut_off, folder, **options):
    """The outputs of an exported notebook's cells, run where there is no labkit and no network, as texts."""
    export.export(lesson, export.PLACES["kaggle"], folder=folder, **options)
    cells = bare.run(python, next(folder.glob("*.ipynb")), cut_off=cut_off)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output["text"] for output in outputs if output.get("name") == "stderr"]
    return ["".join(o.get("text") or o["data"].get("text/plain", "") for o in cell["outputs"]) for cell in cells]


@pytest.mark.notebook
@pytest.mark.parametrize("solved", [False, True])
def test_a_lesson_runs_in_one_process(bare_python, cut_off, tmp_path, solved):
    texts = run_exported(course.find("00"), bare_python, cut_off, tmp_path / "out", solved=solved)
    assert texts[0].startswith("Found on this machine: ")
    assert ("not attempted" in "".join(texts)) != solved


@pytest.mark.notebook
def test_two_ranks_run(bare_python, cut_off, tmp_path, monkeypatch):
    """Functions of cells, children that import the labkit that travelled, gloo without a network."""
    monkeypatch.chdir(fabricated.course(tmp_path / "a course", n01_ranks=RANKS))
    texts = run_exported(course.find("01"), bare_python, cut_off, tmp_path / "out")
    assert texts[-1] == "[(2, [9.0, 9.0]), (2, [9.0, 9.0])]\n"


@pytest.mark.notebook
@pytest.mark.parametrize("lesson", [each for each in course.lessons() if each.number == "12"])
def test_the_lesson_on_two_ranks_runs(bare_python, cut_off, tmp_path, lesson):
    texts = run_exported(lesson, bare_python, cut_off, tmp_path / "out")
    assert "gloo between ranks" in texts[0]
