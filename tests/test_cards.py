"""Cards by name."""

import pytest

from labkit import cards


def test_a_card_answers_to_its_name_in_any_case_and_an_unknown_one_lists_those_there_are():
    assert cards.card("h100") is cards.CARDS["H100"]
    with pytest.raises(ValueError, match="no GPU 'H1000' here. There are: T4, .*B200"):
        cards.card("H1000")


@pytest.mark.parametrize("card", cards.CARDS.values(), ids=str)
def test_what_the_driver_shows_is_within_a_tenth_of_what_the_name_says(card):
    said = {"T4": 16, "A10G": 24, "L4": 24, "RTX-3090": 24, "RTX-4090": 24, "RTX-5090": 32, "H100": 80, "H200": 141}
    gigabytes = said.get(card.name) or int(card.name.split("-")[1]) if card.name != "B200" else 192
    assert 0.9 < card.memory_bytes / (gigabytes * 1e9) < 1.1
    assert 50 < card.flops_per_s / card.bytes_per_s < 500  # operations a byte: where the roofline bends
