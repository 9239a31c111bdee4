"""What the server of ranks loads once, so that no rank has to: torch, and what DistributedDataParallel imports late."""

import gc

import torch._dynamo  # noqa: F401

import labkit.ranks.worker  # noqa: F401

gc.freeze()  # ranks share this memory as long as no collection of garbage looks at it
