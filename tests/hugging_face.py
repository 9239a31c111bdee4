"""Models of Hugging Face's transformers by their sizes, and the training step whose memory labkit states for them."""

import torch

from labkit import live
from labkit.optimizers import Optimizer


def config(arch, attention="sdpa"):
    """The configuration of transformers' Llama, Qwen 2.5 or Qwen 3, whichever has these biases and norms."""
    from transformers import AutoConfig

    kind = "qwen3" if arch.qk_norm else "qwen2" if arch.qkv_bias and not arch.out_bias else "llama"
    sizes = {"vocab_size": arch.vocab, "hidden_size": arch.width, "intermediate_size": arch.hidden}
    sizes |= {"num_hidden_layers": arch.layers, "num_attention_heads": arch.heads, "head_dim": arch.head_width}
    sizes |= {"num_key_value_heads": arch.kv_heads, "max_position_embeddings": arch.context}
    made = AutoConfig.for_model(kind, tie_word_embeddings=arch.tied, use_cache=False, **sizes)
    made._attn_implementation = attention
    return made


def build(arch, plan):
    """The model in the dtype that the plan gives its weights."""
    from transformers import AutoModelForCausalLM

    wide = plan.precision in ("fp32", "autocast")
    model = AutoModelForCausalLM.from_config(
        config(arch, {"flash": "sdpa", "math": "eager"}[plan.attention]),
        dtype=torch.float32 if wide else torch.bfloat16,
    )
    if plan.recompute == "full":
        model.activation_checkpointing_enable()
    return model.train()


def train_step(model, optimizer, tokens, *, autocast=False):
    """The step as most scripts have it: `outputs`, which holds the logits, is there until the step ends."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
        outputs = model(input_ids=tokens, labels=tokens)
    outputs.loss.backward()
    optimizer.step()


def real_peak(arch, plan):
    """Live bytes at the peak of the second step."""
    model = build(arch, plan)
    model.blocks = model.model.layers  # what labkit's optimizers ask a model for
    optimizer = Optimizer(model, plan)
    tokens = torch.randint(0, arch.vocab, (plan.batch, plan.seq))
    step = lambda: train_step(model, optimizer, tokens, autocast=plan.precision == "autocast")
    step()
    copies = [] if optimizer.masters is optimizer.weights else optimizer.masters
    return live.peak(step, model, copies, *optimizer.inner, tokens)


def training_peak(arch, plan):
    """The same on tensors without data."""
    import transformers.masking_utils  # noqa: F401 - before live.fake, which says to it what it cannot see there

    with live.fake():
        return real_peak(arch, plan)
