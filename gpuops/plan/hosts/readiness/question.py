"""Checks for each host with GPUs whether it can be emptied, by which moves, and what happens if it fails.

A host is ready if every VM that must leave it has a certain place elsewhere by vMotion, one move after another. Whether
vCenter would move these VMs itself in maintenance mode depends on advanced options of DRS (`by_vcenter`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import Displacement
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.emptying import Away, Leaving, Staying, empty_hosts, running_vms_on
from gpuops.plan.hosts.host_plan import kept_as_they_are
from gpuops.plan.hosts.readiness.loss import HostLoss, loss_of
from gpuops.plan.moving.vmotion_stun import Stun, evacuation_obstacles, own_stun_settings, stun_between, tolerated_s
from gpuops.plan.placement.host_filters import unreachable


@dataclass(frozen=True, slots=True)
class HostReadiness:
    """Whether one host can be emptied, and what happens if it fails."""

    host: Host
    away: tuple[Away, ...]
    """The VMs that leave, each with its target, in this order."""
    stays: tuple[Staying, ...]
    """The VMs that cannot leave it; not empty = it cannot be emptied."""
    unreachable: Rejection | None = None
    """Why vCenter cannot reach it, so that all of this may be outdated."""
    proven: bool = True
    """False if the search stopped early: an order of moves that empties the host may exist."""
    stuns: Mapping[str, Stun] = field(default_factory=dict)
    """vCenter's stun estimate by ref of each VM that moves; without an entry it is unknown."""
    by_vcenter: tuple[str, ...] = ()
    """Why entering maintenance mode would wait until an admin moves the VMs with vGPUs; () = it would not wait."""
    notes: tuple[str, ...] = ()
    loss: HostLoss = field(default_factory=HostLoss)

    @property
    def ready(self) -> bool:
        """Whether all VMs that must leave the host can leave it."""
        return not self.stays and self.unreachable is None

    @property
    def blockers(self) -> tuple[Rejection, ...]:
        """The reasons why the host cannot be emptied."""
        unreachable = () if self.unreachable is None else (self.unreachable,)
        return (*unreachable, *(staying.rejection for staying in self.stays))

    @property
    def moves(self) -> tuple[Away, ...]:
        """The VMs that gpuops would move by vMotion."""
        return tuple(departure for departure in self.away if departure.leaving is Leaving.VMOTION)

    @property
    def unknown_stuns(self) -> tuple[Vm, ...]:
        """The VMs with vGPUs that would move, but without a stun estimate of vCenter."""
        return tuple(move.vm for move in self.moves if move.vm.vgpus and move.vm.ref not in self.stuns)


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answers for the requested hosts, by name."""

    inventory: Inventory
    hosts: tuple[HostReadiness, ...]

    @property
    def ready(self) -> bool:
        """Whether each of the hosts can be emptied."""
        return all(host.ready for host in self.hosts)


def readiness(scope: Scope, inventory: Inventory, catalog: Catalog) -> Readiness:
    """Check each host of the scope, as if only that host were emptied or failed.

    Raises UsageError, HostNotFound for an unknown name.
    """
    scope.check(inventory)
    return Readiness(inventory, tuple(host_readiness(host, inventory, catalog) for host in scope.hosts(inventory)))


def host_readiness(host: Host, inventory: Inventory, catalog: Catalog) -> HostReadiness:
    """Return whether this host can be emptied, by which moves, and what happens to its VMs if it fails."""
    outcome = empty_hosts([host], Displacement.MOVE, inventory, catalog)
    departures = outcome.away[host.ref]
    stuns = {
        departure.vm.ref: stun
        for departure in departures
        if departure.leaving is Leaving.VMOTION and departure.target is not None
        and (stun := stun_between(departure.vm, (host, departure.target))) is not None
    }  # fmt: skip
    has_vgpus = any(vm.vgpus for vm in running_vms_on(host, inventory))
    return HostReadiness(
        host=host,
        away=departures,
        stays=outcome.stays,
        unreachable=unreachable(host),
        proven=outcome.proven,
        stuns=stuns,
        by_vcenter=tuple(evacuation_obstacles(inventory.clusters.get(host.cluster or ""))) if has_vgpus else (),
        notes=tuple(_notes(host, departures, stuns, inventory)),
        loss=loss_of(host, inventory, catalog),
    )


def _notes(host: Host, departures: Iterable[Away], stuns: Mapping[str, Stun], inventory: Inventory) -> Iterator[str]:
    """Yield problems that do not keep the host from being emptied, but may hinder what an admin does then."""
    if host.in_maintenance is not False:
        is_known = host.in_maintenance is True
        yield "is in maintenance mode already" if is_known else "whether it is in maintenance mode cannot be read"
    for rejection in kept_as_they_are(host, inventory):
        yield f"a rolling change of the host is refused: {rejection.rule}"
    limit_s = tolerated_s(inventory.clusters.get(host.cluster or ""))
    for departure in departures:
        stun = stuns.get(departure.vm.ref)
        if stun is not None and stun.at_most_s > limit_s:
            yield f"the stun of {departure.vm.name} may last {stun.at_most_s} s; the cluster tolerates {limit_s} s"
        for setting in own_stun_settings(departure.vm):
            yield f"{departure.vm.name} has {setting}: its own limit for the stun may apply"
