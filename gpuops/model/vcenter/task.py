"""Tasks in vCenter, as `execute` and `vsphere` refer to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpuops.errors import GpuopsError

LEASE_OPERATION: Final = "gpuops-lease-"
"""The prefix of ids of operations that write the lease of a run; gpuops makes that change itself, for the run only."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task in vCenter, by its managed object id."""

    ref: str
    foreign: bool = field(default=False, compare=False)
    """Whether vCenter says that another login asked for it."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended; `error` None = success."""

    task: TaskRef
    error: GpuopsError | None = None
    duration_s: float | None = None
