"""A lesson as one notebook that runs where labkit is not installed and nothing can be downloaded: Kaggle, Colab."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from labkit import build, parcel
from labkit.course import CourseError, Lesson

# "The kernel source must be less than 1 megabytes in size.", Kaggle's answer to a larger one, 2021-05-24:
# https://github.com/JovianHQ/kernel-run/issues/2
KAGGLE_BYTES = 1_000_000
NOBODY = "YOUR_KAGGLE_NAME"
_METADATA = "kernel-metadata.json"
_HIDDEN = {"_kg_hide-input": True, "cellView": "form", "jupyter": {"source_hidden": True}}  # Kaggle, Colab, JupyterLab


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a notebook travels to: what its metadata asks of that place, and how to bring it there."""

    name: str
    metadata: dict
    bring: str


PLACES = {
    "kaggle": Place(
        name="kaggle",
        metadata={
            "kaggle": {
                "accelerator": "nvidiaTeslaT4",
                "dataSources": [],
                "isGpuEnabled": True,
                "isInternetEnabled": False,
                "language": "python",
                "sourceType": "notebook",
            }
        },
        bring="kaggle kernels push -p {folder}",
    ),
    "colab": Place(
        name="colab",
        metadata={"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}},
        bring="open https://colab.research.google.com, File, Upload notebook",
    ),
}


def export(
    lesson: Lesson, place: Place, *, solved: bool = False, folder: Path | None = None, user: str | None = None
) -> list[str]:
    """Write the folder for a place, the learner's notebook or the solved one, and say what happened, a line each.

    folder: by default `kaggle_12_ddp` in the current one. user: whose notebook it will be on Kaggle; by default whoever
    an earlier export into the folder named. CourseError: a folder that holds other things or an edited notebook, a name
    that is none of Kaggle's, a notebook too large for Kaggle.
    """
    stem = lesson.name + "_solved" * solved
    folder = Path(f"{place.name}_{stem}") if folder is None else folder
    notebook = folder / f"{stem}.ipynb"
    texts = {notebook: notebook_text(lesson, place, solved=solved)}
    _refuse(folder, {notebook.name, *([_METADATA] if place.name == "kaggle" else [])})
    lines = []
    if place.name == "kaggle":
        owner = _owner(folder / _METADATA) if user is None else user
        texts[folder / _METADATA] = kernel_metadata(lesson, notebook.name, owner, solved=solved)
        if owner == NOBODY:
            lines = [f"Put your name on Kaggle in place of {NOBODY} in {folder / _METADATA}, or say --user NAME."]
    for path, text in texts.items():
        build.write(path, text)
    size, then = f"{len(texts[notebook]) / 1000:.0f} kB", place.bring.format(folder=shlex.quote(str(folder)))
    return [f"wrote {notebook} ({size})", *(f"wrote {path}" for path in [*texts][1:]), *lines, f"Then: {then}"]


def notebook_text(lesson: Lesson, place: Place, *, solved: bool) -> str:
    """The notebook that travels, as JSON in ASCII, for Kaggle's own tool reads it in the system's encoding.

    CourseError: larger than Kaggle takes.
    """
    cells = build.convert(lesson)
    notebook = json.loads(build.solution_notebook(cells) if solved else build.student_notebook(cells))
    command = f"labkit {place.name} {lesson.number}{' --solution' * solved}"
    source = parcel.first_cell(lesson, command, solved=solved)
    first = {"cell_type": "code", "execution_count": None, "id": build.digest(source)[:12], "metadata": _HIDDEN}
    notebook["cells"].insert(0, first | {"outputs": [], "source": source.splitlines(keepends=True)})
    notebook["metadata"] |= place.metadata
    notebook["metadata"]["labkit"] = {"cells_sha256": build.cells_sha256(notebook["cells"])}
    text = json.dumps(notebook, sort_keys=True, indent=1) + "\n"
    if place.name == "kaggle" and len(text) >= KAGGLE_BYTES:
        raise CourseError(f"The notebook comes to {len(text) / 1e6:.2f} MB, and Kaggle takes less than 1 MB.")
    return text


def kernel_metadata(lesson: Lesson, code_file: str, user: str, *, solved: bool) -> str:
    """What `kaggle kernels push` reads. NvidiaTeslaT4 is the pair: the editor calls it GPU T4 x2.

    Source: https://github.com/Kaggle/kaggle-cli, docs/kernels_metadata.md, and its pull request 1198 (2026-09-17).
    CourseError: a name that is no user's of Kaggle.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", user):
        raise CourseError(f"{user!r} is no name of a Kaggle user: it is the part after kaggle.com/ on your own page.")
    words = ["labkit", lesson.number, *lesson.topic.split("_"), *["solved"] * solved]  # the slug is the title's
    made = {
        "id": f"{user}/{'-'.join(words)}",
        "title": " ".join(words),
        "code_file": code_file,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": True,
        "enable_tpu": False,
        "enable_internet": False,
        "machine_shape": "NvidiaTeslaT4",
        "dataset_sources": [],
        "competition_sources": [],
        "kernel_sources": [],
        "model_sources": [],
    }
    return json.dumps(made, indent=2) + "\n"


def _owner(path: Path) -> str:
    """The user whom an earlier export, or an edit of it, named in the metadata; NOBODY where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["id"].split("/")[0] or NOBODY
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return NOBODY


def _refuse(folder: Path, mine: set[str]) -> None:
    """CourseError where writing into the folder would mix with other things or lose someone's work."""
    if folder.exists() and not folder.is_dir():
        raise CourseError(f"{folder} is a file: give --out a folder.")
    there = {path.name for path in folder.iterdir()} - {".ipynb_checkpoints"} if folder.exists() else set()
    if others := sorted(there - mine):
        raise CourseError(f"{folder} holds other things ({', '.join(others[:3])}): give --out a new or empty folder.")
    edited = [name for name in sorted(there) if name.endswith(".ipynb") and build.stored(folder / name).edited]
    if edited:
        raise CourseError(f"{folder / edited[0]} was edited by hand: move it away, or give --out another folder.")
