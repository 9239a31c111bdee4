"""What in a contest a person should look at: signs of results that were not trained for, each with its limit."""

import math

from labkit.capstone.contest import Contest
from labkit.capstone.running import Outcome

_CHANCE = 1e-4  # that an honest script is doubted, in one look
_MORE = 2.0  # mistakes of one run may be so many times those of others
_PREDICT_TIMES, _PREDICT_S = 4.0, 3.0  # a predict that takes this many times the baseline's, and this much more
_IDLE = 0.5  # of the wall clock: a process that waited for its turn, or slept
LIMITS = (
    "Not found: a network that was brought along and only fitted anew to the numbering of the classes; training on "
    "pictures of the same fonts, drawn without a file; a process that hides and slows the baseline down. "
    "Read the code.",
)


def doubts(contest: Contest) -> list[str]:
    """What was seen, in sentences, the worst first; none is a proof, and an empty list is none either."""
    return [
        *_trained_on_validation(contest),
        *_not_trained(contest),
        *_around_it(contest),
        *([] if contest.baseline_is_ours else ["The baseline is not the course's own datasets/capstone/train.py."]),
    ]


def remarks(contest: Contest) -> list[str]:
    """What makes the seconds less sure, though it is no fault of the submission's."""
    waited = [1 - one.cpu_s / one.wall_s for one in (*contest.baseline, *contest.submission) if not one.why]
    if not waited or max(waited) < _IDLE:
        return []
    said = f"A run had no processor for {max(waited):.0%} of its time"
    return [f"{said}: the machine is busy, or the script waits. Trust the processor's time more than the wall clock."]


def _trained_on_validation(contest: Contest) -> list[str]:
    """A network that calls pictures by the wrong names of the audit, more often than the timed runs do by mistake."""
    if contest.audit.why:
        return [f"The audit failed: {contest.audit.why.splitlines()[-1]}"]
    agreed, n = contest.audit.agreed, contest.n_validation
    usual = max([1, *(one.agreed for one in contest.submission)])
    if at_least(agreed, n, min(1.0, _MORE * usual / n)) > _CHANCE:
        return []
    said = f"With classes of validation pictures named wrongly, it gives {agreed} of {n} the wrong name"
    return [f"{said}, by mistake at most {usual}: it trains on the validation pictures."]


def at_least(k: int, n: int, share: float) -> float:
    """The chance of k or more of n where each has this share: the binomial's upper tail, summed term by term."""
    if k <= 0 or share >= 1:
        return 1.0
    logs = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
        + i * math.log(share) + (n - i) * math.log1p(-share)
        for i in range(k, n + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


def _not_trained(contest: Contest) -> list[str]:
    """Results that are not there when the classes are numbered anew, and training that is done while nobody times."""
    found = []
    missed = [one for one in contest.submission if not one.reached and not one.why]
    if missed:
        least = min(one.validation for one in missed)
        said = f"{len(missed)} of {len(contest.submission)} runs are below the target, the lowest at {least:.3f}"
        found.append(f"{said}: near chance, nothing was trained, or in another run, whose numbering was another.")
    usual = max((one.predict_cpu_s for one in contest.baseline), default=0.0)
    most = max((one.predict_cpu_s for one in contest.submission), default=0.0)
    if most > _PREDICT_TIMES * usual + _PREDICT_S:
        found.append(f"predict took {most:.1f} s of processor, the baseline's {usual:.1f} s: what does it do?")
    return found


def _around_it(contest: Contest) -> list[str]:
    """What a run left behind or made beside its result."""
    runs: list[Outcome] = [*contest.submission, contest.audit]
    found = []
    if any(one.left for one in runs):
        found.append("It left processes running, which may slow down what runs after it; they were ended.")
    if drew := sorted({name for one in runs for name in one.drew}):
        found.append(f"It made data of its own: {', '.join(drew)}.")
    return found
