"""Counting a model's weights by its sizes: against networks that torch builds, and against published totals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labkit import architecture
from labkit.architecture import Architecture, active, count, kv_cache_bytes, parameters, weights
from labkit.presets import PRESETS

SMALL = Architecture(
    **{"name": "small", "vocab": 50, "width": 12, "layers": 3, "heads": 4, "kv_heads": 2, "head_width": 5},
    **{"hidden": 20, "gated": True, "norm": "rms", "context": 16},
)


def built(arch):
    """The modules that one layer and the ends are made of."""
    q, kv = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    norm = nn.LayerNorm if arch.norm == "layer" else nn.RMSNorm
    one = nn.ModuleList([nn.Linear(arch.width, arch.hidden, arch.mlp_bias) for _ in range(1 + arch.gated)])
    one.append(nn.Linear(arch.hidden, arch.width, arch.mlp_bias))
    layer = nn.ModuleList([norm(arch.width), norm(arch.width)])
    layer += [nn.Linear(arch.width, rows, arch.qkv_bias) for rows in (q, kv, kv)]
    layer.append(nn.Linear(q, arch.width, arch.out_bias))
    if arch.qk_norm:
        layer += [nn.RMSNorm(arch.head_width), nn.RMSNorm(arch.head_width)]
    if arch.experts:
        layer.append(nn.Linear(arch.width, arch.experts, bias=False))
    ends = [nn.Embedding(arch.vocab, arch.width), norm(arch.width)]
    ends += [nn.Embedding(arch.positions, arch.width)] if arch.positions else []
    ends += [] if arch.tied else [nn.Linear(arch.width, arch.vocab, bias=False)]
    numel = lambda modules: sum(p.numel() for module in modules for p in module.parameters())
    return numel(ends) + arch.layers * (numel(layer) + max(arch.experts, 1) * numel(one))


booleans = {name: st.booleans() for name in ("gated", "tied", "qkv_bias", "out_bias", "mlp_bias", "qk_norm")}


@given(
    sizes=st.fixed_dictionaries({"norm": st.sampled_from(["layer", "rms"]), **booleans}),
    experts=st.sampled_from([(0, 0), (4, 1), (4, 2)]),
    positions=st.integers(0, 9),
    layers=st.integers(1, 4),
)
def test_every_variety_has_as_many_parameters_as_torch_makes(sizes, experts, positions, layers):
    few = {"experts": experts[0], "experts_per_token": experts[1], "positions": positions, "layers": layers}
    arch = replace(SMALL, **sizes, **few)
    assert count(arch) == built(arch) == sum(weight.total for weight in weights(arch))


@pytest.mark.parametrize(
    ("name", "published"),
    [("gpt2", 124_439_808), ("llama-2-7b", 6_738_415_616), ("llama-3-8b", 8_030_261_248)]
    + [("mixtral-8x7b", 46_702_792_704), ("llama-3.1-405b", 405_853_388_800), ("qwen-3-30b-a3b", 30_532_122_624)],
)
def test_totals_that_their_makers_publish(name, published):
    assert count(PRESETS[name]) == published


def test_a_token_meets_two_of_eight_experts_and_all_the_rest():
    arch = replace(SMALL, experts=8, experts_per_token=2)
    one_expert = 3 * arch.width * arch.hidden
    assert count(arch) - active(arch) == 6 * one_expert * arch.layers
    assert active(SMALL) == count(SMALL)
    assert parameters(arch)["router"] == 8 * arch.width * arch.layers


def test_grouped_heads_shrink_the_cache_and_both_keys_and_values_count():
    assert kv_cache_bytes(SMALL, batch=2, seq=10) == 2 * 3 * 2 * 5 * 2 * 10 * 2
    assert kv_cache_bytes(PRESETS["llama-3-8b"], batch=1, seq=8192) == 2**30  # a gigabyte a full sequence


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layers": 0}, "small: layers is 0, and must be 1 or more."),
        ({"kv_heads": 3}, "small: 3 key and value heads do not divide 4 heads."),
        ({"norm": "batch"}, 'norm is "layer" or "rms", not \'batch\''),
        ({"experts": 2, "experts_per_token": 3}, "small: 3 of 2 experts cannot serve a token."),
        ({"experts": 2}, "small: 0 of 2 experts cannot serve a token."),
        ({"experts_per_token": 1}, "small: 1 of 0 experts cannot serve a token."),
    ],
)
def test_sizes_that_do_not_go_together_get_a_sentence(wrong, said):
    with pytest.raises(ValueError, match=f".*{said}"):
        replace(SMALL, **wrong)


def test_what_is_cut_by_tensor_parallelism_is_a_dimension_of_the_tensor():
    for arch in PRESETS.values():
        for weight in weights(arch):
            assert weight.split is None or weight.split < len(weight.shape)
            assert weight.part in architecture.PARTS
