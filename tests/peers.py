"""How far the estimates of other tools are from the same measured live bytes. A script, not a test: run it by hand.

    python tests/peers.py --tools FOLDER [--cookbook FOLDER] [--megatron FOLDER] [--markdown FILE] [--measured FILE]

--tools: where the packages below were installed apart (`pip install --no-deps --target FOLDER ...`); --cookbook,
--megatron: checkouts. --measured: what was measured, kept there, and taken from there next time. What is absent is
skipped, with a sentence. Read and run with: accelerate 1.15.0 (an extra of labkit), deepspeed 0.19.8 (with hjson,
msgpack, py-cpuinfo, einops, pydantic), fitcheck-llm 0.3.1, hf-vram-calc 1.0.9, vramcalc 0.1.2, EleutherAI/cookbook at
827ee3b, NVIDIA/Megatron-LM at d98e8a6.

Measured: live bytes at the peak of a training step by MemTracker, of transformers' Llama and Qwen 2.5 (what most of
these tools are about) and of labkit's reference models, on labkit.verify's grid. Every tool gets the settings that come
closest, and what it adds for a CUDA context is left out. "own": the configurations of a precision and an optimizer that
the tool is made for, of those that it accepts. "states": its parameters, gradients and optimizer alone, against the
real ones at rest, for many tools claim no more.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import hugging_face

from labkit import live, verify
from labkit.architecture import Architecture, count
from labkit.estimate import estimate
from labkit.states import OPTIMIZERS, PRECISIONS, Plan, states

GIB, MIB = 2**30, 2**20


def _arch(name, vocab, width, layers, heads, kv_heads, hidden, **more):
    sizes = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden}
    return Architecture(name=name, head_width=width // heads, gated=True, norm="rms", context=4096, **sizes, **more)


MODELS = (
    _arch("llama, 32k words", 32000, 512, 8, 8, 8, 1408),
    _arch("llama, 32k words, grouped heads", 32000, 1024, 8, 16, 4, 2816),
    _arch("llama 3.2 1b, 4 layers", 128256, 2048, 4, 32, 8, 8192, tied=True),
    _arch("qwen 2.5 0.5b, 6 layers", 151936, 896, 6, 14, 2, 4864, tied=True, qkv_bias=True),
    _arch("llama 2 7b, 2 layers", 32000, 4096, 2, 32, 32, 11008),
)
HF_GRID = [
    (arch, Plan(precision=precision, optimizer="adam", batch=batch, seq=seq, recompute=recompute))
    for arch in MODELS
    for precision in ("fp32", "bf16", "autocast", "mixed")
    for batch, seq, recompute in ((1, 512, "none"), (4, 1024, "none"), (4, 1024, "full"))
]


@dataclass
class Tool:
    """One tool: what it estimates for a configuration, (states, total) in bytes; total None: it claims no more."""

    name: str
    version: str
    claims: str
    how: str
    precisions: tuple[str, ...]
    run: object  # raises ValueError where the tool refuses a model
    optimizers: tuple[str, ...] = ("adam",)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def accelerate_tool(_):
    """accelerate estimate-memory: the row of the precision, its largest column for training with Adam."""
    from accelerate.commands.estimate import estimate_training_usage

    def run(arch, plan, _):
        name = "float32" if plan.precision == "fp32" else "bfloat16"
        sizes = estimate_training_usage(4 * count(arch), name)
        return sizes["model"] + sizes["gradients"] + sizes["optimizer"], max(sizes.values())

    claims = "training with Adam at batch 1, by size alone: no activations"
    how = "`estimate_training_usage`, the largest of its four, as its table shows"
    return Tool("accelerate estimate-memory", _version("accelerate"), claims, how, ("fp32", "autocast"), run)


def cookbook_tool(options):
    """EleutherAI's calculator, by its own arguments."""
    path = Path(options.cookbook or "") / "calc_transformer_mem.py"
    path = path if path.is_file() else Path(options.cookbook or "") / "calc" / "calc_transformer_mem.py"
    module = _from_file("calc_transformer_mem", path)

    def run(arch, plan, _):
        words = ["--zero-stage=0", f"--num-layers={arch.layers}", f"--num-attention-heads={arch.heads}"]
        words += [f"--hidden-size={arch.width}", f"--vocab-size={arch.vocab}", f"--sequence-length={plan.seq}"]
        words += [f"--batch-size-per-gpu={plan.batch}", f"--ffn-expansion-factor={arch.hidden / arch.width}"]
        words += [f"--kv-size-ratio={arch.kv_heads / arch.heads}", f"--num-mlp-linears={3 if arch.gated else 2}"]
        words += [f"--bytes-per-grad-ele={2 if plan.precision in ('bf16', 'mixed') else 4}"]
        names = {"momentum": "sgd_momentum", "sgd": "sgd_momentum", "muon": "muon"}
        words += [f"--optimizer={names.get(plan.optimizer, 'adamw')}"]
        words += ["--checkpoint-activations"] * (plan.recompute == "full")
        if plan.precision == "fp32":
            words += ["--disable-mixed-precision", "--low-prec-bytes-per-val=4"]
        found = _locals(module.calc_mem, module.config_parser().parse_args(words))
        kept = sum(found[f"per_gpu_{part}_mem"] for part in ("model", "gradient", "optimizer"))
        return kept, kept + found["per_gpu_activation_mem"]

    claims = "states and activations of one rank, mixed precision with a master copy; no logits"
    return Tool(
        "EleutherAI cookbook",
        "827ee3b",
        claims,
        "`calc_mem`, ZeRO 0, the MLP's matrices named",
        ("mixed",),
        run,
        ("adam", "muon"),
    )


def _deepspeed_version():
    import deepspeed

    return deepspeed.__version__


def deepspeed_tool(_):
    """DeepSpeed's estimate of ZeRO 2's states on one GPU, nothing offloaded."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero2

    run = lambda arch, _plan, _folder: (zero2(count(arch), cpu_offload=False)[1], None)
    claims = "parameters, gradients and optimizer of ZeRO 2, mixed precision; nothing else"
    how = "`estimate_zero2_model_states_mem_needs`, one GPU, no offload"
    return Tool("DeepSpeed zero 2", _deepspeed_version(), claims, how, ("mixed",), run)


def deepspeed3_tool(_):
    """The same of ZeRO 3."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3

    def run(arch, _plan, _folder):
        largest = arch.vocab * arch.width
        return zero3(count(arch), largest, cpu_offload=False, cpu_offload_params=False)[1], None

    claims = "parameters, gradients and optimizer of ZeRO 3, mixed precision; nothing else"
    how = "`estimate_zero3_model_states_mem_needs`, one GPU, no offload"
    return Tool("DeepSpeed zero 3", _deepspeed_version(), claims, how, ("mixed",), run)


def megatron_tool(options):
    """Megatron's theoretical usage; its module is loaded alone, with two helpers of its package in their place."""
    helpers = types.ModuleType("megatron_alone.utils")
    helpers.is_hybrid_model, helpers.print_rank_0 = (lambda _: False), (lambda *_: None)
    sys.modules |= {"megatron_alone": types.ModuleType("megatron_alone"), "megatron_alone.utils": helpers}
    path = Path(options.megatron or "") / "theoretical_memory_usage.py"
    path = path if path.is_file() else Path(options.megatron or "") / "megatron/training/theoretical_memory_usage.py"
    module = _from_file("megatron_alone.theoretical_memory_usage", path)
    none = ("num_experts", "mtp_num_layers", "moe_shared_expert_intermediate_size", "moe_latent_size")
    none += ("virtual_pipeline_model_parallel_size", "recompute_granularity")

    def run(arch, plan, _):
        values = dict.fromkeys(none)
        for what in ("tensor_model", "pipeline_model", "expert_model", "expert_tensor", "data"):
            values[f"{what}_parallel_size"] = 1
        values |= {"kv_channels": arch.head_width, "num_attention_heads": arch.heads, "world_size": 1}
        values |= {"hidden_size": arch.width, "ffn_hidden_size": arch.hidden, "num_layers": arch.layers}
        values |= {"group_query_attention": True, "num_query_groups": arch.kv_heads, "swiglu": arch.gated}
        values |= {
            "padded_vocab_size": arch.vocab,
            "normalization": "RMSNorm" if arch.norm == "rms" else "LayerNorm",
            "multi_latent_attention": False,
        }
        values |= {"untie_embeddings_and_output_weights": not arch.tied, "use_distributed_optimizer": False}
        values |= {"seq_length": plan.seq, "micro_batch_size": plan.batch, "add_bias_linear": arch.out_bias}
        args = types.SimpleNamespace(**values)
        kept = module.compute_weight_and_optimizer_memory(args)
        return kept, kept + module.compute_activation_memory_without_sp(args, 1)

    claims = (
        "weights, gradients, optimizer and activations of Megatron's own layers, bf16 with fp32 gradients and master"
    )
    how = "`compute_weight_and_optimizer_memory` and `compute_activation_memory_without_sp`"
    return Tool("Megatron theoretical", "d98e8a6", claims, how, ("mixed", "mixed-fp32-grads"), run)


def fitcheck_tool(_):
    """fitcheck-llm, full fine-tuning; its overhead is left out."""
    import fitcheck
    from fitcheck import config_parser

    def run(arch, plan, folder):
        fields = config_parser._parse_fields(json.loads((folder / "config.json").read_text()))
        sizes = dict(vars(fields), name=arch.name, num_params=count(arch))
        config = fitcheck.ModelConfig(**sizes)
        narrow, wide = ("bf16", "bf16") if plan.precision == "bf16" else ("bf16", "fp32")
        if plan.precision == "fp32":
            narrow = "fp32"
        made = fitcheck.TrainingConfig(
            **{"precision": narrow, "optimizer_dtype": wide, "batch_size": plan.batch, "seq_len": plan.seq},
            **{"lora_rank": None, "flash_attn": plan.attention == "flash", "grad_checkpoint": plan.recompute == "full"},
        )
        found = fitcheck.estimate(config, made, next(iter(fitcheck.GPU_DB.values())))
        kept = (found.weight_mib + found.optimizer_mib + found.gradient_mib) * MIB
        return kept, kept + found.activation_mib * MIB

    claims = "the whole step of a Hugging Face model, mostly LoRA; full fine-tuning with a master copy"
    how = "`estimate`, lora_rank=None; its overhead left out"
    return Tool("fitcheck-llm", _version("fitcheck-llm"), claims, how, ("fp32", "mixed"), run)


def vramcalc_tool(_):
    """vramcalc, mode train; it names its overhead apart and its total leaves it out."""
    import vramcalc

    def run(_arch, plan, folder):
        names = {
            "fp32": ("fp32", "pure"),
            "bf16": ("bf16", "pure"),
            "autocast": ("bf16", "amp"),
            "mixed": ("bf16", "amp"),
        }
        dtype, precision = names.get(plan.precision, names["mixed"])
        attention = {"flash": "flash", "math": "eager"}[plan.attention]
        asked = {"mode": "train", "dtype": dtype, "precision": precision, "attn_impl": attention, "batch": plan.batch}
        asked |= {"optimizer": "sgd" if plan.optimizer in ("sgd", "momentum") else "adamw", "seq_len": plan.seq}
        asked |= {"grad_checkpoint": plan.recompute == "full"}
        found = vramcalc.estimate(str(folder), **asked)
        return found.persistent, found.total

    claims = "the whole step of Hugging Face's Llama, Mistral, Qwen 2 and Gemma, by a formula for each term"
    how = '`estimate(mode="train", attn_impl=...)`, `total`'
    return Tool("vramcalc", _version("vramcalc"), claims, how, ("fp32", "bf16", "autocast"), run, ("adam", "momentum"))


def hf_vram_calc_tool(_):
    """hf-vram-calc: its training figure, which has a factor for everything, and no batch."""
    from hf_vram_calc.calculator import VRAMCalculator
    from hf_vram_calc.config import ConfigManager

    calculator = VRAMCalculator(ConfigManager())

    def run(arch, plan, _):
        name = "fp32" if plan.precision in ("fp32", "autocast") else "bf16"
        total = calculator.calculate_training_memory(calculator.calculate_model_memory(count(arch), name)) * GIB
        return 4 * calculator.calculate_model_memory(count(arch), name) * GIB, total

    claims = "training with Adam: four times the weights, and 30 % for the rest"
    how = "`calculate_training_memory`"
    return Tool("hf-vram-calc", _version("hf-vram-calc"), claims, how, ("fp32", "bf16"), run)


TOOLS = (accelerate_tool, cookbook_tool, deepspeed_tool, deepspeed3_tool, megatron_tool, fitcheck_tool, vramcalc_tool)
TOOLS += (hf_vram_calc_tool,)


def _from_file(name, path):
    """A module from its file; FileNotFoundError where there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} was given")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _locals(function, *args):
    """A function's own variables as it ends: the calculator prints two decimals of a GiB, and returns nothing."""
    found = {}

    def watch(frame, event, _):
        if event == "return" and frame.f_code is function.__code__:
            found.update(frame.f_locals)

    sys.setprofile(watch)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return found


def _ours(implementation):
    """labkit's own row."""
    form = lambda arch, plan: estimate(arch, plan, overhead=False, implementation=implementation).total_bytes
    run = lambda arch, plan, _: (states(arch, plan).total_bytes, form(arch, plan))
    claims, how = "the whole step of a stated implementation, phase by phase", f'`estimate`, of "{implementation}"'
    return Tool("labkit", "this one", claims, how, tuple(PRECISIONS), run, OPTIMIZERS)


def _config(arch):
    """What a config.json of this model says."""
    from transformers import GPT2Config

    if arch.norm == "rms":
        return hugging_face.config(arch)
    sizes = {"vocab_size": arch.vocab, "n_embd": arch.width, "n_layer": arch.layers, "n_head": arch.heads}
    return GPT2Config(
        n_positions=arch.positions, bos_token_id=None, eos_token_id=None, tie_word_embeddings=arch.tied, **sizes
    )


def _measured(implementation, folder, known):
    """[(arch, plan, folder of its config.json, live bytes at the peak)] over the grid; known: from an earlier run."""
    peak = hugging_face.training_peak if implementation == "transformers" else live.training_peak
    grid = HF_GRID if implementation == "transformers" else [*verify.tuned(), *verify.held_out()]
    found = []
    for place, (arch, plan) in enumerate(grid):
        here = folder / str(place)
        here.mkdir()
        _config(arch).save_pretrained(here)
        key = f"{implementation} {place}: {verify.describe(arch, plan)}"
        if key not in known:
            known[key] = peak(arch, plan).total_bytes
        found.append((arch, plan, here, known[key]))
        print(f"\r{implementation}: {place + 1} of {len(grid)} measured", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def _shown(errors):
    return f"{median(errors):.1%}, {max(errors):.1%} ({len(errors)})" if errors else "-"


def _row(tool, measured):
    """One line of the table: all configurations; those in the tool's own precision; states at rest, in its own."""
    everything, own, rest = [], [], []
    for arch, plan, folder, live_bytes in measured:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                kept, total = tool.run(arch, plan, folder)
        except ValueError:
            continue
        mine = plan.precision in tool.precisions and plan.optimizer in tool.optimizers
        error = abs((kept if total is None else total) / live_bytes - 1)
        everything.append(error)
        own += [error] * mine
        rest += [abs(kept / states(arch, plan).total_bytes - 1)] * mine
    cells = (tool.name, tool.version, tool.claims, _shown(everything), _shown(own), _shown(rest), tool.how)
    return "| " + " | ".join(cells) + " |"


def _table(implementation, options, known):
    """The table of one implementation's steps, as Markdown."""
    titles = ("tool", "version", "what it claims to estimate", "whole step, all: median, worst (of how many)")
    titles += ("whole step, own", "states, own", "how its figure was obtained")
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    with tempfile.TemporaryDirectory() as folder:
        measured = _measured(implementation, Path(folder), known)
        lines.append(_row(_ours(implementation), measured))
        for make in TOOLS:
            try:
                tool = make(options)
            except (ImportError, FileNotFoundError) as error:
                print(f"{make.__name__} is skipped: {error}", file=sys.stderr)
                continue
            lines.append(_row(tool, measured))
    return "\n".join(lines)


def main():
    """Measures, asks every tool, prints one table an implementation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for option in ("--tools", "--cookbook", "--megatron", "--markdown", "--measured"):
        parser.add_argument(option)
    options = parser.parse_args()
    if options.tools:
        sys.path.append(options.tools)
    kept = Path(options.measured) if options.measured else None
    known = json.loads(kept.read_text()) if kept and kept.is_file() else {}
    text = ""
    for implementation in ("transformers", "labkit"):
        text += f"Steps of {implementation}:\n\n{_table(implementation, options, known)}\n\n"
    print(text)
    if kept:
        kept.write_text(json.dumps(known, indent=1))
    if options.markdown:
        Path(options.markdown).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
