"""The hosts that a workload may go to, regardless of their room, and why it may not go to the other hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import Scope, device_hosts, gpu_hosts
from gpuops.plan.core.versions import hardware_on
from gpuops.plan.devices.requested import groups_of
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.placement.ha_headroom import Headroom


@dataclass(frozen=True, slots=True)
class EligibleHosts:
    """The hosts to check, and why the workload may not go to each other host."""

    hosts: tuple[str, ...]
    """Refs in the order of the hosts' names, in which equal hosts are chosen."""
    elsewhere: tuple[Rejection, ...]
    """Hosts outside the requested scope: shown on request, not a reason for a refusal."""
    refused: tuple[Rejection, ...]
    """Hosts inside the scope that can never run such a VM, or must not run this one in addition."""


def scope_of(workload: Workload) -> Scope:
    """Return the scope of hosts that the workload asks for."""
    return Scope(workload.cluster, workload.host, workload.tag)


def eligible_hosts(
    workload: Workload, vm: Vm, apart_from: Sequence[tuple[str, str]], inventory: Inventory, catalog: Catalog
) -> EligibleHosts:
    """Return where the workload may go. `apart_from`: (host ref, name) of workloads it must not share a host with."""
    scope, headroom = scope_of(workload), Headroom(vm, inventory)
    hosts: list[str] = []
    elsewhere: list[Rejection] = []
    refused: list[Rejection] = []
    release_rejections: dict[str | None, tuple[Rejection, ...]] = {}
    whole = bool(workload.device or workload.gpus)
    everywhere = device_hosts(inventory) if whole else gpu_hosts(inventory)
    for host in everywhere:
        outside = scope.outside(host, inventory)
        against = (
            ()
            if outside
            else (
                *_host_rejections(workload, apart_from, host),
                *_by_release(vm, workload, host, catalog, release_rejections),
            )
        )
        kept_free = None if outside else headroom.refusal(host)
        if outside is not None:
            elsewhere.append(outside)
        elif against or kept_free:
            refused += [*against, *([kept_free] if kept_free else [])]
        else:
            hosts.append(host.ref)
    if len(elsewhere) == len(everywhere):
        refused.append(scope.nowhere(workload.name, inventory))
    return EligibleHosts(tuple(hosts), tuple(elsewhere), tuple(dict.fromkeys(refused)))


def _host_rejections(workload: Workload, apart_from: Sequence[tuple[str, str]], host: Host) -> Iterator[Rejection]:
    for ref, name in apart_from:
        if ref == host.ref:
            yield Rejection(host.name, f"holds {name}, of the same anti-affinity {workload.anti_affinity}")
    if workload.device_group is not None and all(group.name != workload.device_group for group in groups_of(host)):
        unread = host.config_target is None
        why = "its device groups were not read" if unread else f"does not offer device group {workload.device_group}"
        yield Rejection(host.name, why)


def _by_release(
    vm: Vm,
    workload: Workload,
    host: Host,
    catalog: Catalog,
    release_rejections: dict[str | None, tuple[Rejection, ...]],
) -> tuple[Rejection, ...]:
    """Return why such a VM cannot be on this host. For a new VM that depends only on the host's release."""
    if host.version not in release_rejections:
        vm_for_host = replace(vm, hardware_version=hardware_on(host.version))
        case = Case(
            vm_for_host,
            vm_for_host.devices or (),
            grouped=workload.device_group is not None,
            host=host,
            catalog=catalog,
        )
        release_rejections[host.version], _ = findings(case)
    return release_rejections[host.version]
