"""How long a vMotion stops a VM with vGPUs, by vCenter's own estimates, and the most that a cluster tolerates.

No table of ours: an estimate that vCenter does not tell is unknown. It tells them for C and Q profiles, from 8.0.2 on,
per profile and bandwidth of the vMotion network; of several vGPUs they add up.

Sources: vSphere API 8.0.2.0, VirtualMachineVgpuProfileInfo.stunTimeEstimates (of QueryConfigTarget); VMware vSphere 8.0
docs, vMotion stun time limit of vGPU VMs; VMware KB 313479 (`VmDevicesStunTimeTolerated`). That vCenter holds moves
that gpuops asks for to the same number is from memory. A VM may have a limit of its own; which setting holds it no
reference tells, so settings that are named so are shown and not judged. (assumption: vmotion-stun)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.moving.drs_options import STUN_TOLERATED, drs_option

TOLERATED_S: Final = 100
"""Where the cluster says nothing."""


@dataclass(frozen=True, slots=True)
class Stun:
    """Seconds; a range where vCenter tells several bandwidths, or the two hosts differ."""

    at_least_s: int
    at_most_s: int


def stun_between(vm: Vm, hosts: Iterable[Host]) -> Stun | None:
    """The estimate for a move of the VM between these hosts; None = unknown, or the VM has no vGPU."""
    found = [list(_of_host(vm, host)) for host in hosts]
    if not vm.vgpus or not all(found):
        return None
    seconds = [each for of_host in found for each in of_host]
    return Stun(min(seconds), max(seconds))


def _of_host(vm: Vm, host: Host) -> Iterator[int]:
    """The sum over its vGPUs at each bandwidth for which the host has an estimate of all of them."""
    told = host.config_target.stuns if host.config_target is not None else ()
    for bandwidth in dict.fromkeys(each.bandwidth_mbps for each in told):
        at = {each.profile: each.stun_s for each in told if each.bandwidth_mbps == bandwidth}
        if all(profile in at for profile in vm.profiles):
            yield sum(at[profile] for profile in vm.profiles)


def tolerated_s(cluster: Cluster | None) -> int:
    """The longest stun that the cluster tolerates."""
    said = drs_option(cluster, STUN_TOLERATED) or ""
    return int(said) if said.isdecimal() else TOLERATED_S


def too_long(vm: Vm, source: Host, target: Host, cluster: Cluster | None) -> Rejection | None:
    """Why vCenter would not move it there for its stun; None = the estimate is within the limit, or unknown."""
    stun, limit = stun_between(vm, (source, target)), tolerated_s(cluster)
    if stun is None or stun.at_least_s <= limit:
        return None
    hint = f"raise {STUN_TOLERATED} in the advanced options of DRS, if its users can wait so long"
    rule = f"estimates a stun of {stun.at_least_s} s for {vm.name}, and {limit} s are tolerated"
    return Rejection(target.name, rule, hint=hint)


def own_stun_settings(vm: Vm) -> tuple[str, ...]:
    """The VM's settings that are named after stun, `key = value`."""
    return tuple(f"{key} = {value}" for key, value in sorted((vm.extra_config or {}).items()) if "stun" in key.lower())
