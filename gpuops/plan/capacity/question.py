"""The room in all places, or in those that are meant; now, and after a night's suspends. `gpuops capacity` asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.capacity.fleet_part import FleetPart, Level, fleet_part
from gpuops.plan.capacity.host import HostRoom
from gpuops.plan.capacity.reserved import less_reserved
from gpuops.plan.core.command_line import Names, Option
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import SuspendVm
from gpuops.plan.devices.requested import offered_profile
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import around

STANDALONE = "standalone hosts"


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """Of which hosts the capacity is asked, and for which profile."""

    profile: Annotated[str | None, Option("Only this vGPU profile, place by place.", "NAME", Names.PROFILES)] = None
    cluster: Annotated[str | None, Option("Only this cluster, host by host.", "NAME", Names.CLUSTERS)] = None
    host: Annotated[
        str | None, Option("Only hosts named so (esx-0*), NUMA node by NUMA node.", "PATTERN", Names.HOSTS)
    ] = None

    @property
    def scope(self) -> Scope:
        """The hosts that are meant."""
        return Scope(self.cluster, self.host)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The room now and, where a policy was given, when all desktops that it may take are suspended."""

    inventory: Inventory
    profile: str | None
    """The profile that was asked for, as hosts offer it."""
    now: FleetPart
    after: FleetPart | None = None
    """Its places are those of `now`, in the same order."""
    desktops: int = 0
    """How many of these hosts' desktops are suspended for it."""
    suspended: tuple[str, ...] = ()
    """Names of the VMs that are suspended on these hosts already: what they come back to counts as free."""


def capacity(
    inventory: Inventory,
    catalog: Catalog,
    scope: Scope | None = None,
    desktops: Sequence[Vm] | None = None,
    *,
    profile: str | None = None,
) -> Capacity:
    """How many more vGPUs and whole devices fit on the hosts of the scope; of one `profile` alone, where one is given.

    `desktops` are those a night may suspend, None = no night is asked about.
    Raises HostNotFound, UsageError for a cluster that is not there, ProfileUnknown, and Refused for a profile
    that no host offers.
    """
    scope = scope or Scope()
    scope.check(inventory)
    profile = None if profile is None else offered_profile(profile, inventory, catalog)
    # a host without GPUs has nothing to say about a profile
    asked = scope.device_hosts(inventory) if profile is None else scope.hosts(inventory)
    hosts = [host for host in asked if _answers_for(host, profile)]
    room = HostRoom(catalog, inventory.offered_profiles, profile)
    before = {host.ref: room.of(host, inventory) for host in hosts}
    now, asleep = _tree(hosts, before, inventory, catalog), tuple(sorted(_asleep(hosts, inventory)))
    if desktops is None:
        return Capacity(inventory, profile, now, suspended=asleep)
    by_host = _by_host(desktops)
    after, night = dict(before), inventory
    for host in hosts:
        if host.ref in by_host:
            world = _suspended(host, by_host[host.ref], inventory, catalog)
            after[host.ref] = room.of(world.hosts[host.ref], world)
            night = night.with_vms(world.vms_on(host)).with_hosts([world.hosts[host.ref]])
    taken = sum(len(by_host.get(host.ref, ())) for host in hosts)
    return Capacity(inventory, profile, now, _tree(hosts, after, night, catalog), taken, asleep)


def night_of(inventory: Inventory, desktops: Iterable[Vm], catalog: Catalog) -> Inventory:
    """The snapshot when these desktops are suspended."""
    night = inventory
    for ref, there in _by_host(desktops).items():
        if ref is not None:
            world = _suspended(inventory.hosts[ref], there, inventory, catalog)
            night = night.with_vms(world.vms_on(inventory.hosts[ref])).with_hosts([world.hosts[ref]])
    return night


def _by_host(vms: Iterable[Vm]) -> dict[str | None, list[Vm]]:
    found: dict[str | None, list[Vm]] = {}
    for vm in vms:
        found.setdefault(vm.host, []).append(vm)
    return found


def _asleep(hosts: Iterable[Host], inventory: Inventory) -> Iterator[str]:
    for host in hosts:
        waiting = (vm for vm in inventory.vms_on(host) if vm.power is PowerState.SUSPENDED and vm.devices)
        yield from (vm.name for vm in waiting)


def _answers_for(host: Host, profile: str | None) -> bool:
    return profile is None or host.profiles is None or host.offers(profile) is not None


def _tree(hosts: Iterable[Host], rooms: Mapping[str, FleetPart], inventory: Inventory, catalog: Catalog) -> FleetPart:
    by_cluster: dict[str | None, list[Host]] = {}
    for host in hosts:
        by_cluster.setdefault(host.cluster if host.cluster in inventory.clusters else None, []).append(host)
    clusters = []
    for ref, members in by_cluster.items():
        places = [rooms[host.ref] for host in members]
        there = [inventory.hosts[host.ref] for host in members]
        if ref is None:
            places = [less_reserved(*each, inventory, catalog) for each in zip(places, zip(there), strict=True)]
        cluster = fleet_part(Level.CLUSTER, _name(ref, inventory), places)
        clusters.append(cluster if ref is None else less_reserved(cluster, there, inventory, catalog))
    # Hosts of no cluster come last, whatever the others are called.
    clusters.sort(key=lambda cluster: (cluster.name == STANDALONE, cluster.name))
    return fleet_part(Level.ALL, "all", clusters)


def _name(ref: str | None, inventory: Inventory) -> str:
    return STANDALONE if ref is None else inventory.clusters[ref].name


def _suspended(host: Host, desktops: Iterable[Vm], inventory: Inventory, catalog: Catalog) -> Inventory:
    """What there is of this host when its desktops are suspended."""
    listed = {ref for gpu in host.gpus for ref in gpu.vms or ()}
    world = around(host, inventory, *(inventory.vms[ref] for ref in listed if ref in inventory.vms))
    states = {state.gpu.address: state for state in gpu_states(host, inventory, catalog)}
    for vm in desktops:
        world = project(SuspendVm(vm.ref), world, catalog)
    after = world.hosts[host.ref]
    gpus = tuple(replace(gpu, vgpu_mode=_mode(states[gpu.address], catalog)) for gpu in after.gpus)
    return world.with_hosts([replace(after, gpus=gpus)])


def _mode(state: GpuState, catalog: Catalog) -> VgpuMode | None:
    """The mode of a GPU that is about to be emptied: where vCenter does not tell it, what runs there does.

    Before 8.0 Update 3 a GPU is in MIG mode or takes vGPUs of one size; suspending VMs changes neither.
    """
    running = [catalog.profile(tenant.profile) for tenant in state.tenants if tenant.certain]
    if state.gpu.vgpu_mode is not None or state.unclear or not running or None in running:
        return state.gpu.vgpu_mode
    mig_backed = any(profile is not None and profile.mig_backed for profile in running)
    return VgpuMode.MULTI_INSTANCE if mig_backed else VgpuMode.SAME_SIZE
