"""The advanced options of DRS that decide what vCenter itself does with VMs that have a vGPU.

gpuops moves such VMs off a host by orders of its own, which these options do not hold back; but for the limit of the
stun. Whoever lets vCenter empty a host (its maintenance mode, vSphere Lifecycle Manager) needs them.

Sources: VMware KB 88271 (`VgpuMMAutomationTimeoutSecs`: -1 has maintenance mode move them, without it entering waits);
VMware KB 313479 (`PassthroughDrsAutomation` 1, `LBMaxVmotionPerHost` 1 and `VmDevicesStunTimeTolerated` let DRS move
them to balance load); vSphere API, ClusterDrsConfigInfo.option.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.model.vcenter.host import Cluster

EVACUATION: Final = "VgpuMMAutomationTimeoutSecs"
AUTOMATION: Final = "PassthroughDrsAutomation"
MOVES_AT_ONCE: Final = "LBMaxVmotionPerHost"
STUN_TOLERATED: Final = "VmDevicesStunTimeTolerated"
WHERE: Final = "the cluster's Configure > vSphere DRS > Edit > Advanced Options"


def drs_option(cluster: Cluster | None, name: str) -> str | None:
    """Its value; None = it is not set, or the options cannot be read."""
    return dict(cluster.drs_options or ()).get(name) if cluster is not None else None


def evacuation_obstacles(cluster: Cluster | None) -> Iterator[str]:
    """Why entering maintenance mode waits for VMs with a vGPU until somebody moves them."""
    if cluster is None:
        yield "is in no cluster: no DRS moves its VMs"
        return
    if cluster.drs_enabled is not True:
        off = cluster.drs_enabled is False
        yield f"DRS of cluster {cluster.name} is off" if off else f"DRS of cluster {cluster.name} cannot be read"
    elif cluster.drs_behavior != "fullyAutomated":
        yield f"DRS of cluster {cluster.name} is {cluster.drs_behavior or 'in no mode that can be read'}"
    if cluster.drs_options is None:
        yield f"the advanced options of DRS of cluster {cluster.name} cannot be read"
    elif (value := drs_option(cluster, EVACUATION)) != "-1":
        yield f"{EVACUATION} of cluster {cluster.name} is {_said(value)}, not -1"


# assumption: drs-vgpu-vms
def balancing_obstacles(cluster: Cluster) -> Iterator[str]:
    """What of the options is not as KB 313479 has it where DRS is to move VMs with a vGPU to balance load."""
    if cluster.drs_options is None:
        return
    for name in (AUTOMATION, MOVES_AT_ONCE):
        if (value := drs_option(cluster, name)) != "1":
            yield f"{name} is {_said(value)}, not 1"
    if drs_option(cluster, STUN_TOLERATED) is None:
        yield f"{STUN_TOLERATED} is not set"


def _said(value: str | None) -> str:
    return "not set" if value is None else repr(value)
