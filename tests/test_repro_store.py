"""What was recorded stays recorded: processes at once, kills, full disks, folders that may only be read, broken files.

Nothing here imports torch in the processes that it starts, which keeps them quick.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading

import pytest
from recorded import child, course, kept

from labkit.course import CourseError
from labkit.drafts import DRAFT
from labkit.repro import journal, run, store

SEVERAL = """
import sys
from labkit.repro import run
for k in range(3):
    with run(f"{sys.argv[1]} {k}") as it:
        for step in range(20):
            it.log(step, loss=step / 3)
"""

KILLED = """
import json, os, random, sys
from pathlib import Path
from labkit.repro import capture, run, store
real = capture.captured
told = real(None, {}, ())
capture.captured = lambda *_: json.loads(json.dumps(told))
kept, sure = store.Store(Path("runs")), []

def body(pipe):
    with run("killed") as it:
        os.write(pipe, json.dumps([it.id, "begun"]).encode() + b"\\n")
        for step in range(4):
            it.log(step, loss=step / 3)
            os.write(pipe, json.dumps([it.id, step]).encode() + b"\\n")

def child(at):
    count = 0
    def profile(_frame, _event, _argument):
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), 9)
    end, pipe = os.pipe()
    pid = os.fork()
    if not pid:
        sys.setprofile(profile)
        body(pipe)
        sys.setprofile(None)
        os.write(pipe, json.dumps([count, "count"]).encode() + b"\\n")
        os._exit(0)
    os.close(pipe)
    lines = [json.loads(line) for line in os.fdopen(end)]
    return lines, os.waitpid(pid, 0)[1]

(*_, (total, _)), _ = child(0)
for at in sorted(random.Random(7).sample(range(1, total), 20)):
    lines, status = child(at)
    assert status == 9
    ids = {one for one, _ in lines}
    sure += lines
    with run("next") as it:
        it.log(0, a=1)
    every = {one["id"]: one for one in kept.all()}
    assert ids <= every.keys() and every[it.id]["status"] == "done"
    for one in every.values():
        beside = json.loads(Path("runs", one["id"] + ".json").read_text())
        rows = kept.metrics(one["id"])
        assert beside.pop("metrics") == rows and beside == one
        wanted = [step for run, step in sure if run == one["id"] and step != "begun"]
        assert [row[0] for row in rows][:len(wanted)] == wanted, (at, rows, wanted)
print(total)
"""

FULL = """
import json, os, sys, warnings
from pathlib import Path
from labkit.course import CourseError
from labkit.repro import run, store

def fill(): FILL
def free(): FREE
kept, seen = store.Store(Path("runs")), []
with run("first") as it:
    it.log(0, loss=0.5)
fill()
try:
    with run("second"):
        seen.append("computed")
except CourseError as error:
    seen.append("refused" if "LABKIT_RUNS" in str(error) else str(error))
free()
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    with run("third") as it:
        for step in range(3000):
            if step == 100:
                fill()
            if step == 2900:
                free()
            it.log(step, loss=1 / (step + 1))
seen += [str(one.message).partition(" ")[2].partition(" in ")[0].partition(" ")[2] for one in warned]
found = [(one["name"], one["status"], len(kept.metrics(one["id"]))) for one in kept.all()]
right = [row[2] for row in kept.metrics(it.id)] == [1 / (step + 1) for step in range(3000)]
print(json.dumps([seen, found, right, sorted(p.suffix or p.name for p in Path("runs").glob("*.*"))]))
"""
TMPFS = FULL.replace(
    "FILL",
    """
    with open("filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            pass
""",
).replace("FREE", "os.unlink('filler')")
LIMIT = FULL.replace("FILL", "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, -1))").replace(
    "FREE", "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))"
).replace("import json", "import resource, json", 1)  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A course under git with a script, and the current folder inside it."""
    monkeypatch.chdir(course(tmp_path))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return tmp_path


def finished(process):
    """What a process printed; its own words where it failed."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.mark.parametrize("n", [2, 8])
def test_processes_that_write_at_once_lose_nothing(place, n):
    code = SEVERAL.replace("sys.argv[1]", "os.getpid()").replace("import sys", "import os")
    for process in [child(place, code) for _ in range(n)]:
        finished(process)
    every = kept(place).all()
    assert [one["status"] for one in every] == ["done"] * (3 * n)
    assert len({one["name"] for one in every}) == 3 * n
    with sqlite3.connect(place / "runs" / "runs.sqlite") as db:  # and SQLite itself, without the help of JSON
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (3 * n,)
        assert db.execute("SELECT count(*) FROM metrics").fetchone() == (60 * n,)
    db.close()
    for one in every:
        assert kept(place).metrics(one["id"]) == [[step, "loss", step / 3] for step in range(20)]


def test_kills_at_twenty_moments_lose_nothing_that_was_said_to_be_written(place):
    total = int(finished(child(place, KILLED)))
    assert total > 300, "the moments lie within begin, log and end"
    every = kept(place).all()
    assert {one["status"] for one in every} == {"done", "ended without a word"}
    assert not list(place.glob("runs/*.jsonl"))


def _in_a_small_file_system(place, code):
    """A process in a mount namespace of its own, whose current folder is a file system of one MiB."""
    inside = f'mount -t tmpfs -o size=1m none {place}/small && cd {place}/small && exec {sys.executable} -c "$CODE"'
    (place / "small").mkdir()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside]
    return subprocess.run(command, env=os.environ | {"CODE": code}, capture_output=True, text=True, check=False)


def _may_mount():
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="needs the right to mount a small file system: root on Linux")
def test_a_disk_that_is_full(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    done = _in_a_small_file_system(tmp_path, TMPFS)
    assert done.returncode == 0, done.stderr
    _full(json.loads(done.stdout))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for files")
def test_a_limit_for_files(place):
    _full(json.loads(finished(child(place, LIMIT))))


def _full(told):
    """The second run is refused and leaves nothing, the third says once that it waits, and is whole in the end."""
    seen, found, right, suffixes = told
    assert seen == ["refused", "is not recorded whole"]
    assert found == [["first", "done", 1], ["third", "done", 3000]]
    assert right
    assert suffixes.count(".json") == 2
    assert not [each for each in suffixes if each == ".jsonl" or each.startswith(DRAFT)]


READ_ONLY = """
import sys
from labkit.course import CourseError
from labkit.repro import places, run, store
kept = store.Store(places.runs_folder())
[one] = kept.all()
print(one["name"], kept.metrics(one["id"]))
try:
    with run("refused"):
        print("computed")
except CourseError as error:
    print(error)
with run("casual", casual=True) as it:
    it.log(0, loss=1)
    it.note(a=1)
    print("computed", repr(it.id))
"""


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0 and not _may_mount(), reason="root needs to mount a folder")
def test_a_folder_that_may_only_be_read_is_read_and_a_lesson_goes_on_without_a_record(tmp_path, monkeypatch):
    """Permissions do not keep root from writing: there the folder is mounted anew, to be read only."""
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    with run("kept") as it:
        it.log(0, loss=0.5)
    command = [sys.executable, "-B", "-c", READ_ONLY]
    if os.geteuid() == 0:
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && cd "$0" && exec "$@"'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(tmp_path), *command]
    else:
        for path in (*tmp_path.rglob("*"), tmp_path):
            path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    first, refused, computed = done.stdout.splitlines()
    assert first == "kept [[0, 'loss', 0.5]]"
    assert refused.startswith("No record can be written to")
    assert computed == "computed ''"
    assert done.stderr.startswith("No record can be written to")


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_computed(place):
    (place / "runs").write_text("a file")
    with pytest.raises(CourseError, match="LABKIT_RUNS names another folder"), run("mine"):
        pytest.fail("was computed")


def test_a_broken_file_is_made_anew_from_what_stands_beside_it(place):
    with run("first") as it:
        it.log(0, loss=0.1)
    (place / "runs" / "other.json").write_text("[]")
    for path in place.glob("runs/runs.sqlite*"):
        path.write_bytes(b"not a database" * 100)
    with run("second"):
        pass
    assert [one["name"] for one in kept(place).all()] == ["first", "second"]
    assert kept(place).metrics(kept(place).find("first")["id"]) == [[0, "loss", 0.1]]
    assert list(place.glob("runs/broken-*"))
    assert not (place / "runs" / "other.jsonl").exists()


def test_a_file_that_breaks_while_another_process_has_it_open(place):
    with run("first") as it:
        it.log(0, loss=0.1)
    code = "import sqlite3; db = sqlite3.connect('runs/runs.sqlite'); db.execute('BEGIN IMMEDIATE'); "
    code += "print(len(db.execute('SELECT * FROM runs').fetchall()), flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], cwd=place, stdin=-1, stdout=-1, text=True)
    assert other.stdout.readline() == "1\n"
    with (place / "runs" / "runs.sqlite").open("r+b") as file:
        file.write(b"not a database" * 1000)
    with run("second") as it:
        it.log(0, loss=0.2)
    other.communicate("\n")
    with run("third"):
        pass
    assert [(one["name"], one["status"]) for one in kept(place).all()] == [
        ("first", "done"),
        ("second", "done"),
        ("third", "done"),
    ]
    assert kept(place).metrics(kept(place).find("second")["id"]) == [[0, "loss", 0.2]]


def test_a_file_that_is_gone(place):
    with run("first") as it:
        it.log(0, loss=0.1)
        for path in place.glob("runs/runs.sqlite*"):
            path.unlink()
    for path in place.glob("runs/runs.sqlite*"):
        path.unlink()
    assert [one["name"] for one in kept(place).all()] == ["first"]
    assert kept(place).metrics(it.id) == [[0, "loss", 0.1]]


def test_a_run_that_is_going_on_is_seen_with_what_it_has_logged(place):
    with run("mine") as it:
        it.log(0, loss=0.1)
        it.note(said="a")
        [record] = kept(place).all()
        assert (record["status"], kept(place).metrics(it.id)) == ("running", [[0, "loss", 0.1]])
        it.log(1, loss=0.2)
    assert len(kept(place).metrics(it.id)) == 2


def test_a_process_that_was_killed_leaves_what_it_had_logged(place):
    code = "import os\nfrom labkit.repro import run\nwith run('k') as it:\n  it.log(0, a=1)\n  it.note(b='c')\n"
    child(place, code + "  os.kill(os.getpid(), 9)").communicate()
    [record] = kept(place).all()
    assert (record["status"], record["results"]) == ("ended without a word", {"b": "c"})
    assert kept(place).metrics(record["id"]) == [[0, "a", 1.0]]
    assert json.loads((place / "runs" / f"{record['id']}.json").read_text())["metrics"] == [[0, "a", 1.0]]


FORKED = """
import os
from labkit.repro import run
with run("forked") as it:
    it.log(0, a=1)
    children = []
    for k in range(3):
        children.append(os.fork())
        if not children[-1]:
            for step in range(50):
                it.log(step, child=k)
            if k == 1:
                break  # leaves the block, as the parent does
            os._exit(0)
    if 0 not in children:
        for one in children:
            os.waitpid(one, 0)
        it.log(1, a=2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_in_the_block_log_too_and_end_nothing(place):
    finished(child(place, FORKED))
    [record] = kept(place).all()
    rows = kept(place).metrics(record["id"])
    assert record["status"] == "done"
    assert [row for row in rows if row[1] == "a"] == [[0, "a", 1.0], [1, "a", 2.0]]
    for k in range(3):
        assert [row[0] for row in rows if row[1:] == ["child", k]] == list(range(50))


def test_threads_that_log_at_once(place):
    with run("threads") as it:
        work = [threading.Thread(target=_log_often, args=(it, f"t{k}")) for k in range(8)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    rows = kept(place).metrics(it.id)
    for k in range(8):
        assert [row[0] for row in rows if row[1] == f"t{k}"] == list(range(300))


def _log_often(it, name):
    for step in range(300):
        it.log(step, **{name: step})


LONG = """
import os
from labkit.repro import run
real, sizes = os.write, []
def write(file, text):
    if text.startswith(b"["):
        sizes.append(len(text))
    return real(file, text)
os.write = write
with run("long") as it:
    for step in range(100_000):
        it.log(step, loss=1 / (step + 1))
print(len(sizes), max(sizes) < 100)
"""


def test_a_run_of_a_hundred_thousand_calls(place):
    """Each call writes its own line once, and nothing of what came before it."""
    assert finished(child(place, LONG)) == "100000 True\n"
    [record] = kept(place).all()
    beside = json.loads((place / "runs" / f"{record['id']}.json").read_text())
    assert beside["metrics"][-1] == [99_999, "loss", 1e-5]
    assert beside["metrics"] == kept(place).metrics(record["id"])


def test_casual_records_of_a_name_do_not_pile_up(place):
    with run("asked for"):
        pass
    for _ in range(5):
        with run("lesson", casual=True) as it:
            it.log(0, a=1)
    assert [one["name"] for one in kept(place).all()] == ["asked for", *["lesson"] * 3]
    assert len(list(place.glob("runs/*.json"))) == 4
    assert kept(place).find("lesson")["id"] == it.id


def test_a_line_that_a_full_disk_cut_off_is_written_again_and_not_twice(tmp_path, monkeypatch):
    path, real = tmp_path / "j.jsonl", os.write
    mine = journal.Journal(path)
    monkeypatch.setattr(journal.os, "write", lambda file, text: real(file, text[:20]))
    with pytest.raises(OSError, match="space"):
        mine.add([[0, "a", 1.0], [1, "a", 2.0]])
    monkeypatch.undo()
    mine.add([[2, "a", 3.0]])
    assert store.entries(mine.close()) == store.read_journal(path)
    assert store.read_journal(path)[0] == [[0, "a", 1.0], [1, "a", 2.0], [2, "a", 3.0]]


def test_what_is_logged_after_the_block_goes_into_no_other_file(place):
    with run("ended") as it:
        it.log(0, loss=1.0)
    with (place / "weights").open("wb", buffering=0) as file:
        with pytest.warns(RuntimeWarning, match="not recorded whole"):
            it.log(test=0.5)
        file.write(b"weights")
    assert (place / "weights").read_bytes() == b"weights"


def test_a_file_that_is_deleted_while_a_run_appends_to_it_loses_nothing(place):
    with run("mine") as it:
        it.log(0, loss=0.5)
        kept(place).journal(it.id).unlink()
        it.log(1, loss=0.25)
    assert kept(place).metrics(it.id) == [[0, "loss", 0.5], [1, "loss", 0.25]]


def test_a_lesson_s_run_that_goes_on_is_not_tidied_away(place):
    with run("lesson", casual=True) as slow:
        slow.log(0, loss=0.5)
        for _ in range(3):
            with run("lesson", casual=True):
                pass
    assert kept(place).metrics(slow.id) == [[0, "loss", 0.5]]
    assert len(kept(place).all()) == 3


def test_a_folder_is_made_by_several_at_once(tmp_path):
    for n in range(50):
        gate, failed = threading.Barrier(4), []
        work = [threading.Thread(target=_make, args=(tmp_path / str(n), gate, failed)) for _ in range(4)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        assert failed == []


def _make(folder, gate, failed):
    gate.wait()
    try:
        store.Store(folder)._make_folder()
    except OSError as error:
        failed.append(error)


def test_a_name_is_found_before_a_part_of_an_id(place):
    for name, run_id in (("other", "20260101-000000-000a000"), ("a", "20260101-000001-0000000")):
        kept(place).put({"id": run_id, "name": name, "status": "done", "results": {}})
    assert kept(place).find("a")["name"] == "a"
    assert kept(place).find("000a")["name"] == "other"
