"""Seeds and settings, the manifest of a run, and the recordings made on named hardware."""

from labkit.repro.manifests import manifest
from labkit.repro.recordings import Recording, read_recording, recording_files, recordings, write_recording
from labkit.repro.settings import budget, quiet, seed_all, strict

__all__ = [
    "Recording",
    "budget",
    "manifest",
    "quiet",
    "read_recording",
    "recording_files",
    "recordings",
    "seed_all",
    "strict",
    "write_recording",
]
