"""Timing on a fake clock, so that every figure is exact and no test depends on how busy this machine is."""

import gc
import random
import re
import statistics
from collections.abc import Callable

import numpy as np
import pytest
import torch

from labkit.checks import nb00
from labkit.measure import Bench, Ratio, bench, peak_memory_bytes, quartiles, synchronize

MS = 1_000_000


class World:
    """A clock in nanoseconds, and an asynchronous device whose work passes time only when somebody waits for it."""

    def __init__(self) -> None:
        self.now, self.owed, self.log = 0, 0, []

    def clock(self) -> int:
        self.log.append("clock")
        return self.now

    def synchronize(self) -> None:
        self.log.append("wait")
        self.now, self.owed = self.now + self.owed, 0

    def takes(self, *spans_ns: int, name: str = "call") -> Callable[[], None]:
        """A function that takes these times, one call after the other, then the last of them for ever."""
        rest = list(spans_ns)

        def fn() -> None:
            self.log.append(name)
            self.now += rest.pop(0) if len(rest) > 1 else rest[0]

        return fn

    def submits(self, span_ns: int) -> Callable[[], None]:
        """A function that returns at once and leaves work for the device."""

        def fn() -> None:
            self.log.append("submit")
            self.owed += span_ns

        return fn

    def bench(self, candidates: dict, **options: object) -> Bench:
        return bench(candidates, **{"device": self, "clock": self.clock, **options})


def test_a_sample_is_the_time_of_one_call():
    world = World()
    assert world.bench({"a": world.takes(2 * MS)}, repeats=5).seconds == {"a": (0.002,) * 5}


def test_warm_up_is_not_counted():
    world = World()
    result = world.bench({"a": world.takes(900 * MS, 90 * MS, 2 * MS)}, repeats=6, warmup=3)
    assert result.seconds["a"] == (0.002,) * 6
    assert world.log.count("call") == 3 + 6


def test_the_device_is_awaited_before_the_start_and_before_the_stop():
    world = World()
    result = world.bench({"a": world.submits(3 * MS), "b": world.submits(7 * MS)}, repeats=5)
    assert result.median_s == {"a": 0.003, "b": 0.007}
    assert world.log[-5:] == ["wait", "clock", "submit", "wait", "clock"]


def test_candidates_take_turns_and_each_goes_first():
    world = World()
    world.bench({n: world.takes(2 * MS, name=n) for n in "abc"}, repeats=6)
    calls = "".join(n for n in world.log if n in "abc")
    assert calls == "aaabbbccc" + "abcbcacab" * 2


def test_a_drift_that_ruins_blocks_leaves_the_ratio_at_one():
    world = World()

    def slower_and_slower() -> None:
        world.now += 2 * MS + world.now // 50

    ratio = world.bench({"a": slower_and_slower, "b": slower_and_slower}, repeats=20).ratio("a", "b")
    assert not ratio.decided
    assert ratio.value == pytest.approx(1, abs=0.05)


def test_short_functions_are_looped_until_a_sample_lasts():
    world = World()
    result = world.bench({"a": world.takes(200)}, repeats=5, min_time_s=1e-3)
    assert result.seconds["a"] == pytest.approx([200e-9] * 5)
    assert 5_000 <= result.calls["a"] <= 10_000


@pytest.mark.parametrize("place", [2, 8])
def test_one_interruption_while_calibrating_does_not_shorten_the_loop(place):
    world = World()
    spans = [200] * place + [40 * MS, 200]
    assert world.bench({"a": world.takes(*spans)}, repeats=5).calls["a"] >= 5_000


def test_long_functions_are_called_once_a_sample():
    world = World()
    assert world.bench({"a": world.takes(MS)}, repeats=5).calls == {"a": 1}


def test_a_clock_that_stands_still_does_not_loop_for_ever(monkeypatch):
    monkeypatch.setattr("labkit.measure.MOST_CALLS", 1000)
    with pytest.raises(RuntimeError, match="the clock stood still while candidate 'a' ran"):
        World().bench({"a": lambda: None}, repeats=5)
    with pytest.raises(RuntimeError, match="the clock stood still"):
        World().bench({"a": lambda: None, "b": lambda: None}, repeats=5, min_time_s=0.0)


def test_median_and_iqr_ignore_an_outlier_that_the_mean_follows():
    bench_ = Bench(seconds={"a": (1.0, 2.0, 3.0, 4.0, 1000.0)}, calls={"a": 1}, device="cpu")
    assert (bench_.median_s["a"], bench_.iqr_s["a"]) == (3.0, 2.0)


@pytest.mark.parametrize("n", [5, 6, 7, 8, 20, 31])
def test_quartiles_are_numpys(n):
    samples = np.random.default_rng(n).lognormal(size=n).tolist()
    assert quartiles(samples) == pytest.approx(tuple(np.quantile(samples, [0.25, 0.5, 0.75])))


def _pair(slow: list[float], fast: list[float]) -> Ratio:
    return Bench(seconds={"s": tuple(slow), "f": tuple(fast)}, calls={"s": 1, "f": 1}, device="cpu").ratio("s", "f")


def test_a_steady_ratio_is_decided():
    ratio = _pair([3.0] * 10, [2.0] * 10)
    assert (ratio.value, ratio.low, ratio.high, ratio.decided) == (1.5, 1.5, 1.5, True)
    assert str(ratio) == "1.5x (1.5x to 1.5x)"


def test_a_spread_that_swamps_the_difference_is_not_decided():
    ratio = _pair([1.0, 9.0] * 10, [5.0, 2.0] * 10)
    assert not ratio.decided
    assert str(ratio) == "cannot be told apart (0.2x to 4.5x)"


def test_less_than_three_per_cent_is_not_decided_however_steady():
    assert not _pair([1.02] * 20, [1.0] * 20).decided
    assert _pair([1.04] * 20, [1.0] * 20).decided
    assert not _pair([1.0] * 20, [1.02] * 20).decided
    assert _pair([1.0] * 20, [1.04] * 20).decided


def test_the_ratio_is_paired_by_round():
    drift = [2.0 ** ((7 * i) % 10) for i in range(10)]
    assert _pair([3 * d for d in drift], drift).low == pytest.approx(3)


def test_the_ratio_is_a_median_that_one_interrupted_round_does_not_move():
    ratio = _pair([3.0] * 9 + [3000.0], [1.0] * 10)
    assert (ratio.value, ratio.low, ratio.high) == (3.0, 3.0, 3000.0)


def test_at_least_is_true_false_or_unknown():
    ratio = Ratio(value=2.0, low=1.5, high=3.0, decided=True)
    assert [ratio.at_least(x) for x in (1.5, 2.0, 3.0, 3.1)] == [True, None, None, False]


@pytest.mark.parametrize("n", [8, 20, 31])
def test_the_interval_holds_the_median_as_often_as_it_says(n):
    draw = random.Random(n)
    hits = 0
    for _ in range(2000):
        ratio = _pair([draw.lognormvariate(0, 1) for _ in range(n)], [1.0] * n)
        hits += ratio.low <= 1.0 <= ratio.high
    assert hits / 2000 >= 0.98  # 0.99 or more, less four standard errors of 2000 trials


def test_the_interval_is_no_wider_than_it_must_be():
    ratios = [float(i) for i in range(1, 21)]
    ratio = _pair(ratios, [1.0] * 20)
    assert (ratio.low, ratio.high) == (4.0, 17.0)  # coverage 0.9974; 5 to 16 would hold 0.988


def test_an_unknown_name_is_said():
    with pytest.raises(KeyError, match="no candidate 'x'; there are: s, f"):
        Bench(seconds={"s": (1.0,), "f": (1.0,)}, calls={}, device="cpu").ratio("s", "x")


def test_the_table_is_aligned_and_has_units():
    seconds = {"short": (1e-3,) * 9, "rather long": (12.3e-3,) * 9}
    text = str(Bench(seconds=seconds, calls={"short": 8, "rather long": 1}, device="cpu"))
    assert text.splitlines() == [
        "candidate     median   IQR    takes  samples x calls",
        "short           1 ms  0 ns  fastest            9 x 8",
        "rather long  12.3 ms  0 ns    12.3x            9 x 1",
    ]


def test_the_table_says_what_cannot_be_told_apart():
    samples = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    table = Bench(seconds={"a": samples, "b": samples[::-1]}, calls={"a": 1, "b": 1}, device="cpu")
    assert "cannot be told apart" in str(table)


def test_every_figure_in_html_is_marked_as_varying():
    result = Bench(seconds={"<a>": (1e-3,) * 9}, calls={"<a>": 77}, device="cpu")
    html = result._repr_html_()
    assert "&lt;a&gt;" in html
    assert not re.search(r"[137]", re.sub(r"<!--varying-->.*?<!--/varying-->", "", html))


def test_show_marks_every_line(capsys):
    Bench(seconds={"a": (1e-3,) * 9}, calls={"a": 1}, device="cpu").show()
    assert all(line.startswith("    · ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        ({}, {}, "at least one candidate"),
        ({"a": print, "b": 3}, {}, "candidate 'b' is a int, not a function"),
        ({"a": print}, {"repeats": 4}, "4 repeats show no spread"),
        ({"a": print}, {"warmup": 0}, "warm-up of 1 or more"),
        ([print], {}, "each with its name: bench"),
        (print, {}, "each with its name: bench"),
        ({1: print}, {}, "each with its name: bench"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(candidates, options, message):
    with pytest.raises(ValueError, match=message):
        bench(candidates, device="cpu", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_a_sentence():
    for device in ("cuda", "cuda:1", torch.device("cuda")):
        with pytest.raises(ValueError, match="torch can use no GPU here"):
            bench({"a": print}, device=device)


def test_a_candidate_that_raises_is_named():
    with pytest.raises(RuntimeError, match="candidate 'b' failed: ZeroDivisionError: division by zero"):
        World().bench({"b": lambda: 1 / 0})


def test_a_generator_is_not_timed_as_if_it_had_run():
    with pytest.raises(
        RuntimeError, match="candidate 'g' failed: TypeError: it returns a generator, so nothing has run"
    ):
        bench({"g": lambda: (i for i in range(3))}, device="cpu")


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_off_inside_and_as_before_afterwards(was_on):
    seen = []
    world = World()
    try:
        (gc.enable if was_on else gc.disable)()
        slow = world.takes(2 * MS)
        world.bench({"a": lambda: (seen.append(gc.isenabled()), slow())}, repeats=5)
        with pytest.raises(RuntimeError):
            world.bench({"a": lambda: 1 / 0})
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
    assert not any(seen)


def test_on_a_real_clock_the_medians_are_seconds():
    result = bench({"a": lambda: sum(range(100)), "b": lambda: sum(range(1000))}, device="cpu", repeats=5)
    assert all(1e-8 < s < 1 for s in result.median_s.values())
    assert result.device == "cpu"
    assert min(result.calls.values()) > 1


def test_synchronize_returns_on_a_cpu_and_asks_a_device_that_can_wait():
    world = World()
    world.owed = 5
    synchronize("cpu")
    synchronize(world)
    assert world.now == 5


def test_peak_memory_says_that_it_needs_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(RuntimeError, match="needs a CUDA GPU"):
        peak_memory_bytes(lambda: None)


def test_medians_are_of_all_samples():
    samples = (5.0, 1.0, 4.0, 2.0, 3.0)
    assert Bench(seconds={"a": samples}, calls={"a": 1}, device="cpu").median_s["a"] == statistics.median(samples)


def test_bench_samples_what_lesson_00_lets_a_learner_build():
    def candidates(world: World) -> dict:
        return {"a": world.takes(9 * MS, 8 * MS, 2 * MS, 3 * MS, 2 * MS), "b": world.takes(7 * MS, 7 * MS, 5 * MS)}

    ours, built = World(), World()
    medians_s = ours.bench(candidates(ours), repeats=6, warmup=2).median_s
    in_ns = nb00.bench(candidates(built), 6, 2, built.synchronize, built.clock)
    assert medians_s == pytest.approx({name: statistics.median(ns) / 1e9 for name, ns in in_ns.items()})
