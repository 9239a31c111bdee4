"""Reports of faults as ranks really leave them, made up anew from a generator: for the exercises that read them.

Every text follows one that `labkit.aftermath` took from real ranks, in torch 2.13; tests/test_reports.py holds them
together. Names, numbers, ports, the number of ranks and the one at fault are drawn.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.aftermath import Left

CAUSES = ("skipped", "differed", "uneven", "forked", "port", "killed", "raised")
COLLECTIVES = {
    "all_reduce": "ALLREDUCE",
    "broadcast": "BROADCAST",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "barrier": "BARRIER",
}
ECHOES = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:{port}. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
    "before reporting an error. GLHF! 🏖️",
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:{port}: Connection "
    "reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of "
    "the remote worker before reporting an error. GLHF! 🏖️",
)
TOO_LATE = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:{line}] Timed out waiting {ms}ms for "
    "{way} operation to complete"
)
_OPTIONS = (
    "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))"
)
_PRINT = "CollectiveFingerPrint(SequenceNumber={number}, OpType={op}, TensorShape=[{shape}], TensorDtypes=Float, "
PRINT = _PRINT + f"TensorDeviceTypes={_OPTIONS})"
APART = (
    "Detected mismatch between collectives on ranks. Rank {rank} is running collective: {mine}, but Rank {other} is "
    "running collective: {theirs}.Collectives differ in the following aspects:   {aspects}"
)
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "{port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
# torch/cuda/__init__.py, _lazy_init
CUDA = (
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method"
)
OWN_ERRORS = (
    "ValueError: a batch of {n} pictures, and {n} labels too few",
    "KeyError: 'label_{n}'",
    "ConnectionError: the data server closed the connection (port {n})",
    "TimeoutError: shard {n} timed out after 30 s, timed out waiting for the disk",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.00 MiB.",
    "FileNotFoundError: [Errno 2] No such file or directory: 'shard-{n}.bin'",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x{n} and 512x10)",
    "RuntimeError: Connection reset by peer while downloading part {n}. Check the logs of the data server",
    "ValueError: backend 'gloo{n}' is none of gloo, nccl, mpi",
    # What torch says of an argument before anything is sent: the traceback ends in distributed_c10d.py.
    "TypeError: Invalid function argument. Expected parameter `tensor` of type torch.Tensor\n"
    "             but got <class 'float'> instead.",
)
_WORK = (("data.py", "read_shard"), ("evaluate.py", "validate"), ("save.py", "write_checkpoint"), ("log.py", "flush"))
_BENEATH = {
    "forkserver": ("…/multiprocessing/spawn.py", "…/multiprocessing/forkserver.py"),
    "spawn": ("…/multiprocessing/spawn.py", "<string>"),
    "fork": ("…/multiprocessing/popen_fork.py", "…/multiprocessing/context.py"),
    "torchrun": (),
}


@dataclass(kw_only=True)
class Scene:
    """What a report is made of."""

    dice: random.Random
    world_size: int
    at_fault: int
    op: str
    launcher: str
    file: str
    ms: int

    def line(self) -> int:
        """The number of some line."""
        return self.dice.randint(12, 480)

    def others(self) -> list[int]:
        """The ranks not at fault."""
        return [rank for rank in range(self.world_size) if rank != self.at_fault]


def scene(dice: random.Random) -> Scene:
    """One drawn anew."""
    size = dice.randint(3, 6)
    return Scene(
        dice=dice,
        world_size=size,
        at_fault=dice.randrange(size),
        op=dice.choice(list(COLLECTIVES)),
        launcher=dice.choice(list(_BENEATH)),
        file=dice.choice(["train.py", "finetune.py", "In[7]", "loop.py", "main.py"]),
        ms=dice.choice([1000, 2000, 30_000, 600_000, 1_800_000]),
    )


def _thread(frames: Sequence[tuple[str, str]], scene: Scene) -> str:
    """A thread's stack: its innermost frame, given first, comes first."""
    lines = [f'  File "{file}", line {scene.line()} in {name}' for file, name in frames]
    return "\n".join([f"Thread 0x00007f{scene.dice.getrandbits(40):010x} (most recent call first):", *lines])


def stack(scene: Scene, innermost: Sequence[tuple[str, str]]) -> str:
    """A process's stacks as faulthandler writes them, its main thread last; others may stand there too."""
    beneath = [(file, scene.dice.choice(["run", "_main", "_launch"])) for file in _BENEATH[scene.launcher]]
    threads = [_thread([*innermost, (scene.file, "train"), (scene.file, "main"), *beneath], scene)]
    for idle in ("tensorboard", "pin_memory"):
        if scene.dice.random() < 0.5:
            waits = [("…/threading.py", "wait"), ("…/queue.py", "get"), (f"…/{idle}.py", "run")]
            threads.insert(0, _thread([*waits, ("…/threading.py", "_bootstrap")], scene))
    return "\n\n".join([f"Timeout (0:00:{scene.dice.randint(1, 30):02d})!\n{threads[0]}", *threads[1:]]) + "\n"


def within(op: str) -> list[tuple[str, str]]:
    """The frames of a rank that waits in a collective."""
    return [("…/torch/distributed/distributed_c10d.py", op), ("…/torch/distributed/c10d_logger.py", "wrapper")]


def at_work(scene: Scene) -> list[tuple[str, str]]:
    """The frames of a rank that is about something else."""
    work = scene.dice.choice(_WORK)
    return scene.dice.choice([[work], [("…/json/encoder.py", "iterencode"), work], [("…/threading.py", "join"), work]])


def traceback(scene: Scene, last: str, op: str = "") -> str:
    """What Python prints of an exception, from a line of the program's own on, perhaps through a collective."""
    frames = [(scene.file, "main", "train(model, loader)"), (scene.file, "train", "step(model, batch)")]
    if op:
        frames += [("…/torch/distributed/c10d_logger.py", "wrapper", "return func(*args, **kwargs)")]
        frames += [("…/torch/distributed/distributed_c10d.py", op, "work.wait()")]
    lines = [f'  File "{file}", line {scene.line()}, in {name}\n    {text}' for file, name, text in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, last]) + "\n"


def _echo(scene: Scene) -> Left:
    """A rank whose partner has gone."""
    last = "RuntimeError: " + scene.dice.choice(ECHOES).format(port=scene.dice.randint(1024, 65_000))
    return Left(ended=scene.dice.choice([1, 1, 1, -15]), said=traceback(scene, last, scene.op))


def _late(scene: Scene) -> Left:
    """A rank that has waited for too long; some are aborted while they end."""
    way, line = scene.dice.choice([("recv", 78), ("send", 129)])
    said = traceback(scene, "RuntimeError: " + TOO_LATE.format(line=line, ms=scene.ms, way=way), scene.op)
    ended = scene.dice.choice([1, 1, 1, -6])
    said += "terminate called without an active exception\n" if ended == -6 else ""
    return Left(ended=ended, said=said, stood=stack(scene, within(scene.op)))


def _waiting(scene: Scene, n_late: int) -> list[Left]:
    """The ranks not at fault, some of which ran out of time, and others heard of that."""
    lefts = [_late(scene) if i < n_late else _echo(scene) for i in range(scene.world_size - 1)]
    heard = [Left(ended=e.ended, said=e.said, stood=e.stood or stack(scene, within(scene.op))) for e in lefts]
    scene.dice.shuffle(heard)
    return heard


def _with(scene: Scene, others: list[Left], one: Left) -> list[Left]:
    """All ranks in order, the one at fault in its place."""
    return [*others[: scene.at_fault], one, *others[scene.at_fault :]]


def _skipped(scene: Scene) -> list[Left]:
    n_late = scene.dice.randint(1, scene.world_size - 1)
    return _with(scene, _waiting(scene, n_late), Left(ended=-15, stood=stack(scene, at_work(scene))))


def _uneven(scene: Scene) -> list[Left]:
    done = scene.dice.choice(["", "done\n", f"epoch finished, {scene.dice.randint(90, 990)} batches\n"])
    n_late = scene.dice.choice([0, 0, 1, scene.world_size - 1])
    others = _waiting(scene, n_late) if n_late else [_echo(scene) for _ in scene.others()]
    return _with(scene, others, Left(ended=0, said=done))


def _killed(scene: Scene) -> list[Left]:
    one = Left(ended=scene.dice.choice([-9, -9, -11, -7]), said=scene.dice.choice(["", "step 40: loss 2.31\n"]))
    return _with(scene, [_echo(scene) for _ in scene.others()], one)


def _raised(scene: Scene) -> list[Left]:
    own = scene.dice.choice(OWN_ERRORS).format(n=scene.dice.randint(2, 4000))
    one = Left(ended=1, said=traceback(scene, own, "_check_single_tensor" if "torch.Tensor" in own else ""))
    return _with(scene, [_echo(scene) for _ in scene.others()], one)


def _differed(scene: Scene) -> list[Left]:
    ops = scene.dice.sample([each for each in COLLECTIVES if each != "barrier"], 2)
    size, more = scene.dice.randint(2, 900), scene.dice.randint(1, 60)
    if scene.dice.random() < 0.5:
        usual, odd = (COLLECTIVES[ops[0]], str(size)), (COLLECTIVES[ops[0]], str(size + more))
    else:
        usual, odd = (COLLECTIVES[ops[0]], str(size)), (COLLECTIVES[ops[1]], str(size))
    number = scene.dice.randint(0, 4000)
    said = [odd if rank == scene.at_fault else usual for rank in range(scene.world_size)]
    return [_apart(scene, rank, said, number) for rank in range(scene.world_size)]


def _apart(scene: Scene, rank: int, said: list[tuple[str, str]], number: int) -> Left:
    """A rank whose fingerprint is not that of another; what it says of the other may be garbled."""
    other = scene.others()[0] if rank == scene.at_fault else scene.at_fault
    mine, theirs = (PRINT.format(number=number, op=said[r][0], shape=said[r][1]) for r in (rank, other))
    if scene.dice.random() < 0.4:
        theirs = f"CollectiveFingerPrint(SequenceNumber={number}OpType={scene.dice.choice(['GATHER', 'SCATTER'])})"
    differ = f"Op type: {said[rank][0]}vs {said[other][0]}" if said[rank][0] != said[other][0] else ""
    aspects = differ or f"Tensor Tensor shapes: {said[rank][1]}vs {said[other][1]}"
    text = APART.format(rank=rank, mine=mine, other=other, theirs=theirs, aspects=aspects)
    return Left(ended=1, said=traceback(scene, f"RuntimeError: {text}", scene.op))


def _forked(scene: Scene) -> list[Left]:
    scene.launcher = "fork"
    if scene.dice.random() < 0.3:
        return [Left(ended=1, said=traceback(scene, CUDA)) for _ in range(scene.world_size)]
    frames = [("model.py", scene.dice.choice(["forward", "init_weights", "normalise"]))]
    return [Left(ended=-15, stood=stack(scene, frames)) for _ in range(scene.world_size)]


def _port(scene: Scene) -> list[Left]:
    last = TAKEN.format(port=scene.dice.randint(1024, 65_000))
    through = traceback(scene, last).replace(scene.file, "…/torch/distributed/rendezvous.py")
    return [Left(ended=1, said=through), *(Left(ended=-15) for _ in range(scene.world_size - 1))]


_MAKERS = (_skipped, _differed, _uneven, _forked, _port, _killed, _raised)


def made_up(cause: str, dice: random.Random) -> tuple[list[Left], int]:
    """A report of a fault, and the rank at fault; -1 where the fault is not one rank's. ValueError: no such cause."""
    if cause not in CAUSES:
        raise ValueError(f"{cause!r} is none of the causes: {', '.join(CAUSES)}.")
    drawn = scene(dice)
    report = dict(zip(CAUSES, _MAKERS, strict=True))[cause](drawn)
    return report, -1 if cause in ("forked", "port") else drawn.at_fault


def _practised(cause: str, seed: int) -> tuple[list[Left], int]:
    return made_up(cause, random.Random(f"practice {cause} {seed}"))


def practice(cause: str, seed: int = 0) -> list[Left]:
    """A report of a fault to look at; the check asks about such reports, and names their seeds."""
    return _practised(cause, seed)[0]


def rank_at_fault(cause: str, seed: int = 0) -> int:
    """Which rank is at fault in the report that `practice` gives; -1 where the fault is not one rank's."""
    return _practised(cause, seed)[1]


def dice_from(rng: torch.Generator) -> random.Random:
    """Python's own generator, seeded by torch's."""
    return random.Random(int(torch.randint(2**62, (), generator=rng)))
