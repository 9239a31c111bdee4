"""What a lesson finds where it runs, and what it uses there: device, number format, attention, ranks.

The one place that chooses by the card. A T4 (Turing, capability 7.5) multiplies fp16 in its tensor cores and has no
units for bf16, which torch then emulates without a word; FlashAttention was written for Ampere (8.0) and newer.
"""

from dataclasses import dataclass
from html import escape

from labkit import hardware
from labkit.show import panel, show
from labkit.units import format_bytes

_AMPERE = (8, 0)
_NO_GPU = {
    "kaggle": "No GPU: choose GPU T4 x2 under Settings, Accelerator, if you want the pair.",
    "colab": "No GPU: choose T4 GPU under Runtime, Change runtime type, if you want one.",
}
_PLACES = {"kaggle": "Kaggle", "colab": "Colab", "local": "this machine"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU as torch sees it; bf16: whether it has units for that format, an emulation not counted."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    bf16: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where this runs, the GPUs that torch can use and how they are linked (`NVLink`, `PCIe`, or nothing known)."""

    place: str
    cpu: str
    cores: int
    memory_bytes: int
    versions: str
    cards: tuple[Card, ...] = ()
    link: str = ""

    @property
    def device(self) -> str:
        """`cuda` where torch can use a GPU, else `cpu`."""
        return "cuda" if self.cards else "cpu"

    @property
    def has_bf16(self) -> bool:
        """Whether to use bf16: every GPU has units for it, or there is no GPU, for a processor takes it as it is."""
        return all(card.bf16 for card in self.cards)

    @property
    def narrow(self) -> str:
        """The format of 16 bits to train in, as torch names it: `bfloat16`, or `float16` where bf16 is emulated."""
        return "bfloat16" if self.has_bf16 else "float16"

    @property
    def attention(self) -> tuple[str, ...]:
        """Which kernels scaled_dot_product_attention can choose from, as torch.nn.attention.SDPBackend names them.

        Source: torch's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_flash_attention_hardware_support.
        """
        if not self.cards:
            return ("FLASH_ATTENTION", "MATH")
        flash = all(card.capability >= _AMPERE for card in self.cards)
        return ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH") if flash else ("EFFICIENT_ATTENTION", "MATH")

    @property
    def backend(self) -> str:
        """What ranks talk through: `nccl` with a GPU for each, `gloo` where they share a GPU or have none."""
        return "nccl" if len(self.cards) > 1 else "gloo"


def found() -> Setting:
    """The setting of this process: what the operating system, the driver and torch say."""
    import torch

    machine = hardware.machine()
    cards = _cards() if hardware.tier() != "cpu" else ()
    return Setting(
        place=machine.place,
        cpu=machine.cpu,
        cores=machine.cores,
        memory_bytes=machine.memory_bytes,
        versions=f"Python {machine.python}, torch {torch.__version__}",
        cards=cards,
        link=hardware.gpu_link(len(cards)),
    )


def _cards() -> tuple[Card, ...]:
    """The GPUs that torch can use. Asked without emulation, for a T4 says that it supports bf16."""
    import torch

    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    held = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(
        Card(
            name=each.name,
            memory_bytes=each.total_memory,
            capability=(each.major, each.minor),
            bf16=bf16 and (each.major, each.minor) >= _AMPERE,
        )
        for each in held
    )


def sentences(setting: Setting) -> tuple[str, ...]:
    """What was found, and what will be used, in two sentences; a third where a GPU could be had."""
    return (_found(setting), _used(setting), *([_NO_GPU[setting.place]] if _could_have_a_gpu(setting) else []))


def _could_have_a_gpu(setting: Setting) -> bool:
    """Whether this is a place that lends GPUs and has lent none."""
    return not setting.cards and setting.place in _NO_GPU


def _found(setting: Setting) -> str:
    """`Found on Kaggle: 2x Tesla T4 (15 GiB each, PCIe between them), 4 cores of Intel Xeon, 31 GiB, ...`"""
    host = f"{setting.cores} core{'' if setting.cores == 1 else 's'} of {setting.cpu}"
    parts = [*_gpus(setting), host]
    if setting.memory_bytes:
        parts.append(f"{format_bytes(setting.memory_bytes, binary=True)} of memory")
    return f"Found on {_PLACES[setting.place]}: {', '.join([*parts, setting.versions])}."


def _gpus(setting: Setting) -> list[str]:
    """`2x Tesla T4 (15 GiB each, PCIe between them)`, a part for each kind of GPU."""
    parts = []
    for card in dict.fromkeys(setting.cards):
        count, memory = setting.cards.count(card), format_bytes(card.memory_bytes, binary=True)
        many = f"{count}x {card.name} ({memory} each" if count > 1 else f"{card.name} ({memory}"
        parts.append(f"{many}, {setting.link} between them)" if count > 1 and setting.link else f"{many})")
    return parts or ["no GPU"]


def _used(setting: Setting) -> str:
    """`Uses: cuda; float16 as the narrow format, ...; NCCL between ranks, one a GPU.`"""
    why = "" if setting.has_bf16 else ", for there are no units for bfloat16 here"
    flash = "with" if "FLASH_ATTENTION" in setting.attention else "without"
    shared = "which share the GPU" if setting.cards else "on the processor"
    ranks = "NCCL between ranks, one a GPU" if setting.backend == "nccl" else f"gloo between ranks, {shared}"
    narrow = f"{setting.narrow} as the narrow format{why}"
    return f"Uses: {setting.device}; {narrow}; attention {flash} flash kernels; {ranks}."


def announce() -> None:
    """Show what was found here and what will be used."""
    lines = sentences(found())
    show("\n".join(lines), panel("neutral", "<br>".join(map(escape, lines))))
