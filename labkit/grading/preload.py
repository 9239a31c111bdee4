"""What the server of jobs loads once, so that all jobs share its memory: the judge, the checks and torch."""

import gc

import labkit.checks
import labkit.grading.grade  # noqa: F401

labkit.checks.exercises()
gc.freeze()  # jobs share this memory as long as no collection of garbage looks at it
