"""Plans where the running VMs of some hosts go while these are down, and in which order they return.

The largest VM leaves first, to the host with the most free memory. If a VM then finds no room,
`plan/moving/places.py` searches other orders and hosts. VMs return in an order in which each finds a GPU again.

Sources: VMware vSphere docs, maintenance mode (powered-on VMs must leave; DRS moves VMs itself, but VMs with a vGPU
only if its advanced options say so). `plan/moving/movability.py` decides when a VM may be moved at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from gpuops.advise.managed_vms import is_cluster_agent, left_to_manager, lending_reason, managed_elsewhere
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import Displacement
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, is_gpu, pins_of
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, RelocateVm, ShutDownGuest, Step
from gpuops.plan.moving.movability import (
    OPT_OUT,
    MovabilityCase,
    MoveMethod,
    TargetHosts,
    admitted_moves,
    judge_movability,
)
from gpuops.plan.moving.places import find_places
from gpuops.plan.moving.vmotion_stun import too_long
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.suspended_vms import return_order
from gpuops.plan.placement.vm_demand import demands_of


class Leaving(StrEnum):
    """How a VM leaves a host."""

    VMOTION = "vMotion"
    DRS = "DRS"
    """vCenter moves it when the host enters maintenance mode; gpuops does not bring it back."""
    SHUT_DOWN = "shut down"
    POWER_OFF = "shut down, or powered off"


LEAVES_BY: Final = {
    Leaving.VMOTION: "vmotion",
    Leaving.DRS: "drs",
    Leaving.SHUT_DOWN: "shut_down",
    Leaving.POWER_OFF: "power_off",
}
"""The names of these in JSON documents and journals."""


@dataclass(frozen=True, slots=True)
class Away:
    """A VM that leaves its host. `target` is where it runs meanwhile; None = it is off, or DRS chooses."""

    vm: Vm
    leaving: Leaving
    target: Host | None = None
    why: tuple[str, ...] = ()
    """Why the VM is shut down and not moved."""


@dataclass(frozen=True, slots=True)
class Staying:
    """A VM that cannot leave its host."""

    vm: Vm
    rejection: Rejection
    reasons: tuple[str, ...]
    """The reasons in the rejection, without the name of the VM."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """The VMs that leave, by host (ref) and in order, and the VMs that cannot leave."""

    away: dict[str, tuple[Away, ...]]
    stays: tuple[Staying, ...]
    proven: bool = True
    """False if the search stopped early: an order of moves that empties the hosts may exist."""

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Why the hosts cannot be emptied; () = they can."""
        return tuple(staying.rejection for staying in self.stays)


def empty_hosts(hosts: Sequence[Host], vms: Displacement, inventory: Inventory, catalog: Catalog) -> Emptied:
    """Plan how all running VMs of these hosts leave. `vms`: whether a VM that cannot be moved may be shut down."""
    down = [replace(host, in_maintenance=True) for host in hosts]
    before = inventory.with_hosts(down)
    # First attempt: one VM after another, the largest first, each to the best host.
    world = _World(before, catalog, vms)
    outcome = Emptied({host.ref: tuple(world.leave(host)) for host in down}, tuple(world.stays))
    if not world.roomless:
        return outcome

    def admit(vm: Vm, host: Host, world: Inventory) -> Inventory | None:
        step = RelocateVm(vm.ref, host.ref)
        return project(step, world, catalog) if admitted_moves([step], world, catalog) else None

    # A VM found no room: search other orders and hosts, first for all VMs. If VMs may be shut down, search then for
    # those alone that cannot be shut down.
    proven, untouched = True, _World(before, catalog, vms)
    for only_unstoppable in (False, True) if vms is not Displacement.MOVE else (False,):
        leaving_vms: list[list[Vm]] = []
        targets: dict[str, list[str]] = {}
        for host in down:
            movable = [vm for vm in untouched.leaving_order(host) if vm.ref in world.movable]
            if only_unstoppable:
                movable = [vm for vm in movable if any(_obstacles_to_shutdown(vm))]
            leaving_vms.append(movable)
            for vm in movable:
                takers, _ = untouched.takers(vm, host)
                targets[vm.ref] = [taker.ref for taker in takers]
        places = find_places(leaving_vms, targets, before, admit)
        if places.places is not None:
            retried = _World(before, catalog, vms, chosen_targets={vm.ref: target for vm, target in places.places})
            return Emptied({host.ref: tuple(retried.leave(host)) for host in down}, tuple(retried.stays))
        proven = proven and places.complete  # False: the search gave up, a way may exist
    return replace(outcome, proven=proven)


def running_vms_on(host: Host, inventory: Inventory) -> list[Vm]:
    """Return the VMs that run on the host or may run, those with the most devices and memory first."""
    vms = [vm for vm in inventory.vms_on(host) if vm.power in (PowerState.ON, None) and not vm.template]
    return sorted(vms, key=lambda vm: (-len(vm.devices or ()), -(vm.memory_mib or 0), vm.name, vm.ref))


def stun_hosts(hosts: Iterable[Host], inventory: Inventory) -> frozenset[str]:
    """Return refs of the hosts whose stun estimates are needed to empty these hosts: all with GPUs in the clusters of
    those from which a VM with a vGPU must leave."""
    leaving = (host for host in hosts if any(vm.vgpus for vm in running_vms_on(host, inventory)))
    clusters = {host.cluster for host in leaving if host.cluster is not None}
    gpu_hosts = (host for host in inventory.hosts.values() if host.cluster in clusters and host.gpus)
    return frozenset(host.ref for host in gpu_hosts if host.connected is True)


@dataclass(slots=True)
class _World:
    """The snapshot after the departures that were planned so far."""

    inventory: Inventory
    catalog: Catalog
    vms: Displacement
    chosen_targets: Mapping[str, Host] = field(default_factory=dict)
    """Targets by ref of VM, in the order in which the VMs leave. For other VMs a target is still to be chosen."""
    stays: list[Staying] = field(default_factory=list)
    movable: set[str] = field(default_factory=set)
    """Refs of the VMs that may be moved."""
    roomless: bool = False
    """Whether a VM that may be moved found no room."""

    def leaving_order(self, host: Host) -> list[Vm]:
        """Return the VMs of the host in the order of leaving: those with a chosen target, then the largest first."""
        positions = {ref: position for position, ref in enumerate(self.chosen_targets)}
        by_size = sorted(running_vms_on(host, self.inventory), key=self._size, reverse=True)
        return sorted(by_size, key=lambda vm: positions.get(vm.ref, len(positions)))

    def leave(self, host: Host) -> Iterator[Away]:
        """Yield the VMs that leave the host, and update the snapshot; VMs that cannot leave go to `stays`."""
        for vm in self.leaving_order(host):
            departure = self._plan_departure(vm, host)
            if isinstance(departure, Staying):
                self.stays.append(departure)
                continue
            # A VM that DRS moves stays in the snapshot, since its target is unknown.
            if departure.leaving is Leaving.VMOTION and departure.target is not None:
                self.inventory = project(RelocateVm(vm.ref, departure.target.ref), self.inventory, self.catalog)
            elif departure.leaving is not Leaving.DRS:
                self.inventory = project(PowerOffVm(vm.ref), self.inventory, self.catalog)
            yield departure

    def _size(self, vm: Vm) -> tuple[int, int]:
        """Return the frame buffers of its vGPUs and its memory, in MiB."""
        profiles = [self.catalog.profile(name) for name in vm.profiles]
        return sum(profile.framebuffer_mib for profile in profiles if profile is not None), vm.memory_mib or 0

    def _plan_departure(self, vm: Vm, host: Host) -> Away | Staying:
        """Plan how the VM leaves. In this order: by DRS, by vMotion, by a shutdown; or return why it cannot leave."""
        cluster = self.inventory.clusters.get(host.cluster or "")
        movability = judge_movability(MovabilityCase(vm, host, cluster, self.inventory, self.catalog, (OPT_OUT,)))
        if is_cluster_agent(vm) or self._drs_moves(vm, host):
            return Away(vm, Leaving.DRS)
        managed = left_to_manager(vm)
        if managed is not None:
            hint = f"move or stop {vm.name} with its manager: gpuops does not change managed VMs"
            rule = f"{vm.name} cannot leave the host while it runs: {managed}"
            return Staying(vm, Rejection(host.name, rule, hint=hint), (managed,))
        lending = lending_reason(vm)
        if lending is not None:  # a shutdown would cut off its clients
            rule = f"{vm.name} cannot leave the host while it runs: {lending}"
            hint = f"run {command('pool reclaim', server=called(vm))} first: its clients then get the pool's grace time"
            return Staying(vm, Rejection(host.name, rule, hint=hint), (lending,))
        # Without a GPU device, the reasons against vMotion (they concern vGPUs) do not count.
        has_gpu = any(map(is_gpu, vm.devices or ()))
        reasons = movability.reasons
        if movability.way is MoveMethod.VMOTION or (movability.way is not MoveMethod.NOT and not has_gpu):
            target, reasons = self._target(vm, host)
            if target is not None:
                return Away(vm, Leaving.VMOTION, target)
        return self._plan_shutdown(vm, host, reasons)

    def _drs_moves(self, vm: Vm, host: Host) -> bool:
        """Return whether DRS moves the VM itself: it is fully automated for this VM, which has no GPU device."""
        cluster = self.inventory.clusters.get(host.cluster or "")
        if cluster is None or cluster.drs_enabled is not True or vm.devices is None or any(map(is_gpu, vm.devices)):
            return False
        behavior = dict(cluster.drs_overrides).get(vm.ref, cluster.drs_behavior)
        return behavior == "fullyAutomated" and vm.ref not in cluster.drs_excluded

    def _target(self, vm: Vm, host: Host) -> tuple[Host | None, tuple[str, ...]]:
        """Return the host with the most free memory that certainly takes the VM, or None and the reasons."""
        takers, reasons = self.takers(vm, host)
        self.movable.add(vm.ref)
        chosen = self.chosen_targets.get(vm.ref)
        for target in takers if chosen is None else (self.inventory.hosts[chosen.ref],):
            if admitted_moves([RelocateVm(vm.ref, target.ref)], self.inventory, self.catalog):
                return target, ()
        self.roomless = True
        no_room = tuple(f"{taker.name}: it is not certain that the VM has room" for taker in takers)
        return None, (*reasons, *no_room) or ("no other host in its cluster",)

    def takers(self, vm: Vm, host: Host) -> tuple[list[Host], tuple[str, ...]]:
        """Return the hosts of the cluster that may take the VM, and why the others may not.

        Free GPUs are not checked yet. The host with the largest free share of its memory comes first.
        """
        cluster = self.inventory.clusters.get(host.cluster or "")
        cluster_hosts = [
            other for other in self.inventory.hosts.values() if other.cluster == host.cluster and other.ref != host.ref
        ]
        refs, refusals = TargetHosts(cluster_hosts, cluster, self.inventory).of(vm, running=True)
        fitting_hosts: list[Host] = []
        reasons = list(map(str, refusals))
        for other in cluster_hosts:
            stun_problem = too_long(vm, host, other, cluster) if other.ref in refs else None
            if stun_problem is not None:
                reasons.append(str(stun_problem))
            elif other.ref in refs:
                fitting_hosts.append(other)
        fitting_hosts.sort(key=lambda other: ((other.memory_used_mib or 0) / (other.memory_mib or 1), other.name))
        return fitting_hosts, tuple(reasons)

    def _plan_shutdown(self, vm: Vm, host: Host, move_reasons: tuple[str, ...]) -> Away | Staying:
        """Plan a shutdown because the VM cannot be moved (`move_reasons`), if the request and the guest allow it."""
        obstacles, reasons = tuple(_obstacles_to_shutdown(vm)), tuple(dict.fromkeys(move_reasons))
        if len(reasons) > 3:  # a large cluster has a reason for each host
            reasons = (*reasons[:3], f"and {len(reasons) - 3} more")
        if self.vms is not Displacement.MOVE and not obstacles:
            powered_off = self.vms is Displacement.POWER_OFF
            return Away(vm, Leaving.POWER_OFF if powered_off else Leaving.SHUT_DOWN, None, reasons)
        rule = f"{vm.name} cannot leave the host while it runs: {'; '.join(reasons)}"
        if self.vms is not Displacement.MOVE:
            rule = f"{vm.name} can be neither moved nor shut down: {'; '.join((*reasons, *obstacles))}"
        hint = f"shut {vm.name} down, or let the rolling change do so with --running-vms shut-down"
        if obstacles:
            hint = f"remove these obstacles, or shut {vm.name} down yourself"
        return Staying(vm, Rejection(host.name, rule, hint=hint), reasons)


def _obstacles_to_shutdown(vm: Vm) -> Iterator[str]:
    """Yield why gpuops cannot, or must not, shut the guest down."""
    is_opted_out = OPT_OUT.on(vm)
    if is_opted_out is not False:
        yield f"opted out ({OPT_OUT})" if is_opted_out else f"{OPT_OUT} cannot be read"
    if vm.power is None or vm.connected is not True:
        yield "whether it runs cannot be read"
    if vm.question is not None:
        yield "waits for an answer to a question"
    if vm.tasks:
        yield f"a task is running on it ({vm.tasks[0].name})"
    if vm.tools_running is not True:
        yield "VMware Tools do not run in it, or their state is unknown"


GUEST_GRACE_S = 300
"""Seconds that a guest has to shut down (the default of ShutDownGuest)."""


def plan_departures(departures: Iterable[Away]) -> Plan:
    """Return the plan of the departures. Guests shut down at once; a target host receives one VM after another."""
    # The wave with index n holds the arrival number n of each target host.
    waves: list[list[Step]] = [[]]
    arrivals: dict[str, int] = {}
    for departure in departures:
        if departure.leaving is Leaving.VMOTION and departure.target is not None:
            number = arrivals.get(departure.target.ref, 0)
            arrivals[departure.target.ref] = number + 1
            waves += [[] for _ in range(number + 1 - len(waves))]
            waves[number].append(RelocateVm(departure.vm.ref, departure.target.ref))
        elif departure.leaving in (Leaving.SHUT_DOWN, Leaving.POWER_OFF):
            then_off = departure.leaving is Leaving.POWER_OFF
            waves[0].append(ShutDownGuest(departure.vm.ref, GUEST_GRACE_S, then_off))
    return Plan(tuple(Wave("empty the hosts", tuple(steps)) for steps in waves if steps), disruptive=True)


def plan_return(
    host: Host, stopped: Iterable[Vm], moved: Iterable[Vm], inventory: Inventory, catalog: Catalog
) -> tuple[Plan, tuple[str, ...]]:
    """Plan the return of the VMs to the host: starts of the `stopped`, moves of the `moved`.

    The second result has a line for each VM that is left alone, because someone else changed it meanwhile.
    """
    return_steps: dict[str, tuple[Vm, Step]] = {}
    remarks: list[str] = []
    for vm in stopped:
        if vm.power is PowerState.OFF and (managed := managed_elsewhere(vm)) is not None:
            remarks.append(f"{vm.name} {managed}; left off")
        elif vm.power is PowerState.OFF:
            return_steps[vm.ref] = vm, PowerOnVm(vm.ref, host.ref)
        elif vm.power is not PowerState.ON:
            remarks.append(f"{vm.name} is {vm.power or 'in an unreadable power state'}: not started")
    for vm in moved:
        if vm.host != host.ref and (managed := managed_elsewhere(vm)) is not None:
            remarks.append(f"{vm.name} {managed}; left where it is")
        elif vm.power is PowerState.ON and vm.host != host.ref:
            return_steps[vm.ref] = vm, RelocateVm(vm.ref, host.ref)
        elif vm.power is not PowerState.ON:
            remarks.append(f"{vm.name} is {vm.power or 'in an unreadable power state'} by now: left where it is")
    # VMs without vGPUs start last and together: they need no slot of a GPU.
    without_vgpus = [step for vm, step in return_steps.values() if not vm.profiles]
    first, later_vms = _in_order([vm for vm, _ in return_steps.values() if vm.profiles], host, inventory, catalog)
    waves = [Wave("bring the VMs back", (return_steps[vm.ref][1],)) for vm in first]
    later_steps = (*(return_steps[vm.ref][1] for vm in later_vms), *without_vgpus)
    return Plan((*waves, Wave("bring the VMs back", later_steps)) if later_steps else tuple(waves)), tuple(remarks)


def names_without_place_on_return(
    host: Host, departures: Iterable[Away], inventory: Inventory, catalog: Catalog
) -> tuple[str, ...]:
    """Return the names of the VMs that may find no free GPU on their return, even if no other VM came meanwhile."""
    vms = [departure.vm for departure in departures if departure.leaving is not Leaving.DRS and departure.vm.profiles]
    first, later_vms = _in_order(vms, host, inventory, catalog)
    for vm in vms:
        inventory = project(PowerOffVm(vm.ref), inventory)
    names = []
    for vm in (*first, *later_vms):
        seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), inventory.hosts[host.ref], inventory, catalog)
        if not seating.complete:
            names.append(vm.name)
        inventory = project(PowerOnVm(vm.ref, host.ref), inventory, catalog)
    return tuple(names)


def _in_order(vms: list[Vm], host: Host, inventory: Inventory, catalog: Catalog) -> tuple[list[Vm], list[Vm]]:
    """Return the VMs that must return one after another, in this order, and those that may then return together.

    VMs that are pinned to a GPU come first, because the others may use any GPU.
    """
    # the host as it is while none of them is there: `return_order` takes VMs that are off on it
    for vm in vms:
        if vm.power is PowerState.ON:
            inventory = project(PowerOffVm(vm.ref), inventory)
        inventory = inventory.with_vm(replace(inventory.vm(vm.ref), host=host.ref))
    pinned = [inventory.vm(vm.ref) for vm in vms if pins_of(vm)]
    for vm in pinned:
        inventory = project(PowerOnVm(vm.ref, host.ref), inventory, catalog)
    first, later_vms = return_order([inventory.vm(vm.ref) for vm in vms if not pins_of(vm)], inventory, catalog)
    return [*pinned, *first], later_vms
