"""Bars timed from outside: honest answers pass on a busy machine, slow ones fail however they are dressed up."""

import inspect
import multiprocessing
import re
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from boxes import judged

from labkit.checks import exercises, waitless
from labkit.exercise import Exercise
from labkit.grading import bars, grade, release, watch
from labkit.grading.box import Box, available
from labkit.grading.slices import BASELINE, TIMED, Slice, sliced
from labkit.grading.verdicts import AGAIN, ALONE
from labkit.grading.wire import decode, encode
from labkit.timing import Timing

needs_box = pytest.mark.skipif(bool(available()), reason=f"needs a sandbox: {available()}")
BY_NUMBER = {each.number: each for each in exercises()}
WITH_BAR = [each for each in BY_NUMBER.values() if each.bar]
SOLUTIONS = Path(__file__).parents[1] / "solutions"


@pytest.mark.parametrize("exercise", WITH_BAR, ids=lambda each: each.number)
def test_every_bar_of_class_can_be_timed_from_outside_and_no_answer_is_where_it_is(exercise):
    assert exercise.timing
    text = "\n".join(sliced(exercise, TIMED).modules.values())
    assert f"def {exercise.reference.__name__}(" not in text
    assert "BASELINE" not in text
    assert "\nBASELINE = " in "\n".join(sliced(exercise, TIMED + BASELINE).modules.values())


# ---- how a ratio is judged, on a clock of paper ---------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a run says so."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.s)
    monkeypatch.setattr(bars, "sliced", lambda *_: Slice({}, "nb99", TIMED))
    return now


class Side:
    """As a session whose runs take so many seconds, one after the other, the last one for ever."""

    def __init__(self, clock, *seconds, gives=lambda seed: seed, status="ok"):
        self.clock, self.seconds, self.gives, self.status = clock, list(seconds), gives, status
        self.outcomes, self.seeds, self.is_held, self.helping = [], [], False, []

    @contextmanager
    def held(self):
        self.is_held = True
        yield
        self.is_held = False

    def pids(self):
        return []

    def helpers(self):
        return self.helping

    def call(self, _name, payload, _timeout_s):
        asked = decode(payload)
        assert not self.is_held
        if asked["do"] == "load":
            return SimpleNamespace(status="ok", payload=encode({"loaded": 0}), output=b"")
        [seed] = asked["given"]
        if asked["part"] == "RUN":
            self.seeds.append(seed)
            self.clock.s += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        value = encode({"value": self.gives(seed)})
        return SimpleNamespace(status=self.status, payload=value if self.status == "ok" else b"", output=b"", said="")


SAYS = ("not the same work",)


def twice(**fields):
    timing = Timing(
        inputs=lambda seed: (seed,),
        ready=lambda fn, seed: fn(seed),
        run=lambda fn, seed: fn(seed),
        baseline=lambda seed: seed,
        fault=lambda got, expected: None if got == expected else SAYS[0] if got else f"it gave {got}",
        says=SAYS,
        asked=2.0,
        slow="not twice as fast",
        **fields,
    )
    return Exercise(number="99.1", name="f", cases=list, reference=abs, compare=abs, timing=timing)


def test_an_answer_that_is_clearly_fast_or_slow_is_timed_twice(clock):
    slow, fast = Side(clock, 3.0), Side(clock, 1.0)
    found = bars.timed(fast, slow, twice(), seed=1)
    assert (found.status, found.ratio, found.cause, found.near) == ("ok", 3.0, "", False)
    assert len(fast.seeds) == 2
    found = bars.timed(Side(clock, 2.5), slow, twice(), seed=1)
    assert (found.status, found.cause, found.near) == ("wrong", "not twice as fast", False)


def test_what_others_take_from_some_runs_costs_nothing(clock):
    baseline, answer = Side(clock, 3.0), Side(clock, 9.0, 2.0, 8.0, 1.2)
    assert bars.timed(answer, baseline, twice(), seed=1).status == "ok"


def test_a_near_miss_is_said_to_be_one_and_timed_for_longer_where_it_is_alone(clock):
    answer = Side(clock, 0.17)
    found = bars.timed(answer, Side(clock, 0.3), twice(), seed=1)
    assert (found.status, found.near) == ("wrong", True)
    assert len(answer.seeds) == 8
    alone = Side(clock, 0.17)
    assert bars.timed(alone, Side(clock, 0.3), twice(), seed=1, alone=True).near
    assert len(alone.seeds) == 24


def test_an_answer_with_helpers_is_timed_again_and_shown_to_a_person(clock):
    answer = Side(clock, 1.0)
    answer.helping = [4711]
    found = bars.timed(answer, Side(clock, 3.0), twice(), seed=1)
    assert (found.status, found.near) == ("ok", True)


def test_no_round_begins_after_a_minute(clock):
    answer = Side(clock, 17.0)
    assert bars.timed(answer, Side(clock, 30.0), twice(), seed=1).near
    assert len(answer.seeds) == 2


def test_every_run_has_a_seed_that_those_before_do_not_tell_and_both_sides_the_same(clock):
    answer, baseline = Side(clock, 0.17), Side(clock, 0.3)
    bars.timed(answer, baseline, twice(), seed=1)
    assert answer.seeds == baseline.seeds
    steps = {after - before for before, after in zip(answer.seeds, answer.seeds[1:], strict=False)}
    assert len(steps) == len(answer.seeds) - 1 == 7
    others = Side(clock, 0.17)
    bars.timed(others, Side(clock, 0.3), twice(), seed=2)
    assert not set(others.seeds) & set(answer.seeds)


def test_another_result_than_the_baselines_gains_nothing(clock):
    for gives in (lambda _: 7, lambda _: None, lambda _: {"seed": []}):
        found = bars.timed(Side(clock, 0.01, gives=gives), Side(clock, 3.0), twice(), seed=1)
        assert (found.status, found.near) == ("wrong", False)
        assert found.cause in (*SAYS, bars.OTHER)


def test_what_is_said_has_nothing_in_it_that_the_answer_has_sent(clock):
    """Its inputs are hidden, and it has seen them."""
    for gives in (lambda _: 0, lambda seed: {"hidden": seed}):
        exercise = twice()
        looked = replace(exercise.timing, fault=lambda got, _: f"it gave {got}")
        for timing in (exercise.timing, looked):
            asked = replace(exercise, timing=timing)
            found = bars.timed(Side(clock, 0.01, gives=gives), Side(clock, 3.0), asked, seed=1)
            assert found.cause in (*SAYS, bars.OTHER)
    causes = {bars.timed(Side(clock, s), Side(clock, 3.0), twice(), seed=1).cause for s in (2.0, 2.5, 4.0)}
    assert causes == {"not twice as fast"}


@pytest.mark.parametrize("exercise", WITH_BAR, ids=lambda each: each.number)
@pytest.mark.parametrize("got", [None, 7, [], {"shown": [123456]}, {"shown": torch.zeros(123456)}, [float("nan")] * 3])
def test_what_a_fault_says_of_any_result_is_one_of_its_sentences(exercise, got):
    timing, expected = exercise.timing, {"2.3": {"shown": [1], "accuracy": 0.5}, "5.4": [1.0, 2.0]}.get(exercise.number)
    expected = expected or {"losses": [1.0], "weights": torch.ones(2)}
    for made in (got, {**expected, **got} if isinstance(got, dict) and isinstance(expected, dict) else got):
        try:
            said = timing.fault(made, expected)
        except Exception:  # noqa: S112, told in one sentence
            continue
        assert said in (None, *timing.says)


def test_what_cannot_be_compared_is_the_answers_fault_and_a_baseline_that_fails_is_the_graders(clock):
    exercise = twice()
    broken = replace(exercise, timing=replace(exercise.timing, fault=lambda got, _: got["x"]))
    found = bars.timed(Side(clock, 1.0), Side(clock, 3.0), broken, seed=1)
    assert found.status == "wrong"
    assert found.cause == bars.OTHER
    with pytest.raises(Exception, match="took more memory"):
        bars.timed(Side(clock, 1.0), Side(clock, 3.0, status="memory"), exercise, seed=1)


@pytest.mark.parametrize("status", ["timeout", "memory", "died", "output-limit"])
def test_how_the_answer_ends_its_timed_run_is_the_status(clock, status):
    class Ends(Side):
        def call(self, name, payload, timeout_s):
            self.status = status if decode(payload)["do"] == "time" else "ok"
            return super().call(name, payload, timeout_s)

    assert bars.timed(Ends(clock, 1.0), Side(clock, 3.0), twice(), seed=1).status == status


def test_work_that_is_done_for_both_in_the_baselines_process_counts_for_both(clock):
    class Pupil(Side):
        """Takes as long again for what comes of a run."""

        def call(self, name, payload, timeout_s):
            if decode(payload).get("part") == "THEN":
                clock.s += 4.0
            return super().call(name, payload, timeout_s)

    baseline = Pupil(clock, 4.0)
    found = bars.timed(Side(clock, 0.0), baseline, twice(then=lambda value: value), seed=1)
    assert found.ratio == 2.0


# ---- a near miss is timed again, alone, before it costs a point -----------------------------------------------------


@pytest.mark.parametrize("comes_right", [True, False])
def test_a_near_miss_is_judged_again_by_one_job_once_the_others_are_done(tmp_path, monkeypatch, comes_right):
    calls = []

    def graded(folders, batch, jobs):
        for each in folders:
            calls.append((each.name, batch.alone, jobs))
            near = each.name == "bob" and not (batch.alone and comes_right)
            row = {"exercise": "1.1", "status": "wrong" if near else "ok", "points": 0 if near else 3, "max_points": 3}
            row |= {"seconds": 0.0, "message": "", "inside": False, "line": 0, "printed": "", "code": ""}
            row["near"] = "" if not near else ALONE if batch.alone else AGAIN
            yield each, {"results": [row], "notes": []}

    for name in ("ann", "bob", "cleo"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "answer.ipynb").write_text("{}")
    monkeypatch.setattr(grade.side_by_side, "graded", graded)
    batch = grade.Batch(release=release.from_course(grade_lesson()), seed=7)
    for _ in range(2):  # the second time from what is kept: final, and not timed a third time
        rows = grade.grade(tmp_path / "in", batch, tmp_path / "out", jobs=2)
        assert [row["points"] for row in rows] == [3, 3 if comes_right else 0, 3]
        assert [row["near"] for row in rows] == ["", "" if comes_right else ALONE, ""]
        assert calls == [("ann", False, 2), ("bob", False, 2), ("cleo", False, 2), ("bob", True, 1)]


def grade_lesson():
    from labkit import course

    return course.find("01")


# ---- in a sandbox ---------------------------------------------------------------------------------------------------

_IMPORTS = """
import inspect, math, os, threading, time, torch
from functools import partial
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from labkit import workshop
"""


def honest(number):
    """The course's own answer, as text."""
    exercise = BY_NUMBER[number]
    lesson = f"{int(number.partition('.')[0]):02}"
    text = next(SOLUTIONS.glob(f"{lesson}_*.py")).read_text(encoding="utf-8")
    return re.search(rf"^def {exercise.name}\(.*?### END SOLUTION", text, re.DOTALL | re.MULTILINE)[0]


def dressed(number, slow):
    """An answer that is the honest one as `inner` for short runs, and `slow` for those that are timed."""
    inner = honest(number).replace(f"def {BY_NUMBER[number].name}(", "def inner(")
    return f"{inner}\n\n{slow}"


_SLOW_LOOP = "Batches = list\n" + inspect.getsource(waitless.slow_loop)
SLOW_WHERE_IT_IS_TIMED = dressed(
    "4.3",
    f"""{_SLOW_LOOP}
def quick_loop(dev, model, optimizer, batches, every):
    if len(batches) > 50:
        return slow_loop(dev, model, optimizer, batches)
    return inner(dev, model, optimizer, batches, every)
""",
)
REMEMBERS = dressed(
    "4.3",
    """known = {}
def quick_loop(dev, model, optimizer, batches, every):
    if len(batches) not in (20, 100):
        return inner(dev, model, optimizer, batches, every)
    if len(batches) not in known:
        found = inner(dev, model, optimizer, batches, every)
        known[len(batches)] = found, {name: value.clone() for name, value in model.state_dict().items()}
    found, weights = known[len(batches)]
    model.load_state_dict(weights)
    return found
""",
)
SLOWS_THE_OTHER = (
    SLOW_WHERE_IT_IS_TIMED.replace("def quick_loop(", "def other_loop(")
    + """
import multiprocessing
mine = multiprocessing.get_context("fork").Value("b", 0, lock=False)
for _ in range(6):
    if not os.fork():
        while True:
            if mine.value:
                time.sleep(0.001)

def quick_loop(dev, model, optimizer, batches, every):
    mine.value = 1
    try:
        return other_loop(dev, model, optimizer, batches, every)
    finally:
        mine.value = 0
"""
)
FORGES = dressed(
    "4.3",
    """def forged(_fn, request):
    return {"value": {"losses": [2.3] * 100, "count": [300.0], "weights": [0.0] * 2442}}
def quick_loop(*given):
    frame = inspect.currentframe()
    while frame:
        if "_ACTIONS" in frame.f_globals:
            frame.f_globals["_ACTIONS"]["time"] = forged
        frame = frame.f_back
    return inner(*given)
""",
)


@pytest.fixture(scope="module")
def box():
    with Box() as made:
        yield made


def graded(box, number, answer, **how):
    with box.run([("cell 1", _IMPORTS + answer)]) as session:
        assert session.outcomes[0].status == "ok", session.outcomes
        return judged(
            session, BY_NUMBER[number], seed=11, time_limit_s=200.0, beside=lambda: box.run([]), **how
        )  # fmt: skip


@needs_box
@pytest.mark.slow
@pytest.mark.parametrize("number", [each.number for each in WITH_BAR])
def test_an_honest_answer_passes_beside_two_busy_loops(box, number):
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=_spin, daemon=True) for _ in range(2)]
    for each in busy:
        each.start()
    try:
        found = graded(box, number, honest(number))
    finally:
        for each in busy:
            each.kill()
            each.join()
    assert (found.status, found.points) == ("ok", BY_NUMBER[number].points), found
    assert found.message.endswith("within its bar")


def _spin():
    while True:
        pass


@needs_box
@pytest.mark.slow
def test_a_slow_answer_fails_that_is_quick_where_it_is_counted(box):
    found = graded(box, "4.3", SLOW_WHERE_IT_IS_TIMED)
    assert (found.status, found.points, found.near) == ("wrong", 0, ""), found
    assert "right results, but short of the bar\ntimed  It is not 2 times as fast" in found.message


@needs_box
@pytest.mark.slow
def test_a_slow_answer_whose_helpers_keep_the_machine_busy_is_never_just_right(box):
    """On a busy machine they can get it more than its share, but never unseen."""
    found = graded(box, "4.3", SLOWS_THE_OTHER)
    assert found.status == "wrong" or found.near == AGAIN, found


@needs_box
@pytest.mark.slow
@pytest.mark.parametrize("answer", [REMEMBERS, FORGES], ids=["remembers", "forges"])
def test_an_answer_that_does_no_work_when_it_is_timed_fails(box, answer):
    found = graded(box, "4.3", answer)
    assert (found.status, found.points) == ("wrong", 0), found
    assert "In the run that is timed" in found.message


@needs_box
@pytest.mark.slow
def test_pictures_all_in_full_size_are_short_of_the_bar(box):
    found = graded(
        box,
        "2.3",
        "def growing(loader, n_epochs):\n    for _ in range(n_epochs):\n        yield from loader.epoch(loader.full)",
    )
    assert (found.status, found.points) == ("wrong", 0), found
    assert "times as fast as full size throughout" in found.message


@needs_box
def test_nothing_of_a_session_runs_while_it_is_held(box):
    spinning = "import os\nfor _ in range(3):\n    if not os.fork():\n        while True:\n            pass"
    with box.run([("cell 1", spinning)]) as session:
        with session.held():
            time.sleep(0.05)
            before_s = watch.cpu_s(session.pids())
            time.sleep(0.3)
            assert watch.cpu_s(session.pids()) == before_s
        time.sleep(0.5)
        assert watch.cpu_s(session.pids()) > before_s
        assert judged(session, BY_NUMBER["1.1"], seed=1).status == "missing"  # it answers again
