"""Right answers to lesson 05's exercises that are written in another way than the course's own: each must pass."""

import statistics
import warnings

import pytest
import torch
from torch.nn import functional

from labkit import workshop
from labkit.checker import find, generator_for, verdict


def merges_what_touches(busy, start_s, end_s):
    merged = []
    for first, last in sorted((max(a, start_s), min(b, end_s)) for a, b in busy if b > start_s and a < end_s):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    edges = [start_s, *(edge for pair in merged for edge in pair), end_s]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def sorts_the_host(gaps, host):
    seconds = {}
    for gap_start, gap_end in gaps:
        reached = gap_start
        for name, first, last in sorted(host, key=lambda each: each[1]):
            if last > reached and first < gap_end:
                seconds["other"] = seconds.get("other", 0.0) + max(0.0, first - reached)
                seconds[name] = seconds.get(name, 0.0) + min(last, gap_end) - max(first, reached)
                reached = min(last, gap_end)
        seconds["other"] = seconds.get("other", 0.0) + gap_end - reached
    return {name: value for name, value in seconds.items() if value > 1e-9}


def _robust(widths, factor=1.4826):
    """The rule with a limit of so many spreads, as a tensor of numbers."""

    def slow_steps(seconds):
        usual = statistics.median(seconds)
        spread = factor * statistics.median([abs(each - usual) for each in seconds])
        limit = max(usual + widths * spread, 1.25 * usual)
        return torch.tensor([i for i, each in enumerate(seconds) if each > limit], dtype=torch.int64)

    return slow_steps


def _loop(dev, shelf, n_steps, log, keep, finish):
    """A loop without faults that keeps each loss as `keep` says; `finish` makes the answer of them."""
    model, optimizer = workshop.network(dev)
    losses = []
    for step, (scans, gains, labels) in enumerate(shelf.ahead(n_steps, workers=4)):
        gains, labels = dev.put(gains, non_blocking=True), dev.put(labels, non_blocking=True)
        pictures = dev.put(workshop.tidied(scans), non_blocking=True)
        pictures = (gains[:, None, None, None] * pictures + 0.1).clamp(-2, 2)
        logits = model(pictures)
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(keep(loss))
        if step % 20 == 0:
            log.append(f"step {step}: {logits[:8].detach().cpu()}")
    return finish(losses)


WAYS = {
    "numbers after the last step": (torch.Tensor.detach, lambda losses: [loss.item() for loss in losses]),
    "floats after the last step": (torch.Tensor.detach, lambda losses: [float(loss) for loss in losses]),
    "one list": (torch.Tensor.detach, lambda losses: torch.stack(losses).tolist()),
    "one tensor": (torch.Tensor.detach, torch.stack),
    "losses on their graphs": (lambda loss: loss, list),
}


def _fast_loop(way):
    def fast_loop(dev, shelf, n_steps, log):
        return _loop(dev, shelf, n_steps, log, *WAYS[way])

    return fast_loop


def _logs_at_the_end(dev, shelf, n_steps, log):
    kept = []
    losses = workshop.loop(dev, shelf, n_steps, kept)
    log.extend(kept)
    return losses


RIGHT = [
    ("idle_gaps", "merges what touches", merges_what_touches),
    ("blame", "sorts the host", sorts_the_host),
    ("slow_steps", "four widths", _robust(4)),
    ("slow_steps", "six widths", _robust(6)),
    ("slow_steps", "eight median distances", _robust(8, 1)),
    ("fast_loop", "logs at the end", _logs_at_the_end),
    *(("fast_loop", way, _fast_loop(way)) for way in WAYS),
]


@pytest.mark.parametrize(("name", "fn"), [pytest.param(n, fn, id=f"{n}-{what}") for n, what, fn in RIGHT])
def test_another_right_answer_passes(name, fn, monkeypatch):
    monkeypatch.setenv("LABKIT_BUDGET", "smoke")  # the bar times what is alike in all of these
    exercise = find(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in (0, 1):
            found = verdict(fn, exercise, generator=generator_for(exercise, seed), time_limit_s=60.0)
            assert found.status == "passed", found.message
