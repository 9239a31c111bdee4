"""What only a GPU can show of compiled code: kernels that the profiler counts, and Triton in place of C++."""

import pytest
import torch

from labkit import compilation, hardware

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def chain(x, y):
    return (x * 2 + y).clamp(min=0) - x


def test_the_profiler_counts_a_kernel_for_each_operation():
    x = torch.rand(100_000, device="cuda")
    assert compilation.launched(chain, x, x) == 4
    assert compilation.launched(lambda: x.view(-1)[:10]) == 0


@pytest.mark.skipif(bool(hardware.missing_to_compile(on_gpu=True)), reason="torch.compile lacks something here")
def test_compiled_it_is_one_kernel_for_the_compiler_and_for_the_profiler():
    x, y = torch.rand(2, 100_000, device="cuda")
    made = compilation.generated(chain, x, y)
    assert (made.kernels, made.tensors) == (1, 3)
    assert made.source.startswith("def triton_")
    assert compilation.launched(torch.compile(chain), x, y) == 1
