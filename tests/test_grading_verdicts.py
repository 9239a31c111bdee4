"""Verdicts outside: right answers pass, wrong ones fail, forged replies gain nothing, and no hidden input is told."""

import contextlib
import importlib.util
import io
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from boxes import judged

from labkit import precision, resize
from labkit.borrowed import answers
from labkit.checks import exercises
from labkit.compare import close
from labkit.exercise import Exercise
from labkit.grading import harness
from labkit.grading.wire import decode, encode
from labkit.judge import generator_for

BY_NUMBER = {each.number: each for each in exercises()}
SEED = 20_26


@dataclass
class Reply:
    """As a session answers."""

    status: str
    payload: bytes = b""
    output: bytes = b""
    said: str = ""


@dataclass
class Cell:
    """As a session's outcome."""

    name: str
    output: bytes


class Here:
    """Answers as a box would, from this process."""

    def __init__(self, **namespace):
        self.namespace, self.outcomes = namespace, []

    def call(self, name, payload, timeout_s):  # noqa: ARG002 - nothing here takes long
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            payload = harness.answer(self.namespace, name, payload)
        return Reply("ok", payload, printed.getvalue().encode())


class Learners(Here):
    """As Here, where the course's own answers are taken for a learner's."""

    def call(self, name, payload, timeout_s):
        if decode(payload)["do"] == "borrowed":
            return Reply("ok", encode({"ours": False, "used": ""}))
        return super().call(name, payload, timeout_s)


def wrong_answers(lesson):
    path = Path(__file__).parent / "wrong_answers" / f"nb{lesson:02}.py"
    spec = importlib.util.spec_from_file_location(f"graded_wrong_{lesson}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WRONG


# Three of plain data, one that takes functions, one that is driven, one with a mechanism.
NUMBERS = ("1.1", "1.2", "3.1", "3.2", "3.3", "11.2")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_courses_own_answer_gets_all_points(number):
    exercise = BY_NUMBER[number]
    found = judged(Learners(**{exercise.name: exercise.reference}), exercise, seed=SEED)
    assert (found.status, found.points, found.inside) == ("ok", exercise.points, number != "1.2")


def growing_sizes(*given):
    return resize.growing_sizes(*given)


@pytest.mark.parametrize(
    ("number", "answer", "said"),
    [
        ("2.1", growing_sizes, "It uses labkit.resize.growing_sizes, which is the answer. Write its steps yourself."),
        ("2.1", resize.growing_sizes, "the course's own growing_sizes"),
        ("3.2", type("LossScaler", (precision.LossScaler,), {}), "It uses labkit.precision.LossScaler"),
    ],
)
def test_an_answer_that_is_or_uses_one_of_labkits_gets_nothing(number, answer, said):
    exercise = BY_NUMBER[number]
    found = judged(Here(**{exercise.name: answer}), exercise, seed=SEED)
    assert (found.status, found.points, found.inside) == ("wrong", 0, True)
    assert said in found.message


def test_where_labkit_has_answers_is_loaded_before_there_is_a_learner():
    known = {each.__module__ for exercise in BY_NUMBER.values() for each in answers(exercise)}
    loaded = "import sys; from labkit.grading import warm; warm.load(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert {name for name in known if not name.startswith("labkit.checks")} <= {*done.stdout.split()}


def test_whoever_answers_nothing_when_asked_whose_an_answer_is_gets_nothing():
    class Silent(Here):
        def call(self, name, payload, timeout_s):
            asked = decode(payload)["do"]
            return Reply("timeout") if asked == "borrowed" else super().call(name, payload, timeout_s)

    found = judged(Silent(growing_sizes=growing_sizes), BY_NUMBER["2.1"], seed=SEED)
    assert (found.status, found.points) == ("timeout", 0)


@pytest.mark.parametrize(
    ("number", "index"), [(number, i) for number in NUMBERS for i in range(2)], ids=lambda part: str(part)
)
def test_known_wrong_answers_get_none(number, index):
    exercise = BY_NUMBER[number]
    _, wrong, *_ = wrong_answers(int(number.split(".")[0]))[number][index]
    found = judged(Here(**{exercise.name: wrong}), exercise, seed=SEED)
    assert found.status in ("wrong", "error", "tampered")
    assert found.points == 0


# ---- an exercise of three lines -------------------------------------------------------------------------------------


def double(x):
    """Twice x."""
    return 2 * x


DOUBLE = Exercise(
    number="1.1",
    name="double",
    cases=lambda rng: [(torch.rand(3, generator=rng),), (torch.rand(3, generator=rng),)],
    reference=double,
    compare=close(why="Twice."),
    points=3,
)


def test_an_untouched_stub_is_not_attempted():
    def stub(x):
        raise NotImplementedError("exercise 1.1")

    assert judged(Here(double=stub), DOUBLE, seed=SEED).status == "not-attempted"


@pytest.mark.parametrize("what", [None, 3, [1]])
def test_a_name_that_is_no_function_is_missing(what):
    assert judged(Here(double=what), DOUBLE, seed=SEED).status == "missing"
    assert judged(Here(), DOUBLE, seed=SEED).status == "missing"


def test_what_is_raised_is_told_with_its_line():
    def raises(x):
        return x / {}["scale"]

    found = judged(Here(double=raises), DOUBLE, seed=SEED)
    assert (found.status, found.points) == ("error", 0)
    assert found.line == raises.__code__.co_firstlineno + 1
    assert found.message.startswith("raised KeyError (case 1 of 2)")
    assert 'return x / {}["scale"]' in found.message


@pytest.mark.parametrize("said", ["", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"])
def test_want_of_memory_within_a_call_is_no_error_of_another_kind(said):
    def wants(_):
        raise RuntimeError(said) if said else MemoryError

    found = judged(Here(double=wants), DOUBLE, seed=SEED)
    assert (found.status, found.points, found.line) == ("memory", 0, wants.__code__.co_firstlineno + 1)


def test_what_was_printed_by_its_own_cell_and_in_cases_of_class_is_kept_and_no_hidden_input():
    def prints(x):
        print(f"given {float(x[0]):.6f}")
        return 2 * x

    session = Here(double=prints)
    session.outcomes = [Cell("cell 4", b"of another\n"), Cell("cell 5", "of its own \u00fc\n".encode())]
    found = judged(session, DOUBLE, seed=SEED, cell="cell 5")
    public = "".join(f"given {float(x[0]):.6f}\n" for (x,) in DOUBLE.cases(generator_for(DOUBLE, 0)))
    assert (found.status, found.line, found.printed) == ("ok", 0, f"of its own \u00fc\n{public}")
    session.outcomes = [Cell("cell 5", b"\xff" * 9000)]
    assert judged(session, DOUBLE, seed=SEED, cell="cell 5").printed == "\ufffd" * 2000


def test_of_what_a_hidden_case_raises_there_is_no_line():
    known = [case[0] for case in DOUBLE.cases(generator_for(DOUBLE, 0))]

    def raises(x):
        return 2 * x if any(torch.equal(x, each) for each in known) else x / {}["scale"]

    found = judged(Here(double=raises), DOUBLE, seed=SEED)
    assert (found.status, found.line) == ("error", 0)


@pytest.mark.parametrize("line", ["line 4", "line 4: x", "line \u00b2", "line 9999999", 3, None, "4", "line -4"])
def test_a_line_is_a_plain_number_or_none(line):
    payload = encode({"raised": {"type": "E", "said": "", "line": line, "stub": False}})
    found = judged(Forging(payload), DOUBLE, seed=SEED)
    assert found.line == (4 if line in ("line 4", "line 4: x") else 0)


def test_answers_looked_up_from_the_cases_of_class_fail_and_the_hidden_case_is_not_told():
    known = [case[0] for case in DOUBLE.cases(generator_for(DOUBLE, 0))]

    def looks_up(x):
        return 2 * x if any(torch.equal(x, each) for each in known) else x

    found = judged(Here(double=looks_up), DOUBLE, seed=SEED)
    assert (found.status, found.points) == ("wrong", 0)
    hidden = DOUBLE.cases(generator_for(DOUBLE, SEED))[0][0]
    assert found.message == "right on the cases of class, and not on others of the same kind"
    assert f"{float(hidden[0]):.4g}" not in found.message


def test_an_answer_in_place_is_seen_through_the_wire():
    def in_place(x):
        x *= 2
        return x

    found = judged(Here(double=in_place), DOUBLE, seed=SEED)
    assert found.message.startswith("changes its input x")
    allowed = replace(DOUBLE, may_change=("x",))
    assert judged(Here(double=in_place), allowed, seed=SEED).status == "ok"


class Equal(float):
    """Equal to everything."""

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


class EqualTensor(torch.Tensor):
    """Says of every comparison that it holds."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.isclose, torch.allclose, torch.equal, torch.Tensor.eq):
            return torch.ones(3, dtype=torch.bool)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("cheat", [lambda x: x.as_subclass(EqualTensor), lambda x: [Equal(each) for each in x]])
def test_what_equals_everything_equals_nothing_outside(cheat):
    assert judged(Here(double=cheat), DOUBLE, seed=SEED).status == "wrong"


class Forging:
    """A box whose process answers every request with bytes of its own."""

    def __init__(self, payload, status="ok"):
        self.reply, self.outcomes = Reply(status, payload), []

    def call(self, name, payload, timeout_s):
        if decode(payload)["do"] == "look":
            return Here(double=double).call(name, payload, timeout_s)
        return self.reply


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"passed",
        encode("passed"),
        encode({"status": "ok", "points": 3}),
        encode({"value": None}),
        encode({"args": [], "value": "passed"}),
        encode({"raised": "everything"}),
        encode({"raised": {"type": "X; import os", "said": 3, "line": [], "stub": 1}}),
    ],
)
def test_a_forged_reply_gains_nothing_and_harms_nothing(payload):
    found = judged(Forging(payload), DOUBLE, seed=SEED)
    assert found.points == 0
    assert found.status in ("wrong", "error", "tampered")


@pytest.mark.parametrize("status", ["timeout", "memory", "died", "output-limit"])
def test_how_the_box_ended_is_the_status(status):
    assert judged(Forging(b"", status), DOUBLE, seed=SEED).status == status


@pytest.mark.parametrize(
    "reply",
    [
        {"callable": True, "kind": "x", "parameters": [["a" * 10**6, 1, False]]},
        {"callable": True, "kind": "x", "parameters": [[f"a{n}", 1, False] for n in range(10**4)]},
        {"raised": {"type": "E" * 10**6, "said": "x" * 10**6, "line": "line 1: " + "y" * 10**6}},
        {"raised": {"type": "E", "said": "x\n" * 10**6, "line": "line " + "1" * 10**6}},
    ],
)
def test_what_a_student_reads_is_short_whatever_the_box_says(reply):
    class Says(Here):
        def call(self, *_):
            return Reply("ok", encode(reply))

    assert len(judged(Says(), DOUBLE, seed=SEED).message) < 2000


def test_the_box_keeps_the_time_and_not_the_judge():
    class Late(Here):
        def call(self, name, payload, timeout_s):
            if decode(payload)["do"] == "look":
                return super().call(name, payload, timeout_s)
            time.sleep(timeout_s)
            return Reply("timeout")

    assert judged(Late(double=double), DOUBLE, seed=SEED, time_limit_s=0.3).status == "timeout"


def test_a_forged_signature_and_look_do_not_stop_the_grader():
    class Looks(Here):
        def call(self, name, payload, timeout_s):
            if decode(payload)["do"] == "look":
                odd = [["x", 99, True], ["1bad", 0, 0], 3]
                return Reply("ok", encode({"callable": True, "kind": "x", "parameters": odd}))
            return super().call(name, payload, timeout_s)

    assert judged(Looks(double=double), DOUBLE, seed=SEED).status == "ok"
    for reply in ({"callable": True}, {"kind": "x"}, {}):

        class Empty(Here):
            def call(self, *_, reply=reply):
                return Reply("ok", encode(reply))

        assert judged(Empty(), DOUBLE, seed=SEED).points == 0
