"""What the scripts that record sweeps share: runs that an interrupted recording need not make again, and the command.

A finished run is kept in the cache folder, under a hash of its settings, of its data and of the code it came from.
"""

import argparse
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import ModuleType

import torch

from labkit import hardware, repro


def rounded(value: object) -> object:
    """`value` with four significant digits in every number, and None for what is not finite, as JSON wants it."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


class Kept:
    """Called with a function and its settings: what the function returns, now or in an earlier call of the script.

    code: the modules that a run's figures depend on. data: from the function to the hashes of the data that it uses.
    """

    def __init__(self, lesson: str, code: Iterable[ModuleType], data: Callable[[Callable], list[str]]) -> None:
        self.lesson, self.code, self.data = lesson, tuple(code), data

    @cached_property
    def folder(self) -> Path:
        """Where finished runs wait for the rest."""
        parts = [*(Path(module.__file__).read_bytes() for module in self.code), torch.__version__.encode()]
        return hardware.cache_folder() / f"recording-{self.lesson}-{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}"

    def __call__(self, run: Callable[..., dict], *settings: object) -> dict:
        """The figures of `run(*settings)`, with its settings and the seconds of one core beside them."""
        held = [asdict(each) if hasattr(each, "__dataclass_fields__") else each for each in settings]
        name = hashlib.sha256(json.dumps([self.data(run), held]).encode()).hexdigest()[:16]
        path = self.folder / f"{run.__name__}-{name}.json"
        if not path.exists():
            start = time.process_time()
            found = rounded({"settings": held, **run(*settings), "cpu_s": time.process_time() - start})
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".tmp").write_text(json.dumps(found))
            path.with_suffix(".tmp").replace(path)
            print(f"{found['cpu_s']:6.1f} s  {run.__name__} {' '.join(map(str, settings))}", flush=True)
        return json.loads(path.read_text())


def main(
    about: str, kept: Kept, record: Callable[[bool], dict], *, config: object, data: Callable[[], Mapping], seeds: tuple
) -> None:
    """The command: run what is missing on one core, then write the recording.

    about: the script's docstring. record: every part's results; called with True, it only tries whether each works.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="try every part and record nothing")
    parser.add_argument("--fresh", action="store_true", help="forget the runs of an interrupted recording")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.fresh:
        shutil.rmtree(kept.folder, ignore_errors=True)
    results = rounded(record(chosen.quick))
    if chosen.quick:
        print(f"Every part ran; {len(json.dumps(results)):,} bytes, not recorded.")
        return
    made = repro.manifest(config=config, data=data(), seeds=seeds)
    print(repro.write_recording(kept.lesson, results, made))
