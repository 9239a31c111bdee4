"""Which device each rank gets, and which backend carries their messages."""

from collections.abc import Sequence

import torch


def places(world_size: object, devices: object, backend: object) -> tuple[list[str], str]:
    """A device's name for each rank, and the backend: NCCL with a GPU a rank, otherwise gloo.

    devices: None for what is there, "cpu", "cuda", or a list with one name a rank. ValueError for what cannot work.
    """
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size is the number of ranks, 1 or more, not {world_size!r}.")
    found = torch.cuda.device_count()  # asks the driver, and does not start CUDA in this process
    chosen = _listed(world_size, devices, found)
    for name in chosen:
        _check(name, found)
    gpus = [name for name in chosen if name != "cpu"]
    alone = len(gpus) == world_size == len(set(gpus))
    if backend is None:
        return chosen, "nccl" if alone else "gloo"
    if backend not in ("gloo", "nccl"):
        raise ValueError(f"backend is 'gloo', 'nccl' or None for what fits, not {backend!r}.")
    if backend == "nccl" and not alone:
        raise ValueError(
            f"NCCL needs a GPU for each rank, and takes no two ranks on one: {world_size} ranks, and of GPUs "
            f"{len(set(gpus))} in use here. backend='gloo' does without."
        )
    return chosen, backend


def _listed(world_size: int, devices: object, found: int) -> list[str]:
    """A device's name for each rank, unchecked."""
    if devices is None:
        devices = "cuda" if found else "cpu"
    if devices == "cuda":
        if not found:
            raise ValueError("devices='cuda', but torch finds no GPU here. devices='cpu' runs the ranks on the CPU.")
        return [f"cuda:{rank % found}" for rank in range(world_size)]
    if isinstance(devices, str):
        return [devices] * world_size
    if not isinstance(devices, Sequence) or len(devices) != world_size:
        raise ValueError(f"devices is 'cpu', 'cuda' or a list of {world_size}, one a rank, not {devices!r}.")
    return [str(each) for each in devices]


def _check(name: str, found: int) -> None:
    """ValueError unless the name is that of a device that is here."""
    kind, _, index = name.partition(":")
    if name != "cpu" and not (kind == "cuda" and index.isdigit()):
        raise ValueError(f"A rank's device is 'cpu' or like 'cuda:0', not {name!r}.")
    if kind == "cuda" and int(index) >= found:
        raise ValueError(f"{name} is asked for, but torch finds {found} GPU{'' if found == 1 else 's'} here.")
