"""Wrong answers that learners of lesson 06 would give, each with a part of the message that must meet it."""

import torch

from labkit import compilation


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


def turns_the_pair_round(steps, returned, sizes, itemsize):
    eager = sum(sizes[name] for made, read in steps for name in {made, *read})
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    return sum(sizes[name] for name in given | set(returned)) * itemsize, eager * itemsize


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


def rounds_it(eager, fused, machine):
    eager_s = sum(machine["launch_s"] + _seconds(work, machine) for work in eager)
    return round(eager_s / (machine["call_s"] + _seconds(fused, machine)), 2)


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


def takes_the_largest_with_its_sign(x, y):
    h = x * y
    largest = h.max()
    h = torch.where(largest > 1, h / largest, h)
    return h.relu().sum(), h.mean()


def divides_by_the_largest_with_its_sign(x, y):
    h = x * y
    h = torch.where(h.abs().max() > 1, h / h.max(), h)
    return h.relu().sum(), h.mean()


def notes_the_mean_too_early(x, y):
    h = x * y
    mean, largest = h.mean(), h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return h.relu().sum(), mean


def sums_all(x, y):
    h = x * y
    h = h / h.abs().max().clamp(min=1)
    return h.sum(), h.mean()


@torch.library.custom_op("labkit_wrong::noisy", mutates_args=())
def _wrapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack(_plainly(x, y))


_wrapped.register_fake(lambda x, y: x.new_empty(2))


def _plainly(x, y):
    h = x * y
    if h.abs().max() > 1:
        h = h / h.abs().max()
    return h[h > 0].sum(), h.mean()


def hides_it_in_an_operation(x, y):
    both = _wrapped(x, y)
    return both[0], both[1]


compilation.prepare()


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def allows_items(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return h.relu().sum(), torch.tensor(h.mean().item())


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def allows_masks(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return h[h > 0].sum(), h.mean()


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h[h > 0].sum()


def masks_within_autograd(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return _Masked.apply(h), h.mean()


def stacks_the_pair(x, y):
    h = x * y
    largest = h.abs().max()
    h = torch.where(largest > 1, h / largest, h)
    return torch.stack([h.relu().sum(), h.mean()])


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


def takes_the_limit_to_be_8(job, limit=8):
    covered = min(job["shapes"], 8)
    return _with_static(job, covered, covered / job["shapes"])


def has_no_limit(job):
    covered = min(job["shapes"], 8)
    return _with_static(job, covered, covered / job["shapes"])


def _with_static(job, covered, share):
    static_s = share * job["static_s"] + (1 - share) * job["eager_s"]
    static = covered * job["compile_s"] + job["calls"] * static_s
    return _least(job["calls"] * job["eager_s"], static, job["compile_s"] + job["calls"] * job["dynamic_s"])


def _by_name(job, limit, order):
    covered = min(job["shapes"], limit)
    static_s = covered * job["static_s"] + (job["shapes"] - covered) * job["eager_s"]
    seconds = {
        "eager": job["calls"] * job["eager_s"],
        "static": covered * job["compile_s"] + job["calls"] / job["shapes"] * static_s,
        "dynamic": job["compile_s"] + job["calls"] * job["dynamic_s"],
    }
    return min(sorted(seconds, reverse=order < 0), key=seconds.get)


def of_equals_by_the_alphabet(job, limit=8):
    return _by_name(job, limit, 1)


def of_equals_the_last(job, limit=8):
    return _by_name(job, limit, -1)


def prefers_the_last_of_equals(job, limit=8):
    covered = min(job["shapes"], limit)
    static_s = covered * job["static_s"] + (job["shapes"] - covered) * job["eager_s"]
    ways = [
        (job["compile_s"] + job["calls"] * job["dynamic_s"], "dynamic"),
        (covered * job["compile_s"] + job["calls"] / job["shapes"] * static_s, "static"),
        (job["calls"] * job["eager_s"], "eager"),
    ]
    return min(ways, key=lambda way: way[0])[1]


def drops_the_rest(job, limit=8):
    covered, each = min(job["shapes"], limit), job["calls"] // job["shapes"]
    static = covered * (job["compile_s"] + each * job["static_s"])
    static += (job["shapes"] - covered) * each * job["eager_s"]
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
        ("turns the pair round", turns_the_pair_round, "The pair is turned round"),
        ("counts elements", counts_elements, "4 times too small"),
    ],
    "6.2": [
        ("the ratio of bytes", bytes_alone, "leaves out arithmetic"),
        ("adds the two times", adds_memory_and_arithmetic, "take the larger, not the sum"),
        ("the larger of the totals", takes_the_larger_of_totals, "for each kernel, not for their totals"),
        ("a single launch", one_launch_for_all, "a launch of its own"),
        ("launch_s for call_s", a_launch_for_the_call, "call_s, not launch_s"),
        ("rounds it", rounds_it, "It is rounded"),
        ("the inverse", fused_over_eager, "eager time over the fused one"),
    ],
    "6.3": [
        ("branches on a tensor", still_branches, "(?s)not in the way asked for.*breaks at: "),
        ("takes the mean out with .item()", takes_the_number_out, "(?s)not in the way asked for.*breaks at: "),
        ("selects by a mask", selects_by_a_mask, "(?s)not in the way asked for.*breaks at: "),
        ("hides the breaks from the compiler", hides_from_the_compiler, "(?s)not in the way asked for.*graphs"),
        ("does other work when compiled", takes_a_branch_while_compiling, "another result than it gives plainly"),
        ("forgets that numbers may be negative", takes_the_largest_with_its_sign, "farthest from 0"),
        ("divides by a negative number", divides_by_the_largest_with_its_sign, "farthest from 0"),
        ("notes the mean too early", notes_the_mean_too_early, "after h is scaled"),
        ("sums what is below 0 too", sums_all, "Only what is above 0"),
        ("wraps it into an operation of its own", hides_it_in_an_operation, "(?s)not in the way.*hidden from the comp"),
        ("has dynamo's settings allow .item()", allows_items, "(?s)not in the way asked for.*breaks at: |still taken"),
        ("has dynamo's settings allow a mask", allows_masks, "(?s)not in the way asked for.*breaks at: |still taken"),
        ("masks in a function of autograd", masks_within_autograd, "(?s)not in the way asked for.*breaks at: "),
        ("returns one tensor of two", stacks_the_pair, "without stacking them"),
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
        ("the limit is always 8", takes_the_limit_to_be_8, "not always 8"),
        ("no limit at all", has_no_limit, "wrong arguments"),
        ("of equals by the alphabet", of_equals_by_the_alphabet, "Of equals the first"),
        ("of equals against the alphabet", of_equals_the_last, "Of equals the first"),
        ("of equals the last", prefers_the_last_of_equals, "Of equals the first"),
        ("divides calls by shapes without the rest", drops_the_rest, "drops the rest"),
        ("dynamic wherever shapes change", always_dynamic, "wrong result"),
    ],
}
