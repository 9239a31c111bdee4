"""Files of every kind: what is a trace is read, whatever its wrapping; what is none gets one sentence."""

import gzip
import json
import os
import random

import pytest
from fabricated_trace import Program, event
from hypothesis import given
from hypothesis import strategies as st

from labkit import trace
from labkit.trace import stream

EVENTS = [event(f"aten::op{i}", 10 * i, 5) for i in range(40)]
WHOLE = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "t"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def _count(path):
    """How many operators were read, and the notes."""
    found = trace.read(path)
    return sum(span.row != "CPU" for span in found.spans), list(found.notes)


WRAPPINGS = {
    "object": WHOLE,
    "list": json.dumps(EVENTS),
    "list without its bracket": json.dumps(EVENTS)[:-1],
    "list that ends in a comma": json.dumps(EVENTS)[:-1] + ",",
    "a comma after the last event": WHOLE.replace('], "traceName"', ',], "traceName"'),
    "indented": json.dumps({"traceEvents": EVENTS}, indent=4),
    "nothing after the events": json.dumps({"traceEvents": EVENTS}),
    "its keys in another order": json.dumps(
        {"a": {"traceEvents": [1]}, "b": '"traceEvents": [', "traceEvents": EVENTS}
    ),
    "a byte order mark": "\ufeff" + WHOLE,
    "a line break in a name": WHOLE.replace("aten::op7", "aten::op\n7"),
    "not a number": WHOLE.replace('"schemaVersion": 1', '"schemaVersion": NaN'),
}


@pytest.mark.parametrize("how", WRAPPINGS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_wrapping_of_the_same_events_is_read(path, how, packed):
    data = WRAPPINGS[how].encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert _count(path) == (40, [])


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_where_a_chunk_ends_does_not_matter(path, monkeypatch, chunk):
    path.write_text(WHOLE.replace("op3", "öp3"), encoding="utf-8")
    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
    assert _count(path) == (40, [])
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert _count(path) == (40, [])


def test_names_that_are_not_utf_8_keep_what_is(path):
    path.write_bytes(WHOLE.encode().replace(b'aten::op3"', b'aten::\xff\xfeop3"'))
    assert "aten::\ufffd\ufffdop3" in trace.read(path).names


def test_the_header_is_kept(path):
    path.write_text(WHOLE)
    events = stream.Events(path)
    assert len(list(events)) == 40
    assert events.header == {"schemaVersion": 1, "deviceProperties": [{"id": 0}]}


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_off_after_some_events_is_read_so_far_with_a_note(path, packed):
    data = json.dumps({"traceEvents": Program().run(200)}).encode()
    data = gzip.compress(data) if packed else data
    path.write_bytes(data[: len(data) // 2])
    count, (note,) = _count(path)
    assert count > 500
    assert note.startswith("The file is cut off or broken after ")


def test_a_file_cut_off_between_events_is_read_with_a_note(path):
    path.write_text(WHOLE[: WHOLE.index('{"ph"', 900)])
    count, notes = _count(path)
    assert notes == [f"The file is cut off after {count} events: what is said here is about those."]


def test_a_gzip_file_of_several_parts_or_with_something_behind_it_is_read(path):
    half = len(WHOLE) // 2
    path.write_bytes(gzip.compress(WHOLE[:half].encode()) + gzip.compress(WHOLE[half:].encode()) + b"trailing")
    assert _count(path) == (40, [])


DEEP = '{"a":' * 50_000 + "[1]" + "}" * 50_000
# what stands between sound events, and how many parts are skipped for it
ODD_VALUES = {
    "nested too deeply": (f'{{"ph": "X", "args": {DEEP}}}', 1),
    "nested too deeply, brackets in strings": ('{"b": "\\"}]", "args": ' + DEEP + ', "name": "]}\\\\"}', 1),
    "a deep list": ("[" * 50_000 + "]" * 50_000, 1),
    "a number of many digits": ('{"ph": "M", "args": {"n": ' + "9" * 5000 + "}}", 0),
    "no comma": ('{"ph": "X" "ts": 1}', 1),
    "no such word": ('{"ph": undefined}, {"ph": "\\u12"}', 2),
}


@pytest.mark.parametrize("what", ODD_VALUES)
@pytest.mark.parametrize("chunk", [700, 1 << 20])
def test_one_odd_value_does_not_end_the_reading(path, monkeypatch, what, chunk):
    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
    odd, skipped = ODD_VALUES[what]
    path.write_text(WHOLE.replace(', {"ph"', f', {odd}, {{"ph"', 1))
    note = f"Skipped {skipped} part{'s' * (skipped > 1)} of the file, no JSON or nested too deeply: "
    count, notes = _count(path)
    assert count == 40
    assert notes == [f"{note}events may be missing there."] * (skipped > 0)


def test_an_odd_value_in_the_header_does_not_end_the_reading(path):
    path.write_text(WHOLE.replace('"schemaVersion": 1', f'"schemaVersion": {DEEP}'))
    assert _count(path)[0] == 40


def test_an_event_with_a_number_of_many_digits_keeps_the_rest(path):
    odd = event("aten::odd", 5, 5, device=3, correlation=7) | {"cat": "kernel"}
    path.write_text(json.dumps([odd, *EVENTS]).replace('"correlation": 7', f'"correlation": 7, "n": {"9" * 5000}'))
    found = trace.read(path)
    assert found.devices == ["GPU 3"]
    assert 7 in found.columns.link


def test_an_event_longer_than_any_is_skipped_in_constant_memory(path, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK_BYTES", 100)
    monkeypatch.setattr(stream, "LARGEST_VALUE", 2_000)
    long = json.dumps(event("aten::long", 5, 5, stack=["frame"] * 100_000))
    path.write_text(WHOLE.replace(', {"ph"', f', {long}, {{"ph"', 1))
    assert _count(path)[0] == 40


NO_TRACES = {
    "empty": (b"", "is empty: export the trace again"),
    "blank": (b" \n\t", "is empty: export the trace again"),
    "gzip of nothing": (gzip.compress(b""), "is empty: export the trace again"),
    "text": (b"hello", "it is not JSON, or cut off before its first event"),
    "binary": (random.Random(0).randbytes(5000), "it is not JSON, or cut off before its first event"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(50), "it is not JSON"),
    "UTF-16": (WHOLE.encode("utf-16"), "it is not JSON"),
    "a brace": (b"{", "it is not JSON, or cut off before its first event"),
    "cut in the header": (WHOLE[:30].encode(), "it is not JSON, or cut off before its first event"),
    "cut in the first event": (WHOLE[:90].encode(), "it is not JSON, or cut off before its first event"),
    "single quotes": (b"{'traceEvents': []}", "it is not JSON"),
    "too deep": (b"[" * 100_000, "it is not JSON"),
    "null": (b"null", "it is not JSON"),
    "other JSON": (b'{"nodes": [1, 2]}', "is JSON but not a Chrome trace: it has no list of traceEvents"),
    "an empty object": (b"{}", "is JSON but not a Chrome trace: it has no list of traceEvents"),
    "events that are no list": (b'{"traceEvents": {"a": 1}}', "it has no list of traceEvents"),
    "no events": (b'{"traceEvents": []}', "holds no events: export the trace again"),
    "a list of numbers": (b"[1, 2, 3]", "holds no events"),
    "events without a time": (b'[{"ph": "X"}, {"ph": "M"}]', "holds 2 events, none of which lasted any known time"),
    "gzip that breaks at once": (b"\x1f\x8b\x08garbage", "is a broken gzip file: export the trace again"),
    "gzip cut off at once": (gzip.compress(WHOLE.encode())[:8], "is empty"),
}


@pytest.mark.parametrize("what", NO_TRACES)
def test_what_is_no_trace_is_one_sentence_that_names_the_file(path, what):
    data, sentence = NO_TRACES[what]
    path.write_bytes(data)
    with pytest.raises(trace.TraceError) as raised:
        trace.report(path)
    said = str(raised.value)
    assert sentence in said
    assert str(path) in said
    assert said.endswith(".")
    assert "\n" not in said


def test_a_directory_a_missing_file_and_a_wrong_gz_are_sentences(tmp_path):
    plain = tmp_path / "t.json.gz"
    plain.write_text(WHOLE)
    for what, sentence in (
        (tmp_path, "is a directory: name the trace file in it."),
        (tmp_path / "none.json", "There is no file "),
        (plain, "is named .gz but is not gzip: rename it, or export the trace again."),
    ):
        with pytest.raises(trace.TraceError, match=sentence):
            trace.read(what)


@pytest.mark.skipif(os.name != "posix", reason="needs a device file")
def test_a_device_file_is_a_sentence():
    with pytest.raises(trace.TraceError, match="is a device or a pipe: write the trace to a file."):
        trace.read("/dev/zero")


def test_a_file_that_may_not_be_read_is_a_sentence(path, monkeypatch):
    path.write_text(WHOLE)
    path.chmod(0)
    if os.geteuid() == 0:  # root reads everything

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(trace.TraceError, match=r"Cannot read .*: Permission denied\."):
        trace.read(path)


def _said(path):
    """The sentence with which the file is refused, or a full stop for one that is read."""
    try:
        trace.report(path)
    except trace.TraceError as error:
        return str(error)
    return "."


@given(st.binary(max_size=300))
def test_no_bytes_at_all_raise_anything_but_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "t"
    for content in (data, b'{"traceEvents":[' + data, b"[" + data, b"\x1f\x8b" + data):
        path.write_bytes(content)
        assert _said(path).endswith(".")


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_trace_with_one_wrong_byte_is_read_or_is_a_sentence(tmp_path_factory, place, byte):
    path = tmp_path_factory.mktemp("fuzz") / "t"
    data = bytearray(WHOLE.encode())
    data[place] = byte
    path.write_bytes(data)
    assert _said(path).endswith(".")


def test_events_are_streamed(path, monkeypatch):
    """Eight times the events, and the same memory at the peak."""
    import tracemalloc

    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 14)
    peaks = []
    for repeats in (10, 80):
        path.write_text("[" + ",\n".join([json.dumps(each) for each in EVENTS] * repeats) + "]")
        tracemalloc.start()
        count = sum(1 for _ in stream.Events(path))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == 40 * repeats
    assert peaks[1] < 1.2 * peaks[0] < 400_000
