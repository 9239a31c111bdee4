"""What a lesson lets a learner build, and what labkit uses afterwards, are the same thing."""

import pytest

from labkit import train
from labkit.checks import nb01


@pytest.mark.parametrize(
    ("n_steps", "warmup", "decay"), [(100, 0.1, 0.3), (57, 0.0, 0.5), (40, 0.5, 0.5), (10, 0.2, 0.0)]
)
def test_the_schedule_of_lesson_01_is_the_one_that_train_uses(n_steps, warmup, decay):
    rate = train.warmup_stable_decay(0.7, n_steps, warmup_share=warmup, decay_share=decay)
    sizes = {"n_steps": n_steps, "n_warmup": round(warmup * n_steps), "n_decay": round(decay * n_steps)}
    built = [nb01.warmup_stable_decay(step, peak=0.7, **sizes) for step in range(n_steps)]
    assert [rate(step) for step in range(n_steps)] == pytest.approx(built, rel=1e-12)
