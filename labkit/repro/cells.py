"""Runs recorded cells one after another in a new IPython shell, as the notebook's kernel did: a remake's child process.

A cell that failed when it was recorded may fail again: the run's own cell decides, by what it records.
"""

import json
import sys
from pathlib import Path


def main(path: str) -> None:
    """Run the cells in a JSON file."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    sys.path.insert(0, "")  # a kernel looks in its own folder first
    for source in json.loads(Path(path).read_text(encoding="utf-8")):
        shell.run_cell(source, store_history=True)


if __name__ == "__main__":
    main(sys.argv[1])
