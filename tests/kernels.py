"""A notebook's kernel for the tests of labkit.ranks."""

import os
import re
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

from labkit import hardware

SETUP = """
import os, resource, signal, sys, threading, time
import torch, torch.distributed as dist
from labkit.ranks import run_ranks
torch.set_num_threads(2); torch.randn(700, 700) @ torch.randn(700, 700)  # OpenMP's threads run in this kernel
def faulty(fault, rank=1):
    if dist.get_rank() == rank:
        fault()
    dist.all_reduce(torch.ones(4))
"""


class Kernel:
    """A kernel with its own temporary folder, and what it leaves behind."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        environ = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": hardware.python_path()} | variables
        environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "torchinductor"))  # is kept
        self.manager, self.client = start_new_kernel(env=environ)
        self.pid = self.manager.provisioner.process.pid
        self.run(SETUP)

    def send(self, code: str) -> str:
        """Start a cell; its message's id."""
        return self.client.execute(textwrap.dedent(code))

    def wait(self, sent: str, *, on_text=lambda _text: None, timeout_s: float = 60.0) -> tuple[str, str]:
        """What the cell printed, and the text of its error."""
        text, error, until_s = "", "", time.monotonic() + timeout_s
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, until_s - time.monotonic()))
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                text += content["text"]
                on_text(text)
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return text, re.sub(r"\x1b\[[\d;]*m", "", error)

    def run(self, code: str, **how: object) -> tuple[str, str]:
        return self.wait(self.send(code), **how)

    def ranks(self) -> list[psutil.Process]:
        """The processes that this kernel has started, but for the server that ranks are forked from and its tracker."""
        all_of_them = psutil.Process(self.pid).children(recursive=True)
        servers = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
        return [each for each in all_of_them if not _is_server(each, servers) or _is_server(each.parent(), servers)]

    def left(self) -> dict:
        """What a launch must not leave: processes, files, shared memory, ports."""
        return {
            "ranks": [each.pid for each in self.ranks()],
            "files": sorted(path.name for path in self.folder.iterdir()),
            "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith("torch_")),
            "descriptors": len(os.listdir(f"/proc/{self.pid}/fd")),
        }

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _is_server(process, servers) -> bool:
    try:
        return any(name in " ".join(process.cmdline()) for name in servers)
    except (psutil.NoSuchProcess, AttributeError):
        return False
