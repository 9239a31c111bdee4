"""The shared models: sizes, shapes, and the properties that lessons lean on."""

import pytest
import torch

from labkit import models


def test_resnet_has_about_176k_parameters():
    assert 170_000 < models.count_parameters(models.resnet()) < 182_000


def test_a_frozen_or_shared_parameter_is_not_counted_or_counted_once():
    layer = torch.nn.Linear(3, 5)
    assert models.count_parameters(torch.nn.Sequential(layer, layer)) == 20
    layer.bias.requires_grad_(False)
    assert models.count_parameters(layer) == 15


@pytest.mark.parametrize("size", [16, 17, 24, 48])
def test_resnet_takes_any_size_from_16_pixels(size):
    assert models.resnet(n_classes=7)(torch.zeros(2, 1, size, size)).shape == (2, 7)


@pytest.mark.parametrize("size", [8, 9, 24, 25])
def test_convnet_fits_its_size(size):
    assert models.convnet(n_classes=10, size=size)(torch.zeros(2, 1, size, size)).shape == (2, 10)


def test_convnet_gain_multiplies_every_weight_and_keeps_the_biases_at_zero():
    plain, loud = [], []
    for found, gain in ((plain, 1.0), (loud, 1.4)):
        torch.manual_seed(0)
        found += models.convnet(gain).parameters()
    for a, b in zip(plain, loud, strict=True):
        torch.testing.assert_close(b, 1.4 * a)


def test_the_same_seed_gives_the_same_model():
    def first_weights():
        torch.manual_seed(3)
        return models.gpt(vocab=11, width=16, heads=2, layers=1, context=8).state_dict()

    one, other = first_weights(), first_weights()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gpt_never_looks_ahead(norm):
    torch.manual_seed(0)
    model = models.gpt(vocab=11, norm=norm, width=16, heads=2, layers=2, context=8)
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_gpt_knows_where_a_token_stands():
    torch.manual_seed(0)
    model = models.gpt(vocab=11, width=16, heads=2, layers=1, context=8)
    logits = model(torch.full((1, 8), 3))
    assert not torch.allclose(logits[:, 0], logits[:, 1])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gpt_given_the_usual_positions_and_mask_is_the_usual_gpt(norm):
    torch.manual_seed(0)
    model = models.gpt(vocab=11, norm=norm, width=16, heads=2, layers=2, context=8)
    tokens = torch.randint(11, (2, 6))
    positions, mask = torch.arange(6).expand(2, 6), torch.ones(2, 6, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(model(tokens, positions, mask), model(tokens))


def test_post_norm_blocks_end_normalised_and_pre_norm_blocks_do_not():
    torch.manual_seed(0)
    x = 5 * torch.randn(2, 4, 16)
    post, pre = (models.Block(16, 2, norm)(x) for norm in ("post", "pre"))
    torch.testing.assert_close(post.std(-1, correction=0), torch.ones(2, 4), atol=1e-3, rtol=0)
    assert pre.std() > 3


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="'middle'"):
        models.gpt(vocab=11, norm="middle")
    with pytest.raises(ValueError, match="5 heads"):
        models.gpt(vocab=11, heads=5)
