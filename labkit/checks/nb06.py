"""The checks of lesson 06: bytes of a chain, speed-up from bytes, a function in one graph, and what to compile."""

from collections.abc import Callable, Sequence

import torch

from labkit.checker import Exercise, close, exact
from labkit.checks.choice import CHOICE_MISTAKES, choice_cases, choose
from labkit.checks.graphs import GRAPH_MISTAKES, graph_cases, one_graph, unbroken
from labkit.cost import kernel_s

Step = tuple[str, list[str]]

# ---- 6.1: bytes -----------------------------------------------------------------------------------------------------


def count_bytes(steps: list[Step], returned: list[str], sizes: dict[str, int], itemsize: int) -> tuple[int, int]:
    """Bytes moved by a chain, (a kernel a step, one kernel for all); what a kernel needs twice it reads once."""
    eager = sum(sizes[name] for made, read in steps for name in {made, *read})
    made = {name for name, _ in steps}
    given = {name for _, read in steps for name in read} - made
    fused = sum(sizes[name] for name in given | set(returned))
    return eager * itemsize, fused * itemsize


def _byte_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Two steps; a square; a bias; a step in the middle that is returned; chains drawn at random."""
    same = dict.fromkeys("xyabc", 1000)
    bias = same | {"bias": 10}
    return [
        ([("a", ["x"]), ("b", ["a", "y"])], ["b"], same, 4),
        ([("a", ["x", "x"]), ("b", ["a", "x"])], ["b"], same, 4),
        ([("a", ["x", "bias"]), ("b", ["a"]), ("c", ["b", "bias"])], ["c"], bias, 2),
        ([("a", ["x", "y"]), ("b", ["a"]), ("c", ["b", "a"])], ["a", "c"], same, 4),
        *(_random_chain(rng) for _ in range(20)),
    ]


def _random_chain(rng: torch.Generator) -> tuple:
    """Three to eight steps, each reading the one before; what no step reads is returned, and perhaps one more."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    names = [f"t{i}" for i in range(draw(3, 9))]
    steps, before = [], ["x", "y", "bias"]
    for name in names:
        read = [before[-1] if steps else "x", *(before[draw(0, len(before))] for _ in range(draw(0, 2)))]
        steps.append((name, read))
        before.append(name)
    returned = [names[-1]] if draw(0, 2) else sorted({names[-1], names[draw(0, len(names))]})
    n_elements = 64 * draw(10, 1000)
    sizes = dict.fromkeys(before, n_elements) | {"bias": 64}
    return steps, returned, sizes, (2, 4, 8)[draw(0, 3)]


def _bytes_otherwise(*, twice: bool = False, writes: bool = True, last: bool = False, every: bool = False) -> Callable:
    """`count_bytes` with a mistake: reads counted twice, no writes, the last step alone written, every read kept."""

    def mistaken(steps: list[Step], returned: list[str], sizes: dict[str, int], itemsize: int) -> tuple[int, int]:
        read = lambda names: sum(sizes[name] for name in (names if twice else set(names)))
        eager = sum(read(names) + writes * sizes[made] for made, names in steps)
        made = {name for name, _ in steps}
        given = {name for _, names in steps for name in names} - (set() if every else made)
        written = steps[-1:] and [steps[-1][0]] if last else returned
        fused = sum(sizes[name] for name in given) + writes * sum(sizes[name] for name in written)
        return eager * itemsize, fused * itemsize

    return mistaken


def _one_size(steps: list[Step], returned: list[str], sizes: dict[str, int], itemsize: int) -> tuple[int, int]:
    """Takes every tensor to be as large as the largest."""
    return count_bytes(steps, returned, dict.fromkeys(sizes, max(sizes.values())), itemsize)


def _turned_round(*case: object) -> tuple[int, int]:
    """The pair in the other order."""
    eager, fused = count_bytes(*case)
    return fused, eager


_BYTE_MISTAKES = (
    ("The pair is turned round: first the bytes of a kernel a step, then those of one kernel.", _turned_round),
    ("A kernel that needs a tensor twice, as x * x does, reads it once.", _bytes_otherwise(twice=True)),
    ("Each kernel also writes its result.", _bytes_otherwise(writes=False)),
    ("The fused kernel writes every tensor that is returned, not only the last.", _bytes_otherwise(last=True)),
    ("What a step made is still at hand in the fused kernel: only what it was given is read.",)
    + (_bytes_otherwise(every=True),),
    ("Tensors differ in size: look each one up in sizes.", _one_size),
)

# ---- 6.2: speed-up --------------------------------------------------------------------------------------------------


def predicted_speedup(eager: list[tuple[float, float]], fused: tuple[float, float], machine: dict) -> float:
    """How many times faster one kernel is than several, each given as (bytes, FLOPs), on a machine of known rates."""
    rates = machine["bytes_per_s"], machine["flops_per_s"]
    eager_s = sum(machine["launch_s"] + kernel_s(*work, *rates) for work in eager)
    return eager_s / (machine["call_s"] + kernel_s(*fused, *rates))


def _speedup_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Memory alone; arithmetic alone; launches alone; then all of them drawn at random."""
    plain = {"bytes_per_s": 1e10, "flops_per_s": 1e11, "launch_s": 0.0, "call_s": 0.0}
    costly = plain | {"launch_s": 1e-6, "call_s": 4e-6}
    corners = [
        ([(8e9, 1e9), (12e9, 1e9)], (12e9, 2e9), plain),
        ([(8e6, 1e12), (8e6, 1e12)], (8e6, 2e12), plain),
        ([(8e9, 1e9), (8e6, 1e12)], (8e9, 1e12 + 1e9), plain),
        ([(512.0, 64.0)] * 6, (768.0, 384.0), costly),
    ]
    return [*corners, *(_random_work(rng) for _ in range(20))]


def _random_work(rng: torch.Generator) -> tuple:
    """Two to eight kernels on a machine on which each of the costs may count."""
    draw = lambda low, high: low * (high / low) ** float(torch.rand((), generator=rng))
    count = 2 + int(torch.randint(7, (), generator=rng))
    eager = [(draw(1e3, 1e9), draw(1e3, 1e10)) for _ in range(count)]
    fused = max(n_bytes for n_bytes, _ in eager) * 1.5, sum(flops for _, flops in eager)
    rates = {"bytes_per_s": draw(1e10, 1e12), "flops_per_s": draw(1e11, 1e13)}
    return eager, fused, rates | {"launch_s": draw(1e-6, 1e-4), "call_s": draw(1e-6, 1e-4)}


def _speedup_otherwise(
    *, join: Callable = max, launches: bool = True, call: bool = True, whole: bool = False
) -> Callable:
    """`predicted_speedup` with a mistake in how times are put together."""

    def mistaken(eager: list[tuple[float, float]], fused: tuple[float, float], machine: dict) -> float:
        rates = machine["bytes_per_s"], machine["flops_per_s"]
        work_s = lambda work: join(work[0] / rates[0], work[1] / rates[1])
        total = sum(n_bytes for n_bytes, _ in eager), sum(flops for _, flops in eager)
        eager_s = work_s(total) if whole else sum(map(work_s, eager))
        eager_s += len(eager) * machine["launch_s"] if launches else machine["launch_s"]
        return eager_s / (work_s(fused) + (machine["call_s"] if call else machine["launch_s"]))

    return mistaken


def _bytes_alone(eager: list[tuple[float, float]], fused: tuple[float, float], machine: dict) -> float:  # noqa: ARG001
    """The ratio of the bytes."""
    return sum(n_bytes for n_bytes, _ in eager) / fused[0]


def _upside_down(eager: list[tuple[float, float]], fused: tuple[float, float], machine: dict) -> float:
    """Fused over eager."""
    return 1 / predicted_speedup(eager, fused, machine)


def _rounded(digits: int) -> Callable:
    """`predicted_speedup`, rounded."""
    return lambda eager, fused, machine: round(predicted_speedup(eager, fused, machine), digits)


_SPEEDUP_MISTAKES = (
    ("The ratio of bytes leaves out arithmetic, launches and the call.", _bytes_alone),
    ("The speed-up is the eager time over the fused one.", _upside_down),
    ("Memory and arithmetic work at the same time: take the larger, not the sum.",)
    + (_speedup_otherwise(join=lambda a, b: a + b),),
    ("Take the larger of the two for each kernel, not for their totals.", _speedup_otherwise(whole=True)),
    ("Every eager kernel has a launch of its own.", _speedup_otherwise(launches=False)),
    ("The compiled call costs call_s, not launch_s.", _speedup_otherwise(call=False)),
    *(("It is rounded: return the ratio as it is.", _rounded(digits)) for digits in range(6)),
)

EXERCISES = (
    Exercise(
        number="6.1",
        name="count_bytes",
        cases=_byte_cases,
        reference=count_bytes,
        compare=exact,
        mistakes=_BYTE_MISTAKES,
        points=2,
        hints=(
            "The first number: put the names that a step reads into a set before you add up their sizes.",
            "First: each step, sizes of {made, *read}. Second: what is read but never made, and what is returned.",
        ),
    ),
    Exercise(
        number="6.2",
        name="predicted_speedup",
        cases=_speedup_cases,
        reference=predicted_speedup,
        compare=close(1e-6, 0.0, "Eager, a kernel: a launch and the larger of two times. Fused: call_s and the same."),
        mistakes=_SPEEDUP_MISTAKES,
        points=3,
        hints=(
            "A kernel takes max(bytes / bytes_per_s, flops / flops_per_s) seconds once it runs.",
            "Add launch_s for each eager kernel, call_s once for the fused one; then eager over fused.",
        ),
    ),
    Exercise(
        number="6.3",
        name="unbroken",
        cases=graph_cases,
        reference=unbroken,
        compare=close(1e-5, 1e-6, "The same sum and the same mean as noisy has."),
        mechanism=one_graph,
        mistakes=GRAPH_MISTAKES,
        points=3,
        hints=(
            "It stops at `if`: compute both sides, and let torch.where(condition, one, other) choose.",
            "It stops at .item(): return the mean as a tensor; whoever called may turn it into a number.",
            "It stops at h[h > 0]: how many are above 0 is not known beforehand. A zero adds nothing to a sum.",
        ),
    ),
    Exercise(
        number="6.4",
        name="choose",
        cases=choice_cases,
        reference=choose,
        compare=exact,
        mistakes=CHOICE_MISTAKES,
        points=3,
        hints=(
            "Write the seconds of the three ways into a dictionary; min(seconds, key=seconds.get) names the least.",
            "Static: min(shapes, limit) compilations; that share of the shapes at static_s, the rest at eager_s.",
        ),
    ),
)
