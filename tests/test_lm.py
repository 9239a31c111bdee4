"""The reference models: as many parameters as their sizes say, causal, and the same however they are run."""

from dataclasses import replace

import pytest
import torch

from labkit import lm
from labkit.architecture import count
from labkit.presets import preset
from labkit.verify_grid import gpt_style, llama_style

STYLES = [gpt_style(), gpt_style(tied=False), llama_style(), llama_style(qk_norm=True), llama_style(kv_heads=4)]


@pytest.mark.parametrize("arch", [*STYLES, replace(preset("qwen-2.5-0.5b"), layers=1, vocab=64)])
def test_a_model_has_as_many_parameters_as_its_sizes_say(arch):
    assert sum(p.numel() for p in lm.build(arch).parameters()) == count(arch)


@pytest.mark.parametrize("arch", STYLES)
def test_attention_and_recomputation_change_nothing_but_memory(arch):
    tokens = torch.randint(0, arch.vocab, (2, 17), generator=torch.Generator().manual_seed(0))
    results = []
    for attention, recompute in (("flash", "none"), ("math", "none"), ("flash", "full"), ("math", "selective")):
        torch.manual_seed(0)
        model = lm.build(arch, attention=attention, recompute=recompute)
        loss = lm.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters())])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", STYLES[::2])
def test_a_later_token_changes_no_earlier_logits(arch):
    torch.manual_seed(0)
    model = lm.build(arch)
    tokens = torch.randint(0, arch.vocab, (1, 12))
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % arch.vocab
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :8], before[:, :8])
    assert not torch.allclose(after[:, 8:], before[:, 8:])


def test_rotation_keeps_lengths_and_scores_depend_on_distance():
    x = torch.randn(1, 1, 2, 8).expand(1, 16, 2, 8)
    turned = lm.rotate(x, *lm.rotary_tables(16, 8, x.device))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    scores = torch.einsum("btkp,bskp->bkts", turned, turned)
    torch.testing.assert_close(scores[..., 3, 1], scores[..., 9, 7])


def test_a_step_lowers_the_loss_on_what_it_has_seen():
    torch.manual_seed(0)
    model, tokens = lm.build(llama_style(vocab=64)), torch.randint(0, 64, (4, 33))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = lambda: float(lm.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).detach())
    before = loss()
    for _ in range(5):
        lm.train_step(model, optimizer, tokens)
    assert loss() < before - 0.1


def test_experts_are_refused():
    with pytest.raises(ValueError, match="8 experts"):
        lm.build(preset("mixtral-8x7b"))
