"""Exercise 6.4: whether to compile a job, and for each shape or for all of them."""

from collections.abc import Callable, Sequence

import torch


def choose(job: dict, limit: int = 8) -> str:
    """`eager`, `static` or `dynamic`, whichever takes the fewest seconds in all; of equals the first.

    Static code is compiled for each shape, up to `limit` of them; further shapes run eagerly. Calls are spread evenly.
    """
    seconds = _seconds(job, limit)
    return min(seconds, key=seconds.__getitem__)


def _seconds(job: dict, limit: int) -> dict:
    """Seconds in all of the three ways, in the order that decides between equals."""
    covered = min(job["shapes"], limit)
    share = covered / job["shapes"]
    return _sums(job, compilations=covered, static_s=share * job["static_s"] + (1 - share) * job["eager_s"])


def _job(calls: int, shapes: int, compile_s: float, eager_s: float, static_s: float, dynamic_s: float) -> dict:
    """A job under the names that the lesson gives its figures."""
    names = ("calls", "shapes", "compile_s", "eager_s", "static_s", "dynamic_s")
    return dict(zip(names, (calls, shapes, compile_s, eager_s, static_s, dynamic_s), strict=True))


def choice_cases(rng: torch.Generator) -> Sequence[tuple]:
    """Few calls; many; four shapes; more than the limit, twice; one that never gains; shapes met once more than others;
    jobs at random; another limit; last the ties, in figures that add up exactly.
    """
    corners = [
        _job(10, 1, 5.0, 0.02, 0.01, 0.011),
        _job(10_000, 1, 5.0, 0.02, 0.01, 0.011),
        _job(100, 4, 5.0, 0.2, 0.1, 0.11),
        _job(1_000, 16, 2.0, 0.06, 0.01, 0.03),
        _job(1_000, 16, 0.5, 0.02, 0.002, 0.012),
        _job(1_000_000, 1, 5.0, 0.02, 0.02, 0.02),
        _job(400, 1, 4.0, 0.02, 0.01, 0.011),
        _job(3, 2, 1.0, 1.15, 0.5, 0.9),
    ]
    limited = [(_job(1_000, 2, 1.0, 0.02, 0.002, 0.006), 1), (_job(1_000, 16, 1.0, 0.02, 0.002, 0.02), 16)]
    limited += [(_random_job(rng), 1 + i) for i in range(20)]
    ties = [
        _job(4, 1, 1.0, 0.5, 0.25, 0.25),
        _job(8, 2, 1.0, 0.5, 0.25, 0.375),
        _job(16, 1, 1.0, 0.5, 0.25, 0.25),
        _job(4, 1, 1.0, 0.5, 0.5, 0.25),
    ]
    jobs = [*corners, *(_random_job(rng) for _ in range(200))]
    return [*((job,) for job in jobs), *limited, *((job,) for job in ties)]


def _random_job(rng: torch.Generator) -> dict:
    """A job for which any of the three may be the best."""
    draw = lambda low, high: low * (high / low) ** float(torch.rand((), generator=rng))
    static_s = draw(1e-4, 1e-2)
    times = static_s * draw(0.9, 6), static_s, static_s * draw(1.0, 2.0)
    shapes = int(draw(1, 40))
    return _job(int(draw(max(10, shapes), 1e5)), shapes, draw(0.5, 30), *times)


def _chosen_otherwise(seconds_of: Callable[[dict, int], dict]) -> Callable:
    """`choose` with other sums."""

    def mistaken(job: dict, limit: int = 8) -> str:
        seconds = seconds_of(job, limit)
        return min(seconds, key=seconds.__getitem__)

    return mistaken


def _sums(job: dict, *, compilations: int, static_s: float, dynamic_compilations: int = 1) -> dict:
    """Seconds in all, with these numbers of compilations."""
    return {
        "eager": job["calls"] * job["eager_s"],
        "static": compilations * job["compile_s"] + job["calls"] * static_s,
        "dynamic": dynamic_compilations * job["compile_s"] + job["calls"] * job["dynamic_s"],
    }


def _ties_to(*order: str) -> Callable:
    """Right but for ties, in which the first of `order` is chosen."""
    return _chosen_otherwise(lambda job, limit: {way: _seconds(job, limit)[way] for way in order})


def _whole_calls(job: dict, limit: int) -> dict:
    """Gives each shape a whole number of calls and drops the rest."""
    covered, each = min(job["shapes"], limit), job["calls"] // job["shapes"]
    static_s = covered * job["static_s"] + (job["shapes"] - covered) * job["eager_s"]
    return _sums(job, compilations=covered, static_s=each * static_s / job["calls"])


# Some give the same for a job that several get wrong; the cases come in the order that tells them apart. The first
# four are right for most jobs, so they are named only for those that they get wrong.
CHOICE_MISTAKES = (
    ("Static code is compiled for at most `limit` shapes: limit is given, and is not always 8.",)
    + (_chosen_otherwise(lambda job, _: _seconds(job, 8)),),
    ("Of equals the first: eager before static before dynamic.", _ties_to("dynamic", "static", "eager")),
    ("Of equals the first: eager before static before dynamic.", _ties_to("dynamic", "eager", "static")),
    ("Calls need not be a multiple of shapes: divide with /, for // drops the rest.", _chosen_otherwise(_whole_calls)),
    ("After `limit` shapes nothing more is compiled: the other shapes run eagerly.",)
    + (_chosen_otherwise(lambda job, _: _sums(job, compilations=job["shapes"], static_s=job["static_s"])),),
    ("The shapes beyond `limit` run at eager_s, not at static_s.",)
    + (_chosen_otherwise(lambda job, n: _sums(job, compilations=min(job["shapes"], n), static_s=job["static_s"])),),
    ("Static code is compiled once for each shape.",)
    + (_chosen_otherwise(lambda job, _: _sums(job, compilations=1, static_s=job["static_s"])),),
    ("Compiling takes time too.",)
    + (_chosen_otherwise(lambda job, _: _sums(job, compilations=0, static_s=job["static_s"], dynamic_compilations=0)),),
)
