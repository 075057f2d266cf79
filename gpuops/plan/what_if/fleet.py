"""All changes of a question on one snapshot: hardware and profiles, then who starts anew, then more VMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.model.devices.catalog import Catalog
from gpuops.model.fleet_change import AddVms, ApplyLayout, ChangeProfile, FleetChange
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.hosts.readiness.loss import Stranded, restarted
from gpuops.plan.placement.project import project
from gpuops.plan.what_if.hardware import with_hardware
from gpuops.plan.what_if.layouts import with_layout
from gpuops.plan.what_if.vms import with_more_vms, with_profile


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
        """What was changed and what follows for the VMs that ran there, one line for each."""
        return (
            *(f"as if: {change}" for change in self.done),
            *self.notes,
            *(f"{vm.name} would start anew on {host.name}" for vm, host in self.restarts),
            *(f"{each.vm.name} would find no place: {each.reasons[0]}" for each in self.stranded),
        )


def changed_fleet(
    changes: Sequence[FleetChange], inventory: Inventory, catalog: Catalog, policy: Policy | None, seed: int
) -> ChangedFleet:
    """The snapshot after all of these. Raises UsageError, HostNotFound and ProfileUnknown for what is not there."""
    world = inventory
    done: list[str] = []
    notes: list[str] = []
    displaced: list[str] = []
    for number, change in enumerate(changes, 1):
        if isinstance(change, AddVms):
            continue
        if isinstance(change, ChangeProfile):
            found = with_profile(change, world, catalog, policy)
        elif isinstance(change, ApplyLayout):
            found = with_layout(change, world, catalog)
        else:
            found = with_hardware(change, number, world, catalog)
        world = found.inventory
        done.append(found.done)
        notes += found.notes
        displaced += found.displaced
    fleet = _started_anew(list(dict.fromkeys(displaced)), world, catalog)
    world, asked, ran = fleet.inventory, 0, 0
    for number, change in enumerate(changes, 1):
        if isinstance(change, AddVms):
            more = with_more_vms(change, number, world, catalog, policy, seed)
            world = more.inventory
            asked, ran = asked + more.asked, ran + more.placed
            done.append(more.done)
    return ChangedFleet(world, tuple(done), tuple(notes), fleet.restarts, fleet.stranded, fleet.proven, asked, ran)


def _started_anew(refs: Sequence[str], inventory: Inventory, catalog: Catalog) -> ChangedFleet:
    """The snapshot in which those of these VMs run again that find a place in their cluster, their own host first."""
    clusters: dict[str | None, list[Vm]] = {}
    for ref in refs:
        vm = inventory.vms[ref]
        host = inventory.host_of(vm)
        clusters.setdefault(host.cluster or host.ref if host is not None else None, []).append(vm)
    world, proven = inventory, True
    restarts: list[tuple[Vm, Host]] = []
    stranded: list[Stranded] = []
    for there, vms in clusters.items():
        hosts = [host for host in world.hosts.values() if there in (host.cluster, host.ref)]
        cluster = there if there in world.clusters else None
        found = restarted(vms, [host for host in hosts if host.connected is True], cluster, world, catalog)
        for vm, host in found.places:
            world = project(PowerOnVm(vm.ref, host.ref), world, catalog)
        restarts += found.places
        stranded += found.stranded
        proven = proven and found.proven
    return ChangedFleet(world, restarts=tuple(restarts), stranded=tuple(stranded), proven=proven)
