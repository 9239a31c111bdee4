"""Profiler traces: what the device did, why it stood idle, which steps were slow and what differed in them.

One file is one process's. Beside Meta's HolisticTraceAnalysis 0.5 (HTA), told to keep the last step and parts of
microseconds, on 23 traces of its own tests (NVIDIA, AMD, MTIA): 11 agree in idle time, kernels, copies and overlapped
communication to all digits that it prints; 6 differ where there are synchronisation events, which it seems to count as
work; in 5 it counts fewer kernels, and one differs in its busy time, for reasons not all understood. On 200 MB it takes
more than twice the time and seven times the memory. On traces without a GPU it raises an error, and it looks neither
for slow steps nor for causes on the host. So this package reads every trace of the course, and HTA is for what is not
here: many ranks side by side, critical paths, queue lengths, two runs compared.
"""

from labkit.trace.explain import Explained, explain
from labkit.trace.model import Step, Trace
from labkit.trace.profiling import profiler
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
    "profiler",
    "read",
    "report",
    "slow_steps",
]
