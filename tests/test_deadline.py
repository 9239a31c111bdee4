"""A call that does not return is stopped, on any thread, and nothing of the stopping is left behind."""

import gc
import signal
import sys
import threading
import time
from contextlib import suppress

import pytest

from labkit.deadline import DeadlineExceeded, uncut, within

SHORT_S, PATIENCE_S = 0.1, 30.0


def spin():
    while True:
        pass


def sleep():
    time.sleep(PATIENCE_S)


def swallow():
    while True:
        try:
            for i in range(100):
                i * i
        except BaseException:  # what a learner writes who wants the loop to go on whatever happens
            pass


def swallow_asleep():
    while True:
        with suppress(BaseException):
            time.sleep(0.01)


def return_late():
    try:
        time.sleep(PATIENCE_S)
    except BaseException:
        return "late"


def on_another_thread(call):
    """What `call` gives or raises on a thread that is not the main one."""
    caught = []

    def run():
        try:
            caught.append(call())
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0]


@pytest.mark.parametrize("endless", [spin, sleep, swallow, swallow_asleep, return_late], ids=lambda fn: fn.__name__)
def test_an_endless_call_is_stopped(endless):
    started_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        within(SHORT_S, endless)
    assert time.monotonic() - started_s < PATIENCE_S / 2


@pytest.mark.parametrize("endless", [spin, swallow], ids=lambda fn: fn.__name__)
def test_an_endless_call_is_stopped_on_another_thread(endless):
    if endless is swallow and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 delivers a planted exception inside a try only, where this loop swallows it")
    assert isinstance(on_another_thread(lambda: within(SHORT_S, endless)), DeadlineExceeded)


def test_a_deadline_is_no_exception_that_a_plain_except_catches():
    assert not issubclass(DeadlineExceeded, Exception)


def test_a_call_in_time_gives_its_result_and_its_own_exceptions():
    for run in (lambda call: call(), on_another_thread):
        assert run(lambda: within(10.0, lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        within(10.0, lambda: 1 / 0)
    assert isinstance(on_another_thread(lambda: within(10.0, lambda: 1 / 0)), ZeroDivisionError)


def test_a_users_interrupt_passes():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            within(10.0, lambda: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("endless", [spin, lambda: None], ids=["late", "in time"])
def test_handler_timer_and_wakeup_are_put_back(endless):
    def mine(_signum, _frame):
        raise AssertionError("not this test's timer")

    before = signal.signal(signal.SIGALRM, mine)
    signal.setitimer(signal.ITIMER_REAL, 100.0, 7.0)
    try:
        with suppress(DeadlineExceeded):
            within(SHORT_S, endless)
        left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
        assert signal.getsignal(signal.SIGALRM) is mine
        assert 50.0 < left_s <= 100.0
        assert every_s == pytest.approx(7.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("limit_s", [float("inf"), 1e12, 10**400, float("nan"), -1.0, "1", None, True])
def test_handler_and_wakeup_are_put_back_whatever_the_limit(limit_s):
    before = signal.getsignal(signal.SIGALRM), signal.set_wakeup_fd(-1)
    calls = []
    try:
        for run in (lambda call: call(), on_another_thread):
            with suppress(ValueError):
                run(lambda: within(limit_s, lambda: calls.append(1)))
    finally:
        assert (signal.getsignal(signal.SIGALRM), signal.set_wakeup_fd(before[1])) == before
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert len(calls) == (2 if limit_s in (float("inf"), 1e12, 10**400) and limit_s is not True else 0)


@pytest.mark.parametrize("limit_s", [float("nan"), -1.0, "1", None, True])
def test_a_limit_that_is_no_time_is_refused_with_a_sentence(limit_s):
    with pytest.raises(ValueError, match="time limit is a number of seconds, 0 or more, not"):
        within(limit_s, lambda: None)


def test_no_late_exception_reaches_what_comes_after():
    """Limits around the time that the call takes: whichever wins, the exception stays inside."""
    for run in (lambda call: call(), on_another_thread):
        outcomes = set()
        for i in range(40):
            outcomes.add(run(lambda i=i: _race(1e-3 + i * 5e-5)))
        time.sleep(0.02)
        assert outcomes <= {"late", "in time"}


def _race(limit_s):
    def busy():
        ends_s = time.monotonic() + 2e-3
        while time.monotonic() < ends_s:
            pass

    try:
        within(limit_s, busy)
    except DeadlineExceeded:
        return "late"
    return "in time"


def test_one_deadline_inside_another_stops_the_inner_call_only():
    def outer():
        with pytest.raises(DeadlineExceeded):
            within(SHORT_S, spin)
        return "went on"

    assert within(10.0, outer) == "went on"


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_garbage_collection_rests_while_exceptions_fall_and_is_as_before_afterwards(enabled, elsewhere):
    """One that falls into a collector's callback (hypothesis has one) would be lost with a warning."""
    seen = []

    def swallow_and_look():
        while True:
            try:
                for i in range(100):
                    i * i
            except BaseException:
                seen.append(gc.isenabled())

    def late():
        with pytest.raises(DeadlineExceeded):
            within(SHORT_S, swallow_and_look)

    (gc.enable if enabled else gc.disable)()
    try:
        on_another_thread(late) if elsewhere else late()
        assert gc.isenabled() is enabled
        assert not any(seen)
    finally:
        gc.enable()


def test_what_is_marked_so_is_never_cut_short():
    tidied = []

    @uncut
    def tidy(number):
        sum(range(20_000))  # for longer than the timer waits before it fires again
        tidied.append(number)

    def spin_and_tidy(number):
        try:
            spin()
        finally:
            tidy(number)

    for number in range(100):
        with pytest.raises(DeadlineExceeded):
            within(1e-3, lambda number=number: spin_and_tidy(number))
    assert tidied == list(range(100))
