"""What the tests of the sandbox share: small limits, and how a submission is asked and judged."""

from labkit.exercise import Exercise
from labkit.grading import box
from labkit.grading.verdicts import Judging, Result
from labkit.grading.wire import decode, encode

WHY_NOT = box.available()  # such as: bubblewrap is not installed: sudo apt-get install bubblewrap
SMALL = box.Limits(
    cell_s=1.5,
    total_s=20.0,
    memory_bytes=512 << 20,
    processes=32,
    file_bytes=16 << 20,
    open_files=128,
    output_bytes=1 << 20,
    message_bytes=4 << 20,
    disk_bytes=32 << 20,
)
HONEST = ("honest", "def double(x):\n    return 2 * x\n")


def asked(session: box.Session, name: str = "double", *args: object, timeout_s: float = 10.0) -> object:
    """What the learner's function gives for plain arguments; the status where it gives nothing."""
    answer = session.call(name, encode({"do": "call", "args": list(args or (21,))}), timeout_s)
    if answer.status != "ok":
        return answer.status
    told = decode(answer.payload)
    return told["value"] if "value" in told else told["raised"]["type"]


def judged(session: object, exercise: Exercise, **how: object) -> Result:
    """The result of the only exercise of a session; how: as Judging is told."""
    judging = Judging(session, exercise, **how)
    return judging.public() or judging.private()
