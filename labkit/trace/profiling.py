"""torch's profiler, as the course starts it."""

import os
from typing import Any


def profiler(device: object, **options: object) -> Any:
    """A torch.profiler.profile for a device, to be entered with `with`; options as for that class.

    On the worker thread's device it watches that thread too, which torch leaves out by default. It does not greet on
    stderr at each start and stop, if it is the first of its process; whoever has set KINETO_LOG_LEVEL keeps it.
    """
    import torch  # here, for `labkit trace` reads a file without it

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available() and not hasattr(device, "launch_s"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        return torch.profiler.profile(activities=activities, **options)
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    return torch.profiler.profile(activities=activities, experimental_config=config, **options)
