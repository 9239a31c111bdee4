"""Ranks from a notebook: real processes that run a function of a cell, counted, watched and ended.

A notebook's own process is never forked: a fork after torch has used OpenMP's threads hangs, and one after CUDA was
used fails. Ranks are forked from a server that has loaded torch and done nothing with it.
"""

from labkit.ranks.collectives import Counting, Event, counting
from labkit.ranks.errors import RankError
from labkit.ranks.launching import run_ranks
from labkit.ranks.magic import register
from labkit.ranks.worker import device

__all__ = ["Counting", "Event", "RankError", "counting", "device", "run_ranks"]

register()
