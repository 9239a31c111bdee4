"""The closed forms against tables that papers print, cell by cell."""

import pytest

from labkit import cost
from labkit.architecture import count
from labkit.presets import preset
from labkit.states import Plan, states

# ---- Rajbhandari et al., ZeRO (arXiv:1910.02054v3) ------------------------------------------------------------------

RANKS = (1, 4, 16, 64, 256, 1024)
TABLE_1 = {  # GB a device; columns: optimizer state split, gradients too, parameters too
    7_500_000_000: [
        *[(120, 120, 120), (52.5, 41.3, 30), (35.6, 21.6, 7.5)],
        *[(31.4, 16.6, 1.88), (30.4, 15.4, 0.47), (30.1, 15.1, 0.12)],
    ],
    128_000_000_000: [
        *[(2048, 2048, 2048), (896, 704, 512), (608, 368, 128)],
        *[(536, 284, 32), (518, 263, 8), (513, 257, 2)],
    ],
    1_000_000_000_000: [
        *[(16000, 16000, 16000), (7000, 5500, 4000), (4750, 2875, 1000)],
        *[(4187, 2218, 250), (4046, 2054, 62.5), (4011, 2013, 15.6)],
    ],
}
CELLS = [
    (n_params, ranks, stage, gigabytes)
    for n_params, rows in TABLE_1.items()
    for ranks, row in zip(RANKS, rows, strict=True)
    for stage, gigabytes in zip((1, 2, 3), row, strict=True)
]


def last_digit(printed):
    """What one of a printed number's last digit is worth; this table cuts some cells off and rounds others."""
    return 10.0 ** -len(str(printed).partition(".")[2]) if printed != int(printed) else 1.0


@pytest.mark.parametrize(("n_params", "ranks", "stage", "gigabytes"), CELLS)
def test_zeros_table_of_bytes_a_device(n_params, ranks, stage, gigabytes):
    found = states(n_params, Plan(precision="mixed", optimizer="adam", zero=stage, ranks=ranks)).total_bytes / 1e9
    assert abs(found - gigabytes) < last_digit(gigabytes)


TABLE_2 = {  # billions of parameters in 32 GB with 64 data-parallel ranks; rows: tensor-parallel ranks
    1: (2, 7.6, 14.4, 128),
    2: (4, 15.2, 28.8, 256),
    4: (8, 30.4, 57.6, 512),
    8: (16, 60.8, 115.2, 1024),
    16: (32, 121.6, 230.4, 2048),
}  # the paper prints the last three of the last column as 0.5, 1 and 2 trillion


@pytest.mark.parametrize(
    ("tp", "stage", "billions"), [(tp, z, cell) for tp, row in TABLE_2.items() for z, cell in enumerate(row)]
)
def test_zeros_table_of_the_largest_model(tp, stage, billions):
    a_ranks_share = round(billions * 1e9 / tp)
    found = states(a_ranks_share, Plan(zero=stage, ranks=64)).total_bytes
    assert found == pytest.approx(32e9, rel=0.01)


# ---- Korthikanti et al., Reducing activation recomputation (arXiv:2205.05198) ---------------------------------------

MODELS = {  # table 3: GPUs, sequences in a step; table 5: seconds, MFU and HFU in per cent
    "megatron-22b": (8, 4, 1.10, 41.5, 43.7),
    "gpt3-175b": (64, 64, 13.75, 51.4, 52.8),
    "megatron-530b": (280, 280, 37.83, 56.0, 57.0),
    "megatron-1t": (512, 512, 71.49, 56.3, 57.0),
}
SEQ, A100_FLOPS = 2048, 312e12


@pytest.mark.parametrize("name", MODELS)
def test_megatrons_models_have_as_many_parameters_as_their_names_say(name):
    said = {"megatron-22b": 22e9, "gpt3-175b": 175e9, "megatron-530b": 530e9, "megatron-1t": 1e12}[name]
    assert count(preset(name)) == pytest.approx(said, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_megatrons_flops_of_a_step_are_equation_7(name):
    arch, batch = preset(name), MODELS[name][1]
    h, layers, v = arch.width, arch.layers, arch.vocab
    published = 72 * batch * layers * SEQ * h**2 * (1 + SEQ / (6 * h) + v / (12 * h * layers))
    assert cost.step_flops(arch, batch=batch, seq=SEQ) == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_megatrons_table_of_utilisation(name):
    n_gpus, batch, seconds, mfu, hfu = MODELS[name]
    arch = preset(name)
    model_flops = cost.step_flops(arch, batch=batch, seq=SEQ)
    rounding = 0.05 + mfu * 0.005 / seconds  # of the printed share, and of the printed seconds
    assert 100 * cost.mfu(model_flops, seconds, n_gpus * A100_FLOPS) == pytest.approx(mfu, abs=rounding)
    # Equation 8 adds s/6h for the scores' second forward pass. The operations that its text names, 4 B s^2 h a layer,
    # are s/18h: a third of it. The table follows the equation, step_flops the operations.
    again = cost.step_flops(arch, batch=batch, seq=SEQ, recompute="selective") - model_flops
    assert 100 * cost.mfu(model_flops + 3 * again, seconds, n_gpus * A100_FLOPS) == pytest.approx(hfu, abs=rounding)


@pytest.mark.parametrize(("name", "per_cent"), [("gpt3-175b", 2.7), ("megatron-530b", 1.6)])
def test_megatrons_price_of_selective_recomputation_is_the_equations_too(name, per_cent):
    arch = preset(name)
    none, selective = (cost.step_flops(arch, batch=1, seq=SEQ, recompute=how) for how in ("none", "selective"))
    assert 100 * 3 * (selective - none) / none == pytest.approx(per_cent, abs=0.1)
