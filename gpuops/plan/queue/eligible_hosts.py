"""The hosts that a workload may go to, whatever room they have, and why the others are none of them."""

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
    """The hosts to look at, and why each of the others is none of them."""

    hosts: tuple[str, ...]
    """Refs, by the hosts' names: the order in which equals are chosen."""
    elsewhere: tuple[Rejection, ...]
    """Hosts outside of what was asked for: told on demand, no reason by itself."""
    refused: tuple[Rejection, ...]
    """Hosts inside of it that can never run such a VM, or may not run this one too."""


def scope_of(workload: Workload) -> Scope:
    """Which hosts the workload asks for."""
    return Scope(workload.cluster, workload.host, workload.tag)


def eligible_hosts(
    workload: Workload, vm: Vm, apart_from: Sequence[tuple[str, str]], inventory: Inventory, catalog: Catalog
) -> EligibleHosts:
    """Where the workload may go. `apart_from` are (host ref, name) of those it must share no host with."""
    scope, headroom = scope_of(workload), Headroom(vm, inventory)
    hosts: list[str] = []
    elsewhere: list[Rejection] = []
    refused: list[Rejection] = []
    known: dict[str | None, tuple[Rejection, ...]] = {}
    whole = bool(workload.device or workload.gpus)
    everywhere = device_hosts(inventory) if whole else gpu_hosts(inventory)
    for host in everywhere:
        outside = scope.outside(host, inventory)
        against = (
            () if outside else (*_here(workload, apart_from, host), *_by_release(vm, workload, host, catalog, known))
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


def _here(workload: Workload, apart_from: Sequence[tuple[str, str]], host: Host) -> Iterator[Rejection]:
    for ref, name in apart_from:
        if ref == host.ref:
            yield Rejection(host.name, f"holds {name}, of the same anti-affinity {workload.anti_affinity}")
    if workload.device_group is not None and all(group.name != workload.device_group for group in groups_of(host)):
        unread = host.config_target is None
        why = "its device groups were not read" if unread else f"does not offer device group {workload.device_group}"
        yield Rejection(host.name, why)


def _by_release(
    vm: Vm, workload: Workload, host: Host, catalog: Catalog, known: dict[str | None, tuple[Rejection, ...]]
) -> tuple[Rejection, ...]:
    """Why such a VM cannot be on this host. A VM that is made for its devices is judged by the host's release alone."""
    if host.version not in known:
        made = replace(vm, hardware_version=hardware_on(host.version))
        case = Case(made, made.devices or (), grouped=workload.device_group is not None, host=host, catalog=catalog)
        known[host.version], _ = findings(case)
    return known[host.version]
