"""Scope: which hosts a workload may go to by what is asked of them, whatever room they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.model.workload import Workload
from gpuops.plan.device_rules import Case, findings
from gpuops.plan.plan import Rejection


@dataclass(frozen=True, slots=True)
class Scope:
    """The hosts to look at, and why each of the others is none of them."""

    hosts: tuple[str, ...]
    """Refs, by the hosts' names: the order in which equals are chosen."""
    elsewhere: tuple[Rejection, ...]
    """Hosts outside of what was asked for: told on demand, no reason by itself."""
    refused: tuple[Rejection, ...]
    """Hosts inside of it that can never run such a VM, or may not run this one too."""


def gpu_hosts(inventory: Inventory) -> tuple[Host, ...]:
    """The hosts with GPUs, by name."""
    found = (host for host in inventory.hosts.values() if host.gpus)
    return tuple(sorted(found, key=lambda host: (host.name, host.ref)))


def scope_of(
    workload: Workload, vm: Vm, apart_from: Sequence[tuple[str, str]], inventory: Inventory, catalog: Catalog
) -> Scope:
    """Where the workload may go. `apart_from` are (host ref, name) of those it must share no host with."""
    hosts: list[str] = []
    elsewhere: list[Rejection] = []
    refused: list[Rejection] = []
    for host in gpu_hosts(inventory):
        outside = _outside(workload, host, inventory)
        against = () if outside else tuple(_against(workload, vm, apart_from, host, catalog))
        if outside is not None:
            elsewhere.append(outside)
        elif against:
            refused += against
        else:
            hosts.append(host.ref)
    if len(elsewhere) == len(gpu_hosts(inventory)):
        refused.append(_nowhere(workload, inventory))
    return Scope(tuple(hosts), tuple(elsewhere), tuple(dict.fromkeys(refused)))


def _outside(workload: Workload, host: Host, inventory: Inventory) -> Rejection | None:
    if workload.cluster is not None and _cluster(host, inventory) != workload.cluster:
        return Rejection(host.name, f"is not in cluster {workload.cluster}")
    if workload.host is not None and not fnmatchcase(host.name, workload.host):
        return Rejection(host.name, f"its name does not fit {workload.host}")
    return None


def _against(
    workload: Workload, vm: Vm, apart_from: Sequence[tuple[str, str]], host: Host, catalog: Catalog
) -> Iterator[Rejection]:
    for ref, name in apart_from:
        if ref == host.ref:
            yield Rejection(host.name, f"holds {name}, of the same anti-affinity {workload.anti_affinity}")
    blockers, _ = findings(Case(vm, vm.devices or (), grouped=False, host=host, catalog=catalog))
    yield from blockers


def _nowhere(workload: Workload, inventory: Inventory) -> Rejection:
    if workload.cluster is None and workload.host is None:
        return Rejection(workload.name, "no host in this vCenter has a GPU")
    asked = [f"in cluster {workload.cluster}"] if workload.cluster is not None else []
    asked += [f"named {workload.host}"] if workload.host is not None else []
    clusters = {name for host in gpu_hosts(inventory) if (name := _cluster(host, inventory)) is not None}
    hint = f"clusters with GPUs: {', '.join(sorted(clusters)) or 'none'}; gpuops inventory shows the hosts"
    return Rejection(workload.name, f"no host with a GPU is {' and '.join(asked)}", hint=hint)


def _cluster(host: Host, inventory: Inventory) -> str | None:
    cluster = inventory.clusters.get(host.cluster) if host.cluster else None
    return cluster.name if cluster else None
