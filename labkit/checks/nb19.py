"""The checks of lesson 19: draws that a seed gives again, a gain that is one, names that the page cannot give."""

from labkit.checker import Exercise, close
from labkit.checks.paired import IMPROVEMENT_MISTAKES, improvement, improvement_cases
from labkit.checks.sown import draws, draws_cases, draws_cause, draws_found, drive_draws
from labkit.checks.stale import STALE_MISTAKES, stale_cases, stale_names

EXERCISES = (
    Exercise(
        number="19.1",
        name="draws",
        cases=draws_cases,
        reference=draws,
        compare=draws_cause,
        drive=drive_draws,
        find=draws_found,
        points=4,
        hints=(
            "If one part still differs: what does its line draw from, and does that know the seed? Begin with "
            "known = sorted(names), and never look at names again.",
            "One generator for all: dice = np.random.default_rng(seed). dice.permutation(len(known)) shuffles, "
            "dice.normal() draws a number, dice.random() < 0.5 flips.",
            "Draw in one fixed order, part after part, and by name in the order of known.",
        ),
    ),
    Exercise(
        number="19.2",
        name="improvement",
        cases=improvement_cases,
        reference=improvement,
        compare=close(1e-9, 1e-12, "Of all 2**n ways to sign the differences, which share is as far from zero?"),
        mistakes=IMPROVEMENT_MISTAKES,
        points=4,
        hints=(
            "First the differences: after[seed] - before[seed] for the seeds that both have.",
            "itertools.product((-1, 1), repeat=n) gives all ways to choose n signs.",
            "Count the ways with abs(sum of signed differences) >= abs(sum of the differences); divide by 2**n.",
        ),
    ),
    Exercise(
        number="19.3",
        name="stale_names",
        cases=stale_cases,
        reference=stale_names,
        compare=close(0.0, 0.0, "For each name: which cell bound it last, and which one should have, by the page?"),
        mistakes=STALE_MISTAKES,
        points=4,
        hints=(
            "Keep a dictionary, name to the cell that bound it last, and go through ran once.",
            "page[: page.index(key)] are the cells above; search them from the end for one that binds the name.",
            "A name that nothing has bound yet, such as print, is nobody's fault: skip it.",
        ),
    ),
)
