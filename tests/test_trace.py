"""What a report says: against brute force on small GPU traces, on a real one of this CPU, and on foreign ones."""

import json
import time

import numpy as np
import pytest
import torch
from fabricated_trace import DATA, Program, event, write
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import trace
from labkit.timeline import CAUSES, Span

KINDS = {
    "kernel": ("gemm", "kernel"),
    "communication": ("ncclDevKernel_AllReduce_Sum_f32", "kernel"),
    "copy": ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
    "memset": ("Memset (Device)", "gpu_memset"),
}
WORK = st.lists(
    st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 60), st.integers(1, 15)), min_size=1, max_size=14
)


def _cells(work, *kinds):
    """The microseconds in which something of these kinds ran: the oracle."""
    return {cell for kind, start, width in work if kind in kinds for cell in range(start, start + width)}


@settings(deadline=None)
@given(WORK, st.integers(1, 3))
def test_a_report_says_what_counting_microseconds_says(tmp_path_factory, work, n_gpus):
    events = [
        event(KINDS[kind][0], start, width, KINDS[kind][1], i % n_gpus, 7 + i % 4, device=i % n_gpus, bytes=width)
        for i, (kind, start, width) in enumerate(work)
    ]
    events += [event("aten::mm", 0, 90)]
    said = json.loads(trace.report(write(tmp_path_factory.mktemp("t") / "t.json", events)).json())
    assert said["span_s"] == pytest.approx(90e-6)
    for gpu in range(min(n_gpus, len(work))):
        mine, found = work[gpu::n_gpus], said["devices"][f"GPU {gpu}"]
        busy, talking = _cells(mine, *KINDS), _cells(mine, "communication")
        assert found["busy_s"] == pytest.approx(len(busy) * 1e-6)
        assert found["idle_s"] == pytest.approx((90 - len(busy)) * 1e-6)
        assert found["idle_share"] == pytest.approx(1 - len(busy) / 90)
        between = max(busy) + 1 - min(busy)
        assert found["idle_share_between"] == pytest.approx(1 - len(busy) / between)
        assert sum(found["idle_causes"].values()) == pytest.approx(found["idle_s"])
        assert set(found["idle_causes"]) <= set(CAUSES)
        assert found["kernels"] == sum(kind == "kernel" for kind, *_ in mine)
        assert found["copies"] == sum(kind == "copy" for kind, *_ in mine)
        assert found["copied_bytes"] == sum(width for kind, _, width in mine if kind == "copy")
        assert found["communication_s"] == pytest.approx(len(talking) * 1e-6)
        assert found["exposed_communication_s"] == pytest.approx(len(talking - _cells(mine, "kernel")) * 1e-6)
        spent = {}
        for kind, _, width in mine:
            spent[KINDS[kind][0]] = spent.get(KINDS[kind][0], 0) + width
        top = {each["name"]: each["seconds"] for each in found["top"]}
        assert top == {name: pytest.approx(width * 1e-6) for name, width in spent.items()}
        assert list(top.values()) == sorted(top.values(), reverse=True)


def test_the_keys_that_programs_rely_on(tmp_path):
    said = json.loads(trace.report(write(tmp_path / "t.json", Program().run(3))).json())
    keys = {"busy_s", "idle_s", "idle_share", "kernels", "copies", "communication_s", "exposed_communication_s", "top"}
    assert keys <= set(said["devices"]["GPU 0"])
    assert {"span_s", "devices", "host", "steps", "slow_steps", "notes"} <= set(said)


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ([event(DATA, 100, 90, "user_annotation")], "data wait"),
        ([event("cudaStreamSynchronize", 20, 80, "cuda_runtime"), event("aten::mm", 101, 99)], "synchronisation"),
        ([event("cudaMemcpyAsync", 100, 90, "cuda_runtime")], "copy"),
        ([event("cudaMemcpyAsync", 100, 40, "cuda_runtime")], "launch-bound"),
        ([event("aten::add", 100 + 10 * i, 8) for i in range(10)], "launch-bound"),
        ([event("cudaMalloc", 100, 90, "cuda_runtime")], "allocator"),
        ([event("hipFree", 100, 90, "hip_runtime")], "allocator"),
        ([event("Python GC", 100, 90, "python_function")], "garbage collection"),
        ([event("_compile.compile_inner (dynamo_timed)", 100, 90)], "compilation"),
        ([event("gloo:all_reduce", 100, 90)], "communication"),
        ([event("train.py(3): main", 0, 300, "python_function")], "nothing known"),
    ],
)
def test_why_a_gpu_was_idle(tmp_path, host, cause):
    device = [event("k", start, 100, "kernel", 0, 7) for start in (0, 200)]
    (gpu,) = trace.report(write(tmp_path / "t.json", [*device, *host])).devices.values()
    assert {cause: pytest.approx(seconds) for cause, seconds in gpu.idle_causes.items()} == {cause: 100e-6}


def test_a_gap_before_work_that_was_queued_already_is_not_the_hosts(tmp_path):
    launches = [event("cudaLaunchKernel", 10 * i, 5, "cuda_runtime", correlation=i) for i in range(1, 4)]
    launches.append(event("cudaLaunchKernel", 260, 5, "cuda_runtime", correlation=4))
    work = [event("k", 100 * i, 60, "kernel", 0, 7, correlation=i) for i in range(1, 5)]
    host = [event("aten::mm", 0, 500)]
    (gpu,) = trace.report(write(tmp_path / "t.json", launches + work + host)).devices.values()
    assert {cause: round(s * 1e6) for cause, s in gpu.idle_causes.items()} == {
        "launch-bound": 140,
        "between queued work": 120,
    }
    work[2]["args"]["correlation"] = 4  # its launch at 260 lies in the gap from 260 on
    (gpu,) = trace.report(write(tmp_path / "u.json", launches + work + host)).devices.values()
    assert round(gpu.idle_causes["launch-bound"] * 1e6) == 180


def test_without_a_gpu_the_cpu_is_the_device_by_its_outermost_operators(tmp_path):
    events = [
        event("aten::linear", 0, 40),
        event("aten::addmm", 5, 30),
        event("autograd::engine::evaluate_function: MulBackward0", 50, 100),
        event("aten::mul", 60, 10),
        event("aten::copy_", 80, 10),
        event("entire_frame_compile", 100, 200),
        event("aten::mm", 210, 50),
        event("aten::sum", 30, 20, tid=2),
    ]
    report = trace.report(write(tmp_path / "t.json", events))
    (name, cpu), *rest = report.devices.items()
    assert (name, rest) == ("CPU", [])
    assert cpu.busy_s == pytest.approx(70e-6)
    assert (cpu.kernels, cpu.copies) == (3, 1)
    assert {top.name for top in cpu.top} == {"aten::linear", "aten::mul", "aten::copy_", "aten::sum"}
    assert cpu.idle_causes["compilation"] == pytest.approx(210e-6)
    assert "3 operators" in report.text()


def test_a_profile_of_this_cpu_is_read_once():
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(3):
            with record_function("step"):
                torch.ones(64, 64).mm(torch.ones(64, 64)).sum().item()
    found = trace.read(profiled)
    report = trace.report(found)
    assert found.devices == ["CPU"]
    assert report.devices["CPU"].kernels == sum(span.row == "CPU" for span in found.spans) >= 9
    assert "aten::mm" in {top.name for top in report.devices["CPU"].top}
    assert [step.name for step in found.steps] == ["step"] * 3
    assert 0 < report.devices["CPU"].busy_s < report.span_s
    with pytest.raises(trace.TraceError, match="This profile gives no trace"):
        trace.read(profiled)


def test_what_a_trace_cannot_tell_of_the_host_is_no_zero(tmp_path):
    plain = trace.report(write(tmp_path / "t.json", [event("aten::mm", 0, 90)]))
    assert set(json.loads(plain.json())["host"].values()) == {None}
    for said in (plain.text(), plain.html()):
        assert "launches and waits for a device: not recorded; waits for data: none marked" in said
        assert "waited" not in said
    launched = [event("cudaLaunchKernel", 0, 5, "cuda_runtime"), event(DATA, 10, 40, "user_annotation")]
    report = trace.report(write(tmp_path / "u.json", [*launched, event("k", 20, 5, "kernel", 0, 7)]))
    assert str(report.host) == "1 launch; waited 0 ns for a device (0 times); waited 40 µs for data (1 time)"
    assert f"Host: {report.host}\n" in report.text()


def test_the_worker_of_the_device_thread_is_a_device(tmp_path):
    marked = "labkit device: "
    events = [
        event("aten::mm", 0, 90),
        event("labkit launch: mm", 1, 4),
        event("labkit compile: mm", 5, 46),
        event("labkit launch: copy to host", 53, 2),
        event("labkit wait: copy to host", 55, 16),
        event(marked + "mm", 10, 40, "user_annotation", tid=2),
        event("aten::mm", 12, 30, tid=2),
        event(marked + "copy to host", 60, 10, "user_annotation", tid=2),
        event(marked + "synchronize", 75, 5, "user_annotation", tid=2),
    ]
    found = trace.read(write(tmp_path / "t.json", events))
    report = trace.report(found)
    device, host = report.devices["device thread"], report.host
    assert (host.launches, host.waits, round(host.wait_s * 1e6)) == (2, 1, 16)
    assert (device.kernels, device.copies, round(device.busy_s * 1e6)) == (1, 1, 50)
    assert found.devices == ["device thread"]
    assert [span.name for span in found.spans if span.row == "device thread"] == ["mm", "copy to host", "synchronize"]
    kinds = {span.kind: span.name for span in found.spans if span.row != "device thread"}
    assert kinds == {"host": "aten::mm", "launch": "copy to host", "compile": "mm", "wait": "copy to host"}


def test_spans_are_a_trace_too():
    spans = [
        Span(row="host", name="read", start_s=5.0, end_s=6.0, kind="data"),
        Span(row="worker", name="mm", start_s=6.0, end_s=8.0, kind="kernel"),
    ]
    report = trace.report(spans)
    assert (report.span_s, report.devices["worker"].idle_s) == (3.0, 1.0)
    assert report.devices["worker"].idle_causes == {"data wait": 1.0}
    assert report.trace.spans[1] == Span(row="worker", name="mm", start_s=1.0, end_s=3.0, kind="kernel")
    assert trace.report([]).span_s == 0.0


def _times(path):
    found = trace.read(path)
    return [(span.row, span.name, round(span.start_s * 1e6), round(span.seconds * 1e6)) for span in found.spans], found


def test_beginnings_and_ends_are_paired_by_thread_and_nesting(tmp_path):
    marks = [("B", "outer", 0, 1), ("B", "other", 3, 2), ("B", "inner", 5, 1), ("E", None, 8, 1), ("E", "", 10, 2)]
    marks += [("E", "outer", 20, 1), ("E", "stray", 21, 1), ("B", "open", 22, 1)]
    events = [{"ph": ph, "name": name, "ts": ts, "pid": "p", "tid": tid} for ph, name, ts, tid in marks]
    spans, found = _times(write(tmp_path / "t.json", events))
    spans = [each for each in spans if each[0] != "CPU"]
    assert spans == [("thread 1", "outer", 0, 20), ("thread 2", "other", 3, 7), ("thread 1", "inner", 5, 3)]
    assert "1 event left out: ends without a beginning." in found.notes
    assert "1 event left out: begun and never ended." in found.notes


def test_events_that_lack_or_garble_their_time_are_left_out_and_counted(tmp_path):
    good = event("aten::mm", "10", 5.5)
    bad = [{**good, "ts": ts} for ts in (None, "soon", [1], True, float("nan"), 1e300)]
    bad += [{**good, "dur": dur} for dur in (None, -1, {})] + [{"ph": "X"}]
    _, found = _times(write(tmp_path / "t.json", [good, *bad, 7, None, "text", [], {}]))
    assert len(found.columns) == 2, "the operator, and the CPU's work"
    assert found.notes == [f"{len(bad)} events left out: without a time."]


def test_odd_types_where_names_and_numbers_belong(tmp_path):
    odd = event(["a", "list"], 0, 5, cat=None, pid={"a": 1}, tid=[2])
    odd["args"] = "text"
    kernel = event("k", 0, 5, "kernel", "GPU A", "stream", correlation="x", device="GPU A", bytes="many")
    label = {"ph": "M", "name": "thread_name", "pid": 3, "tid": 4, "args": None}
    _, found = _times(write(tmp_path / "t.json", [odd, kernel, label, event(12, 1, 2)]))
    assert found.devices == ["GPU A"]
    assert {"['a', 'list']", "k", "12"} == set(found.names)


def test_rows_have_the_names_that_the_trace_gives_them_and_none_is_there_twice(tmp_path):
    labels = [{"ph": "M", "name": "thread_name", "pid": pid, "tid": 1, "args": {"name": "main"}} for pid in ("7", 8)]
    events = [event("aten::mm", 0, 5, pid=7, tid="1"), event("aten::mm", 0, 5, pid=8), event("k", 0, 1, "kernel", 1, 7)]
    _, found = _times(write(tmp_path / "t.json", labels + events))
    assert set(found.rows) == {"main", "main of process 8", "GPU 1"}


def test_the_devices_of_xla_are_the_processes_of_that_name(tmp_path):
    labels = [{"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "/device:GPU:0"}}]
    labels += [{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "/host:CPU"}}]
    events = [event("fusion.1", 0, 5, cat=None, pid=3, tid=t) for t in (1, 2)] + [event("PjitFunction", 0, 9, None, 9)]
    report = trace.report(write(tmp_path / "t.json", labels + events))
    assert {name: round(device.busy_s * 1e6) for name, device in report.devices.items()} == {"device:GPU:0": 5}


def test_a_trace_without_devices_or_operators_says_so(tmp_path):
    report = trace.report(write(tmp_path / "t.json", [event("work", 0, 6, None), event("inner", 1, 2, None)]))
    assert report.devices["CPU"].busy_s == pytest.approx(6e-6)
    assert "no PyTorch operators" in report.notes[0]
    marks = trace.report(write(tmp_path / "u.json", [event("epoch", 0, 6, "user_annotation")]))
    assert marks.devices["CPU"].busy_s == 0.0
    assert marks.text()


def _many_devices(n):
    """Thirty kernels a device and thirty operators on threads of their own."""
    kernels = [event(f"k{i % 5}", 100 * i, 50, "kernel", device=i % n) for i in range(30 * n)]
    return kernels + [event("aten::mm", 10 * i, 5, pid=1000 + i % n, tid=i) for i in range(30 * n)]


def _many_threads(n):
    """Ninety threads for each of n, one operator each, and no device."""
    return [event("aten::mm", 10 * i, 5, pid=i, tid=i) for i in range(90 * n)]


def _many_accelerators(n):
    """Three devices for each of n, in the manner of XLA, with ten operations each."""
    labels = [{"ph": "M", "name": "process_name", "pid": i, "args": {"name": f"/device:TPU:{i}"}} for i in range(3 * n)]
    return labels + [event("fusion", 10 * i, 5, "", pid=i % (3 * n), tid=i % 3) for i in range(30 * n)]


@pytest.mark.parametrize("made", [_many_devices, _many_threads, _many_accelerators])
def test_ten_times_the_rows_and_events_take_about_ten_times_as_long(tmp_path, made):
    """In the processor's time, the shortest of three; where each row looked through all events it was a hundred."""
    taken_s = []
    for n in (20, 200):
        path = write(tmp_path / "t.json", made(n))
        tries = []
        for _ in range(3):
            start_s = time.process_time()
            report = trace.report(path)
            report.text(), report.json(), report.html()
            tries.append(time.process_time() - start_s)
        taken_s.append(min(tries))
    assert taken_s[1] < 30 * taken_s[0]


def test_an_unknown_device_is_a_key_error(tmp_path):
    found = trace.read(write(tmp_path / "t.json", Program().run(1)))
    with pytest.raises(KeyError, match="no device 'GPU 9'; there are: GPU 0"):
        found.work("GPU 9")


def test_a_window_gives_the_spans_that_touch_it(tmp_path):
    found = trace.read(write(tmp_path / "t.json", [event("aten::mm", 10 * i, 5) for i in range(5)]))
    hosts = [span for span in found.window(14e-6, 31e-6) if span.row != "CPU"]
    assert [round(span.start_s * 1e6) for span in hosts] == [10, 20, 30]
    assert list(found.window(shortest_s=1.0)) == []


def test_times_are_exact_for_clocks_that_count_from_1970(tmp_path):
    start = 1.7e15
    _, found = _times(write(tmp_path / "t.json", [event("a", start, 1), event("a", start + 10, 1)]))
    hosts = found.columns.start_s[found.columns.row == 0]
    assert np.diff(hosts) == pytest.approx([10e-6], abs=0.3e-6)
