"""Closed forms of parameter counts against the architectures that `transformers` builds: every part, to the last one.

The configurations are those published as config.json beside each model's weights, cut to what decides a shape. The
models are built on the meta device: shapes, and no memory. No network.
"""

from collections import Counter

import pytest
import torch

from labkit.architecture import active, count, parameters, weights
from labkit.presets import PRESETS, from_config, load, preset

PARTS = {
    "embedding": ("embed_tokens.", "wte."),
    "positions": ("wpe.",),
    "norms": ("norm.", "ln_"),  # before attention: q_norm and k_norm are norms
    "router": ("mlp.gate.",),
    "attention": ("attn.",),
    "mlp": ("mlp.",),
    "head": ("lm_head.",),
}
"""Which part a parameter of transformers belongs to: the first part of which some piece stands in its name."""


def _sizes(width, hidden, layers, heads, kv_heads, vocab, tied=False, **more):
    """What the config.json of Llama, Qwen and Mixtral call their sizes."""
    names = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab}
    names |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": tied}
    return names | more


def _gpt2(width, layers, heads):
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
    }


def _llama(*sizes, context, **more):
    return {"model_type": "llama", "max_position_embeddings": context} | _sizes(*sizes, **more)


def _qwen2(*sizes, **more):
    return {"model_type": "qwen2", "max_position_embeddings": 32768} | _sizes(*sizes, **more)


def _qwen3(*sizes, **more):
    return {"model_type": "qwen3", "max_position_embeddings": 40960, "head_dim": 128} | _sizes(*sizes, 151936, **more)


def _mixtral(*sizes, context, **more):
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    return {"model_type": "mixtral", "max_position_embeddings": context} | experts | _sizes(*sizes, **more)


def _mistral(*sizes, **more):
    return {"model_type": "mistral"} | _sizes(*sizes, **more)


def _without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


QWEN3_30B = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}
CONFIGS = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "llama-2-7b": _llama(4096, 11008, 32, 32, 32, 32000, context=4096),
    "llama-2-13b": _llama(5120, 13824, 40, 40, 40, 32000, context=4096),
    "llama-2-70b": _llama(8192, 28672, 80, 64, 8, 32000, context=4096),
    "llama-3-8b": _llama(4096, 14336, 32, 32, 8, 128256, context=8192),
    "llama-3-70b": _llama(8192, 28672, 80, 64, 8, 128256, context=8192),
    "llama-3.1-405b": _llama(16384, 53248, 126, 128, 8, 128256, context=131072),
    "llama-3.2-1b": _llama(2048, 8192, 16, 32, 8, 128256, context=131072, tied=True, head_dim=64),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 128256, context=131072, tied=True, head_dim=128),
    "qwen-2.5-0.5b": _qwen2(896, 4864, 24, 14, 2, 151936, tied=True),
    "qwen-2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2, 151936, tied=True),
    "qwen-2.5-3b": _qwen2(2048, 11008, 36, 16, 2, 151936, tied=True),
    "qwen-2.5-7b": _qwen2(3584, 18944, 28, 28, 4, 152064),
    "qwen-2.5-14b": _qwen2(5120, 13824, 48, 40, 8, 152064),
    "qwen-2.5-32b": _qwen2(5120, 27648, 64, 40, 8, 152064),
    "qwen-2.5-72b": _qwen2(8192, 29568, 80, 64, 8, 152064),
    "qwen-3-0.6b": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    "qwen-3-1.7b": _qwen3(2048, 6144, 28, 16, 8, tied=True),
    "qwen-3-4b": _qwen3(2560, 9728, 36, 32, 8, tied=True),
    "qwen-3-8b": _qwen3(4096, 12288, 36, 32, 8),
    "qwen-3-14b": _qwen3(5120, 17408, 40, 40, 8),
    "qwen-3-32b": _qwen3(5120, 25600, 64, 64, 8),
    "qwen-3-30b-a3b": _qwen3(2048, 6144, 48, 32, 4, **QWEN3_30B) | {"model_type": "qwen3_moe"},
    "mixtral-8x7b": _mixtral(4096, 14336, 32, 32, 8, 32000, context=32768),
    "mixtral-8x22b": _mixtral(6144, 16384, 56, 48, 8, 32000, context=65536),
}

# How odd a config may be: options left out (each family's default holds), and those that decide a bias, or nothing.
LLAMA = _llama(64, 96, 2, 4, 2, 100, context=32)
QWEN3 = _qwen3(64, 96, 2, 4, 2)
MOE = QWEN3 | QWEN3_30B | {"model_type": "qwen3_moe"}
ODD = {
    "gpt2 with a fourfold inner width by default": _gpt2(64, 2, 4),
    "gpt2, inner width null": _gpt2(64, 2, 4) | {"n_inner": None},
    "gpt2, inner width given": _gpt2(64, 2, 4) | {"n_inner": 100},
    "gpt2, untied": _gpt2(64, 2, 4) | {"tie_word_embeddings": False},
    "no kv heads": _without(LLAMA, "num_key_value_heads"),
    "kv heads null": LLAMA | {"num_key_value_heads": None},
    "no word on tying or context": _without(LLAMA, "tie_word_embeddings", "max_position_embeddings"),
    "head_dim null": LLAMA | {"head_dim": None},
    "head_dim apart from width / heads": LLAMA | {"head_dim": 24},
    "heads that do not divide the width": LLAMA | {"num_attention_heads": 8, "head_dim": 24},
    "attention_bias": LLAMA | {"attention_bias": True},
    "mlp_bias": LLAMA | {"mlp_bias": True},
    "both biases, tied": LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": _mistral(64, 96, 2, 4, 2, 100),
    "mistral, head_dim given, sliding window": _mistral(64, 96, 2, 4, 2, 100, head_dim=32, sliding_window=8),
    "qwen2, head_dim given": _qwen2(64, 96, 2, 4, 2, 100, head_dim=32),
    "qwen2 with a sliding window": _qwen2(64, 96, 4, 4, 2, 100, use_sliding_window=True, max_window_layers=2),
    "qwen2, where mlp_bias means nothing": _qwen2(64, 96, 2, 4, 2, 100) | {"mlp_bias": True},
    "qwen3 without head_dim: 128": _without(QWEN3, "head_dim"),
    "qwen3 with biases": QWEN3 | {"attention_bias": True},
    "qwen3 with a sliding window": QWEN3 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3_moe without head_dim: width / heads": _without(MOE, "head_dim"),
    "qwen3_moe with biases": MOE | {"attention_bias": True},
    "qwen3_moe with a list of no dense layers": MOE | {"mlp_only_layers": []},
    "mixtral with a sliding window": _mixtral(64, 96, 2, 4, 2, 100, context=32, sliding_window=8),
    "mixtral, head_dim given, tied": _mixtral(64, 96, 2, 4, 2, 100, context=32, head_dim=32, tied=True),
}

# What is not counted here, or is no model: one sentence that names the number or the key.
REFUSED = {
    "no model_type": ({}, "model_type is None"),
    "unknown model_type": (LLAMA | {"model_type": "mamba2"}, "model_type is 'mamba2'; known here are gpt2, llama"),
    "model_type is a list": (LLAMA | {"model_type": ["llama"]}, "model_type is"),
    "a size missing": (_without(LLAMA, "hidden_size"), "no hidden_size"),
    "a size null": (LLAMA | {"num_hidden_layers": None}, "no num_hidden_layers"),
    "a size negative": (LLAMA | {"vocab_size": -1}, "vocab_size is -1"),
    "a size in words": (LLAMA | {"vocab_size": "many"}, "vocab_size is 'many'"),
    "a size with a fraction": (LLAMA | {"hidden_size": 64.5}, "hidden_size is 64.5"),
    "a flag in words": (LLAMA | {"mlp_bias": "yes"}, "mlp_bias is 'yes'"),
    "kv heads that do not divide the heads": (LLAMA | {"num_key_value_heads": 3}, "3 key and value heads"),
    "heads that do not divide the width": (LLAMA | {"num_attention_heads": 6}, "6 heads do not divide a width of 64"),
    "gpt2 heads that do not divide the width": (_gpt2(64, 2, 6), "6 heads do not divide a width of 64"),
    "gpt2 with cross attention": (_gpt2(64, 2, 4) | {"add_cross_attention": True}, "add_cross_attention is True"),
    "some layers dense by number": (MOE | {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
    "every second layer dense": (MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    "more experts a token than there are": (MOE | {"num_experts": 4}, "8 of 4 experts"),
}


def _real(config):
    """The model that transformers builds from a config, on the meta device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


def _part(name):
    return next(part for part, pieces in PARTS.items() if any(piece in name for piece in pieces))


def _real_parameters(model):
    """Parameters by part; a tied matrix counts once, as the embedding."""
    found = Counter()
    for name, parameter in model.named_parameters():
        found[_part(name)] += parameter.numel()
    return dict(found)


def _nonzero(by_part):
    return {part: n for part, n in by_part.items() if n}


@pytest.mark.parametrize("name", CONFIGS)
def test_presets_and_published_configs_have_the_real_parameters_in_every_part(name):
    model = _real(CONFIGS[name])
    real = _real_parameters(model)
    for source, ours in {
        "preset": preset(name),
        "config.json": from_config(CONFIGS[name]),
        "config.to_dict()": from_config(model.config.to_dict()),
    }.items():
        assert _nonzero(parameters(ours)) == real, source
        assert count(ours) == sum(real.values()), source


@pytest.mark.parametrize("name", ODD)
def test_odd_configs_have_the_real_parameters_in_every_part(name):
    model = _real(ODD[name])
    real = _real_parameters(model)
    for config in (ODD[name], model.config.to_dict()):
        assert _nonzero(parameters(from_config(config))) == real


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_is_not_counted_gets_one_sentence(name):
    config, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence) as raised:
        from_config(config)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen-3-30b-a3b", "gpt2"])
def test_a_saved_config_is_read_from_its_file(name, tmp_path):
    """As transformers itself writes it, with everything that has no bearing on shapes, and under its newest names."""
    real = _real(CONFIGS[name])
    real.config.save_pretrained(tmp_path / name)
    assert parameters(load(tmp_path / name / "config.json")) == parameters(preset(name))


def test_one_token_meets_the_experts_that_serve_it_and_all_the_rest():
    """Counted tensor by tensor on the real model: of stacked experts, the share that the router picks."""
    for name in ("qwen-3-30b-a3b", "mixtral-8x7b", "llama-2-7b"):
        config = CONFIGS[name]
        experts = config.get("num_experts", config.get("num_local_experts", 1))
        share = config.get("num_experts_per_tok", 1) / experts
        found = _real(config).named_parameters()
        assert active(preset(name)) == sum(p.numel() * (share if ".experts." in key else 1) for key, p in found)


def test_shapes_are_those_of_the_real_tensors():
    """Not only sums: adafactor, muon and LoRA need each matrix by itself. Fused matrices are taken apart."""
    for name in ("llama-3.2-1b", "qwen-2.5-0.5b", "qwen-3-0.6b"):
        ours = Counter()
        for weight in weights(preset(name)):
            ours[tuple(weight.shape)] += weight.times
        assert ours == Counter(tuple(p.shape) for p in _real(CONFIGS[name]).parameters()), name


def test_every_preset_of_a_family_that_transformers_builds_is_held_to_it():
    theirs = {name for name in PRESETS if not name.startswith(("megatron-", "gpt3-"))}
    assert theirs <= set(CONFIGS)
