"""Where each running VM of some hosts goes while they are down, or why it can go nowhere.

Sources: VMware vSphere docs, maintenance mode (powered-on VMs must leave; DRS moves by itself what it may, never VMs
with a vGPU unless told so); `plan/moving/movability.py` says when a VM may be moved at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuops.advise.managed_vms import is_cluster_agent, left_to_manager
from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.host_settings import Displacement
from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, Vm, is_gpu
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import PowerOffVm, RelocateVm
from gpuops.plan.moving.movability import (
    OPT_OUT,
    Movability,
    MovabilityCase,
    MoveMethod,
    TargetHosts,
    admitted_moves,
    judge_movability,
)
from gpuops.plan.placement.project import project


class Leaving(StrEnum):
    """How a VM leaves a host."""

    VMOTION = "vMotion"
    DRS = "DRS"
    """vCenter moves it when the host enters maintenance mode; nobody brings it back."""
    SHUT_DOWN = "shut down"
    POWER_OFF = "shut down, or powered off"


@dataclass(frozen=True, slots=True)
class Away:
    """One VM, while its host is down. `target` is where it runs meanwhile; None = nowhere, or where DRS puts it."""

    vm: Vm
    leaving: Leaving
    target: Host | None = None
    why: tuple[str, ...] = ()
    """Why it is not moved."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """Hosts without their VMs: who went where, by host, in order; and every reason why a VM cannot go."""

    away: dict[str, tuple[Away, ...]]
    rejections: tuple[Rejection, ...]


def emptied(hosts: Sequence[Host], vms: Displacement, inventory: Inventory, catalog: Catalog) -> Emptied:
    """All running VMs of these hosts placed on others, the largest first, each beside those before it."""
    down = [replace(host, in_maintenance=True) for host in hosts]
    world = _World(inventory.with_hosts(down), catalog, vms)
    away = {host.ref: tuple(world.leave(host)) for host in down}
    return Emptied(away, tuple(world.rejections))


def runs_there(host: Host, inventory: Inventory) -> list[Vm]:
    """The VMs that must leave the host, or may have to: largest first."""
    found = [vm for vm in inventory.vms_on(host) if vm.power in (PowerState.ON, None) and not vm.template]
    return sorted(found, key=lambda vm: (-len(vm.devices or ()), -(vm.memory_mib or 0), vm.name, vm.ref))


@dataclass(slots=True)
class _World:
    """The snapshot as the VMs that left so far have made it."""

    inventory: Inventory
    catalog: Catalog
    vms: Displacement
    rejections: list[Rejection] = field(default_factory=list)

    def leave(self, host: Host) -> Iterator[Away]:
        for vm in sorted(runs_there(host, self.inventory), key=self._size, reverse=True):
            found = self._away(vm, host)
            if isinstance(found, Rejection):
                self.rejections.append(found)
                continue
            if found.leaving is Leaving.VMOTION and found.target is not None:
                self.inventory = project(RelocateVm(vm.ref, found.target.ref), self.inventory, self.catalog)
            elif found.leaving is not Leaving.DRS:
                self.inventory = project(PowerOffVm(vm.ref), self.inventory, self.catalog)
            yield found

    def _size(self, vm: Vm) -> tuple[int, int]:
        profiles = [self.catalog.profile(name) for name in vm.profiles]
        return sum(each.framebuffer_mib for each in profiles if each is not None), vm.memory_mib or 0

    def _away(self, vm: Vm, host: Host) -> Away | Rejection:
        cluster = self.inventory.clusters.get(host.cluster or "")
        stands = judge_movability(MovabilityCase(vm, host, cluster, self.inventory, self.catalog, (OPT_OUT,)))
        if is_cluster_agent(vm) or self._drs_moves(vm, host):
            return Away(vm, Leaving.DRS)
        managed = left_to_manager(vm)
        if managed is not None:
            hint = f"have its manager move or stop {vm.name}: gpuops changes no VM of others"
            return Rejection(host.name, f"{vm.name} cannot leave it while it runs: {managed}", hint=hint)
        if _may_move(vm, stands):
            target, reasons = self._target(vm, host)
            if target is not None:
                return Away(vm, Leaving.VMOTION, target)
        else:
            reasons = stands.reasons
        return self._stopped(vm, host, reasons)

    def _drs_moves(self, vm: Vm, host: Host) -> bool:
        """Whether DRS moves it by itself: fully automated, for this VM too, and a VM without devices of the host."""
        cluster = self.inventory.clusters.get(host.cluster or "")
        if cluster is None or cluster.drs_enabled is not True or vm.devices is None or any(map(is_gpu, vm.devices)):
            return False
        behavior = dict(cluster.drs_overrides).get(vm.ref, cluster.drs_behavior)
        return behavior == "fullyAutomated" and vm.ref not in cluster.drs_excluded

    def _target(self, vm: Vm, host: Host) -> tuple[Host | None, tuple[str, ...]]:
        """The host with the most free memory that surely takes it; or what each of them says."""
        cluster = self.inventory.clusters.get(host.cluster or "")
        near = [each for each in self.inventory.hosts.values() if each.cluster == host.cluster and each.ref != host.ref]
        fit, refusals = TargetHosts(near, cluster, self.inventory).of(vm, running=True)
        for target in sorted((each for each in near if each.ref in fit), key=_fullness):
            if admitted_moves([RelocateVm(vm.ref, target.ref)], self.inventory, self.catalog):
                return target, ()
        full = tuple(f"{each.name}: no room that is certain" for each in near if each.ref in fit)
        return None, (*map(str, refusals), *full) or ("no other host in its cluster",)

    def _stopped(self, vm: Vm, host: Host, reasons: tuple[str, ...]) -> Away | Rejection:
        """Shut down in place of a move, where that is allowed and the guest can be asked."""
        against = tuple(_against_stopping(vm))
        if self.vms is Displacement.MOVE or against:
            rule = f"{vm.name} cannot leave it while it runs: {'; '.join(_few(reasons))}"
            if self.vms is not Displacement.MOVE:
                rule = f"{vm.name} can neither be moved nor shut down: {'; '.join((*_few(reasons), *against))}"
            hint = f"shut {vm.name} down, or let it be: --vms shut-down" if not against else f"see to {vm.name} first"
            return Rejection(host.name, rule, hint=hint)
        powered_off = self.vms is Displacement.POWER_OFF
        return Away(vm, Leaving.POWER_OFF if powered_off else Leaving.SHUT_DOWN, None, _few(reasons))


def _may_move(vm: Vm, stands: Movability) -> bool:
    if any(map(is_gpu, vm.devices or ())):
        return stands.way is MoveMethod.VMOTION
    return stands.way is not MoveMethod.NOT


def _against_stopping(vm: Vm) -> Iterator[str]:
    """Why its guest cannot be asked to shut down, or must not be."""
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
    """The first of many alike: a cluster of ninety hosts has ninety reasons."""
    told = tuple(dict.fromkeys(reasons))
    return told if len(told) <= 3 else (*told[:3], f"and {len(told) - 3} more")
