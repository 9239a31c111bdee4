"""Record the sweeps that lesson 03 draws: about 10 minutes of one CPU core.

    python datasets/recorded/03_mixed_precision_sweeps.py          go on where an interrupted recording stopped
    python datasets/recorded/03_mixed_precision_sweeps.py --fresh  begin again
    python datasets/recorded/03_mixed_precision_sweeps.py --quick  half a minute: tries every part, records nothing

Every arm of a part has the same recipe, start and data; only the format differs. `emulated` formats are rounded to
layer by layer (labkit.precision.emulate), the others are the processor's own.
"""

from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import fmean

import sweeps
import torch
from torch import nn

from labkit import formats, models, precision, repro, train
from labkit.data import glyphs

LESSON = "03_mixed_precision_sweeps"
SEEDS = (301, 302, 303)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One network on glyphs of 24 pixels, SGD under one cycle."""

    net: str = "resnet"
    format: str = "fp32"  # fp32, bf16 or fp16 under autocast, `emulated fp16`, or `bf16 weights`: nothing in fp32
    scaler: bool = False
    peak: float = 0.3
    momentum: float = 0.9
    n_steps: int = 6 * 46  # six epochs
    batch_size: int = 128
    growth_interval: int = 100
    seed: int = 0


PLAIN = Run(net="convnet", momentum=0.0, n_steps=240)
RESNET = (
    *(Run(format=each) for each in ("fp32", "bf16", "bf16 weights", "emulated fp16")),
    Run(format="emulated fp16", scaler=True),
)
CONVNET = (
    *(replace(PLAIN, format=each) for each in ("fp32", "bf16", "bf16 weights")),
    *(replace(PLAIN, format=each, scaler=scaler) for each in ("fp16", "emulated fp16") for scaler in (False, True)),
)


@cache
def split(name: str):
    """One split of the glyphs, loaded once."""
    return glyphs.load(name, 24)


def build(config: Run) -> tuple[nn.Module, torch.dtype, torch.dtype | None]:
    """The network in the run's format, the dtype of its pictures, and that of its autocast, None for none."""
    repro.seed_all(config.seed)
    model = getattr(models, config.net)()
    if config.format == "bf16 weights":
        return model.bfloat16(), torch.bfloat16, None
    if config.format.startswith("emulated"):
        return precision.emulate(model, formats.FORMATS[config.format.split()[1]]), torch.float32, None
    return model, torch.float32, None if config.format == "fp32" else formats.FORMATS[config.format].dtype


def run(config: Run) -> dict:
    """Training loss over the last 20 steps, accuracy on validation and test faces, seconds, the scaler's last scale."""
    model, dtype, autocast = build(config)
    data = split("train")
    scaler = precision.LossScaler(growth_interval=config.growth_interval) if config.scaler else None
    history = train.fit(
        model,
        train.shuffled(data.inputs.to(dtype), data.targets, batch_size=config.batch_size, seed=config.seed),
        n_steps=config.n_steps,
        optimizer=torch.optim.SGD(model.parameters(), lr=config.peak, momentum=config.momentum),
        lr=train.one_cycle(config.peak, config.n_steps),
        step=precision.mixed_step(autocast, scaler),
        evaluate=lambda model: train.score(model, split("validation").inputs.to(dtype), split("validation").targets),
    )
    test = train.score(model, split("test").inputs.to(dtype), split("test").targets)
    return {
        "train_loss": fmean(history.losses[-20:]),
        "validation_accuracy": history.eval_accuracies[-1],
        "test_accuracy": test.accuracy,
        "train_cpu_s": history.eval_cpu_s[-1],
        "scale": scaler.scale if scaler else None,
    }


def arms(configs: tuple[Run, ...], seeds: tuple[int, ...]) -> list[dict]:
    """For each arm its settings and, seed by seed, its figures."""
    rows = []
    for config in configs:
        runs = [kept(run, replace(config, seed=seed)) for seed in seeds]
        columns = ("train_loss", "validation_accuracy", "test_accuracy", "train_cpu_s", "scale")
        rows.append({**asdict(config), "seed": seeds, **{name: [each[name] for each in runs] for name in columns}})
    return rows


@cache
def data_hashes() -> dict[str, str]:
    """The hash of every split used."""
    return {each.name: each.sha256 for each in map(split, glyphs.FACES)}


kept = sweeps.Kept(LESSON, (models, train, precision, formats), lambda _run: list(data_hashes().values()))


def record(quick: bool) -> dict:
    """Every part's results; quick shortens each to see that it works."""
    if quick:
        short = {"n_steps": 6}
        return {name: arms(tuple(replace(c, **short) for c in configs), SEEDS[:1]) for name, configs in PARTS.items()}
    return {name: arms(configs, SEEDS) for name, configs in PARTS.items()}


PARTS = {"resnet": RESNET, "convnet": CONVNET}

if __name__ == "__main__":
    sweeps.main(__doc__, kept, record, config={"threads": 1}, data=data_hashes, seeds=SEEDS)
