"""How labkit travels in a notebook: `unpack` stands in the first cell of an exported one, with its parcel behind it.

It runs where labkit is not installed and nothing can be downloaded, so it leans on Python's own library alone and
imports what it needs inside.
"""

PACKAGES = "labkit/_travelling"  # inside labkit: what is in there is nobody's own code when lines are named


def unpack(parcel: str, sha256: str, python: tuple[int, int]) -> str:
    """Unpack a parcel (base64 of a tar.xz) into a folder of its own and have Python find it; returns the folder.

    Packages that travel along are used where the machine lacks them. Child processes find all of it too. The folder
    goes when the kernel ends. RuntimeError, in a sentence: a Python older than `python`, another labkit already loaded,
    a damaged parcel.
    """
    import atexit
    import base64
    import hashlib
    import importlib.util
    import io
    import os
    import shutil
    import sys
    import tarfile
    import tempfile

    mark = f"labkit-{sha256[:12]}-"
    loaded = getattr(sys.modules.get("labkit"), "__file__", None) or ""
    if mark in loaded:
        return os.path.dirname(os.path.dirname(loaded))
    if loaded:
        raise RuntimeError(f"Another labkit is loaded, from {loaded}: restart the kernel, then run this cell first.")
    if sys.version_info < python:
        raise RuntimeError(f"This notebook needs Python {'.'.join(map(str, python))} or newer.")
    packed = base64.b64decode(parcel)
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise RuntimeError("This cell is not as labkit wrote it: export the notebook again.")
    folder = tempfile.mkdtemp(prefix=mark)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            path = os.path.join(folder, *member.name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(archive.extractfile(member).read())
    packages = os.path.join(folder, *PACKAGES.split("/"))
    missing = [name for name in sorted(os.listdir(packages)) if importlib.util.find_spec(name) is None]
    places = [os.path.join(packages, name) for name in missing]
    sys.path[:0] = [folder, *places]
    from labkit.hardware import python_path

    os.environ["PYTHONPATH"] = os.pathsep.join([*places, python_path()])
    # Without a network nobody knows the name of 127.0.0.1, and torch says so in every rank, each time.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return folder
