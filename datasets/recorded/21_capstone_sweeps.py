"""Record the whole runs that lesson 21 draws: about 20 minutes of two CPU cores, which should have nothing else to do.

    python datasets/recorded/21_capstone_sweeps.py          each arm three times, in turns
    python datasets/recorded/21_capstone_sweeps.py --quick  8 minutes: each arm once, records nothing

An arm is solutions/capstone/train.py with some of its changes: none, each alone, each with those before it.
"""

import argparse
import hashlib

from labkit import repro
from labkit.capstone import waterfall
from labkit.capstone.task import TARGET

LESSON = "21_capstone_sweeps"
ROUNDS = 3


def main() -> None:
    """Run every arm, then write the recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="try every arm once and record nothing")
    quick = parser.parse_args().quick
    arms = waterfall.measured(1 if quick else ROUNDS)
    print(waterfall.text(arms))
    if quick:
        return
    script = hashlib.sha256(waterfall.solution_script().read_bytes()).hexdigest()
    config = {"rounds": ROUNDS, "target": TARGET, "order": waterfall.ORDER}
    made = repro.manifest(config=config, data={"solutions/capstone/train.py": script}, seeds=tuple(range(ROUNDS)))
    print(repro.write_recording(LESSON, {"arms": arms}, made))


if __name__ == "__main__":
    main()
