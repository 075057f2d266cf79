"""Where each running VM of some hosts goes while they are down, or why it can go nowhere; and in which order VMs
return.

The largest VM leaves first, for the host with the most free memory; where one then finds no room,
`plan/moving/places.py` tries other orders and hosts. VMs return in an order in which all of them find their GPUs again.

Sources: VMware vSphere docs, maintenance mode (powered-on VMs must leave; DRS moves by itself what it may, never VMs
with a vGPU unless told so); `plan/moving/movability.py` says when a VM may be moved at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Final

from gpuops.advise.managed_vms import is_cluster_agent, left_to_manager, lends, managed_elsewhere
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import Displacement
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, is_gpu, pins_of
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.plan import Plan, Rejection, Wave
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, RelocateVm, ShutDownGuest, Step
from gpuops.plan.moving.movability import (
    OPT_OUT,
    Movability,
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
"""What documents call each way to leave a host."""


@dataclass(frozen=True, slots=True)
class Away:
    """One VM, while its host is down. `target` is where it runs meanwhile; None = nowhere, or where DRS puts it."""

    vm: Vm
    leaving: Leaving
    target: Host | None = None
    why: tuple[str, ...] = ()
    """Why it is not moved."""


@dataclass(frozen=True, slots=True)
class Staying:
    """A VM that cannot leave its host, and why."""

    vm: Vm
    rejection: Rejection
    reasons: tuple[str, ...]
    """Those of the rejection, for a text that names several VMs."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """Emptied hosts: by host the VMs that leave it, in order, and every VM that cannot leave."""

    away: dict[str, tuple[Away, ...]]
    stays: tuple[Staying, ...]
    proven: bool = True
    """False: not every order of moves was tried; there may be one that empties them."""

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Return why they cannot be emptied; () = they can."""
        return tuple(staying.rejection for staying in self.stays)


def empty_hosts(hosts: Sequence[Host], vms: Displacement, inventory: Inventory, catalog: Catalog) -> Emptied:
    """Return all running VMs of these hosts placed on others, the largest first, each beside those before it."""
    down = [replace(host, in_maintenance=True) for host in hosts]
    before = inventory.with_hosts(down)
    world = _World(before, catalog, vms)
    outcome = Emptied({host.ref: tuple(world.leave(host)) for host in down}, tuple(world.stays))
    if not world.roomless:
        return outcome
    proven, first = True, _World(before, catalog, vms)
    for chosen in _choices(vms):
        leave = [[vm for vm in first.in_order(host) if chosen(vm) and vm.ref in world.movable] for host in down]
        targets = {
            vm.ref: [taker.ref for taker in first.takers(vm, host)[0]]
            for host, group in zip(down, leave, strict=True)
            for vm in group
        }
        places = find_places(leave, targets, before, partial(_project_move, catalog=catalog))
        if places.places is not None:
            retried = _World(before, catalog, vms, chosen_targets={vm.ref: target for vm, target in places.places})
            return Emptied({host.ref: tuple(retried.leave(host)) for host in down}, tuple(retried.stays))
        proven = proven and places.whole
    return replace(outcome, proven=proven)


def _choices(vms: Displacement) -> Iterator[Callable[[Vm], bool]]:
    """Whom to find places for, one attempt after another: all; then those alone who cannot be stopped instead."""
    yield lambda vm: True
    if vms is not Displacement.MOVE:
        yield lambda vm: any(_against_stopping(vm))


def _project_move(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Inventory | None:
    step = RelocateVm(vm.ref, host.ref)
    return project(step, inventory, catalog) if admitted_moves([step], inventory, catalog) else None


def runs_there(host: Host, inventory: Inventory) -> list[Vm]:
    """Return the VMs that must leave the host, or may have to: largest first."""
    vms = [vm for vm in inventory.vms_on(host) if vm.power in (PowerState.ON, None) and not vm.template]
    return sorted(vms, key=lambda vm: (-len(vm.devices or ()), -(vm.memory_mib or 0), vm.name, vm.ref))


def stun_hosts(hosts: Iterable[Host], inventory: Inventory) -> frozenset[str]:
    """Refs of the hosts whose stun estimates matter when these are emptied: all with GPUs of the clusters in which a
    VM with a vGPU must leave one of these."""
    leaving = (host for host in hosts if any(vm.vgpus for vm in runs_there(host, inventory)))
    clusters = {host.cluster for host in leaving if host.cluster is not None}
    near = (host for host in inventory.hosts.values() if host.cluster in clusters and host.gpus)
    return frozenset(host.ref for host in near if host.connected is True)


@dataclass(slots=True)
class _World:
    """The snapshot as the VMs that left so far have made it."""

    inventory: Inventory
    catalog: Catalog
    vms: Displacement
    chosen_targets: Mapping[str, Host] = field(default_factory=dict)
    """By ref of a VM where it goes, in the order in which they leave; of the others that is still to be found."""
    stays: list[Staying] = field(default_factory=list)
    movable: set[str] = field(default_factory=set)
    """Refs of the VMs that may be moved."""
    roomless: bool = False
    """Whether a VM that may be moved found no room."""

    def in_order(self, host: Host) -> list[Vm]:
        """Return the VMs that leave the host: those whose place is known, then the largest first."""
        turns = {ref: turn for turn, ref in enumerate(self.chosen_targets)}
        by_size = sorted(runs_there(host, self.inventory), key=self._size, reverse=True)
        return sorted(by_size, key=lambda vm: turns.get(vm.ref, len(turns)))

    def leave(self, host: Host) -> Iterator[Away]:
        for vm in self.in_order(host):
            departure = self._plan_departure(vm, host)
            if isinstance(departure, Staying):
                self.stays.append(departure)
                continue
            if departure.leaving is Leaving.VMOTION and departure.target is not None:
                self.inventory = project(RelocateVm(vm.ref, departure.target.ref), self.inventory, self.catalog)
            elif departure.leaving is not Leaving.DRS:
                self.inventory = project(PowerOffVm(vm.ref), self.inventory, self.catalog)
            yield departure

    def _size(self, vm: Vm) -> tuple[int, int]:
        profiles = [self.catalog.profile(name) for name in vm.profiles]
        return sum(profile.framebuffer_mib for profile in profiles if profile is not None), vm.memory_mib or 0

    def _plan_departure(self, vm: Vm, host: Host) -> Away | Staying:
        cluster = self.inventory.clusters.get(host.cluster or "")
        stands = judge_movability(MovabilityCase(vm, host, cluster, self.inventory, self.catalog, (OPT_OUT,)))
        if is_cluster_agent(vm) or self._drs_moves(vm, host):
            return Away(vm, Leaving.DRS)
        managed = left_to_manager(vm)
        if managed is not None:
            hint = f"have its manager move or stop {vm.name}: gpuops changes no VM of others"
            rule = f"{vm.name} cannot leave it while it runs: {managed}"
            return Staying(vm, Rejection(host.name, rule, hint=hint), (managed,))
        lending = lends(vm)
        if lending is not None:  # nor is it shut down under its clients: it is drained first
            rule = f"{vm.name} cannot leave it while it runs: {lending}"
            hint = f"{command('pool reclaim', server=called(vm))} drains it; its clients have the pool's grace"
            return Staying(vm, Rejection(host.name, rule, hint=hint), (lending,))
        if _may_move(vm, stands):
            target, reasons = self._target(vm, host)
            if target is not None:
                return Away(vm, Leaving.VMOTION, target)
        else:
            reasons = stands.reasons
        return self._plan_shutdown(vm, host, reasons)

    def _drs_moves(self, vm: Vm, host: Host) -> bool:
        """Whether DRS moves it by itself: fully automated, for this VM too, and a VM without devices of the host."""
        cluster = self.inventory.clusters.get(host.cluster or "")
        if cluster is None or cluster.drs_enabled is not True or vm.devices is None or any(map(is_gpu, vm.devices)):
            return False
        behavior = dict(cluster.drs_overrides).get(vm.ref, cluster.drs_behavior)
        return behavior == "fullyAutomated" and vm.ref not in cluster.drs_excluded

    def _target(self, vm: Vm, host: Host) -> tuple[Host | None, tuple[str, ...]]:
        """Return the host with the most free memory that surely takes it; or what each of them says."""
        takers, reasons = self.takers(vm, host)
        self.movable.add(vm.ref)
        chosen = self.chosen_targets.get(vm.ref)
        for target in takers if chosen is None else (self.inventory.hosts[chosen.ref],):
            if admitted_moves([RelocateVm(vm.ref, target.ref)], self.inventory, self.catalog):
                return target, ()
        self.roomless = True
        full = tuple(f"{taker.name}: no room that is certain" for taker in takers)
        return None, (*reasons, *full) or ("no other host in its cluster",)

    def takers(self, vm: Vm, host: Host) -> tuple[list[Host], tuple[str, ...]]:
        """(the hosts that may take it, had they the GPUs, the one with the most free memory first; what the others
        say)."""
        cluster = self.inventory.clusters.get(host.cluster or "")
        near = [
            near_host
            for near_host in self.inventory.hosts.values()
            if near_host.cluster == host.cluster and near_host.ref != host.ref
        ]
        fit, refusals = TargetHosts(near, cluster, self.inventory).of(vm, running=True)
        slow = {near_host.ref: too_long(vm, host, near_host, cluster) for near_host in near if near_host.ref in fit}
        fitting_hosts = sorted(
            (near_host for near_host in near if near_host.ref in fit and slow[near_host.ref] is None), key=_fullness
        )
        return fitting_hosts, (
            *map(str, refusals),
            *(str(near_host) for near_host in slow.values() if near_host is not None),
        )

    def _plan_shutdown(self, vm: Vm, host: Host, reasons: tuple[str, ...]) -> Away | Staying:
        """Shut down in place of a move, where that is allowed and the guest can be asked."""
        against = tuple(_against_stopping(vm))
        if self.vms is Displacement.MOVE or against:
            rule = f"{vm.name} cannot leave it while it runs: {'; '.join(_few(reasons))}"
            if self.vms is not Displacement.MOVE:
                rule = f"{vm.name} can neither be moved nor shut down: {'; '.join((*_few(reasons), *against))}"
            hint = (
                f"shut {vm.name} down, or let a rolling change do so: --running-vms shut-down"
                if not against
                else f"see to {vm.name} first"
            )
            return Staying(vm, Rejection(host.name, rule, hint=hint), _few(reasons))
        powered_off = self.vms is Displacement.POWER_OFF
        return Away(vm, Leaving.POWER_OFF if powered_off else Leaving.SHUT_DOWN, None, _few(reasons))


def _may_move(vm: Vm, stands: Movability) -> bool:
    if any(map(is_gpu, vm.devices or ())):
        return stands.way is MoveMethod.VMOTION
    return stands.way is not MoveMethod.NOT


def _against_stopping(vm: Vm) -> Iterator[str]:
    """Yield why its guest cannot be asked to shut down, or must not be."""
    on = OPT_OUT.on(vm)
    if on is not False:
        yield f"opted out ({OPT_OUT})" if on else f"{OPT_OUT} cannot be read"
    if vm.power is None or vm.connected is not True:
        yield "whether it runs cannot be read"
    if vm.question is not None:
        yield "waits for an answer to a question"
    if vm.tasks:
        yield f"a task is running on it ({vm.tasks[0].name})"
    if vm.tools_running is not True:
        yield "VMware Tools do not run in it, or do not tell"


def _fullness(host: Host) -> tuple[float, str]:
    total, used = host.memory_mib or 1, host.memory_used_mib or 0
    return used / total, host.name


def _few(reasons: Collection[str]) -> tuple[str, ...]:
    """Return the first of many alike: a cluster of ninety hosts has ninety reasons."""
    distinct = tuple(dict.fromkeys(reasons))
    return distinct if len(distinct) <= 3 else (*distinct[:3], f"and {len(distinct) - 3} more")


GUEST_GRACE_S = 300
"""So long a guest has for its shutdown (the default of ShutDownGuest)."""


def leaving(departures: Iterable[Away]) -> Plan:
    """Return the steps by which VMs leave: guests shut down at once, and to each host one VM after another."""
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


def returning(
    host: Host, stopped: Iterable[Vm], moved: Iterable[Vm], inventory: Inventory, catalog: Catalog
) -> tuple[Plan, tuple[str, ...]]:
    """The VMs come back, and a line for each that does not: what somebody did with it meanwhile is not undone."""
    coming: dict[str, tuple[Vm, Step]] = {}
    remarks: list[str] = []
    for vm in stopped:
        if vm.power is PowerState.OFF and (managed := managed_elsewhere(vm)) is not None:
            remarks.append(f"{vm.name} {managed}; left off")
        elif vm.power is PowerState.OFF:
            coming[vm.ref] = vm, PowerOnVm(vm.ref, host.ref)
        elif vm.power is not PowerState.ON:
            remarks.append(f"{vm.name} is {vm.power or 'in no state that can be read'}: left so")
    for vm in moved:
        if vm.host != host.ref and (managed := managed_elsewhere(vm)) is not None:
            remarks.append(f"{vm.name} {managed}; left where it is")
        elif vm.power is PowerState.ON and vm.host != host.ref:
            coming[vm.ref] = vm, RelocateVm(vm.ref, host.ref)
        elif vm.power is not PowerState.ON:
            remarks.append(f"{vm.name} is {vm.power or 'in no state that can be read'} by now: left where it is")
    plain = [step for vm, step in coming.values() if not vm.profiles]
    first, later_vms = _in_order([vm for vm, _ in coming.values() if vm.profiles], host, inventory, catalog)
    waves = [Wave("bring the VMs back", (coming[vm.ref][1],)) for vm in first]
    later_steps = (*(coming[vm.ref][1] for vm in later_vms), *plain)
    return Plan((*waves, Wave("bring the VMs back", later_steps)) if later_steps else tuple(waves)), tuple(remarks)


def doubtful(host: Host, departures: Iterable[Away], inventory: Inventory, catalog: Catalog) -> tuple[str, ...]:
    """Return the names of the VMs that may find no GPU on their return, even if no other VM came meanwhile."""
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
    """Return the VMs that come one by one, and the rest.

    VMs that are pinned to a GPU come before VMs that may take any; the others come in the order of a resume.
    """
    for vm in vms:
        if vm.power is PowerState.ON:
            inventory = project(PowerOffVm(vm.ref), inventory)
        inventory = inventory.with_vm(replace(inventory.vm(vm.ref), host=host.ref))
    pinned = [inventory.vm(vm.ref) for vm in vms if pins_of(vm)]
    for vm in pinned:
        inventory = project(PowerOnVm(vm.ref, host.ref), inventory, catalog)
    first, later_vms = return_order([inventory.vm(vm.ref) for vm in vms if not pins_of(vm)], inventory, catalog)
    return [*pinned, *first], later_vms
