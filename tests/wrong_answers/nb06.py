"""Wrong answers that learners of lesson 06 would give, each with a part of the message that must meet it."""

import torch


def reads_twice(steps, returned, sizes, itemsize):
    eager = sum(sizes[made] + sum(sizes[name] for name in read) for made, read in steps)
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    return eager * itemsize, sum(sizes[name] for name in given | set(returned)) * itemsize


def forgets_writes(steps, returned, sizes, itemsize):
    eager = sum(sizes[name] for _, read in steps for name in set(read))
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    return eager * itemsize, sum(sizes[name] for name in given) * itemsize


def writes_the_last_only(steps, returned, sizes, itemsize):
    eager = sum(sizes[name] for made, read in steps for name in {made, *read})
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    return eager * itemsize, (sum(sizes[name] for name in given) + sizes[steps[-1][0]]) * itemsize


def keeps_what_lies_between(steps, returned, sizes, itemsize):
    eager = sum(sizes[name] for made, read in steps for name in {made, *read})
    read = {name for _, read in steps for name in read}
    return eager * itemsize, sum(sizes[name] for name in read | set(returned)) * itemsize


def one_size_fits_all(steps, returned, sizes, itemsize):
    largest = max(sizes.values()) * itemsize
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    return sum(len({name, *read}) for name, read in steps) * largest, len(given | set(returned)) * largest


def counts_elements(steps, returned, sizes, itemsize):
    eager = sum(sizes[name] for made, read in steps for name in {made, *read})
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    return eager, sum(sizes[name] for name in given | set(returned))


def _seconds(work, machine):
    return max(work[0] / machine["bytes_per_s"], work[1] / machine["flops_per_s"])


def bytes_alone(eager, fused, machine):
    return sum(n_bytes for n_bytes, _ in eager) / fused[0]


def adds_memory_and_arithmetic(eager, fused, machine):
    seconds = lambda work: work[0] / machine["bytes_per_s"] + work[1] / machine["flops_per_s"]
    eager_s = sum(machine["launch_s"] + seconds(work) for work in eager)
    return eager_s / (machine["call_s"] + seconds(fused))


def takes_the_larger_of_totals(eager, fused, machine):
    total = sum(n_bytes for n_bytes, _ in eager), sum(flops for _, flops in eager)
    eager_s = len(eager) * machine["launch_s"] + _seconds(total, machine)
    return eager_s / (machine["call_s"] + _seconds(fused, machine))


def one_launch_for_all(eager, fused, machine):
    eager_s = machine["launch_s"] + sum(_seconds(work, machine) for work in eager)
    return eager_s / (machine["call_s"] + _seconds(fused, machine))


def a_launch_for_the_call(eager, fused, machine):
    eager_s = sum(machine["launch_s"] + _seconds(work, machine) for work in eager)
    return eager_s / (machine["launch_s"] + _seconds(fused, machine))


def fused_over_eager(eager, fused, machine):
    eager_s = sum(machine["launch_s"] + _seconds(work, machine) for work in eager)
    return (machine["call_s"] + _seconds(fused, machine)) / eager_s


def still_branches(x, y):
    h = x * y
    if h.abs().max() > 1:
        h = h / h.abs().max()
    return torch.where(h > 0, h, 0).sum(), h.mean()


def takes_the_number_out(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return h.relu().sum(), h.mean().item()


def selects_by_a_mask(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return h[h > 0].sum(), h.mean()


@torch.compiler.disable
def _noisy(x, y):
    h = x * y
    if h.abs().max() > 1:
        h = h / h.abs().max()
    return h[h > 0].sum(), h.mean()


def hides_from_the_compiler(x, y):
    return _noisy(x, y)


def takes_a_branch_while_compiling(x, y):
    h = x * y
    if not torch.compiler.is_compiling() and h.abs().max() > 1:
        h = h / h.abs().max()
    return h.relu().sum(), h.mean()


def always_divides(x, y):
    h = x * y
    h = h / h.abs().max()
    return h.relu().sum(), h.mean()


def never_divides(x, y):
    h = x * y
    return h.relu().sum(), h.mean()


def clamps(x, y):
    h = (x * y).clamp(-1, 1)
    return h.relu().sum(), h.mean()


def returns_the_sum_alone(x, y):
    h = x * y
    largest = h.abs().max()
    return torch.where(largest > 1, h / largest, h).relu().sum()


def _least(eager, static, dynamic):
    seconds = {"eager": eager, "static": static, "dynamic": dynamic}
    return min(seconds, key=seconds.get)


def compiles_for_nothing(job, limit=8):
    return _least(*(job["calls"] * job[name] for name in ("eager_s", "static_s", "dynamic_s")))


def compiles_once_for_all_shapes(job, limit=8):
    static = job["compile_s"] + job["calls"] * job["static_s"]
    return _least(job["calls"] * job["eager_s"], static, job["compile_s"] + job["calls"] * job["dynamic_s"])


def knows_no_limit(job, limit=8):
    static = job["shapes"] * job["compile_s"] + job["calls"] * job["static_s"]
    return _least(job["calls"] * job["eager_s"], static, job["compile_s"] + job["calls"] * job["dynamic_s"])


def forgets_the_shapes_beyond(job, limit=8):
    static = min(job["shapes"], limit) * job["compile_s"] + job["calls"] * job["static_s"]
    return _least(job["calls"] * job["eager_s"], static, job["compile_s"] + job["calls"] * job["dynamic_s"])


def always_dynamic(job, limit=8):
    return "dynamic" if job["shapes"] > 1 else "static"


WRONG = {
    "6.1": [
        ("reads x twice for x * x", reads_twice, "reads it once"),
        ("counts no writes", forgets_writes, "also writes its result"),
        ("writes the last step alone", writes_the_last_only, "every tensor that is returned"),
        ("reads what it has just made", keeps_what_lies_between, "still at hand"),
        ("takes a bias for a whole tensor", one_size_fits_all, "differ in size"),
        ("counts elements", counts_elements, "4 times too small"),
    ],
    "6.2": [
        ("the ratio of bytes", bytes_alone, "leaves out arithmetic"),
        ("adds the two times", adds_memory_and_arithmetic, "take the larger, not the sum"),
        ("the larger of the totals", takes_the_larger_of_totals, "for each kernel, not for their totals"),
        ("a single launch", one_launch_for_all, "a launch of its own"),
        ("launch_s for call_s", a_launch_for_the_call, "call_s, not launch_s"),
        ("the inverse", fused_over_eager, "eager time over the fused one"),
    ],
    "6.3": [
        ("branches on a tensor", still_branches, "(?s)not in the way asked for.*breaks at: "),
        ("takes the mean out with .item()", takes_the_number_out, "(?s)not in the way asked for.*breaks at: "),
        ("selects by a mask", selects_by_a_mask, "(?s)not in the way asked for.*breaks at: "),
        ("hides the breaks from the compiler", hides_from_the_compiler, "(?s)not in the way asked for.*graphs"),
        ("does other work when compiled", takes_a_branch_while_compiling, "another result than it gives plainly"),
        ("always divides", always_divides, "even where the largest is no more than 1"),
        ("never divides", never_divides, "The branch is gone"),
        ("clamps", clamps, "changes the large values alone"),
        ("returns the sum alone", returns_the_sum_alone, "wrong type"),
    ],
    "6.4": [
        ("compiling costs nothing", compiles_for_nothing, "Compiling takes time"),
        ("one compilation for all shapes", compiles_once_for_all_shapes, "once for each shape"),
        ("a compilation for every shape", knows_no_limit, "nothing more is compiled"),
        ("the shapes beyond the limit are fast too", forgets_the_shapes_beyond, "at eager_s, not at static_s"),
        ("dynamic wherever shapes change", always_dynamic, "wrong result"),
    ],
}
