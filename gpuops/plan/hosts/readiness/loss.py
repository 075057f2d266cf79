"""Whether the VMs with GPUs of a host would find a place on others once that host is dead, profile by profile.

They start anew there, as HA restarts them: their pins and DirectPath devices come along, vMotion's rules do not count.
Sources: VMware vSphere Availability (failover hosts and what admission control keeps free are there for this; VM-host
rules that must hold and rules that keep VMs apart hold for restarts too; `das.respectVmVmAntiAffinityRules` is on by
default). HA chooses the host and the order itself; the answer is whether there is any way at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Cluster, DrsRule, Host, RuleKind
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, OtherPassthrough, PowerState, VgpuDevice, Vm, is_gpu
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm
from gpuops.plan.moving.places import find_places
from gpuops.plan.placement.host_filters import sees_files
from gpuops.plan.placement.keep_free import reserved_left
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room
from gpuops.plan.placement.vm_demand import Wanted


@dataclass(frozen=True, slots=True)
class Stranded:
    """A VM that finds no place, and what each host says."""

    vm: Vm
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProfileLoss:
    """The vGPUs of one profile on the host, or its whole GPUs; `placed` of them come back elsewhere."""

    profile: str
    """`whole GPU` for DirectPath."""
    running: int
    placed: int


@dataclass(frozen=True, slots=True)
class HostLoss:
    """What becomes of the VMs with GPUs of one host."""

    places: tuple[tuple[Vm, Host], ...] = ()
    """The VMs that find a place, each with its host, in this order."""
    stranded: tuple[Stranded, ...] = ()
    proven: bool = True
    """False: not every way was tried; there may be one with a place for all."""

    @property
    def spared(self) -> bool:
        """Return whether each of them has a place elsewhere."""
        return not self.stranded

    @property
    def profiles(self) -> tuple[ProfileLoss, ...]:
        """By profile, in the order of their names."""
        placed = Counter(name for vm, _ in self.places for name in _devices(vm))
        lost = Counter(name for stranded_vm in self.stranded for name in _devices(stranded_vm.vm))
        names = sorted({*placed, *lost})
        return tuple(ProfileLoss(name, placed[name] + lost[name], placed[name]) for name in names)


def loss_of(host: Host, inventory: Inventory, catalog: Catalog) -> HostLoss:
    """Return where the running VMs with GPUs of this host could start, were it dead."""
    vms = [vm for vm in inventory.vms_on(host) if vm.power is PowerState.ON and any(map(is_gpu, vm.devices or ()))]
    world = inventory.with_hosts([replace(host, connected=False)])
    for vm in vms:
        world = project(PowerOffVm(vm.ref), world)
    near = [
        cluster_host
        for cluster_host in world.hosts.values()
        if cluster_host.cluster == host.cluster and cluster_host.ref != host.ref
    ]
    return find_restarts(vms, near if host.cluster is not None else (), host.cluster, world, catalog)


def find_restarts(
    vms: Sequence[Vm], hosts: Sequence[Host], cluster: str | None, world: Inventory, catalog: Catalog
) -> HostLoss:
    """Return where these VMs, which are off in this snapshot, could start among these hosts of a cluster (by ref).

    The largest first, each on the first host that takes it, its own before others; where that leaves one out all
    orders are tried.
    """
    vms = sorted(vms, key=lambda vm: (*_size(vm, catalog), vm.name, vm.ref))
    restart = _Restart(hosts, world.clusters.get(cluster or ""), catalog)
    loss = restart.one_after_another(vms, world)
    if loss.spared or not restart.others:
        return loss
    targets = {
        vm.ref: [other_host.ref for other_host in restart.others if restart.may_take(vm, other_host, world)]
        for vm in vms
    }
    places = find_places([vms], targets, world, restart.after, restart.apart)
    return replace(loss, proven=places.whole) if places.places is None else HostLoss(places.places)


@dataclass(frozen=True, slots=True)
class _Restart:
    """VMs start anew on these hosts of a cluster."""

    others: Sequence[Host]
    cluster: Cluster | None
    catalog: Catalog

    @property
    def apart(self) -> frozenset[str]:
        """Return refs of the VMs that some rule keeps apart."""
        return frozenset(ref for rule in self._rules() if rule.kind is RuleKind.APART for ref in rule.vms)

    def may_take(self, vm: Vm, host: Host, world: Inventory) -> bool:
        """Return whether the host sees its files."""
        return sees_files(Wanted(vm, (), (host.ref,)), host, world) is None

    def one_after_another(self, vms: Sequence[Vm], world: Inventory) -> HostLoss:
        """In this order, each on the first host that takes it."""
        places: list[tuple[Vm, Host]] = []
        stranded: list[Stranded] = []
        for vm in vms:
            way = next(self._ways(vm, world), None)
            if way is None:
                reasons = dict.fromkeys(reason for host in self.others for reason in self._reasons(vm, host, world))
                stranded.append(Stranded(vm, tuple(reasons) or ("no other host in its cluster",)))
                continue
            host, world = way
            places.append((vm, host))
        return HostLoss(tuple(places), tuple(stranded))

    def after(self, vm: Vm, host: Host, world: Inventory) -> Inventory | None:
        """Return the snapshot once it runs there; None = it does not start there for certain."""
        if next(self._reasons(vm, host, world), None) is not None:
            return None
        return project(PowerOnVm(vm.ref, host.ref), world, self.catalog)

    def _ways(self, vm: Vm, world: Inventory) -> Iterator[tuple[Host, Inventory]]:
        for host in sorted(self.others, key=lambda other_host: other_host.ref != vm.host):
            after = self.after(vm, host, world)
            if after is not None:
                yield host, after

    def _reasons(self, vm: Vm, host: Host, world: Inventory) -> Iterator[str]:
        bound = any(isinstance(device, DirectPathDevice | OtherPassthrough) for device in vm.devices or ())
        if bound and host.ref != vm.host:
            yield f"{vm.name} has a passthrough device of its host: it starts nowhere else"
            return
        running_there = {other_vm.ref for other_vm in world.vms_on(host) if other_vm.power is PowerState.ON}
        for rule in self._rules():
            if vm.ref not in rule.vms:
                continue
            if rule.kind is RuleKind.HOSTS and rule.mandatory is not False and not rule.allows(host.ref):
                yield f"{host.name}: DRS rule {rule.name!r} keeps {vm.name} off it"
            elif rule.kind is RuleKind.APART and running_there & set(rule.vms):
                yield f"{host.name}: DRS rule {rule.name!r} keeps {vm.name} apart from others there"
        refused = Room(self.catalog, certain=True).refusals(vm, world.hosts[host.ref], world)
        yield from map(str, refused)
        if not refused and self._takes_reserved(vm, host, world):
            yield f"{host.name}: what it would take there is reserved for others"

    def _takes_reserved(self, vm: Vm, host: Host, world: Inventory) -> bool:
        if world.reservations is None:
            return False
        after = project(PowerOnVm(vm.ref, host.ref), world, self.catalog)
        return any(shortage.too_few for shortage in reserved_left([host], world, after, self.catalog))

    def _rules(self) -> tuple[DrsRule, ...]:
        return (self.cluster.rules or ()) if self.cluster is not None else ()


def _size(vm: Vm, catalog: Catalog) -> tuple[int, int]:
    """Return what sorts the largest first."""
    profiles = [catalog.profile(name) for name in vm.profiles]
    return -sum(profile.framebuffer_mib for profile in profiles if profile is not None), -(vm.memory_mib or 0)


def _devices(vm: Vm) -> Iterator[str]:
    yield from vm.profiles
    yield from ("whole GPU" for device in vm.devices or () if is_gpu(device) and not isinstance(device, VgpuDevice))
