"""All changes of a question on one snapshot: hardware and profiles, then who starts anew, then more VMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.extras.sizing.what_if.hardware import with_hardware
from gpuops.extras.sizing.what_if.layouts import with_layout
from gpuops.extras.sizing.what_if.vms import with_more_vms, with_profile
from gpuops.model.devices.catalog import Catalog
from gpuops.model.fleet_change import AddVms, ApplyLayout, ChangeProfile, FleetChange
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.hosts.readiness.loss import Stranded, find_restarts
from gpuops.plan.placement.project import project


@dataclass(frozen=True, slots=True)
class ChangedFleet:
    """A snapshot after changes, or without any."""

    inventory: Inventory
    done: tuple[str, ...] = ()
    """Each change in words."""
    notes: tuple[str, ...] = ()
    restarts: tuple[tuple[Vm, Host], ...] = ()
    """The VMs that start anew, and where."""
    stranded: tuple[Stranded, ...] = ()
    """Those that ran and find no place any more."""
    proven: bool = True
    """False: not every way was tried; there may be a place for each of the stranded ones."""
    more_asked: int = 0
    more_placed: int = 0
    """Of the VMs that were added, and those that run."""

    @property
    def in_words(self) -> tuple[str, ...]:
        """Return what was changed and what follows for the VMs that ran there, one line for each."""
        return (
            *(f"as if: {change}" for change in self.done),
            *self.notes,
            *(f"{vm.name} would start anew on {host.name}" for vm, host in self.restarts),
            *(f"{stranded_vm.vm.name} would find no place: {stranded_vm.reasons[0]}" for stranded_vm in self.stranded),
        )


def changed_fleet(
    changes: Sequence[FleetChange], inventory: Inventory, catalog: Catalog, policy: Policy | None, seed: int
) -> ChangedFleet:
    """Return the snapshot after all of these.

    Raises UsageError, HostNotFound and ProfileUnknown for what is not there.
    """
    world = inventory
    change_texts: list[str] = []
    notes: list[str] = []
    displaced: list[str] = []
    for number, change in enumerate(changes, 1):
        if isinstance(change, AddVms):
            continue
        if isinstance(change, ChangeProfile):
            changed = with_profile(change, world, catalog, policy)
        elif isinstance(change, ApplyLayout):
            changed = with_layout(change, world, catalog)
        else:
            changed = with_hardware(change, number, world, catalog)
        world = changed.inventory
        change_texts.append(changed.done)
        notes += changed.notes
        displaced += changed.displaced
    fleet = _restart_displaced(list(dict.fromkeys(displaced)), world, catalog)
    world, asked_count, ran = fleet.inventory, 0, 0
    for number, change in enumerate(changes, 1):
        if isinstance(change, AddVms):
            addition = with_more_vms(change, number, world, catalog, policy, seed)
            world = addition.inventory
            asked_count, ran = asked_count + addition.asked, ran + addition.placed
            change_texts.append(addition.done)
    return ChangedFleet(
        world, tuple(change_texts), tuple(notes), fleet.restarts, fleet.stranded, fleet.proven, asked_count, ran
    )


def _restart_displaced(refs: Sequence[str], inventory: Inventory, catalog: Catalog) -> ChangedFleet:
    """The snapshot in which those of these VMs run again that find a place in their cluster, their own host first."""
    clusters: dict[str | None, list[Vm]] = {}
    for ref in refs:
        vm = inventory.vms[ref]
        host = inventory.host_of(vm)
        clusters.setdefault(host.cluster or host.ref if host is not None else None, []).append(vm)
    world, proven = inventory, True
    restarts: list[tuple[Vm, Host]] = []
    stranded: list[Stranded] = []
    for cluster_or_host, vms in clusters.items():
        hosts = [host for host in world.hosts.values() if cluster_or_host in (host.cluster, host.ref)]
        cluster = cluster_or_host if cluster_or_host in world.clusters else None
        loss = find_restarts(vms, [host for host in hosts if host.connected is True], cluster, world, catalog)
        for vm, host in loss.places:
            world = project(PowerOnVm(vm.ref, host.ref), world, catalog)
        restarts += loss.places
        stranded += loss.stranded
        proven = proven and loss.proven
    return ChangedFleet(world, restarts=tuple(restarts), stranded=tuple(stranded), proven=proven)
