"""What labkit asks of torch.compile; where there is no compiler, what it says of that."""

import os

import pytest
import torch

from labkit import compilation, hardware
from labkit.show import VARYING_LINE

LACKS = hardware.missing_to_compile(on_gpu=hardware.tier() != "cpu")  # asked so, it imports no compiler
needs_compiler = pytest.mark.skipif(bool(LACKS), reason=f"torch.compile lacks {LACKS} here")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """One thread, and a folder of this test's own for whatever is compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.compiler.reset()


def chain(x, y):
    return (x * 2 + y).clamp(min=0) - x


def test_what_is_missing_depends_on_the_device(monkeypatch):
    monkeypatch.setattr(hardware, "missing_to_compile", lambda on_gpu: "Triton" if on_gpu else "a C++ compiler")
    for tier, lack in (("cpu", "a C++ compiler"), ("gpu", "Triton"), ("gpu2", "Triton")):
        monkeypatch.setattr(hardware, "tier", lambda tier=tier: tier)
        assert compilation.lacks() == lack


@needs_compiler
@pytest.mark.slow
def test_a_chain_becomes_one_kernel_cold_and_warm(capsys):
    x, y = torch.randn(1000), torch.randn(1000)
    first, again = (compilation.generated(chain, x, y) for _ in range(2))
    assert first == again, "what comes from the cache is counted as what is written anew"
    assert (first.kernels, first.tensors) == (1, 3)
    assert first.source.startswith(('extern "C"', "def triton_"))
    compilation.show_source(first)
    assert "in_ptr0" in (shown := capsys.readouterr().out)
    assert all(line.startswith(VARYING_LINE) for line in shown.splitlines())


def test_code_that_was_not_written_is_said_to_be_missing(capsys):
    compilation.show_source(None)
    assert "not compiled here" in capsys.readouterr().out


def test_code_that_another_machine_wrote_is_shown_as_its_own(capsys):
    compilation.show_source(None, {"Tesla T4, 2026-11-30": "def triton_it(): ...", "another": "code"})
    shown = capsys.readouterr().out
    assert "Not compiled here. On Tesla T4, 2026-11-30, torch.compile wrote:" in shown
    assert "def triton_it" in shown
    assert "another" not in shown
    assert all(line.startswith(VARYING_LINE) for line in shown.splitlines())


def test_the_profiler_tells_compiled_from_eager_and_from_given_up(capfd):
    compilation.prepare()
    compiled = torch.compile(chain, backend="eager", dynamic=False)
    x = torch.ones(10)
    assert (compilation.pieces(chain, x, x), compilation.pieces(compiled, x, x)) == (0, 1)
    for size in range(11, 11 + torch._dynamo.config.recompile_limit):
        compiled(torch.ones(size), torch.ones(size))
    assert compilation.pieces(compiled, torch.ones(99), torch.ones(99)) == 0, "too many shapes: it runs eagerly"

    def broken(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y.sum()

    assert compilation.pieces(torch.compile(broken, backend="eager"), x) == 2
    assert capfd.readouterr().err == ""


@needs_compiler
@pytest.mark.slow
def test_a_kernel_that_writes_where_it_reads_moves_that_tensor_twice():
    assert compilation.generated(lambda x: x.mul_(2).add_(1), torch.randn(100)).tensors == 2


@needs_compiler
@pytest.mark.slow
def test_an_empty_cache_is_left_behind_empty(tmp_path):
    with compilation.empty_cache():
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert folder != str(tmp_path)
        seconds = compilation.first_call_s(torch.compile(chain), torch.randn(50), torch.randn(50))
    assert seconds > 0
    assert not os.path.exists(folder)
    assert torch.equal(torch.compile(chain)(x := torch.ones(50), x), chain(x, x)), "and compiling goes on as before"


def test_the_log_keeps_quiet_about_breaks_and_recompilations(capfd):
    compilation.prepare()

    def broken(x):
        return x * x.sum().item()

    compiled = torch.compile(broken, backend="eager", dynamic=False)
    for size in range(2, 14):
        compiled(torch.ones(size))
    assert capfd.readouterr().err == ""
