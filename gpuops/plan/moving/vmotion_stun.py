"""How long a vMotion stops a VM with vGPUs, and the options of DRS for such VMs.

Stun: vCenter's own estimates, and the most that a cluster tolerates. There is no table of ours: an estimate that
vCenter does not give is unknown. It gives them for C and Q profiles, from 8.0.2 on, per profile and bandwidth of the
vMotion network; the estimates of several vGPUs add up.

Sources: vSphere API 8.0.2.0, VirtualMachineVgpuProfileInfo.stunTimeEstimates (of QueryConfigTarget); VMware vSphere 8.0
docs, vMotion stun time limit of vGPU VMs; VMware KB 313479 (`VmDevicesStunTimeTolerated`). That vCenter holds moves
that gpuops asks for to the same number is from memory. A VM may have a limit of its own; no reference names the setting
that holds it, so settings with such a name are shown and not judged. (assumption: vmotion-stun)

DRS options: gpuops moves such VMs off a host by orders of its own, which these options do not hold back, except for the
limit of the stun. An admin who lets vCenter empty a host (its maintenance mode, vSphere Lifecycle Manager) needs them.

Sources: VMware KB 88271 (`VgpuMMAutomationTimeoutSecs`: -1 has maintenance mode move them, without it entering waits);
VMware KB 313479 (`PassthroughDrsAutomation` 1, `LBMaxVmotionPerHost` 1 and `VmDevicesStunTimeTolerated` let DRS move
them to balance load); vSphere API, ClusterDrsConfigInfo.option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.rejection import Rejection

EVACUATION: Final = "VgpuMMAutomationTimeoutSecs"
AUTOMATION: Final = "PassthroughDrsAutomation"
MOVES_AT_ONCE: Final = "LBMaxVmotionPerHost"
STUN_TOLERATED: Final = "VmDevicesStunTimeTolerated"
WHERE: Final = "the cluster's Configure > vSphere DRS > Edit > Advanced Options"


def drs_option(cluster: Cluster | None, name: str) -> str | None:
    """Return the value of this advanced option of DRS; None = it is not set, or the options cannot be read."""
    return dict(cluster.drs_options or ()).get(name) if cluster is not None else None


def evacuation_obstacles(cluster: Cluster | None) -> Iterator[str]:
    """Yield why entering maintenance mode waits for VMs with a vGPU until somebody moves them."""
    if cluster is None:
        yield "is in no cluster: no DRS moves its VMs"
        return
    if cluster.drs_enabled is not True:
        off = cluster.drs_enabled is False
        yield f"DRS of cluster {cluster.name} is off" if off else f"DRS of cluster {cluster.name} cannot be read"
    elif cluster.drs_behavior != "fullyAutomated":
        yield f"DRS of cluster {cluster.name} is {cluster.drs_behavior or 'in an unknown mode'}"
    if cluster.drs_options is None:
        yield f"the advanced options of DRS of cluster {cluster.name} cannot be read"
    # with -1 maintenance mode moves VMs with vGPUs, without it entering waits (KB 88271)
    elif (setting := drs_option(cluster, EVACUATION)) != "-1":
        yield f"{EVACUATION} of cluster {cluster.name} is {_format_option(setting)}, not -1"


# assumption: drs-vgpu-vms
def balancing_obstacles(cluster: Cluster) -> Iterator[str]:
    """Yield each advanced option that keeps DRS from moving VMs with a vGPU to balance load (VMware KB 313479)."""
    if cluster.drs_options is None:
        return
    for name in (AUTOMATION, MOVES_AT_ONCE):
        if (setting := drs_option(cluster, name)) != "1":
            yield f"{name} is {_format_option(setting)}, not 1"
    if drs_option(cluster, STUN_TOLERATED) is None:
        yield f"{STUN_TOLERATED} is not set"


def _format_option(setting: str | None) -> str:
    return "not set" if setting is None else repr(setting)


TOLERATED_S: Final = 100
"""The limit of vSphere, in force unless the DRS option `VmDevicesStunTimeTolerated` of the cluster sets another."""


@dataclass(frozen=True, slots=True)
class Stun:
    """How long a vMotion stops a VM; a range if vCenter has estimates for several bandwidths, or the hosts differ."""

    at_least_s: int
    at_most_s: int


def stun_between(vm: Vm, hosts: Iterable[Host]) -> Stun | None:
    """Return the estimate for a move of the VM between these hosts; None = unknown, or the VM has no vGPU."""
    estimates_by_host = [list(_of_host(vm, host)) for host in hosts]
    if not vm.vgpus or not all(estimates_by_host):
        return None
    seconds = [estimate for of_host in estimates_by_host for estimate in of_host]
    return Stun(min(seconds), max(seconds))


def _of_host(vm: Vm, host: Host) -> Iterator[int]:
    """Yield the stun of the VM in seconds at each bandwidth for which the host has an estimate of all its vGPUs."""
    estimates = host.config_target.stuns if host.config_target is not None else ()
    for bandwidth in dict.fromkeys(estimate.bandwidth_mbps for estimate in estimates):
        stun_s = {estimate.profile: estimate.stun_s for estimate in estimates if estimate.bandwidth_mbps == bandwidth}
        if all(profile in stun_s for profile in vm.profiles):
            yield sum(stun_s[profile] for profile in vm.profiles)


def tolerated_s(cluster: Cluster | None) -> int:
    """Return the longest stun that the cluster tolerates."""
    text = drs_option(cluster, STUN_TOLERATED) or ""
    return int(text) if text.isdecimal() else TOLERATED_S


def too_long(vm: Vm, source: Host, target: Host, cluster: Cluster | None) -> Rejection | None:
    """Return why vCenter would not move it there for its stun; None = the estimate is within the limit, or unknown."""
    stun, limit = stun_between(vm, (source, target)), tolerated_s(cluster)
    if stun is None or stun.at_least_s <= limit:
        return None
    hint = f"raise {STUN_TOLERATED} in the advanced options of DRS, if users of {vm.name} can wait so long"
    rule = f"estimates a stun of {stun.at_least_s} s for {vm.name}, and {limit} s are tolerated"
    return Rejection(target.name, rule, hint=hint)


def own_stun_settings(vm: Vm) -> tuple[str, ...]:
    """Return the VM's settings that are named after stun, `key = value`."""
    return tuple(f"{key} = {text}" for key, text in sorted((vm.extra_config or {}).items()) if "stun" in key.lower())


def unjudged_stun(vm: Vm, host: Host, hosts: Iterable[Host]) -> str:
    """Return why it is unknown whether a vMotion stops this VM for longer than is tolerated; empty if it is known.

    `hosts`: the hosts of its cluster. Without an estimate on one that could take it, or with a limit of its own, which
    gpuops cannot read, only an admin can decide to move it.
    """
    own_settings = own_stun_settings(vm)
    if own_settings:
        return f"it has stun settings of its own ({', '.join(own_settings)}), which gpuops does not judge"
    suitable_hosts = [host, *(other for other in hosts if all(other.offers(profile) for profile in vm.profiles))]
    if stun_between(vm, suitable_hosts) is None:
        return "vCenter has no estimate of how long a vMotion would stop it"
    return ""
