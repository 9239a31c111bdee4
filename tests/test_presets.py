"""Models by name and by config.json: what is read, and what is said of a file that is none."""

import json
import os

import pytest

from labkit import presets

LLAMA = {
    **{"model_type": "llama", "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 20, "max_position_embeddings": 16},
}


def test_a_preset_answers_to_its_name_in_any_case_and_an_unknown_one_lists_those_there_are():
    assert presets.preset("GPT2") is presets.PRESETS["gpt2"]
    with pytest.raises(ValueError, match=r"no model 'gpt5' here. There are: gpt2, .*mixtral-8x7b"):
        presets.preset("gpt5")


def test_a_config_is_read_with_its_familys_defaults():
    arch = presets.from_config(LLAMA, "mine")
    assert (arch.name, arch.head_width, arch.kv_heads, arch.tied, arch.qkv_bias) == ("mine", 3, 2, False, False)
    assert presets.from_config(LLAMA | {"num_key_value_heads": None}).kv_heads == 4
    assert presets.from_config(LLAMA | {"model_type": "qwen2"}).qkv_bias
    assert presets.from_config(LLAMA | {"model_type": "qwen3"}).head_width == 128


def test_a_file_is_named_after_its_folder(tmp_path):
    path = tmp_path / "our-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    assert presets.load(path).name == "our-model"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not json", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1]", "holds no JSON object"),
        (b" " * 10_000_001, "has more than 10,000,000 bytes: that is no config.json"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is no JSON"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_config_gets_a_sentence(tmp_path, content, said):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        presets.load(path)


def test_a_pipe_and_a_folder_are_not_read(tmp_path):
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match="is no plain file"):
            presets.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'; known here are gpt2, llama"),
        ({"model_type": None}, "model_type is None"),
        ({"model_type": ["llama"]}, r"model_type is \['llama'\]"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"hidden_size": "12"}, "hidden_size is '12', and must be a whole number"),
        ({"hidden_size": 12.5}, "hidden_size is 12.5, and must be a whole number"),
        ({"hidden_size": 10**13}, "is 10000000000000, and must be a whole number from 1 to 1,000,000,000,000"),
        ({"hidden_size": 10**400}, "hidden_size is a number of more than 30 digits"),
        ({"hidden_size": [1] * 100}, r"hidden_size is \[1, 1, .* \.\.\., and must be"),
        ({"hidden_size": True}, "hidden_size is True, and must be a whole number"),
        ({"model_type": "mistral", "num_key_value_heads": None}, "has no num_key_value_heads"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_key_value_heads": 3}, "3 key and value heads do not divide 4 heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', and must be true or false"),
        ({"hidden_size": 10}, "4 heads do not divide a width of 10"),
    ],
)
def test_a_config_that_cannot_be_counted_gets_a_sentence(change, said):
    with pytest.raises(ValueError, match=said):
        presets.from_config(LLAMA | change)


def test_a_variety_that_is_not_counted_is_refused_and_not_guessed():
    qwen = LLAMA | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    assert presets.from_config(qwen).hidden == 8
    with pytest.raises(ValueError, match=r"mlp_only_layers is \[0\]: that variety is not counted here"):
        presets.from_config(qwen | {"mlp_only_layers": [0]})
