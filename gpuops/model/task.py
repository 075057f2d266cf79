"""Tasks in vCenter, as `execute` and `vsphere` refer to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuops.errors import GpuopsError


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
