"""labkit.sync: what waits and what does not, on whose line, how often, and at what cost."""

import inspect
import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from waits_table import WAITS, WAITS_BESIDE_NO_GPU, WAITS_NOT, tensors

from labkit import device_thread, hardware, lines, sync, waits, watcher

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU: tensors stand in")


@cpu_only
@pytest.mark.parametrize("name", [*WAITS, *WAITS_BESIDE_NO_GPU])
def test_this_line_is_found(name):
    op, line = {**WAITS, **WAITS_BESIDE_NO_GPU}[name]
    t = tensors("cpu")
    with sync.watch() as report:
        line(t)
    (row,) = report.rows
    assert (row.op, row.count) == (op, 1)
    assert row.file.endswith("waits_table.py")
    assert row.advice
    assert row.seconds >= 0


@cpu_only
@pytest.mark.parametrize("name", WAITS_NOT)
def test_this_line_is_no_false_alarm(name):
    t = tensors("cpu")
    with sync.watch() as report:
        WAITS_NOT[name](t)
    assert report.rows == ()


@cpu_only
def test_a_line_is_counted_as_often_as_it_waits_and_is_the_callers_own():
    losses = [torch.tensor(float(i)) for i in range(5)]
    with sync.watch() as report:
        for loss in losses:
            value = loss.item(); seen = loss > 2  # noqa: E702, F841 (two statements, one line)
            if loss > 2:
                break
    here = inspect.getsourcelines(test_a_line_is_counted_as_often_as_it_waits_and_is_the_callers_own)[1]
    assert [(row.op, row.count, row.line - here) for row in report.rows] == [("item", 4, 5), ("bool", 4, 6)]
    assert report.rows[0].source.startswith("value = loss.item()")
    assert report.rows[0].place == f"test_sync.py, line {here + 5}"


@cpu_only
def test_waits_inside_torch_and_labkit_are_laid_to_the_line_that_called_them():
    scaler = torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler.scale(parameter.sum()).backward()
    with sync.watch() as report:
        scaler.step(optimizer)
        scaler.update()
    assert {row.op for row in report.rows} >= {"item"}
    assert all(row.file == __file__ for row in report.rows)


@cpu_only
def test_a_wait_in_the_backward_pass_is_seen():
    class Curious(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x * 2

        @staticmethod
        def backward(ctx, flowing):  # noqa: ARG004
            return flowing * float(flowing.sum())

    with sync.watch() as report:
        Curious.apply(torch.ones(2, requires_grad=True)).sum().backward()
    (row,) = report.rows
    assert row.source == "return flowing * float(flowing.sum())"


@cpu_only
def test_only_the_thread_that_watches_is_watched_and_only_while_the_block_runs():
    number = torch.tensor(1.0)
    with sync.watch() as report:
        other = threading.Thread(target=number.item)
        other.start()
        other.join()
    number.item()
    assert report.rows == ()


@cpu_only
def test_an_error_inside_leaves_nothing_behind_and_two_watches_may_stand_in_each_other():
    before = {name: vars(device_thread.Handle)[name] for name in ("cpu", "numpy", "tolist")}
    with pytest.raises(ZeroDivisionError), sync.watch() as outer, sync.watch() as inner:  # noqa: PT012
        torch.tensor(1.0).item()
        torch.ones(2).tolist()
        raise ZeroDivisionError
    assert [row.op for row in outer.rows] == [row.op for row in inner.rows] == ["item", "tolist"]
    assert {name: vars(device_thread.Handle)[name] for name in before} == before
    assert not torch.overrides._get_current_function_mode_stack()


@cpu_only
def test_watches_may_end_in_any_order_and_the_ended_one_hears_no_more():
    before = [vars(owner)[name] for owner, name in watcher._methods()]
    inside, leave = threading.Event(), threading.Event()
    reports = []

    def other():
        with sync.watch() as report:
            reports.append(report)
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with sync.watch() as mine:
        thread.start()
        inside.wait(10)
        torch.ones(1).item()
    torch.ones(1).item()
    leave.set()
    thread.join()
    assert [row.count for row in mine.rows] == [1]
    assert reports[0].rows == ()
    assert [vars(owner)[name] for owner, name in watcher._methods()] == before


@pytest.mark.parametrize("device", ["gpu", "meta", 3.5, "tpu:0"])
def test_a_device_that_is_not_there_is_a_sentence(device):
    with pytest.raises(ValueError, match="There is no device"), sync.watch(device):
        pass


@cpu_only
def test_there_is_no_gpu_to_watch():
    with pytest.raises(ValueError, match="There is no device 'cuda' here"), sync.watch("cuda"):
        pass


@cpu_only
def test_clipping_and_moving_handles_to_where_they_are_is_no_wait():
    device = device_thread.open_thread(launch_s=0.0)
    try:
        model = device.put(torch.nn.Linear(4, 4))
        x = device.put(torch.ones(2, 4))
        model(x).sum().backward()
        with sync.watch(device) as report:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            x.to(x.device)
            x.to(device=x.device, dtype=torch.float64)
        assert report.rows == ()
        with sync.watch(device) as report:
            torch.tensor([x.sum(), x.mean()])
        assert [row.op for row in report.rows] == ["tensor"]
    finally:
        device.close()


@cpu_only
def test_a_line_that_fails_after_its_wait_is_counted_too():
    with sync.watch() as report, pytest.raises(RuntimeError):
        torch.ones(2).pin_memory()
    assert [row.op for row in report.rows] == ["pin_memory"]


@cpu_only
def test_a_compiled_function_runs_under_watch():
    doubled = torch.compile(lambda x: (x * 2).sum(), backend="eager")
    assert doubled(torch.ones(3)) == 6
    with sync.watch() as report:
        result = doubled(torch.ones(3))
        assert result.item() == 6
    assert [row.op for row in report.rows] == ["item"]


@cpu_only
def test_handles_wait_and_plain_tensors_beside_them_do_not():
    device = device_thread.open(launch_s=0.0)
    try:
        x = device.put(torch.arange(4.0))
        plain = torch.ones(4)
        with sync.watch(device) as report:
            total = (x * 2).sum()
            plain.sum().item()
            plain.tolist()
            found = [total.item(), x.cpu(), x.numpy(), x.tolist(), f"{total:.1f}", repr(x), x[x > 1]]
            later = x.to("cpu", non_blocking=True)
            device.put(plain, non_blocking=True)
            device.put(plain)
            device.synchronize()
        counts = {row.op: row.count for row in report.rows}
        assert counts == {
            **{"item": 1, "cpu": 1, "numpy": 1, "tolist": 1, "print": 2, "boolean indexing": 1},
            **{"put": 1, "synchronize": 1},
        }
        assert found[0] == 12
        assert later.tolist() == [0, 1, 2, 3]
    finally:
        device.close()


@cpu_only
def test_beside_an_open_device_the_hosts_tensors_are_the_hosts():
    plain = torch.ones(4)
    device = device_thread.open_thread(launch_s=0.0)
    try:
        with sync.watch() as report:
            plain.sum().item()
            plain[plain > 0].tolist()
            device.put(plain, non_blocking=True).sum().cpu().numpy()
        with sync.watch("cpu") as everything:
            plain.tolist()
    finally:
        device.close()
    assert [row.op for row in report.rows] == ["cpu"]
    assert [row.op for row in everything.rows] == ["tolist"]


# What these bring from the host a GPU waits for; the device thread takes plain tensors along.
FROM_HOST = {"indexing by a list", "assignment by a list", "indexing by an array", "a list made a tensor"}
FROM_HOST |= {"an array made a tensor", "new_tensor"}


@cpu_only
@pytest.mark.parametrize("name", [name for name in (*WAITS, *WAITS_NOT) if name not in FROM_HOST])
def test_the_device_thread_waits_where_the_table_says_and_the_watch_sees_it(name):
    line = WAITS[name][1] if name in WAITS else WAITS_NOT[name]
    device = device_thread.open_thread(launch_s=0.0)

    def handles():
        t = tensors("cpu")
        vars(t).update({k: device.put(v.detach()) for k, v in vars(t).items() if isinstance(v, torch.Tensor)})
        t.parameter = torch.nn.Parameter(t.parameter)
        return t

    try:
        line(handles())  # the device learns the shapes
        t, before = handles(), device.waits
        line(t)
        assert (device.waits > before) == (name in WAITS)
        t = handles()
        with sync.watch(device) as report:
            line(t)
        assert bool(report.rows) == (name in WAITS)
    finally:
        device.close()


@cpu_only
def test_the_time_of_a_wait_is_the_devices():
    device = device_thread.open(launch_s=0.0)
    try:
        x = device.put(torch.randn(512, 512))
        (x @ x).sum().item()
        with sync.watch(device) as report:
            for _ in range(20):
                x = x @ x / 512
            first = x.sum().item()
            second = x.sum().item()
        assert first == second
        rows = {row.line: row.seconds for row in report.rows}
        long, short = (rows[line] for line in sorted(rows))
        assert long > 3 * short
    finally:
        device.close()


def test_watching_costs_at_most_three_more_of_the_bare_operation():
    """In a process of its own, where labkit's signatures are not checked at every call: no learner has that."""
    command = [sys.executable, Path(__file__).with_name("watching_costs.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times = json.loads(done.stdout)
    assert len(times) == 15
    assert {name: ratio for name, ratio in times.items() if ratio > 4.0} == {}


def test_when_off_nothing_is_in_the_way():
    methods = watcher._methods()
    before = [vars(owner)[name] for owner, name in methods]
    with sync.watch():
        assert [vars(owner)[name] for owner, name in methods] != before
        torch.ones(1).item()
    assert [vars(owner)[name] for owner, name in methods] == before
    assert not torch.overrides._get_current_function_mode_stack()
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_what_is_let_through_without_a_look_never_waits():
    """Each name of HARMLESS exists and, on tensors like those a network has, runs no operation that waits."""
    known = set(dir(torch.Tensor)) | set(dir(torch)) | set(dir(torch.nn.functional)) | {"__get__", "__set__"}
    assert not waits.HARMLESS - known
    assert not waits.HARMLESS & (waits.FETCHES | waits.COPIES | waits.EXPLICIT_WAITS | set(waits.OPERATIONS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own samples warn of much
def test_the_samples_of_torchs_own_tests_agree_with_what_is_let_through():
    pytest.importorskip("expecttest", reason="needs expecttest, without which torch's samples cannot be imported")
    from torch.testing._internal.common_methods_invocations import op_db

    looked_at, waited = set(), set()
    for op in op_db:
        name = op.name.split(".")[-1]
        if name in waits.HARMLESS and torch.float32 in op.dtypes:
            looked_at.add(name)
            waited |= {name for sample in list(op.sample_inputs("cpu", torch.float32))[:25] if _waits(op, sample)}
    assert len(looked_at) > 80
    assert waited == set()


def _waits(op, sample):
    found = []

    class Look(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.append(waits.operation_waits(func._opname, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    with Look():
        op.op(sample.input, *sample.args, **sample.kwargs)
    return any(found)


def test_the_report_says_it_in_words(capsys):
    report = sync.Report()
    report.show()
    assert "No line made the host wait" in capsys.readouterr().out
    report.add((__file__, 3), "item", 0.002, "keep it")
    report.add((__file__, 3), "item", 0.001, "keep it")
    report.add((__file__, 1), "a wait of the driver's", math.nan, "look")
    report.show()
    said = capsys.readouterr().out
    for part in ("test_sync.py, line 3", "item", "keep it", "3 ms", "not known"):
        assert part in said


def test_the_learners_lines_are_those_of_no_package():
    assert lines.is_foreign(torch.__file__)
    assert lines.is_foreign(inspect.__file__)
    assert lines.is_foreign(hardware.__file__)
    assert not lines.is_foreign(__file__)
    assert not lines.is_foreign("/tmp/ipykernel_1/2.py")
    assert not lines.is_foreign(f"{lines.LABKIT[:-1]}_notes.py")  # beside the package, and its name begins alike
    assert lines.place("no/such/file.py", 7) == "file.py, line 7"
    assert lines.source("no/such/file.py", 7) == ""


def test_the_cell_magic_runs_the_cell_and_names_its_lines(capsys):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        sync.load_ipython_extension(shell)
        cell = "%%syncs\nimport torch\nx = torch.ones(3)\ny = x.tolist()\nlen(y)"
        result = shell.run_cell(cell, store_history=True)
        assert result.success
        said = capsys.readouterr().out
        assert f"In[{result.execution_count}], line 4" in said
        assert "y = x.tolist()" in said
        assert "3" in said.splitlines()[0]  # the last expression is shown, as in any cell
        assert shell.user_ns["y"] == [1, 1, 1]
        assert shell.run_cell("%%syncs\nx.sum().item();").success
        assert "Out" not in capsys.readouterr().out
        assert not shell.run_cell("%%syncs\nx.tolist()\n1 / 0").success
        said = capsys.readouterr().out
        assert "ZeroDivisionError" in said
        assert "x.tolist()" in said
        assert not shell.run_cell("%%syncs\nx = (").success
    finally:
        InteractiveShell.clear_instance()
