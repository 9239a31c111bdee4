"""The estimate of a whole step."""

from hypothesis import given
from hypothesis import strategies as st

from labkit.estimate import estimate
from labkit.presets import preset
from labkit.states import Plan, states


@given(batch=st.integers(1, 8), seq=st.integers(1, 4096))
def test_a_larger_batch_never_takes_less(batch, seq):
    arch = preset("llama-3-8b")
    small, large = (estimate(arch, Plan(batch=n, seq=seq)).total_bytes for n in (batch, batch + 1))
    assert small <= large


def test_of_a_bare_number_only_the_states_are_known():
    found = estimate(7_500_000_000, Plan(), overhead=False)
    assert found.total_bytes == states(7_500_000_000, Plan()).total_bytes == 120_000_000_000
    assert found.activations_bytes == found.logits_bytes == found.overhead_bytes == 0
