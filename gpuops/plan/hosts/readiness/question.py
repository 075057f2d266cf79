"""For each host with GPUs: whether it can be emptied, by which moves, what is against it, and whether it can be lost.

A host is ready where every VM that must leave it surely has a place elsewhere by vMotion, each after those before it.
What vCenter would do by itself in maintenance mode is another question: the advanced options of DRS answer it.
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
from gpuops.plan.hosts.change.emptying import Away, Leaving, Staying, empty_hosts, runs_there
from gpuops.plan.hosts.host_plan import kept_as_they_are
from gpuops.plan.hosts.readiness.loss import HostLoss, loss_of
from gpuops.plan.moving.vmotion_stun import Stun, evacuation_obstacles, own_stun_settings, stun_between, tolerated_s
from gpuops.plan.placement.host_filters import unreachable


@dataclass(frozen=True, slots=True)
class HostReadiness:
    """One host: can it be emptied, can it be lost."""

    host: Host
    away: tuple[Away, ...]
    """The VMs that leave, each with its target, in this order."""
    stays: tuple[Staying, ...]
    """The VMs that cannot leave it; not empty = it cannot be emptied."""
    unreachable: Rejection | None = None
    """Why nothing that is shown of it is certain."""
    proven: bool = True
    """False: not every order of moves was tried; there may be one that empties it."""
    stuns: Mapping[str, Stun] = field(default_factory=dict)
    """By ref of a VM that moves vCenter's estimate of its stun; without an entry it is unknown."""
    by_vcenter: tuple[str, ...] = ()
    """Why entering maintenance mode waits for its VMs with vGPUs, unless an admin moves them; () = it does not wait."""
    notes: tuple[str, ...] = ()
    loss: HostLoss = field(default_factory=HostLoss)

    @property
    def ready(self) -> bool:
        """Return whether all that must leave it can."""
        return not self.stays and self.unreachable is None

    @property
    def blockers(self) -> tuple[Rejection, ...]:
        """Return everything that keeps it from being emptied."""
        unreachable = () if self.unreachable is None else (self.unreachable,)
        return (*unreachable, *(staying.rejection for staying in self.stays))

    @property
    def moves(self) -> tuple[Away, ...]:
        """Return those that gpuops moves."""
        return tuple(departure for departure in self.away if departure.leaving is Leaving.VMOTION)

    @property
    def unknown_stuns(self) -> tuple[Vm, ...]:
        """Return the VMs with vGPUs that move, and of whose stun vCenter tells nothing."""
        return tuple(
            departure.vm for departure in self.moves if departure.vm.vgpus and departure.vm.ref not in self.stuns
        )


@dataclass(frozen=True, slots=True)
class Readiness:
    """The hosts that were asked about, by name."""

    inventory: Inventory
    hosts: tuple[HostReadiness, ...]

    @property
    def ready(self) -> bool:
        """Return whether each of them can be emptied."""
        return all(host.ready for host in self.hosts)


def readiness(scope: Scope, inventory: Inventory, catalog: Catalog) -> Readiness:
    """Return the answer for each host of the scope, as if it alone were emptied, or died.

    Raises UsageError, HostNotFound for a name that is not there.
    """
    scope.check(inventory)
    return Readiness(inventory, tuple(host_readiness(host, inventory, catalog) for host in scope.hosts(inventory)))


def host_readiness(host: Host, inventory: Inventory, catalog: Catalog) -> HostReadiness:
    """Return the answer for one host."""
    outcome = empty_hosts([host], Displacement.MOVE, inventory, catalog)
    departures = outcome.away[host.ref]
    stuns = {departure.vm.ref: stun for departure in departures if (stun := _stun(departure, host)) is not None}
    return HostReadiness(
        host=host,
        away=departures,
        stays=outcome.stays,
        unreachable=unreachable(host),
        proven=outcome.proven,
        stuns=stuns,
        by_vcenter=tuple(_by_vcenter(host, inventory)),
        notes=tuple(_notes(host, departures, stuns, inventory)),
        loss=loss_of(host, inventory, catalog),
    )


def _stun(departure: Away, host: Host) -> Stun | None:
    if departure.leaving is not Leaving.VMOTION or departure.target is None:
        return None
    return stun_between(departure.vm, (host, departure.target))


def _by_vcenter(host: Host, inventory: Inventory) -> Iterator[str]:
    if any(vm.vgpus for vm in runs_there(host, inventory)):
        yield from evacuation_obstacles(inventory.clusters.get(host.cluster or ""))


def _notes(host: Host, departures: Iterable[Away], stuns: Mapping[str, Stun], inventory: Inventory) -> Iterator[str]:
    """Yield what is no obstacle to emptying it, and may be one to what comes then."""
    if host.in_maintenance is not False:
        is_known = host.in_maintenance is True
        yield "is in maintenance mode already" if is_known else "whether it is in maintenance mode cannot be read"
    for rejection in kept_as_they_are(host, inventory):
        yield f"no rolling change takes it: {rejection.rule}"
    limit_s = tolerated_s(inventory.clusters.get(host.cluster or ""))
    for departure in departures:
        stun = stuns.get(departure.vm.ref)
        if stun is not None and stun.at_most_s > limit_s:
            yield f"the stun of {departure.vm.name} may be {stun.at_most_s} s, and {limit_s} s are tolerated"
        for setting in own_stun_settings(departure.vm):
            yield f"{departure.vm.name} has {setting}: it may have a limit of its own for its stun"
