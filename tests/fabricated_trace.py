"""Chrome traces made up for the tests: training steps on a GPU or a CPU, with one thing changed in chosen steps."""

import json
import random

DATA = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def event(name, start_us, duration_us, cat="cpu_op", pid=1, tid=1, **args):
    """One complete event."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }


def write(path, events, **header):
    """A trace file of these events."""
    path.write_text(json.dumps({**header, "traceEvents": events}), encoding="utf-8")
    return path


class Program:
    """A loop of steps: wait for data, twelve operators that launch a kernel each, an all-reduce, a wait at the end."""

    def __init__(self, seed=0, gpu=True, noise=0.03):
        self.random, self.gpu, self.noise = random.Random(seed), gpu, noise
        self.events, self.now, self.free, self.link = [], 1e9, 0.0, 0

    def took(self, typical_us):
        """A duration around the typical one."""
        return typical_us * self.random.lognormvariate(0, self.noise)

    def host(self, name, typical_us, cat="cpu_op", **args):
        """Something on the host's thread."""
        duration = self.took(typical_us)
        self.events.append(event(name, self.now, duration, cat, **args))
        self.now += duration

    def device(self, name, typical_us, length, cat="kernel"):
        """An operator that launches a kernel, or computes by itself where there is no GPU."""
        shape = [[32, length]]
        if not self.gpu:
            self.host(f"aten::{name}", typical_us, **{"Input Dims": shape})
            return
        self.link += 1
        self.events.append(event(f"aten::{name}", self.now, 9, **{"Input Dims": shape}))
        self.events.append(event("cudaLaunchKernel", self.now + 2, 5, "cuda_runtime", correlation=self.link))
        self.free = max(self.free, self.now + 8)
        duration = self.took(typical_us)
        self.events.append(event(name, self.free, duration, cat, 0, 7, device=0, correlation=self.link))
        self.free, self.now = self.free + duration, self.now + 10

    def step(self, number, cause=""):
        """One step of about 2.4 ms, or of twice that for this cause."""
        start = self.now
        self.host(DATA, 2500 if cause == "data wait" else 200, "user_annotation")
        if cause == "recompilation":
            self.host("entire_frame_compile", 2400)
        if cause == "garbage collection":
            self.host("Python GC", 2400, "python_function")
        if cause == "allocator":
            for name in ("cudaFree", "cudaMalloc") if self.gpu else ("aten::empty", "aten::resize_"):
                self.host(name, 1200, "cuda_runtime" if self.gpu else "cpu_op")
        if cause == "host (Python)":
            self.now += 2400
        longer = 2 if cause == "longer sequence" else 1
        for i in range(12):
            slow = cause == "slower operation" and i == 3
            self.device(f"kernel_{i}", 2400 if slow else 150 * longer, 128 * longer)
        name = "ncclKernel_AllReduce" if self.gpu else "gloo:all_reduce"
        if self.gpu:
            self.device(name, 2500 if cause == "communication" else 200, 128)
            self.events.append(event("cudaStreamSynchronize", self.now, self.free - self.now + 3, "cuda_runtime"))
            self.now = self.free + 3
        else:
            self.host(name, 2500 if cause == "communication" else 200)
        self.events.append(event(f"ProfilerStep#{number}", start, self.now - start, "user_annotation"))
        self.now += 5

    def run(self, steps, planted=None):
        """All steps, with the causes planted by number; the events."""
        for number in range(steps):
            self.step(number, (planted or {}).get(number, ""))
        return self.events
