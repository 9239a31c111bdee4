"""Stop a call that does not return, without a second process: a notebook's functions live in this one.

On the main thread of a Unix system a timer's signal interrupts the call, a sleep included. Elsewhere (another thread,
Windows) another thread plants the exception, which arrives with the next line of Python. Neither can interrupt an
operation in compiled code: such a call is found late, when it returns. Off the main thread of Python 3.10, a loop that
catches every exception goes on.
"""

import ctypes
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from types import CodeType, FrameType

# A loop that catches everything escapes an exception only between two tries: fire until one lands there. Garbage
# collection rests meanwhile, for an exception that lands in a callback of the collector is lost and only reported.
_AGAIN_S = 1e-4
_LONGEST_S = 1e6  # timers and locks refuse inf, some of them 1e7


_UNCUT: set[CodeType] = set()


def uncut(fn: Callable) -> Callable:
    """fn, which no deadline of this module cuts short on the main thread: it comes when fn has returned.

    Called first in a `finally`, nothing lies between. A context manager would not do: its own lines can be cut short.
    """
    whole = lambda *args: fn(*args)
    _UNCUT.add(whole.__code__)
    return whole


class Ended(Exception):
    """Raised by a function that runs in another process, which a call has ended: its text says how, in a few words."""


class DeadlineExceeded(BaseException):
    """A call ran for longer than it may; not an Exception, so that a plain `except Exception` lets it through."""


@dataclass
class _Watch:
    """What the interrupter and the interrupted share: whether it may fire, whether it has, and whether it is gone."""

    armed: bool = False
    fired: bool = False
    ended: bool = False


def checked(limit_s: object) -> float:
    """A time limit in seconds that every timer takes, eleven days at most; ValueError for what is none."""
    if not isinstance(limit_s, Real) or isinstance(limit_s, bool) or not limit_s >= 0:  # also NaN
        raise ValueError(f"A time limit is a number of seconds, 0 or more, not {limit_s!r}.")
    return float(min(max(limit_s, _AGAIN_S), _LONGEST_S))


def within(limit_s: object, call: Callable[[], object]) -> object:  # object: the message for what is no time is ours
    """What `call` returns, or DeadlineExceeded once it has run for limit_s; signal handler and timers are restored.

    ValueError for a limit that is no number, NaN or negative, before anything is installed.
    """
    limit_s = checked(limit_s)
    on_main_thread = threading.current_thread() is threading.main_thread()
    if on_main_thread and hasattr(signal, "setitimer"):
        return _by_signal(limit_s, call)
    return _by_thread(limit_s, call)


def _by_signal(limit_s: float, call: Callable[[], object]) -> object:
    """`within`, by SIGALRM.

    A signal can arrive at any line, also in this frame, just before it disarms the watch (in Python 3.10 even within
    that line). So the handler raises in no line of this frame and in none once disarmed: tidying is never cut short.
    """
    here, watch, started_s, collecting = sys._getframe(), _Watch(), time.monotonic(), gc.isenabled()

    def on_alarm(_signum: int, frame: FrameType | None) -> None:
        if watch.armed and frame is not here and not _in_uncut(frame, here):
            watch.fired = True
            gc.disable()
            raise DeadlineExceeded

    # asyncio may listen on this descriptor, and thousands of signals would fill it.
    wakeup = signal.set_wakeup_fd(-1)
    previous = signal.signal(signal.SIGALRM, on_alarm)
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        watch.armed = True
        result = call()
    finally:
        watch.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous if previous is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        if collecting:
            gc.enable()
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - started_s), _AGAIN_S), every_s)
    if watch.fired:
        raise DeadlineExceeded
    return result


def _in_uncut(frame: FrameType | None, outermost: FrameType) -> bool:
    """Whether a frame, or one that it was called from, is not to be cut short."""
    while frame is not None and frame is not outermost:
        if frame.f_code in _UNCUT:
            return True
        frame = frame.f_back
    return False


def _plant(thread_id: int, exception: type[BaseException] | None) -> None:
    """Have a thread raise `exception` at its next line; None takes back one that has not arrived yet."""
    planted = ctypes.py_object(exception) if exception else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), planted)


def _by_thread(limit_s: float, call: Callable[[], object]) -> object:
    """`within`, by an exception that another thread plants into this one.

    The exception can arrive at any call or jump here, also while this function tidies up. So tidying is repeated until
    it is through, calls nothing before it is under way, and holds no lock, which would never be released.
    """
    watch, gate = _Watch(), threading.Lock()
    thread_id, switch_s, collecting = threading.get_ident(), sys.getswitchinterval(), gc.isenabled()
    gate.acquire()
    watcher = threading.Thread(target=_plant_when_late, args=(watch, gate, limit_s, thread_id), daemon=True)
    watcher.start()  # waits for the thread to run, which can take longer than a short limit: armed only afterwards
    try:
        watch.armed = True
        result = call()
    finally:
        watch.armed = False
        while True:
            try:
                _disarm(watch, gate, thread_id)
                sys.setswitchinterval(switch_s)
                if collecting:
                    gc.enable()
                break
            except DeadlineExceeded:
                continue
    if watch.fired:
        raise DeadlineExceeded
    return result


def _plant_when_late(watch: _Watch, gate: threading.Lock, limit_s: float, thread_id: int) -> None:
    """Plant the exception after limit_s, and again until the watch is disarmed or the gate opens."""
    wait_s = limit_s
    while not gate.acquire(timeout=wait_s) and (watch.armed or not watch.fired):
        wait_s = _AGAIN_S
        if watch.armed:
            watch.fired = True
            gc.disable()
            sys.setswitchinterval(_AGAIN_S)
            _plant(thread_id, DeadlineExceeded)
    watch.ended = True


def _disarm(watch: _Watch, gate: threading.Lock, thread_id: int) -> None:
    """Open the gate, wait for the watcher's end, and take back an exception that has not arrived yet."""
    if not watch.ended and gate.locked():
        gate.release()
    while not watch.ended:
        time.sleep(_AGAIN_S)
    _plant(thread_id, None)
