"""What labkit.setting says of a GPU, held against what the GPU does; `make gpu-check` runs these."""

import warnings

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit import setting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def attends(name):
    """Whether scaled_dot_product_attention runs with this kernel alone, in fp16."""
    query = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.float16)
    with warnings.catch_warnings(), sdpa_kernel(getattr(SDPBackend, name)):
        warnings.simplefilter("ignore")  # torch warns with the reason, then raises
        try:
            functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        except RuntimeError:
            return False
    return True


def test_attention_has_the_kernels_that_are_named_and_no_other():
    names = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    built = {"FLASH_ATTENTION": torch.backends.cuda.is_flash_attention_available()}
    wanted = {name: name in setting.found().attention and built.get(name, True) for name in names}
    assert {name: attends(name) for name in names} == wanted


def test_the_cards_are_those_that_torch_uses():
    made = setting.found()
    assert len(made.cards) == torch.cuda.device_count()
    assert made.cards[0].capability == torch.cuda.get_device_capability(0)
    assert made.cards[0].bf16 == torch.cuda.is_bf16_supported(including_emulation=False)
    assert made.link in (("",) if len(made.cards) == 1 else ("NVLink", "PCIe"))
