"""Wrong answers that learners of lesson 05 would give, each with a part of the message that must meet it."""

import statistics
from types import SimpleNamespace

import torch
from torch.nn import functional

from labkit import workshop


def between_neighbours(busy, start_s, end_s):
    gaps, before = [], start_s
    for first, last in sorted(busy):
        first, last = max(first, start_s), min(last, end_s)
        if last < start_s or first > end_s:
            continue
        if first > before:
            gaps.append((before, first))
        before = last
    if before < end_s:
        gaps.append((before, end_s))
    return gaps


def forgets_the_edges(busy, start_s, end_s):
    busy = sorted((max(a, start_s), min(b, end_s)) for a, b in busy if b > start_s and a < end_s)
    gaps, latest = [], busy[0][1] if busy else end_s
    for first, last in busy[1:]:
        if first > latest:
            gaps.append((latest, first))
        latest = max(latest, last)
    return gaps


def forgets_to_sort(busy, start_s, end_s):
    gaps, latest = [], start_s
    for first, last in busy:
        if min(first, end_s) > latest:
            gaps.append((latest, min(first, end_s)))
        latest = max(latest, last)
    if latest < end_s:
        gaps.append((latest, end_s))
    return gaps


def runs_past_the_end(busy, start_s, end_s):
    gaps, latest = [], start_s
    for first, last in sorted(busy):
        if first > latest:
            gaps.append((latest, first))
        latest = max(latest, last)
    if latest < end_s:
        gaps.append((latest, end_s))
    return gaps


def keeps_empty_gaps(busy, start_s, end_s):
    gaps, latest = [], start_s
    for first, last in sorted(busy):
        if min(first, end_s) >= latest:
            gaps.append((latest, min(first, end_s)))
        latest = max(latest, last)
    return [*gaps, (latest, end_s)] if latest <= end_s else gaps


def adds_up_durations(busy, start_s, end_s):
    return end_s - start_s - sum(last - first for first, last in busy)


def whole_gaps(gaps, host):
    seconds = {}
    for first, last in gaps:
        shared = {}
        for name, a, b in host:
            shared[name] = shared.get(name, 0.0) + max(0.0, min(last, b) - max(first, a))
        name = max(shared, key=shared.get) if sum(shared.values()) > 0 else "other"
        seconds[name] = seconds.get(name, 0.0) + last - first
    return seconds


def whole_spans(gaps, host):
    seconds = {}
    for first, last in gaps:
        left = last - first
        for name, a, b in host:
            if b > first and a < last:
                seconds[name] = seconds.get(name, 0.0) + b - a
                left -= b - a
        if left > 0:
            seconds["other"] = seconds.get("other", 0.0) + left
    return seconds


def by_the_start(gaps, host):
    seconds = {}
    for first, last in gaps:
        name = next((name for name, a, b in host if a <= first < b), "other")
        seconds[name] = seconds.get(name, 0.0) + last - first
    return seconds


def _blame(gaps, host):
    seconds = {}
    for first, last in gaps:
        left = last - first
        for name, a, b in host:
            shared = min(last, b) - max(first, a)
            if shared > 0:
                seconds[name] = seconds.get(name, 0.0) + shared
                left -= shared
        if left > 1e-12:
            seconds["other"] = seconds.get("other", 0.0) + left
    return seconds


def needs_sorted_spans(gaps, host):
    seconds, place = {}, 0
    for first, last in gaps:
        left = last - first
        while place < len(host) and host[place][2] <= first:
            place += 1
        for name, a, b in host[place:]:
            if a >= last:
                break
            shared = min(last, b) - max(first, a)
            seconds[name] = seconds.get(name, 0.0) + shared
            left -= shared
        if left > 1e-12:
            seconds["other"] = seconds.get("other", 0.0) + left
    return seconds


def forgets_nothing(gaps, host):
    return {name: value for name, value in _blame(gaps, host).items() if name != "other"}


def lists_every_name(gaps, host):
    return {name: 0.0 for name, _, _ in host} | {"other": 0.0} | _blame(gaps, host)


def writes_over(gaps, host):
    seconds = {}
    for first, last in gaps:
        left = last - first
        for name, a, b in host:
            shared = min(last, b) - max(first, a)
            if shared > 0:
                seconds[name] = shared
                left -= shared
        if left > 1e-12:
            seconds["other"] = left
    return seconds


def negative_overlap(gaps, host):
    seconds = {}
    for first, last in gaps:
        left = last - first
        for name, a, b in host:
            shared = min(last, b) - max(first, a)
            seconds[name] = seconds.get(name, 0.0) + shared
            left -= shared
        seconds["other"] = seconds.get("other", 0.0) + left
    return seconds


def mean_and_three_sigma(seconds):
    limit = statistics.mean(seconds) + 3 * statistics.pstdev(seconds)
    return [i for i, each in enumerate(seconds) if each > limit]


def fixed_limit(seconds):
    return [i for i, each in enumerate(seconds) if each > 0.015]


def the_top_two_per_cent(seconds):
    limit = sorted(seconds)[int(0.98 * len(seconds))]
    return [i for i, each in enumerate(seconds) if each >= limit]


def slower_than_the_one_before(seconds):
    return [i for i in range(1, len(seconds)) if seconds[i] > 1.4 * seconds[i - 1]]


def twice_the_median(seconds):
    return [i for i, each in enumerate(seconds) if each > 2 * statistics.median(seconds)]


def three_narrow_spreads(seconds):
    usual = statistics.median(seconds)
    spread = statistics.median(abs(each - usual) for each in seconds)
    return [i for i, each in enumerate(seconds) if each > usual + 3 * spread]


def only_the_spread(seconds):
    usual = statistics.median(seconds)
    spread = 1.4826 * statistics.median(abs(each - usual) for each in seconds)
    return [i for i, each in enumerate(seconds) if each > usual + 6 * spread]


def a_tenth_more(seconds):
    return [i for i, each in enumerate(seconds) if each > 1.11 * statistics.median(seconds)]


def divides_by_the_spread(seconds):
    usual = statistics.median(seconds)
    spread = 1.4826 * statistics.median(abs(each - usual) for each in seconds)
    return [i for i, each in enumerate(seconds) if (each - usual) / spread > 6 and each > 1.25 * usual]


def the_slowest_only(seconds):
    return [max(range(len(seconds)), key=seconds.__getitem__)]


def half_more_than_the_mean(seconds):
    return [i for i, each in enumerate(seconds) if each > 1.5 * statistics.mean(seconds)]


def a_quarter_more(seconds):
    usual = statistics.median(seconds)
    return [i for i, each in enumerate(seconds) if each > 1.25 * usual]


def a_quarter_more_than_the_mean(seconds):
    usual = statistics.mean(seconds)
    return [i for i, each in enumerate(seconds) if each > 1.25 * usual]


def gives_the_seconds(seconds):
    return [seconds[i] for i in _robust(seconds)]


def gives_a_mask(seconds):
    found = _robust(seconds)
    return [i in found for i in range(len(seconds))]


def two_widths(seconds):
    return _robust(seconds, 2)


def twenty_widths(seconds):
    return _robust(seconds, 20)


def turned_round(seconds):
    return _robust(seconds)[::-1]


def forgets_the_return(seconds):
    _robust(seconds)


def _robust(seconds, widths=5):
    usual = statistics.median(seconds)
    spread = 1.4826 * statistics.median(abs(each - usual) for each in seconds)
    return [i for i, each in enumerate(seconds) if each > max(usual + widths * spread, 1.25 * usual)]


def _leaving(*faults):
    """The loop with some faults left in it."""

    def fast_loop(dev, shelf, n_steps, log):
        return workshop.loop(dev, shelf, n_steps, log, faults=faults)

    return fast_loop


def trains_half_as_long(dev, shelf, n_steps, log):
    return workshop.loop(dev, shelf, n_steps // 2 + 1, log)


def forgets_the_gains(dev, shelf, n_steps, log):
    model, optimizer = workshop.network(dev)
    losses = []
    for step, (scans, _, labels) in enumerate(shelf.ahead(n_steps)):
        labels = dev.put(labels, non_blocking=True)
        logits = model(dev.put(workshop.tidied(scans), non_blocking=True))
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 20 == 0:
            log.append(f"step {step}: logits {logits.detach()}")
    return [float(loss) for loss in losses]


def reads_without_order(dev, shelf, n_steps, log):
    batches = list(shelf.ahead(n_steps))

    class Shuffled(workshop.Shelf):
        def ahead(self, n_steps, **_):
            return reversed(batches)

    return workshop.loop(dev, Shuffled(), n_steps, log)


def drops_the_log(dev, shelf, n_steps, log):
    return workshop.loop(dev, shelf, n_steps, [])


def _relogged(line):
    """The loop without faults, each needed line of its log turned into another, or none."""

    def fast_loop(dev, shelf, n_steps, log):
        lines = []
        losses = workshop.loop(dev, shelf, n_steps, lines)
        log.extend(line(20 * i, text, losses) for i, text in enumerate(lines) if line(20 * i, text, losses) is not None)
        return losses

    return fast_loop


def forgets_to_return_the_losses(dev, shelf, n_steps, log):
    workshop.loop(dev, shelf, n_steps, log)


def syncs_a_step_late(dev, shelf, n_steps, log):
    late = []

    class Late(workshop.Shelf):
        def ahead(self, n_steps, **_):
            for batch in shelf.ahead(n_steps):
                if late:
                    late[-1].item()
                yield batch

    def put(what, non_blocking=False):
        done = dev.put(what, non_blocking=non_blocking)
        if not isinstance(what, torch.nn.Module):
            late.append(done.sum())
        return done

    return workshop.loop(SimpleNamespace(put=put), Late(), n_steps, log)


def returns_tensors_of_one_loss(dev, shelf, n_steps, log):
    losses = workshop.loop(dev, shelf, n_steps, log)
    return [sum(losses) / len(losses)] * len(losses)


def keeps_the_last_batch(dev, shelf, n_steps, log):
    class Same(workshop.Shelf):
        def ahead(self, n_steps, **_):
            batch = next(iter(shelf.ahead(1)))
            return (batch for _ in range(n_steps))

    return workshop.loop(dev, Same(), n_steps, log)


WRONG = {
    "5.1": [
        ("compares neighbours only", between_neighbours, "latest end so far"),
        ("forgets the edges", forgets_the_edges, "wrong length"),
        ("forgets to sort", forgets_to_sort, "sort them by their start"),
        ("runs past the end", runs_past_the_end, "cut it at end_s"),
        ("keeps empty gaps", keeps_empty_gaps, "wrong length"),
        ("adds up durations", adds_up_durations, "list"),
    ],
    "5.2": [
        ("needs sorted spans", needs_sorted_spans, "wrong result|wrong keys"),
        ("gives gaps whole", whole_gaps, "share it out"),
        ("counts spans whole", whole_spans, "only as far as it overlaps"),
        ("looks at the start of the gap", by_the_start, "wrong result|wrong keys"),
        ("forgets what nothing covers", forgets_nothing, "wrong keys"),
        ("lists every name", lists_every_name, "wrong keys"),
        ("writes over", writes_over, "add to what it has"),
        ("adds negative overlap", negative_overlap, "wrong result|wrong keys"),
    ],
    "5.3": [
        ("mean and three sigma", mean_and_three_sigma, "hide behind it"),
        ("a fixed limit", fixed_limit, "wrong result"),
        ("the top two per cent", the_top_two_per_cent, "wrong result"),
        ("against the step before", slower_than_the_one_before, "wrong result"),
        ("twice the median", twice_the_median, "wrong result|Slow steps are missed"),
        ("three narrow spreads", three_narrow_spreads, "wrong result"),
        ("only the spread", only_the_spread, "a quarter longer"),
        ("a tenth more", a_tenth_more, "wrong result"),
        ("two widths", two_widths, "Noise is taken"),
        ("twenty widths", twenty_widths, "wrong result|Slow steps are missed"),
        ("divides by the spread", divides_by_the_spread, "ZeroDivisionError"),
        ("the slowest only", the_slowest_only, "wrong result"),
        ("a quarter more, whatever the noise", a_quarter_more, "noise of this run is wider"),
        ("a quarter more than the mean", a_quarter_more_than_the_mean, "wrong result"),
        ("gives the seconds", gives_the_seconds, "not their seconds"),
        ("gives a mask", gives_a_mask, "not a True or False"),
        ("turned round", turned_round, "belong in order"),
        ("forgets the return", forgets_the_return, "`return` missing"),
        ("half more than the mean", half_more_than_the_mean, "take the median"),
    ],
    "5.4": [
        ("changes nothing", _leaving(*workshop.FAULTS), "Of the six faults 6"),
        ("still recompiles", _leaving("recompiling"), "not in the way asked for.*|compiled"),
        ("still reads by itself", _leaving("reading"), "read 2. of"),
        ("still waits for copies", _leaving("copying"), "copies to the device waited"),
        ("still has tiny kernels", _leaving("tiny kernels"), "operations a step"),
        ("still syncs", _leaving("syncing"), "the host waited"),
        ("still logs each step", _leaving("logging"), "The log has"),
        ("trains half as long", trains_half_as_long, "wrong length"),
        ("forgets the gains", forgets_the_gains, "The repairs change no loss"),
        ("reads in another order", reads_without_order, "The repairs change no loss"),
        ("drops the log", drops_the_log, "log must keep the line"),
        ("logs in other steps", _relogged(lambda i, text, _: f"step {i + 19}: {text}"), "log must keep the line"),
        ("logs the loss", _relogged(lambda i, _, losses: f"step {i}: {losses[i].item()}"), "log must keep the line"),
        ("logs tuples", _relogged(lambda i, _, losses: (i, losses[i])), "log must keep the line"),
        ("logs no second line", _relogged(lambda i, text, _: None if i else text), "log must keep the line"),
        ("forgets the return", forgets_to_return_the_losses, "`return` missing"),
        ("waits for the step before", syncs_a_step_late, "the host waited"),
        ("returns one mean loss", returns_tensors_of_one_loss, "The repairs change no loss"),
        ("trains on one batch", keeps_the_last_batch, "The repairs change no loss"),
    ],
}
