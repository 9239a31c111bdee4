"""Published models by name, and any other by its Hugging Face config.json, which is read and never executed."""

import json
from collections.abc import Mapping
from pathlib import Path

from labkit.architecture import Architecture

_LARGEST = 10**12
_MOST_BYTES = 10_000_000  # a config.json has some kilobytes; a file of weights given by mistake has not


def _gpt2(name: str, width: int, layers: int, heads: int, vocab: int = 50257, context: int = 1024) -> Architecture:
    """GPT-2 and GPT-3: layer norms, biases everywhere, learned positions, a tied head."""
    biases = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
    sizes = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "kv_heads": heads, "context": context}
    shape = {"head_width": width // heads, "hidden": 4 * width, "positions": context}
    return Architecture(name=name, gated=False, norm="layer", tied=True, **biases, **sizes, **shape)


def _llama(
    name: str, vocab: int, width: int, layers: int, heads: int, kv_heads: int, hidden: int, context: int, **others
) -> Architecture:
    """Llama and its kin: RMS norms, a gated MLP, rotating positions, no biases but where others says so."""
    others.setdefault("head_width", width // heads)
    sizes = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden}
    return Architecture(name=name, gated=True, norm="rms", context=context, **sizes, **others)


_TIED_QWEN2 = {"qkv_bias": True, "tied": True}
_QWEN2 = {"qkv_bias": True}
_QWEN3 = {"qk_norm": True, "head_width": 128}

PRESETS = {
    arch.name: arch
    for arch in (
        _gpt2("gpt2", 768, 12, 12),
        _gpt2("gpt2-medium", 1024, 24, 16),
        _gpt2("gpt2-large", 1280, 36, 20),
        _gpt2("gpt2-xl", 1600, 48, 25),
        _llama("llama-2-7b", 32000, 4096, 32, 32, 32, 11008, 4096),
        _llama("llama-2-13b", 32000, 5120, 40, 40, 40, 13824, 4096),
        _llama("llama-2-70b", 32000, 8192, 80, 64, 8, 28672, 4096),
        _llama("llama-3-8b", 128256, 4096, 32, 32, 8, 14336, 8192),
        _llama("llama-3-70b", 128256, 8192, 80, 64, 8, 28672, 8192),
        _llama("llama-3.1-405b", 128256, 16384, 126, 128, 8, 53248, 131072),
        _llama("llama-3.2-1b", 128256, 2048, 16, 32, 8, 8192, 131072, tied=True),
        _llama("llama-3.2-3b", 128256, 3072, 28, 24, 8, 8192, 131072, tied=True),
        _llama("qwen-2.5-0.5b", 151936, 896, 24, 14, 2, 4864, 32768, **_TIED_QWEN2),
        _llama("qwen-2.5-1.5b", 151936, 1536, 28, 12, 2, 8960, 131072, **_TIED_QWEN2),
        _llama("qwen-2.5-3b", 151936, 2048, 36, 16, 2, 11008, 32768, **_TIED_QWEN2),
        _llama("qwen-2.5-7b", 152064, 3584, 28, 28, 4, 18944, 131072, **_QWEN2),
        _llama("qwen-2.5-14b", 152064, 5120, 48, 40, 8, 13824, 131072, **_QWEN2),
        _llama("qwen-2.5-32b", 152064, 5120, 64, 40, 8, 27648, 131072, **_QWEN2),
        _llama("qwen-2.5-72b", 152064, 8192, 80, 64, 8, 29568, 131072, **_QWEN2),
        _llama("qwen-3-0.6b", 151936, 1024, 28, 16, 8, 3072, 40960, tied=True, **_QWEN3),
        _llama("qwen-3-1.7b", 151936, 2048, 28, 16, 8, 6144, 40960, tied=True, **_QWEN3),
        _llama("qwen-3-4b", 151936, 2560, 36, 32, 8, 9728, 40960, tied=True, **_QWEN3),
        _llama("qwen-3-8b", 151936, 4096, 36, 32, 8, 12288, 40960, **_QWEN3),
        _llama("qwen-3-14b", 151936, 5120, 40, 40, 8, 17408, 40960, **_QWEN3),
        _llama("qwen-3-32b", 151936, 5120, 64, 64, 8, 25600, 40960, **_QWEN3),
        _llama("qwen-3-30b-a3b", 151936, 2048, 48, 32, 4, 768, 40960, experts=128, experts_per_token=8, **_QWEN3),
        _llama("mixtral-8x7b", 32000, 4096, 32, 32, 8, 14336, 32768, experts=8, experts_per_token=2),
        _llama("mixtral-8x22b", 32000, 6144, 56, 48, 8, 16384, 65536, experts=8, experts_per_token=2),
        _gpt2("gpt3-175b", 12288, 96, 96, 51200, 2048),
        _gpt2("megatron-22b", 6144, 48, 64, 51200, 2048),
        _gpt2("megatron-530b", 20480, 105, 128, 51200, 2048),
        _gpt2("megatron-1t", 25600, 128, 160, 51200, 2048),
    )
}
"""Published models. The last four: Korthikanti et al. (arXiv:2205.05198), table 3; the others: their config.json."""


def preset(name: str) -> Architecture:
    """The model of that name. ValueError: names those there are."""
    if name.lower() not in PRESETS:
        raise ValueError(f"There is no model {name!r} here. There are: {', '.join(PRESETS)}.")
    return PRESETS[name.lower()]


def load(path: Path | str) -> Architecture:
    """The model that a config.json describes. ValueError, in one sentence, where it is missing or no such thing."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe or a device would be read for ever
        raise ValueError(f"{path} is no plain file, and no config.json.")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES:,} bytes: that is no config.json.")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no JSON.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object.")
    return from_config(config, name=path.parent.name if path.name == "config.json" else path.stem)


def from_config(config: Mapping, name: str = "") -> Architecture:
    """The model that the contents of a Hugging Face config.json describe; a missing option has their default.

    ValueError, in one sentence: an unknown model_type, a size that is missing or no whole number, or a variety that
    is not counted here. Source: transformers, src/transformers/models/*/configuration_*.py (5.24).
    """
    kind = config.get("model_type")
    readers = {"gpt2": _from_gpt2, "llama": _from_llama, "mistral": _from_llama, "qwen2": _from_llama}
    readers |= {"qwen3": _from_llama, "qwen3_moe": _from_llama, "mixtral": _from_llama}
    if not isinstance(kind, str) or kind not in readers:
        raise ValueError(f"model_type is {kind!r}; known here are {', '.join(readers)}.")
    return readers[kind](_Config(config), kind, name or kind)


class _Config:
    """A config whose values are checked as they are read."""

    def __init__(self, config: Mapping):
        self._config = config

    def has(self, key: str) -> bool:
        """Whether the key is there, with a value."""
        return self._config.get(key) is not None

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to a million million; null counts as missing."""
        value = self._config.get(key)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"The config has no {key}.")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise ValueError(f"{key} is {_shown(value)}, and must be a whole number from 1 to {_LARGEST:,}.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{key} is {value!r}, and must be true or false.")
        return value

    def refuse(self, key: str, usual: tuple) -> None:
        """ValueError if the key has another value than the usual ones: that variety is not counted here."""
        if self._config.get(key, usual[0]) not in usual:
            raise ValueError(f"{key} is {self._config[key]!r}: that variety is not counted here.")


def _shown(value: object) -> str:
    """A value as it stands in the file, cut short where it is long; Python writes no number of 5000 digits."""
    if isinstance(value, int) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]} ..."


def _divided(width: int, heads: int) -> int:
    """The width of a head where the config does not give it."""
    if width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}.")
    return width // heads


def _from_gpt2(config: _Config, _kind: str, name: str) -> Architecture:
    """GPT-2, whose keys are its own."""
    width, heads = config.size("n_embd"), config.size("n_head")
    config.refuse("add_cross_attention", (False,))
    context = config.size("n_positions")
    return Architecture(
        **{"name": name, "vocab": config.size("vocab_size"), "width": width, "layers": config.size("n_layer")},
        **{"heads": heads, "kv_heads": heads, "head_width": _divided(width, heads), "positions": context},
        context=context,
        **{"hidden": config.size("n_inner", 4 * width), "gated": False, "norm": "layer"},
        **{"tied": config.flag("tie_word_embeddings", True), "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    )


def _from_llama(config: _Config, kind: str, name: str) -> Architecture:
    """Llama, Mistral, Qwen and Mixtral, which share their keys and differ in biases, norms and experts."""
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    usual_width = 128 if kind == "qwen3" else _divided(width, heads)
    bias = config.flag("attention_bias", False) if kind in ("llama", "qwen3", "qwen3_moe") else False
    experts = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}.get(kind)
    if kind == "qwen3_moe":
        experts = experts if config.has(experts) else "num_local_experts"  # as transformers 5 writes it
        config.refuse("decoder_sparse_step", (1,))
        config.refuse("mlp_only_layers", ([], None))
    return Architecture(
        **{"name": name, "vocab": config.size("vocab_size"), "width": width, "heads": heads},
        layers=config.size("num_hidden_layers"),
        # Llama's default follows from the heads; that of the others is a number that fits one size of model.
        kv_heads=config.size("num_key_value_heads", heads if kind == "llama" else None),
        **{"gated": True, "norm": "rms"},
        head_width=config.size("head_dim", usual_width),
        hidden=config.size("moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"),
        context=config.size("max_position_embeddings", 2048),
        tied=config.flag("tie_word_embeddings", False),
        **{"qkv_bias": bias or kind == "qwen2", "out_bias": bias, "qk_norm": kind.startswith("qwen3")},
        mlp_bias=config.flag("mlp_bias", False) if kind == "llama" else False,
        experts=config.size(experts) if experts else 0,
        experts_per_token=config.size("num_experts_per_tok") if experts else 0,
    )
