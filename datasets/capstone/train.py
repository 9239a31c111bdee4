"""Train a network that reads characters until it is right on enough of the validation pictures.

CONTRACT. Whoever makes this faster keeps to it:

    python train.py --data DIR --out DIR --target SHARE --seed N

DIR of --data holds train.npz and validation.npz: `pixels` (uint8, [N, 48, 48]) and `labels` (int64, 0 to 31). The
script may train on train.npz only; with the labels of validation.npz it may measure how good the network is.
It ends by itself when the network is right on `target` of the validation pictures, and after 30 epochs or ten minutes
also when it is not (in the audit it never is). It leaves under --out what `predict` needs.

    predict(out, pixels) -> labels

The file has this function. It is called in another process, gets the folder that was --out, and pictures without labels
(uint8 array, [N, 48, 48]); it gives their labels (int64 array, [N]).
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from labkit.models import resnet

MOST_EPOCHS = 30


def to_tensor(pixels):
    return (torch.tensor(pixels, dtype=torch.float32) / 255 - 0.26) / 0.22


def augment(picture):
    """Turn, stretch and shift a picture a little."""
    angle = random.uniform(-0.15, 0.15)
    scale = random.uniform(0.9, 1.1)
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    right, down = random.uniform(-0.1, 0.1), random.uniform(-0.1, 0.1)
    matrix = torch.tensor([[[cos, -sin, right], [sin, cos, down]]], dtype=torch.float32)
    grid = F.affine_grid(matrix, (1, 1, 48, 48), align_corners=False)
    picture = F.grid_sample(picture[None, None], grid, padding_mode="border", align_corners=False)[0]
    return picture + 0.1 * torch.randn_like(picture)


class Pictures(Dataset):
    def __init__(self, path, training):
        file = np.load(path)
        self.pixels, self.labels, self.training = file["pixels"], file["labels"], training

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        picture = to_tensor(self.pixels[i])
        return augment(picture) if self.training else picture[None], int(self.labels[i])


def train_epoch(model, loader, optimizer):
    model.train()
    total_loss, correct, seen = 0.0, 0, 0
    for pictures, labels in loader:
        logits = model(pictures)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * len(labels)
        correct += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
        if seen % 640 == 0:
            print(f"  {seen} pictures, loss {total_loss / seen:.3f}, accuracy {correct / seen:.3f}", flush=True)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    correct = 0
    for pictures, labels in loader:
        for guess, label in zip(model(pictures).argmax(1), labels, strict=True):
            correct += int(guess.item() == label.item())
    return correct / len(loader.dataset)


def predict(out, pixels):
    model = resnet()
    model.load_state_dict(torch.load(Path(out) / "model.pt"))
    model.eval()
    with torch.no_grad():
        return torch.cat([model(to_tensor(part)[:, None]).argmax(1) for part in np.array_split(pixels, 20)]).numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0, help="not used yet")
    args = parser.parse_args()

    train = DataLoader(Pictures(args.data / "train.npz", training=True), batch_size=32, shuffle=True)
    validation = DataLoader(Pictures(args.data / "validation.npz", training=False), batch_size=32)
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for epoch in range(MOST_EPOCHS):
        train_epoch(model, train, optimizer)
        reached = accuracy(model, validation)
        print(f"epoch {epoch}: validation accuracy {reached:.3f}", flush=True)
        if reached >= args.target:
            break
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
