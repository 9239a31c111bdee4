"""Profiler traces: what the device did, why it stood idle, which steps were slow and what differed in them."""

from labkit.trace.explain import Explained, explain
from labkit.trace.model import Step, Trace
from labkit.trace.reading import of_spans, read
from labkit.trace.reporting import Device, Host, Report, report
from labkit.trace.slow import SlowStep, slow_steps
from labkit.trace.stream import TraceError

__all__ = [
    "Device",
    "Explained",
    "Host",
    "Report",
    "SlowStep",
    "Step",
    "Trace",
    "TraceError",
    "explain",
    "of_spans",
    "read",
    "report",
    "slow_steps",
]
