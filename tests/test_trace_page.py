"""The report as text, as a page, in a notebook, and from the command line."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from fabricated_trace import Program, event, write

from labkit import cli, trace
from labkit.show import VARYING_CLOSE, VARYING_LINE, VARYING_OPEN
from labkit.timeline import Span

NASTY = '<script>alert("x")</script>&\x1b[31m'


@pytest.fixture
def path(tmp_path):
    """Sixty steps on a GPU, one of them slow, and names that would like to be markup."""
    program = Program()
    program.device(NASTY, 150, 128)
    events = program.run(60, {30: "data wait"})
    events += [event("aten::mm", events[0]["ts"], 5, tid=NASTY), event("k", events[0]["ts"], 5, "kernel", NASTY, 1)]
    return write(tmp_path / "a & b.json", events)


class _Tags(HTMLParser):
    """Every tag with its attributes; complains of one that is not closed in its order."""

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "rect") or not self.get_starttag_text().endswith("/>") and tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_needs_nothing_else_and_escapes_names(path):
    page = trace.report(path).html()
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    names = {tag for tag, _ in tags.found}
    assert not names & {"script", "link", "img", "iframe", "object", "base"}
    assert not [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href")]
    assert not re.search(r"https?:|url\((?!#labkit-)|@import|\bon\w+=", page.replace("xmlns", ""))
    assert "&lt;script&gt;alert(" in page
    assert "a &amp; b.json" in page


def test_the_page_is_for_light_and_dark(path):
    page = trace.report(path).html()
    assert "color-scheme: light dark" in page
    assert "prefers-color-scheme: dark" in page


def test_the_page_of_many_events_stays_small(tmp_path):
    events = [event("k", i, 0.5, "kernel", 0, 7, device=0) for i in range(6_000)]
    page = trace.report(write(tmp_path / "t.json", events)).html()
    assert len(page) < 1_000_000


def test_the_text_says_what_matters_in_short_lines_without_control_signs(path):
    text = trace.report(path).text()
    assert text.startswith("a & b.json: ")
    assert "GPU 0: busy " in text
    assert "idle, data wait: " in text
    assert "61 kernels" not in text
    assert "60 steps, " in text
    assert "; 1 slow" in text
    assert "ProfilerStep#30: " in text
    assert "data wait (+" in text
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert max(map(len, text.splitlines())) <= 164
    assert str(trace.report(path)) == text


def test_shown_figures_are_marked_as_varying(path, capsys, monkeypatch):
    report = trace.report(path)
    report.show()
    assert all(line.startswith(VARYING_LINE) for line in capsys.readouterr().out.splitlines())
    shown = []
    monkeypatch.setattr("labkit.show.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    report.show()
    html = shown[0]["text/html"]
    assert html.startswith(VARYING_OPEN)
    assert html.endswith(VARYING_CLOSE)
    assert "<svg" not in html


def test_the_command_prints_text_or_json_and_writes_a_page(labkit, path, tmp_path):
    code, out, error = labkit("trace", path)
    assert (code, error) == (0, "")
    assert out == trace.report(path).text() + "\n"
    code, out, error = labkit("trace", path, "--json", "--html", tmp_path / "page.html")
    assert (code, error) == (0, "")
    assert json.loads(out) == json.loads(trace.report(path).json())
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == trace.report(path).html()


def test_the_command_answers_what_is_no_trace_with_one_sentence(labkit, tmp_path):
    (tmp_path / "t.json").write_text("hello")
    for what in (tmp_path, tmp_path / "none", tmp_path / "t.json", ""):
        code, out, error = labkit("trace", what)
        assert (code, out, error.count("\n")) == (2, "", 1)
        assert "Traceback" not in error
    code, _, error = labkit("trace", tmp_path / "t.json", "--nonsense")
    assert (code, "Traceback" in error) == (2, False)


def test_a_page_that_cannot_be_written_is_one_sentence(labkit, path, tmp_path):
    for where in (tmp_path, tmp_path / "none" / "page.html"):
        code, out, error = labkit("trace", path, "--html", where)
        assert (code, out, error.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("link", ["same", "another spelling", "symlink", "hard link"])
def test_the_page_never_replaces_the_trace(labkit, path, tmp_path, link):
    page, kept = tmp_path / "link.html", path.read_bytes()
    if link == "symlink":
        page.symlink_to(path)
    elif link == "hard link":
        page.hardlink_to(path)
    else:
        page = path if link == "same" else f"{tmp_path}/../{tmp_path.name}/{path.name}"
    code, out, error = labkit("trace", path, "--html", page)
    assert (code, out) == (2, "")
    assert error.endswith(" is the trace itself: give the page another name.\n")
    assert path.read_bytes() == kept


@pytest.mark.parametrize("name", ["", "-"])
def test_a_page_needs_a_name(labkit, path, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    said = (2, "", "Name a file for the page, such as --html page.html.\n")
    assert labkit("trace", path, "--html", name) == said
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_page_that_fails_leaves_the_former_one(path, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("former")
    monkeypatch.setattr(trace.Report, "html", lambda _: "\ud800")
    monkeypatch.setattr(sys, "argv", ["labkit", "trace", str(path), "--html", str(page)])
    with pytest.raises(UnicodeEncodeError):
        cli.main()
    assert page.read_text() == "former"


HALF = "\ud800"  # of a surrogate pair: JSON may hold it, UTF-8 may not
HALVES = {
    "kernel": [event(f"{HALF}bad", 1, 2, "kernel", device=0)],
    "device": [event("k", 1, 2, "kernel", device=f"{HALF}bad")],
    "thread number": [event("aten::mm", 1, 2, tid=f"{HALF}bad")],
    "thread's and process's names": [event("aten::mm", 1, 2, tid=each, pid=f"{HALF}bad{each}") for each in (1, 2)]
    + [
        {"ph": "M", "name": "thread_name", "pid": f"{HALF}bad{each}", "tid": each, "args": {"name": f"{HALF}bad"}}
        for each in (1, 2)
    ],
    "step": [event(f"step {HALF}bad", 10 * i, 9, "user_annotation") for i in range(9)] + [event("aten::mm", 1, 2)],
    "worker": [event(f"labkit device: {HALF}bad", 1, 2), event(f"labkit launch: {HALF}bad", 1, 1, tid=2)],
}


@pytest.mark.parametrize("where", HALVES)
def test_a_name_that_utf_8_cannot_hold_is_written_all_the_same(labkit, tmp_path, where):
    path, page = write(tmp_path / "t.json", HALVES[where]), tmp_path / "page.html"
    for options in ((), ("--json",), ("--html", page)):
        code, out, error = labkit("trace", path, *options)
        assert (code, error) == (0, "")
        out.encode()
    report = trace.report(path)
    for text in (page.read_text(encoding="utf-8"), report.json(), *report.trace.names, *report.trace.rows):
        text.encode()
        assert r"\ud800" not in text
    assert any("\ufffdbad" in text for text in (*report.trace.names, *report.trace.rows))


def test_spans_with_such_names_too():
    spans = [Span(row=f"{HALF}row", name=f"{HALF}name", start_s=0.0, end_s=1.0, kind="kernel")]
    report = trace.report(spans)
    assert list(report.devices) == ["\ufffdrow"]
    report.html().encode()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every file's name is Unicode")
def test_a_file_whose_name_is_not_utf_8(labkit, path, tmp_path):
    odd, page = tmp_path / os.fsdecode(b"bad\xff.json"), tmp_path / os.fsdecode(b"page\xff.html")
    path.rename(odd)
    assert labkit("trace", odd, "--html", page)[0] == 0
    assert "<title>bad\ufffd.json: labkit trace</title>" in page.read_text(encoding="utf-8")
    assert json.loads(labkit("trace", odd, "--json")[1])["source"] == "bad\ufffd.json"


@pytest.mark.skipif(os.name != "posix", reason="elsewhere no file's name holds these")
def test_no_sentence_holds_what_a_terminal_would_obey(labkit, path, tmp_path):
    odd = tmp_path / "\x1b[31m\u202e\x07.json"
    (tmp_path / "\x1b[2J").mkdir()
    for arguments in ((odd,), (tmp_path / "\x1b[2J",), (path, "--html", odd.parent / "\x1b[1m" / "page.html")):
        code, _, error = labkit("trace", *arguments)
        assert (code, error.count("\n")) == (2, 1)
        assert error[:-1].isprintable()
        assert r"\x1b[" in error


def test_json_keeps_every_name_whatever_the_terminal(path):
    write(path, [event("k", 1, 2, "kernel", device="café ✓")])
    said = trace.report(path).json()
    assert said.isascii()
    assert list(json.loads(said)["devices"]) == ["café ✓"]


def test_the_command_needs_no_torch(path):
    code = "import sys; from labkit import trace; trace.report(sys.argv[1]).html(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_json_has_no_number_that_json_lacks(tmp_path):
    for events in ([event("a", 5, 0)], [event("k", 5, 0, "kernel", 0, 7)], [event("x", 0, 1, "user_annotation")]):
        said = trace.report(write(tmp_path / "t.json", events)).json()
        json.loads(said, parse_constant=lambda word: pytest.fail(f"{word} in the JSON"))
