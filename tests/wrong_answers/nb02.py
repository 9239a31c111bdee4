"""Wrong answers that learners of lesson 02 would give, each with a part of the message that must meet it."""

import math

from torch.nn import functional


def divides_by_zero(n_epochs, small, full, n_last, multiple):
    step = (full - small) / (n_epochs - n_last)
    growing = [int(small + step * epoch) // multiple * multiple for epoch in range(n_epochs - n_last)]
    return growing + [full] * n_last


def reaches_full_too_soon(n_epochs, small, full, n_last, multiple):
    n = n_epochs - n_last
    sizes = [small + (full - small) * epoch // max(1, n - 1) for epoch in range(n)]
    return [size // multiple * multiple for size in sizes] + [full] * n_last


def never_ends_full(n_epochs, small, full, n_last, multiple):
    sizes = [small + (full - small) * epoch // n_epochs for epoch in range(n_epochs)]
    return [size // multiple * multiple for size in sizes]


def rounds_the_full_size(n_epochs, small, full, n_last, multiple):
    n = n_epochs - n_last
    sizes = [small + (full - small) * epoch // n for epoch in range(n)] + [full] * n_last
    return [size // multiple * multiple for size in sizes]


def forgets_to_round(n_epochs, small, full, n_last, multiple):
    n = n_epochs - n_last
    return [small + (full - small) * epoch // n for epoch in range(n)] + [full] * n_last


def rounds_the_growth_only(n_epochs, small, full, n_last, multiple):
    n = n_epochs - n_last
    sizes = [small + (full - small) * epoch // n // multiple * multiple for epoch in range(n)]
    return sizes + [full] * n_last


def rounds_to_nearest(n_epochs, small, full, n_last, multiple):
    n = n_epochs - n_last
    sizes = [small + (full - small) * epoch // n for epoch in range(n)]
    return [round(size / multiple) * multiple for size in sizes] + [full] * n_last


def yields_the_sizes(n_epochs, small, full, n_last, multiple):
    yield from rounds_the_full_size(n_epochs, small, full, n_last, multiple)


def _flops(convs, head, side_of, *, per_add=2, passes=3, spared=1):
    forward = [per_add * i * o * kernel**2 * side_of(shrink) ** 2 for i, o, kernel, shrink in convs]
    return passes * (sum(forward) + per_add * head[0] * head[1]) - spared * forward[0]


def forward_only(convs, head, size):
    return _flops(convs, head, lambda shrink: math.ceil(size / shrink), passes=1, spared=0)


def a_gradient_for_the_picture(convs, head, size):
    return _flops(convs, head, lambda shrink: math.ceil(size / shrink), spared=0)


def one_flop_a_multiply_add(convs, head, size):
    return _flops(convs, head, lambda shrink: math.ceil(size / shrink), per_add=1)


def rounds_sides_down(convs, head, size):
    return _flops(convs, head, lambda shrink: size // shrink)


def every_layer_at_full_size(convs, head, size):
    return _flops(convs, head, lambda _shrink: size)


def forgets_the_head(convs, head, size):
    return _flops(convs, (0, 0), lambda shrink: math.ceil(size / shrink))


def all_full(loader, n_epochs):
    for _ in range(n_epochs):
        yield from loader.epoch(loader.full)


def ends_small(loader, n_epochs):
    for epoch in range(n_epochs):
        yield from loader.epoch(16 if epoch < n_epochs // 2 else 24)


def spends_everything_small(loader, n_epochs):
    for _ in range(n_epochs):
        yield from loader.epoch(loader.full // 2)


def resizes_after_the_loader(loader, n_epochs):
    for epoch in range(n_epochs):
        size = 16 if epoch < n_epochs // 2 else loader.full
        for pictures, labels in loader.epoch(loader.full):
            yield functional.interpolate(pictures, size=(size, size), mode="area"), labels


def shrinks_again_and_again(loader, n_epochs):
    for epoch in range(n_epochs):
        yield from loader.epoch(loader.full if epoch % 2 else 16)


def trains_less(loader, n_epochs):
    for epoch in range(n_epochs // 2):
        yield from loader.epoch(loader.full // 2 if epoch < n_epochs // 4 else loader.full)


def hands_on_epochs_instead_of_batches(loader, n_epochs):
    return [loader.epoch(loader.full) for _ in range(n_epochs)]


def shrinks_from_row_to_row(convs, head, size):
    side, total, first = size, 0, None
    for c_in, c_out, kernel, shrink in convs:
        side = -(-side // shrink)
        flops = 2 * c_in * c_out * kernel**2 * side**2
        first = flops if first is None else first
        total += flops
    return 3 * (total + 2 * head[0] * head[1]) - first


def head_forward_only(convs, head, size):
    forward = [2 * c_in * c_out * kernel**2 * (-(-size // shrink)) ** 2 for c_in, c_out, kernel, shrink in convs]
    return 3 * sum(forward) - forward[0] + 2 * head[0] * head[1]


WRONG = {
    "2.1": [
        ("divides by zero", divides_by_zero, "ZeroDivisionError"),
        ("reaches full too soon", reaches_full_too_soon, "divide by the number of growing epochs"),
        ("never ends full", never_ends_full, "wrong result"),
        ("rounds the full size", rounds_the_full_size, "keep the full size as it is"),
        ("forgets to round", forgets_to_round, "wrong result"),
        ("rounds to the nearest", rounds_to_nearest, "round down"),
        ("rounds the growth only", rounds_the_growth_only, "and not the sum"),
        ("yields instead of returning", yields_the_sizes, "list"),
    ],
    "2.2": [
        ("forward only", forward_only, "the way forward only"),
        ("a gradient for the picture", a_gradient_for_the_picture, "the gradient of a picture"),
        ("one FLOP a multiply-add", one_flop_a_multiply_add, "2 times too small"),
        ("sides rounded down", rounds_sides_down, "A side is rounded up"),
        ("shrinks from row to row", shrinks_from_row_to_row, "not from the row before"),
        ("the head has no way back", head_forward_only, "The head has a way back"),
        ("every layer at full size", every_layer_at_full_size, "Add up"),
        ("the head is forgotten", forgets_the_head, "Add up"),
    ],
    "2.3": [
        ("all full", all_full, "times as fast as full size throughout"),
        ("ends small", ends_small, "does not learn enough at the size"),
        ("everything small", spends_everything_small, "does not learn enough at the size"),
        ("resizes after the loader", resizes_after_the_loader, "saves none of the loader's work"),
        ("shrinks again and again", shrinks_again_and_again, "once a phase is enough"),
        ("trains less", trains_less, "Every picture once an epoch"),
        ("epochs instead of batches", hands_on_epochs_instead_of_batches, "raised"),
    ],
}
