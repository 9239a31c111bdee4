"""Wrong answers that learners of lesson 21 would give, each with a part of the message that must meet it."""

import bisect
import math
import statistics

import torch
from torch.nn import functional as F


def no_scale(pictures, angle, scale, right, down):
    matrix = torch.stack([angle.cos(), -angle.sin(), right, angle.sin(), angle.cos(), down], 1).view(-1, 2, 3)
    grid = torch.nn.functional.affine_grid(matrix, list(pictures.shape), align_corners=False)
    return torch.nn.functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def loop_and_cat(pictures, angle, scale, right, down):
    done = []
    for i, picture in enumerate(pictures):
        cos, sin = math.cos(angle[i]) * scale[i], math.sin(angle[i]) * scale[i]
        matrix = torch.tensor([[[cos, -sin, right[i]], [sin, cos, down[i]]]])
        grid = F.affine_grid(matrix, (1, *picture.shape), align_corners=False)
        done.append(F.grid_sample(picture[None], grid, padding_mode="border", align_corners=False))
    return torch.cat(done)


def loop_and_stack(pictures, angle, scale, right, down):
    done = []
    for picture, a, s, r, d in zip(pictures, angle, scale, right, down, strict=True):
        matrix = torch.stack([a.cos() * s, -a.sin() * s, r, a.sin() * s, a.cos() * s, d]).view(1, 2, 3)
        grid = F.affine_grid(matrix, (1, *picture.shape), align_corners=False)
        done.append(F.grid_sample(picture[None], grid, padding_mode="border", align_corners=False)[0])
    return torch.stack(done)


def matrices_one_by_one(pictures, angle, scale, right, down):
    """Samples in one call, yet makes the matrices in a loop."""
    matrix = torch.zeros(len(pictures), 2, 3)
    for i in range(len(pictures)):
        cos, sin = angle[i].cos() * scale[i], angle[i].sin() * scale[i]
        matrix[i] = torch.stack([cos, -sin, right[i], sin, cos, down[i]]).view(2, 3)
    grid = F.affine_grid(matrix, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def numbers_taken_out(pictures, angle, scale, right, down):
    """Asks for each number by itself: a wait for each, on a GPU."""
    rows = []
    for a, s, r, d in zip(angle, scale, right, down, strict=True):
        cos, sin = math.cos(a.item()) * s.item(), math.sin(a.item()) * s.item()
        rows.append([[cos, -sin, r.item()], [sin, cos, d.item()]])
    grid = F.affine_grid(torch.tensor(rows), list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def mapped(pictures, *numbers):
    """torch.vmap has a loop of its own where it cannot map: it warns, and goes through the pictures."""

    def one(picture, angle, scale, right, down):
        cos, sin = angle.cos() * scale, angle.sin() * scale
        matrix = torch.stack([cos, -sin, right, sin, cos, down]).view(1, 2, 3)
        grid = F.affine_grid(matrix, [1, *picture.shape], align_corners=False)
        return F.grid_sample(picture[None], grid, padding_mode="border", align_corners=False)[0]

    return torch.vmap(one)(pictures, *numbers)


def four_at_a_time(pictures, angle, scale, right, down):
    numbers = zip(*(each.split(4) for each in (pictures, angle, scale, right, down)), strict=True)
    return torch.cat([_sampled(part, _matrix(*rest)) for part, *rest in numbers])


def _matrix(angle, scale, right, down):
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3)


def _sampled(pictures, matrix, of_grid=False, size=None, **how):
    grid = F.affine_grid(matrix, size or list(pictures.shape), align_corners=of_grid)
    return F.grid_sample(pictures, grid, **{"padding_mode": "border", "align_corners": False} | how)


def the_mean_angle(pictures, angle, scale, right, down):
    return _sampled(pictures, _matrix(angle.mean().expand_as(angle), scale, right, down))


def one_matrix(pictures, angle, scale, right, down):
    matrix = _matrix(*(each.mean().view(1) for each in (angle, scale, right, down)))
    return _sampled(pictures, matrix.expand(len(pictures), 2, 3))


def the_first_matrix(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers)[:1].expand(len(pictures), 2, 3))


def transposed(pictures, angle, scale, right, down):
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return _sampled(pictures, torch.stack([cos, sin, right, -sin, cos, down], 1).view(-1, 2, 3))


def rows_for_columns(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers).view(-1, 3, 2).transpose(1, 2))


def scale_divides(pictures, angle, scale, right, down):
    return _sampled(pictures, _matrix(angle, 1 / scale, right, down))


def scale_for_cos_only(pictures, angle, scale, right, down):
    cos, sin = angle.cos() * scale, angle.sin()
    return _sampled(pictures, torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3))


def scales_all(pictures, angle, scale, right, down):
    return _sampled(pictures, _matrix(angle, torch.ones_like(scale), right, down) * scale.view(-1, 1, 1))


def exchanged(pictures, angle, scale, right, down):
    return _sampled(pictures, _matrix(angle, scale, down, right))


def no_shift(pictures, angle, scale, right, down):
    return _sampled(pictures, _matrix(angle, scale, torch.zeros_like(right), torch.zeros_like(down)))


def zeros_outside(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers), padding_mode="zeros")


def corners(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers), True, align_corners=True)


def corners_of_the_grid(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers), True)


def corners_of_the_sample(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers), align_corners=True)


def nearest(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers), mode="nearest")


def keeps_the_noise(pictures, *numbers):
    done = _sampled(pictures, _matrix(*numbers))
    return done + 0.1 * torch.randn_like(done)


def in_place(pictures, *numbers):
    return pictures.copy_(_sampled(pictures, _matrix(*numbers)))


def angles_in_place(pictures, angle, scale, right, down):
    sin = angle.sin() * scale
    cos = angle.cos_().mul_(scale)
    return _sampled(pictures, torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3))


def without_a_channel(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers)).squeeze(1)


def always_48(pictures, *numbers):
    return _sampled(pictures, _matrix(*numbers), size=[len(pictures), 1, 48, 48])


def width_first(pictures, *numbers):
    n, _, height, width = pictures.shape
    return _sampled(pictures, _matrix(*numbers), size=[n, 1, width, height])


def rows_stacked_aside(pictures, *numbers):
    """Stacks along the first dimension: numbers of one picture end up in the matrices of others."""
    return _sampled(pictures, _matrix(*numbers).view(-1, 6).T.reshape(-1, 2, 3))


def mean_of_factors(seconds, factors, epochs_before, epochs_after):
    return sum(factors.values()) / len(factors)


def mean_of_all_factors(seconds, factors, epochs_before, epochs_after):
    return statistics.mean(factors.get(part, 1.0) for part in seconds) * epochs_before / epochs_after


def weighed(seconds, factors, epochs_before, epochs_after):
    total = sum(seconds.values())
    return sum(s / total * factors.get(part, 1.0) for part, s in seconds.items()) * epochs_before / epochs_after


def weighed_named(seconds, factors, epochs_before, epochs_after):
    total = sum(seconds[part] for part in factors)
    return sum(seconds[part] * factor for part, factor in factors.items()) / total


def product(seconds, factors, epochs_before, epochs_after):
    return math.prod(factors.values()) * epochs_before / epochs_after


def amdahl_for_each(seconds, factors, epochs_before, epochs_after):
    total, faster = sum(seconds.values()), epochs_before / epochs_after
    for part, factor in factors.items():
        share = seconds[part] / total
        faster *= 1 / (1 - share + share / factor)
    return faster


def harmonic(seconds, factors, epochs_before, epochs_after):
    every = [factors.get(part, 1.0) for part in seconds]
    return len(every) / sum(1 / factor for factor in every) * epochs_before / epochs_after


def harmonic_named(seconds, factors, epochs_before, epochs_after):
    return statistics.harmonic_mean(list(factors.values()))


def geometric(seconds, factors, epochs_before, epochs_after):
    return statistics.geometric_mean([factors.get(part, 1.0) for part in seconds])


def named_only(seconds, factors, epochs_before, epochs_after):
    before = sum(seconds[part] for part in factors)
    return epochs_before * before / (epochs_after * sum(seconds[part] / factors[part] for part in factors))


def named_after(seconds, factors, epochs_before, epochs_after):
    after = sum(seconds[part] / factor for part, factor in factors.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after)


def all_must_be_named(seconds, factors, epochs_before, epochs_after):
    after = sum(s / factors[part] for part, s in seconds.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after)


def unnamed_is_zero(seconds, factors, epochs_before, epochs_after):
    after = sum(s / factors.get(part, 0) for part, s in seconds.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after)


def _after(seconds, factors):
    return sum(s / factors.get(part, 1) for part, s in seconds.items())


def multiplies(seconds, factors, epochs_before, epochs_after):
    after = sum(s * factors.get(part, 1) for part, s in seconds.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after)


def no_epochs(seconds, factors, epochs_before, epochs_after):
    return sum(seconds.values()) / _after(seconds, factors)


def epochs_upside_down(seconds, factors, epochs_before, epochs_after):
    return epochs_after * sum(seconds.values()) / (epochs_before * _after(seconds, factors))


def all_upside_down(seconds, factors, epochs_before, epochs_after):
    return epochs_after * _after(seconds, factors) / (epochs_before * sum(seconds.values()))


def gives_seconds(seconds, factors, epochs_before, epochs_after):
    return epochs_after * _after(seconds, factors)


def gives_seconds_saved(seconds, factors, epochs_before, epochs_after):
    return epochs_before * sum(seconds.values()) - epochs_after * _after(seconds, factors)


def common_denominator(seconds, factors, epochs_before, epochs_after):
    every = math.prod(factors.values())
    after = sum(s * every / factors.get(part, 1) for part, s in seconds.items()) / every
    return epochs_before * sum(seconds.values()) / (epochs_after * after)


def whole_factors(seconds, factors, epochs_before, epochs_after):
    after = sum(s / round(factors.get(part, 1)) for part, s in seconds.items())
    return epochs_before * sum(seconds.values()) / (epochs_after * after)


def forgets_what_was_there(seconds, factors, epochs_before, epochs_after):
    kept = {part: s for part, s in seconds.items() if factors.get(part, 1) != math.inf}
    return epochs_before * sum(kept.values()) / (epochs_after * _after(kept, factors))


def skips_inf(seconds, factors, epochs_before, epochs_after):
    finite = {part: factor for part, factor in factors.items() if math.isfinite(factor)}
    return epochs_before * sum(seconds.values()) / (epochs_after * _after(seconds, finite))


def _first(log, target):
    return next((seconds for seconds, accuracy in log if accuracy >= target), None)


def _ratios(pairs, target, time_of=_first):
    timed = [(time_of(slow, target), time_of(fast, target)) for slow, fast in pairs]
    return [0.0 if fast is None else slow / fast for slow, fast in timed if slow is not None]


def ends_of_logs(pairs, target):
    return statistics.median([slow[-1][0] / fast[-1][0] for slow, fast in pairs])


def last_at_the_target(pairs, target):
    at = lambda log, target: max((seconds for seconds, accuracy in log if accuracy >= target), default=None)
    return statistics.median(_ratios(pairs, target, at) or [0.0])


def best_accuracy(pairs, target):
    at = lambda log, _: max(log, key=lambda entry: entry[1])[0]
    return statistics.median(_ratios(pairs, target, at) or [0.0])


def beyond_the_target(pairs, target):
    at = lambda log, target: next((seconds for seconds, accuracy in log if accuracy > target), None)
    return statistics.median(_ratios(pairs, target, at) or [0.0])


def searches_in_halves(pairs, target):
    def at(log, target):
        place = bisect.bisect_left(log, target, key=lambda entry: entry[1])
        return log[place][0] if place < len(log) else None

    return statistics.median(_ratios(pairs, target, at) or [0.0])


def stays_there(pairs, target):
    def at(log, target):
        held = (log[i][0] for i in range(len(log)) if all(accuracy >= target for _, accuracy in log[i:]))
        return next(held, None)

    return statistics.median(_ratios(pairs, target, at) or [0.0])


def counts_epochs(pairs, target):
    at = lambda log, target: next((i + 1 for i, (_, accuracy) in enumerate(log) if accuracy >= target), None)
    return statistics.median(_ratios(pairs, target, at) or [0.0])


def counts_from_zero(pairs, target):
    at = lambda log, target: next((i for i, (_, accuracy) in enumerate(log) if accuracy >= target), None)
    return statistics.median(_ratios(pairs, target, at) or [0.0])


def fast_by_slow(pairs, target):
    timed = [(_first(slow, target), _first(fast, target)) for slow, fast in pairs]
    ratios = [0.0 if fast is None else fast / slow for slow, fast in timed if slow is not None]
    return statistics.median(ratios) if ratios else 0.0


def mean_ratio(pairs, target):
    return statistics.mean(_ratios(pairs, target) or [0.0])


def lower_median(pairs, target):
    return float(torch.tensor(_ratios(pairs, target) or [0.0], dtype=torch.float64).median())


def upper_median(pairs, target):
    ratios = sorted(_ratios(pairs, target))
    return ratios[len(ratios) // 2] if ratios else 0.0


def medians_of_times(pairs, target):
    slow = [t for log, _ in pairs if (t := _first(log, target)) is not None]
    fast = [t for _, log in pairs if (t := _first(log, target)) is not None]
    return statistics.median(slow) / statistics.median(fast)


def totals(pairs, target):
    return sum(_first(slow, target) for slow, _ in pairs) / sum(_first(fast, target) for _, fast in pairs)


def survivors(pairs, target):
    timed = [(_first(slow, target), _first(fast, target)) for slow, fast in pairs]
    ratios = [slow / fast for slow, fast in timed if slow is not None and fast is not None]
    return statistics.median(ratios) if ratios else 0.0


def slow_is_zero(pairs, target):
    timed = [(_first(slow, target), _first(fast, target)) for slow, fast in pairs]
    return statistics.median([slow / fast if slow and fast else 0.0 for slow, fast in timed] or [0.0])


def until_it_ended(pairs, target):
    at = lambda log, target: _first(log, target) or log[-1][0]
    return statistics.median(_ratios(pairs, target, at) or [0.0])


def slow_until_it_ended(pairs, target):
    timed = [(_first(slow, target) or slow[-1][0], _first(fast, target)) for slow, fast in pairs]
    return statistics.median([slow / fast if fast else 0.0 for slow, fast in timed] or [0.0])


def knows_no_failure(pairs, target):
    reached = lambda log: next(seconds for seconds, accuracy in log if accuracy >= target)
    return statistics.median([reached(slow) / reached(fast) for slow, fast in pairs])


def knows_no_empty_list(pairs, target):
    return statistics.median(_ratios(pairs, target))


def gives_all_ratios(pairs, target):
    return _ratios(pairs, target)


WRONG = {
    "21.1": [
        ("no scale", no_scale, "The scale is missing"),
        ("loops and concatenates", loop_and_cat, "not in the way asked for(.|\n)*for 4 pictures: \\d+, for 16: \\d+"),
        ("loops and stacks", loop_and_stack, "not in the way asked for(.|\n)*One call\\s+for all"),
        ("matrices one by one", matrices_one_by_one, "not in the way asked for(.|\n)*all matrices at once"),
        ("numbers taken out", numbers_taken_out, "not in the way asked for"),
        ("mapped", mapped, "not in the way asked for(.|\n)*in torch.vmap"),
        ("four at a time", four_at_a_time, "not in the way asked for"),
        ("the mean angle", the_mean_angle, "One angle for all"),
        ("one matrix", one_matrix, "One set of numbers for all"),
        ("the first matrix", the_first_matrix, "The first picture's numbers for all"),
        ("transposed", transposed, "The minus belongs to the sine in the first row"),
        ("rows for columns", rows_for_columns, "do matrix, grid and sampling"),
        ("the scale divides", scale_divides, "here it divides"),
        ("the scale for cos only", scale_for_cos_only, "multiplies both cos and sin"),
        ("scales all", scales_all, "the shift stays as it is"),
        ("right and down exchanged", exchanged, "right and down are exchanged"),
        ("no shift", no_shift, "The shift is missing"),
        ("zeros outside", zeros_outside, "padding_mode"),
        ("corners", corners, "align_corners=False, in affine_grid and in grid_sample"),
        ("corners of the grid", corners_of_the_grid, "the two must agree"),
        ("corners of the sample", corners_of_the_sample, "the two must agree"),
        ("the nearest pixel", nearest, "The nearest pixel alone"),
        ("keeps the noise", keeps_the_noise, "Leave the noise out"),
        ("in place", in_place, "changes its input pictures|operation in place: pictures"),
        ("angles in place", angles_in_place, "changes its input angle|operation in place: angle"),
        ("without a channel", without_a_channel, "wrong shape(.|\n)*Return one channel"),
        ("always 48", always_48, "wrong shape(.|\n)*from pictures.shape"),
        ("width first", width_first, "wrong shape(.|\n)*Height comes before width"),
        ("stacked aside", rows_stacked_aside, "do matrix, grid and sampling"),
    ],
    "21.2": [
        ("mean of the factors", mean_of_factors, "A mean of factors knows nothing"),
        ("mean of all factors", mean_of_all_factors, "A mean of factors knows nothing"),
        ("weighed", weighed, "Weighed by the seconds before"),
        ("weighed, those named", weighed_named, "Weighed by the seconds before"),
        ("product", product, "Factors do not multiply"),
        ("Amdahl for each", amdahl_for_each, "Factors do not multiply"),
        ("harmonic", harmonic, "A harmonic mean, but"),
        ("harmonic, those named", harmonic_named, "A harmonic mean, but"),
        ("geometric", geometric, "A mean of factors knows nothing"),
        ("those named only", named_only, "A part without a factor still takes its time"),
        ("those named after", named_after, "A part without a factor still takes its time"),
        ("all must be named", all_must_be_named, "KeyError"),
        ("not named is zero", unnamed_is_zero, "ZeroDivisionError"),
        ("multiplies", multiplies, "divide by the factor"),
        ("no epochs", no_epochs, "The epochs are missing"),
        ("epochs upside down", epochs_upside_down, "The epochs are upside down"),
        ("all upside down", all_upside_down, "Turned round"),
        ("seconds", gives_seconds, "These are seconds"),
        ("seconds saved", gives_seconds_saved, "These are seconds"),
        ("a common denominator", common_denominator, "NaN in the result(.|\n)*inf / inf is NaN"),
        ("whole factors", whole_factors, "OverflowError|How many seconds does the run take"),
        ("forgets what was there", forgets_what_was_there, "A part that is gone took its time before"),
        ("skips inf", skips_inf, "Here it runs on as before"),
    ],
    "21.3": [
        ("ends of logs", ends_of_logs, "A run is done at its first entry"),
        ("last at the target", last_at_the_target, "A run is done at its first entry"),
        ("the best accuracy", best_accuracy, "the time of the best accuracy"),
        ("beyond the target", beyond_the_target, "Exactly the target is enough"),
        ("searches in halves", searches_in_halves, "Accuracies go up and down"),
        ("stays there", stays_there, "Accuracies go up and down"),
        ("counts epochs", counts_epochs, "These are epochs"),
        ("counts epochs from zero", counts_from_zero, "when did each run first have the target"),
        ("fast by slow", fast_by_slow, "Turned round"),
        ("the mean", mean_ratio, "The mean follows one lucky pair"),
        ("the lower median", lower_median, "the mean of the two in the middle"),
        ("the upper median", upper_median, "the mean of the two in the middle"),
        ("medians of times", medians_of_times, "First the ratio of each pair"),
        ("totals", totals, "First the ratio of each pair"),
        ("survivors", survivors, "Survivors only"),
        ("a slow run that fails is zero", slow_is_zero, "it is no 0"),
        ("until it ended", until_it_ended, "The pair of a fast run that fails is 0"),
        ("slow until it ended", slow_until_it_ended, "The pair of a slow run that fails is left out"),
        ("knows no failure", knows_no_failure, "StopIteration|raised RuntimeError"),
        ("knows no empty list", knows_no_empty_list, "StatisticsError"),
        ("all ratios", gives_all_ratios, "wrong type"),
    ],
}
