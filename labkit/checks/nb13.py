"""The checks of lesson 13: who waits for whom, where records part, what a report tells, a loop that never hangs."""

from labkit.checker import Exercise
from labkit.checks.diagnosis import diagnose, diagnosed, report_cases, same_diagnosis
from labkit.checks.parting import parted, parted_at, parted_cases, same_parting
from labkit.checks.uneven import UNEVEN_MISTAKES, few_bytes, same_training, train_uneven, trained, uneven_cases
from labkit.checks.waiting import same_waits, waited_for, waiting_cases, who_waits

EXERCISES = (
    Exercise(
        number="13.1",
        name="who_waits",
        cases=waiting_cases,
        reference=who_waits,
        compare=same_waits,
        drive=waited_for,
        points=3,
        hints=(
            "If ranks at work count as waiting: only the first line of a thread's stack says where it stands.",
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
        compare=same_parting,
        drive=parted_at,
        points=4,
        hints=(
            "If the number is too low: begin where no record has forgotten anything, at the largest of all beginnings.",
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
        drive=diagnosed,
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
        mistakes=UNEVEN_MISTAKES,
        points=5,
        hints=(
            "If it hangs: every rank must call the same collectives in every step, also one that has no batch left.",
            "In each step, first all_reduce the number of samples. All ranks learn the same sum, so where it is 0 all "
            "of them return.",
            "A rank without a batch adds zeros: its weight.grad is None. Divide the summed gradient by the summed "
            "number of samples.",
        ),
    ),
)
