"""The wire: plain data comes back as it went, nothing else comes through, and no message can do harm."""

import gc
import json
import math
import pickle
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.compare import same
from labkit.grading import wire
from labkit.grading.wire import Odd, WireError, decode, encode

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
keys = st.integers() | st.text(max_size=5) | st.booleans()
values = st.recursive(
    scalars | st.complex_numbers() | st.sampled_from([range(3), range(9, 0, -2), {1, 2}, torch.float16]),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def alike(one, other):
    """Equal, of the same types all the way down, NaN being equal to NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike(list(one.items()), list(other.items()))
    if isinstance(one, complex):
        return alike([one.real, one.imag], [other.real, other.imag])
    return one == other or one != one and other != other


@given(values)
def test_plain_data_comes_back_with_its_types(value):
    assert alike(decode(encode(value)), value)


@pytest.mark.parametrize("dtype", wire._DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    back = decode(encode(tensor))
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)
    if dtype != "bfloat16":
        array = decode(encode(tensor.numpy()))
        assert (type(array), array.dtype, array.shape) == (np.ndarray, tensor.numpy().dtype, tensor.numpy().shape)


def test_signs_of_zero_infinities_and_nan_come_back():
    odd = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    assert torch.equal(decode(encode(odd)).view(torch.int32), odd.view(torch.int32))


def test_a_transposed_conjugated_or_trained_tensor_comes_as_plain_numbers():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert same(decode(encode(tensor.T)), tensor.T.contiguous())
    turned = torch.tensor([1 + 2j]).conj()
    assert decode(encode(turned)).item() == 1 - 2j
    back = decode(encode(torch.nn.Parameter(tensor)))
    assert (type(back), back.requires_grad) == (torch.Tensor, False)


def test_a_numpy_number_stays_one():
    back = decode(encode([np.float32(0.5), np.int64(3), np.True_]))
    assert [type(each) for each in back] == [np.float32, np.int64, np.bool_]


class Liar(float):
    """Says that it equals everything."""

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


class LiarTensor(torch.Tensor):
    """A tensor that says that it equals everything."""

    def __eq__(self, other):
        return torch.ones(self.shape, dtype=torch.bool)

    __hash__ = torch.Tensor.__hash__


def test_what_lies_about_itself_arrives_as_what_it_is():
    back = decode(encode([Liar(1.0), torch.ones(2).as_subclass(LiarTensor)]))
    assert [type(each) for each in back] == [float, torch.Tensor]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (print, "the function print"),
        ((i for i in range(3)), "a generator"),
        (torch.empty(2, device="meta"), "a meta tensor of shape (2,)"),
        (np.array([object()]), "an object array of shape (1,)"),
        (torch.nn.ReLU(), "a ReLU"),
    ],
)
def test_what_is_no_plain_data_travels_by_its_name(value, kind):
    assert decode(encode([value])) == [Odd(kind)]


def test_a_list_that_holds_itself_and_one_without_end_are_refused():
    loop = []
    loop.append(loop)
    for value in (loop, [0] * 1_000_001, 10**5000):
        with pytest.raises(WireError):
            encode(value)


def message(tree, raw=b""):
    text = json.dumps(tree).encode()
    return len(text).to_bytes(8, "big") + text + raw


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"\xff" * 8,
        b"\0" * 7 + b"\x05{",
        pickle.dumps([1]),
        message({"tensor": ["float32", [2], 8]}, b"1234"),  # cut short
        message({"tensor": ["float32", [3], 8]}, b"12345678"),  # bytes that do not fit
        message({"tensor": ["float32", [-1, -2], 8]}, b"12345678"),
        message({"tensor": ["float32", [True, 2], 8]}, b"12345678"),
        message({"tensor": ["float32", [2**50], 2**52]}),
        message({"tensor": ["float32", [0, 2**50], 0]}),
        message({"tensor": ["object", [1], 8]}, b"12345678"),
        message({"tensor": ["load", [1], 8]}, b"12345678"),
        message({"dtype": "torch.load"}),
        message({"bytes": -1}),
        message({"bytes": 10**30}),
        message({"_taken": 1}),
        message({"of": 1}),
        message({"unknown": 1}),
        message({"tuple": 1, "list": 2}),
        message({"tuple": {"tuple": 3}}),
        message({"range": [0, 1, 0]}),
        message({"set": [[1]]}),
        message({"dict": [[1]]}),
        message({"dict": [[[1], 2]]}),
        message({"complex": [1, 2, 3]}),
        message(1, b"bytes of nothing"),
        (2**40).to_bytes(8, "big") + b"[]",
        (200_000).to_bytes(8, "big") + b"[" * 200_000,
        message(0).replace(b"0", b"9" * 1) + b"x",
    ],
)
def test_a_forged_message_is_refused_in_a_sentence(forged):
    with pytest.raises(WireError):
        decode(forged)


@given(st.binary(max_size=60))
def test_noise_is_a_value_or_a_wire_error(noise):
    with suppress(WireError):
        decode(len(noise).to_bytes(8, "big") + noise)


@settings(max_examples=50)
@given(st.data())
def test_a_message_with_a_changed_byte_is_a_value_or_a_wire_error(data):
    raw = bytearray(encode({"a": torch.ones(2), 3: (1.5, [None, b"xy"])}))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        decode(bytes(raw))


def test_a_million_numbers_cross_both_ways_in_no_time():
    tensor = torch.rand(1_000_000)
    assert torch.equal(decode(encode(tensor)), tensor)


M61 = 2**61 - 1  # Python's hash of a whole number is its rest by this


@pytest.mark.parametrize(
    "forged",
    [
        message({"set": [k * M61 for k in range(1, 30_000)]}),
        message({"dict": [[{"complex": [-1000003 * k, k]}, 0] for k in range(30_000)]}),
        message({"tuple": [{"set": [k * M61 for k in range(1 + 1000 * n, 1000 + 1000 * n)]} for n in range(30)]}),
        (30_000_002).to_bytes(8, "big") + b"[" + b"[]," * 10_000_000 + b"0]"[:1],
    ],
    ids=["numbers of one hash", "complex numbers of one hash", "many sets", "lists without number"],
)
def test_a_message_that_would_keep_the_grader_busy_is_refused_at_once(forged):
    assert min(_refused_s(forged) for _ in range(3)) < 1.0


def _refused_s(forged):
    """Seconds of this thread alone, without the collector, which walks through all that other tests have left."""
    gc.collect()
    gc.disable()
    try:
        began_s = time.thread_time()
        with pytest.raises(WireError):
            decode(forged)
        return time.thread_time() - began_s
    finally:
        gc.enable()


def test_large_sets_and_dictionaries_of_usual_keys_come_through():
    value = [dict.fromkeys(range(30_000)), {str(n) for n in range(30_000)}, {(n, 1): 0.5 for n in range(1_000)}]
    assert decode(encode(value)) == value
