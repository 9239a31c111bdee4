"""Messages reach a stream of any encoding: a Windows pipe has no ✓, and no lesson may end on that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import show

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_held_and_refuted_stay_two_signs_in_any_encoding(encoding):
    program = "from labkit.show import show\nshow('✓ faster · 3 µs')\nshow('✗ faster · 3 µs')\nshow('– 漢')"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    held, refuted, undecided = done.stdout.decode(encoding).splitlines()
    expected = {"utf-8": ("✓", "✗", "– 漢"), "cp1252": ("v", "x", "– ?"), "ascii": ("v", "x", "- ?")}[encoding]
    assert (held.split()[0], refuted.split()[0], undecided) == expected


def test_a_table_is_held_to_what_does_not_vary(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "show", lambda text, html: shown.append((text, html)))
    show.table(["", "a < b"], [["now", 1.5]], caption="The race", varying=True, notes=["only & once"])
    show.table(["", "a < b"], [["now", 1.5]])
    (text, html), (plain, fixed) = shown
    assert text == "The race\n    ·      a < b\n    · now    1.5\n    · only & once"
    stable = re.sub(f"{show.VARYING_OPEN}.*?{show.VARYING_CLOSE}", "", html)
    assert "The race" in stable
    assert "a &lt; b" in stable
    assert "1.5" not in stable
    assert "once" not in stable
    assert "only &amp; once" in html
    assert "·" not in plain
    assert show.VARYING_OPEN not in fixed


def test_some_columns_alone_may_vary(capsys):
    show.table(["line", "times", "seconds"], [["a", 1, "2 ms"], ["b", 10, "30 ms"]], varying=["seconds"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["line  times", "a         1", "b        10"]
    assert lines[3:] == ["    · line  seconds", "    · a        2 ms", "    · b       30 ms"]
    assert show._html_row(["a", "1", "2 ms"], "td", {2}).count(show.VARYING_OPEN) == 1
