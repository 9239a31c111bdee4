"""An environment as bare as a stranger's: torch, accelerate, NumPy, matplotlib, ipykernel, ipywidgets and no labkit.

`environment` makes it from links into the one that runs the tests, so it takes a second and downloads nothing. As a
program, this file executes a notebook there: `python bare.py PYTHON NOTEBOOK BUDGET` prints its code cells as JSON.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SIX = ("torch", "accelerate", "numpy", "matplotlib", "ipykernel", "ipywidgets")
# Loopback up in a network namespace of its own, where there is no other interface; then the command.
_LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
os.execv(sys.argv[1], sys.argv[1:])
"""


def closure(names=SIX):
    """The distributions of these names and of all that they need here."""
    found, wanted = {}, list(names)
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # needed on another system
            continue
        wanted += [re.match(r"[\w.-]+", line).group() for line in found[name].requires or [] if "extra ==" not in line]
    return found


def environment(folder):
    """A virtual environment in `folder` with the six and what they need, by links; returns its Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    python = Path(folder, "bin", "python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    for made in closure().values():
        for part in {file.parts[0] for file in made.files} - {"..", "__pycache__"}:
            if not (site / part).exists():
                (site / part).symlink_to(Path(made.locate_file(part)))
    return python


def no_network():
    """The start of a command that cuts it off the network, or None where this user may not do so."""
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", _LOOPBACK]
    try:
        done = subprocess.run([*command, sys.executable, "-c", ""], capture_output=True, timeout=60, check=False)
    except OSError:
        return None
    return command if done.returncode == 0 else None


def run(python, notebook, *, budget="smoke", cut_off=()):
    """Execute a notebook in a bare environment; returns its code cells: source, outputs, seconds."""
    command = [*cut_off, sys.executable, __file__, str(python), str(notebook), budget]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _execute(python, notebook, budget):
    """The code cells of a notebook, executed by a kernel of another Python, in a folder and a home of their own."""
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class Other(KernelSpecManager):
        def get_kernel_spec(self, kernel_name):
            argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return self.kernel_spec_class(argv=argv, display_name=kernel_name, language="python")

    client = NotebookClient(
        nbformat.read(notebook, as_version=4),
        km=AsyncKernelManager(kernel_name="bare", kernel_spec_manager=Other()),
        timeout=None,
    )
    cells = []
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "LABKIT_BUDGET": budget, "LABKIT_STRICT": "1"}
        env |= {"TMPDIR": home, "PYTHONNOUSERSITE": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1", "LANG": "C.UTF-8"}
        with client.setup_kernel(cwd=home, env=env, cleanup_kc=True):
            for place, cell in enumerate(client.nb.cells):
                begin = time.perf_counter()
                client.execute_cell(cell, place)
                if cell.cell_type == "code":
                    taken = time.perf_counter() - begin
                    cells.append({"source": cell.source, "outputs": cell.outputs, "seconds": taken})
    return cells


if __name__ == "__main__":
    print(json.dumps(_execute(*sys.argv[1:])))
