"""Checks for each host whether it can be emptied, and whether its VMs could start elsewhere if it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Cluster, DrsRule, Host, RuleKind
from gpuops.model.vcenter.host_settings import Displacement
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, OtherPassthrough, PowerState, VgpuDevice, Vm, is_gpu
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm
from gpuops.plan.hosts.change.emptying import Away, Leaving, Staying, empty_hosts, running_vms_on
from gpuops.plan.hosts.host_plan import vms_forbidding_change
from gpuops.plan.moving.places import find_places
from gpuops.plan.moving.vmotion_stun import Stun, evacuation_obstacles, own_stun_settings, stun_between, tolerated_s
from gpuops.plan.placement.host_filters import refuse_unseen_files, unreachable
from gpuops.plan.placement.keep_free import reserved_left
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room
from gpuops.plan.placement.vm_demand import Wanted


@dataclass(frozen=True, slots=True)
class Stranded:
    """A VM that could start on no host, with the reasons of each host."""

    vm: Vm
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProfileLoss:
    """The number of vGPUs of a profile that run on the host, and how many of them could start elsewhere."""

    profile: str
    """A vGPU profile, or `whole GPU` for DirectPath."""
    running: int
    placed: int


@dataclass(frozen=True, slots=True)
class HostLoss:
    """Which VMs with GPUs could start elsewhere if the host failed, and which could not."""

    places: tuple[tuple[Vm, Host], ...] = ()
    """(VM, host) in the order of the starts."""
    stranded: tuple[Stranded, ...] = ()
    proven: bool = True
    """False if the search stopped early: an assignment with a place for every VM may exist."""

    @property
    def spared(self) -> bool:
        """Whether every VM could start elsewhere."""
        return not self.stranded

    @property
    def profiles(self) -> tuple[ProfileLoss, ...]:
        """The counts of each profile, by name."""
        placed = Counter(name for vm, _ in self.places for name in _device_names(vm))
        lost = Counter(name for stranded_vm in self.stranded for name in _device_names(stranded_vm.vm))
        names = sorted({*placed, *lost})
        return tuple(ProfileLoss(name, placed[name] + lost[name], placed[name]) for name in names)


def find_host_loss(host: Host, inventory: Inventory, catalog: Catalog) -> HostLoss:
    """Return where the running VMs with GPUs of this host could start if it failed."""
    vms = [vm for vm in inventory.vms_on(host) if vm.power is PowerState.ON and any(map(is_gpu, vm.devices or ()))]
    world = inventory.with_hosts([replace(host, connected=False)])
    for vm in vms:
        world = project(PowerOffVm(vm.ref), world)
    cluster_hosts = [other for other in world.hosts.values() if other.cluster == host.cluster and other.ref != host.ref]
    return find_restarts(vms, cluster_hosts if host.cluster is not None else (), host.cluster, world, catalog)


def find_restarts(
    vms: Sequence[Vm], hosts: Sequence[Host], cluster: str | None, world: Inventory, catalog: Catalog
) -> HostLoss:
    """Return where these VMs, which are off in the snapshot `world`, could start on these hosts of a cluster (ref).

    First each VM, the largest first, is put on the first host that takes it, its own host before the others. If a VM
    then finds no place, all orders are searched.
    """

    def largest_first(vm: Vm) -> tuple[int, int, str, str]:
        profiles = [catalog.profile(name) for name in vm.profiles]
        vgpu_mib = sum(profile.framebuffer_mib for profile in profiles if profile is not None)
        return -vgpu_mib, -(vm.memory_mib or 0), vm.name, vm.ref

    vms = sorted(vms, key=largest_first)
    restart = _Restart(hosts, world.clusters.get(cluster or ""), catalog)
    loss = restart.start_in_order(vms, world)
    if loss.spared or not hosts:  # every VM has a place, or none can have one
        return loss
    # `refuse_unseen_files` returns why the host does not see them, or None.
    targets = {
        vm.ref: [host.ref for host in hosts if refuse_unseen_files(Wanted(vm, (), (host.ref,)), host, world) is None]
        for vm in vms
    }
    places = find_places([vms], targets, world, restart.after, restart.anti_affine_vms)
    # If the search gave up (`whole` is False), it is not proven that some VMs cannot start.
    return replace(loss, proven=places.complete) if places.places is None else HostLoss(places.places)


@dataclass(frozen=True, slots=True)
class _Restart:
    """Starts of VMs on these hosts of a cluster."""

    hosts: Sequence[Host]
    cluster: Cluster | None
    catalog: Catalog

    @property
    def anti_affine_vms(self) -> frozenset[str]:
        """Refs of the VMs in anti-affinity rules."""
        return frozenset(ref for rule in self._rules() if rule.kind is RuleKind.APART for ref in rule.vms)

    def start_in_order(self, vms: Sequence[Vm], world: Inventory) -> HostLoss:
        """Start the VMs in this order, each on the first host that takes it, its own host first."""
        places: list[tuple[Vm, Host]] = []
        stranded: list[Stranded] = []
        for vm in vms:
            own_host_first = sorted(self.hosts, key=lambda host: host.ref != vm.host)
            for host in own_host_first:
                if (after := self.after(vm, host, world)) is not None:
                    world = after
                    places.append((vm, host))
                    break
            else:
                reasons = dict.fromkeys(reason for host in self.hosts for reason in self._reasons(vm, host, world))
                stranded.append(Stranded(vm, tuple(reasons) or ("no other host in its cluster",)))
        return HostLoss(tuple(places), tuple(stranded))

    def after(self, vm: Vm, host: Host, world: Inventory) -> Inventory | None:
        """Return the snapshot after the VM's start on the host; None if it may not start there."""
        if next(self._reasons(vm, host, world), None) is not None:
            return None
        return project(PowerOnVm(vm.ref, host.ref), world, self.catalog)

    def _reasons(self, vm: Vm, host: Host, world: Inventory) -> Iterator[str]:
        """Yield why the VM may not start on the host."""
        has_passthrough = any(isinstance(device, DirectPathDevice | OtherPassthrough) for device in vm.devices or ())
        if has_passthrough and host.ref != vm.host:
            yield f"{vm.name} has a passthrough device of its own host and starts on no other"
            return
        running_there = {other_vm.ref for other_vm in world.vms_on(host) if other_vm.power is PowerState.ON}
        for rule in self._rules():
            if vm.ref not in rule.vms:
                continue
            # A rule of which it is unknown whether it is mandatory counts as mandatory.
            if rule.kind is RuleKind.HOSTS and rule.mandatory is not False and not rule.allows(host.ref):
                yield f"{host.name}: DRS rule {rule.name!r} forbids {vm.name} on it"
            elif rule.kind is RuleKind.APART and running_there & set(rule.vms):
                yield f"{host.name}: DRS rule {rule.name!r} keeps {vm.name} apart from VMs on it"
        refused = Room(self.catalog, certain=True).refusals(vm, world.hosts[host.ref], world)
        yield from map(str, refused)
        if not refused and self._takes_reserved(vm, host, world):
            yield f"{host.name}: the slots it would take are reserved for other VMs"

    def _takes_reserved(self, vm: Vm, host: Host, world: Inventory) -> bool:
        """Return whether the VM's start on the host would use slots that are reserved for other VMs."""
        if world.reservations is None:
            return False
        after = project(PowerOnVm(vm.ref, host.ref), world, self.catalog)
        return any(shortage.too_few for shortage in reserved_left([host], world, after, self.catalog))

    def _rules(self) -> tuple[DrsRule, ...]:
        return (self.cluster.rules or ()) if self.cluster is not None else ()


def _device_names(vm: Vm) -> Iterator[str]:
    """Yield the profile of each vGPU of the VM, and `whole GPU` for each DirectPath GPU."""
    yield from vm.profiles
    yield from ("whole GPU" for device in vm.devices or () if is_gpu(device) and not isinstance(device, VgpuDevice))


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
        loss=find_host_loss(host, inventory, catalog),
    )


def _notes(host: Host, departures: Iterable[Away], stuns: Mapping[str, Stun], inventory: Inventory) -> Iterator[str]:
    """Yield problems that do not keep the host from being emptied, but may hinder what an admin does then."""
    if host.in_maintenance is not False:
        is_known = host.in_maintenance is True
        yield "is in maintenance mode already" if is_known else "whether it is in maintenance mode cannot be read"
    for rejection in vms_forbidding_change(host, inventory):
        yield f"a rolling change of the host is refused: {rejection.rule}"
    limit_s = tolerated_s(inventory.clusters.get(host.cluster or ""))
    for departure in departures:
        stun = stuns.get(departure.vm.ref)
        if stun is not None and stun.at_most_s > limit_s:
            yield f"the stun of {departure.vm.name} may last {stun.at_most_s} s; the cluster tolerates {limit_s} s"
        for setting in own_stun_settings(departure.vm):
            yield f"{departure.vm.name} has {setting}: its own limit for the stun may apply"
