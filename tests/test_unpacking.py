"""The first cell of a notebook that travels: what it unpacks, and each mistake's one sentence."""

import base64
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import parcel, unpacking

PACKAGE = Path(unpacking.__file__).parent

FILES = {
    **{f"labkit/{name}": (PACKAGE / name).read_bytes() for name in ("__init__.py", "hardware.py", "course.py")},
    "labkit/_travelling/json/json/__init__.py": b"raise ImportError('the installed one is to be used')\n",
    "labkit/_travelling/nobody_has/nobody_has/__init__.py": b"x = 1\n",
    "datasets/recorded/a/01.json": b"{}",
}
PACKED = parcel.packed(FILES)
SHA = hashlib.sha256(PACKED).hexdigest()
HEAD = f"{Path(unpacking.__file__).read_text()}\nparcel, sha = {base64.b64encode(PACKED).decode()!r}, {SHA!r}\n"
UNPACK = "folder = unpack(parcel, sha, (3, 10))\n"


def python(code, folder):
    """Run code below the cell's own lines in a bare Python, temporary files in `folder`; its stdout, its last error."""
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "PYTHONPATH": "/some/where"}
    command = [sys.executable, "-S", "-c", HEAD + code]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout, (done.stderr.strip().splitlines() or [""])[-1]


def test_it_is_found_here_and_in_child_processes(tmp_path):
    code = "import labkit, json, nobody_has; print(labkit.__file__, json.dumps({}), nobody_has.x, flush=True)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {code!r}], check=True)"
    out, error = python(f"{UNPACK}{code}\n{child}", tmp_path)
    assert not error
    here, child = (line.split() for line in out.splitlines())
    assert here == child
    assert here[0].startswith(str(tmp_path))
    assert here[1:] == ["{}", "1"]


def test_a_package_that_is_there_is_used_as_it_is(tmp_path):
    out, _ = python(f"{UNPACK}import os; print(os.environ['PYTHONPATH'].replace(folder, 'F'))", tmp_path)
    assert out.strip().split(os.pathsep) == ["F/labkit/_travelling/nobody_has", "F", "/some/where"]


def test_run_again_it_changes_nothing_and_it_leaves_no_folder(tmp_path):
    first = f"{UNPACK}import labkit, sys; first, path = folder, list(sys.path)\n"
    again = f"{first}{UNPACK}print(folder == first, path == sys.path)"
    assert python(again, tmp_path) == ("True True\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("unpack(parcel, sha, (3, 99))", "This notebook needs Python 3.99 or newer."),
        ("unpack(parcel[4:], sha, (3, 10))", "This cell is not as labkit wrote it: export the notebook again."),
        (
            "import sys, types; sys.modules['labkit'] = other = types.ModuleType('labkit'); other.__file__ = '/x.py'\n"
            "unpack(parcel, sha, (3, 10))",
            "Another labkit is loaded, from /x.py: restart the kernel, then run this cell first.",
        ),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path, code, says):
    assert python(code, tmp_path) == ("", f"RuntimeError: {says}")
    assert list(tmp_path.iterdir()) == []
