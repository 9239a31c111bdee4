"""`labkit memory`: what each option does, and the one sentence that answers each mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.estimate import estimate
from labkit.presets import preset
from labkit.states import Plan

LLAMA = {
    **{"model_type": "llama", "vocab_size": 32000, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "intermediate_size": 128, "max_position_embeddings": 512},
}


@pytest.fixture
def memory(labkit):
    """Runs `labkit memory ...`; returns what it printed as JSON, once its exit code is 0 and stderr empty."""

    def call(*words):
        code, out, error = labkit("memory", *words, "--json")
        assert (code, error) == (0, "")
        return json.loads(out)

    return call


def test_every_option_reaches_the_plan(memory):
    words = "--model llama-3-8b --precision mixed-fp32-grads --optimizer adam-8bit --zero 3 --ranks 32 --tp 2 --pp 4"
    words += " --sequence-parallel --seq 2048 --batch 2 --recompute selective --attention math --lora 8 --base-bits 4"
    words += " --shard-ranks 2 --no-reshard --micro-batches 8 --fused --gpu a100-40"
    given = {
        **{"precision": "mixed-fp32-grads", "optimizer": "adam-8bit", "zero": 3, "ranks": 32, "tp": 2, "pp": 4},
        **{"sequence_parallel": True, "seq": 2048, "batch": 2, "recompute": "selective", "attention": "math"},
        **{"lora": 8, "base_bits": 4, "shard_ranks": 2, "reshard": False, "micro_batches": 8, "fused": True},
    }
    found = memory(*words.split())
    assert found["plan"] == Plan(**given).__dict__
    assert all(getattr(Plan(), name) != value for name, value in given.items()), "no option is left at its default"
    assert found["total_bytes"] == estimate(preset("llama-3-8b"), Plan(**given)).total_bytes
    assert (found["gpu"]["name"], type(found["fits"])) == ("A100-40", bool)


def test_without_options_the_plan_is_the_usual_one(memory):
    found = memory("--model", "gpt2")
    assert (found["plan"], found["fits"], found["gpu"]) == (Plan().__dict__, None, None)


@pytest.mark.parametrize("written", ["7.5e9", "7500000000", "75e8", "7_500_000_000", "+7.5E+9"])
def test_parameters_may_be_written_in_any_way_that_is_exact(memory, written):
    assert memory("--params", written)["parameters_bytes"] == 15_000_000_000


def test_a_large_number_is_not_rounded(memory):
    assert memory("--params", "9007199254740991")["parameters_bytes"] == 2 * 9007199254740991


def test_a_config_is_read(memory, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    found = memory("--config", path)
    matrices = 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
    assert found["parameters_bytes"] == 2 * (2 * 32000 * 64 + matrices + 9 * 64)


SENTENCES = {
    "": "Name one model, by --params, --model or --config; this has none of them.",
    "--params 7e9 --model gpt2": "Name one model, by --params, --model or --config; this has --params and --model.",
    "--model gpt2 --config x.json": "this has --model and --config.",
    "--verify --model gpt2": "--verify measures models and plans of its own: leave out --model.",
    "--verify --zero 9 --gpu NOPE": "models and plans of its own: leave out --zero and --gpu.",
    "--verify --json": "leave out --json.",
    "--verify --no-reshard": "leave out --no-reshard.",
    "--model gpt5": "There is no model 'gpt5' here. There are: gpt2, ",
    "--model gpt2 --gpu X100": "There is no GPU 'X100' here. There are: T4, ",
    "--params nan": "--params is nan, and must be a whole number",
    "--params inf": "--params is inf, and must be",
    "--params 1.5": "--params is 1.5, and must be",
    "--params 1e999999999": "--params is 1e999999999, and must be",
    "--params 7b": "--params is 7b, and must be",
    "--params 0": " is 0, and must be 1 or more",
    "--params -3": " is -3, and must be 1 or more",
    "--model gpt2 --batch nan": "--batch is nan, and must be a whole number",
    "--model gpt2 --batch 0": "batch is 0, and must be",
    "--model gpt2 --seq -4": "seq is -4, and must be",
    "--model gpt2 --zero 4": "zero is 4, and must be one of 0, 1, 2, 3",
    "--model gpt2 --zero -1": "zero is -1, and must be one of",
    "--model gpt2 --ranks 0": "ranks is 0, and must be",
    "--model gpt2 --lora -1": "lora is -1, and must be",
    "--model gpt2 --tp 5 --ranks 5": "gpt2 has 12 heads, which tp 5 does not divide",
    "--model llama-3-8b --tp 16 --ranks 16": "llama-3-8b has 8 key and value heads, which tp 16 does not divide",
    "--model gpt2 --pp 5 --ranks 5": "gpt2 has 12 layers, which pp 5 does not divide",
    "--model gpt2 --ranks 6 --tp 4": "6 ranks cannot be split into",
    "--model gpt2 --seq 5000": "gpt2 has 1024 positions, too few for sequences of 5000",
    "--model gpt2 --precision fp8": "precision is 'fp8', and must be one of fp32, ",
    "--model gpt2 --optimizer lion": "optimizer is 'lion', and must be one of sgd, ",
    "--model gpt2 --recompute all": "recompute is 'all', and must be one of none, ",
    "--model gpt2 --attention fast": "attention is 'fast', and must be one of flash, math",
    "--model gpt2 --optimizer adafactor --fused": "Adafactor has no fused kernel",
    "--model gpt2 --base-bits 4": "they need adapters",
    "--model gpt2 --base-bits 3": "base_bits is 3, and must be one of 4, 16",
    "--params 7e9 --tp 2 --ranks 2": "name a model or a config",
    "--config=": "--config is empty, and must name a config.json",
    "--model=": "--model is empty, and must name a model",
}


def one_sentence(answer):
    """The text on stderr, once everything else about a refusal is as it should be."""
    code, out, error = answer
    assert (code, out, error.count("\n")) == (2, "", 1), answer
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("words", SENTENCES, ids=lambda words: words or "nothing")
def test_every_mistake_is_answered_in_one_sentence(labkit, words):
    assert SENTENCES[words] in one_sentence(labkit("memory", *words.split()))


def changed(**fields):
    """A config with some values changed, None: without them."""
    return json.dumps({key: value for key, value in (LLAMA | fields).items() if value is not None})


CONFIGS = {
    "not json": "model_type: llama",
    "a list": "[1, 2]",
    "nothing": "",
    "an unknown model": changed(model_type="bert"),
    "no model": changed(model_type=None),
    "a model that is no name": changed(model_type=["llama"]),
    "no width": changed(hidden_size=None),
    "a width as text": changed(hidden_size="64"),
    "a width of zero": changed(hidden_size=0),
    "a negative width": changed(hidden_size=-64),
    "true for a width": changed(hidden_size=True),
    "a width that is a fraction": changed(hidden_size=64.5),
    "NaN": changed(hidden_size=float("nan")),
    "more groups than divide the heads": changed(num_key_value_heads=3),
    "text for a flag": changed(tie_word_embeddings="yes"),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_is_none_is_a_sentence(labkit, tmp_path, content):
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    one_sentence(labkit("memory", "--config", tmp_path / "config.json"))


def test_a_config_that_is_no_text_missing_a_folder_or_huge(labkit, tmp_path):
    (tmp_path / "weights").write_bytes(bytes(range(256)))
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(20_000_000_000)
    for name in ("weights", "missing", "huge", "."):
        assert str(tmp_path) in one_sentence(labkit("memory", "--config", tmp_path / name))


@pytest.mark.parametrize("code", [0, 1])
def test_verify_measures_and_its_verdict_is_the_exit_code(labkit, monkeypatch, code):
    from labkit import verify

    monkeypatch.setattr(verify, "main", lambda: print("predicted, measured, ratio") or code)
    assert labkit("memory", "--verify") == (code, "predicted, measured, ratio\n", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux's /dev/full")
@pytest.mark.parametrize("more", ["", " --json"])
def test_an_output_that_is_closed_or_full_is_a_sentence_about_it(more):
    words = f'"{sys.executable}" -m labkit.cli memory --model gpt2{more}'
    for end, sentence in (
        (">&-", "standard output is closed"),
        ("> /dev/full", "Standard output could not be written"),
    ):
        done = subprocess.run(
            f"{words} {end}", shell=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        assert done.returncode != 0
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert "course" not in done.stderr


def test_as_text_it_says_whether_it_fits(labkit):
    code, out, error = labkit("memory", "--model", "llama-3-8b", "--gpu", "T4")
    assert (code, error) == (0, "")
    assert "It does not fit" in out


@pytest.mark.parametrize(("encoding", "sign"), [("ascii", b"#"), ("cp1252", b"#"), ("utf-8", "█".encode())])
def test_a_terminal_without_the_blocks_gets_plain_signs(encoding, sign):
    words = [sys.executable, "-m", "labkit.cli", "memory", "--model", "llama-3-8b", "--gpu", "T4"]
    environment = os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "60"}
    done = subprocess.run(words, capture_output=True, check=True, env=environment, cwd=Path(__file__).parents[1])
    lines = done.stdout.decode(encoding).splitlines()
    assert done.stdout.count(sign) > 5
    assert max(map(len, lines)) <= 60
    assert b"?" not in done.stdout


def test_it_starts_without_torch_and_matplotlib():
    code = "import sys; sys.argv = ['labkit', 'memory', '--model', 'llama-3-8b', '--gpu', 'T4']\n"
    code += "from labkit import cli\ntry:\n    cli.main()\nexcept SystemExit:\n    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert "labkit" in loaded
    assert not loaded & {"torch", "matplotlib", "numpy", "IPython"}
