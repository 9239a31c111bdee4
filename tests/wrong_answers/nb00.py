"""Wrong answers that learners of lesson 00 would give, each with a part of the message that must meet it."""

import time
from statistics import mean, median


def stops_before_the_work_is_done(candidates, repeats, warmup, synchronize, clock):
    for fn in candidates.values():
        for _ in range(warmup):
            fn()
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, fn in candidates.items():
            synchronize()
            start = clock()
            fn()
            seconds[name].append(clock() - start)
    return seconds


def starts_with_the_warm_up_unfinished(candidates, repeats, warmup, synchronize, clock):
    for fn in candidates.values():
        for _ in range(warmup):
            fn()
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, fn in candidates.items():
            start = clock()
            fn()
            synchronize()
            seconds[name].append(clock() - start)
    return seconds


def no_warm_up(candidates, repeats, warmup, synchronize, clock):  # noqa: ARG001
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, fn in candidates.items():
            synchronize()
            start = clock()
            fn()
            synchronize()
            seconds[name].append(clock() - start)
    return seconds


def one_candidate_after_the_other(candidates, repeats, warmup, synchronize, clock):
    seconds = {}
    for name, fn in candidates.items():
        for _ in range(warmup):
            fn()
        seconds[name] = []
        for _ in range(repeats):
            synchronize()
            start = clock()
            fn()
            synchronize()
            seconds[name].append(clock() - start)
    return seconds


def one_stopwatch_around_all_repeats(candidates, repeats, warmup, synchronize, clock):
    seconds = {}
    for name, fn in candidates.items():
        for _ in range(warmup):
            fn()
        synchronize()
        start = clock()
        for _ in range(repeats):
            fn()
        synchronize()
        seconds[name] = [(clock() - start) / repeats] * repeats
    return seconds


def only_medians(candidates, repeats, warmup, synchronize, clock):
    seconds = starts_with_the_warm_up_unfinished(candidates, repeats, warmup, synchronize, clock)
    return {name: median(samples) for name, samples in seconds.items()}


def the_wall_clock_of_this_machine(candidates, repeats, warmup, synchronize, clock):  # noqa: ARG001
    return no_warm_up(candidates, repeats, warmup, synchronize, time.time)


def perf_counter_instead_of_clock(candidates, repeats, warmup, synchronize, clock):  # noqa: ARG001
    for fn in candidates.values():
        for _ in range(warmup):
            fn()
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, fn in candidates.items():
            synchronize()
            start = time.perf_counter()
            fn()
            synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio_of_medians(slow_s, fast_s):
    lost = sum(slow > fast for slow, fast in zip(slow_s, fast_s, strict=True))
    won = sum(slow < fast for slow, fast in zip(slow_s, fast_s, strict=True))
    return median(slow_s) / median(fast_s), max(lost, won) >= 0.9 * len(slow_s)


def ratio_of_means(slow_s, fast_s):
    return mean(slow_s) / mean(fast_s), ratio_of_medians(slow_s, fast_s)[1]


def told_apart_one_way_only(slow_s, fast_s):
    ratios = [slow / fast for slow, fast in zip(slow_s, fast_s, strict=True)]
    return median(ratios), sum(ratio > 1 for ratio in ratios) >= 0.9 * len(ratios)


def ties_count_as_won(slow_s, fast_s):
    ratios = [slow / fast for slow, fast in zip(slow_s, fast_s, strict=True)]
    lost = sum(ratio > 1 for ratio in ratios)
    return median(ratios), max(lost, len(ratios) - lost) >= 0.9 * len(ratios)


def ties_are_no_rounds(slow_s, fast_s):
    ratios = [slow / fast for slow, fast in zip(slow_s, fast_s, strict=True)]
    lost, won = sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
    return median(ratios), max(lost, won) >= 0.9 * (lost + won)


def needs_ten_rounds(slow_s, fast_s):
    ratio, apart = more_or_less(slow_s, fast_s, lambda agreeing, n: agreeing >= 0.9 * n)
    return ratio, apart and len(slow_s) >= 10


def counts_to_nine(slow_s, fast_s):
    return more_or_less(slow_s, fast_s, lambda agreeing, n: agreeing >= 9)  # noqa: ARG005


def more_than_nine_in_ten(slow_s, fast_s):
    return more_or_less(slow_s, fast_s, lambda agreeing, n: agreeing > 0.9 * n)


def four_in_five_will_do(slow_s, fast_s):
    return more_or_less(slow_s, fast_s, lambda agreeing, n: agreeing >= 0.8 * n)


def more_or_less(slow_s, fast_s, rule):
    ratios = [slow / fast for slow, fast in zip(slow_s, fast_s, strict=True)]
    lost, won = sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
    return median(ratios), rule(max(lost, won), len(ratios))


def all_rounds_must_agree(slow_s, fast_s):
    ratios = [slow / fast for slow, fast in zip(slow_s, fast_s, strict=True)]
    return median(ratios), min(ratios) > 1 or max(ratios) < 1


def sorts_before_it_pairs(slow_s, fast_s):
    slow_s.sort()
    fast_s.sort()
    return ratio_of_medians(slow_s, fast_s)


WRONG = {
    "0.1": [
        ("stops before the work is done", stops_before_the_work_is_done, "clock stops before the device has finished"),
        ("starts with the warm-up unfinished", starts_with_the_warm_up_unfinished, "what the warm-up left unfinished"),
        ("no warm-up", no_warm_up, "cold calls are among the samples"),
        ("one candidate after the other", one_candidate_after_the_other, "its samples in one block"),
        ("one stopwatch around all repeats", one_stopwatch_around_all_repeats, "wait, read the clock, call, wait"),
        ("only medians", only_medians, "wrong type"),
        ("the clock of this machine", the_wall_clock_of_this_machine, r"Read the time with clock\(\)"),
        ("perf_counter instead of clock", perf_counter_instead_of_clock, r"Read the time with clock\(\)"),
    ],
    "0.2": [
        ("ratio of medians", ratio_of_medians, "ratio of two medians"),
        ("ratio of means", ratio_of_means, "mean follows the one interrupted round"),
        ("told apart one way only", told_apart_one_way_only, "works both ways"),
        ("ties count as won", ties_count_as_won, "A tie counts as a round, but for nobody"),
        ("ties are no rounds", ties_are_no_rounds, "A tie counts as a round, but for nobody"),
        ("needs ten rounds", needs_ten_rounds, "The rule is a share"),
        ("counts to nine", counts_to_nine, "The rule is a share"),
        ("more than nine in ten", more_than_nine_in_ten, ">= and not >"),
        ("four in five will do", four_in_five_will_do, "90 % of all rounds agree"),
        ("all rounds must agree", all_rounds_must_agree, "One round may differ"),
        ("sorts its inputs", sorts_before_it_pairs, "changes its input"),
    ],
}
