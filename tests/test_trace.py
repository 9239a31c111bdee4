"""Traces: known answers from small synthetic ones, real ones of this CPU, and every kind of broken file."""

import json

import pytest

from labkit import trace


def _event(name, start_us, duration_us, cat="cpu_op", pid=1, tid=1, **args):
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


@pytest.fixture
def write(tmp_path):
    """Writes a trace file of these events and returns its path."""

    def to_file(events, name="trace.json"):
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        return path

    return to_file


def test_a_small_gpu_trace_has_the_answers_that_can_be_counted(write):
    events = [
        _event("aten::mm", 0, 100),
        _event("k1", 10, 20, "kernel", 0, 7),
        _event("k2", 20, 20, "kernel", 0, 8),
        _event("ncclKernel_AllReduce", 35, 15, "kernel", 0, 9),
        _event("Memcpy HtoD (Pinned -> Device)", 60, 10, "gpu_memcpy", 0, 7, bytes=1000),
        _event("Memset (Device)", 80, 1, "gpu_memset", 0, 7),
    ]
    report = trace.report(write(events))
    said = json.loads(report.json())
    assert said["span_s"] == pytest.approx(100e-6)
    device = said["devices"]["GPU 0"]
    assert device["busy_s"] == pytest.approx(51e-6)
    assert device["idle_s"] == pytest.approx(49e-6)
    assert device["idle_share"] == pytest.approx(0.49)
    assert (device["kernels"], device["copies"]) == (2, 1)
    assert device["communication_s"] == pytest.approx(15e-6)
    assert device["exposed_communication_s"] == pytest.approx(10e-6)
    assert device["top"][0]["name"] in ("k1", "k2")
