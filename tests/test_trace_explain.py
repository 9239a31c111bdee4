"""Slow steps of a trace: each planted cause is named, in GPU and in CPU traces, over several seeds."""

import pytest
from fabricated_trace import DATA, Program, event, write

from labkit import trace

CAUSES = (
    "data wait",
    "recompilation",
    "garbage collection",
    "allocator",
    "longer sequence",
    "slower operation",
    "communication",
    "host (Python)",
)


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "cpu"])
@pytest.mark.parametrize("seed", range(3))
def test_each_planted_cause_is_named(tmp_path, gpu, seed):
    planted = {20 + 23 * i: cause for i, cause in enumerate(CAUSES)}
    path = write(tmp_path / "t.json", Program(seed, gpu).run(210, planted))
    found = trace.explain(trace.read(path))
    assert {each.slow.index: each.cause for each in found} == planted
    for each in found:
        assert each.causes[0][1] == pytest.approx(each.slow.seconds / 2, rel=0.35)
        assert each.step.name == f"ProfilerStep#{each.slow.index}"
    notes = {each.cause: each.note for each in found}
    assert notes["longer sequence"] == "shapes that its neighbours do not have"
    assert "kernel_3 took" in notes["slower operation"]
    assert not notes["data wait"]


def test_without_recorded_shapes_a_longer_sequence_is_still_one(tmp_path):
    events = Program().run(60, {30: "longer sequence"})
    for each in events:
        each["args"].pop("Input Dims", None)
    (found,) = trace.explain(trace.read(write(tmp_path / "t.json", events)))
    assert (found.cause, found.note) == ("longer sequence", "most operations took longer")


def test_more_kernels_are_a_longer_sequence(tmp_path):
    program = Program()
    program.run(30)
    start = program.now
    for i in range(60):
        program.device(f"kernel_{i % 12}", 150, 128)
    program.step(30)
    program.events[-1].update(ts=start, dur=program.now - 5 - start)
    for number in range(31, 60):
        program.step(number)
    (found,) = trace.explain(trace.read(write(tmp_path / "t.json", program.events)))
    assert (found.cause, found.note) == ("longer sequence", "72 operations instead of 12")


def test_two_causes_are_both_named_with_their_seconds(tmp_path):
    program = Program(noise=0)
    program.run(20)
    program.now += 1500
    start = program.now - 1500
    program.step(20, "data wait")
    program.events[-1].update(ts=start, dur=program.now - 5 - start)
    for number in range(21, 40):
        program.step(number)
    (found,) = trace.explain(trace.read(write(tmp_path / "t.json", program.events)))
    assert [cause for cause, _ in found.causes] == ["data wait", "host (Python)"]
    assert [seconds for _, seconds in found.causes] == pytest.approx([2300e-6, 1500e-6], rel=0.01)
    assert str(found).startswith("ProfilerStep#20: ")
    assert "data wait (+2.3 ms), host (Python) (+1.5 ms)" in str(found)


def test_stacks_do_not_hide_the_hosts_own_time(tmp_path):
    events = Program().run(60, {30: "host (Python)"})
    whole = event("train.py(1): main", events[0]["ts"], 1e6, "python_function")
    (found,) = trace.explain(trace.read(write(tmp_path / "t.json", [whole, *events])))
    assert found.cause == "host (Python)"


def test_few_steps_or_none_explain_nothing(tmp_path):
    assert trace.explain(trace.read(write(tmp_path / "t.json", Program().run(5, {3: "data wait"})))) == []
    assert trace.explain(trace.read(write(tmp_path / "u.json", [event("aten::mm", 0, 5)]))) == []


@pytest.mark.parametrize("name", ["ProfilerStep#{}", "step", "train_step", "iteration {}", "Step {}"])
def test_steps_by_the_names_that_people_give(tmp_path, name):
    events = [event(name.format(i), 100 * i, 90, "user_annotation") for i in range(4)]
    steps = trace.read(write(tmp_path / "t.json", events)).steps
    assert [step.seconds for step in steps] == pytest.approx([90e-6] * 4)


def test_the_profilers_steps_come_before_a_users_and_nested_ones_are_left_out(tmp_path):
    inner = [event("step", 100 * i + 10, 50, "user_annotation") for i in range(3)]
    outer = [event(f"ProfilerStep#{i}", 100 * i, 90, "user_annotation") for i in range(3)]
    assert [s.name for s in trace.read(write(tmp_path / "t.json", inner + outer)).steps] == [e["name"] for e in outer]
    nested = [event("step", 0, 100, "user_annotation"), *inner[:1]]
    assert len(trace.read(write(tmp_path / "u.json", nested)).steps) == 1


def test_without_annotations_a_step_lasts_from_one_optimizer_step_to_the_next(tmp_path):
    events = [event("Optimizer.step#SGD.step", 100 * i, 10, "user_annotation") for i in range(4)]
    report = trace.report(write(tmp_path / "t.json", events))
    steps = report.trace.steps
    assert [(step.name, round(step.seconds * 1e6)) for step in steps] == [(f"step {i}", 100) for i in (1, 2, 3)]
    assert (report.steps, report.steps_inferred) == (3, True)
    for said in (report.text(), report.html()):
        assert "3 steps, 100 µs in the median; 0 slow. None was marked: each lies between the ends of two" in said
    marked = trace.report(write(tmp_path / "u.json", [*events, event("ProfilerStep#0", 0, 90, "user_annotation")]))
    assert (marked.steps, marked.steps_inferred) == (1, False)
    assert "None was marked" not in marked.text() + marked.html()
    assert not trace.report(write(tmp_path / "v.json", events[:1])).steps_inferred, "of no steps none is inferred"


def test_a_data_wait_inside_a_longer_annotation_counts_once(tmp_path):
    events = [event("load_batch", 0, 100, "user_annotation"), event(DATA, 10, 50, "user_annotation")]
    host = trace.report(write(tmp_path / "t.json", events)).host
    assert (host.data_waits, round(host.data_wait_s * 1e6)) == (1, 100)
