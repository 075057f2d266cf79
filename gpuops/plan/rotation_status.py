"""Rotation, its status: what nights have taken, where each VM is, and whether a run was cut off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuops.plan.rotation_ours import Ours, Whereabouts


@dataclass(frozen=True, slots=True)
class RotationStatus:
    """One look at a rotation."""

    vcenter: str
    policy: str | None
    """Name of the policy the last night ran under; None = this machine's journal knows none."""
    cut_off: str | None
    """`rotate night` or `rotate day` when the last run began and did not end: `gpuops rotate resume` finishes it."""
    cut_off_since: datetime | None
    vms: tuple[Ours, ...]
    """Every VM of nights that are not over, desktops first."""
    names: Mapping[str, str]
    """Host ref -> name."""

    @property
    def away(self) -> tuple[Ours, ...]:
        """Desktops still suspended and ML VMs still running."""
        return tuple(mine for mine in self.vms if mine.whereabouts is Whereabouts.AWAY)
