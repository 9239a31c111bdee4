"""A run made again: alike to the last bit, or what differs, what is missing and where it parts."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from recorded import SCRIPT, child, course, git, kept, script

from labkit.repro import run

PLAIN = SCRIPT.replace(', "password": "words"', "")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A course under git with a script, the current folder inside it, and a folder of its own for temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "course").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    monkeypatch.chdir(course(tmp_path / "course"))
    return tmp_path / "course"


def nothing_left(place):
    assert git(place, "worktree", "list").count("\n") == 1
    assert [path.name for path in (place.parent / "tmp").iterdir() if path.name.startswith("labkit")] == []


def told(outcome):
    """The last line of what `labkit runs remake` said, after the new run's id."""
    return outcome[1].splitlines()[-1].partition(": ")[2]


def test_a_run_made_again_is_alike_where_it_was_seeded_and_parts_where_it_was_not(place, labkit):
    (place / "train.py").write_text(SCRIPT.replace("0.9", "0.8"))
    seeded, unseeded = script(place, "3"), script(place, "0")
    (place / "train.py").write_text("raise SystemExit('another text')")
    made = labkit("runs", "remake", seeded["id"])
    assert (made[0], told(made)) == (0, "5 values, all alike to the last bit.")
    code, out, _ = labkit("runs", "remake", unseeded["id"])
    assert code == 1
    assert "0 of 5 values are alike. They part at step 0 in loss" in out
    assert [one.get("remakes") for one in kept(place).all()][2:] == [seeded["id"], unseeded["id"]]
    nothing_left(place)


def test_a_run_that_cannot_be_made_again_says_why(place, labkit):
    (place / "train.py").write_text(SCRIPT + "sys.exit(7)\n")
    record = script(place, "3")
    code, out, _ = labkit("runs", "remake", record["id"])
    assert code == 0
    assert "It ended with exit code 7" in out
    with run("typed"):
        pass
    typed = kept(place).find("typed") | {"start": record["start"] | {"kind": "other"}}
    kept(place).put(typed)
    code, _, err = labkit("runs", "remake", "typed")
    assert (code, "no command can be run" in err) == (2, True)
    kept(place).put(typed | {"start": record["start"], "patch": typed["patch"] | {"why": "index file corrupt"}})
    assert "could not be read: index file corrupt" in labkit("runs", "remake", "typed")[2]
    kept(place).put(typed | {"revision": "0" * 40})
    assert "is not in this repository" in labkit("runs", "remake", "typed")[2]
    kept(place).put(typed | {"revision": None})
    assert "outside of git" in labkit("runs", "remake", "typed")[2]


def test_a_revision_that_was_deleted(place, labkit):
    git(place, "commit", "-qm", "gone", "--allow-empty")
    record = script(place, "3")
    git(place, "reset", "-q", "--hard", "HEAD~1")
    git(place, "reflog", "expire", "--expire=now", "--all")
    git(place, "gc", "-q", "--prune=now")
    code, _, err = labkit("runs", "remake", record["id"])
    assert (code, "is not in this repository: fetch it" in err) == (2, True)
    nothing_left(place)


def test_a_package_that_is_missing_and_another_version_of_torch_are_said(place, labkit):
    (place / "train.py").write_text(SCRIPT)
    record = script(place, "3")
    packages = record["packages"] | {"torch": "0.1", "gone-package": "1.0"}
    kept(place).put(record | {"packages": packages}, kept(place).metrics(record["id"]))
    code, out, _ = labkit("runs", "remake", record["id"])
    assert code == 0
    assert "version: torch: 0.1 | " in out
    assert "package: gone-package: 1.0 | (nothing)" in out
    (place / "needs.py").write_text(PLAIN.replace("import random", "import random, gone_package"))
    record = script(place, "3") | {"packages": packages}
    record["start"]["argv"] = ["needs.py", "3"]
    kept(place).put(record)
    code, out, _ = labkit("runs", "remake", record["id"])
    assert code == 1
    assert "package: gone-package: 1.0 | (nothing)" in out
    assert "No module named 'gone_package'" in out


def test_what_the_command_names_and_the_copy_lacks_is_said(place, labkit):
    (place / ".git" / "info" / "exclude").write_text("kept/\n")
    (place / "kept").mkdir()
    (place / "kept" / "numbers.txt").write_text("0.5")
    reads = "weight = float(Path(sys.argv[2].partition('=')[2]).read_text()); Path(sys.argv[3]).write_text('mine')\n"
    (place / "train.py").write_text(SCRIPT.replace("weight = random.random()\n", reads))
    known = f"--data={place / 'numbers.txt'}"
    (place / "numbers.txt").write_text("0.5")
    record = script(place, "3", known, "out")
    (place / "numbers.txt").write_text("0.25")
    code, out, _ = labkit("runs", "remake", record["id"])
    assert (code, "all alike" in out) == (0, True)
    record = script(place, "3", "--data=kept/numbers.txt", str(place / "there"), "a text that is no path" * 20)
    code, out, _ = labkit("runs", "remake", record["id"])
    assert "not recorded: kept/numbers.txt: git does not know it, so the copy has none" in out
    assert f"{place / 'there'}: the copy has none, so the run reads and writes it where it is" in out
    assert "train.py:" not in out


def test_the_memory_of_cublas_is_as_it_was(place, labkit, monkeypatch):
    (place / "train.py").write_text(
        SCRIPT.replace("import random", "import os, random").replace(
            "random.random()", "len(os.environ.get('CUBLAS_WORKSPACE_CONFIG', '')) + 0.5"
        )
    )
    without = script(place, "3")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert labkit("runs", "remake", without["id"])[0] == 0
    with_it = script(place, "3")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert labkit("runs", "remake", with_it["id"])[0] == 0


def test_a_large_file_that_git_does_not_know_is_put_back_where_it_still_is_and_named_where_not(place, labkit):
    (place / "large.bin").write_bytes(bytes((1 << 20) + 1))
    (place / "small.txt").write_text("0.5\r\nlast")
    reading = "weight = random.random() + len(Path('large.bin').read_bytes()) + len(Path('small.txt').read_bytes())"
    (place / "train.py").write_text(SCRIPT.replace("weight = random.random()", reading))
    record = script(place, "3")
    assert [one["path"] for one in record["patch"]["left_out"]] == ["large.bin"]
    assert "without large.bin" in labkit("runs", "show", record["id"])[1]
    (place / "small.txt").unlink()
    made = labkit("runs", "remake", record["id"])
    assert (made[0], told(made)) == (0, "5 values, all alike to the last bit.")
    assert "not recorded" not in made[1]
    (place / "large.bin").unlink()
    code, out, _ = labkit("runs", "remake", record["id"])
    assert code == 1
    assert "not recorded: large.bin (1048577 bytes, SHA-256 " in out
    assert "FileNotFoundError" in out
    nothing_left(place)


def test_a_change_of_line_ends_and_of_bytes_comes_back_as_it_was(place, labkit):
    git(place, "config", "diff.noprefix", "true")
    git(place, "config", "core.autocrlf", "false")
    (place / "data.txt").write_bytes(b"one\r\ntwo\rthree\xff\n")
    (place / "caf\xe9 x.bin").write_bytes(bytes(range(256)))
    reading = "weight = random.random() + sum(sum(p.read_bytes()) for p in sorted(Path('.').glob('[cd]*.*')))"
    (place / "train.py").write_text(SCRIPT.replace("weight = random.random()", reading))
    record = script(place, "3")
    made = labkit("runs", "remake", record["id"])
    assert (made[0], told(made)) == (0, "5 values, all alike to the last bit."), made


def test_a_run_begun_in_a_folder_within_the_course(place, labkit):
    (place / "inner").mkdir()
    (place / "inner" / "train.py").write_text(PLAIN.replace("data.txt", "../data.txt"))
    command = [sys.executable, "train.py", "3"]
    subprocess.run(command, cwd=place / "inner", check=True)
    [record] = kept(place).all()
    assert record["start"]["folder"] == "inner"
    made = labkit("runs", "remake", record["id"])
    assert (made[0], told(made)) == (0, "5 values, all alike to the last bit.")


def test_a_course_within_a_larger_repository(tmp_path, labkit, monkeypatch):
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    (tmp_path / "mine" / "course").mkdir(parents=True)
    inner = course(tmp_path / "mine" / "course")
    (inner / ".git").rename(tmp_path / "unused")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"]):
        git(tmp_path / "mine", *arguments)
    (inner / "train.py").write_text(SCRIPT.replace("0.9", "0.7"))
    monkeypatch.chdir(inner)
    record = script(inner, "3")
    made = labkit("runs", "remake", record["id"])
    assert (made[0], told(made)) == (0, "5 values, all alike to the last bit.")


def test_a_course_without_git_and_a_script_outside_of_any(tmp_path, labkit, monkeypatch):
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    for name in ("unpacked", "alone"):
        (tmp_path / name).mkdir()
        course(tmp_path / name)
        (tmp_path / name / ".git").rename(tmp_path / f"{name} git")
    for name in ("solutions", "labkit"):
        (tmp_path / "alone" / name).rename(tmp_path / f"alone {name}")
    for name in ("unpacked", "alone"):
        monkeypatch.chdir(tmp_path / name)
        record = script(tmp_path / name, "3")
        assert (record["status"], record["revision"], record["patch"]) == ("done", None, None)
        assert record["start"]["script"]
        assert "not recorded: there is no git here" in labkit("runs", "show", "train")[1]
        code, _, err = labkit("runs", "remake", "train")
        assert (code, "was made outside of git: its code is not recorded" in err) == (2, True)


def _group(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_a_remake_that_is_interrupted_leaves_nothing(place):
    sleeps = (
        "import time, os; Path('TOUCH').write_text(str(os.getpid())); os.fork() if N else 0; time.sleep(60)\nseed ="
    )
    sleeps = sleeps.replace("TOUCH", str(place.parent / "begun")).replace("N", "1")
    record = script(place, "3")
    (place / "train.py").write_text(SCRIPT.replace("seed =", sleeps, 1))
    git(place, "commit", "-qam", "sleeps")
    record["revision"] = git(place, "rev-parse", "HEAD").strip()
    kept(place).put(record)
    for number in (signal.SIGINT, signal.SIGTERM):
        (place.parent / "begun").unlink(missing_ok=True)
        call = f"import signal, sys; del sys.path[0]; sys.argv = ['labkit', 'runs', 'remake', {record['id']!r}]\n"
        call += "signal.signal(2, signal.default_int_handler); from labkit.cli import main; main()"
        process = child(place, call)
        while not (place.parent / "begun").exists() or not (place.parent / "begun").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate()
        assert process.returncode != 0
        nothing_left(place)
        group = int((place.parent / "begun").read_text())
        found = [one for one in psutil.process_iter() if _group(one.pid) == group]
        assert [one for one in found if one.status() != psutil.STATUS_ZOMBIE] == []


NOTEBOOK = [
    "%config InlineBackend.rc = {}\nimport random\nfrom labkit.repro import run",
    "%%time\nrandom.seed(3)\nscale = 0.5",
    "names = !echo 0.25\nscale = scale * float(names[0])",
    "raise ValueError('a cell that failed')",
    "with run('cells') as it:\n    for step in range(3):\n        it.log(step, loss=random.random() * scale)",
]


def test_a_notebook_is_made_again_from_its_cells(place, labkit):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    (place / "notebooks").mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in NOTEBOOK])
    client = nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(place / "notebooks")}}, allow_errors=True
    )
    client.execute()
    [record] = kept(place).all()
    assert [cell["source"] for cell in record["cells"]] == NOTEBOOK
    assert (record["start"]["kind"], record["start"]["folder"]) == ("notebook", "notebooks")
    made = labkit("runs", "remake", record["id"])
    assert (made[0], told(made)) == (0, "3 values, all alike to the last bit."), made
    assert json.loads(labkit("runs", "--json")[1])[-1]["remakes"] == record["id"]
