"""What travels with an exported notebook: labkit, the lesson's checks and recordings, the packages that an image lacks.

The checks hold references, for a check and the cells after an unsolved exercise need them offline, as they do in the
course; they travel packed, those of this lesson alone. No lesson's source travels, so no solved cell.
"""

import ast
import base64
import hashlib
import io
import re
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import labkit
from labkit import unpacking
from labkit.course import CourseError, Lesson

# Pure Python, by the name that one imports: what labkit imports and an image with torch, accelerate, NumPy, matplotlib
# and Jupyter may lack. wadler_lindig is for jaxtyping.
TRAVELLING = {"cloudpickle": "cloudpickle", "jaxtyping": "jaxtyping", "wadler_lindig": "wadler-lindig"}
STAYING = {"build", "cli", "doctor", "execute", "export", "gpu_check", "parcel", "program", "run"}  # no lesson's affair
STAYING |= {"capstone", "grading", "memory_command", "runs_command", "verify", "verify_grid", "verify_real"}

_PACKAGE = Path(__file__).parent
_HEADER = re.compile(r"(?:^# \w+: .+\n)+", re.MULTILINE)
_FILE = re.compile(r"course\.root\(\) / \"(datasets/[^\"]+)\"")  # that a cell of the lesson opens
_WIDTH = 100


def contents(lesson: Lesson) -> dict[str, bytes]:
    """Every file that travels, by its path there. CourseError: a package is not installed here, so cannot travel."""
    kept = {path.relative_to(_PACKAGE.parent).as_posix(): path.read_bytes() for path in _modules(lesson)}
    recorded = sorted((lesson.source.parents[1] / "datasets" / "recorded").glob(f"*/{lesson.name}*.json"))
    kept |= {f"datasets/recorded/{path.parent.name}/{path.name}": path.read_bytes() for path in recorded}
    root = lesson.source.parents[1]
    kept |= {name: (root / name).read_bytes() for name in _FILE.findall(lesson.text())}
    header = _HEADER.match(lesson.text())
    kept[f"solutions/{lesson.source.name}"] = (header.group() if header else "").encode()  # a course has a lesson
    for name in TRAVELLING:
        kept |= {f"{unpacking.PACKAGES}/{name}/{path}": content for path, content in _package(name).items()}
    return kept


def _modules(lesson: Lesson) -> list[Path]:
    """The modules of labkit that travel: those that the lesson or its checks may come to, and its data."""
    wanted, checks = [_PACKAGE / "checks" / "__init__.py", _PACKAGE / "checks" / f"nb{lesson.number}.py"], []
    while wanted:
        path = wanted.pop()
        if path.exists() and path not in checks:
            checks.append(path)
            wanted += [_PACKAGE / "checks" / f"{name}.py" for name in sorted(_checks_imported(path))]
    text = lesson.text()
    reached = _reached([text, *(path.read_text(encoding="utf-8") for path in checks)])
    digits = [_PACKAGE / "data" / "digits.npz"] if re.search(r"import .*\bdigits\b", text) else []
    return [*reached, *checks, *digits]


def _reached(texts: list[str]) -> list[Path]:
    """The modules that these texts name or import, and so on from there; of a package all, for ranks start by name."""
    found: set[Path] = {_PACKAGE / "__init__.py"}
    texts = [*texts, "labkit.unpacking, labkit.progress and labkit.setting, for the first cell"]
    while texts:
        text = texts.pop()
        named = set(re.findall(r"\blabkit\.(\w+)", text))
        for listed in re.findall(r"\bfrom labkit import ([\w, ]+|\([^)]*\))", text):
            named |= {labkit._HOME.get(name, name) for name in re.findall(r"\w+", listed)}
        for name in named - STAYING - {"checks"}:
            one = _PACKAGE / f"{name}.py"
            new = {path for path in (one, *(_PACKAGE / name).rglob("*.py")) if path.is_file()} - found
            found |= new
            texts += [path.read_text(encoding="utf-8") for path in new]
    return sorted(found)


def _checks_imported(path: Path) -> set[str]:
    """The modules of labkit.checks that one of them imports."""
    nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
    whole = {alias.name for node in nodes if node.module == "labkit.checks" for alias in node.names}
    return whole | {node.module.split(".")[2] for node in nodes if (node.module or "").startswith("labkit.checks.")}


def _package(name: str) -> dict[str, bytes]:
    """The sources of an installed package, its licence and the metadata that names its version."""
    try:
        files = distribution(TRAVELLING[name]).files or []
    except PackageNotFoundError as error:
        raise CourseError(f"{TRAVELLING[name]} is not installed, and it travels along: install it with pip.") from error
    mine = [file for file in files if file.parts[0] == name or file.parts[0].endswith(".dist-info")]
    kept = [file for file in mine if file.suffix == ".py" or file.name == "METADATA" or "LICEN" in file.name.upper()]
    return {file.as_posix(): Path(file.locate()).read_bytes() for file in kept}


def packed(files: dict[str, bytes]) -> bytes:
    """The files as a tar.xz: the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


def oldest_python() -> tuple[int, int]:
    """The oldest Python that labkit and all that travels run on."""
    needs = [distribution(TRAVELLING[name]).metadata.get("Requires-Python") or "" for name in TRAVELLING]
    minors = [int(minor) for text in needs for minor in re.findall(r">=\s*3\.(\d+)", text)]
    return 3, max([10, *minors])


def first_cell(lesson: Lesson, command: str, *, solved: bool) -> str:
    """The source of the cell that unpacks it all and says what it found; `command` is what made it."""
    archive = packed(contents(lesson))
    text = base64.b64encode(archive).decode()
    lines = [text[start : start + _WIDTH] for start in range(0, len(text), _WIDTH)]
    digest = hashlib.sha256(archive).hexdigest()
    return "\n".join(
        [
            "#@title Run this cell first: labkit travels in it; it says what it found here",
            f"# Made by `{command}`. It needs no installation and no network.",
            Path(unpacking.__file__).read_text(encoding="utf-8").strip(),
            "",
            "",
            'unpack("""',
            *lines,
            f'""", "{digest}", {oldest_python()})',
            "del unpack, PACKAGES",
            "",
            "import labkit.progress",
            "import labkit.setting",
            "",
            *(["labkit.progress.recording(False)  # these exercises were solved by the course"] if solved else []),
            "labkit.setting.announce()",
        ]
    )
