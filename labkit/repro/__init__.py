"""Seeds and settings, the record of a run, and the recordings made on named hardware."""

from labkit.repro.manifests import manifest
from labkit.repro.recordings import Recording, read_recording, recording_files, recordings, write_recording
from labkit.repro.settings import budget, quiet, seed_all, strict
from labkit.repro.tracking import Run, run

__all__ = [
    "Recording",
    "Run",
    "budget",
    "manifest",
    "quiet",
    "read_recording",
    "recording_files",
    "recordings",
    "run",
    "seed_all",
    "strict",
    "write_recording",
]
