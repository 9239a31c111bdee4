"""Launches of ranks in which a stage of ZeRO is tried and looked at, for lesson 14.

Ranks take time to start, so one launch does all that is asked of a world, and what a case has seen of a stage is kept
for its mechanism. Modules that ranks need are apart from this one: what it keeps cannot be sent to them.
"""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from labkit.checks.replicas import in_ranks

Task = tuple[Callable, tuple, int, bool]  # a stage, the shapes or sizes it is tried on, a seed, whether to look
_kept: WeakKeyDictionary[Callable, list] = WeakKeyDictionary()


def launched(number: str, trained: Callable, world_size: int, tasks: Sequence[Task]) -> list[tuple]:
    """What each rank gives for each task: [task][rank]."""
    return list(zip(*in_ranks(number, _each, world_size, trained, tasks), strict=True))


def _each(trained: Callable, tasks: Sequence[Task]) -> list:
    """What trained gives for each task, in this rank."""
    return [trained(*task) for task in tasks]


def keep(stage: Callable, looks: list) -> None:
    """Keep what a case saw of a stage's memory for its mechanism, which the same verdict asks for next."""
    _kept[stage] = looks


def taken(stage: Callable, launch: Callable[[], list]) -> list:
    """What a case saw, once: a second check of the same stage looks anew. Without a case, what a launch sees."""
    return _kept.pop(stage, None) or launch()
