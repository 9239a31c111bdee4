"""GPUs by name: their memory as the driver counts it, and the rates that their makers promise."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Card:
    """One kind of GPU. Rates are promises: matrix products reach a part of flops_per_s, copies most of bytes_per_s.

    memory_bytes: what nvidia-smi shows as the total, a little less than the name says. flops_per_s: 16-bit matrix
    products without sparsity, adding up in 32 bits. bytes_per_s: of the card's own memory.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    bytes_per_s: float
    source: str


CARDS = {
    card.name: card
    for card in (
        Card("T4", 15360 * MIB, 65e12, 320e9, "NVIDIA T4 datasheet (2019)"),
        Card("V100-16", 16384 * MIB, 125e12, 900e9, "NVIDIA V100 datasheet (2020), SXM2"),
        Card("V100-32", 32768 * MIB, 125e12, 900e9, "NVIDIA V100 datasheet (2020), SXM2"),
        Card("A10G", 23028 * MIB, 70e12, 600e9, "AWS, G5 instances: A10G datasheet"),
        Card("L4", 23034 * MIB, 121e12, 300e9, "NVIDIA L4 datasheet (2023)"),
        Card("RTX-3090", 24576 * MIB, 71e12, 936e9, "NVIDIA Ampere GA102 whitepaper (2020), table 9"),
        Card("RTX-4090", 24564 * MIB, 165.2e12, 1008e9, "NVIDIA Ada whitepaper (2022), table 2"),
        Card("RTX-5090", 32607 * MIB, 209.5e12, 1792e9, "NVIDIA RTX Blackwell whitepaper (2025), table 3"),
        Card("A100-40", 40960 * MIB, 312e12, 1555e9, "NVIDIA A100 datasheet (2021), SXM4"),
        Card("A100-80", 81920 * MIB, 312e12, 2039e9, "NVIDIA A100 datasheet (2021), SXM4"),
        Card("H100", 81559 * MIB, 989.4e12, 3350e9, "NVIDIA H100 datasheet (2023), SXM5"),
        Card("H200", 143771 * MIB, 989.4e12, 4800e9, "NVIDIA H200 datasheet (2024), SXM5"),
        Card("B200", 183359 * MIB, 2250e12, 7700e9, "NVIDIA HGX B200 datasheet (2025)"),
    )
}
"""The cards that are known by name."""


def card(name: str) -> Card:
    """The card of that name, in capitals or not. ValueError: names those there are."""
    if name.upper() not in CARDS:
        raise ValueError(f"There is no GPU {name!r} here. There are: {', '.join(CARDS)}.")
    return CARDS[name.upper()]
