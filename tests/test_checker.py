"""Each fault of a learner's function gets its own message; nothing that the function does to the process stays."""

# ruff: noqa: ARG001, ARG005 - learners leave arguments unused
import random
import re
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import labkit.checks
from labkit import progress, repro
from labkit.checker import Exercise, attempt, check, close, exact, find, generator_for, verdict


def scale(values, factor):
    return values * factor


def _cases(generator):
    return [(torch.tensor([1.0, 2.0]), 3.0), (torch.rand(100, generator=generator), 2.0)]


SCALE = Exercise(
    number="9.1", name="scale", cases=_cases, reference=scale, compare=close(), hints=("First.", "Second.", "Third.")
)


def judge(fn, exercise=SCALE, **options):
    return verdict(fn, exercise, generator=generator_for(exercise, 0), **options)


def stub(values, factor):
    raise NotImplementedError("exercise 9.1")


def raises(values, factor):
    wrong = values[0] + factor
    return wrong / [1]


def raises_deep_in_torch(values, factor):
    return torch.nn.functional.linear(values, torch.ones(7, 7))


def raises_in_its_helper(values, factor):
    return _helper(values) * factor


def _helper(values):
    return values[99]


def leaves(values, factor):
    raise SystemExit


def not_implemented_elsewhere(values, factor):
    raise NotImplementedError("aten::something is not there")


def mutates(values, factor):
    values *= factor
    return values


def endless(values, factor):
    while True:
        pass


def endless_and_catching(values, factor):
    while True:
        try:  # noqa: SIM105 - as a learner writes it
            scale(values, factor)
        except BaseException:
            pass


def prints_only(values, factor):
    print(values * factor)


def wrong_only_when_large(values, factor):
    result = values * factor
    result[17:] += 1 if len(values) > 17 else 0
    return result


FAULTS = [
    (stub, "not attempted", r"^not attempted yet\nReplace each line that raises NotImplementedError with your own\.$"),
    (raises, "failed", r"(?s)^raised TypeError \(case 1 of 2\).*unsupported operand.*line \d+: return wrong / \[1\]$"),
    (raises_deep_in_torch, "failed", r"(?s)^raised RuntimeError.*line \d+: return torch.nn.functional.linear"),
    (raises_in_its_helper, "failed", r"(?s)^raised IndexError.*line \d+: return values\[99\]"),
    (leaves, "failed", r"(?s)^raised SystemExit.*line \d+: raise SystemExit"),
    (not_implemented_elsewhere, "failed", r"^raised NotImplementedError"),
    (mutates, "failed", r"(?s)^changes its input values .*before +tensor\(\[1, 2\]\)\nafter +tensor\(\[3, 6\]\)"),
    (endless, "failed", r"(?s)^did not return within 0.2 s, all cases.*line \d+: (while True:|pass)"),
    (endless_and_catching, "failed", r"(?s)^did not return within 0.2 s"),
    (prints_only, "failed", r"(?s)^nothing returned \(None\).*`return`"),
    (lambda values: values, "failed", r"(?s)^wrong arguments.*takes +\(values\)\nneeds +\(values, factor\)"),
    (lambda values, factor, more: values, "failed", r"(?s)^wrong arguments.*'more'"),
    (lambda values, factor: "text", "failed", r"(?s)^wrong type.*returned +'text'"),
    (lambda values, factor: values[:1], "failed", r"(?s)^wrong shape.*\(1,\); \(2,\) is expected"),
    (lambda values, factor: (values * factor).int(), "failed", r"(?s)^wrong dtype.*int32; float32"),
    (lambda values, factor: values * torch.nan, "failed", r"^NaN in the result"),
    (lambda values, factor: values / 0, "failed", r"^inf in the result"),
    (lambda values, factor: values, "failed", r"(?s)^wrong result \(case 1 of 2\).*returned +tensor\(\[1, 2\]\)"),
    (lambda values, factor: -values * factor, "failed", "sign is turned round"),
    (wrong_only_when_large, "failed", r"(?s)^wrong result \(case 2 of 2\).*at \[17\].*at \[17\].*83 of 100 values"),
]


@pytest.mark.parametrize(("fn", "status", "message"), FAULTS)
def test_a_fault_has_its_own_message(fn, status, message):
    found = judge(fn, time_limit_s=0.2)
    assert (found.status, found.n_cases) == (status, 2)
    assert re.search(message, found.message), found.message
    assert len(found.message) < 800


@pytest.mark.parametrize(
    "fn",
    [
        scale,
        lambda *given: given[0] * given[1],
        lambda values, factor, more=0: (values * factor).double(),
        lambda values, factor: (values * factor).numpy(),
        lambda values, factor: [v * factor for v in values.tolist()],
        lambda values, factor: torch.nn.Parameter(values * factor),
    ],
)
def test_a_right_answer_in_an_equivalent_form_passes(fn):
    found = judge(fn)
    assert (found.status, found.message) == ("passed", "all 2 cases right")


def test_a_message_shows_the_call_and_no_line_of_labkit():
    message = judge(raises).message
    assert "call   scale(values=tensor([1, 2]), factor=3)" in message
    assert "labkit" not in message
    assert len(judge(lambda values, factor: [[0] * 10**5] * 3).message) < 800


def test_the_users_interrupt_passes_through():
    def interrupted(values, factor):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(interrupted)


def test_the_time_limit_is_for_all_cases_together():
    def slow(values, factor):
        time.sleep(0.15)
        return values * factor

    many = replace(SCALE, cases=lambda generator: _cases(generator) * 20)
    assert judge(slow, many, time_limit_s=1.0).message.startswith("did not return within 1 s")


def test_a_limit_that_is_no_time_is_not_taken_for_the_learners_fault(course):
    for limit_s in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="time limit is a number of seconds"):
            check(scale, time_limit_s=limit_s)
    check(scale, time_limit_s=float("inf"))


def test_global_state_is_standard_for_the_function_and_put_back_after_it():
    def careless(values, factor):
        assert torch.ones(1).dtype == torch.float32
        assert torch.is_grad_enabled()
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(1 + torch.get_num_threads())
        torch.set_default_device("meta")
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(5)
        return values.cpu() * factor

    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    draws = []
    try:
        for judged in (False, True):
            for seeded in (torch.manual_seed, np.random.seed, random.seed):
                seeded(11)
            if judged:
                assert judge(careless).status == "passed", judge(careless).message
                assert torch.get_default_dtype() == torch.float64
            draws.append((torch.rand(1).item(), np.random.rand(), random.random()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert draws[0] == draws[1]
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize(
    "around",
    [
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ],
    ids=["inference mode", "no grad", "device", "autocast"],
)
def test_a_right_function_passes_whatever_block_the_check_stands_in(around):
    def with_gradients(values, factor):
        weights = torch.ones(len(values), requires_grad=True)
        (weights @ values * factor).backward()
        return weights.grad

    with around():
        before = _torch_state()
        found = judge(with_gradients)
        assert _torch_state() == before
    assert found.status == "passed", found.message


def _torch_state():
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return torch.get_default_device(), torch.is_inference_mode_enabled(), torch.is_grad_enabled(), autocast


def test_a_learners_autocast_and_device_do_not_leak_out():
    def careless(values, factor):
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_default_device("meta")
        return values * factor

    for around in (nullcontext, lambda: torch.device("meta")):
        with around():
            before = _torch_state()
            assert judge(careless).status == "passed"
            assert _torch_state() == before
    assert torch.ones(1).device.type == "cpu"


def test_a_warning_is_no_fault():
    def warns(values, factor):
        warnings.warn("use something newer", DeprecationWarning, stacklevel=1)
        return values * factor

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("error")
        assert judge(warns).status == "passed"
        assert warnings.filters[0][0] == "error"


def test_a_function_may_draw_from_the_global_generator():
    def drawing_too(got, expected):
        return close()(got, expected + 0 * torch.rand(1))

    def reference(values, factor):
        return values * factor + torch.rand(len(values))

    noisy = replace(SCALE, reference=reference, compare=drawing_too)
    assert judge(lambda values, factor: values * factor + torch.rand(len(values)), noisy).status == "passed"


def test_cases_follow_the_seed_and_leave_the_generator_after_one_draw():
    def seen_with(seed):
        seen = []
        verdict(lambda v, f: seen.append(v) or v * f, SCALE, generator=generator_for(SCALE, seed))
        return seen[1]

    assert torch.equal(seen_with(1), seen_with(1))
    assert not torch.equal(seen_with(1), seen_with(2))
    used, drawn = generator_for(SCALE, 1), generator_for(SCALE, 1)
    verdict(scale, SCALE, generator=used)
    _cases(drawn)
    assert torch.equal(used.get_state(), drawn.get_state())


def test_a_closure_in_a_case_keeps_what_it_closes_over():
    def cases(generator):
        weight = torch.rand(3, generator=generator).requires_grad_()
        return [(lambda: (weight**2).sum(), weight)]

    def slope(loss, weight):
        return torch.autograd.grad(loss(), weight)[0]

    exercise = Exercise(number="9.2", name="slope", cases=cases, reference=slope, compare=close())
    assert judge(lambda loss, weight: 2 * weight, exercise).status == "passed"
    assert judge(slope, exercise).message == "its case is right"


def test_a_case_is_told_in_the_exercises_own_lines():
    found = judge(lambda values, factor: 0, replace(SCALE, tell=lambda *case: {"made": f"of {len(case)} parts"}))
    assert "\nmade " in found.message
    assert "of 2 parts" in found.message
    assert "\ncall " not in found.message


def test_an_input_that_may_change_may():
    def in_place(values, factor):
        return values.mul_(factor)

    assert judge(in_place, replace(SCALE, may_change=("values",))).status == "passed"
    assert judge(in_place, replace(SCALE, may_change=("factor",))).status == "failed"


def test_the_mechanism_is_judged_once_the_results_are_right():
    def once(fn):
        seen = []
        fn(torch.ones(1), _Counted(2.0, seen))
        return None if len(seen) == 1 else f"It multiplied\n{len(seen)} times."

    exercise = replace(SCALE, mechanism=once)
    assert judge(lambda v, f: f * v, exercise).message == "all 2 cases right, in the way asked for"
    twice = judge(lambda v, f: (f * v + f * v) / 2, exercise)
    assert twice.status == "failed"
    assert "not in the way asked for" in twice.message
    assert twice.message.splitlines()[1:] == ["likely  It multiplied 2 times."], "one line for each label"
    assert judge(lambda v, f: v, exercise).message.startswith("wrong result")


class _Counted:
    def __init__(self, value, seen):
        self.value, self.seen = value, seen

    def __mul__(self, other):
        self.seen.append(other)
        return self.value * other


def test_a_bar_has_a_time_of_its_own():
    """It times the course's own work beside the learner's, which must not be charged to the learner's limit."""
    exercise = replace(SCALE, bar=lambda _fn: time.sleep(1.5))
    assert judge(scale, exercise, time_limit_s=1.0).message == "all 2 cases right, within its bar"


def test_a_small_nested_answer_is_shown_whole():
    def reference_choose(v, f):
        return "fp16", True

    exercise = replace(SCALE, reference=reference_choose, compare=exact)
    said = judge(lambda v, f: ("bf16", False), exercise).message
    assert "('bf16', False)" in said
    assert "('fp16', True)" in said


def test_a_bar_is_judged_in_a_full_run_only(monkeypatch):
    exercise = replace(SCALE, bar=lambda fn: "It took 3 times as long.")
    assert "short of the bar" in judge(scale, exercise).message
    monkeypatch.setattr("labkit.judge.budget", lambda: "smoke")
    assert judge(scale, exercise).message == "all 2 cases right, its bar is left for a full run"


def test_a_known_mistake_is_named():
    exercise = replace(SCALE, mistakes=(("It divides.", lambda v, f: v / f), ("It adds.", lambda v, f: v + f)))
    assert "likely    It adds." in judge(lambda v, f: f + v, exercise).message
    assert "It adds" not in judge(lambda v, f: v, exercise).message


def test_a_class_is_driven():
    class Mean:
        def __init__(self):
            self.total, self.n = 0.0, 0

        def add(self, value):
            self.total, self.n = self.total + value, self.n + 1

        def value(self):
            return self.total / self.n

    def drive(mean, values):
        one = mean()
        for value in values:
            one.add(value)
        return one.value()

    class Last(Mean):
        def add(self, value):
            self.total, self.n = value, 1

    class Unfinished(Mean):
        def value(self):
            raise NotImplementedError("exercise 9.3")

    exercise = Exercise(
        number="9.3",
        name="Mean",
        cases=lambda generator: [([1.0],), ([1.0, 5.0],)],
        reference=Mean,
        compare=exact,
        drive=drive,
    )
    assert judge(Mean, exercise).status == "passed"
    assert "tried     values=[1, 5]" in judge(Last, exercise).message
    assert judge(Unfinished, exercise).status == "not attempted"


@pytest.fixture
def course(monkeypatch):
    """A course of one exercise, and a list of what was recorded as solved."""
    recorded = []
    monkeypatch.setattr(labkit.checks, "exercises", lambda: (SCALE,))
    monkeypatch.setattr(progress, "record", recorded.append)
    return recorded


def _learner(body):
    """A function called `scale`, as a learner would define it."""
    space = {"torch": torch}
    exec(f"def scale(values, factor):\n    {body}", space)
    return space["scale"]


def test_check_shows_a_stable_line_and_records_a_pass(course, capsys):
    check(_learner("return values * factor"))
    assert capsys.readouterr().out == "✓ Exercise 9.1 · scale · all 2 cases right\n"
    assert course == ["9.1"]
    check(scale)
    assert course == ["9.1"], "the reference, handed out by attempt, solves nothing"


def test_each_failed_check_shows_one_more_hint(course, capsys):
    sys.modules[check.__module__]._failures.clear()
    for n_hints in (1, 2, 3, 3):
        check(_learner("return values"))
        out = capsys.readouterr().out
        assert out.startswith("✗ Exercise 9.1 · scale · wrong result (case 1 of 2)\n    call ")
        assert out.count("hint ") == n_hints
    check(_learner('raise NotImplementedError("exercise 9.1")'))
    said = "Replace each line that raises NotImplementedError with your own."
    assert capsys.readouterr().out == f"– Exercise 9.1 · scale · not attempted yet\n    {said}\n"
    assert course == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: type("scales", (), {}), "no exercise is called scales.*such as scale"),
        (lambda: 3.0, r"the function itself.*this is the number 3\."),
        (lambda: lambda x: x, "no exercise is called <lambda>"),
        (lambda: None, "this is None"),
    ],
)
def test_what_is_no_exercise_gets_a_sentence(course, capsys, given, said):
    check(given())
    assert re.search(said, capsys.readouterr().out)
    assert course == []


class _Hostile:
    """A value of which no question can be asked."""

    def _refuse(self, *_):
        raise RuntimeError("no questions")

    __class__ = property(_refuse)
    __repr__ = __eq__ = __bool__ = __len__ = __iter__ = __float__ = __getattr__ = _refuse
    __hash__ = None


class _SilentError(Exception):
    def __str__(self):
        raise ValueError("no message")


class _Unanswerable(NotImplementedError):
    __str__ = _SilentError.__str__


def _raising(error):
    raise error


def _cyclic():
    values = []
    values += [values, values]
    return values


ODD = {
    "hostile": _Hostile,
    "hostile in a list": lambda: [_Hostile(), _Hostile()],
    "meta": lambda: torch.ones(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    "sparse": lambda: torch.ones(2).to_sparse(),
    "objects": lambda: np.array([None, "a"], dtype=object),
    "huge": lambda: 10**5000,
    "cyclic dictionary": lambda: {"a": _cyclic()},
    "silent": lambda: _raising(_SilentError()),
    "unanswerable": lambda: _raising(_Unanswerable()),
    "exit": lambda: _raising(SystemExit()),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize(
    "expected", [torch.ones(2), 1.0, {"a": 1.0}, "text", [1.0, 2.0]], ids=lambda one: repr(one)[:6]
)
def test_whatever_a_function_gives_there_is_a_verdict(odd, expected):
    exercise = replace(SCALE, reference=lambda values, factor: expected)
    found = judge(lambda values, factor: odd(), exercise)
    assert found.status == "failed"
    assert len(found.message) < 800


@pytest.mark.parametrize(("odd", "said"), [("meta", "a meta tensor"), ("nested", "a nested tensor")])
def test_a_tensor_without_values_is_named(odd, said):
    assert said in judge(lambda values, factor: ODD[odd]()).message


@pytest.mark.parametrize("part", ["cases", "reference"])
def test_a_fault_of_the_exercises_own_is_no_verdict(part):
    with pytest.raises(ZeroDivisionError):
        judge(scale, replace(SCALE, **{part: lambda *_: 1 / 0}))


class _Nameless:
    """A callable that cannot be hashed, and one whose name cannot be asked for."""

    __hash__ = None

    def __init__(self, name):
        self.name = name

    def __call__(self, values, factor):
        return values * factor

    @property
    def __name__(self):
        return self.name or _raising(RuntimeError("no name"))


@pytest.mark.parametrize(
    ("name", "said"), [("scale", "all 2 cases right"), (None, "the function itself"), (3, "the function itself")]
)
def test_a_callable_that_is_no_key_or_has_no_name_is_answered(course, capsys, name, said):
    check(_Nameless(name))
    attempt(_Nameless(name))
    assert said in capsys.readouterr().out


def test_a_known_mistake_is_named_in_an_answer_of_a_wrong_length():
    ends = ("The last is left out.", lambda values, factor: (values * factor)[:-1])
    known = replace(SCALE, mistakes=(ends,))
    message = judge(lambda values, factor: (values * factor)[:-1], known).message
    assert message.startswith("wrong shape")
    assert "The last is left out." in message
    assert "left out" not in judge(lambda values, factor: (values * factor)[1:], known).message
    own = replace(known, compare=lambda got, expected: None if got.equal(expected) else "")
    assert "left out" not in judge(lambda values, factor: (values * factor)[:-1], own).message


def test_attempt_gives_the_reference_and_says_so_until_the_check_passes(course, capsys):
    right = _learner("return values * factor")
    assert attempt(right) is right
    assert capsys.readouterr().out == ""
    for body, said in (('raise NotImplementedError("exercise 9.1")', "is not attempted yet"), ("return 1", "not pass")):
        assert attempt(_learner(body)) is scale
        assert said in capsys.readouterr().out
    assert course == []
    assert attempt(len) is len
    assert "no exercise is called len" in capsys.readouterr().out


def test_attempt_after_check_does_not_judge_again(course):
    calls = []
    fn = _learner_counting(calls)
    check(fn)
    assert len(calls) == 2
    assert attempt(fn) is fn
    assert len(calls) == 2


def _learner_counting(calls):
    def scale(values, factor):
        calls.append(factor)
        return values * factor

    return scale


def test_a_check_costs_little_beside_the_learners_code(course):
    """A generous bound for the promised 50 ms: what counts is that nothing grows to seconds."""
    check(scale)
    started_s = time.process_time()
    for _ in range(10):
        judge(scale)
    assert (time.process_time() - started_s) / 10 < 0.2


def test_the_verdict_prints_nothing(capsys):
    for fn in (scale, stub, raises, mutates):
        judge(fn)
    assert capsys.readouterr() == ("", "")


def test_in_a_notebook_the_hints_are_folded_and_text_is_escaped(course, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.show.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    check(_learner("return '<b>' "))
    html = shown[0]["text/html"]
    assert html.count("<details><summary>Hint") == 3
    assert "<b>'" not in html
    assert "&lt;b&gt;" in html
    assert "✗ Exercise 9.1" in html
    check(_learner("return values * factor"))
    assert "<details>" not in shown[1]["text/html"]
    assert shown[1]["text/plain"] == "✓ Exercise 9.1 · scale · all 2 cases right"


def test_find_knows_the_exercises_of_the_course():
    assert find("warmup_stable_decay").number == "1.1"
    assert find("nonsense") is None
    assert repro.budget() == "full"


KERNEL_CELLS = (
    "import os, time, signal\nos.environ['LABKIT_HOME'] = {home!r}\nfrom labkit.checker import check, attempt",
    "def pick_rate(rates, losses):\n    while True:\n        try:\n            time.sleep(0.01)\n"
    "        except BaseException:\n            pass",
    "check(pick_rate, time_limit_s=0.3)",
    "def pick_rate(rates, losses):\n    x = rates[0]\n    return x[5]",
    "check(pick_rate)",
    "attempt(pick_rate)(rates=__import__('torch').ones(1), losses=__import__('torch').ones(1))",
    "print(signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)",
)


@pytest.mark.notebook
def test_in_a_real_kernel_an_endless_function_is_stopped_and_the_next_cells_run(tmp_path):
    import nbclient
    import nbformat

    cells = [nbformat.v4.new_code_cell(cell.replace("{home!r}", repr(str(tmp_path)))) for cell in KERNEL_CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    texts = ["".join(out.get("text", out.get("data", {}).get("text/plain", "")) for out in c.outputs) for c in cells]
    assert "did not return within 0.3 s" in texts[2]
    assert re.search(r"interrupted +line \d", texts[2])
    assert re.search(r"where +line 3: return x\[5\]", texts[4])
    assert "course's own version" in texts[5]
    assert texts[6].strip() == "(0.0, 0.0) True"
