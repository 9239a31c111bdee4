"""A tiny task for the capstone's tests, and scripts that do it: one that is slow, honest ones, and cheats."""

import dataclasses
import textwrap

import numpy as np

from labkit.capstone.changes import changes
from labkit.capstone.contest import Contest
from labkit.capstone.recorded import Record
from labkit.capstone.running import Outcome
from labkit.capstone.task import Pictures, Task

_HEAD = """
import argparse, os, random, subprocess, sys, time
from pathlib import Path
import numpy as np

def read(path):
    with np.load(path) as file:
        return file["pixels"].astype(float), file["labels"]

def fit(x, y):
    return np.stack([x[y == k].mean(0) if (y == k).any() else x.mean(0) for k in range(8)])

def predict(out, pixels):
    centres = np.load(Path(out) / "model.npy")
    return np.array([((centres - one) ** 2).sum((1, 2)).argmin() for one in pixels.astype(float)])

parser = argparse.ArgumentParser()
for name in ("--data", "--out"):
    parser.add_argument(name, type=Path)
parser.add_argument("--target", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--changes", default="")

def main():
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    x, y = read(args.data / "train.npz")
    vx, vy = read(args.data / "validation.npz")
"""
_TAIL = '\nif __name__ == "__main__":\n    main()\n'
_SAVE = 'np.save(args.out / "model.npy", fit(x, y))\n'


def script(body: str, more: str = "") -> str:
    """A script whose main() does this after it has read its data; more: code behind it."""
    return _HEAD + textwrap.indent(textwrap.dedent(body), "    ") + more + _TAIL


SLOW = script("until = time.process_time() + 0.8\nwhile time.process_time() < until:\n    pass\n" + _SAVE)
FAST = script(_SAVE)
RECORDED = script(
    'from labkit.repro import run\nwith run("toy", seeds=(args.seed,), data={"train": args.data}) as it:\n'
    "    for step in range(3):\n        it.log(step, loss=fit(x, y)[0].sum() + step)\n" + _SAVE
)
UNSEEDED = RECORDED.replace("sum() + step", "sum() + random.random()")
CHEATS = {
    "writes results and trains nothing": script(
        '(args.out / "result.json").write_text(\'{"accuracy": 1.0}\')\nnp.save(args.out / "model.npy", x[:8])\n'
    ),
    "trains on validation too": script(
        "x, y = np.concatenate([x, *[vx] * 9]), np.concatenate([y, *[vy] * 9])\n"
        'np.savez(args.out / "all.npz", x=x, y=y)\n' + _SAVE,
        more='\ndef predict(out, pixels):\n    with np.load(Path(out) / "all.npz") as file:\n'
        '        x, y = file["x"], file["y"]\n'
        "    return np.array([y[((x - one) ** 2).sum((1, 2)).argmin()] for one in pixels.astype(float)])\n",
    ),
    "keeps a model between runs": script(
        'kept = Path("KEPT")\nif not kept.exists():\n    np.save(kept, fit(x, y))\n'
        'np.save(args.out / "model.npy", np.load(kept))\n'
    ),
    "slows the baseline": script(
        'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)\n' + _SAVE
    ),
    "trains when nobody times": script(
        _SAVE,
        more="\nonce = predict\n\ndef predict(out, pixels):\n    until = time.process_time() + 5\n"
        "    while time.process_time() < until:\n        pass\n    return once(out, pixels)\n",
    ),
    "makes data of its own": script('np.savez(Path.home() / "glyphs-test-48.npz", x=x)\n' + _SAVE),
}
SAID = {
    "writes results and trains nothing": "below the target",
    "trains on validation too": "it trains on the validation pictures",
    "keeps a model between runs": "below the target",
    "slows the baseline": "left processes running",
    "trains when nobody times": "predict took",
    "makes data of its own": "glyphs-test-48.npz",
}


def task(seed: int = 0) -> Task:
    """Eight classes of noisy 6x6 pictures, told apart easily, though not all of them."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(40, 210, (8, 6, 6))

    def split(n: int) -> Pictures:
        labels = rng.integers(8, size=n)
        noisy = centres[labels] + rng.normal(0, 70, (n, 6, 6))
        return Pictures(pixels=noisy.clip(0, 255).astype(np.uint8), labels=labels)

    return Task(train=split(600), validation=split(200), test=split(200), n_classes=8, target=0.9)


def told(**other: object) -> Contest:
    """A contest as it is told of a script that took half as long as the slow one; other: what it has otherwise."""
    slow, fast = (Outcome(wall_s=s, cpu_s=s, validation=0.95, test=0.9, reached=True) for s in (2.0, 1.0))
    found = Contest(
        name="mine",
        target=0.9,
        n_validation=200,
        baseline=(slow,),
        submission=(fast,),
        audit=fast,
        record=Record(same=None, said="none"),
        changes=changes(SLOW, FAST),
        baseline_is_ours=True,
    )
    return dataclasses.replace(found, **other)
