"""The checks of lesson 13: who waits for whom, where records part, what a report tells, a loop that never hangs."""

from labkit.checker import Exercise, close, exact
from labkit.checks.uneven import few_bytes, same_training, train_uneven, trained, uneven_cases
from labkit.checks.waiting import (
    PARTED_MISTAKES,
    WAITING_MISTAKES,
    diagnose,
    parted,
    parted_at,
    parted_cases,
    report_cases,
    same_diagnosis,
    waited_for,
    waiting_cases,
    who_waits,
)

EXERCISES = (
    Exercise(
        number="13.1",
        name="who_waits",
        cases=waiting_cases,
        reference=who_waits,
        compare=exact,
        drive=waited_for,
        mistakes=WAITING_MISTAKES,
        points=3,
        hints=(
            "Ranks that are at work count as waiting: only the first line of a thread's stack says where it stands.",
            'dump.split("(most recent call first):\\n")[1:] gives the stacks of the threads, innermost line first. A '
            "line ends in the function's name: line.split()[-1].",
            "First find, for each rank, the collective that it stands in. Then a rank waits for every other one that "
            "does not stand in the same.",
        ),
    ),
    Exercise(
        number="13.2",
        name="parted",
        cases=parted_cases,
        reference=parted,
        compare=close(
            0, 0, "The lowest number, of those that no record has forgotten, at which one rank is not like most."
        ),
        drive=parted_at,
        mistakes=PARTED_MISTAKES,
        points=4,
        hints=(
            "A number too low: begin with the first one that no record has forgotten, the largest of all beginnings.",
            "Make a dictionary of each record, number to (name, sizes), and ask it with .get(number): None where the "
            "rank has not come so far.",
            "usual = max(at, key=at.count) is what most ranks called; those that called anything else are the answer.",
        ),
    ),
    Exercise(
        number="13.3",
        name="diagnose",
        cases=report_cases,
        reference=diagnose,
        compare=same_diagnosis,
        points=6,
        hints=(
            "Begin with what is said outright: EADDRINUSE, forked subprocess, Detected mismatch.",
            "Then the exit codes: a signal that is neither -6 nor -15; a 1 without 'gloo/transport' in the log; a 0.",
            "What is left hangs. Use who_waits, or find the ranks whose stack shows no collective: if that is all of "
            "them, they were forked, else it is the one that the others wait for.",
        ),
    ),
    Exercise(
        number="13.4",
        name="train_uneven",
        cases=uneven_cases,
        reference=train_uneven,
        compare=same_training,
        drive=trained,
        mechanism=few_bytes,
        points=5,
        hints=(
            "It hangs: every rank must call the same collectives in every step, also one that has no batch left.",
            "In each step, first all_reduce the number of samples. All ranks learn the same sum, so where it is 0 all "
            "of them return.",
            "A rank without a batch adds zeros: its weight.grad is None. Divide the summed gradient by the summed "
            "number of samples.",
        ),
    ),
)
