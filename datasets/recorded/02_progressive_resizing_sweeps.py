"""Record the sweeps that lesson 02 draws: about 15 minutes of one CPU core.

    python datasets/recorded/02_progressive_resizing_sweeps.py          go on where an interrupted recording stopped
    python datasets/recorded/02_progressive_resizing_sweeps.py --fresh  begin again
    python datasets/recorded/02_progressive_resizing_sweeps.py --quick  half a minute: tries every part, records nothing

Each arm gets the same peak rates to choose from, with seed 0 and on the validation faces; what is reported afterwards
comes from other seeds, and the test faces are looked at once, at the end.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice

import sweeps
import torch
from torch import Tensor

from labkit import models, repro, resize, train
from labkit.data import docs, glyphs

LESSON = "02_progressive_resizing_sweeps"
PEAKS, TEXT_PEAKS = (0.1, 0.2, 0.4, 0.8, 1.6), (0.005, 0.01, 0.02, 0.04)
TUNING_SEED, SEEDS = 0, (101, 102, 103)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The ResNet on pictures of 48 pixels, shrunk to `sizes`, an entry an epoch; judged at `judged_at` pixels."""

    sizes: tuple[int, ...] = (48,) * 6
    judged_at: int = 48
    peak: float = 0.2
    epochs: float | None = None  # where the last epoch of sizes is cut short
    width: int = 16
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 5e-4
    evaluate_every: int = 24  # four times an epoch
    seed: int = TUNING_SEED


@dataclass(frozen=True, kw_only=True)
class Text:
    """The small transformer on docstrings: (context, steps) of each phase; judged on windows of `judged_at` tokens."""

    phases: tuple[tuple[int, int], ...] = ((128, 300),)
    judged_at: int = 128
    peak: float = 5e-3
    batch_size: int = 16
    width: int = 64
    layers: int = 2
    evaluate_every: int = 25
    seed: int = TUNING_SEED


ARMS = {
    "48 px": Run(),
    "24, 32, 48 px": Run(sizes=(24, 24, 32, 32, 48, 48)),
    "48 px, cut short": Run(sizes=(48,) * 4, epochs=3.5),  # about the seconds of the growing run
    "32 px": Run(sizes=(32,) * 6, judged_at=32),
}
TEXT_ARMS = {
    "128 tokens": Text(),
    "16 to 128 tokens": Text(phases=((16, 100), (32, 100), (64, 100), (128, 100))),
    "128 tokens, cut short": Text(phases=((128, 185),)),  # about the seconds of the growing run
}
LAST_PHASES = (0, 1, 2, 3, 4, 6)  # epochs at 48 pixels at the end, of six


@cache
def pictures(split: str, size: int) -> tuple[Tensor, Tensor]:
    """One split at a size, shrunk from 48 pixels as in training."""
    whole = glyphs.load(split, 48)
    return resize.shrunk(whole.inputs, size), whole.targets


@cache
def text(split: str) -> Tensor:
    """One split of the docstrings."""
    return docs.load(split).inputs


@cache
def data_hashes() -> dict[str, str]:
    """The hash of every split used."""
    splits = [glyphs.load(name, 48) for name in glyphs.FACES] + [docs.load(name) for name in docs.SPLITS]
    return {split.name: split.sha256 for split in splits}


def data_of(run: Callable) -> list[str]:
    """The hashes of the data that a run uses: the text, or else the pictures."""
    return [digest for name, digest in data_hashes().items() if name.startswith("docs") == (run is text_run)]


kept = sweeps.Kept(LESSON, (models, train, resize), data_of)


def picture_run(config: Run) -> dict:
    """One run: its curve on the validation faces, seconds of training, and the accuracy on the test faces."""
    loader = resize.Loader(*pictures("train", 48), batch_size=config.batch_size, seed=config.seed)
    n_steps = round((config.epochs or len(config.sizes)) * loader.n_batches)
    repro.seed_all(config.seed)
    model = models.resnet(width=config.width)
    settings = {"momentum": config.momentum, "nesterov": True, "weight_decay": config.weight_decay}
    inputs, targets = pictures("validation", config.judged_at)
    history = train.fit(
        model,
        (batch for size in config.sizes for batch in loader.epoch(size)),
        n_steps=n_steps,
        optimizer=torch.optim.SGD(model.parameters(), lr=config.peak, **settings),
        lr=train.one_cycle(config.peak, n_steps),
        evaluate=partial(train.score, inputs=inputs, targets=targets),
        evaluate_every=config.evaluate_every,
    )
    return {
        "diverged": history.diverged,
        "eval_steps": history.eval_steps,
        "accuracy": history.eval_accuracies,
        "train_cpu_s": history.eval_cpu_s,
        "test_accuracy": train.score(model, *pictures("test", config.judged_at)).accuracy,
    }


def tokens(config: Text) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of windows, each phase at its own length."""
    for phase, (context, n_steps) in enumerate(config.phases):
        seed = config.seed + 1000 * phase
        windows = train.windows(text("train"), batch_size=config.batch_size, context=context, seed=seed)
        yield from islice(windows, n_steps)


def text_run(config: Text) -> dict:
    """One run: its loss on fixed validation windows along the way, and the seconds of training."""
    n_steps = sum(n for _, n in config.phases)
    repro.seed_all(config.seed)
    sizes = {"width": config.width, "layers": config.layers, "context": config.judged_at}
    model = models.gpt(vocab=len(docs.CLASSES), **sizes)
    fixed = next(train.windows(text("validation"), batch_size=128, context=config.judged_at, seed=99))
    history = train.fit(
        model,
        tokens(config),
        n_steps=n_steps,
        optimizer=torch.optim.AdamW(model.parameters()),
        lr=train.one_cycle(config.peak, n_steps),
        evaluate=lambda model: train.score(model, *fixed, batch_size=64),
        evaluate_every=config.evaluate_every,
    )
    return {"eval_steps": history.eval_steps, "loss": history.eval_losses, "train_cpu_s": history.eval_cpu_s}


def tuned(run: Callable, config: Run | Text, peaks: tuple[float, ...], score: Callable[[dict], float]) -> dict:
    """An arm's peak, the one with the best score of its tuning runs, and its runs with fresh seeds."""
    trials = [kept(run, replace(config, peak=peak)) for peak in peaks]
    scores = [score(trial) for trial in trials]
    best = replace(config, peak=peaks[scores.index(max(scores))])
    runs = [kept(run, replace(best, seed=seed)) for seed in SEEDS]
    tuning = [{"peak": peak, "score": each} for peak, each in zip(peaks, scores, strict=True)]
    bare = [{name: value for name, value in each.items() if name != "settings"} for each in runs]
    return {"settings": asdict(best), "tuning": tuning, "runs": bare}


def last_accuracy(found: dict) -> float:
    """The validation accuracy at the end of a run; 0 where it diverged."""
    return 0.0 if found["diverged"] else found["accuracy"][-1]


def last_phases(lengths: tuple[int, ...], seeds: tuple[int, ...]) -> list[dict]:
    """For each number of epochs at full size at the end: final accuracies and seconds, a column a seed."""
    rows = []
    for n_last in lengths:
        config = Run(sizes=tuple(resize.growing_sizes(6, 24, 48, n_last)))
        runs = [kept(picture_run, replace(config, seed=seed)) for seed in seeds]
        columns = {"accuracy": last_accuracy, "test_accuracy": lambda found: found["test_accuracy"]}
        columns["train_cpu_s"] = lambda found: found["train_cpu_s"][-1]
        row = {name: [read(found) for found in runs] for name, read in columns.items()}
        rows.append({"n_last": n_last, "sizes": config.sizes, **row})
    return rows


def record(quick: bool) -> dict:
    """Every part's results; quick shortens each to see that it works."""
    arms, text_arms, peaks, text_peaks = ARMS, TEXT_ARMS, PEAKS, TEXT_PEAKS
    if quick:
        arms = {name: replace(arm, sizes=arm.sizes[::5], epochs=None) for name, arm in arms.items()}
        text_arms = {name: replace(arm, phases=((16, 5), (128, 5))) for name, arm in text_arms.items()}
        peaks, text_peaks = peaks[2:3], text_peaks[1:2]
    return {
        "arms": {name: tuned(picture_run, arm, peaks, last_accuracy) for name, arm in arms.items()},
        "last_phases": last_phases(LAST_PHASES[:1] if quick else LAST_PHASES, SEEDS[:1] if quick else SEEDS),
        "text": {
            name: tuned(text_run, arm, text_peaks, lambda found: -found["loss"][-1]) for name, arm in text_arms.items()
        },
    }


if __name__ == "__main__":
    settings = {"arms": ARMS, "peaks": PEAKS, "text": TEXT_ARMS, "text_peaks": TEXT_PEAKS, "threads": 1}
    sweeps.main(__doc__, kept, record, config=settings, data=data_hashes, seeds=(TUNING_SEED, *SEEDS))
