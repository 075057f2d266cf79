"""DRS of one VM: what an override of its own says, or its cluster."""

from __future__ import annotations

from enum import StrEnum


class VmDrs(StrEnum):
    """What DRS does with a VM (vSphere API reference, ClusterDrsVmConfigInfo and DrsBehavior)."""

    CLUSTER = "cluster"
    """It has no override: what the cluster says."""
    MANUAL = "manual"
    PARTIAL = "partiallyAutomated"
    FULL = "fullyAutomated"
    OFF = "off"
    """An override by which DRS leaves it alone."""

    @property
    def moves_nothing(self) -> bool:
        """Whether DRS does nothing with the VM that nobody has agreed to."""
        return self in (VmDrs.MANUAL, VmDrs.OFF)
