"""Profiler traces: what the device did, why it stood idle, which steps were slow and what differed in them."""

from labkit.trace.slow import SlowStep, slow_steps

__all__ = ["SlowStep", "slow_steps"]
