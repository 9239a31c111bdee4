"""Record the sweeps that lesson 01 draws: about 20 minutes of one CPU core.

    python datasets/recorded/01_lr_warmup_sweeps.py          go on where an interrupted recording stopped
    python datasets/recorded/01_lr_warmup_sweeps.py --fresh  begin again
    python datasets/recorded/01_lr_warmup_sweeps.py --quick  one minute: tries every part, records nothing

Rates were chosen with seed 0; what is reported afterwards comes from other seeds.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from statistics import fmean

import sweeps
import torch
from torch import Tensor, nn

from labkit import models, repro, train
from labkit.data import docs, glyphs

LESSON = "01_lr_warmup_sweeps"


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Five schedules on the batch-norm ResNet, each tuned with one seed and five peaks, then run with three others."""

    size: int = 24
    batch_size: int = 64
    epochs: int = 6
    momentum: float = 0.9  # SGD, for 2/lr is the threshold of gradient descent and says nothing of Adam
    weight_decay: float = 5e-4
    peaks: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    tuning_seed: int = 0
    seeds: tuple[int, ...] = (101, 102, 103)
    evaluate_every: int = 24  # four times an epoch
    accuracies: tuple[float, ...] = (0.5, 0.6, 0.7, 0.75, 0.8)


@dataclass(frozen=True, kw_only=True)
class Cnn:
    """A run of a network without momentum on glyphs: linear warm-up, then a constant rate."""

    gain: float | None = 1.4  # of the plain CNN; None is the batch-norm ResNet
    peak: float = 0.4
    n_warmup: int = 0
    n_steps: int = 240
    batch_size: int = 128
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Text:
    """A run of the small transformer on docstrings: Adam, no clipping, linear warm-up, then a constant rate."""

    norm: str = "post"
    optimizer: str = "Adam"
    peak: float = 5e-3
    n_warmup: int = 0
    n_steps: int = 300
    batch_size: int = 16
    context: int = 64
    width: int = 64
    layers: int = 6
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """Rates that grow by the same factor at each step, until the loss is far above its least."""

    low: float = 1e-4
    high: float = 10.0
    n_steps: int = 120
    give_up: float = 4.0  # times the least loss


FRESH = (201, 202, 203, 204, 205)
ISOLATED = tuple(
    Cnn(gain=gain, peak=peak, n_warmup=w)
    for gain, peak, w in (
        *((1.4, 0.7, 0), (1.4, 0.7, 30), (1.4, 0.4, 0), (1.4, 0.4, 30)),
        *((1.4, 0.2, 0), (1.4, 0.1, 0), (1.4, 0.05, 0), (1.4, 0.2, 30), (1.4, 0.1, 30)),
        *((1.0, 0.7, 0), (1.0, 0.7, 30), (1.0, 0.4, 0), (1.0, 0.4, 10)),
        *((1.4, 0.4, 10), (1.4, 0.4, 120), (1.4, 0.4, 240)),
    )
)
SURVIVAL_RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
SURVIVAL = (
    *(Cnn(gain=gain, n_warmup=w, peak=p) for gain, w, p in product((1.4, 1.0), (0, 30), SURVIVAL_RATES)),
    *(Cnn(gain=None, n_warmup=w, peak=p, n_steps=94, batch_size=64) for w, p in product((0, 30), (0.4, 1.6, 6.4))),
)
SHARPNESS = {
    "CNN(1.4), 0.7, warm-up": Cnn(peak=0.7, n_warmup=30),
    "CNN(1.4), 0.7": Cnn(peak=0.7),
    "CNN(1.4), 0.4, warm-up": Cnn(peak=0.4, n_warmup=30),
    "CNN(1.4), 0.4": Cnn(peak=0.4),
    "CNN(1.4), 0.05": Cnn(peak=0.05),
    "CNN(1.0), 0.4": Cnn(gain=1.0, peak=0.4),
    "ResNet, 0.4": Cnn(gain=None, peak=0.4, batch_size=64),
}
LOOKS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 80, 100, 150, 200, 239)
FEW_LOOKS = (0, 1, 3, 10, 30, 100, 239)  # a product with the ResNet's Hessian takes ten times as long
TEXT = (
    *(Text(peak=peak, n_warmup=w) for peak in (5e-3, 3e-3, 1e-3) for w in (0, 100)),
    *(Text(norm="pre", optimizer="AdamW", peak=3e-3, n_warmup=w) for w in (0, 100)),
)
CONSTANT_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


@cache
def glyph_split(name: str, size: int = 24):
    """One split of the glyphs, loaded once."""
    return glyphs.load(name, size)


def data_of(run: Callable) -> list[str]:
    """The hashes of the data that a run uses: the transformer's text, or else the pictures."""
    return [digest for name, digest in data_hashes().items() if name.startswith("docs") == (run is text_run)]


kept = sweeps.Kept(LESSON, (models, train), data_of)


# ---- a: five arms ---------------------------------------------------------------------------------------------------

ARMS = {
    "constant": train.constant,
    "step decay": train.step_decay,
    "warm-up, constant": train.warmup_constant,
    "one-cycle": train.one_cycle,
    "warm-up, stable, decay": train.warmup_stable_decay,
}


def arm_run(config: Arms, arm: str, peak: float, seed: int, with_test: bool) -> dict:
    """Train one arm once: its curve on the validation faces, and where asked the accuracy on the test faces."""
    data, faces = glyph_split("train", config.size), glyph_split("validation", config.size)
    n_steps = len(data) // config.batch_size * config.epochs
    repro.seed_all(seed)
    model = models.resnet()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=peak, momentum=config.momentum, nesterov=True, weight_decay=config.weight_decay
    )
    history = train.fit(
        model,
        train.shuffled(data.inputs, data.targets, batch_size=config.batch_size, seed=seed),
        n_steps=n_steps,
        optimizer=optimizer,
        lr=ARMS[arm](peak, n_steps),
        evaluate=partial(train.score, inputs=faces.inputs, targets=faces.targets),
        evaluate_every=config.evaluate_every,
    )
    places = [history.first(accuracy) for accuracy in config.accuracies]
    found = {
        "diverged": history.diverged,
        "eval_steps": history.eval_steps,
        "accuracy": history.eval_accuracies,
        "train_cpu_s": history.eval_cpu_s,
        "reached_step": [None if i is None else history.eval_steps[i] for i in places],
        "reached_cpu_s": [None if i is None else history.eval_cpu_s[i] for i in places],
        "last_epoch_accuracy": 0.0 if history.diverged else fmean(history.eval_accuracies[-4:]),
    }
    if with_test:
        test = glyph_split("test", config.size)
        found["test_accuracy"] = train.score(model, test.inputs, test.targets).accuracy
    return found


def arms(config: Arms) -> dict:
    """Every arm, tuned alike by validation accuracy averaged over the last epoch; then its runs with fresh seeds."""
    found = {}
    for arm in ARMS:
        trials = [kept(arm_run, config, arm, peak, config.tuning_seed, False) for peak in config.peaks]
        scores = [trial["last_epoch_accuracy"] for trial in trials]
        best = config.peaks[scores.index(max(scores))]
        runs = [kept(arm_run, config, arm, best, seed, True) for seed in config.seeds]
        found[arm] = {
            "tuning": [{"peak": p, "last_epoch_accuracy": s} for p, s in zip(config.peaks, scores, strict=True)],
            "peak": best,
            "runs": [{k: v for k, v in run.items() if k != "settings"} for run in runs],
        }
    return {"settings": asdict(config), "arms": found}


# ---- b, c: warm-up isolated, and sharpness on the way ---------------------------------------------------------------


def cnn_fit(config: Cnn, on_step: Callable[[int, nn.Module], None] | None = None) -> tuple[nn.Module, train.History]:
    """A network trained by plain SGD as `config` says."""
    data = glyph_split("train")
    repro.seed_all(config.seed)
    model = models.resnet() if config.gain is None else models.convnet(config.gain)
    schedule = train.warmup_constant(config.peak, config.n_steps, warmup_share=config.n_warmup / config.n_steps)
    history = train.fit(
        model,
        train.shuffled(data.inputs, data.targets, batch_size=config.batch_size, seed=config.seed),
        n_steps=config.n_steps,
        optimizer=torch.optim.SGD(model.parameters(), lr=config.peak),
        lr=schedule,
        on_step=on_step,
    )
    return model, history


def cnn_run(config: Cnn) -> dict:
    """Training loss averaged over the last 20 steps, thinned curve, and loss and accuracy on the validation faces."""
    model, history = cnn_fit(config)
    faces = glyph_split("validation")
    score = train.score(model, faces.inputs, faces.targets)
    last = math.nan if history.diverged else fmean(history.losses[-20:])
    outcome = "not finite" if history.diverged else "learned" if last < math.log(32) - 0.5 else "at chance"
    return {
        "outcome": outcome,
        "train_loss": last,
        "validation_loss": score.loss,
        "validation_accuracy": 0.0 if history.diverged else score.accuracy,
        "loss_every_10": history.losses[::10],
    }


def isolated(configs: tuple[Cnn, ...], seeds: tuple[int, ...]) -> list[dict]:
    """For each setting the final losses of all seeds, and the thinned loss curve of the first."""
    rows = []
    for config in configs:
        runs = [kept(cnn_run, replace(config, seed=seed)) for seed in seeds]
        columns = ("outcome", "train_loss", "validation_loss", "validation_accuracy", "cpu_s")
        row = {name: [run[name] for run in runs] for name in columns}
        rows.append({**asdict(config), "seed": seeds, **row, "loss_every_10": runs[0]["loss_every_10"]})
    return rows


def survival(configs: tuple[Cnn, ...], seeds: tuple[int, ...]) -> list[dict]:
    """For each rate how each seed ended: learned, at chance (finite, and nothing learned) or not finite."""
    rows = []
    for config in configs:
        outcomes = [kept(cnn_run, replace(config, seed=seed))["outcome"] for seed in seeds]
        rows.append({**asdict(config), "seed": seeds, "outcome": outcomes})
    return rows


def hessian_times(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from a vector to the loss's Hessian, on these examples, times the vector."""
    weights = [p for p in model.parameters() if p.requires_grad]
    loss = train.mean_cross_entropy(model(inputs), targets)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights, create_graph=True)])

    def product(vector: Tensor) -> Tensor:
        parts = torch.autograd.grad(gradient @ vector, weights, retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    return product


def power_iteration(times: Callable[[Tensor], Tensor], vector: Tensor, n: int) -> tuple[float, Tensor, float]:
    """Eigenvalue largest in size (its Rayleigh quotient), its vector, and |Hv - value v| / |value| as the error."""
    vector = vector / vector.norm()
    for _ in range(n):
        image = times(vector)
        value, last = vector @ image, vector
        vector = image / image.norm()
    return value.item(), vector, ((image - value * last).norm() / value.abs()).item()


def top_eigenvalue(times: Callable[[Tensor], Tensor], vector: Tensor, n: int) -> tuple[dict, Tensor]:
    """The largest eigenvalue, and beside it the one largest in size.

    When the latter is negative, the iteration is repeated on H minus it, whose eigenvalues are all positive.
    """
    value, found, error = power_iteration(times, vector, n)
    largest_in_size = value
    if value < 0:
        lowest = value
        shifted, found, _ = power_iteration(lambda v: times(v) - lowest * v, vector, 2 * n)
        value = shifted + lowest
        error = ((times(found) - value * found).norm() / abs(value)).item()
    return {"top": value, "largest_in_size": largest_in_size, "error": error}, found


def sharpness_run(config: Cnn, looks: list[int], n_first: int, n_next: int) -> dict:
    """The top Hessian eigenvalue on one fixed batch of 256 before some steps, with 2/lr and the loss there."""
    data = glyph_split("train")
    inputs, targets = next(train.shuffled(data.inputs, data.targets, batch_size=256, seed=7))
    schedule = train.warmup_constant(config.peak, config.n_steps, warmup_share=config.n_warmup / config.n_steps)
    rows, state = [], {}

    def look(step: int, model: nn.Module) -> None:
        copy = deepcopy(model)  # a batch-norm's running statistics move with every forward pass
        loss = train.mean_cross_entropy(copy(inputs), targets).item()
        if step not in looks or not math.isfinite(loss) or loss > 1e6:
            return
        start = state.get("vector")
        n = n_next if start is not None else n_first
        if start is None:
            start = torch.randn(models.count_parameters(model), generator=torch.Generator().manual_seed(7))
        measured, state["vector"] = top_eigenvalue(hessian_times(copy, inputs, targets), start, n)
        rows.append({"step": step, "two_over_lr": 2 / schedule(step), "loss": loss, **measured})

    _, history = cnn_fit(config, look)
    return {"rows": rows, "diverged": history.diverged, "losses": history.losses[:60]}


def sharpness(configs: dict[str, Cnn], seed: int, looks: tuple[int, ...], n_first: int, n_next: int) -> dict:
    """Sharpness along every run named in `configs`."""
    found = {}
    for name, config in configs.items():
        places = [step for step in looks if config.gain is not None or step in FEW_LOOKS]
        found[name] = kept(sharpness_run, replace(config, seed=seed), places, n_first, n_next)
    return found


# ---- d: the transformer ---------------------------------------------------------------------------------------------


def text_run(config: Text) -> dict:
    """Loss on fixed validation windows after training, and the thinned training curve."""
    train_text, faces = docs.load("train"), docs.load("validation")
    repro.seed_all(config.seed)
    sizes = {"width": config.width, "layers": config.layers, "context": config.context}
    model = models.gpt(vocab=len(train_text.classes), norm=config.norm, **sizes)
    history = train.fit(
        model,
        train.windows(train_text.inputs, batch_size=config.batch_size, context=config.context, seed=config.seed),
        n_steps=config.n_steps,
        optimizer=getattr(torch.optim, config.optimizer)(model.parameters()),
        lr=train.warmup_constant(config.peak, config.n_steps, warmup_share=config.n_warmup / config.n_steps),
    )
    fixed = next(train.windows(faces.inputs, batch_size=256, context=config.context, seed=99))
    return {"validation_loss": train.score(model, *fixed, batch_size=64).loss, "loss_every_10": history.losses[::10]}


def text(configs: tuple[Text, ...], seeds: tuple[int, ...]) -> dict:
    """Validation losses of every setting and seed, and the loss of predicting by letter frequency alone."""
    rows = []
    for config in configs:
        runs = [kept(text_run, replace(config, seed=seed)) for seed in seeds]
        losses, cpu_s = ([run[name] for run in runs] for name in ("validation_loss", "cpu_s"))
        row = {"validation_loss": losses, "cpu_s": cpu_s, "loss_every_10": runs[0]["loss_every_10"]}
        rows.append({**asdict(config), "seed": seeds, **row})
    return {"letter_frequencies_loss": letter_frequencies_loss(), "rows": rows}


def letter_frequencies_loss() -> float:
    """Nats per character on the validation text when each is predicted by its share of the training text."""
    train_text, faces = docs.load("train"), docs.load("validation")
    counts = torch.bincount(train_text.inputs, minlength=len(train_text.classes)) + 1.0
    return -(counts / counts.sum()).log()[faces.inputs].mean().item()


# ---- e: the range test ----------------------------------------------------------------------------------------------


def range_run(config: RangeTest, network: Cnn) -> dict:
    """The range test's curve, its minimum, and the two usual picks from it."""
    data = glyph_split("train")
    repro.seed_all(network.seed)
    model = models.resnet() if network.gain is None else models.convnet(network.gain)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.low)
    batches = train.shuffled(data.inputs, data.targets, batch_size=network.batch_size, seed=network.seed)
    rates, losses = [], []
    for step, (inputs, targets) in zip(range(config.n_steps), batches, strict=False):
        rate = config.low * (config.high / config.low) ** (step / (config.n_steps - 1))
        optimizer.param_groups[0]["lr"] = rate
        loss = train.train_step(model, inputs, targets, optimizer).item()
        if not loss < config.give_up * min(losses, default=math.inf):
            break
        rates.append(rate)
        losses.append(loss)
    smooth = smoothed(losses)
    lowest = smooth.index(min(smooth))
    slopes = [after - before for before, after in zip(smooth[:lowest], smooth[1 : lowest + 1], strict=True)]
    steepest = slopes.index(min(slopes)) if slopes else 0
    picks = {"minimum": rates[lowest], "tenth": rates[lowest] / 10, "steepest": rates[steepest]}
    return {"rates": rates, "losses": losses, "smoothed": smooth, **picks}


def smoothed(losses: list[float], keep: float = 0.8) -> list[float]:
    """Exponential moving average, corrected for its start at zero."""
    average, found = 0.0, []
    for i, loss in enumerate(losses, start=1):
        average = keep * average + (1 - keep) * loss
        found.append(average / (1 - keep**i))
    return found


def range_tests(config: RangeTest, rates: tuple[float, ...], seeds: tuple[int, ...]) -> list[dict]:
    """Range tests of three networks, beside the constant rate that ends with the least training loss."""
    rows = []
    for gain, batch_size, n_steps in ((1.0, 128, 240), (1.4, 128, 240), (None, 64, 94)):
        network = Cnn(gain=gain, batch_size=batch_size, n_steps=n_steps)
        for i, seed in enumerate(seeds):
            runs = [kept(cnn_run, replace(network, peak=peak, seed=seed)) for peak in rates]
            reached = [(run["train_loss"], rate) for run, rate in zip(runs, rates, strict=True) if run["train_loss"]]
            found = kept(range_run, config, replace(network, seed=seed))
            curve = ("rates", "losses", "smoothed") if i == 0 else ()
            row = {name: found[name] for name in (*curve, "minimum", "tenth", "steepest")}
            tried = {"constant_rates": rates, "best_constant": min(reached)[1]}
            tried |= {f"constant_{name}": [run[name] for run in runs] for name in ("train_loss", "validation_loss")}
            rows.append({**asdict(network), "seed": seed, **row, **tried})
    return rows


# ---- all of it ------------------------------------------------------------------------------------------------------


@cache
def data_hashes() -> dict[str, str]:
    """The hash of every split used."""
    splits = [glyph_split(name) for name in glyphs.FACES] + [docs.load(name) for name in docs.SPLITS]
    return {split.name: split.sha256 for split in splits}


def record(quick: bool) -> dict:
    """Every part's results; quick shortens each to see that it works."""
    if quick:
        short = {"n_steps": 12}
        arm_config = Arms(epochs=1, peaks=(0.1,), seeds=(101,))
        cnns = tuple(replace(c, **short) for c in (Cnn(peak=0.1), Cnn(peak=0.1, n_warmup=6)))
        texts = (replace(TEXT[0], **short), replace(TEXT[-1], n_warmup=6, **short))
        looked = {name: replace(config, n_warmup=0, **short) for name, config in SHARPNESS.items()}
        return {
            "arms": arms(arm_config),
            "isolated": isolated(cnns, FRESH[:1]),
            "survival": survival(cnns, FRESH[:1]),
            "sharpness": sharpness(looked, FRESH[0], LOOKS[:2], 3, 2),
            "text": text(texts, FRESH[:1]),
            "range_test": range_tests(RangeTest(n_steps=20), (0.05, 0.1), FRESH[:1]),
        }
    return {
        "arms": arms(Arms()),
        "isolated": isolated(ISOLATED, FRESH),
        "survival": survival(SURVIVAL, FRESH[:3]),
        "sharpness": sharpness(SHARPNESS, FRESH[0], LOOKS, 40, 15),
        "text": text(TEXT, FRESH[:3]),
        "range_test": range_tests(RangeTest(), CONSTANT_RATES, FRESH[:3]),
    }


if __name__ == "__main__":
    settings = {"arms": Arms(), "range_test": RangeTest(), "looks": LOOKS, "threads": 1}
    seeds = (Arms().tuning_seed, *Arms().seeds, *FRESH)
    sweeps.main(__doc__, kept, record, config=settings, data=data_hashes, seeds=seeds)
