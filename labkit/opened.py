"""Which device threads are open, the turns that Python's threads take meanwhile, and their end with the interpreter."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

SWITCH_S = 2e-5  # how often Python's threads take turns; at its own 5 ms the worker starves beside a busy host

_devices: list[Any] = []
_shared: list[Any] = []  # of these, the one that everybody is given who asks for no device of their own
_switch_before_s: list[float] = []


def devices() -> tuple[Any, ...]:
    """Those that are open, the oldest first."""
    return tuple(_devices)


def add(device: Any) -> None:
    """Note a device that has been opened; with the first one, Python's threads begin to take turns more often."""
    if not _devices:
        _switch_before_s.append(sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
    _devices.append(device)


def remove(device: Any) -> None:
    """Forget a device that has been closed; after the last one, Python's threads take turns as before."""
    for each in (_devices, _shared):
        if device in each:
            each.remove(device)
    if not _devices and _switch_before_s:
        sys.setswitchinterval(_switch_before_s.pop())


def shared(make: Callable[[], Any], *, launch_s: float) -> Any:
    """The one device that is shared, made where there is none; a launch costs it launch_s from now on."""
    if not _shared:
        _shared.append(make())
    _shared[0].launch_s = launch_s
    return _shared[0]


@atexit.register
def _close_all() -> None:
    """A worker in the middle of an operation would outlive the interpreter."""
    for device in devices():
        device.close()


def _forget_all() -> None:
    """A process that was forked has none of its parent's threads: there these devices are closed."""
    for device in devices():
        device._closed = True
        remove(device)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
