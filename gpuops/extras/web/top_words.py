"""Words of the options of `gpuops top`: which rows, in which order."""

from __future__ import annotations

from enum import StrEnum


class TopLevel(StrEnum):
    """What a row shows."""

    HOSTS = "hosts"
    GPUS = "gpus"
    VMS = "vms"


class SortKey(StrEnum):
    """The figure that rows are sorted by: largest first, names from A to Z, unknown figures last."""

    NAME = "name"
    USE = "use"
    MEMORY = "memory"
    VMS = "vms"
    SESSIONS = "sessions"
