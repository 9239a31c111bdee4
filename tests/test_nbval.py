"""What nbval lets differ between a stored output and a fresh one, tried on the patterns and with nbval itself."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nbval.plugin import get_sanitize_patterns

from labkit import build
from labkit.show import varying_html, varying_text

CONFIG = Path(__file__).with_name("nbval_sanitize.cfg")
HELD = "✓ warm-up survives\n" + varying_text("ratio 3.1\n2 of 3 seeds")
UNDECIDED = "– warm-up survives · needs: 1 GPU\n" + varying_text("no GPU here")
REFUTED = "✗ warm-up survives\n" + varying_text("ratio 3.1\n2 of 3 seeds")


def sanitized(text):
    for pattern, replacement in get_sanitize_patterns(CONFIG.read_text(encoding="utf-8")):
        text = re.sub(pattern, replacement, text)
    return text


def test_every_pattern_is_read_with_its_replacement():
    text = CONFIG.read_text(encoding="utf-8")
    assert len(get_sanitize_patterns(text)) == text.count("regex:") - text.count("# regex:")


@pytest.mark.parametrize(
    ("stored", "fresh", "same"),
    [
        (HELD, HELD.replace("3.1", "2.7"), True),
        (HELD, "✓ warm-up survives\n" + varying_text("one line"), True),
        (HELD + "\nafter\n", "✓ warm-up survives\n" + varying_text("one line") + "\nafter\n", True),
        (HELD, UNDECIDED, True),
        (UNDECIDED, HELD, True),
        (UNDECIDED, UNDECIDED.replace("1 GPU", "2 GPUs"), True),
        (HELD, REFUTED, False),
        (UNDECIDED, REFUTED, False),
        (HELD, HELD.replace("survives", "dies"), False),
        (HELD, "", False),
        ("rate 0.1", "rate 0.2", False),
        ("    · marked", "    not marked", False),
        (f"<b>a</b>{varying_html('1.2 s')}<i>b</i>", f"<b>a</b>{varying_html('3 s<br>more')}<i>b</i>", True),
        (f"{varying_html('1')}stable{varying_html('2')}", f"{varying_html('1')}changed{varying_html('2')}", False),
        ("<function f at 0x7f1234567890>", "<function f at 0x7fabcdef0123>", True),
        ("colour 0xff", "colour 0xfe", False),
    ],
)
def test_what_compares_equal(stored, fresh, same):
    assert (sanitized(stored) == sanitized(fresh)) is same


def notebook(path, stored, fresh):
    """A notebook whose one cell has printed `stored` and now prints `fresh`."""
    output = {"name": "stdout", "output_type": "stream", "text": stored + "\n"}
    cell = build.Converted(kind="code", student="", solution=f"print({fresh!r})", lines=(1,))
    path.write_text(build.solution_notebook([cell], [[output]], "0"), encoding="utf-8")


@pytest.mark.notebook
def test_nbval_itself_passes_and_fails_where_it_should(tmp_path):
    cases = {
        "varying": (HELD, HELD.replace("3.1", "2.7")),
        "undecided": (HELD, UNDECIDED),
        "refuted": (HELD, REFUTED),
        "changed": ("one", "two"),
    }
    for name, (stored, fresh) in cases.items():
        notebook(tmp_path / f"{name}.ipynb", stored, fresh)
    options = ["--nbval", "--nbval-current-env", f"--nbval-sanitize-with={CONFIG}", "-p", "no:cacheprovider", "-rA"]
    command = [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = re.findall(r"^(PASSED|FAILED) (\w+)\.ipynb", done.stdout, re.MULTILINE)
    results = {name: word for word, name in found}
    expected = {"varying": "PASSED", "undecided": "PASSED", "refuted": "FAILED", "changed": "FAILED"}
    assert results == expected, done.stdout


CLAIM = """
from labkit.claims import claim
claim("warm-up survives", holds={holds}, evidence="ratio {ratio}", tier="{tier}")
"""


@pytest.mark.notebook
def test_real_claims_in_real_kernels(tmp_path):
    """The claim of today's labkit, as HTML and text, against one stored with other figures."""
    stored = kernel_outputs(tmp_path, CLAIM.format(holds=True, ratio=3.1, tier="cpu"))
    fresh = kernel_outputs(tmp_path, CLAIM.format(holds=True, ratio=2.7, tier="cpu"))
    undecided = kernel_outputs(tmp_path, CLAIM.format(holds=None, ratio=2.7, tier="gpu2"))
    assert stored != fresh
    for mime in ("text/plain", "text/html"):
        one, two, three = (sanitized("".join(outputs[mime])) for outputs in (stored, fresh, undecided))
        assert one == two == three
        assert "survives" in one


def kernel_outputs(folder, code):
    """What one cell shows in a kernel."""
    from labkit.execute import client_of

    cell = build.Converted(kind="code", student="", solution=code, lines=(1,))
    with client_of(build.solution_notebook([cell]), folder / "x.ipynb") as client:
        outputs = client.execute_cell(client.nb.cells[0], 0).outputs
    assert len(outputs) == 1, json.dumps(outputs)
    return outputs[0]["data"]
