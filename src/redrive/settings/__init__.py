"""Settings of a process: one file, the environment and flags, checked together, each with where it came from.

The later wins: defaults, `redrive.toml` or `redrive.yaml`, the environment, flags. What is given in code is not a
setting: an app that names its store reads none of these but the variable of `release`.
"""

from redrive.settings.load import Loaded, load, release, unknown_variables
from redrive.settings.model import AlertSettings, LogSettings, Settings, WorkerSettings

__all__ = [
    "AlertSettings",
    "Loaded",
    "LogSettings",
    "Settings",
    "WorkerSettings",
    "load",
    "release",
    "unknown_variables",
]
