"""The code of a run as git tells it: the revision, and as a patch what was not committed."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from labkit.repro.places import git
from labkit.repro.scrub import scrubbed

KEPT_BYTES = 1 << 20  # a file that git does not know goes into the patch up to this size; of a larger one its hash
_MOST_BYTES = 16 << 20  # all that is in a patch together
_HASHED_BYTES = 1 << 30  # a still larger file is named, and not read
_CHUNK = 1 << 20
_GIT_S = 120
_HEADING = re.compile(r"^(@@ [^@]+ @@).*$", re.MULTILINE)  # what follows is a line that has not changed
_PLAIN = ("--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "-U0")
_PLAIN += ("--src-prefix=a/", "--dst-prefix=b/")


def code(root: Path) -> tuple[str | None, dict | None]:
    """The revision of a folder's files and the patch on top of it; None and None where git does not know the folder.

    The patch: text (for `git apply --unidiff-zero`), removed and left_out; why, where git did not answer. Files that
    git does not know are in it up to KEPT_BYTES; left_out has path, size and hash of larger ones. removed: how many
    places looked like a secret; such a patch makes another text than what ran.
    """
    asked = ("--show-toplevel", "--git-path", "index", "--git-path", "objects", "HEAD")
    told = (git("rev-parse", *asked, at=root) or "").splitlines()
    if len(told) != 4 or Path(told[0]) != root.resolve() and not git("ls-files", at=root):
        return None, None  # without a commit; or a zip that was unpacked within somebody's repository
    top, index, objects = Path(told[0]), root / told[1], root / told[2]
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
            return told[3], _patch(_Git(top, Path(folder), index, objects), told[3], top)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip().splitlines()
        return told[3], {"text": "", "removed": 0, "left_out": [], "why": (said or [str(error)])[-1]}


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            made.update(chunk)
    return made.hexdigest()


def _patch(run: "_Git", revision: str, top: Path) -> dict:
    """What differs from the revision."""
    kept, left_out = _sorted_out(_changed(run("status", "--porcelain", "-z", "--no-renames", "-uall")), top)
    if not kept:
        return {"text": "", "removed": 0, "left_out": left_out}
    run("update-index", "-z", "--add", "--remove", "--replace", "--stdin", given="\0".join([*kept, ""]))
    text, removed = scrubbed(_HEADING.sub(r"\1", run("diff", "--cached", *_PLAIN, revision)))
    return {"text": text, "removed": removed, "left_out": left_out}


def _changed(status: str) -> Iterator[tuple[str, bool]]:
    """The paths in what `git status` prints, and whether git knows the file."""
    return ((entry[3:], entry[:2] != "??") for entry in status.split("\0") if entry)


def _sorted_out(paths: Iterable[tuple[str, bool]], top: Path) -> tuple[list[str], list[dict]]:
    """The paths whose contents go into the patch, small ones first, and what is left out of it."""
    sized = sorted((_bytes(top / name), name, known) for name, known in paths)
    kept, left_out, total = [], [], 0
    for size, name, known in sized:
        large = total + size > _MOST_BYTES or size > KEPT_BYTES and not known
        if large or name.endswith("/") or not _readable(top / name):
            left_out.append({"path": name, "bytes": size, "sha256": _hash(top / name, size)})
        else:
            kept.append(name)
            total += size
    return kept, left_out


def _bytes(path: Path) -> int:
    """The size of a file; 0 of one that is gone."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _readable(path: Path) -> bool:
    """Whether git can read it; what is gone, or a link to nowhere, it can."""
    return path.is_symlink() or not path.exists() or os.access(path, os.R_OK)


def _hash(path: Path, size: int) -> str:
    """The hash of a file; nothing of a folder, of one that cannot be read, and of a very large one."""
    try:
        return file_digest(path) if size <= _HASHED_BYTES else ""
    except OSError:
        return ""


class _Git:
    """git with an index and a store of its own, so that looking at a repository leaves nothing in it."""

    def __init__(self, top: Path, folder: Path, index: Path, objects: Path) -> None:
        own = folder / "objects"
        own.mkdir()
        if index.exists():
            shutil.copy2(index, folder / "index")  # with its time, by which git sees what may have changed since
        self._command = ("git", "-C", str(top))
        self._environment = os.environ | {"GIT_INDEX_FILE": str(folder / "index"), "GIT_OPTIONAL_LOCKS": "0"}
        self._environment |= {"GIT_OBJECT_DIRECTORY": str(own), "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects)}

    def __call__(self, *arguments: str, given: str = "") -> str:
        """What git prints, every byte of it."""
        done = subprocess.run(
            (*self._command, *arguments),
            env=self._environment,
            input=given.encode(errors="surrogateescape"),
            capture_output=True,
            timeout=_GIT_S,
            check=True,
        )
        return done.stdout.decode(errors="surrogateescape")
