"""What holds for every test."""

import os

# torch's profiler greets on stderr from its first start in a process on, and some tests read what was written there.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
