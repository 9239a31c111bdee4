"""Which device threads are open, and that open() gives the same one again."""

import os
import subprocess
import sys

import pytest
import torch

from labkit import device_thread, opened

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="open() gives the GPU")


@no_gpu
def test_open_gives_the_open_device_again_with_the_launch_cost_asked_for_last():
    dev = device_thread.open()
    x = dev.put(torch.ones(2))
    try:
        again = device_thread.open(launch_s=1e-3)
        assert again is dev
        assert dev.launch_s == 1e-3
        assert (x + again.put(torch.ones(2))).tolist() == [2.0, 2.0]
    finally:
        dev.close()
    new = device_thread.open()
    new.close()
    assert new is not dev


@no_gpu
def test_a_fresh_device_is_its_owners_alone():
    dev = device_thread.open()
    own, other = device_thread.open(fresh=True), device_thread.open_thread()
    assert len({dev, own, other}) == 3
    own.close()
    other.close()
    assert device_thread.open() is dev
    assert dev.put(torch.ones(1)).item() == 1.0
    dev.close()


def test_is_open_says_so_until_the_last_one_is_closed():
    before = opened.devices()
    dev = device_thread.open_thread()
    assert device_thread.is_open()
    assert opened.devices() == (*before, dev)
    dev.close()
    assert opened.devices() == before
    assert device_thread.is_open() == bool(before)


@no_gpu
@pytest.mark.parametrize("launch_s", [-1.0, float("nan"), float("inf")])
def test_a_launch_that_takes_less_than_no_time_is_refused_by_an_open_device_too(launch_s):
    dev = device_thread.open()
    with pytest.raises(ValueError, match="0 or more"):
        device_thread.open(launch_s=launch_s)
    assert dev.launch_s == 10e-6
    dev.close()


FORKED = """
import os, sys, torch
from labkit import device_thread
before = sys.getswitchinterval()
x = (dev := device_thread.open_thread()).put(torch.ones(2))
if not (child := os.fork()):
    try:
        x.tolist()
    except device_thread.DeviceError as error:
        assert "closed: open another" in str(error)
        assert sys.getswitchinterval() == before
        os._exit(7 + (device_thread.open_thread().put(torch.ones(2)).tolist() != [1.0, 1.0]))
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert x.tolist() == [1.0, 1.0]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_told_that_the_device_is_closed_and_opens_its_own():
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
