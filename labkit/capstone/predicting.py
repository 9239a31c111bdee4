"""Asks a submission's `predict` for the labels of pictures: a child process of the capstone, without labels or data."""

import importlib.util
import sys
from pathlib import Path

import numpy as np


def main(script: str, out: str, pictures: str, answer: str) -> None:
    """Load the script as a module, call predict(out, pixels), write what it says."""
    path = Path(script)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("submission", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    np.save(answer, np.asarray(module.predict(Path(out), np.load(pictures))))


if __name__ == "__main__":
    main(*sys.argv[1:])
