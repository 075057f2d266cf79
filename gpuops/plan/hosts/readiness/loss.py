"""Whether the VMs with GPUs of a host could start on the other hosts of its cluster if that host failed.

vSphere HA restarts them, so their pins and DirectPath devices matter, and the rules of vMotion do not. HA chooses hosts
and order itself: the answer is only whether some assignment exists. Source: VMware vSphere Availability (restarts may
use failover hosts and the capacity that admission control reserves; mandatory VM-host rules and, by the default of
`das.respectVmVmAntiAffinityRules`, anti-affinity rules also apply to restarts).
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
from gpuops.plan.placement.host_filters import refuse_unseen_files
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
        placed = Counter(name for vm, _ in self.places for name in _devices(vm))
        lost = Counter(name for stranded_vm in self.stranded for name in _devices(stranded_vm.vm))
        names = sorted({*placed, *lost})
        return tuple(ProfileLoss(name, placed[name] + lost[name], placed[name]) for name in names)


def loss_of(host: Host, inventory: Inventory, catalog: Catalog) -> HostLoss:
    """Return where the running VMs with GPUs of this host could start if it failed."""
    vms = [vm for vm in inventory.vms_on(host) if vm.power is PowerState.ON and any(map(is_gpu, vm.devices or ()))]
    world = inventory.with_hosts([replace(host, connected=False)])
    for vm in vms:
        world = project(PowerOffVm(vm.ref), world)
    others = [other for other in world.hosts.values() if other.cluster == host.cluster and other.ref != host.ref]
    return find_restarts(vms, others if host.cluster is not None else (), host.cluster, world, catalog)


def find_restarts(
    vms: Sequence[Vm], hosts: Sequence[Host], cluster: str | None, world: Inventory, catalog: Catalog
) -> HostLoss:
    """Return where these VMs, which are off in the snapshot `world`, could start on these hosts of a cluster (ref).

    First each VM, the largest first, is put on the first host that takes it, its own host before the others. If a VM
    then finds no place, all orders are searched.
    """

    def size(vm: Vm) -> tuple[int, int, str, str]:
        profiles = [catalog.profile(name) for name in vm.profiles]
        vgpu_mib = sum(profile.framebuffer_mib for profile in profiles if profile is not None)
        return -vgpu_mib, -(vm.memory_mib or 0), vm.name, vm.ref

    vms = sorted(vms, key=size)
    restart = _Restart(hosts, world.clusters.get(cluster or ""), catalog)
    loss = restart.one_after_another(vms, world)
    if loss.spared or not hosts:  # every VM has a place, or none can have one
        return loss
    # `refuse_unseen_files` returns why the host does not see them, or None.
    targets = {
        vm.ref: [host.ref for host in hosts if refuse_unseen_files(Wanted(vm, (), (host.ref,)), host, world) is None]
        for vm in vms
    }
    places = find_places([vms], targets, world, restart.after, restart.apart)
    # If the search gave up (`whole` is False), it is not proven that some VMs cannot start.
    return replace(loss, proven=places.whole) if places.places is None else HostLoss(places.places)


@dataclass(frozen=True, slots=True)
class _Restart:
    """Starts of VMs on these hosts of a cluster."""

    others: Sequence[Host]
    cluster: Cluster | None
    catalog: Catalog

    @property
    def apart(self) -> frozenset[str]:
        """Refs of the VMs in anti-affinity rules."""
        return frozenset(ref for rule in self._rules() if rule.kind is RuleKind.APART for ref in rule.vms)

    def one_after_another(self, vms: Sequence[Vm], world: Inventory) -> HostLoss:
        """Start the VMs in this order, each on the first host that takes it, its own host first."""
        places: list[tuple[Vm, Host]] = []
        stranded: list[Stranded] = []
        for vm in vms:
            own_host_first = sorted(self.others, key=lambda other: other.ref != vm.host)
            for host in own_host_first:
                if (after := self.after(vm, host, world)) is not None:
                    world = after
                    places.append((vm, host))
                    break
            else:
                reasons = dict.fromkeys(reason for host in self.others for reason in self._reasons(vm, host, world))
                stranded.append(Stranded(vm, tuple(reasons) or ("no other host in its cluster",)))
        return HostLoss(tuple(places), tuple(stranded))

    def after(self, vm: Vm, host: Host, world: Inventory) -> Inventory | None:
        """Return the snapshot after the VM's start on the host; None if it may not start there."""
        if next(self._reasons(vm, host, world), None) is not None:
            return None
        return project(PowerOnVm(vm.ref, host.ref), world, self.catalog)

    def _reasons(self, vm: Vm, host: Host, world: Inventory) -> Iterator[str]:
        """Yield why the VM may not start on the host."""
        bound = any(isinstance(device, DirectPathDevice | OtherPassthrough) for device in vm.devices or ())
        if bound and host.ref != vm.host:
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
        if world.reservations is None:
            return False
        after = project(PowerOnVm(vm.ref, host.ref), world, self.catalog)
        return any(shortage.too_few for shortage in reserved_left([host], world, after, self.catalog))

    def _rules(self) -> tuple[DrsRule, ...]:
        return (self.cluster.rules or ()) if self.cluster is not None else ()


def _devices(vm: Vm) -> Iterator[str]:
    yield from vm.profiles
    yield from ("whole GPU" for device in vm.devices or () if is_gpu(device) and not isinstance(device, VgpuDevice))
