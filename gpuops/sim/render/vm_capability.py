"""`capability` of a VM: the same for all, ESXi 8 hosts differ in nothing that matters here."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.render.required_fields import filled

SUPPORTED: Final = (
    "snapshotOperationsSupported",
    "multipleSnapshotsSupported",
    "snapshotConfigSupported",
    "poweredOffSnapshotsSupported",
    "memorySnapshotsSupported",
    "revertToSnapshotSupported",
    "quiescedSnapshotsSupported",
    "disableSnapshotsSupported",
    "cpuFeatureMaskSupported",
    "toolsAutoUpdateSupported",
    "swapPlacementSupported",
    "toolsSyncTimeSupported",
    "diskSharesSupported",
    "bootOptionsSupported",
    "bootRetryOptionsSupported",
    "settingVideoRamSizeSupported",
    "changeTrackingSupported",
    "multipleCoresPerSocketSupported",
    "guestAutoLockSupported",
    "memoryReservationLockSupported",
    "featureRequirementSupported",
    "nestedHVSupported",
    "vPMCSupported",
    "secureBootSupported",
    "suspendToMemorySupported",
    "vendorDeviceGroupSupported",
)


def capability() -> Any:
    return filled(vim.vm.Capability, **dict.fromkeys(SUPPORTED, True))
