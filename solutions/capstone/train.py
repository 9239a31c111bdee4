"""The capstone's script made fast: the same network, contract (datasets/capstone/train.py) and kind of augmentation.

Each change has a name. `--changes syncs,sizes` makes only these, `--changes none` trains as the slow script does, so
that what each of them gives can be measured.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from labkit import hardware
from labkit.models import resnet
from labkit.repro import run, seed_all

ALL = ("loading", "augmentation", "syncs", "precision", "schedule", "sizes", "compile")
CHOSEN = ALL[:-1]  # to compile takes longer than the whole run
EPOCHS = 7  # of the schedule; one that is constant goes on until it is good enough
SMALL, LATER, FULL, SMALL_EPOCHS = 24, 32, 48, 5
PEAK, SLOW_RATE = 0.5, 0.01
WARM_UP = 0.3


def floats(pixels: Tensor) -> Tensor:
    """uint8 [N, H, W] as normalised float32 [N, 1, H, W]."""
    return (pixels[:, None].float() / 255 - 0.26) / 0.22


def resized(pictures: Tensor, size: int) -> Tensor:
    """Pictures averaged by area to a smaller size."""
    return pictures if pictures.shape[-1] == size else F.interpolate(pictures, size=(size, size), mode="area")


def augment(x: Tensor) -> Tensor:
    """A batch, each picture turned, stretched and shifted in its own way, by one call for all."""
    angle, scale, right, down = (torch.rand(4, len(x)) * 2 - 1) * torch.tensor([0.15, 0.1, 0.1, 0.1])[:, None]
    cos, sin = torch.cos(angle) * (1 + scale), torch.sin(angle) * (1 + scale)
    matrix = torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, x.shape, align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return x + 0.1 * torch.randn_like(x)


class Plan:
    """What each change decides."""

    def __init__(self, changes: tuple[str, ...]):
        self.has = changes.__contains__
        self.batch_size = 128 if self.has("schedule") else 32
        features = hardware.machine().cpu_features
        self.bf16 = self.has("precision") and bool({"avx512_bf16", "amx_bf16"} & set(features))
        self.layout = torch.channels_last if self.has("precision") else torch.contiguous_format
        self.last_size = LATER if self.has("sizes") else FULL

    def size(self, epoch: int) -> int:
        """Pixels a side in an epoch."""
        return SMALL if self.has("sizes") and epoch < SMALL_EPOCHS else self.last_size

    def rate(self, step: int, n_steps: int) -> float:
        """One cycle: up linearly, down as a cosine."""
        if not self.has("schedule"):
            return SLOW_RATE
        n_warm = round(WARM_UP * n_steps)
        down = max(0.0, (step + 1 - n_warm) / (n_steps + 1 - n_warm))
        return PEAK * min(1.0, (step + 1) / n_warm) * (1 + math.cos(math.pi * down)) / 2

    def autocast(self) -> torch.autocast:
        """bf16 where the processor multiplies it."""
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16)


def batches(plan: Plan, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch's batches in a random order, augmented."""
    if plan.has("loading"):
        order = torch.randperm(len(x)).split(plan.batch_size)
        drawn = ((x[index], y[index]) for index in order if len(index) == plan.batch_size)
    else:
        drawn = iter(DataLoader(TensorDataset(x, y), batch_size=plan.batch_size, shuffle=True))
    for pictures, labels in drawn:
        one_by_one = not plan.has("augmentation")
        made = torch.cat([augment(one[None]) for one in pictures]) if one_by_one else augment(pictures)
        yield made.contiguous(memory_format=plan.layout), labels


def train_epoch(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple, first: int) -> float:
    """Train on every batch once; the mean loss. first: the number of its first step."""
    model.train()
    n_steps, total, seen = EPOCHS * (len(data[0]) // plan.batch_size), torch.zeros(()), 0
    for step, (pictures, labels) in enumerate(batches(plan, *data), first):
        with plan.autocast():
            loss = F.cross_entropy(model(pictures).float(), labels)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step, n_steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        seen += 1
        if not plan.has("syncs") and seen % 20 == 0:
            print(f"  step {step}, loss {total.item() / seen:.3f}", flush=True)
    return total.item() / seen


@torch.no_grad()
def guesses(plan: Plan, model: nn.Module, pictures: Tensor) -> Tensor:
    """The class of each picture."""
    model.eval()
    with plan.autocast():
        return torch.cat([model(part.contiguous(memory_format=plan.layout)).argmax(1) for part in pictures.split(256)])


def accuracy(plan: Plan, model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    """The share of pictures told right."""
    right = guesses(plan, model, pictures) == labels
    return right.float().mean().item() if plan.has("syncs") else sum(bool(one) for one in right) / len(right)


def predict(out: Path, pixels: np.ndarray) -> np.ndarray:
    """Labels of pictures, by the network left in a folder."""
    kept = torch.load(Path(out) / "model.pt")
    plan, model = Plan(tuple(kept["changes"])), resnet()
    model.load_state_dict(kept["weights"])
    model = model.to(memory_format=plan.layout)
    return guesses(plan, model, resized(floats(torch.from_numpy(pixels)), plan.last_size)).numpy()


def loaded(path: Path) -> tuple[Tensor, Tensor]:
    """Pictures and labels of a split."""
    with np.load(path) as file:
        return floats(torch.from_numpy(file["pixels"])), torch.from_numpy(file["labels"])


def train(args: argparse.Namespace, it) -> None:
    """Train until the plan or the target ends it; leave the network and a record."""
    plan = Plan(args.changes)
    (x, y), (vx, vy) = loaded(args.data / "train.npz"), loaded(args.data / "validation.npz")
    sizes = {size: resized(x, size) for size in (*((SMALL,) if plan.has("sizes") else ()), plan.last_size)}
    vx = resized(vx, plan.last_size)
    kept = resnet().to(memory_format=plan.layout)
    model = torch.compile(kept) if plan.has("compile") else kept
    settings = {"lr": PEAK, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": plan.has("schedule")}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    step = 0
    for epoch in range(EPOCHS if plan.has("schedule") else 5 * EPOCHS):
        loss = train_epoch(plan, model, optimizer, (sizes[plan.size(epoch)], y), step)
        step += len(x) // plan.batch_size
        last = epoch == EPOCHS - 1 if plan.has("schedule") else plan.size(epoch) == plan.last_size
        told = {"loss": loss} | ({"validation_accuracy": accuracy(plan, kept, vx, vy)} if last else {})
        it.log(epoch, **told)
        print(f"epoch {epoch}:", *(f"{name} {value:.3f}" for name, value in told.items()), flush=True)
        if told.get("validation_accuracy", 0.0) >= args.target:
            break
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({"weights": kept.state_dict(), "changes": list(args.changes)}, args.out / "model.pt")


def main() -> None:
    """Read the arguments, seed everything, train, keep a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--changes", default=",".join(CHOSEN))
    args = parser.parse_args()
    args.changes = tuple(name for name in args.changes.split(",") if name in ALL)
    seed_all(args.seed)
    data = {name: args.data / f"{name}.npz" for name in ("train", "validation")}
    with run("capstone", config={"changes": args.changes, "target": args.target}, data=data, seeds=(args.seed,)) as it:
        train(args, it)


if __name__ == "__main__":
    main()
