"""The laws of the loss against a search, against what the papers say of them, and against each other."""

import pytest

from labkit import budget

BUDGETS = (1e18, 5.76e23, 1e25)
each_law = pytest.mark.parametrize("law", budget.LAWS.values(), ids=budget.LAWS)


@each_law
@pytest.mark.parametrize("flops", BUDGETS)
def test_the_optimum_is_where_a_search_finds_the_least_loss(law, flops):
    n_best, d_best = law.optimum(flops)
    assert 6 * n_best * d_best == pytest.approx(flops)
    tried = [n_best * 1.01**i for i in range(-300, 301)]
    assert min(tried, key=lambda n: law.loss(n, flops / 6 / n)) == n_best


def test_the_refit_agrees_with_twenty_tokens_a_parameter_where_the_printed_law_does_not():
    """Besiroglu and others, section 4: some 20 tokens a parameter at Chinchilla's budget, against some 70 before."""
    ratio = {name: law.optimum(5.76e23)[1] / law.optimum(5.76e23)[0] for name, law in budget.LAWS.items()}
    printed, unrounded, refitted = ratio.values()
    assert 15 < refitted < 25
    assert 50 < unrounded < 75
    assert printed > 90


def test_chinchilla_is_what_the_ratio_of_twenty_gives_for_its_budget():
    """Hoffmann and others, section 4: 70 billion parameters, 1.4 trillion tokens, 5.76e23 FLOPs."""
    n_parameters, n_tokens = budget.by_ratio(5.76e23)
    assert n_parameters == pytest.approx(70e9, rel=0.02)
    assert n_tokens == pytest.approx(1.4e12, rel=0.02)
    assert 6 * n_parameters * n_tokens == pytest.approx(5.76e23)


@each_law
def test_chinchilla_beats_gopher_at_its_own_budget_and_nothing_beats_the_floor(law):
    """Hoffmann and others, section 4: the smaller model, trained on more tokens, is the better one."""
    gopher, chinchilla = law.loss(280e9, 300e9), law.loss(70e9, 1.4e12)
    assert law.floor < chinchilla < gopher
    assert law.loss(1e40, 1e40) == pytest.approx(law.floor, abs=1e-6)
