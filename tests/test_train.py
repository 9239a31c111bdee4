"""Schedules against values worked out by hand; the loop's determinism, records and way with divergence."""

import math
import time

import pytest
import torch
from torch import nn

from labkit import models, repro, train

SCHEDULES = (train.constant, train.step_decay, train.warmup_constant, train.one_cycle, train.warmup_stable_decay)


def rates(schedule, n_steps):
    return [schedule(step) for step in range(n_steps)]


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("n_steps", [7, 100])
def test_rates_are_positive_and_reach_the_peak_without_passing_it(make, n_steps):
    found = rates(make(0.3, n_steps), n_steps)
    assert all(0 < rate <= 0.3 for rate in found)
    assert max(found) == pytest.approx(0.3)


def test_constant():
    assert rates(train.constant(0.3, 4), 4) == [0.3] * 4


def test_step_decay_drops_where_a_share_of_the_steps_has_passed():
    found = rates(train.step_decay(1.0, 10), 10)
    assert found == pytest.approx([1.0] * 5 + [0.1] * 3 + [0.01] * 2)
    assert rates(train.step_decay(1.0, 4, at=(0.25,), factor=0.5), 4) == [1.0, 0.5, 0.5, 0.5]


def test_warmup_constant_starts_above_zero_and_stays():
    assert rates(train.warmup_constant(1.0, 8, warmup_share=0.5), 8) == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 5)
    assert rates(train.warmup_constant(1.0, 8, warmup_share=0.0), 8) == [1.0] * 8


def test_one_cycle_rises_in_a_line_and_falls_in_half_a_cosine():
    found = rates(train.one_cycle(1.0, 10, warmup_share=0.3), 10)
    assert found[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert found[3:] == pytest.approx([(1 + math.cos(math.pi * i / 8)) / 2 for i in range(1, 8)])
    assert 0 < found[-1] < 0.04


def test_warmup_stable_decay_has_its_three_parts():
    found = rates(train.warmup_stable_decay(1.0, 10, warmup_share=0.2, decay_share=0.4), 10)
    assert found == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25])


@pytest.fixture(scope="module")
def digits():
    """Real handwritten digits, 8x8: 1,000 to train on and 797 to test on, straight from scikit-learn."""
    from sklearn.datasets import load_digits

    images, targets = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    targets = torch.tensor(targets, dtype=torch.int64)
    return inputs[:1000], targets[:1000], inputs[1000:], targets[1000:]


def run(digits, *, lr=0.1, n_steps=40, **more):
    inputs, targets, _, _ = digits
    repro.seed_all(0)
    model = models.convnet(n_classes=10, size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    batches = train.shuffled(inputs, targets, batch_size=50, seed=1)
    schedule = train.warmup_constant(lr, n_steps)
    return model, train.fit(model, batches, n_steps=n_steps, optimizer=optimizer, lr=schedule, **more)


def scorer(digits):
    _, _, inputs, targets = digits
    return lambda model: train.score(model, inputs, targets)


def test_it_learns_real_digits_and_records_what_it_did(digits):
    model, history = run(digits, evaluate=scorer(digits), evaluate_every=15)
    assert history.eval_steps == (15, 30, 40)
    assert history.eval_accuracies[-1] > 0.75
    assert history.eval_accuracies[-1] == scorer(digits)(model).accuracy
    assert history.lrs == tuple(rates(train.warmup_constant(0.1, 40), 40))
    assert len(history.losses) == 40
    assert history.losses[-1] < 1.0 < history.losses[0]
    assert not history.diverged
    assert history.steps == range(40)
    assert model.training


def test_a_seed_gives_the_same_history_twice(digits):
    (one, first), (other, second) = run(digits), run(digits)
    assert first.losses == second.losses
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_run_that_diverges_is_flagged_and_given_up(digits):
    _, history = run(digits, lr=1e6, n_steps=200, evaluate=scorer(digits), evaluate_every=100)
    assert history.diverged
    assert len(history.losses) <= 20
    assert not math.isfinite(history.losses[-1])
    assert history.eval_steps == ()


def test_a_run_that_diverges_goes_on_where_that_is_wanted(digits):
    _, history = run(digits, lr=1e6, n_steps=25, stop_when_diverged=False)
    assert history.diverged
    assert len(history.losses) == 25


def test_the_seconds_leave_scoring_and_on_step_out(digits):
    def slow_score(model):
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:  # busy, so that the processor's clock runs too
            pass
        return scorer(digits)(model)

    _, history = run(
        digits, n_steps=4, evaluate=slow_score, evaluate_every=1, on_step=lambda _number, _model: time.sleep(0.2)
    )
    assert list(history.eval_cpu_s) == sorted(history.eval_cpu_s)
    assert 0 < history.eval_wall_s[-1] < 1.5  # scoring alone took 2 s, on_step 0.8 s
    assert 0 < history.eval_cpu_s[-1] < 1.5


def test_on_step_sees_the_model_before_each_step(digits):
    seen = []

    def look(number, model):
        seen.append((number, model[0].weight.norm().item()))

    run(digits, n_steps=3, on_step=look)
    assert [number for number, _ in seen] == [0, 1, 2]
    repro.seed_all(0)
    assert seen[0][1] == models.convnet(n_classes=10, size=8)[0].weight.norm().item()


def test_a_step_of_ones_own_plugs_in(digits):
    _, history = run(digits, n_steps=3, step=lambda *_: torch.tensor(7.0))
    assert history.losses == (7.0, 7.0, 7.0)


def test_first_finds_the_evaluation_that_reached_an_accuracy():
    history = train.History(lrs=(), losses=(), diverged=False, eval_steps=(5, 9), eval_accuracies=(0.2, 0.6))
    assert (history.first(0.2), history.first(0.5), history.first(0.7)) == (0, 1, None)


def test_batches_that_end_too_early_are_an_error(digits):
    model = models.convnet(n_classes=10, size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batches = [(digits[0][:5], digits[1][:5])] * 2
    with pytest.raises(ValueError, match="after 2 of 3 steps"):
        train.fit(model, batches, n_steps=3, optimizer=optimizer, lr=train.constant(0.1, 3))


def test_an_epoch_shows_each_example_at_most_once_and_the_next_is_in_another_order():
    inputs, targets = torch.arange(10.0), torch.arange(10)
    batches = train.shuffled(inputs, targets, batch_size=3, seed=0)
    epochs = [[next(batches) for _ in range(3)] for _ in range(2)]
    assert all(torch.equal(x.long(), y) and len(y) == 3 for epoch in epochs for x, y in epoch)
    first, second = (torch.cat([y for _, y in epoch]).tolist() for epoch in epochs)
    assert len(set(first)) == len(set(second)) == 9
    assert first != second


def test_shuffled_is_not_moved_by_what_others_draw():
    data = torch.arange(10.0), torch.arange(10)
    quiet = next(train.shuffled(*data, batch_size=4, seed=0))[1]
    torch.rand(5)
    assert torch.equal(next(train.shuffled(*data, batch_size=4, seed=0))[1], quiet)
    assert not torch.equal(next(train.shuffled(*data, batch_size=4, seed=1))[1], quiet)


def test_windows_are_pieces_of_the_text_and_the_targets_come_one_later():
    tokens = torch.arange(12) * 2
    inputs, targets = next(train.windows(tokens, batch_size=200, context=4, seed=0))
    assert inputs.shape == targets.shape == (200, 4)
    assert torch.equal(inputs + 2, targets)
    assert inputs.min() == 0
    assert targets.max() == 22


def test_too_little_data_is_an_error():
    with pytest.raises(ValueError, match="batches of 5"):
        next(train.shuffled(torch.zeros(4), torch.zeros(4, dtype=torch.int64), batch_size=5, seed=0))
    with pytest.raises(ValueError, match="4 tokens"):
        next(train.windows(torch.arange(4), batch_size=1, context=4, seed=0))


def test_score_is_the_mean_over_examples_however_they_are_batched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
    inputs, targets = torch.randint(5, (7, 3)), torch.randint(5, (7, 3))
    expected = nn.functional.cross_entropy(model(inputs).reshape(-1, 5), targets.reshape(-1)).item()
    for batch_size in (2, 7):
        found = train.score(model, inputs, targets, batch_size=batch_size)
        assert found.loss == pytest.approx(expected, rel=1e-5)
        assert found.accuracy == pytest.approx((model(inputs).argmax(-1) == targets).float().mean().item())


def test_score_uses_a_batch_norms_running_statistics_and_puts_the_model_back():
    model = models.resnet(n_classes=3, width=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train.score(model, torch.randn(4, 1, 16, 16), torch.zeros(4, dtype=torch.int64))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_one_loop_trains_text_too():
    repro.seed_all(0)
    model = models.gpt(vocab=4, width=16, heads=2, layers=1, context=8)
    tokens = torch.arange(400) % 4
    batches = train.windows(tokens, batch_size=8, context=8, seed=0)
    optimizer = torch.optim.AdamW(model.parameters())
    history = train.fit(model, batches, n_steps=40, optimizer=optimizer, lr=train.one_cycle(1e-2, 40))
    assert history.losses[-1] < 0.2 < 1.0 < history.losses[0]


def test_a_model_as_a_function_of_its_weights_has_the_same_loss_and_gradient():
    torch.manual_seed(0)
    model = models.convnet()
    inputs, targets = torch.randn(8, 1, 24, 24), torch.randint(32, (8,))
    loss = train.mean_cross_entropy(model(inputs), targets)
    loss.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    loss_at, w = train.as_function(model, inputs, targets)
    w.requires_grad_()
    again = loss_at(w)
    assert again.item() == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(again, w)[0], gradient)
    assert loss_at(2 * w.detach()).item() != pytest.approx(loss.item(), rel=1e-2)
    assert train.mean_cross_entropy(model(inputs), targets).item() == loss.item()
