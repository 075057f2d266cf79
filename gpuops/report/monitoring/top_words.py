"""What a user of `gpuops top` may ask for: which rows, in which order."""

from __future__ import annotations

from enum import StrEnum


class TopLevel(StrEnum):
    """What a row is."""

    HOSTS = "hosts"
    GPUS = "gpus"
    VMS = "vms"


class SortKey(StrEnum):
    """By which figure rows are ordered; the largest first, names from A to Z, unknown figures last."""

    NAME = "name"
    USE = "use"
    MEMORY = "memory"
    VMS = "vms"
    SESSIONS = "sessions"
