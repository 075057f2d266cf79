"""Named layouts of GPUs: GPU instances, or vGPUs, by name and number, as NVIDIA's tools for Linux hosts write them.

mig-parted (`mig-configs`) lists GPU instances, vgpu-device-manager (`vgpu-configs`) vGPU types. A layout has one or
more parts, each for some GPUs of a host and perhaps for some GPU models.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LayoutForm(StrEnum):
    """What a layout counts."""

    GPU_INSTANCES = "mig-configs"
    VGPUS = "vgpu-configs"


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """What some GPUs of a host are to have."""

    gpus: tuple[int, ...] | None
    """By their number on the host; None = all."""
    models: tuple[tuple[int, int], ...]
    """(vendor id, device id) of the GPU models that it is for; () = any."""
    counts: tuple[tuple[str, int], ...]
    """GPU instances or vGPU types by name, and how many of each."""
    is_mig_on: bool = True
    """False: MIG mode is off, and there are no GPU instances."""

    def is_for(self, model_ids: frozenset[tuple[int, int]]) -> bool:
        """Return whether the part applies to a GPU model with these (vendor id, device id) pairs."""
        return not self.models or not model_ids.isdisjoint(self.models)


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """A named layout of the GPUs of a host."""

    name: str
    form: LayoutForm
    parts: tuple[LayoutPart, ...]
    """A later part takes the place of an earlier one on the GPUs of both."""
