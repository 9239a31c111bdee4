"""The closed form of transformers' Llama and Qwen against the live bytes of a step of theirs, by MemTracker."""

from dataclasses import replace

import hugging_face
import pytest

from labkit.activations_hf import phases
from labkit.architecture import Architecture
from labkit.estimate import estimate
from labkit.presets import preset
from labkit.states import Plan


def _arch(kind, vocab, width, layers, heads, kv_heads, hidden, head_width=0, tied=False):
    head_width = head_width or width // heads
    sizes = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden}
    kinds = {"qkv_bias": kind == "qwen2", "qk_norm": kind == "qwen3", "gated": True, "norm": "rms", "context": 2048}
    return Architecture(name=kind, head_width=head_width, tied=tied, **sizes, **kinds)


SMALL = _arch("llama", 500, 64, 2, 4, 2, 160)
LLAMA = _arch("llama", 32000, 512, 4, 8, 4, 1408)
WIDE = _arch("llama", 1000, 768, 5, 12, 12, 2048)
QWEN2 = _arch("qwen2", 151936, 896, 3, 14, 2, 4864, tied=True)
QWEN3 = _arch("qwen3", 151936, 1024, 3, 16, 8, 3072, head_width=128, tied=True)
HEADS = _arch("qwen3", 2000, 512, 4, 8, 4, 1536, head_width=128)  # heads twice as wide as the stream
ODD = _arch("llama", 100, 384, 2, 12, 1, 192)  # a network narrower than the stream
DEEP = _arch("llama", 500, 256, 6, 4, 4, 512)

# (model, precision, optimizer, batch, sequence, recompute) and the phase of the peak.
CASES = [
    (LLAMA, "fp32", "adam", 2, 256, "none", "optimizer step"),
    (LLAMA, "fp32", "sgd", 8, 512, "none", "loss backward"),
    (WIDE, "bf16", "sgd", 8, 512, "none", "last norm backward"),
    (WIDE, "fp32", "sgd", 8, 512, "none", "last block backward"),
    (WIDE, "autocast", "sgd", 8, 512, "none", "loss backward"),
    (QWEN2, "fp32", "adam", 2, 256, "none", "embedding backward"),
    (QWEN2, "bf16", "adam", 2, 256, "none", "loss backward"),
    (QWEN3, "bf16", "sgd", 8, 512, "none", "loss backward"),
    (HEADS, "fp32", "sgd", 1, 1024, "full", "first block backward"),
    (DEEP, "bf16", "sgd", 1, 64, "none", "first norm backward"),
]
MORE = [
    (LLAMA, "bf16", "adam", 2, 256, "none", "loss backward"),
    (LLAMA, "autocast", "momentum", 4, 256, "full", "loss backward"),
    (WIDE, "bf16", "momentum", 4, 256, "full", "first block backward"),
    (QWEN2, "autocast", "adam", 2, 256, "none", "embedding backward"),
    (QWEN3, "autocast", "momentum", 4, 256, "full", "loss backward"),
    (HEADS, "autocast", "adam", 4, 512, "none", "loss backward"),
    (ODD, "bf16", "sgd", 4, 1024, "none", "last norm backward"),
    (ODD, "fp32", "momentum", 1, 16, "none", "embedding backward"),
    (DEEP, "autocast", "sgd", 1, 1024, "full", "first block backward"),
    (QWEN2, "mixed", "adam", 2, 256, "none", "optimizer step"),
    (QWEN2, "mixed-fp32-grads", "adam", 2, 256, "none", "optimizer step"),
    (QWEN2, "mixed-fp32-grads", "momentum", 1, 64, "none", "embedding backward"),
    (WIDE, "mixed", "momentum", 1, 16, "none", "optimizer step"),
    (WIDE, "mixed", "fused adam", 1, 16, "none", "optimizer step"),
    (LLAMA, "fp32", "fused adam", 1, 64, "none", "embedding backward"),
]


def _plan(precision="fp32", optimizer="adam", batch=2, seq=64, recompute="none", **more):
    fused, optimizer = optimizer.startswith("fused "), optimizer.removeprefix("fused ")
    more |= {"fused": fused}
    return Plan(precision=precision, optimizer=optimizer, batch=batch, seq=seq, recompute=recompute, **more)


def _name(case):
    arch, *settings = case
    return "-".join(map(str, (arch.name, arch.vocab, arch.width, *settings)))


def _totals(arch, plan):
    return {phase: sum(parts.values()) for phase, parts in phases(arch, plan).items()}


# MemTracker's, where a gradient is moved to 32 bits as soon as it is made:
@pytest.mark.filterwarnings("ignore:Expected a tensor or a traceable wrapper-subclass:UserWarning")
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)], ids=_name)
def test_the_peak_and_its_phase_are_those_of_the_real_model(case):
    """Within half a percent, where ten are asked for. The tracker names modules: transformers' loss is in its model."""
    arch, *settings, phase = case
    plan = _plan(*settings)
    measured, ours = hugging_face.training_peak(arch, plan), _totals(arch, plan)
    assert ours[phase] == pytest.approx(measured.total_bytes, rel=0.005)
    assert max(ours, key=ours.get) == phase
    where = {"optimizer step": "optimizer step", "loss backward": "backward: the model"}
    assert measured.phase == where.get(phase, "backward: model")


def test_a_step_with_data_has_the_same_live_bytes_as_one_without():
    """That the measurement without data leaves a mask out is right: with data, transformers does so itself."""
    for precision in ("fp32", "autocast"):
        with_data = hugging_face.real_peak(SMALL, _plan(precision))
        without = hugging_face.training_peak(SMALL, _plan(precision))
        a_table = 8 * 64  # positions, which one of the two holds a moment longer
        for phase, n_bytes in with_data.phases.items():
            assert n_bytes == pytest.approx(without.phases[phase], abs=a_table), phase


def test_the_logits_count_several_times_where_the_vocabulary_is_large():
    """Those that the output object holds, their log-softmax, and two gradients, the last three in 32 bits."""
    llama, tokens = preset("llama-3.2-1b"), 4 * 2048
    for precision, n_bytes in (("fp32", 16), ("bf16", 14), ("autocast", 14), ("mixed", 14)):
        found = phases(llama, _plan(precision, batch=4, seq=2048))
        assert found["loss backward"]["logits"] == n_bytes * tokens * llama.vocab
        assert found["optimizer step"]["logits"] == (4 if precision == "fp32" else 2) * tokens * llama.vocab


def test_recomputation_keeps_one_input_a_block_and_pays_for_one_block_more():
    llama, plan = preset("llama-3.2-1b"), _plan("bf16", batch=4, seq=2048)
    kept, again = phases(llama, plan), phases(llama, replace(plan, recompute="full"))
    saved = kept["loss backward"]["activations"] - again["loss backward"]["activations"]
    block = kept["loss backward"]["activations"] / llama.layers
    assert again["loss backward"]["activations"] < 0.15 * kept["loss backward"]["activations"]
    assert saved / llama.layers == pytest.approx(block, rel=0.15)
    assert again["last block backward"]["activations"] > again["loss backward"]["activations"]


def test_states_are_those_of_labkit_and_parts_are_whole_numbers():
    for optimizer, kept in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        found = phases(SMALL, _plan("fp32", optimizer))
        assert found["loss backward"]["optimizer"] == kept * found["loss backward"]["parameters"]
        assert all(isinstance(n, int) and n >= 0 for parts in found.values() for n in parts.values())
        assert found["embedding backward"]["gradients"] == found["embedding backward"]["parameters"]


def test_the_estimate_of_transformers_is_this_form():
    plan = _plan("autocast", batch=4, seq=512)
    found, ours = estimate(QWEN2, plan, overhead=False, implementation="transformers"), phases(QWEN2, plan)
    assert found.phases == _totals(QWEN2, plan)
    assert found.total_bytes == max(found.phases.values())
    assert found.logits_bytes == ours[found.phase]["logits"]
    with pytest.raises(ValueError, match="gpt2 is no Llama or Qwen"):
        estimate(preset("gpt2"), plan, implementation="transformers")


REFUSED = [
    (preset("gpt2"), {}, "gpt2 is no Llama or Qwen"),
    (preset("mixtral-8x7b"), {}, "mixtral-8x7b is no Llama or Qwen without experts"),
    (SMALL, {"ranks": 2, "zero": 2}, "zero is 2"),
    (SMALL, {"ranks": 2, "tp": 2}, "tp is 2"),
    (SMALL, {"ranks": 2, "pp": 2}, "pp is 2"),
    (SMALL, {"attention": "math"}, "attention is 'math'"),
    (SMALL, {"recompute": "selective"}, "recompute is 'selective'"),
    (SMALL, {"lora": 8}, "lora is 8"),
]


@pytest.mark.parametrize(("arch", "settings", "sentence"), REFUSED, ids=[sentence for *_, sentence in REFUSED])
def test_what_the_form_is_not_stated_for_gets_one_sentence(arch, settings, sentence):
    with pytest.raises(ValueError, match=sentence) as raised:
        phases(arch, Plan(**settings))
    assert str(raised.value).endswith(".")
