"""The property paths that `collect` reads, per managed object type and API version.

`config`, `hardware` and `summary` are never read whole: of a host they are 119 kB, and a snapshot needs a twentieth.
A path that the negotiated version does not have would fail the whole read (InvalidProperty), so it is left out.
"""

from __future__ import annotations

from typing import Final

from gpuops.plan.core.versions import version_numbers

FOLDERS: Final = ("name", "parent")

CLUSTER: Final = (
    "name",
    "parent",
    "configurationEx",  # drsConfig and drsVmConfig are not paths of their own on a ComputeResource
)

COMPUTE_RESOURCE: Final = ("name", "parent")

VAPP: Final = ("name", "parent", "parentFolder")

DATASTORE: Final = ("name", "summary.freeSpace", "summary.accessible")

HOST: Final = (
    "name",
    "parent",
    "runtime.connectionState",
    "runtime.inMaintenanceMode",
    "runtime.bootTime",
    "hardware.systemInfo.uuid",
    "config.product.version",
    "hardware.memorySize",
    "hardware.cpuInfo",
    "hardware.numaInfo",
    "summary.quickStats.overallMemoryUsage",
    "config.graphicsInfo",
    "config.graphicsConfig",
    "config.sharedPassthruGpuTypes",
    "config.sharedGpuCapabilities",
    "config.pciPassthruInfo",
    "config.assignableHardwareBinding",
    "datastore",
)

HOST_DEVICES: Final = ("hardware.pciDevice",)
"""17 of the 22 kB of a GPU host; read only if the thin read shows a GPU or a passthrough device."""

VM: Final = (
    "name",
    "parent",
    "parentVApp",
    "runtime.host",
    "runtime.powerState",
    "runtime.suspendTime",
    "runtime.bootTime",
    "runtime.connectionState",
    "runtime.question",
    "runtime.numMksConnections",
    "config.instanceUuid",
    "config.template",
    "config.managedBy",
    "summary.config.numCpu",
    "summary.config.memorySizeMB",
    "summary.quickStats.overallCpuUsage",
    "customValue",
    "recentTask",
    "rootSnapshot",
    "datastore",
)

VM_DETAIL: Final = (
    "config.hardware.device",
    "config.extraConfig",
    "config.changeVersion",
    "config.firmware",
    "config.version",
    "config.hardware.numCoresPerSocket",
    "config.memoryAllocation.reservation",
    "config.cpuAllocation.reservation",
    "config.memoryReservationLockedToMax",
    "config.cpuHotAddEnabled",
    "config.nestedHVEnabled",
    "config.numaInfo.coresPerNumaNode",
    "config.numaInfo.autoCoresPerNumaNode",
    "guest.toolsRunningStatus",
)

TASK: Final = ("info.name", "info.state")

SWITCH: Final = (
    "name",
    "uuid",
    "config",  # maxMtu is that of VMware's own switches, and no path of its own
)

PORT_GROUP: Final = ("name", "key", "config.distributedVirtualSwitch")

NETWORK_OF_HOST: Final = (
    "config.network.pnic",
    "config.network.vnic",
    "config.network.rdmaDevice",
    "config.pciPassthruInfo",
    "hardware.numaInfo",
)

RDMA_SETTINGS: Final = ("config.option", "config.firewall")

CUSTOM_FIELDS: Final = ("field",)

_SINCE: Final = {
    "config.sharedGpuCapabilities": "6.7",
    "config.assignableHardwareBinding": "7.0.0.0",
    "config.network.rdmaDevice": "7.0.0.0",
    "config.numaInfo.coresPerNumaNode": "8.0.0.1",
    "config.numaInfo.autoCoresPerNumaNode": "8.0.0.1",
}
"""Source: "since" in the vSphere API reference (Web Services)."""


def supported_paths(paths: tuple[str, ...], api_version: str) -> tuple[str, ...]:
    """Return the paths that this API version has."""
    available_version = version_numbers(api_version)
    return tuple(path for path in paths if version_numbers(_SINCE.get(path, "0")) <= available_version)
